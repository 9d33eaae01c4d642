//! Every limit of the mesh, in one place, each with its unit and its reason.
//!
//! What happens when a limit is reached is said at the place that enforces it and tested there.

/// Longest tenant id, region or agent label, in bytes (DESIGN section 2: one leading character and 62 more).
pub const LABEL_BYTES_MAX: usize = 63;
/// Longest raw name or raw filter, in bytes: long enough for any sane subject, short enough to copy without thought.
pub const RAW_BYTES_MAX: usize = 1024;
/// Most tokens in a raw name or filter: bounds the depth of every trie walk.
pub const NAME_TOKENS_MAX: usize = 128;
/// Longest qualified name: `T.`, tenant, class and the raw part with their dots.
pub const QUALIFIED_BYTES_MAX: usize = 2 + LABEL_BYTES_MAX + 1 + 4 + 1 + RAW_BYTES_MAX;
/// Longest queue group name, in bytes: it travels in target lists with a one-byte length.
pub const QUEUE_GROUP_BYTES_MAX: usize = 128;

/// Default largest payload of one message, in bytes; fabric-wide, set by the bundle.
pub const MAX_PAYLOAD_BYTES_DEFAULT: u32 = 1024 * 1024;
/// Largest payload a bundle may allow, in bytes: bounds reassembly memory.
pub const MAX_PAYLOAD_BYTES_CEILING: u32 = 8 * 1024 * 1024;
/// Longest header block of one message, in bytes: its length field is 16 bits wide.
pub const HEADERS_BYTES_MAX: usize = 32 * 1024;
/// Longest extension block of one data frame, in bytes: its length field is 16 bits wide.
pub const EXT_BYTES_MAX: usize = 32 * 1024;
/// Largest control frame body before the peer has sent a valid hello, in bytes: nothing big is believed from a stranger.
pub const CONTROL_BYTES_MAX_BEFORE_HELLO: usize = 4 * 1024;
/// Largest control frame body, in bytes.
pub const CONTROL_BYTES_MAX: usize = 64 * 1024;
/// Longest arguments of one line of the NATS protocol, in bytes: what NATS servers take by default, so that no client
/// finds less here. Together with the largest payload it bounds what a session's read buffer must hold.
pub const NATS_CONTROL_LINE_BYTES_MAX: usize = 4 * 1024;
/// Largest body inside a control frame for a broker that is not the neighbour, in bytes: the frame around it must fit, too.
pub const ROUTED_BYTES_MAX: usize = 60 * 1024;
/// Protocol versions one hello may offer: neighbours of two releases need two.
pub const HELLO_VERSIONS_MAX: usize = 16;
/// Longest free name a client gives itself in its hello, in bytes: it only labels logs.
pub const CLIENT_NAME_BYTES_MAX: usize = 128;
/// Longest node id as text, `<region>/<agent>`, in bytes; a sender's text has the same bound.
pub const NODE_ID_BYTES_MAX: usize = 2 * LABEL_BYTES_MAX + 1;
/// Longest role name in a welcome, in bytes.
pub const ROLE_BYTES_MAX: usize = 16;
/// Longest uid of a principal, in bytes: 16 hex digits today.
pub const UID_BYTES_MAX: usize = 64;
/// Longest prefix of reply subjects in a welcome, in bytes: `_INBOX.<region>.<agent>.` and some.
pub const INBOX_PREFIX_BYTES_MAX: usize = 256;
/// Longest code of a refusal or error, in bytes.
pub const CODE_BYTES_MAX: usize = 64;
/// Longest text of a refusal or error, in bytes: one line for a person.
pub const TEXT_BYTES_MAX: usize = 512;
/// Tenant codes in one allowed-set frame: half of a full control frame; more follow in further frames.
pub const ALLOWED_SET_MACS_MAX: usize = 2048;

/// Most target brokers in one data frame: a larger fan-out is split over several frames.
pub const TARGETS_MAX: usize = 1024;
/// Most subscription ids in one delivery: a session with more that match is told by several frames.
pub const DELIVERY_SUBS_MAX: usize = 4_096;
/// Payloads of at least this many bytes are shared by all targets instead of copied into each one's chunk, in bytes.
pub const SHARED_PAYLOAD_BYTES_MIN: usize = 4 * 1024;
/// So many sessions with the same subscription share one copy of a small message, which is then written once for all.
pub const CROWD_SESSIONS_MIN: usize = 8;
/// Bytes of small frames that are queued as one run: little enough to be dropped together.
pub const RUN_BYTES_MAX: usize = 4 * 1024;
/// Bytes that a chunk of frames is made for at most before there are any: what a full read brings, with larger heads.
pub const CHUNK_BYTES_MAX: usize = 96 * 1024;
/// Presence records that may wait for room in one tenant's lane of one edge before they are replaced by a full list.
pub const PRESENCE_PENDING_MAX: usize = 65_536;
/// Most brokers a message may pass before it is dropped: loops end even if routes are wrong.
pub const HOPS_MAX: u8 = 16;

