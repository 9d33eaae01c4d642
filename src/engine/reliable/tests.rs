//! Three brokers in a line and what crosses between them: acknowledged when it is there, and not before.

use glocal_core::count::Drop as DropReason;
use glocal_core::limits::{
    RELIABLE_GIVE_UP_MS, RELIABLE_TICK_MS, RELIABLE_TIMEOUT_MS_FIRST, RELIABLE_TIMEOUT_MS_MAX, RELIABLE_WAIT_MS_MAX,
    RELIABLE_WINDOW_BYTES_FIRST,
};
use glocal_wire::control::{Control, Memberless, Unsubscribe};

use super::*;
use crate::driver::Command;
use crate::lane_reader::{Arrivals, LaneReader};
use crate::lane_writer::LaneWriter;
use crate::machine::Machine as _;
use crate::testing::{Client, EDGES, Got, NOW, Node, denied, encode, in_group, messages, publish, subscribe};

mod again;
mod hostile;
mod request;
mod tally;

/// Numbers of the brokers in the line; the global is in the middle.
const G: usize = 0;
const A: usize = 1;
const B: usize = 2;

/// One direction of one bridge.
struct Way {
    edge: usize,
    from: usize,
    to: usize,
    writer: LaneWriter,
    readers: Vec<LaneReader>,
}

struct Line {
    nodes: Vec<Node>,
    ways: Vec<Way>,
    now: Time,
    /// Whether what is written is lost.
    cut: bool,
}

impl Line {
    fn new() -> Self {
        let mut nodes: Vec<Node> = (0..3).map(Node::new).collect();
        for (edge, (_, a, b)) in EDGES.iter().enumerate() {
            nodes[*a].up(edge, 0);
            nodes[*b].up(edge, 0);
        }
        let mut line = Self { nodes, ways: Vec::new(), now: NOW, cut: false };
        for (edge, (_, a, b)) in EDGES.iter().enumerate() {
            for (from, to) in [(*a, *b), (*b, *a)] {
                let readers = line.readers(edge, to);
                line.ways.push(Way { edge, from, to, writer: LaneWriter::default(), readers });
            }
        }
        line.carry();
        line
    }

    fn readers(&self, edge: usize, to: usize) -> Vec<LaneReader> {
        (0..glocal_core::limits::BRIDGE_STREAMS).map(|_| self.nodes[to].reader(edge)).collect()
    }

    /// Carries what is queued until nothing is; once only where bridges lose it.
    fn carry(&mut self) {
        loop {
            let mut moved = false;
            for way in &mut self.ways {
                let (link, shared) = (self.nodes[way.from].link(way.edge), Arc::clone(&self.nodes[way.from].shared));
                let now = self.now;
                let writes = link.inbox().with(|lanes| way.writer.fill(&link, lanes, &shared, now, 1 << 24));
                if self.cut {
                    continue;
                }
                let node = &mut self.nodes[way.to];
                for write in writes {
                    moved = true;
                    let mut arrivals = Arrivals::default();
                    for part in write.parts {
                        way.readers[write.stream].on_chunk(part, now, &mut arrivals).unwrap();
                    }
                    for command in arrivals.commands.drain(..) {
                        node.driver.apply(command);
                    }
                    node.driver.commit(now);
                    arrivals.batch.flush(&node.shared, now);
                }
            }
            if !moved {
                return;
            }
        }
    }

    /// Lets time pass and every broker look after what is due.
    fn pass(&mut self, millis: u64) {
        self.now = self.now.plus_millis(millis);
        for node in &self.nodes {
            let mut batch = Batch::default();
            tick(&node.shared, self.now, &mut batch);
            batch.flush(&node.shared, self.now);
        }
        self.carry();
    }

