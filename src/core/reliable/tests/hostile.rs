//! What a peer that lies may say of flows: nothing happens, and nothing grows beyond its limit.

use super::*;

#[test]
fn acknowledgements_that_cannot_be_change_nothing() {
    let (mut outgoing, budget, now) = (Outgoing::<u64, u64>::default(), budget(), Time(5));
    let mut finished = Vec::new();
    let mut said = |outgoing: &mut Outgoing<u64, u64>, broker, life, through| {
        outgoing.acknowledged(BrokerIndex(broker), life, (through, true), &budget, now, &mut finished)
    };
    assert_eq!(said(&mut outgoing, 0, 1, 1), Err(AckError::NoTarget));
    send(&mut outgoing, &[wanted(0, 0)], &budget, now);
    send(&mut outgoing, &[wanted(1, 0)], &budget, now);
    outgoing.reborn(BrokerIndex(0), 3, &budget);
    outgoing.due(now, &budget, |_| way(0));
    assert_eq!(said(&mut outgoing, 2, 1, 1), Err(AckError::NoTarget), "a broker that is no target");
    assert_eq!(said(&mut outgoing, 0, 2, 1), Err(AckError::Stale));
    for never in [2, 3, u64::MAX] {
        assert_eq!(said(&mut outgoing, 0, 3, never), Err(AckError::NeverSent), "{never}");
    }
    assert_eq!(outgoing.load(BrokerIndex(0)).map(|(bytes, _)| bytes), Some(BYTES));
    outgoing.dropped(u64::MAX, now);
    assert!(outgoing.no_member(BrokerIndex(0), 77, &QueueGroup::parse("g").unwrap()).is_none());
    assert_eq!(said(&mut outgoing, 0, 3, 1), Ok(true));
}

fn place(origin: u32, incarnation: u64, seq: u64, back: u32) -> Place {
    Place { origin: BrokerIndex(origin), incarnation, seq, back, bytes: BYTES }
}

#[test]
fn numbers_and_steps_that_do_not_fit_are_refused() {
    let (mut incoming, budget, now) = (Incoming::<u64>::default(), budget(), Time(5));
    let mut offer = |seq, back| incoming.offer(&place(1, 1, seq, back), Bringer(0), &budget, now, &mut Vec::new());
    for (seq, back) in [(0, 0), (u64::MAX, 0), (1, 1), (5, 5), (5, u32::MAX)] {
        assert_eq!(offer(seq, back), Verdict::Malformed, "{seq} {back}");
    }
    assert_eq!(offer(u64::MAX - 1, u32::MAX), Verdict::Early, "a jump waits for what it points to");
    assert_eq!(offer(1, 0), Verdict::Deliver);
}

#[test]
fn what_comes_early_is_bounded_in_bytes_and_messages() {
    let now = Time(5);
    for (bytes, most) in [(64 * 1024, RELIABLE_EARLY_BYTES_MAX / (64 * 1024)), (1, RELIABLE_EARLY_MESSAGES_MAX)] {
        let (mut incoming, budget) = (Incoming::<u64>::default(), budget());
        let mut held = 0;
        for seq in 2..100_000 {
            let place = Place { bytes, ..place(1, 1, seq, 1) };
            match incoming.offer(&place, Bringer(0), &budget, now, &mut Vec::new()) {
                Verdict::Early => {
                    incoming.keep(&place, seq, &budget);
                    held += 1;
                }
                verdict => assert_eq!(verdict, Verdict::Full),
            }
        }
        assert_eq!((held, incoming.early_bytes()), (most, most * bytes));
        assert_eq!(budget.used(), most * bytes);
        // A new life of the origin puts an end to it.
        let mut ended = Vec::new();
        let verdict = incoming.offer(&place(1, 2, 1, 0), Bringer(0), &budget, now, &mut ended);
        assert_eq!((verdict, ended.len(), budget.used()), (Verdict::Deliver, most, 0));
        assert_eq!(incoming.offer(&place(1, 1, 9, 0), Bringer(0), &budget, now, &mut ended), Verdict::Stale);
    }
    let (mut incoming, none) = (Incoming::<u64>::default(), budget_of(MEMORY_STEP_BYTES));
    none.take(2 * MEMORY_STEP_BYTES);
    let verdict = incoming.offer(&place(1, 1, 2, 1), Bringer(0), &none, now, &mut Vec::new());
    assert_eq!(verdict, Verdict::Full, "the node's own bound");
}

