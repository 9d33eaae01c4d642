//! Lanes, their writer and their reader together: what goes in on one side comes out whole on the other.

use std::collections::BTreeMap;

use bytes::Bytes;
use glocal_core::limits::{PACKET_BYTES_DEFAULT, PACKET_OVERHEAD_BYTES};
use glocal_core::name::Destination;
use glocal_core::name::RawName;
use glocal_core::rate::TokenBucket;
use glocal_core::reliable::outgoing::Step as Back;
use glocal_core::sched::ClassConfig;
use proptest::prelude::*;

use super::*;
use crate::batch::{Batch, Message, TargetGroups};
use crate::lane_reader::{Arrivals, LaneReader};
use crate::lane_writer::{Due, LaneWriter};
use crate::testing::{Got, NOW, Node, subscribe};

const TENANTS: [&str; 2] = ["tenantA", "private"];

/// Region-a sends to the global over bridges that come and go.
struct Bridge {
    from: Node,
    to: Node,
    writer: LaneWriter,
    readers: Vec<LaneReader>,
    senders: Vec<Arc<Sender>>,
    /// By sender, or tenant, and class: the number of the last message.
    seqs: BTreeMap<(usize, u8), u64>,
    sent: Vec<String>,
}

impl Bridge {
    fn new() -> Self {
        let (mut from, mut to) = (Node::new(1), Node::new(0));
        from.up(0, 0);
        to.up(0, 0);
        let own = from.shared.own;
        let senders = (0..6)
            .map(|i| {
                let principal = crate::testing::principal(
                    TENANTS[i % 2],
                    &format!("agent{i}"),
                    glocal_core::identity::Role::Tenant,
                );
                Sender::local(from.shared.next_sender(), own, from.shared.next_session(), &principal)
            })
            .collect();
        let mut bridge = Self {
            from,
            to,
            writer: LaneWriter::default(),
            readers: Vec::new(),
            senders,
            seqs: BTreeMap::new(),
            sent: Vec::new(),
        };
        bridge.connect();
        bridge
    }

    fn connect(&mut self) {
        self.writer = LaneWriter::default();
        let incoming = self.to.incoming(0);
        self.readers =
            (0..glocal_core::limits::BRIDGE_STREAMS).map(|_| LaneReader::new(Arc::clone(&incoming))).collect();
    }

    /// Queues one message of one sender.
    fn push(&mut self, sender: usize, class: Class, bytes: usize) {
        // In the reliable classes the origin numbers a tenant's messages, whoever sends them.
        let numbered = if class.is_reliable() { sender % 2 } else { sender };
        let seq = self.seqs.entry((numbered, class.code())).or_default();
        *seq += 1;
        let tenant = self.from.tenant(TENANTS[sender % 2]);
        let payload = vec![b'a' + u8::try_from(*seq % 26).unwrap(); bytes];
        let name = format!("s{sender}.{seq}");
        let message = Message {
            tenant: &tenant,
            destination: Destination::of(tenant.id(), class, RawName::parse(name.as_bytes()).unwrap()),
            reply: b"",
            headers: b"",
            payload: &payload,
            ttl_ms: None,
            sender: &self.senders[sender],
            incarnation: 7,
            seq: *seq,
            reply_token: None,
            hops: 1,
            redelivered: false,
        };
        let mut batch = Batch::default();
        batch.begin();
        let step = Back { back: 0, life: self.to.shared.incarnation() };
        let target = TargetGroups { step, ..TargetGroups::plain(self.to.shared.own) };
        batch.relay(&self.from.link(0), &[target], &message);
        batch.flush(&self.from.shared, NOW);
        self.sent.push(format!("{class:?} agent{sender} {name} {}", checksum(&payload)));
    }

    /// Moves up to `max_bytes` over the wire, in chunks of at most `chunk` bytes.
    fn transfer(&mut self, max_bytes: usize, chunk: usize) {
        let link = self.from.link(0);
        let shared = Arc::clone(&self.from.shared);
        let writes = link.inbox().with(|lanes| self.writer.fill(&link, lanes, &shared, NOW, max_bytes));
        self.carry(writes, chunk);
    }

