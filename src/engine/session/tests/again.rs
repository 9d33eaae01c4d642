//! Publishes in a row: what is only compared with the last one is taken as any other is.

use glocal_core::rate::RateLimits;
use glocal_core::time::Time;
use glocal_wire::data::DataHead;
use proptest::prelude::*;

use super::*;
use crate::batch::testing::without_again;

const NAMES: [&str; 4] = ["a", "b.c", "T.tenantA.live.a", "T.tenantB.live.a"];

#[derive(Clone, Debug)]
enum Step {
    Publish {
        name: usize,
        class: Option<Class>,
        bytes: usize,
        times: usize,
        numbered: bool,
        reply: bool,
        ttl: bool,
    },
    /// The publisher subscribes, in the middle of its stream.
    Own {
        name: usize,
    },
    Ping,
    Reader {
        name: usize,
    },
    Limit(RateLimits),
    Turn,
}

fn step() -> impl Strategy<Value = Step> {
    let class = prop_oneof![3 => Just(None), 2 => Just(Some(Class::Tele)), 1 => Just(Some(Class::Ctrl))];
    let bytes = prop_oneof![4 => 0..300_usize, 4 => Just(8), 1 => 4_000..4_200_usize];
    let flags = [0.1, 0.05, 0.1].map(prop::bool::weighted);
    let publish = (0..NAMES.len(), class, bytes, 1..9_usize, flags).prop_map(|(name, class, bytes, times, flags)| {
        let [numbered, reply, ttl] = flags;
        Step::Publish { name, class, bytes, times, numbered, reply, ttl }
    });
    let own = (0..2_usize).prop_map(|name| Step::Own { name });
    let reader = (0..2_usize).prop_map(|name| Step::Reader { name });
    let (messages, bytes) = (prop_oneof![Just(5), Just(1_000_000)], prop_oneof![Just(500), Just(1_000_000)]);
    let limit = prop_oneof![
        messages.prop_map(|most| RateLimits { messages_per_s: Some(most), ..RateLimits::NONE }),
        bytes.prop_map(|most| RateLimits { bytes_per_s: Some(most), ..RateLimits::NONE }),
    ];
    let limit = limit.prop_map(Step::Limit);
    prop_oneof![12 => publish, 1 => own, 1 => Just(Step::Ping), 3 => reader, 1 => limit, 3 => Just(Step::Turn)]
}

/// What a reader and the publisher itself got, and what was counted. The publisher's bytes come in pieces of `cut`.
fn carry_out(steps: &[Step], cut: usize) -> (Vec<Got>, Vec<Got>, Vec<u64>) {
    let mut node = Node::new(1);
    let (mut alice, mut bob) = (node.client("tenantA", "alice"), node.client("tenantA", "bob"));
    let (mut stream, mut number, mut now) = (BytesMut::new(), 0_u8, NOW);
    let (mut read, mut told) = (Vec::new(), Vec::new());
    for step in steps.iter().chain([&Step::Turn]) {
        match step {
            Step::Publish { name, class, bytes, times, numbered, reply, ttl } => {
                for _ in 0..*times {
                    number = number.wrapping_add(1);
                    let seq = numbered.then_some(u64::from(number));
                    let head = DataHead { seq, ttl_ms: ttl.then_some(9), ..DataHead::new(DataKind::Publish, *class) };
                    let (name, reply) = (NAMES[*name].as_bytes(), if *reply { &b"r"[..] } else { b"" });
                    head.encode_into(&mut stream, &[], name, reply, &[], &vec![number; *bytes]).unwrap();
                }
            }
            Step::Own { name } => {
                let sid = u32::try_from(*name).unwrap() + 1;
                stream.unsplit(encode(&subscribe(sid, NAMES[*name])));
            }
            Step::Ping => stream.unsplit(encode(&Ping { token: u64::from(number) }.into())),
            Step::Reader { .. } | Step::Limit(_) | Step::Turn => {
                for piece in stream.split().chunks(cut) {
                    alice.feed_at(&mut node, piece, now).unwrap();
                    while let Some(until) = alice.effects.until.filter(|_| alice.effects.waits) {
                        now = Time(until.0.max(now.0));
                        alice.feed_at(&mut node, b"", now).unwrap();
                    }
                    told.extend(alice.read());
                    read.extend(bob.read());
                }
            }
        }
        match step {
            Step::Reader { name } => {
                read.extend(bob.say(&mut node, subscribe(u32::try_from(*name).unwrap() + 1, NAMES[*name])));
            }
            Step::Limit(limits) => node.limit("tenantA", *limits),
            _ => {}
        }
    }
    (read, told, node.counted("tenantA"))
}

proptest! {
    #[test]
    fn a_publish_that_was_only_compared_is_taken_as_any_other(
        steps in prop::collection::vec(step(), 1..40),
        cut in prop_oneof![1..60_usize, Just(usize::MAX)],
    ) {
        prop_assert_eq!(carry_out(&steps, cut), without_again(|| carry_out(&steps, cut)));
    }
}