/// Largest slice of one lane on a bridge, in bytes (DESIGN section 6).
pub const SLICE_BYTES_MAX: usize = 16 * 1024;
/// Pause between an answered probe in a data stream and the next one there, in milliseconds.
pub const PATH_PROBE_MS: u64 = 500;
/// How long a probe in a data stream may be unanswered at least, in milliseconds: twice what silence may last, since a reader
/// may wait for the control half, which no answer on a control stream does.
pub const PATH_DEAD_MS_MIN: u64 = 2_000;
/// Probes of a peer that wait for their answer: four for each stream, of which an honest peer needs one.
pub const PATH_ANSWERS_MAX: usize = 64;
/// Data streams per bridge and direction (DESIGN section 6).
pub const BRIDGE_STREAMS: usize = 16;
/// Most lanes one peer may hold open on one bridge: two tenants' worth of state per allowed tenant at 10 000 tenants.
pub const BRIDGE_LANES_MAX: usize = 65_536;
/// Silence after which an empty lane of a bridge is reset and forgotten by both sides, in milliseconds.
pub const LANE_IDLE_MS: u64 = 60_000;
/// Refused slices and lanes after which a bridge is closed: one is a race with a reload, a hundred is a liar.
pub const BRIDGE_REFUSALS_MAX: u64 = 100;
/// Senders elsewhere whose last delivered number one node remembers across the edges their messages come by.
pub const DELIVERED_SENDERS_MAX: usize = 262_144;
/// Most broker or sender handles announced in one lane.
pub const LANE_HANDLES_MAX: usize = 65_536;
/// Reassembly memory of partial frames per bridge, in bytes.
pub const BRIDGE_REASSEMBLY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes one lane of an edge may queue before its class's rule applies.
pub const EDGE_LANE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Least that a lane of an edge may be configured to queue, in bytes: a batch of small messages.
pub const EDGE_LANE_BYTES_MIN: usize = 64 * 1024;
/// Bytes all lanes of one edge may queue together, unless its configuration says otherwise: memory is bounded whatever the number of tenants, and a flood of ten of
/// them costs no more than one of two.
pub const EDGE_BYTES_DEFAULT: usize = 16 * 1024 * 1024;
/// Most that an edge may be configured to queue in all lanes together, in bytes.
pub const EDGE_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Bytes one class of a session's egress may queue before its class's rule applies.
pub const SESSION_LANE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Bytes that all queues of a node may hold together, of sessions, of edges and of what is not acknowledged, where the machine does not say how much memory it has.
pub const MEMORY_BYTES_DEFAULT: usize = 1024 * 1024 * 1024;
/// Least that a node, or one tenant on it, may be configured to hold, in bytes: a few full lanes.
pub const MEMORY_BYTES_MIN: usize = 16 * 1024 * 1024;
/// Least that a section may let its tenant hold on a node, in bytes: the steps of some sixty sessions.
pub const TENANT_MEMORY_BYTES_MIN: usize = 1024 * 1024;
/// Most that they may be configured to hold, in bytes: more than any machine has.
pub const MEMORY_BYTES_MAX: usize = 1 << 44;
/// Steps in which a session, an edge or a flow charges what it holds to its tenant, in bytes, and what it may always hold: about
/// what an idle session costs anyway, so that light traffic touches nothing that is shared.
pub const MEMORY_STEP_BYTES: usize = 16 * 1024;
/// Of what a tenant may hold, its sessions take one part of so many for large messages that they read.
pub const READING_TENANT_PARTS: usize = 2;
/// Of what a node's tenants may hold, the sessions of all together take one part of so many for that.
pub const READING_NODE_PARTS: usize = 4;
/// Charged against lane limits for every queued frame beside its bytes: what the bookkeeping of a small frame costs.
pub const QUEUED_FRAME_OVERHEAD_BYTES: usize = 128;
/// Control frames (acks, pongs, refusals) one session may have waiting, in bytes: more is a client that does not read.
pub const SESSION_CONTROL_QUEUE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The same where memory is short, in bytes: the answers to a few full reads.
pub const SESSION_CONTROL_QUEUE_BYTES_MIN: usize = 256 * 1024;
/// Bytes of one packet by default, the unit of scheduling: what fits the smallest datagram QUIC must carry.
pub const PACKET_BYTES_DEFAULT: usize = 1200;
/// Emptied queues one scheduler keeps for the next tenant that needs one: saves allocation when traffic is light.
pub const SPARE_LANES_MAX: usize = 64;
/// Frames an emptied lane keeps room for; more is given back.
pub const LANE_KEEP_FRAMES: usize = 64;
/// Age at which a queued `live` frame is dropped instead of sent, in milliseconds: old news is no news.
pub const LIVE_AGE_MS_MAX: u64 = 10_000;
/// How long a session's full `ctrl` or `bulk` lane is tolerated before it is disconnected, in milliseconds.
pub const SLOW_CONSUMER_MS_MAX: u64 = 5_000;