    /// A bridge ends, with what was on its way, and another one comes up.
    fn reconnect(&mut self, edge: usize, lives: [u64; 2]) {
        let (_, a, b) = EDGES[edge];
        for (node, life) in [(a, lives[1]), (b, lives[0])] {
            let key = self.nodes[node].key(edge);
            self.nodes[node].driver.apply(Command::EdgeDown { edge: key });
            let effective = self.nodes[node].allowed(edge);
            self.nodes[node].driver.apply(Command::EdgeUp { edge: key, effective, peer_incarnation: life });
            self.nodes[node].driver.apply(Command::EdgeReady { edge: key, lists: 0 });
            self.nodes[node].up(edge, 0);
        }
        for at in 0..self.ways.len() {
            if self.ways[at].edge == edge {
                self.ways[at].writer = LaneWriter::default();
                self.ways[at].readers = self.readers(edge, self.ways[at].to);
            }
        }
        self.carry();
    }

    fn client(&mut self, node: usize, agent: &str) -> Client {
        self.nodes[node].client("tenantA", agent)
    }

    /// A client of region-a that has published before, so that what others want is known there.
    fn publisher(&mut self, agent: &str) -> Client {
        let mut client = self.client(A, agent);
        client.send(&mut self.nodes[A], &publish(Some(Class::Live), None, "before", "", b""));
        self.carry();
        client
    }

    fn say(&mut self, node: usize, client: &mut Client, control: Control) -> Vec<Got> {
        let got = client.say(&mut self.nodes[node], control);
        self.carry();
        got
    }

    /// Publishes without carrying it anywhere.
    fn publish(&mut self, client: &mut Client, class: Class, number: u64, payload: &[u8]) -> Vec<Got> {
        client.send(&mut self.nodes[A], &publish(Some(class), Some(number), "x.y", "", payload))
    }

    fn drops(&self, node: usize, class: Class, reason: DropReason) -> u64 {
        self.nodes[node].tenant("tenantA").counters().class(class).drops(reason)
    }

    fn is_idle(&self) -> bool {
        self.nodes.iter().all(|node| node.shared.reliable().is_idle() && node.shared.reliable().kept_bytes() == 0)
    }
}

fn acks(got: &[Got]) -> Vec<(u64, u32)> {
    let ack = |got: &Got| match got {
        Got::Control(Control::Ack(ack)) => Some((ack.seq, ack.targets)),
        _ => None,
    };
    got.iter().filter_map(ack).collect()
}

#[test]
fn an_acknowledgement_says_that_every_broker_has_it() {
    for class in [Class::Ctrl, Class::Bulk] {
        let mut line = Line::new();
        let (mut alice, mut near, mut far) = (line.publisher("alice"), line.client(G, "near"), line.client(B, "far"));
        assert_eq!(acks(&line.publish(&mut alice, class, 1, b"nobody")), [(1, 0)], "no target at all");
        line.say(B, &mut far, subscribe(1, "x.>"));
        line.say(G, &mut near, subscribe(1, "x.>"));
        assert!(line.publish(&mut alice, class, 2, b"two").is_empty(), "not before they have it");
        line.carry();
        assert_eq!(acks(&alice.read()), [(2, 2)]);
        assert_eq!((messages(&near.read()), messages(&far.read())), (vec!["x.y=two".into()], vec!["x.y=two".into()]));
        assert!(line.is_idle());
    }
}

#[test]
fn the_other_classes_are_not_acknowledged_and_not_kept() {
    let mut line = Line::new();
    let (mut alice, mut far) = (line.publisher("alice"), line.client(B, "far"));
    line.say(B, &mut far, subscribe(1, "x.>"));
    for class in [Class::Live, Class::Tele] {
        line.publish(&mut alice, class, 1, b"m");
        assert!(line.is_idle());
        line.carry();
        assert!(acks(&alice.read()).is_empty());
    }
    assert_eq!(far.read().len(), 2);
}

#[test]
fn what_a_broken_bridge_took_along_is_sent_again_in_order_and_once() {
    for edge in 0..2 {
        let mut line = Line::new();
        let (mut alice, mut far) = (line.publisher("alice"), line.client(B, "far"));
        line.say(B, &mut far, subscribe(1, "x.>"));
        line.publish(&mut alice, Class::Ctrl, 1, b"1");
        line.carry();
        assert_eq!(acks(&alice.read()), [(1, 1)]);
        line.cut = true;
        for number in 2..=5u64 {
            line.publish(&mut alice, Class::Ctrl, number, number.to_string().as_bytes());
        }
        line.carry();
        line.cut = false;
        line.reconnect(edge, [7, 7]);
        line.pass(RELIABLE_TICK_MS);
        for _ in 0..4 {
            line.pass(RELIABLE_TIMEOUT_MS_FIRST);
        }
        assert_eq!(messages(&far.read()), ["x.y=1", "x.y=2", "x.y=3", "x.y=4", "x.y=5"], "edge {edge}");
        let acked: Vec<u64> = acks(&alice.read()).into_iter().map(|(number, _)| number).collect();
        assert_eq!(acked, [2, 3, 4, 5]);
        assert!(line.is_idle());
    }
}

