//! Terms of single tenants: caps that hold, cost nobody else anything and lose nothing, and class weights of their own.

use super::*;
use crate::limits::EDGE_CAP_BURST_MS;
use crate::rate::TokenBucket;

const SECOND: Time = Time(1_000_000);

const fn capped(bytes_per_s: u64) -> EdgeTerms {
    EdgeTerms { bytes_per_s: Some(bytes_per_s), ..EdgeTerms::DEFAULT }
}

fn class_capped(class: Class, bytes_per_s: u64) -> EdgeTerms {
    let mut terms = EdgeTerms::DEFAULT;
    terms.class_bytes_per_s[class.index()] = Some(bytes_per_s);
    terms
}

/// What was sent of each class of each tenant until then, as whoever drains goes about it. `refill` is called after each slice.
fn drain(hdwrr: &mut Hdwrr, from: Time, until: Time, mut refill: impl FnMut(&mut Hdwrr, Slice, Time)) -> Sent {
    let (mut now, mut sent) = (from, Sent::default());
    while now < until {
        match hdwrr.next_slice(now, &mut Vec::new(), &mut Drops::new()) {
            Some(slice) => {
                *sent.entry((slice.tenant, slice.class)).or_default() += slice.bytes as u64;
                refill(hdwrr, slice, now);
            }
            None => match hdwrr.ready_at(now).or_else(|| hdwrr.wakes_at()) {
                Some(later) => {
                    assert!(later > now);
                    now = later;
                }
                None => break,
            },
        }
        hdwrr.check();
    }
    sent
}

type Sent = std::collections::BTreeMap<(TenantKey, Class), u64>;

/// Keeps the lane backlogged.
fn again(hdwrr: &mut Hdwrr, slice: Slice, now: Time) {
    while hdwrr.lane_backlog(slice.tenant, slice.class) < 65_536 {
        assert_eq!(hdwrr.push(slice.tenant, slice.class, frame(3_000), now, &mut Drops::new()), Pushed::Queued);
    }
}

#[test]
fn a_capped_tenant_gets_its_cap_and_the_others_get_what_it_leaves() {
    for rate in [10_000, 100_000, 400_000] {
        let mut hdwrr = Hdwrr::default();
        hdwrr.set_shaper(Some(TokenBucket::new(1_000_000, 4_000, ZERO)));
        hdwrr.set_rate(1_000_000);
        hdwrr.set_terms(A, capped(rate), ZERO);
        for tenant in [A, B, C] {
            push(&mut hdwrr, tenant, Class::Bulk, 60_000);
        }
        let sent = drain(&mut hdwrr, ZERO, Time(10 * SECOND.0), again);
        let of = |tenant| sent[&(tenant, Class::Bulk)];
        let due = (10 * rate).min(10_000_000 / 3);
        let burst = rate * EDGE_CAP_BURST_MS / 1000 + 2_400 + 1_200;
        assert!((due - due / 50..=due + burst).contains(&of(A)), "{} of {due}", of(A));
        assert!(of(B).abs_diff(of(C)) < of(B) / 50, "{sent:?}");
        assert!(sent.values().sum::<u64>() > 9_900_000, "the edge stays busy: {sent:?}");
    }
}

#[test]
fn a_capped_class_leaves_its_tenants_part_to_the_other_classes() {
    let mut hdwrr = Hdwrr::default();
    hdwrr.set_shaper(Some(TokenBucket::new(1_000_000, 4_000, ZERO)));
    hdwrr.set_rate(1_000_000);
    hdwrr.set_terms(A, class_capped(Class::Live, 50_000), ZERO);
    for (tenant, class) in [(A, Class::Live), (A, Class::Bulk), (B, Class::Live)] {
        push(&mut hdwrr, tenant, class, 60_000);
    }
    let sent = drain(&mut hdwrr, ZERO, Time(10 * SECOND.0), again);
    let (live, bulk, other) = (sent[&(A, Class::Live)], sent[&(A, Class::Bulk)], sent[&(B, Class::Live)]);
    assert!((490_000..=520_000).contains(&live), "{sent:?}");
    assert!((live + bulk).abs_diff(other) < other / 50, "the tenant's share is what it was: {sent:?}");
}

