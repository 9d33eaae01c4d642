//! Requests in classes that nobody acknowledges: a second choice, or the truth.

use glocal_core::limits::{REQUESTS_BYTES_MAX, REQUESTS_KEPT_MAX, REQUESTS_KEPT_MS};
use glocal_core::tally::CLASSES;
use glocal_wire::control::Unserved;

use super::*;

impl Line {
    fn request(&mut self, client: &mut Client, class: Class, number: u64) {
        client.send(&mut self.nodes[A], &publish(Some(class), Some(number), "x.y", "_INBOX.q.1", b"ask"));
    }

    /// A member at `node` goes, and nobody else has heard of it yet.
    fn leave(&mut self, node: usize, client: &mut Client) {
        client.feed(&mut self.nodes[node], &encode(&Unsubscribe { sid: 1, max: None }.into())).unwrap();
    }

    /// Requests kept in region-a, and their bytes.
    fn kept(&self) -> (usize, usize) {
        let flows = self.nodes[A].shared.reliable().tenants.read();
        flows.values().map(|flows| flows.requests.lock()).fold((0, 0), |(n, bytes), latest| {
            assert_eq!(latest.kept.len(), latest.order.len());
            (n + latest.kept.len(), bytes + latest.bytes)
        })
    }
}

fn unanswered(got: &[Got]) -> Vec<u64> {
    let number = |got: &Got| match got {
        Got::Control(Control::NoResponders(body)) => Some(body.seq),
        _ => None,
    };
    got.iter().filter_map(number).collect()
}

#[test]
fn a_request_whose_member_has_gone_finds_another_one() {
    for class in CLASSES {
        let mut line = Line::new();
        let (mut alice, mut near, mut far) = (line.publisher("alice"), line.client(G, "near"), line.client(B, "far"));
        line.say(G, &mut near, in_group(1, "x.>", "w"));
        line.say(B, &mut far, in_group(1, "x.>", "w"));
        let mut plain = line.client(B, "plain");
        line.say(B, &mut plain, subscribe(1, "x.>"));
        line.leave(G, &mut near);
        line.request(&mut alice, class, 1);
        // What comes later does not make it late.
        line.publish(&mut alice, class, 2, b"later");
        line.carry();
        let got = far.read();
        let asked = |got: &&Got| matches!(got, Got::Message { payload, redelivered: true, .. } if payload == b"ask");
        assert_eq!(got.iter().filter(asked).count(), 1, "{got:?}");
        assert!(unanswered(&alice.read()).is_empty());
        assert_eq!(
            line.drops(G, class, DropReason::NoMember),
            2,
            "the one that asks for no answer has no second choice"
        );
    }
}

#[test]
fn a_requester_is_told_when_nobody_is_left() {
    for class in CLASSES {
        for queue in [Some("w"), None] {
            let mut line = Line::new();
            let (mut alice, mut near) = (line.publisher("alice"), line.client(G, "near"));
            let subscribe = queue.map_or_else(|| subscribe(1, "x.>"), |queue| in_group(1, "x.>", queue));
            line.say(G, &mut near, subscribe);
            line.leave(G, &mut near);
            line.request(&mut alice, class, 9);
            line.carry();
            assert_eq!(unanswered(&alice.read()), [9], "{queue:?}");
            // Once: nobody has the request any more.
            let again =
                Unserved { class: class.code(), incarnation: 7, session: 1, seq: 2, groups: vec![], plain: false };
            let (tenant, from) = (line.nodes[A].tenant("tenantA"), (line.nodes[G].shared.own, 7));
            let mut batch = Batch::default();
            assert!(on_letter(&line.nodes[A].shared, &tenant, from, again.into(), NOW, &mut batch).is_none());
            batch.flush(&line.nodes[A].shared, NOW);
            assert!(unanswered(&alice.read()).is_empty());
            assert_eq!(line.drops(A, class, DropReason::BadTarget), 1);
        }
    }
}

#[test]
fn nobody_is_told_while_somebody_may_answer() {
    let mut line = Line::new();
    let (mut alice, mut near, mut far) = (line.publisher("alice"), line.client(G, "near"), line.client(B, "far"));
    line.say(G, &mut near, in_group(1, "x.>", "w"));
    line.say(B, &mut far, subscribe(1, "x.>"));
    line.leave(G, &mut near);
    line.request(&mut alice, Class::Live, 1);
    line.carry();
    assert!(unanswered(&alice.read()).is_empty());
    assert_eq!(messages(&far.read()), ["x.y=ask"]);
}

#[test]
fn requests_are_kept_for_a_moment_and_within_limits() {
    let mut line = Line::new();
    let (mut alice, mut far) = (line.publisher("alice"), line.client(B, "far"));
    line.say(B, &mut far, subscribe(1, "x.>"));
    line.publish(&mut alice, Class::Live, 1, b"no question");
    assert_eq!(line.kept().0, 0);
    for number in 0..REQUESTS_KEPT_MAX as u64 + 10 {
        line.request(&mut alice, Class::Live, number);
    }
    assert_eq!(line.kept().0, REQUESTS_KEPT_MAX);
    let big = vec![b'm'; 60 * 1024];
    for number in 0..2 * (REQUESTS_BYTES_MAX / big.len()) as u64 {
        alice.send(&mut line.nodes[A], &publish(Some(Class::Tele), Some(number), "x.y", "_INBOX.q.1", &big));
    }
    let (count, bytes) = line.kept();
    assert!(bytes <= REQUESTS_BYTES_MAX && count >= REQUESTS_BYTES_MAX / big.len() - 1, "{count} of {bytes} bytes");
    line.carry();
    line.pass(REQUESTS_KEPT_MS);
    assert_eq!(line.kept(), (0, 0));
}
