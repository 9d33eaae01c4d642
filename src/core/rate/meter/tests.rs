use super::*;
use crate::rate::RateBounds;
use proptest::prelude::*;

const SECOND: u64 = 1_000_000;

fn meters(limits: RateLimits, n: usize) -> (Arc<Ingress>, Vec<Meter>) {
    let ingress = Arc::new(Ingress::new(limits));
    let meters = (0..n).map(|_| Meter::new(Arc::clone(&ingress))).collect();
    (ingress, meters)
}

fn messages(rate: u64) -> RateLimits {
    RateLimits { messages_per_s: Some(rate), ..RateLimits::NONE }
}

/// Publishes one message, and gives back what is in stock.
fn publish(meter: &mut Meter, class: Class, bytes: u64, at: u64) -> Result<(), Over> {
    let result = meter.pay(class, bytes, Time(at));
    if !matches!(result, Err(Over::Wait(_))) {
        meter.done();
    }
    meter.settle();
    result
}

/// How many of `n` messages are granted.
fn granted(meter: &mut Meter, class: Class, n: usize, at: u64) -> usize {
    (0..n).filter(|_| publish(meter, class, 10, at).is_ok()).count()
}

#[test]
fn without_limits_everything_passes() {
    let (_, mut all) = meters(RateLimits::NONE, 1);
    assert_eq!(granted(&mut all[0], Class::Live, 10_000, 0), 10_000);
    assert_eq!(all[0].pay(Class::Bulk, u64::MAX, Time(0)), Ok(()));
}

#[test]
fn sessions_share_their_tenants_rate_and_are_told_when_to_come_back() {
    let (_, mut all) = meters(messages(100), 2);
    assert_eq!(granted(&mut all[0], Class::Live, 60, 0), 60);
    assert_eq!(granted(&mut all[1], Class::Tele, 60, 0), 40);
    assert_eq!(publish(&mut all[0], Class::Live, 10, 0), Err(Over::Refused(10)));
    assert_eq!(publish(&mut all[0], Class::Live, 10, 9_500), Err(Over::Refused(1)), "rounded up");
    assert_eq!(publish(&mut all[0], Class::Live, 10, 10_000), Ok(()));
    assert_eq!(publish(&mut all[1], Class::Live, 10, 10_000), Err(Over::Refused(10)));
}

#[test]
fn bytes_count_as_messages_do() {
    let limits = RateLimits { bytes_per_s: Some(1_000), burst_ms: 500, ..messages(1_000_000) };
    let (_, mut all) = meters(limits, 1);
    assert_eq!(publish(&mut all[0], Class::Live, 400, 0), Ok(()));
    assert_eq!(publish(&mut all[0], Class::Live, 200, 0), Err(Over::Refused(100)));
    assert_eq!(publish(&mut all[0], Class::Live, 100, 0), Ok(()), "less is there");
    assert_eq!(publish(&mut all[0], Class::Live, 5_000, 500_000), Ok(()), "more than a burst when it is full");
    assert_eq!(publish(&mut all[0], Class::Live, 1, 500_000), Err(Over::Refused(4_501)), "and a debt follows");
}

#[test]
fn a_session_has_limits_of_its_own() {
    let limits = RateLimits { session_messages_per_s: Some(10), session_bytes_per_s: Some(1_000), ..messages(1_000) };
    let (_, mut all) = meters(limits, 2);
    assert_eq!(granted(&mut all[0], Class::Live, 50, 0), 10);
    assert_eq!(publish(&mut all[0], Class::Live, 10, 0), Err(Over::Refused(100)));
    assert_eq!(granted(&mut all[1], Class::Live, 50, 0), 10, "each its own");
    assert_eq!(publish(&mut all[1], Class::Live, 950, SECOND / 2), Ok(()));
    assert_eq!(publish(&mut all[1], Class::Live, 100, SECOND / 2), Err(Over::Refused(50)), "bytes, too");
    let alone = RateLimits { session_messages_per_s: Some(10), ..RateLimits::NONE };
    assert_eq!(granted(&mut meters(alone, 1).1[0], Class::Tele, 50, 0), 10, "also where the tenant has none");
}