#[test]
fn who_rests_keeps_nobody_waiting_and_says_when_it_goes_on() {
    let mut hdwrr = Hdwrr::default();
    hdwrr.set_terms(A, capped(10_000), ZERO);
    push(&mut hdwrr, A, Class::Bulk, 30_000);
    while slice_of(&mut hdwrr).is_some() {}
    assert!(hdwrr.is_empty() && hdwrr.backlog_bytes() > 0, "queued, and nothing to take");
    assert_eq!(hdwrr.ready_at(ZERO), None, "the edge itself may send");
    let until = hdwrr.wakes_at().unwrap();
    assert!(until > Time::from_millis(500) && until < Time(3 * SECOND.0), "{until:?}");
    push(&mut hdwrr, B, Class::Tele, 100);
    assert!(!hdwrr.is_empty());
    assert_eq!(slice_of(&mut hdwrr).unwrap().tenant, B);
    assert_eq!(slice_of(&mut hdwrr), None);
    hdwrr.wake(Time(until.0 - 1));
    assert!(hdwrr.is_empty());
    hdwrr.wake(until);
    assert!(!hdwrr.is_empty() && hdwrr.wakes_at().is_none());
    assert_eq!(hdwrr.next_slice(until, &mut Vec::new(), &mut Drops::new()).unwrap().tenant, A);
    hdwrr.check();
}

#[test]
fn what_comes_for_a_tenant_in_debt_is_announced_so_that_somebody_minds_the_time() {
    let mut hdwrr = Hdwrr::default();
    hdwrr.set_terms(A, class_capped(Class::Bulk, 10_000), ZERO);
    push(&mut hdwrr, A, Class::Bulk, 16_000);
    while slice_of(&mut hdwrr).is_some() {}
    assert_eq!((hdwrr.backlog_bytes(), hdwrr.wakes_at()), (0, None), "its queue is empty, and it owes something");
    push(&mut hdwrr, A, Class::Bulk, 100);
    assert!(!hdwrr.is_empty(), "whoever drains is woken");
    assert_eq!(slice_of(&mut hdwrr), None);
    assert!(hdwrr.is_empty() && hdwrr.wakes_at().is_some(), "and knows when to come back");
    // Another class of it goes on at once.
    push(&mut hdwrr, A, Class::Live, 100);
    assert!(!hdwrr.is_empty());
    assert_eq!(slice_of(&mut hdwrr).unwrap().class, Class::Live);
    assert!(hdwrr.rests(A, Class::Bulk) && !hdwrr.rests(A, Class::Live) && hdwrr.resting() == 0);
    assert_eq!(slice_of(&mut hdwrr), None);
    assert_eq!(hdwrr.resting(), 1);
    let sent = drain(&mut hdwrr, ZERO, Time(9 * SECOND.0), |_, _, _| {});
    assert_eq!(sent.into_iter().collect::<Vec<_>>(), [((A, Class::Bulk), 100)]);
    assert_eq!((hdwrr.entries(), hdwrr.wakes_at()), (0, None));
}

#[test]
fn a_class_that_may_go_earlier_ends_the_rest_of_another() {
    let mut hdwrr = Hdwrr::default();
    let mut terms = class_capped(Class::Bulk, 8_192);
    terms.class_bytes_per_s[Class::Tele.index()] = Some(1_000_000);
    hdwrr.set_terms(A, terms, ZERO);
    for (class, len) in [(Class::Bulk, 60_000), (Class::Tele, 50_500)] {
        push(&mut hdwrr, A, class, len);
    }
    while slice_of(&mut hdwrr).is_some() {}
    assert_eq!(hdwrr.lane_backlog(A, Class::Tele), 0, "it is a burst and a little more");
    let late = hdwrr.wakes_at().unwrap();
    push(&mut hdwrr, A, Class::Tele, 100);
    assert!(!hdwrr.is_empty());
    assert_eq!(slice_of(&mut hdwrr), None);
    assert!(hdwrr.wakes_at().unwrap() < late, "it waits for the debt of tele, not for that of bulk");
    hdwrr.check();
}

#[test]
fn lanes_of_who_rests_are_bounded_by_the_rules_of_their_classes() {
    let config = HdwrrConfig { classes: ClassConfig::new(20_000), ..HdwrrConfig::default() };
    let mut hdwrr = Hdwrr::new(config);
    hdwrr.set_terms(A, capped(8_192), ZERO);
    push(&mut hdwrr, A, Class::Ctrl, 20_000);
    while slice_of(&mut hdwrr).is_some() {}
    let mut last = |class| (0..30).map(|_| hdwrr.push(A, class, frame(1_000), ZERO, &mut Drops::new())).last().unwrap();
    assert!(matches!(last(Class::Live), Pushed::DroppedOldest { .. }));
    assert_eq!(last(Class::Tele), Pushed::DroppedNewest);
    assert_eq!(last(Class::Bulk), Pushed::DroppedNewest);
    assert!(hdwrr.held_bytes() < 85_000);
}

