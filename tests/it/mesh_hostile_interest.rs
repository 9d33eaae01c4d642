//! A broker of the fabric that lies about interest: what it asks for and tells in `Routed`, for tenants, origins and lists that
//! are not its to speak of; and observers, who neither slow anybody nor count (attack 33).

use std::time::{Duration, Instant};

use bytes::BytesMut;
use glocal_client::{Client, Publish, RequestError};
use glocal_core::interest::Interest;
use glocal_core::limits::BRIDGE_REFUSALS_MAX;
use glocal_core::name::{Class, ClassSet, QueueGroup, RawFilter};
use glocal_wire::control::{
    Control, Hello, InterestChange, InterestNews, InterestPull, InterestSum, Presence, PresenceEnd, Routed, Subscribe,
};

use crate::support::bridge::{Hostile, Opening, announce, everything, relay, routed};
use crate::support::fabric::{Fabric, Shape};
use crate::support::node::{GLOBAL, Local, Mesh, REGION_A, REGION_B};
use crate::support::peer::{NATIVE, Peer, frame, tls_of};
use crate::support::{eventually, message, soon};

const EDGE: &str = "global-region-a";
/// Handles in every lane of these tests: the hostile broker itself, the one that is attacked, and one behind another edge.
const ME: u32 = 1;
const YOU: u32 = 2;
const OTHER: u32 = 3;

const EVERYBODY: Opening<'static> =
    Opening { node: REGION_A, edge: EDGE, tenants: &["tenantA", "tenantB", "cresco-system", "guests"] };

fn lane_of(tenant: &str) -> BytesMut {
    announce(&[REGION_A, GLOBAL, REGION_B], tenant, "region-a", "eve")
}

fn add(filter: &str) -> InterestChange {
    let classes = ClassSet::ALL.bits();
    InterestChange { add: true, filter: filter.to_owned(), classes, queue: None, observer: false }
}

fn sum(changes: &[InterestChange]) -> InterestSum {
    let mut sum = InterestSum { digest: 0, count: 0 };
    for change in changes {
        let interest = Interest {
            filter: RawFilter::parse(change.filter.as_bytes()).unwrap(),
            classes: ClassSet::from_bits(change.classes).unwrap(),
            queue: change.queue.as_deref().map(|queue| QueueGroup::parse(queue).unwrap()),
            observer: change.observer,
        };
        sum.digest = sum.digest.wrapping_add(interest.digest());
        sum.count += 1;
    }
    sum
}

/// A whole list in one message.
fn list(stream: u64, changes: Vec<InterestChange>) -> InterestNews {
    let complete = Some(sum(&changes));
    InterestNews { stream, number: 0, start: 1, changes, complete }
}

/// The global with one edge that carries tenantA alone, and a hostile region a that has subscribers of everybody.
struct Attack {
    fabric: Fabric,
    global: Local,
    hostile: Hostile,
    lane: u32,
}

impl Attack {
    async fn start() -> Self {
        let tenants = ["\"tenantA\", \"cresco-system\"", "\"*\""];
        let fabric = Fabric::shaped(&Shape { edge_tenants: tenants, ..Shape::default() });
        let global = Local::start(&fabric, GLOBAL).await;
        let mut hostile = Hostile::open(&fabric, GLOBAL, global.at().bridge, &EVERYBODY).await;
        global.up(EDGE).await;
        let lane = hostile.lane("tenantA", Class::Ctrl, &lane_of("tenantA")).await;
        let present = Presence { origin: ME, incarnation: u64::MAX / 2, seq: 1, present: true };
        for control in [Control::from(present), PresenceEnd { told: 1 }.into()] {
            hostile.data(lane, &frame(control)).await;
        }
        global.knows_present("tenantA", 1).await;
        Self { fabric, global, hostile, lane }
    }

    async fn say(&mut self, control: impl Into<Control>) {
        self.hostile.data(self.lane, &routed(YOU, ME, control)).await;
    }

    /// The newest stream that the global asks for, of those after `after`.
    async fn asked(&self, after: u64) -> u64 {
        let pulls = || {
            let said = self.hostile.said.lock().unwrap();
            let pull = |control: &Control| match control {
                Control::Routed(routed) => match Control::decode(routed.kind, &routed.body, 1 << 16) {
                    Ok(Some(Control::InterestPull(pull))) => Some(pull.stream),
                    _ => None,
                },
                _ => None,
            };
            said.iter().filter(|(tenant, _)| tenant == "tenantA").filter_map(|(_, control)| pull(control)).max()
        };
        eventually("a pull", || pulls().filter(|stream| *stream > after)).await
    }