#[test]
fn a_refusal_by_the_tenant_costs_the_session_nothing_and_the_other_way_round() {
    let limits = RateLimits { session_messages_per_s: Some(10), ..messages(10) };
    let (_, mut all) = meters(limits, 2);
    assert_eq!(granted(&mut all[0], Class::Live, 50, 0), 10);
    assert_eq!(granted(&mut all[1], Class::Live, 50, 0), 0);
    let more = RateLimits { session_messages_per_s: Some(10), ..messages(1_000) };
    all[0].ingress.set(more);
    assert_eq!(granted(&mut all[1], Class::Live, 50, SECOND), 10, "its own bucket was left full");
    let (_, mut all) = meters(RateLimits { session_messages_per_s: Some(1), ..messages(10) }, 10);
    all.iter_mut().for_each(|meter| assert_eq!(granted(meter, Class::Live, 50, 0), 1));
}

#[test]
fn a_class_takes_its_share_at_most() {
    let limits = RateLimits { live_percent: 20, ctrl_percent: 50, ..messages(100) };
    let (_, mut all) = meters(limits, 1);
    assert_eq!(granted(&mut all[0], Class::Live, 100, 0), 20);
    assert_eq!(publish(&mut all[0], Class::Live, 10, 0), Err(Over::Refused(50)));
    assert_eq!(granted(&mut all[0], Class::Ctrl, 50, 0), 50);
    assert_eq!(publish(&mut all[0], Class::Ctrl, 10, 0), Err(Over::Wait(Time(20_000))));
    // The one that waits is paid for.
    assert_eq!(granted(&mut meters(limits, 1).1[0], Class::Tele, 200, 0), 100, "others have the whole");
}

#[test]
fn reliable_messages_wait_for_an_exact_time_and_are_paid_once() {
    let (_, mut all) = meters(messages(100), 1);
    let meter = &mut all[0];
    // A tenth of a second of the rate is left to classes that do not wait.
    assert_eq!((0..90).filter(|_| publish(meter, Class::Ctrl, 10, 0).is_ok()).count(), 90);
    for early in [0, 5_000, 9_999] {
        assert_eq!(publish(meter, Class::Ctrl, 10, early), Err(Over::Wait(Time(10_000))));
    }
    assert_eq!(publish(meter, Class::Ctrl, 10, 10_000), Ok(()));
    assert_eq!(publish(meter, Class::Bulk, 10, 10_000), Err(Over::Wait(Time(20_000))));
    assert_eq!(meter.pay(Class::Bulk, 10, Time(20_000)), Ok(()));
    assert_eq!(meter.pay(Class::Bulk, 10, Time(20_000)), Ok(()), "the same message again: it was paid");
    meter.done();
    assert_eq!(meter.pay(Class::Bulk, 10, Time(20_000)), Err(Over::Wait(Time(30_000))), "the next one was not");
}

#[test]
fn whoever_waits_is_refused_after_five_seconds_and_the_next_at_once() {
    let (_, mut all) = meters(RateLimits { bytes_per_s: Some(100), ..RateLimits::NONE }, 1);
    let meter = &mut all[0];
    assert_eq!(publish(meter, Class::Ctrl, 2_000, 0), Ok(()), "a debt of 19 s");
    let end = RELIABLE_WAIT_MS_MAX * 1000;
    assert_eq!(publish(meter, Class::Ctrl, 10, 0), Err(Over::Wait(Time(end))));
    assert_eq!(publish(meter, Class::Ctrl, 10, end / 2), Err(Over::Wait(Time(end))));
    assert_eq!(publish(meter, Class::Ctrl, 10, end), Err(Over::Refused(14_200)));
    assert_eq!(publish(meter, Class::Ctrl, 10, end), Err(Over::Refused(14_200)), "no second wait in vain");
    assert_eq!(publish(meter, Class::Ctrl, 10, 15 * SECOND), Err(Over::Wait(Time(19_200_000))), "this one is not");
    assert_eq!(publish(meter, Class::Ctrl, 10, 19_200_000), Ok(()));
}

#[test]
fn waiting_sessions_have_their_turns_while_others_flood() {
    let (_, mut all) = meters(messages(1_000), 3);
    let (mut sent, mut due) = (0, 0);
    for at in (0..10 * SECOND).step_by(100) {
        (0..5).for_each(|_| {
            let _ = publish(&mut all[0], Class::Live, 10, at);
        });
        if at >= due {
            match publish(&mut all[1], Class::Ctrl, 10, at) {
                Ok(()) => sent += 1,
                Err(Over::Wait(until)) => due = until.0,
                Err(refused) => panic!("{refused:?}"),
            }
        }
    }
    assert!(sent >= 50, "{sent} of about ten a second");
}