/// Subscriptions one session may hold.
pub const SESSION_SUBSCRIPTIONS_MAX: usize = 100_000;
/// Sessions one node accepts.
pub const SESSIONS_MAX: usize = 100_000;
/// Sessions and unfinished handshakes from one IP address.
pub const CONNECTIONS_PER_IP_MAX: usize = 20_000;
/// Unfinished handshakes one node carries at once.
pub const HANDSHAKES_MAX: usize = 4_096;
/// Time a connection has to finish TLS and send its hello, in milliseconds.
pub const HANDSHAKE_MS_MAX: u64 = 10_000;
/// Silence after which a native session is probed, in milliseconds.
pub const SESSION_PING_MS: u64 = 20_000;
/// Unanswered probes after which a native session is closed.
pub const SESSION_PINGS_MAX: u32 = 2;
/// Filters of one origin and tenant that are taken from it: ten full sessions' worth, about 200 MB where they are pulled. An
/// origin that tells of more is sent everything and matches itself, so that nothing is lost.
pub const INTEREST_FILTERS_MAX: usize = 1_000_000;
/// Brokers that may follow the interest of one tenant at one origin: all of the largest fabric.
pub const INTEREST_PULLERS_MAX: usize = NODES_MAX;
/// Changes of one tenant's interest that are kept for those who have not been told: whoever lags further gets the list.
pub const INTEREST_LOG_MAX: usize = 65_536;
/// Filters of one message of interest, in bytes; the last one may exceed it, and still fits a control frame.
pub const INTEREST_NEWS_BYTES_MAX: usize = 32 * 1024;
/// Messages of interest on their way to one broker that it has not said it has taken.
pub const INTEREST_NEWS_WINDOW: u64 = 8;
/// Messages of interest after which it is said that they were taken: half a window, so that a list never stands still.
pub const INTEREST_ACK_EVERY: u64 = 4;
/// How long fewer messages may wait until it is said that they were taken, in milliseconds.
pub const INTEREST_ACK_MS: u64 = 200;
/// Brokers that are sent the list of one tenant at once: what is on its way to all of them fits half of a lane.
pub const INTEREST_LISTINGS_MAX: usize = 16;
/// How long an origin tells changes to a broker that does not say it wants them, in milliseconds.
pub const INTEREST_LEASE_MS: u64 = 30_000;
/// How often a broker says that it still wants changes, in milliseconds: three times in a lease.
pub const INTEREST_RENEW_MS: u64 = 10_000;
/// How long the first answer to a pull is awaited before it is asked again, in milliseconds; then twice as long, and so on.
/// Longer than any round trip: what answers an earlier question counts for nothing.
pub const INTEREST_RETRY_MS: u64 = 1_000;
/// Longest wait before a pull is asked again, or an answer is told again, in milliseconds.
pub const INTEREST_RETRY_MS_MAX: u64 = 8_000;
/// How long an origin waits to hear that a message was taken before it starts afresh, in milliseconds.
pub const INTEREST_RESEND_MS: u64 = 1_000;
/// How long a broker keeps following a tenant's interest after its last publisher has gone, in milliseconds: an agent that
/// reconnects finds everything in place.
pub const PUBLISHER_IDLE_MS: u64 = 60_000;
/// Queue groups without a member that one answer to a request names; of more, the others are counted and not chosen again.
pub const UNSERVED_GROUPS_MAX: usize = 256;
/// Requests in `live` and `tele` that are kept for a tenant at once: the oldest go first, and have no second choice then.
pub const REQUESTS_KEPT_MAX: usize = 4_096;
/// The same in bytes.
pub const REQUESTS_BYTES_MAX: usize = 1024 * 1024;
/// How long such a request is kept, in milliseconds: for the way there and back.
pub const REQUESTS_KEPT_MS: u64 = 2_000;
/// How long a broker waits before it asks another one again what has arrived of `live` and `tele`, in milliseconds: a small
/// frame for each tenant, class and target that something was sent to.
pub const TALLY_MS: u64 = 5_000;
/// The same while something is missing, in milliseconds: longer than what took another way may be late, also where brokers
/// on it get little of a busy machine.
pub const TALLY_AGAIN_MS: u64 = 4_000;
/// How long a broker that does not say what has arrived is waited for, in milliseconds; then nothing has.
pub const TALLY_GIVE_UP_MS: u64 = 30_000;
/// How long the first publish of a tenant on a broker waits for the interest of others, in milliseconds: for one question
/// that is lost and the answer to a second.
pub const PUBLISH_WAIT_MS: u64 = 2_000;
/// Remembered reply routes per tenant: (reply subject) to origin broker.
pub const REPLY_ROUTES_MAX: usize = 65_536;
/// How long a reply route lives without use, in milliseconds (DESIGN section 5).
pub const REPLY_ROUTE_MS: u64 = 30_000;

