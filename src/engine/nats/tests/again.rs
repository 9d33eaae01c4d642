//! Publishes in a row: what is only compared with the last one is taken as any other is.

use glocal_core::rate::RateLimits;
use proptest::prelude::*;

use super::*;
use crate::batch::testing::{taken_again, without_again};

const OPTIONS: [&str; 3] = [
    r#"{"verbose":false,"pedantic":false,"headers":true,"no_responders":true}"#,
    r#"{"verbose":true,"pedantic":false,"headers":true}"#,
    r#"{"verbose":false,"pedantic":true,"headers":true}"#,
];
const SUBJECTS: [&str; 6] = ["a", "b.c", "a.*", "T.tenantA.live.a", "T.tenantB.live.a", "$SYS.REQ.USER.INFO"];

#[derive(Clone, Debug)]
enum Step {
    Publish { subject: usize, bytes: usize, times: usize },
    Other(&'static str),
    Reader { subject: usize },
    Limit { messages_per_s: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![4 => 0..300_usize, 4 => Just(8), 1 => 4_000..4_200_usize];
    let publish = (0..SUBJECTS.len(), bytes, 1..9_usize).prop_map(|(subject, bytes, times)| Step::Publish {
        subject,
        bytes,
        times,
    });
    let others = [
        "PING\r\n",
        "SUB a 1\r\n",
        "PUB a r 2\r\nhi\r\n",
        "PUB a  2\r\nhi\r\n",
        "pub a 2\nhi\r\n",
        "PUB a 2 \r\nhi\r\n",
        "HPUB a 12 14\r\nNATS/1.0\r\n\r\nhi\r\n",
        "HPUB a 0 2\r\nhi\r\n",
    ];
    let limit = prop_oneof![Just(5), Just(1_000_000)].prop_map(|messages_per_s| Step::Limit { messages_per_s });
    let reader = (0..2_usize).prop_map(|subject| Step::Reader { subject });
    prop_oneof![12 => publish, 4 => prop::sample::select(others.to_vec()).prop_map(Step::Other), 3 => reader, 1 => limit]
}

/// What a reader and the publisher got, and what was counted. The publisher's bytes come in pieces of `cut`.
fn carry_out(steps: &[Step], options: &str, cut: usize) -> (String, String, Vec<u64>) {
    let mut node = Node::new(1);
    let mut alice = Nats::new(&node, "tenantA", "alice", false);
    alice.say(&mut node, &format!("CONNECT {options}\r\n"));
    let mut bob = Nats::quiet(&mut node, "tenantA", "bob");
    let (mut stream, mut read, mut told) = (String::new(), String::new(), String::new());
    for step in steps.iter().chain([&Step::Reader { subject: 0 }]) {
        match step {
            Step::Publish { subject, bytes, times } => {
                for number in 0..*times {
                    let payload = char::from(b'0' + u8::try_from(number).unwrap()).to_string().repeat(*bytes);
                    stream.push_str(&format!("PUB {} {bytes}\r\n{payload}\r\n", SUBJECTS[*subject]));
                }
            }
            Step::Other(text) => stream.push_str(text),
            Step::Reader { .. } | Step::Limit { .. } => {
                let text = std::mem::take(&mut stream);
                for piece in text.as_bytes().chunks(cut) {
                    told.push_str(&alice.say(&mut node, std::str::from_utf8(piece).unwrap()));
                    read.push_str(&bob.say(&mut node, ""));
                }
            }
        }
        match step {
            Step::Reader { subject } => {
                read.push_str(&bob.say(&mut node, &format!("SUB {} {}\r\n", SUBJECTS[*subject], subject + 1)));
            }
            Step::Limit { messages_per_s } => {
                node.limit("tenantA", RateLimits { messages_per_s: Some(*messages_per_s), ..RateLimits::NONE });
            }
            _ => {}
        }
    }
    (read, told, node.counted("tenantA"))
}

proptest! {
    #[test]
    fn a_publish_that_was_only_compared_is_taken_as_any_other(
        steps in prop::collection::vec(step(), 1..40),
        options in prop::sample::select(&OPTIONS[..]),
        cut in prop_oneof![1..60_usize, Just(usize::MAX)],
    ) {
        prop_assert_eq!(carry_out(&steps, options, cut), without_again(|| carry_out(&steps, options, cut)));
    }
}

#[test]
fn publishes_in_a_row_are_compared_only_where_nothing_is_answered() {
    let mut node = Node::new(1);
    let mut bob = Nats::quiet(&mut node, "tenantA", "bob");
    bob.say(&mut node, "SUB a 1\r\n");
    for (options, answer, compared) in [(OPTIONS[0], "", true), (OPTIONS[1], "+OK\r\n", false)] {
        let mut alice = Nats::new(&node, "tenantA", "alice", false);
        alice.say(&mut node, &format!("CONNECT {options}\r\n"));
        alice.say(&mut node, "PUB a 1\r\nx\r\n");
        let run = "PUB a 1\r\nx\r\n".repeat(9);
        let before = taken_again();
        let used = alice.session.on_bytes(run.as_bytes(), NOW, &mut alice.effects).unwrap();
        assert_eq!((used, taken_again() - before), (run.len(), 8));
        let used = alice.session.take_again(b"PUB a 1\r\ny\r\nPUB b 1\r\nx\r\n", NOW, &mut alice.effects);
        assert_eq!(used, if compared { 12 } else { 0 });
        assert_eq!(alice.say(&mut node, ""), answer.repeat(9));
    }
}

#[test]
fn what_a_pedantic_client_may_not_publish_is_not_taken_for_what_it_published_last() {
    let mut node = Node::new(1);
    let mut bob = Nats::quiet(&mut node, "tenantA", "bob");
    bob.say(&mut node, "SUB a 1\r\n");
    let mut alice = Nats::connected(&mut node, "tenantA", "alice", OPTIONS[2]);
    alice.say(&mut node, "PUB a 1\r\nx\r\n");
    let run = "PUB a 1\r\nx\r\n".repeat(3) + &"PUB a.* 1\r\ny\r\n".repeat(3);
    let refused = alice.say(&mut node, &run);
    assert_eq!(refused.matches("Invalid Publish Subject").count(), 3, "{refused}");
    assert_eq!(bob.say(&mut node, ""), "MSG a 1 1\r\nx\r\n".repeat(4));
}