#[test]
fn terms_change_under_what_is_queued_and_a_change_earns_nothing() {
    let mut hdwrr = Hdwrr::default();
    hdwrr.set_terms(A, capped(10_000), ZERO);
    push(&mut hdwrr, A, Class::Bulk, 60_000);
    while slice_of(&mut hdwrr).is_some() {}
    let (left, until) = (hdwrr.backlog_bytes(), hdwrr.wakes_at().unwrap());
    // The same again, or another weight: nothing changes.
    hdwrr.set_terms(A, capped(10_000), ZERO);
    assert_eq!((hdwrr.wakes_at(), hdwrr.is_empty()), (Some(until), true));
    hdwrr.set_terms(A, EdgeTerms { class_weights: [1; 4], ..capped(10_000) }, ZERO);
    assert_eq!((slice_of(&mut hdwrr), hdwrr.wakes_at()), (None, Some(until)));
    // Ten times as much: what it owes is earned in a tenth of the time.
    hdwrr.set_terms(A, capped(100_000), ZERO);
    assert_eq!(slice_of(&mut hdwrr), None);
    let earlier = hdwrr.wakes_at().unwrap();
    assert!(earlier.0.abs_diff(until.0 / 10) < 1_000, "{earlier:?} and {until:?}");
    // None: it goes on at once, with everything that was queued.
    hdwrr.set_terms(A, EdgeTerms::DEFAULT, ZERO);
    assert!(!hdwrr.is_empty() && hdwrr.wakes_at().is_none());
    let sent = drain(&mut hdwrr, ZERO, SECOND, |_, _, _| {});
    assert_eq!(sent.values().sum::<u64>(), left as u64);
    assert_eq!(hdwrr.terms(A), EdgeTerms::DEFAULT);
}

#[test]
fn what_is_purged_while_it_rests_leaves_nothing_behind() {
    let mut hdwrr = Hdwrr::default();
    hdwrr.gate(true);
    hdwrr.release(A);
    hdwrr.set_terms(A, capped(10_000), ZERO);
    push(&mut hdwrr, A, Class::Bulk, 60_000);
    while slice_of(&mut hdwrr).is_some() {}
    hdwrr.hold(A);
    let until = hdwrr.wakes_at().unwrap();
    hdwrr.wake(until);
    assert!(hdwrr.is_empty(), "it is held all the same");
    hdwrr.check();
    hdwrr.release(A);
    assert!(!hdwrr.is_empty());
    assert!(hdwrr.next_slice(until, &mut Vec::new(), &mut Drops::new()).is_some());
    while hdwrr.next_slice(until, &mut Vec::new(), &mut Drops::new()).is_some() {}
    assert!(hdwrr.wakes_at().is_some());
    hdwrr.purge(A, &mut Drops::new());
    hdwrr.check();
    assert_eq!((hdwrr.wakes_at(), hdwrr.entries(), hdwrr.backlog_bytes()), (None, 0, 0));
}

#[test]
fn class_weights_are_the_tenants_own() {
    let mut hdwrr = Hdwrr::default();
    hdwrr.set_terms(A, EdgeTerms { class_weights: [1, 2, 4, 8], ..EdgeTerms::DEFAULT }, ZERO);
    let fill = |hdwrr: &mut Hdwrr| {
        for (tenant, class) in [A, B].into_iter().flat_map(|t| Class::ALL.map(|c| (t, c))) {
            push(hdwrr, tenant, class, 60_000);
        }
    };
    fill(&mut hdwrr);
    let shares = |hdwrr: &mut Hdwrr| {
        let mut sent = Sent::default();
        while sent.values().sum::<u64>() < 20_000_000 {
            let slice = slice_of(hdwrr).unwrap();
            *sent.entry((slice.tenant, slice.class)).or_default() += slice.bytes as u64;
            again(hdwrr, slice, ZERO);
        }
        [A, B].map(|tenant| {
            let of = Class::ALL.map(|class| sent[&(tenant, class)]);
            let unit = of.iter().sum::<u64>() / if tenant == A { 150 } else { 110 };
            of.map(|bytes| (bytes + unit / 2) / unit)
        })
    };
    assert_eq!(shares(&mut hdwrr), [[10, 20, 40, 80], [40, 40, 20, 10]]);
    // As everybody's again, and changed under what is queued.
    hdwrr.set_terms(A, EdgeTerms { class_weights: [8, 4, 2, 1], ..EdgeTerms::DEFAULT }, ZERO);
    assert_eq!(shares(&mut hdwrr)[0], [80, 40, 20, 10]);
    // A tenant that gets the queues of another one gets nothing else of it.
    for tenant in [A, B] {
        hdwrr.purge(tenant, &mut Drops::new());
    }
    while slice_of(&mut hdwrr).is_some() {}
    for class in Class::ALL {
        push(&mut hdwrr, C, class, 60_000);
    }
    let first: Vec<_> = (0..4).map(|_| slice_of(&mut hdwrr).unwrap().bytes).collect();
    assert_eq!(first, [4_800, 4_800, 2_400, 1_200]);
}