/// Verified chains one node remembers: every live session's, so that a reload re-verifies them without cryptography.
pub const CHAIN_CACHE_MAX: usize = SESSIONS_MAX;
/// Certificates in one PEM file of roots or of this node.
pub const PEM_CERTIFICATES_MAX: usize = 64;
/// Size of one PEM file, in bytes.
pub const PEM_BYTES_MAX: usize = 1024 * 1024;
/// Handshake refusals logged per node and second; all are counted.
pub const REFUSAL_LOGS_PER_SECOND: u64 = 50;
/// Credit of one native QUIC stream, in bytes: one session's worth of unread commands.
pub const NATIVE_STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
/// Unacknowledged bytes of one native QUIC session: little lies below the scheduler (DESIGN section 7).
pub const NATIVE_SEND_WINDOW_BYTES: u64 = 256 * 1024;
/// Credit of one bridge stream, in bytes: above any send window, since a receiver never stops reading (DESIGN section 6).
pub const BRIDGE_STREAM_WINDOW_BYTES: u32 = 8 * 1024 * 1024;
/// Credit of one bridge, in bytes: a memory backstop, never back-pressure. A peer that leaves gaps has this much kept
/// here and no more; it is four times what DESIGN section 7 lets a broker have on its way.
pub const BRIDGE_WINDOW_BYTES: u32 = 16 * 1024 * 1024;
/// Unacknowledged bytes of one bridge until its rate is known, in bytes: what a slow path holds for a tenth of a second.
pub const SEND_WINDOW_BYTES_INITIAL: u64 = 128 * 1024;
/// Most unacknowledged bytes of one bridge, in bytes (DESIGN section 7).
pub const SEND_WINDOW_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Longest rest of a session between batches that are lost for lack of room, in milliseconds: 2 MB/s of a flood remain.
pub const FLOOD_REST_MS_MAX: u64 = 32;
/// How far a shaped edge may catch up with its rate, in milliseconds of it: twice the precision of timers. What it sends faster
/// than the link waits in the link, before everything that comes later.
pub const EDGE_BURST_MS: u64 = 2;
/// Bytes that each packet of a bridge takes beside the slices in it, as they count against a shaped rate: IP and UDP, QUIC's
/// header, tag and frame, and what a link adds.
pub const PACKET_OVERHEAD_BYTES: usize = 76;
/// Most that acknowledgements in bursts add to a send window, in microseconds of the rate: a time slice of a busy machine.
pub const SEND_BURST_MICROS_MAX: u64 = 5_000;
/// What they may add while no more is needed to keep the rate, in microseconds of it: all that is added, others wait for.
pub const SEND_BURST_MICROS_MIN: u64 = 500;
/// Least unacknowledged packets of one bridge (DESIGN section 7): fewer would wait for each other's acknowledgements.
pub const SEND_WINDOW_PACKETS_MIN: u64 = 8;
/// Largest datagram of a bridge, in bytes, where the path carries it: above it segmentation offload ends, since ten
/// segments would exceed 64 KiB.
pub const BRIDGE_DATAGRAM_BYTES_MAX: u16 = 6400;
/// Silence after which QUIC itself gives up a bridge, in milliseconds: a backstop behind our own probes.
pub const BRIDGE_IDLE_MS_MAX: u64 = 10_000;
/// Bytes of one unaccepted QUIC connection that are kept.
pub const INCOMING_BYTES_MAX: u64 = 64 * 1024;