    fn carry(&mut self, writes: Vec<crate::lane_writer::StreamWrite>, chunk: usize) {
        for write in writes {
            for part in write.parts {
                for piece in part.chunks(chunk) {
                    let mut arrivals = Arrivals::default();
                    self.readers[write.stream].on_chunk(Bytes::copy_from_slice(piece), NOW, &mut arrivals).unwrap();
                    self.to.carry_out(&mut arrivals);
                }
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.from.link(0).inbox().with(|lanes| lanes.sched().backlog_bytes() == 0)
    }
}

fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(bytes.len() as u64, |h, b| h.wrapping_mul(31).wrapping_add(u64::from(*b)))
}

fn received(got: Vec<Got>) -> Vec<String> {
    got.into_iter()
        .filter_map(|got| match got {
            Got::Message { name, sender, payload, class, .. } => {
                let agent = sender.split('/').nth(1).unwrap().to_owned();
                Some(format!("{class:?} {agent} {name} {}", checksum(&payload)))
            }
            Got::Control(_) => None,
        })
        .collect()
}

#[derive(Clone, Debug)]
enum Step {
    Push { sender: usize, class: usize, bytes: usize },
    Transfer { bytes: usize, chunk: usize },
    Sweep,
    Reconnect,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..6usize, 0..4usize, prop_oneof![0..300usize, 3_000..40_000usize])
            .prop_map(|(sender, class, bytes)| Step::Push { sender, class, bytes }),
        4 => (1..60_000usize, prop_oneof![1..40usize, 500..20_000usize])
            .prop_map(|(bytes, chunk)| Step::Transfer { bytes, chunk }),
        1 => Just(Step::Sweep),
        1 => Just(Step::Reconnect),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Every message arrives whole, once, in the order of its sender and class; what a lost bridge held is counted.
    #[test]
    fn what_goes_in_comes_out(steps in prop::collection::vec(step(), 1..120)) {
        let mut bridge = Bridge::new();
        let mut clients: Vec<_> = TENANTS.iter().map(|t| bridge.to.client(t, "reader")).collect();
        for client in &mut clients {
            client.say(&mut bridge.to, subscribe(1, ">"));
        }
        let mut got: Vec<String> = Vec::new();
        let mut lossless = true;
        for step in steps {
            match step {
                Step::Push { sender, class, bytes } => bridge.push(sender, Class::ALL[class], bytes),
                Step::Transfer { bytes, chunk } => bridge.transfer(bytes, chunk),
                Step::Sweep => {
                    let link = bridge.from.link(0);
                    let shared = Arc::clone(&bridge.from.shared);
                    let later = NOW.plus_millis(glocal_core::limits::LANE_IDLE_MS);
                    let writes = link.inbox().with(|lanes| bridge.writer.sweep(lanes, &shared, later));
                    bridge.carry(writes, 7);
                }
                Step::Reconnect => {
                    lossless &= bridge.is_empty();
                    bridge.connect();
                    bridge.from.up(0, 0);
                    bridge.to.up(0, 0);
                    prop_assert!(bridge.is_empty());
                }
            }
            clients.iter_mut().for_each(|c| got.extend(received(c.read())));
        }
        while !bridge.is_empty() {
            bridge.transfer(1 << 20, 16_384);
        }
        clients.iter_mut().for_each(|c| got.extend(received(c.read())));
        prop_assert_eq!(bridge.to.link(0).edge().refused.value(), 0, "every handle was announced");
        let position = |text: &String| bridge.sent.iter().position(|sent| sent == text);
        let mut last: BTreeMap<String, usize> = BTreeMap::new();
        for text in &got {
            let Some(at) = position(text) else { return Err(TestCaseError::fail(format!("never sent: {text}"))) };
            let key = text.split(' ').take(2).collect::<Vec<_>>().join(" ");
            if let Some(before) = last.insert(key, at) {
                prop_assert!(before < at, "{} out of order or twice", text);
            }
        }
        if lossless {
            prop_assert_eq!(got.len(), bridge.sent.len());
        }
        let gone: u64 = TENANTS
            .iter()
            .flat_map(|t| Class::ALL.map(|c| bridge.from.tenant(t).counters().class(c).drops(DropReason::Gone)))
            .sum();
        prop_assert!(got.len() as u64 + gone >= bridge.sent.len() as u64, "a loss that was not counted");
    }
}

#[test]
fn what_an_announcement_displaces_is_counted() {
    let node = Node::new(1);
    let tenants = node.shared.tenants();
    let tenant = node.tenant("tenantA");
    let config = HdwrrConfig { classes: ClassConfig::new(2_000), ..HdwrrConfig::default() };
    let mut lanes = EdgeLanes::new(config);
    let principal = crate::testing::principal("tenantA", "a", glocal_core::identity::Role::Tenant);
    let mut lost = 0;
    let mut pushes = 0u64;
    for n in 0..40 {
        let sender = Sender::local(n, node.shared.own, u64::from(n), &principal);
        let mut handles = Handles { sender: Some(sender), ..Handles::default() };
        handles.brokers.push((node.shared.own, 7));
        for _ in 0..3 {
            let frame = QueuedFrame::new(Bytes::from(vec![0; 100]));
            pushes += 1;
            match lanes.push(tenant.key(), Class::Live, frame, &handles, &node.shared.brokers(), NOW) {
                Pushed::Queued => {}
                Pushed::DroppedNewest => lost += 1,
                Pushed::DroppedOldest { frames, .. } => lost += frames,
            }
        }
    }
    lanes.count_drops(&tenants);
    lost += tenant.counters().class(Class::Live).drops(DropReason::LaneFull);
    let mut out = Vec::new();
    while lanes.next_slice(NOW, &mut out).is_some() {}
    let left = out.concat().chunks(100).filter(|c| c.iter().all(|b| *b == 0)).count();
    let bytes: usize = out.iter().map(Bytes::len).sum();
    assert!(bytes > 0 && left as u64 <= pushes);
    let queued = count_frames(&out.concat());
    assert_eq!(queued + lost, pushes, "frames queued and frames counted as lost are all there were");
}