#[test]
fn a_trickle_passes_a_flood_of_classes_that_wait() {
    let (_, mut all) = meters(messages(1_000), 2);
    let (mut due, mut bulk) = (0, 0);
    for at in (0..10 * SECOND).step_by(100) {
        while at >= due {
            match publish(&mut all[0], Class::Bulk, 10, at) {
                Ok(()) => bulk += 1,
                Err(Over::Wait(until)) => due = until.0,
                Err(refused) => panic!("{refused:?}"),
            }
        }
        if at % 10_000 == 0 {
            assert_eq!(publish(&mut all[1], Class::Live, 10, at), Ok(()), "at {at} µs");
        }
    }
    assert!((9_700..=10_100).contains(&bulk), "{bulk}: the flood has the rest");
}

#[test]
fn stock_and_what_was_paid_in_advance_come_back() {
    let (ingress, mut all) = meters(messages(1_000), 3);
    assert_eq!(all[0].pay(Class::Live, 10, Time(0)), Ok(()));
    assert_eq!(all[0].stock[0], Some(Lease { messages: Some(5), bytes: None }), "5 ms of the rate");
    assert_eq!(granted(&mut all[1], Class::Live, 2_000, 0), 994);
    drop(all.remove(0));
    assert_eq!(granted(&mut all[0], Class::Live, 2_000, 0), 5, "what a session that ends had in stock");
    assert!(matches!(publish(&mut all[1], Class::Ctrl, 10, 0), Err(Over::Wait(_))));
    assert_eq!(publish(&mut all[0], Class::Live, 10, 1_000), Err(Over::Refused(1)), "the next is for whoever waits");
    drop(all.remove(1));
    assert_eq!(granted(&mut all[0], Class::Live, 10, 2_000), 2, "what it had paid in advance");
    assert_eq!(ingress.limits(), messages(1_000));
}

#[test]
fn stock_for_one_class_is_there_for_another() {
    let (_, mut all) = meters(messages(1_000), 1);
    let meter = &mut all[0];
    assert_eq!(granted(meter, Class::Live, 990, 0), 990);
    for (class, n) in [(Class::Live, 1), (Class::Tele, 9)] {
        for _ in 0..n {
            assert_eq!(meter.pay(class, 10, Time(0)), Ok(()));
            meter.done();
        }
    }
    assert!(meter.pay(Class::Tele, 10, Time(0)).is_err());
}

#[test]
fn limits_change_on_live_sessions_without_loss_or_gain() {
    let (ingress, mut all) = meters(messages(100), 2);
    assert_eq!(granted(&mut all[0], Class::Live, 1_000, 0), 100);
    ingress.set(messages(1_000));
    assert_eq!(granted(&mut all[0], Class::Live, 1_000, 0), 0, "a new limit is no gift");
    assert_eq!(granted(&mut all[0], Class::Live, 1_000, 10_000), 10, "and holds from now on");
    assert!(matches!(publish(&mut all[1], Class::Ctrl, 10, 10_000), Err(Over::Wait(_))));
    ingress.set(messages(10_000));
    assert_eq!(publish(&mut all[1], Class::Ctrl, 10, 10_000), Err(Over::Wait(Time(110_100))), "asked again");
    ingress.set(RateLimits::NONE);
    assert_eq!(publish(&mut all[1], Class::Ctrl, 10, 10_000), Ok(()));
    assert_eq!(granted(&mut all[0], Class::Live, 5_000, 10_000), 5_000);
    ingress.set(messages(10).within(&RateBounds { tenant_messages_per_s: Some(5), ..RateBounds::default() }));
    assert_eq!(granted(&mut all[0], Class::Live, 100, 10_000), 5);
    // What was saved up stays, as far as it fits.
    let (ingress, mut all) = meters(messages(100), 1);
    assert_eq!(granted(&mut all[0], Class::Live, 40, 0), 40);
    ingress.set(messages(50));
    assert_eq!(granted(&mut all[0], Class::Live, 100, 0), 50);
    let own = |rate| RateLimits { session_messages_per_s: Some(rate), ..RateLimits::NONE };
    let (ingress, mut all) = meters(own(100), 1);
    assert_eq!(granted(&mut all[0], Class::Live, 40, 0), 40);
    ingress.set(own(1_000));
    assert_eq!(granted(&mut all[0], Class::Live, 100, 0), 60);
}

/// One step of a session: which, in which class, of which size, and how much later.
fn steps() -> impl Strategy<Value = Vec<(usize, u8, u64, u64)>> {
    prop::collection::vec((0usize..4, 0u8..4, 0u64..400, 0u64..3_000), 50..600)
}