/// Longest signature of a leaf over a link key, in bytes: RSA of 4096 bits.
pub const LEAF_SIGNATURE_BYTES_MAX: usize = 512;
/// Certificates in one presented chain: leaf, region CA, root and one to spare.
pub const CHAIN_CERTIFICATES_MAX: usize = 4;
/// Size of one presented certificate, in bytes: bounds what is parsed for a stranger.
pub const CERTIFICATE_BYTES_MAX: usize = 16 * 1024;
/// Tenants in one bundle.
pub const TENANTS_MAX: usize = 200_000;
/// Tenants one life of a node numbers, those that have left the bundle included: numbers are never reused.
pub const TENANT_KEYS_MAX: usize = 2 * TENANTS_MAX;
/// Brokers one life of a node numbers, those that have left the bundle included.
pub const BROKER_INDEXES_MAX: usize = 4 * NODES_MAX;
/// Edges one life of a node numbers as its own, those that have gone included: a map of fifty neighbours, changed often.
pub const EDGE_KEYS_MAX: usize = 4_096;
/// How long after a change of the bundle what does not fit it may arrive without being held against the peer, in
/// milliseconds: by then the peer has heard of the change.
pub const NARROWING_MS_MAX: u64 = 5_000;
/// Brokers in one bundle.
pub const NODES_MAX: usize = 10_000;
/// Edges in one bundle.
pub const EDGES_MAX: usize = 100_000;
/// Roots of one fabric: the one in use, its successor, and a few to spare.
pub const ROOTS_MAX: usize = 16;
/// Keys that may issue one broker's leaf, or agents of one tenant.
pub const ISSUERS_MAX: usize = 1_024;
/// Regions one key may issue agents of one tenant in.
pub const ISSUER_REGIONS_MAX: usize = 10_000;
/// Superuser tenants of one fabric: every one sees everything, so a long list is a mistake.
pub const SUPERUSERS_MAX: usize = 64;
/// Grants in one tenant's section: each is looked at for every foreign operation.
pub const GRANTS_MAX: usize = 1_024;
/// Agent rules in one tenant's section.
pub const AGENT_RULES_MAX: usize = 65_536;
/// Revocations in one section, or of brokers in the head.
pub const REVOCATIONS_MAX: usize = 200_000;
/// Longest serial number of a certificate, in bytes (RFC 5280 section 4.1.2.2).
pub const SERIAL_BYTES_MAX: usize = 20;
/// Largest weight of a tenant: weight times a packet stays far from overflow.
pub const TENANT_WEIGHT_MAX: u32 = 1_000_000;
/// Largest weight of a class within its tenant: a turn of it is some hundred kilobytes at most, which the other classes wait for.
pub const CLASS_WEIGHT_MAX: u32 = 100;
/// Least that a tenant or one of its classes may be capped to on an edge, in bytes per second: with less, what keeps its
/// subscriptions and acknowledgements going would wait for seconds.
pub const EDGE_CAP_BYTES_MIN: u64 = 8 * 1024;
/// For how long a capped tenant or class may save up what its cap gives, in milliseconds: light traffic notices nothing of it.
pub const EDGE_CAP_BURST_MS: u64 = 50;
/// Size of one head, in bytes: digests of all tenants, all brokers and all edges at their limits.
pub const HEAD_BYTES_MAX: usize = 48 * 1024 * 1024;
/// Size of one tenant's section, in bytes: a full list of revocations and rules.
pub const SECTION_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Grace after a bundle's expiry in which sessions that exist may stay, in seconds (DESIGN section 3).
pub const BUNDLE_GRACE_SECONDS: i64 = 86_400;
/// How long a tenant holds by a section that the head no longer lists, in milliseconds: with one look a second it is out
/// within 5 s (DESIGN section 3).
pub const BUNDLE_STALE_MS_MAX: u64 = 4_000;
/// Bytes of a head or section in one control frame of a bridge: little enough that probes never wait for long.
pub const BUNDLE_PART_BYTES_MAX: usize = 32 * 1024;
/// Allowed sets told on one bridge that the peer has not said to go by: a peer that never answers costs no memory.
pub const ALLOWED_UPDATES_MAX: usize = 8;
/// Allowed sets one peer may tell on a live bridge in a minute: bundles and configurations do not change so often.
pub const ALLOWED_UPDATES_PER_MINUTE_MAX: u32 = 120;
/// Section digests in one control frame of a bridge: half of a full one; more follow in further frames.
pub const BUNDLE_DIGESTS_MAX: usize = 1_024;
/// Largest head or section that one bridge takes, in bytes: a head with its signature and certificate. One arrives at a time.
pub const BUNDLE_TRANSFER_BYTES_MAX: usize = HEAD_BYTES_MAX + CERTIFICATE_BYTES_MAX + 1024;
/// How long a peer may take for a head or section it was asked for, in milliseconds, before it is asked again.
pub const BUNDLE_TRANSFER_MS_MAX: u64 = 60_000;
/// Longest a re-signer listens for a newer bundle after its start before it signs, in seconds: bridges are up long before.
pub const RESIGN_SETTLE_SECONDS_MAX: i64 = 60;
/// Pause of a re-signer after its first failure, in milliseconds.
pub const RESIGN_RETRY_MS_MIN: u64 = 1_000;
/// Longest pause of a re-signer between two tries, in milliseconds: half of a bundle's life holds thousands of them.
pub const RESIGN_RETRY_MS_MAX: u64 = 600_000;
/// Size of one signed bundle file, in bytes.
pub const BUNDLE_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Size of one configuration file, in bytes.
pub const CONFIG_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Size of one plan file, in bytes: [`TENANTS_MAX`] tenants of some 300 bytes each.
pub const PLAN_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Entries in one list of a configuration, an edge's addresses included: no sane file has more.
pub const CONFIG_LIST_MAX: usize = 100_000;
/// Lowest rate an edge may be shaped to, in bits per second: below it one packet outlasts a probe's deadline.
pub const CONFIG_RATE_BITS_MIN: u64 = 64_000;
/// Highest rate an edge may be shaped to, in bits per second: no link is faster, and sums stay far from overflow.
pub const CONFIG_RATE_BITS_MAX: u64 = 1_000_000_000_000;
/// Longest lame-duck time, in milliseconds: a shutdown ends within ten minutes.
pub const LAME_DUCK_MS_MAX: u64 = 600_000;
/// Most worker threads a configuration may ask for.
pub const RUNTIME_THREADS_MAX: u64 = 1_024;
/// Longest time a configuration may have a session polled for its client's next message, in microseconds: whoever takes
/// longer is better waited for asleep.
pub const BUSY_POLL_US_MAX: u64 = 1_000;
/// Sessions of a node that are polled for at once: each one more is looked at between two looks at all others.
pub const BUSY_POLL_SESSIONS_MAX: usize = 4;
/// How often in a row a client goes on quickly after an answer before it is polled for.
pub const BUSY_POLL_QUICK_MIN: u32 = 2;
/// The same after it was polled for in vain several times: one window in vain costs no more than a part of 64 dialogues.
pub const BUSY_POLL_QUICK_MAX: u32 = 64;
/// DENY lines logged per principal and second; all are counted.
pub const DENY_LOGS_PER_SECOND: u32 = 20;
/// Longest field written to a log line, in bytes; the rest is cut.
pub const LOG_FIELD_BYTES_MAX: usize = 128;
/// Commands waiting for the control task: full means back-pressure on the session that asks.
pub const CONTROL_QUEUE_MAX: usize = 4_096;
/// Cached match decisions per session.
pub const MATCH_CACHE_MAX: usize = 1_024;
/// What the matches cached by one session, or by one lane of a bridge, hold together, in subscriptions and brokers of a
/// few words each: a name that many want must not cost its memory a thousand times.
pub const MATCH_CACHE_WEIGHT_MAX: usize = 65_536;
/// What one session or data stream collects before its targets are given it, in bytes with the bookkeeping of frames:
/// more than one read brings, but not what a burst to many subscriptions makes of it.
pub const BATCH_BYTES_MAX: usize = 1024 * 1024;
/// Time one attempt to dial an edge may take, in milliseconds: for the connection, and again for what is said first on it. A
/// link that has died in between must not hold up the next attempt.
pub const DIAL_MS_MAX: u64 = 3_000;
/// Unfinished bridge handshakes one node carries at once: clients have a budget of their own.
pub const BRIDGE_HANDSHAKES_MAX: usize = 256;
/// Longest request line on the operators' socket, in bytes.
pub const ADMIN_REQUEST_BYTES_MAX: u64 = 4 * 1024;
/// Requests on the operators' socket at once.
pub const ADMIN_REQUESTS_MAX: usize = 16;
/// Socket buffers asked for on UDP ports, in bytes: the defaults drop datagrams in bursts.
pub const UDP_BUFFER_BYTES: usize = 4 * 1024 * 1024;
/// First pause before an edge is dialled again, in milliseconds.
pub const REDIAL_MS_MIN: u64 = 100;
/// Longest pause before an edge is dialled again, in milliseconds.
pub const REDIAL_MS_MAX: u64 = 5_000;
/// How long a dedicated edge counts a tenant as carried whose connection is not up yet, in milliseconds from the bridge's
/// start: its lanes wait, bounded as ever. A dial and a second one after a pause fit in; then the tenant's routes pass by.
pub const TENANT_CONNECTION_MS_MAX: u64 = 2_000;
/// Batches that may lie between the scheduler and one tenant's connection: one that is written, and resets of idle lanes.
pub const TENANT_BATCHES_MAX: usize = 4;
/// Connections of tenants that wait for one bridge to take them in: two for each tenant of a large edge, and no more memory
/// for a peer that opens them without end. Further ones are refused and dial again.
pub const TENANT_ATTACHES_MAX: usize = 1024;
/// How often within a minute one tenant's connection is taken in on one bridge: far above any back-off of redials, and few
/// enough that nobody is rerouted all the time.
pub const TENANT_ATTACHES_PER_MINUTE_MAX: u32 = 60;
/// Pause before a broker dials again whose peer knows another one with its name, in milliseconds (DESIGN section 5).
pub const DUPLICATE_NODE_MS: u64 = 30_000;
/// Interval of liveness probes on a bridge, in milliseconds (DESIGN section 5).
pub const PROBE_MS: u64 = 200;
/// How long messages of reliable classes are still taken for a broker that no way leads to any more, in milliseconds: longer
/// than a failover or a redial, and no longer than publishers may be held up by its full window.
pub const MISSED_MS_MAX: u64 = 5_000;
/// Greatest cost of one edge: sums over any path stay far from overflow.
pub const LINK_COST_MAX: u32 = 1_000_000;
/// Round-trip time that counts as much as one more hop, in microseconds: what brokers themselves take, and the jitter of a
/// loaded machine, must not move routes between links of one site.
pub const LINK_COST_MICROS: u64 = 5_000;
/// Round-trip times of one edge that are remembered, about one a second; half of them are needed before a cost follows.
pub const LINK_RTTS: usize = 8;
/// Least pause between two lives that a running broker begins since it has heard of a later one of its own, in milliseconds.
pub const REBIRTH_PAUSE_MS: u64 = 30_000;
/// How far ahead of this broker's own an epoch or incarnation may be, in milliseconds: a century of clock error.
pub const LINK_EPOCH_AHEAD_MAX: u64 = 100 * 365 * 86_400_000;
/// Pause between two tellings of one edge's cost, in milliseconds: routes must not follow every jitter.
pub const LINK_COST_HOLD_MS: u64 = 10_000;
/// Interval in which neighbours compare what they know of who has subscribers, in milliseconds.
pub const PRESENCE_COMPARE_MS: u64 = 10_000;
/// Interval in which neighbours compare what they know of the fabric's edges, in milliseconds.
pub const LINK_DIGEST_MS: u64 = 10_000;
/// Records of edges given to one bridge at once; the rest waits, and newer states replace older ones.
pub const LINK_RECORDS_AT_ONCE: usize = 64;
/// Shortest silence after which a bridge is dead, in milliseconds (DESIGN section 5: max(1 s, 4 x RTT)).
pub const DEAD_MS_MIN: u64 = 1_000;