    async fn filters(&self, tenant: &str) -> usize {
        let inspection = self.global.0.context().control.inspect().await;
        inspection.remote_filters.iter().find(|(of, _)| of == tenant).map_or(0, |(_, count)| *count)
    }

    fn refused(&self) -> u64 {
        self.global.edge(EDGE).edge().refused.value()
    }

    async fn dropped(&self, reason: &str) -> u64 {
        self.global.metric("glocal_dropped_total", &["tenantA", &format!("reason=\"{reason}\"")]).await
    }

    /// Everything said so far has been looked at: two messages after it, in a lane of its own stream, have arrived. What is
    /// said is given to the control half after the messages that were read with it, and before others are read.
    async fn settled(&mut self, number: u64, watch: &mut glocal_client::Subscription) {
        if number == 1 {
            self.hostile.lane("tenantA", Class::Live, &lane_of("tenantA")).await;
        }
        for seq in [2 * number - 1, 2 * number] {
            let bytes = relay(Class::Live, "settled", seq, ME, &[YOU], b"");
            self.hostile.data(self.lane + 1, &bytes).await;
            assert_eq!(message(watch).await.subject(), "settled");
        }
        // The control half has done what it was given before it answers.
        self.global.0.context().control.inspect().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_interest_is_refused_or_changes_nothing() {
    let mut attack = Attack::start().await;
    let anna = attack.fabric.client(attack.global.at(), "anna").await;
    let mut watch = anna.subscribe("settled", None).await.unwrap();
    attack.settled(1, &mut watch).await;
    // The global has a publisher of tenantA, and asks.
    attack.global.knows_filters("tenantA", 0).await;
    let stream = attack.asked(0).await;
    // Of a stream that nobody asked for.
    for other in [0, 1, stream + 1, u64::MAX] {
        attack.say(list(other, vec![add("orders")])).await;
    }
    attack.settled(2, &mut watch).await;
    assert_eq!(attack.filters("tenantA").await, 0, "streams that were not asked for");
    // A gap: asked anew, and nothing is taken.
    attack.say(InterestNews { number: 5, start: 0, ..list(stream, vec![add("orders")]) }).await;
    let stream = attack.asked(stream).await;
    assert_eq!(attack.filters("tenantA").await, 0, "a gap");
    // A sum that is not that of the list.
    let wrong = Some(InterestSum { digest: 7, count: 1 });
    attack.say(InterestNews { complete: wrong, ..list(stream, vec![add("orders")]) }).await;
    let stream = attack.asked(stream).await;
    // What cannot be wanted is counted, whoever's it is.
    let malformed = attack.dropped("malformed").await;
    for change in [
        add("a..b"),
        add(""),
        InterestChange { queue: Some(String::new()), ..add("a") },
        InterestChange { queue: Some("crew".to_owned()), observer: true, ..add("a") },
    ] {
        attack.say(InterestNews { changes: vec![change], complete: None, ..list(stream, vec![]) }).await;
    }
    attack.settled(3, &mut watch).await;
    assert_eq!(attack.dropped("malformed").await, malformed + 4);
    // The true list, and again, and its first message again.
    let filters = vec![add("orders"), add("plans.*")];
    for _ in 0..3 {
        attack.say(list(stream, filters.clone())).await;
    }
    attack.global.knows_filters("tenantA", 2).await;
    attack.say(list(stream - 1, vec![add("replayed")])).await;
    attack.say(InterestNews { number: 0, start: 0, complete: None, ..list(stream, vec![add("replayed")]) }).await;
    attack.settled(4, &mut watch).await;
    assert_eq!(attack.filters("tenantA").await, 2, "a replay");
    // A qualified filter is none that may be told.
    let changes = vec![add("T.tenantB.live.>")];
    attack.say(InterestNews { stream, number: 1, start: 0, changes, complete: None }).await;
    attack.settled(5, &mut watch).await;
    assert_eq!(attack.dropped("malformed").await, malformed + 5);
    let admin = attack.fabric.client(attack.global.at(), "admin").await;
    for subject in ["T.tenantB.live.orders", "T.tenantA.live.orders"] {
        admin.publish(subject, "secret").await.unwrap();
    }
    admin.flush().await.unwrap();
    let heard = |class| attack.hostile.heard.lock().unwrap().get(&("tenantA".to_owned(), class)).copied();
    eventually("tenantA's message", || heard(Class::Live).filter(|bytes| *bytes > 0)).await;
    assert_eq!(attack.global.metric("glocal_relayed_out_total", &["tenantB"]).await, 0);
    assert!(attack.hostile.heard.lock().unwrap().keys().all(|(tenant, _)| tenant != "tenantB"));
}

#[tokio::test(flavor = "multi_thread")]
async fn interest_of_others_and_in_frames_that_are_none_costs_the_bridge() {
    let mut attack = Attack::start().await;
    let anna = attack.fabric.client(attack.global.at(), "anna").await;
    let mut watch = anna.subscribe("settled", None).await.unwrap();
    attack.settled(1, &mut watch).await;
    attack.global.knows_filters("tenantA", 0).await;
    let stream = attack.asked(0).await;
    let (news, pull) = (
        Control::from(list(stream, vec![add(">")])),
        Control::from(InterestPull { stream: 9, taken: 0, have: InterestSum { digest: 0, count: 0 }, end: false }),
    );
    let raw = |kind: u8, body: &[u8]| frame(Routed { target: YOU, origin: ME, hops: 1, kind, body: body.to_vec() });
    let (kind, body) = news.to_body().unwrap();
    let (nested, inner) =
        Control::from(Routed { target: YOU, origin: ME, hops: 1, kind, body: body.clone() }).to_body().unwrap();
    // Origins that are not behind this edge, handles nobody announced, and bodies that are none.
    for (what, bytes) in [
        ("news of a broker behind another edge", routed(YOU, OTHER, news.clone())),
        ("a pull of a broker behind another edge", routed(YOU, OTHER, pull.clone())),
        ("news of the receiver itself", routed(YOU, YOU, news.clone())),
        ("a pull of the receiver itself", routed(YOU, YOU, pull.clone())),
        ("news of a broker nobody announced", routed(YOU, 77, news.clone())),
        ("a pull for a broker nobody announced", routed(77, ME, pull.clone())),
        ("truncated news", raw(kind, &body[..body.len() - 1])),
        ("news with bytes to spare", raw(kind, &[&body[..], b"x"].concat())),
        ("no body", raw(kind, b"")),
        ("a list of 2^63 changes", raw(kind, &[1, 0, 1, 0xfd, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f])),
        ("a letter in a letter", raw(nested, &inner)),
        ("an unknown kind", raw(0x16, b"x")),
    ] {
        let before = attack.refused();
        attack.hostile.data(attack.lane, &bytes).await;
        eventually(what, || (attack.refused() > before).then_some(())).await;
        assert_eq!(attack.filters("tenantA").await, 0, "{what}");
    }
    // Frames of other places, sent as letters: counted as malformed, and carried out by nobody.
    let before = (attack.dropped("malformed").await, attack.refused());
    let hello = Hello { versions: vec![1], features: 0, client: "eve".to_owned(), default_class: 0, echo: true };
    let subscribe = Subscribe { sid: 1, filter: ">".to_owned(), queue: None, local_only: false };
    let present = Presence { origin: OTHER, incarnation: 1, seq: 9, present: true };
    for control in [Control::from(hello), subscribe.into(), present.into()] {
        attack.say(control).await;
    }
    attack.settled(2, &mut watch).await;
    assert_eq!((attack.dropped("malformed").await, attack.refused()), (before.0 + 3, before.1));
    assert_eq!(attack.global.0.context().control.inspect().await.subscriptions, 1, "anna's own");
    attack.global.knows_present("tenantA", 1).await;
    // In the lane of a tenant that the edge does not carry: skipped, whatever it is.
    attack.global.knows_filters("tenantB", 0).await;
    let before = attack.refused();
    let mut forbidden = lane_of("tenantB");
    forbidden.extend_from_slice(&everything("tenantB"));
    forbidden.extend_from_slice(&routed(YOU, ME, pull.clone()));
    forbidden.extend_from_slice(&routed(YOU, ME, news.clone()));
    let lane = attack.hostile.lane("tenantB", Class::Ctrl, &forbidden).await;
    eventually("a refusal", || (attack.refused() > before).then_some(())).await;
    attack.settled(3, &mut watch).await;
    attack.global.knows_present("tenantB", 0).await;
    assert_eq!((attack.filters("tenantA").await, attack.filters("tenantB").await), (0, 0));
    assert!(attack.hostile.said.lock().unwrap().iter().all(|(tenant, _)| tenant != "tenantB"), "nor is it answered");
    // Who goes on loses the bridge.
    for _ in 0..=BRIDGE_REFUSALS_MAX {
        attack.hostile.data(lane, &routed(YOU, ME, pull.clone())).await;
        attack.hostile.data(attack.lane, &routed(YOU, OTHER, news.clone())).await;
    }
    assert_eq!(attack.hostile.closed().await, "fault");
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_filters_and_endless_pulls_cost_their_own_tenant_alone() {
    let mut attack = Attack::start().await;
    let anna = attack.fabric.client(attack.global.at(), "anna").await;
    let mut watch = anna.subscribe("settled", None).await.unwrap();
    attack.settled(1, &mut watch).await;
    attack.global.knows_filters("tenantA", 0).await;
    let stream = attack.asked(0).await;
    // Far more at once than the window of news allows.
    let filters: Vec<_> = (0..10_000).map(|number| add(&format!("orders.{number}.>"))).collect();
    let complete = Some(sum(&filters));
    let parts: Vec<_> = filters.chunks(500).map(<[_]>::to_vec).collect();
    let last = parts.len() - 1;
    for (number, changes) in parts.into_iter().enumerate() {
        let (start, complete) = (u8::from(number == 0), complete.filter(|_| number == last));
        attack.say(InterestNews { stream, number: number as u64, start, changes, complete }).await;
    }
    attack.global.knows_filters("tenantA", 10_000).await;
    let berta = attack.fabric.client(attack.global.at(), "berta").await;
    let began = Instant::now();
    let mut own = berta.subscribe("orders.7.x", None).await.unwrap();
    berta.publish("orders.7.x", "mine").await.unwrap();
    assert_eq!(message(&mut own).await.payload(), b"mine");
    assert!(began.elapsed() < Duration::from_secs(2), "another tenant waited {:?}", began.elapsed());
    // A long list of its own, asked for anew again and again: what is on its way fits the tenant's lane.
    let mut held = Vec::new();
    for number in 0..1_000 {
        held.push(anna.subscribe(&format!("list.{number}.{}", "x".repeat(200)), None).await.unwrap());
    }
    for stream in 1..=2_000 {
        let have = InterestSum { digest: 0, count: 0 };
        attack.say(InterestPull { stream, taken: 0, have, end: false }).await;
    }
    attack.settled(2, &mut watch).await;
    let queued = attack.global.metric("glocal_edge_queued_bytes", &[]).await;
    assert!(queued <= glocal_core::limits::EDGE_LANE_BYTES_MAX as u64, "{queued} bytes are queued");
    let pulled = |control: &Control| matches!(control, Control::Routed(routed) if routed.kind == 0x3b);
    let said = || attack.hostile.said.lock().unwrap().iter().filter(|(_, control)| pulled(control)).count();
    eventually("news", || (said() > 0).then_some(())).await;
    assert!(attack.global.edge(EDGE).edge().is_up());
    // An older pull than the last does nothing, nor does one that has taken more than was sent.
    for (stream, taken) in [(1, 0), (2_000, u64::MAX)] {
        attack.say(InterestPull { stream, taken, have: InterestSum { digest: 0, count: 0 }, end: false }).await;
    }
    attack.settled(3, &mut watch).await;
    assert!(attack.global.edge(EDGE).edge().is_up());
    berta.publish("orders.7.x", "still").await.unwrap();
    assert_eq!(message(&mut own).await.payload(), b"still");
}

fn acknowledged(subject: &str, payload: Vec<u8>) -> Publish {
    Publish { class: Some(Class::Ctrl), ack: true, ..Publish::new(subject, payload) }
}

/// Of this size, 150 messages are more than a session's lane and the buffers of its socket hold: 8 MiB, and up to 10 MiB.
const FILLING_BYTES: usize = 160 * 1024;

/// A publisher whose messages go to a reader, each acknowledged at once.
async fn publishes_undisturbed(alice: &Client, reader: &mut glocal_client::Subscription, count: u32, bytes: usize) {
    for number in 0..count {
        let payload = [&number.to_le_bytes()[..], &vec![1; bytes]].concat();
        let began = Instant::now();
        let published = soon("an acknowledgement", alice.publish_with(acknowledged("flood", payload))).await.unwrap();
        assert_eq!(published, glocal_client::Published::Acknowledged { targets: 1 }, "an observer does not count");
        assert_eq!(message(reader).await.payload()[..4], number.to_le_bytes());
        assert!(began.elapsed() < Duration::from_secs(1), "message {number} took {:?}", began.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_33_a_broker_of_observers_that_acknowledges_nothing_slows_nobody() {
    let mut attack = Attack::start().await;
    let alice = attack.fabric.client(attack.global.at(), "alice").await;
    let anna = attack.fabric.client(attack.global.at(), "anna").await;
    let mut reader = anna.subscribe("flood", None).await.unwrap();
    attack.global.knows_filters("tenantA", 0).await;
    let stream = attack.asked(0).await;
    attack.say(list(stream, vec![InterestChange { observer: true, ..add(">") }])).await;
    attack.global.knows_filters("tenantA", 1).await;
    publishes_undisturbed(&alice, &mut reader, 60, 64 * 1024).await;
    // More than the window of one that never acknowledges: it was sent no more than that.
    let heard = attack.hostile.heard.lock().unwrap().get(&("tenantA".to_owned(), Class::Ctrl)).copied();
    assert!(heard.is_some_and(|bytes| bytes > 64 * 1024), "{heard:?} bytes for the observer");
    assert!(attack.dropped("congested").await > 0, "what the observer misses is counted");
    // Nor does it answer for anybody, once the edges that are down have had their time to come up.
    let tenant = attack.global.0.context().shared.tenant("tenantA").unwrap();
    eventually("the view to be whole", || tenant.table().in_sync().then_some(())).await;
    let nobody = alice.request("service", "", Duration::from_secs(15)).await.unwrap_err();
    assert_eq!(nobody, RequestError::NoResponders("service".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_33_a_superuser_on_the_way_that_reads_nothing_slows_nobody() {
    let fabric = Fabric::new();
    let mesh = Mesh::start(&fabric).await;
    let tls = tls_of(&fabric, Some(&fabric.agent("admin")), NATIVE);
    let mut stuck = Peer::tcp(mesh.global.at().native_tcp, tls).await.unwrap();
    stuck.hello().await.unwrap();
    assert!(matches!(stuck.subscribe(1, "T.*.*.>").await, Control::Subscribed(_)));
    let anna = fabric.client(mesh.b.at(), "anna").await;
    let mut reader = anna.subscribe("flood", None).await.unwrap();
    mesh.a.knows_filters("tenantA", 2).await;
    let alice = fabric.client(mesh.a.at(), "alice").await;
    publishes_undisturbed(&alice, &mut reader, 150, FILLING_BYTES).await;
    assert!(
        mesh.global.metric("glocal_dropped_total", &["tenantA", "lane-full"]).await > 0,
        "the observer's own copies"
    );
    assert_eq!(mesh.global.0.context().counters.sessions.value(), 1, "and it is not cut");
    let nobody = alice.request("service", "", Duration::from_secs(15)).await.unwrap_err();
    assert_eq!(nobody, RequestError::NoResponders("service".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_33_a_reader_by_a_grant_that_reads_nothing_slows_nobody_and_answers_nothing() {
    let more =
        "\n[[grant]]\nname = \"audit\"\nfrom = \"tenantA\"\nto = \"tenantB\"\naccess = \"read\"\nfilter = \">\"\n";
    let fabric = Fabric::shaped(&Shape { more, ..Shape::default() });
    let mesh = Mesh::start(&fabric).await;
    // One beside the publisher, and one at another broker.
    let mut stuck = Vec::new();
    for (node, agent) in [(&mesh.a, "bob"), (&mesh.b, "berta")] {
        let tls = tls_of(&fabric, Some(&fabric.agent(agent)), NATIVE);
        let mut peer = Peer::tcp(node.at().native_tcp, tls).await.unwrap();
        peer.hello().await.unwrap();
        for (sid, filter) in [(1, "T.tenantA.ctrl.>"), (2, "T.tenantA.live.>")] {
            assert!(matches!(peer.subscribe(sid, filter).await, Control::Subscribed(_)), "{agent}: {filter}");
        }
        stuck.push(peer);
    }
    let andy = fabric.client(mesh.a.at(), "andy").await;
    let mut reader = andy.subscribe("flood", None).await.unwrap();
    mesh.a.knows_filters("tenantA", 2).await;
    let alice = fabric.client(mesh.a.at(), "alice").await;
    publishes_undisturbed(&alice, &mut reader, 150, FILLING_BYTES).await;
    let dropped = mesh.a.metric("glocal_dropped_total", &["tenant=\"tenantA\"", "lane-full"]).await;
    assert!(dropped > 0, "the copies of those who do not read");
    for node in [&mesh.a, &mesh.b] {
        let sessions = node.0.context().counters.sessions.value();
        assert_eq!(sessions, if node.at().node == REGION_A { 3 } else { 1 }, "nobody is cut at {}", node.at().node);
    }
    let nobody = alice.request("service", "", Duration::from_secs(15)).await.unwrap_err();
    assert_eq!(nobody, RequestError::NoResponders("service".to_owned()));
}