#[test]
fn a_lost_acknowledgement_doubles_nothing() {
    let mut line = Line::new();
    let (mut alice, mut far) = (line.publisher("alice"), line.client(B, "far"));
    line.say(B, &mut far, subscribe(1, "x.>"));
    line.publish(&mut alice, Class::Bulk, 1, b"once");
    // There, but not back: the last way is from region-b to the global.
    for at in [1, 2] {
        let way = &mut line.ways[at];
        let (link, shared) = (line.nodes[way.from].link(way.edge), Arc::clone(&line.nodes[way.from].shared));
        let writes = link.inbox().with(|lanes| way.writer.fill(&link, lanes, &shared, line.now, 1 << 20));
        let mut arrivals = Arrivals::default();
        for write in writes {
            for part in write.parts {
                way.readers[write.stream].on_chunk(part, line.now, &mut arrivals).unwrap();
            }
        }
        arrivals.batch.flush(&line.nodes[way.to].shared, line.now);
    }
    line.cut = true;
    line.carry();
    line.cut = false;
    line.reconnect(1, [7, 7]);
    line.pass(RELIABLE_TIMEOUT_MS_FIRST);
    assert_eq!(messages(&far.read()), ["x.y=once"]);
    assert_eq!(acks(&alice.read()), [(1, 1)]);
    assert_eq!(line.drops(B, Class::Bulk, DropReason::Repeat), 1);
    assert!(line.is_idle());
}

#[test]
fn a_full_window_stops_its_publisher_alone_and_refuses_in_the_end() {
    let mut line = Line::new();
    let (mut alice, mut far) = (line.publisher("alice"), line.client(B, "far"));
    line.say(B, &mut far, subscribe(1, "x.>"));
    line.cut = true;
    let big = vec![b'm'; 16 * 1024];
    let mut number = 0;
    while !alice.effects.waits {
        number += 1;
        line.publish(&mut alice, Class::Bulk, number, &big);
    }
    assert!(usize::try_from(number).unwrap() * big.len() <= RELIABLE_WINDOW_BYTES_FIRST + big.len());
    // Another class of the same tenant, another session of it, another tenant: they all go on.
    let mut other = line.client(A, "other");
    line.publish(&mut other, Class::Ctrl, 1, &big);
    assert!(!other.effects.waits);
    line.publish(&mut other, Class::Live, 2, &big);
    assert!(!other.effects.waits);
    line.publish(&mut other, Class::Bulk, 3, &big);
    assert!(other.effects.waits, "the same window");
    // It waits as long as it may, then it is told when to come back, and so is what follows, at once.
    let node = &mut line.nodes[A];
    let late = NOW.plus_millis(RELIABLE_WAIT_MS_MAX);
    alice.feed_at(node, b"", NOW.plus_millis(RELIABLE_WAIT_MS_MAX - 1)).unwrap();
    assert!(alice.effects.waits && alice.read().is_empty());
    alice.feed_at(node, &publish(Some(Class::Bulk), Some(77), "x.y", "", &big), late).unwrap();
    let got = alice.read();
    assert_eq!(denied(&got), [(1, number, "congested".into()), (1, 77, "congested".into())]);
    assert!(matches!(&got[0], Got::Control(Control::Denied(d)) if d.retry_after_ms.is_some()));
    assert!(!alice.effects.waits, "the session reads on");
    // The bridge comes back: the window opens and those who wait are woken.
    line.cut = false;
    line.reconnect(0, [7, 7]);
    line.reconnect(1, [7, 7]);
    line.pass(RELIABLE_TIMEOUT_MS_MAX);
    line.pass(RELIABLE_TIMEOUT_MS_MAX);
    assert!(other.session.port().unwrap().take_retry());
    other.feed_at(&mut line.nodes[A], b"", line.now).unwrap();
    assert!(!other.effects.waits);
    line.pass(RELIABLE_TIMEOUT_MS_FIRST);
    assert_eq!(acks(&alice.read()).len() as u64, number - 1);
    assert_eq!(acks(&other.read()).len(), 2);
    assert!(line.is_idle());
}

