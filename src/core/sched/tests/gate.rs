//! Tenants with ways of their own: whoever is held keeps what it has, takes no turns and keeps nobody waiting.

use super::*;

fn gated() -> Hdwrr {
    let mut hdwrr = Hdwrr::default();
    hdwrr.gate(true);
    hdwrr
}

/// The tenants of all slices that come now.
fn served(hdwrr: &mut Hdwrr) -> Vec<TenantKey> {
    let mut tenants: Vec<_> = std::iter::from_fn(|| {
        hdwrr.check();
        slice_of(hdwrr).map(|slice| slice.tenant)
    })
    .collect();
    tenants.dedup();
    tenants
}

#[test]
fn what_is_held_waits_and_holds_up_nobody() {
    let mut hdwrr = gated();
    push(&mut hdwrr, A, Class::Live, 40_000);
    assert!(hdwrr.is_empty() && hdwrr.backlog_bytes() == 40_000, "queued, and nothing to take");
    assert_eq!(slice_of(&mut hdwrr), None);
    push(&mut hdwrr, B, Class::Live, 40_000);
    hdwrr.release(B);
    assert!(!hdwrr.is_empty());
    assert_eq!(served(&mut hdwrr), [B]);
    assert_eq!(hdwrr.tenant_backlog(A), 40_000);
    hdwrr.release(A);
    assert_eq!(served(&mut hdwrr), [A]);
    assert_eq!((hdwrr.backlog_bytes(), hdwrr.entries()), (0, 0));
}

#[test]
fn a_way_that_is_busy_is_given_back_its_turn() {
    let mut hdwrr = gated();
    for tenant in [A, B] {
        hdwrr.release(tenant);
        push(&mut hdwrr, tenant, Class::Bulk, 60_000);
    }
    assert_eq!(slice_of(&mut hdwrr).unwrap().tenant, A);
    hdwrr.hold(A);
    assert_eq!(served(&mut hdwrr), [B]);
    assert!(hdwrr.is_empty(), "the rest of A's frame is held");
    hdwrr.hold(A);
    hdwrr.release(A);
    hdwrr.release(A);
    assert_eq!(served(&mut hdwrr), [A]);
    assert_eq!(hdwrr.backlog_bytes(), 0);
}

#[test]
fn a_purge_of_what_is_held_leaves_nothing() {
    let mut hdwrr = gated();
    push(&mut hdwrr, A, Class::Live, 1000);
    push(&mut hdwrr, B, Class::Live, 1000);
    hdwrr.release(B);
    assert_eq!(served(&mut hdwrr), [B]);
    let mut drops = Drops::new();
    hdwrr.purge(A, &mut drops);
    hdwrr.check();
    assert_eq!((drops.bytes(), hdwrr.backlog_bytes(), hdwrr.entries()), (1000, 0, 0));
    push(&mut hdwrr, A, Class::Live, 500);
    assert_eq!(served(&mut hdwrr), [], "it is held all the same");
    hdwrr.gate(false);
    assert_eq!(served(&mut hdwrr), [A], "without a gate nobody is");
}

#[test]
fn any_order_of_holds_and_releases_brings_every_byte_out_once() {
    let mut random = Random(7);
    for _ in 0..200 {
        let mut hdwrr = gated();
        let (mut pushed, mut sent) = (0usize, 0usize);
        for _ in 0..200 {
            let tenant = [A, B, C][usize::try_from(random.next() % 3).unwrap()];
            match random.next() % 5 {
                0 => hdwrr.hold(tenant),
                1 => hdwrr.release(tenant),
                2 => {
                    push(&mut hdwrr, tenant, Class::Bulk, 3000);
                    pushed += 3000;
                }
                _ => sent += slice_of(&mut hdwrr).map_or(0, |slice| slice.bytes),
            }
            hdwrr.check();
            assert_eq!(pushed, sent + hdwrr.backlog_bytes());
        }
        hdwrr.gate(false);
        while let Some(slice) = slice_of(&mut hdwrr) {
            sent += slice.bytes;
        }
        assert_eq!((pushed, hdwrr.entries()), (sent, 0));
    }
}