/// The frames of zeros among announcements, which begin with their length.
fn count_frames(mut bytes: &[u8]) -> u64 {
    let mut frames = 0;
    while !bytes.is_empty() {
        let len = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
        let size = if len == 0 { 100 } else { len + 4 };
        frames += u64::from(len == 0);
        bytes = &bytes[size..];
    }
    frames
}

#[test]
fn a_lane_that_announced_too_much_forgets_and_goes_on() {
    let mut bridge = Bridge::new();
    let mut reader = bridge.to.client("tenantA", "reader");
    reader.say(&mut bridge.to, subscribe(1, ">"));
    let principal = crate::testing::principal("tenantA", "agent0", glocal_core::identity::Role::Tenant);
    let rounds = LANE_HANDLES_MAX + 500;
    let mut got = 0;
    for n in 0..rounds {
        bridge.senders[0] = Sender::local(
            bridge.from.shared.next_sender(),
            bridge.from.shared.own,
            bridge.from.shared.next_session(),
            &principal,
        );
        bridge.seqs.clear();
        bridge.push(0, Class::Tele, 1);
        if n % 1_000 == 0 {
            bridge.transfer(usize::MAX, 16_384);
            got += received(reader.read()).len();
        }
    }
    bridge.transfer(usize::MAX, 16_384);
    assert_eq!(got + received(reader.read()).len(), rounds);
    assert_eq!(bridge.to.link(0).edge().refused.value(), 0);
}

#[test]
fn small_frames_are_joined_and_large_payloads_shared() {
    let mut bridge = Bridge::new();
    let mut reader = bridge.to.client("tenantA", "reader");
    reader.say(&mut bridge.to, subscribe(1, ">"));
    for _ in 0..50 {
        bridge.push(0, Class::Live, 100);
    }
    let (link, shared) = (bridge.from.link(0), Arc::clone(&bridge.from.shared));
    let writes = link.inbox().with(|lanes| bridge.writer.fill(&link, lanes, &shared, NOW, usize::MAX));
    let parts: Vec<_> = writes.iter().map(|write| write.parts.len()).collect();
    assert_eq!(parts, [1], "one stream, one part");
    bridge.carry(writes, usize::MAX);
    bridge.push(0, Class::Live, 10);
    bridge.push(0, Class::Live, 10_000);
    bridge.push(0, Class::Live, 10);
    let writes = link.inbox().with(|lanes| bridge.writer.fill(&link, lanes, &shared, NOW, usize::MAX));
    let parts: Vec<Vec<_>> = writes.iter().map(|write| write.parts.iter().map(Bytes::len).collect()).collect();
    assert!(matches!(parts.as_slice(), [one] if one.len() == 3 && one[1] >= 10_000), "{parts:?}");
    bridge.carry(writes, 1_000);
    assert_eq!(received(reader.read()), bridge.sent);
}

#[test]
fn what_comes_while_a_shaped_edge_pauses_is_due_when_the_pause_ends() {
    let mut bridge = Bridge::new();
    let (link, shared) = (bridge.from.link(0), Arc::clone(&bridge.from.shared));
    link.inbox().with(|lanes| lanes.sched_mut().set_shaper(Some(TokenBucket::new(10_000, 100, NOW))));
    let next =
        |writer: &mut LaneWriter, now| link.inbox().with(|lanes| writer.next(&link, lanes, &shared, now, usize::MAX));
    assert!(next(&mut bridge.writer, NOW).is_none(), "nothing is queued");
    bridge.push(0, Class::Live, 1_000);
    let Some(Due::Writes(_)) = next(&mut bridge.writer, NOW) else { panic!("the burst is free") };
    assert!(next(&mut bridge.writer, NOW).is_none(), "empty: the next push wakes");
    bridge.push(0, Class::Live, 1_000);
    let Some(Due::Later(until)) = next(&mut bridge.writer, NOW) else { panic!("the rate is used up") };
    assert!(until > NOW && until < NOW.plus_millis(1_000), "{until:?}");
    assert!(matches!(next(&mut bridge.writer, until), Some(Due::Writes(_))));
}