/// Bytes a client buffers for its connection before publishers wait: a quarter second at 4 MB/s, and enough to batch.
pub const CLIENT_OUTBOX_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of unsent answers and cancellations a client may owe before it gives the connection up: only a broker that
/// floods probes without reading gets here.
pub const CLIENT_OUTBOX_BYTES_CEILING: usize = 32 * 1024 * 1024;
/// Largest single write of a client, in bytes: four full TLS records.
pub const CLIENT_WRITE_BYTES: usize = 64 * 1024;
/// Messages one subscription of a client buffers by default.
pub const CLIENT_SUBSCRIPTION_MESSAGES: usize = 65_536;
/// Bytes one subscription of a client buffers by default.
pub const CLIENT_SUBSCRIPTION_BYTES: usize = 64 * 1024 * 1024;
/// How long a client stops reading for a full subscription of a reliable class before it drops, in milliseconds: less
/// than the broker's own patience, so that one stuck reader does not cost the whole session.
pub const CLIENT_DELIVER_WAIT_MS: u64 = 2_000;
/// Publishes a client leaves unacknowledged by default before publishers wait.
pub const CLIENT_IN_FLIGHT_DEFAULT: usize = 4_096;
/// Requests one client may have open: each is a map entry and a queue.
pub const CLIENT_REQUESTS_MAX: usize = 65_536;
/// Pings one client may have open.
pub const CLIENT_PINGS_MAX: usize = 4_096;
/// Events one client keeps for a listener that is slow; older ones are lost.
pub const CLIENT_EVENTS_MAX: usize = 256;
/// Messages between the subscriptions of one command and its printer: enough to batch writes.
pub const COMMAND_MERGE_MAX: usize = 1_024;
/// Messages one flow of a measurement may number: each is a bit in memory, so 12.5 MB.
pub const BENCH_FLOW_MESSAGES_MAX: u32 = 100_000_000;
/// Messages a subscription of a measurement buffers: what is dropped here would be taken for the mesh's loss.
pub const BENCH_BUFFER_MESSAGES: usize = 1_000_000;
/// Bytes a subscription of a measurement buffers.
pub const BENCH_BUFFER_BYTES: usize = 256 * 1024 * 1024;
/// Bytes of acknowledged classes that a flooding publisher leaves without an answer: more than any link holds.
pub const BENCH_WINDOW_BYTES: usize = 16 * 1024 * 1024;
/// Flows one subscriber of a measurement tells apart: publishers of all who measure at once.
pub const BENCH_FLOWS_MAX: usize = 1_024;
/// Batches of messages, each of one read, that a NATS subscription of a measurement buffers before it stops reading: at
/// most as many bytes as a native one for messages of a largest payload.
pub const BENCH_NATS_BATCHES: usize = 256;
/// Longest line of a NATS server that a measurement takes, in bytes: INFO of a large cluster.
pub const BENCH_NATS_LINE_BYTES: usize = 32 * 1024;
/// Sessions that one measurement holds: as many files, and each end of one takes a port.
pub const BENCH_SESSIONS_MAX: u32 = 50_000;
/// Handshakes that one measurement has under way at once.
pub const BENCH_CONCURRENCY_MAX: u16 = 1_024;
/// First pause before a client dials again, in milliseconds.
pub const CLIENT_REDIAL_MS_MIN: u64 = 100;
/// Longest pause before a client dials again, in milliseconds.
pub const CLIENT_REDIAL_MS_MAX: u64 = 5_000;
/// Longest validity a plan may ask for, in days: two and a quarter years, the most that was ever public practice.
pub const VALIDITY_DAYS_MAX: u32 = 825;
/// Longest encoded target list of one data frame, in bytes: the rest of the extension block holds the fixed fields.
pub const TARGETS_BYTES_MAX: usize = EXT_BYTES_MAX - 128;
/// Time a NATS client has for its CONNECT, in milliseconds, as its clients know it.
pub const NATS_CONNECT_MS_MAX: u64 = 2_000;
/// Time a NATS client has for TLS after INFO, in milliseconds.
pub const NATS_TLS_MS_MAX: u64 = 2_000;
/// How long a NATS client is given to begin with TLS before it is sent INFO in clear, in milliseconds.
pub const NATS_TLS_FIRST_MS: u64 = 50;
/// Advisories per tenant and second; what is left out is counted in the next one.
pub const ADVISORIES_PER_SECOND: u32 = 100;
/// Largest WebSocket message that is sent, in bytes: a stream is cut into them as it comes. One that is taken may hold a
/// largest payload beside as much.
pub const WEBSOCKET_FRAME_BYTES_MAX: usize = 1024 * 1024;
/// What a WebSocket may hold before its peer reads, in bytes.
pub const WEBSOCKET_BUFFER_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Bytes that may be on their way to one broker for one tenant in `ctrl` or `bulk` at first: enough for a burst, too
/// little to flood a link.
pub const RELIABLE_WINDOW_BYTES_FIRST: usize = 256 * 1024;
/// What one tenant's messages of a reliable class may wait in queues on their way before no more are sent at once, in
/// milliseconds: enough to keep any edge busy.
pub const RELIABLE_QUEUE_MS: u64 = 50;
/// Least window after losses, in bytes: a few slices, so that it can grow again.
pub const RELIABLE_WINDOW_BYTES_MIN: usize = 64 * 1024;
/// Largest window, in bytes: what one lane of an edge holds.
pub const RELIABLE_WINDOW_BYTES_MAX: usize = EDGE_LANE_BYTES_MAX;
/// What one tenant's unacknowledged messages of one class may hold at their origin, in bytes, over all targets.
pub const RELIABLE_KEPT_BYTES_MAX: usize = 64 * 1024 * 1024;
/// What a target keeps of one origin, tenant and class that arrived before its turn, in bytes: a window's worth. What
/// does not fit is sent again.
pub const RELIABLE_EARLY_BYTES_MAX: usize = RELIABLE_WINDOW_BYTES_MAX;
/// The same in messages: small ones cost their bookkeeping.
pub const RELIABLE_EARLY_MESSAGES_MAX: usize = 65_536;
/// What all flows of one node hold, kept and early together, in bytes: when it is nearly used up, no tenant has more than an
/// equal part.
pub const RELIABLE_NODE_BYTES_MAX: usize = 512 * 1024 * 1024;
/// Origins of which a target remembers the sequence, per tenant and class; idle ones go first.
pub const RELIABLE_FLOWS_MAX: usize = 4_096;
/// Silence after which a target forgets an origin's sequence, in milliseconds: far longer than any message is kept.
pub const RELIABLE_IDLE_MS: u64 = 600_000;
/// Shortest wait for an acknowledgement before a message is sent again, in milliseconds.
pub const RELIABLE_TIMEOUT_MS_MIN: u64 = 200;
/// Longest wait for an acknowledgement before a message is sent again, in milliseconds.
pub const RELIABLE_TIMEOUT_MS_MAX: u64 = 2_000;
/// The same before any round trip was measured, in milliseconds (RFC 6298 section 2.1): a slow link must not be filled with
/// repeats before it has answered once.
pub const RELIABLE_TIMEOUT_MS_FIRST: u64 = 1_000;
/// How long a target may be out of reach, or silent, before its messages are given up, in milliseconds: longer than any
/// failover and most restarts of a link.
pub const RELIABLE_GIVE_UP_MS: u64 = 30_000;
/// How long a publisher waits for a full window, in milliseconds; then its publish is refused.
pub const RELIABLE_WAIT_MS_MAX: u64 = 5_000;
/// Pause after a lane on the way was full, in milliseconds, unless the round trip is longer.
pub const RELIABLE_FULL_LANE_MS: u64 = 20;
/// Most messages per second that a limit may name: no broker takes as many, and sums stay far from overflow.
pub const RATE_MESSAGES_MAX: u64 = 1_000_000_000;
/// Most bytes per second that a limit may name: a terabit per second.
pub const RATE_BYTES_MAX: u64 = 125_000_000_000;
/// How long a rate may be saved up unless a section says otherwise, in milliseconds.
pub const RATE_BURST_MS_DEFAULT: u32 = 1_000;
/// Longest time for which a rate may be saved up, in milliseconds: what a minute saves is no burst any more.
pub const RATE_BURST_MS_MAX: u32 = 60_000;
/// What a session takes of its tenant's rate at once beyond the message at hand, in microseconds of the rate: one lock for
/// many messages, and little enough that another session hardly misses it until the rest comes back.
pub const RATE_LEASE_MICROS: u64 = 5_000;
/// What classes that wait leave of a saved-up rate to those that do not, in microseconds of the rate at most: a flood of `bulk`
/// must not refuse every `live`.
pub const RATE_FLOOR_MICROS: u64 = 100_000;
/// Refusals for the rate that a session is told of in a second where nobody asks for an answer; all are counted.
pub const RATE_TEXTS_PER_SECOND: u32 = 4;
/// How often what is due is looked for, in milliseconds: a fraction of the shortest time-out.
pub const RELIABLE_TICK_MS: u64 = 20;