proptest! {
    /// Whatever the sessions do, no stretch of time sees more than the rate gives in it and one burst, of messages and of
    /// bytes; and who waits is granted at the time told.
    #[test]
    fn no_window_has_more_than_rate_and_burst(
        steps in steps(),
        rate in 20u64..5_000,
        bytes_rate in 2_000u64..500_000,
        live_percent in 1u8..=100,
    ) {
        let limits = RateLimits {
            messages_per_s: Some(rate),
            bytes_per_s: Some(bytes_rate),
            burst_ms: 250,
            live_percent,
            ..RateLimits::NONE
        };
        let (_, mut all) = meters(limits, 4);
        let mut waiting: [Option<(Class, u64, u64)>; 4] = [None; 4];
        let mut grants: Vec<(u64, Class, u64)> = Vec::new();
        let mut now = 0;
        for (session, class, bytes, later) in steps {
            let next = now + later;
            // Whoever waits comes back exactly when told.
            while let Some((first, (class, bytes, until))) = waiting
                .iter()
                .enumerate()
                .filter_map(|(n, w)| Some((n, (*w)?)))
                .filter(|(_, (_, _, until))| *until <= next)
                .min_by_key(|(_, (_, _, until))| *until)
            {
                waiting[first] = None;
                match publish(&mut all[first], class, bytes, until) {
                    Ok(()) => grants.push((until, class, bytes)),
                    Err(Over::Wait(again)) => prop_assert!(false, "told {until}, then {again:?}"),
                    Err(Over::Refused(_)) => {}
                }
            }
            now = next;
            if waiting[session].is_some() {
                continue;
            }
            let class = Class::ALL[usize::from(class)];
            match publish(&mut all[session], class, bytes, now) {
                Ok(()) => grants.push((now, class, bytes)),
                Err(Over::Wait(until)) => waiting[session] = Some((class, bytes, until.0)),
                Err(Over::Refused(ms)) => prop_assert!(ms >= 1),
            }
        }
        let window = |of: &dyn Fn(Class) -> bool, rate: u64, cost: &dyn Fn(u64) -> u64| {
            let burst = (rate * 250 / 1000).max(1);
            let chosen: Vec<_> = grants.iter().filter(|(_, class, _)| of(*class)).collect();
            (0..chosen.len()).all(|from| {
                let mut sum = 0;
                let mut largest = 0;
                chosen[from..].iter().all(|(at, _, bytes)| {
                    sum += cost(*bytes);
                    largest = largest.max(cost(*bytes));
                    // Messages above the burst are granted from a full bucket.
                    let most = rate * (at - chosen[from].0) / SECOND + burst.max(largest) + 1;
                    sum <= most + if largest > burst { largest } else { 0 }
                })
            })
        };
        prop_assert!(window(&|_| true, rate, &|_| 1), "messages");
        prop_assert!(window(&|_| true, bytes_rate, &|bytes| bytes), "bytes");
        let live = (rate * u64::from(live_percent) / 100).max(1);
        prop_assert!(window(&|class| class == Class::Live, live, &|_| 1), "messages of live");
    }

    /// Nobody starves: beside floods of every class and size, a session that waits is granted every time, in time.
    #[test]
    fn whoever_waits_is_granted(sizes in prop::collection::vec(1u64..1_000, 4..20), rate in 100u64..10_000) {
        let limits = RateLimits { bytes_per_s: Some(rate * 10), ..messages(rate) };
        let (_, mut all) = meters(limits, 4);
        let mut due = [0u64; 4];
        let mut now = 0;
        let mut sizes = sizes.into_iter();
        let mut size = sizes.next();
        while let Some(bytes) = size.filter(|_| now < 60 * SECOND) {
            for (session, class, flood) in [(0, Class::Live, 1), (1, Class::Bulk, 700), (2, Class::Ctrl, 3)] {
                if now >= due[session] && let Err(Over::Wait(until)) = publish(&mut all[session], class, flood, now) {
                    due[session] = until.0;
                }
            }
            if now >= due[3] {
                match publish(&mut all[3], Class::Ctrl, bytes, now) {
                    Ok(()) => size = sizes.next(),
                    Err(Over::Wait(until)) => due[3] = until.0,
                    Err(Over::Refused(_)) => prop_assert!(false, "refused at {now}"),
                }
            }
            now += 2_000;
        }
        prop_assert!(size.is_none(), "not all in a minute");
    }
}