#[test]
fn a_shaped_edge_pays_for_packets_and_heads_as_well() {
    let mut bridge = Bridge::new();
    let (link, shared) = (bridge.from.link(0), Arc::clone(&bridge.from.shared));
    let rate = 1_000_000;
    link.inbox().with(|lanes| lanes.sched_mut().set_shaper(Some(TokenBucket::new(rate, 1, NOW))));
    for _ in 0..50 {
        bridge.push(0, Class::Live, 1_000);
    }
    let written = link.inbox().with(|lanes| bridge.writer.next(&link, lanes, &shared, NOW, 1));
    let Some(Due::Writes(writes)) = written else { panic!("the burst is free") };
    let bytes: usize = writes.iter().flat_map(|write| &write.parts).map(Bytes::len).sum();
    let Some(until) = link.inbox().with(|lanes| lanes.sched_mut().ready_at(NOW)) else { panic!("it is in debt") };
    // At a byte a microsecond, the pause is what was charged: all that was written, and a packet's part for each of them.
    let charged = until.micros_since(NOW);
    let packets = bytes.div_ceil(PACKET_BYTES_DEFAULT - PACKET_OVERHEAD_BYTES);
    assert_eq!(charged, (bytes + packets * PACKET_OVERHEAD_BYTES) as u64, "{bytes} B written");
}

/// The tenants that lanes of a write are opened for, and the lanes that it has slices of.
fn slices_of(write: &crate::lane_writer::StreamWrite) -> (Vec<String>, Vec<u32>) {
    let mut reader = glocal_wire::slice::SliceReader::new();
    let (mut opened, mut lanes) = (Vec::new(), Vec::new());
    for part in &write.parts {
        let mut part = part.clone();
        while let Some(event) = reader.next_event(&mut part).unwrap() {
            match event {
                glocal_wire::slice::SliceEvent::Open { lane, tenant, .. } => {
                    opened.push(tenant.to_owned());
                    lanes.push(lane);
                }
                glocal_wire::slice::SliceEvent::Data { lane, .. } | glocal_wire::slice::SliceEvent::Reset { lane } => {
                    lanes.push(lane);
                }
                glocal_wire::slice::SliceEvent::Probe { .. } => {}
            }
        }
    }
    lanes.dedup();
    (opened, lanes)
}

#[test]
fn on_a_dedicated_edge_a_write_is_of_one_tenant_and_another_connection_begins_with_new_lanes() {
    // Both tenants' lanes are pinned to one stream, so nothing but the mode keeps them apart.
    let mut bridge = Bridge::new();
    let (link, shared) = (bridge.from.link(0), Arc::clone(&bridge.from.shared));
    let keys = TENANTS.map(|tenant| bridge.from.tenant(tenant).key());
    let fill = |bridge: &mut Bridge| {
        for sender in [0, 1, 2, 3] {
            bridge.push(sender, Class::Live, 3_000);
        }
        link.inbox().with(|lanes| bridge.writer.fill(&link, lanes, &shared, NOW, usize::MAX))
    };
    assert_eq!(fill(&mut bridge).len(), 1, "on a shared edge they go together");
    bridge.from.link(0).edge().set_dedicated(true);
    let mut bridge = Bridge { writer: LaneWriter::default(), ..bridge };
    let writes = fill(&mut bridge);
    assert!(writes.len() >= 2);
    let mut lanes = BTreeMap::new();
    for write in &writes {
        let (opened, of) = slices_of(write);
        let at = keys.iter().position(|key| *key == write.tenant).unwrap();
        assert!(opened.iter().all(|tenant| tenant == TENANTS[at]), "{opened:?} with {}", TENANTS[at]);
        lanes.entry(at).or_insert_with(Vec::new).extend(of);
    }
    assert!(lanes[&0].iter().all(|lane| !lanes[&1].contains(lane)), "{lanes:?}");
    // The first tenant has another connection: its lanes are opened there, the other's go on.
    bridge.writer.forget(keys[0]);
    for write in fill(&mut bridge) {
        let (opened, of) = slices_of(&write);
        if write.tenant == keys[0] && !opened.is_empty() {
            assert!(of.iter().all(|lane| lanes.values().flatten().all(|old| lane > old)), "numbers go on: {of:?}");
            lanes.remove(&0);
        }
        assert!(write.tenant == keys[0] || (opened.is_empty() && lanes[&1].contains(&of[0])), "{opened:?}");
    }
    assert!(!lanes.contains_key(&0), "a lane was opened");
}