/// A session of `alice`, of whose publishes to `x` two have been taken, and who listens there.
fn repeating(node: &mut Node) -> (Client, Client) {
    let (mut alice, mut bob) = (node.client("tenantA", "alice"), node.client("tenantA", "bob"));
    bob.say(node, subscribe(1, "x"));
    alice.send(node, &publish(None, None, "x", "", b"first"));
    let mut two = publish(None, None, "x", "", b"1");
    two.unsplit(publish(None, None, "x", "", b"2"));
    let used = alice.session.on_bytes(&two, NOW, &mut alice.effects).unwrap();
    assert_eq!(used, two.len());
    (alice, bob)
}

fn taken(alice: &mut Client, bytes: &[u8]) -> usize {
    alice.session.take_again(bytes, NOW, &mut alice.effects)
}

#[test]
fn what_differs_in_its_payload_is_taken_by_comparison_and_nothing_else_is() {
    let mut node = Node::new(1);
    let (mut alice, mut bob) = repeating(&mut node);
    let mut run = publish(None, None, "x", "", b"3");
    run.unsplit(publish(None, None, "x", "", b"longer"));
    run.unsplit(publish(None, None, "x", "", b""));
    let whole = run.len();
    run.unsplit(publish(None, None, "x", "", b"cut off").split_to(20));
    assert_eq!(taken(&mut alice, &run), whole);
    for other in [
        publish(None, None, "y", "", b"3"),
        publish(None, None, "xx", "", b"3"),
        publish(Some(Class::Tele), None, "x", "", b"3"),
        publish(None, Some(1), "x", "", b"3"),
        publish(None, None, "x", "r", b"3"),
        encode(&Ping { token: 1 }.into()),
    ] {
        assert_eq!(taken(&mut alice, &other), 0, "{other:?}");
    }
    alice.effects.commands.push(Command::CloseSession { session: 0 });
    assert_eq!(taken(&mut alice, &run), 0, "it is to see what was asked for before it");
    alice.effects.commands.clear();
    alice.effects.batch.flush(&node.shared, NOW);
    assert_eq!(messages(&bob.read()), ["x=first", "x=1", "x=2", "x=3", "x=longer", "x="]);
}

#[test]
fn a_comparison_does_not_outlive_what_was_decided() {
    let mut node = Node::new(1);
    let again = publish(None, None, "x", "", b"3");
    let (mut alice, mut bob) = repeating(&mut node);
    bob.say(&mut node, subscribe(2, "x"));
    assert_eq!(taken(&mut alice, &again), 0, "the table is another one");
    alice.send(&mut node, &again);
    let (mut alice, _bob) = repeating(&mut node);
    alice.effects.batch.flush(&node.shared, NOW);
    assert_eq!(taken(&mut alice, &again), 0, "what it would be written behind has gone");
    alice.send(&mut node, &again);
    node.limit("tenantA", RateLimits { messages_per_s: Some(5), ..RateLimits::NONE });
    let flood: Vec<u8> = std::iter::repeat_n(&again[..], 20).flatten().copied().collect();
    alice.send(&mut node, &flood);
    let dropped = node.tenant("tenantA").counters().class(Class::Live).drops(DropReason::Rate);
    assert_eq!(dropped, 15, "each is paid for, and once");
}

#[test]
fn an_oversize_payload_is_named_also_where_it_is_like_the_last_one() {
    let mut node = Node::new(1);
    let (mut alice, _bob) = repeating(&mut node);
    let max = node.shared.max_payload_bytes as usize;
    let large = publish(None, None, "x", "", &vec![b'l'; max + 1]);
    assert_eq!(taken(&mut alice, &large), 0);
    assert!(matches!(alice.feed(&mut node, &large), Err(SessionEnd::Frame(FrameError::PayloadTooLarge { .. }))));
}

#[test]
fn what_was_refused_before_it_was_looked_for_is_not_taken_for_what_was_published_last() {
    let mut node = Node::new(1);
    let (mut alice, mut bob) = repeating(&mut node);
    bob.read();
    node.limit("tenantA", RateLimits { bytes_per_s: Some(1_000), ..RateLimits::NONE });
    let mut run = BytesMut::new();
    (0..3).for_each(|_| run.unsplit(publish(None, None, "x", "", b"for x")));
    // The first one is above the rate, the others are not.
    run.unsplit(publish(None, None, "y", "", &[b'l'; 2_000]));
    (0..2).for_each(|_| run.unsplit(publish(None, None, "y", "", b"for y")));
    alice.send(&mut node, &run);
    let mut expected = vec!["x=1", "x=2"];
    expected.extend(["x=for x"; 3]);
    assert_eq!(messages(&bob.read()), expected);
    assert_eq!(node.tenant("tenantA").counters().class(Class::Live).unmatched.value(), 2);
}