#[test]
fn a_session_that_does_not_read_holds_back_acknowledgements_and_nobody_else() {
    let mut line = Line::new();
    let (mut alice, mut slow, mut quick) = (line.publisher("alice"), line.client(B, "slow"), line.client(B, "quick"));
    line.say(B, &mut slow, subscribe(1, "x.>"));
    line.say(B, &mut quick, subscribe(1, "other"));
    let big = vec![b'm'; 60 * 1024];
    let (mut number, mut acked) = (0, 0);
    while !alice.effects.waits {
        number += 1;
        line.publish(&mut alice, Class::Ctrl, number, &big);
        line.carry();
        acked += acks(&alice.read()).len();
        assert!(number < 1_000);
    }
    assert!(
        acked >= 100 && acked < usize::try_from(number).unwrap(),
        "what is not in its lane is not acknowledged: {acked} of {number}"
    );
    // Another class to the same broker is not held up.
    let node = &mut line.nodes[A];
    let mut other = node.client("tenantA", "other");
    let got = other.send(node, &publish(Some(Class::Bulk), Some(1), "other", "", b"o"));
    assert!(got.is_empty());
    line.carry();
    assert_eq!((acks(&other.read()).len(), messages(&quick.read()).len()), (1, 1));
    // It reads, and everything comes, once and in order.
    let mut got = messages(&slow.read()).len();
    for _ in 0..50 {
        line.pass(RELIABLE_TIMEOUT_MS_FIRST);
        got += messages(&slow.read()).len();
        alice.feed_at(&mut line.nodes[A], b"", line.now).unwrap();
    }
    assert_eq!(got as u64, number);
    assert_eq!(acked + acks(&alice.read()).len(), got);
    assert!(line.is_idle());
}

#[test]
fn a_group_whose_member_has_gone_is_served_by_another_one() {
    let mut line = Line::new();
    let (mut alice, mut near, mut far) = (line.publisher("alice"), line.client(G, "near"), line.client(B, "far"));
    line.say(G, &mut near, in_group(1, "x.>", "w"));
    line.say(B, &mut far, in_group(1, "x.>", "w"));
    // The nearest member goes, and the origin has not heard of it when it publishes.
    near.feed(&mut line.nodes[G], &encode(&Unsubscribe { sid: 1, max: None }.into())).unwrap();
    line.publish(&mut alice, Class::Ctrl, 1, b"job");
    assert!(messages(&near.read()).is_empty());
    line.carry();
    assert_eq!(messages(&far.read()), ["x.y=job"]);
    assert_eq!(acks(&alice.read()), [(1, 1)]);
    assert!(line.is_idle());
}

#[test]
fn a_request_is_told_that_nobody_is_left() {
    let mut line = Line::new();
    let (mut alice, mut near) = (line.publisher("alice"), line.client(G, "near"));
    line.say(G, &mut near, in_group(1, "x.>", "w"));
    near.feed(&mut line.nodes[G], &encode(&Unsubscribe { sid: 1, max: None }.into())).unwrap();
    alice.send(&mut line.nodes[A], &publish(Some(Class::Ctrl), Some(9), "x.y", "_INBOX.q.1", b"job"));
    line.carry();
    let got = alice.read();
    assert!(got.iter().any(|g| matches!(g, Got::Control(Control::NoResponders(n)) if n.seq == 9)), "{got:?}");
    assert_eq!(acks(&got), [(9, 0)]);
    assert_eq!(line.drops(A, Class::Ctrl, DropReason::TargetGone), 1);
}