#[test]
fn what_waits_for_an_origin_that_is_gone_is_given_up() {
    let (mut incoming, budget, now) = (Incoming::<u64>::default(), budget(), Time(5));
    let keep = |incoming: &mut Incoming<u64>, origin| {
        let place = place(origin, 3, 2, 1);
        assert_eq!(incoming.offer(&place, Bringer(0), &budget, now, &mut Vec::new()), Verdict::Early);
        incoming.keep(&place, u64::from(origin), &budget);
    };
    keep(&mut incoming, 1);
    keep(&mut incoming, 2);
    let mut ended = Vec::new();
    assert!(incoming.reborn(BrokerIndex(1), 3, &budget).is_empty(), "the same life");
    ended.extend(incoming.reborn(BrokerIndex(1), 4, &budget));
    assert_eq!((&ended[..], budget.used()), (&[1][..], BYTES));
    let late = incoming.offer(&place(1, 3, 1, 0), Bringer(0), &budget, now, &mut Vec::new());
    assert_eq!(late, Verdict::Stale, "what the old life sent comes to nothing");
    incoming.give_up(now.plus_millis(RELIABLE_GIVE_UP_MS - 1), &budget, &mut ended);
    assert_eq!(ended.len(), 1);
    incoming.give_up(now.plus_millis(RELIABLE_GIVE_UP_MS), &budget, &mut ended);
    assert_eq!((&ended[..], budget.used()), (&[1, 2][..], 0));
    assert!(incoming.is_idle() && incoming.flows() == 2, "the numbers are remembered");
}

#[test]
fn a_flood_of_origins_is_bounded_and_idle_ones_make_room() {
    let (mut incoming, budget, now) = (Incoming::<u64>::default(), budget(), Time(5));
    let mut offer = |origin, now| incoming.offer(&place(origin, 1, 1, 0), Bringer(0), &budget, now, &mut Vec::new());
    for origin in 0..u32::try_from(RELIABLE_FLOWS_MAX).unwrap() {
        assert_eq!(offer(origin, now), Verdict::Deliver);
    }
    assert_eq!(offer(u32::MAX, now), Verdict::TooMany);
    assert_eq!(offer(u32::MAX, now.plus_millis(RELIABLE_IDLE_MS)), Verdict::Deliver);
    assert_eq!(incoming.flows(), 1);
}

#[test]
fn two_bringers_never_deliver_at_once() {
    let (mut incoming, budget, now) = (Incoming::<u64>::default(), budget(), Time(5));
    let (one, two) = (Bringer(1), Bringer(2));
    assert_eq!(incoming.offer(&place(1, 1, 1, 0), one, &budget, now, &mut Vec::new()), Verdict::Deliver);
    incoming.delivered(BrokerIndex(1), 1, one, &budget, now);
    let second = place(1, 1, 2, 1);
    assert_eq!(incoming.offer(&second, two, &budget, now, &mut Vec::new()), Verdict::Early);
    incoming.keep(&second, 2, &budget);
    assert_eq!(incoming.settle(BrokerIndex(1), two).unwrap().through, 0, "not in the lanes yet");
    assert_eq!(incoming.ready(BrokerIndex(1), two, now), None);
    assert_eq!(incoming.settle(BrokerIndex(1), one).unwrap().through, 1);
    assert_eq!(incoming.ready(BrokerIndex(1), one, now), Some((2, &2)));
}