#[test]
fn a_target_in_a_new_life_gets_nothing_of_the_old_one() {
    let mut line = Line::new();
    let (mut alice, mut plain, mut member) = (line.publisher("alice"), line.client(B, "p"), line.client(B, "m"));
    let mut other = line.client(G, "other");
    line.say(B, &mut plain, subscribe(1, "x.>"));
    line.say(B, &mut member, in_group(1, "x.>", "w"));
    line.cut = true;
    line.publish(&mut alice, Class::Ctrl, 1, b"job");
    line.carry();
    line.cut = false;
    line.say(G, &mut other, in_group(1, "x.>", "w"));
    // Region-a hears of region-b's new life.
    heard(&line.nodes[A].shared, None, line.nodes[B].shared.own, 8);
    line.reconnect(0, [7, 7]);
    line.pass(RELIABLE_TICK_MS);
    let got = other.read();
    assert!(matches!(&got[..], [Got::Message { redelivered: true, payload, .. }] if payload == b"job"), "{got:?}");
    assert!(messages(&plain.read()).is_empty() && messages(&member.read()).is_empty());
    assert_eq!(line.drops(A, Class::Ctrl, DropReason::TargetGone), 1, "the plain copy");
    assert_eq!(acks(&alice.read()), [(1, 0)]);
}

#[test]
fn a_full_lane_on_the_way_is_told_of_and_soon_tried_again() {
    let mut line = Line::new();
    let (mut alice, mut far) = (line.publisher("alice"), line.client(B, "far"));
    line.say(B, &mut far, subscribe(1, "x.>"));
    line.publish(&mut alice, Class::Bulk, 1, b"1");
    line.carry();
    let window = |line: &Line| {
        let flows = line.nodes[A].shared.reliable().flows(line.nodes[A].tenant("tenantA").key());
        let load = flows.bulk.outgoing.lock().load(line.nodes[B].shared.own);
        load.unwrap().1
    };
    let before = window(&line);
    line.cut = true;
    line.publish(&mut alice, Class::Bulk, 2, b"2");
    line.carry();
    // The global says that it had no room for number 2.
    let body = Overflowed { class: Class::Bulk.code(), incarnation: 7, seq: 2 };
    let tenant = line.nodes[A].tenant("tenantA");
    let from = (line.nodes[G].shared.own, 7);
    let mut batch = Batch::default();
    assert!(on_letter(&line.nodes[A].shared, &tenant, from, body.into(), line.now, &mut batch).is_none());
    assert_eq!(window(&line), before / 2, "the window halves");
    line.cut = false;
    line.reconnect(0, [7, 7]);
    line.pass(2 * RELIABLE_TICK_MS);
    assert_eq!(messages(&far.read()), ["x.y=1", "x.y=2"], "long before the time-out");
}

#[test]
fn a_copy_that_has_not_left_is_not_queued_a_second_time() {
    let mut line = Line::new();
    let (mut alice, mut far) = (line.publisher("alice"), line.client(B, "far"));
    line.say(B, &mut far, subscribe(1, "x.>"));
    for class in [Class::Ctrl, Class::Bulk] {
        line.publish(&mut alice, class, 1, &[b'm'; 9_000]);
    }
    let queued = |line: &Line| line.nodes[A].link(0).inbox().with(|lanes| lanes.sched().backlog_bytes());
    let before = queued(&line);
    let tick_all = |line: &mut Line, times: u64| {
        for _ in 0..times {
            line.now = line.now.plus_millis(RELIABLE_TICK_MS);
            let mut batch = Batch::default();
            tick(&line.nodes[A].shared, line.now, &mut batch);
            batch.flush(&line.nodes[A].shared, line.now);
        }
    };
    // The edge takes nothing, for longer than targets may stay away.
    tick_all(&mut line, RELIABLE_GIVE_UP_MS / RELIABLE_TICK_MS + 10);
    assert_eq!(queued(&line), before);
    line.carry();
    assert_eq!(messages(&far.read()).len(), 2);
    assert!(line.is_idle());
    let drops = [DropReason::Repeat, DropReason::TargetGone].map(|reason| line.drops(B, Class::Bulk, reason));
    assert_eq!(drops, [0, 0]);
}
