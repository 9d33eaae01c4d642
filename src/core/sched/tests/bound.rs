//! The bound over all lanes, shaping, purging.

use super::*;
use crate::limits::QUEUED_FRAME_OVERHEAD_BYTES;
use crate::rate::TokenBucket;

const FRAME: usize = 1000 - QUEUED_FRAME_OVERHEAD_BYTES;

/// Room for a hundred frames of [`FRAME`] bytes over all lanes.
fn hundred() -> Hdwrr {
    Hdwrr::new(HdwrrConfig { held_bytes_max: 100_000, ..HdwrrConfig::default() })
}

fn fill(hdwrr: &mut Hdwrr, tenant: TenantKey, class: Class, frames: usize) {
    for _ in 0..frames {
        push(hdwrr, tenant, class, FRAME);
    }
}

fn try_push(hdwrr: &mut Hdwrr, tenant: TenantKey, class: Class) -> (Pushed, Vec<DropRecord>) {
    let mut drops = Drops::new();
    let pushed = hdwrr.push(tenant, class, frame(FRAME), ZERO, &mut drops);
    assert!(hdwrr.held_bytes() <= 100_000);
    (pushed, drops.drain().collect())
}

fn lost(tenant: TenantKey, class: Class) -> DropRecord {
    DropRecord { tenant: Some(tenant), class, reason: DropReason::LaneFull, frames: 1, bytes: FRAME as u64 }
}

#[test]
fn when_all_is_full_the_longest_loses_to_whoever_is_below_its_part() {
    let mut hdwrr = hundred();
    fill(&mut hdwrr, A, Class::Bulk, 60);
    fill(&mut hdwrr, A, Class::Tele, 20);
    fill(&mut hdwrr, B, Class::Bulk, 20);
    assert_eq!(try_push(&mut hdwrr, A, Class::Bulk), (Pushed::DroppedNewest, vec![]));
    assert_eq!(try_push(&mut hdwrr, B, Class::Bulk), (Pushed::Queued, vec![lost(A, Class::Tele)]));
    for _ in 0..19 {
        assert_eq!(try_push(&mut hdwrr, C, Class::Ctrl), (Pushed::Queued, vec![lost(A, Class::Tele)]));
    }
    // The lossy lane is empty now; then the reliable one gives.
    assert_eq!(try_push(&mut hdwrr, C, Class::Ctrl), (Pushed::Queued, vec![lost(A, Class::Bulk)]));
}

#[test]
fn above_its_part_live_makes_room_in_its_own_lane() {
    let mut hdwrr = hundred();
    fill(&mut hdwrr, A, Class::Live, 50);
    fill(&mut hdwrr, B, Class::Live, 50);
    let dropped = Pushed::DroppedOldest { frames: 1, bytes: FRAME as u64 };
    assert_eq!(try_push(&mut hdwrr, A, Class::Live), (dropped, vec![]));
    assert_eq!(try_push(&mut hdwrr, A, Class::Tele), (Pushed::DroppedNewest, vec![]));
    assert_eq!(hdwrr.tenant_backlog(A), hdwrr.tenant_backlog(B));
}

#[test]
fn whoever_makes_room_for_itself_is_told_what_it_has_lost() {
    let crowded = |class| {
        let mut hdwrr = hundred();
        fill(&mut hdwrr, A, class, 55);
        // Below its part, and yet the one that is found to be among the longest.
        fill(&mut hdwrr, B, class, 45);
        hdwrr
    };
    let dropped = Pushed::DroppedOldest { frames: 1, bytes: FRAME as u64 };
    for class in [Class::Live, Class::Tele] {
        let mut hdwrr = crowded(class);
        for _ in 0..3 {
            assert_eq!(try_push(&mut hdwrr, B, class), (dropped, vec![]), "{class}");
        }
    }
    assert_eq!(try_push(&mut crowded(Class::Live), B, Class::Tele), (Pushed::Queued, vec![lost(B, Class::Live)]));
    // What was queued before is sent again when it is missed; this one was taken.
    assert_eq!(try_push(&mut crowded(Class::Bulk), B, Class::Bulk), (Pushed::Queued, vec![lost(B, Class::Bulk)]));
}

#[test]
fn parts_follow_the_weights() {
    let mut hdwrr = hundred();
    hdwrr.set_weight(A, 4);
    fill(&mut hdwrr, A, Class::Tele, 60);
    fill(&mut hdwrr, B, Class::Tele, 40);
    for _ in 0..20 {
        assert_eq!(try_push(&mut hdwrr, B, Class::Tele).0, Pushed::DroppedNewest);
        assert_eq!(try_push(&mut hdwrr, A, Class::Tele), (Pushed::Queued, vec![lost(B, Class::Tele)]));
    }
    assert_eq!(try_push(&mut hdwrr, A, Class::Tele).0, Pushed::DroppedNewest);
}

#[test]
fn a_frame_larger_than_the_part_of_a_stranger_leaves_no_entry() {
    let mut hdwrr = hundred();
    fill(&mut hdwrr, A, Class::Bulk, 100);
    let pushed = hdwrr.push(B, Class::Live, frame(60_000), ZERO, &mut Drops::new());
    assert_eq!((pushed, hdwrr.entries(), hdwrr.tenant_backlog(A)), (Pushed::DroppedNewest, 1, 100 * FRAME));
}

#[test]
fn many_tenants_under_pressure_converge_to_equal_parts() {
    let mut hdwrr = hundred();
    fill(&mut hdwrr, A, Class::Live, 100);
    for round in 0..400 {
        let tenant = TenantKey(1 + round % 20);
        let _ = try_push(&mut hdwrr, tenant, Class::Live);
    }
    for key in 1..=20 {
        let frames = hdwrr.tenant_backlog(TenantKey(key)) / FRAME;
        assert!((3..=10).contains(&frames), "tenant {key} holds {frames}");
    }
}

#[test]
fn a_shaped_edge_keeps_its_rate_and_says_when() {
    let mut hdwrr = Hdwrr::default();
    hdwrr.set_shaper(Some(TokenBucket::new(1_000_000, 2_000, ZERO)));
    assert_eq!(hdwrr.ready_at(ZERO), None);
    for _ in 0..40 {
        push(&mut hdwrr, A, Class::Bulk, 50_000);
    }
    let (mut now, mut sent) = (ZERO, 0);
    while now < Time::from_millis(1000) {
        while let Some(slice) = hdwrr.next_slice(now, &mut Vec::new(), &mut Drops::new()) {
            sent += slice.bytes;
        }
        let ready = hdwrr.ready_at(now).unwrap();
        assert!(ready > now);
        now = ready;
    }
    assert!((1_000_000..1_020_000).contains(&sent), "{sent}");
    hdwrr.set_shaper(None);
    assert_eq!(hdwrr.ready_at(now), None);
    assert!(hdwrr.next_slice(now, &mut Vec::new(), &mut Drops::new()).is_some());
}

#[test]
fn purging_reports_all_and_names_the_lanes_to_reset() {
    let mut hdwrr = Hdwrr::default();
    fill(&mut hdwrr, A, Class::Bulk, 20);
    fill(&mut hdwrr, A, Class::Live, 1);
    fill(&mut hdwrr, B, Class::Tele, 1);
    let mut drops = Drops::new();
    let mut sent = 0;
    loop {
        let slice = slice_of(&mut hdwrr).unwrap();
        sent += if slice.tenant == A { slice.bytes } else { 0 };
        if (slice.tenant, slice.class, slice.ends_frame) == (A, Class::Bulk, false) {
            break;
        }
    }
    let purged = hdwrr.purge(A, &mut drops);
    assert_eq!(purged.mid_frame, [false, false, false, true]);
    assert_eq!(usize::try_from(drops.bytes()).unwrap() + sent, 21 * FRAME);
    assert!(drops.iter().all(|record| (record.tenant, record.reason) == (Some(A), DropReason::Gone)));
    assert_eq!(hdwrr.tenant_backlog(A), 0);
    while slice_of(&mut hdwrr).is_some() {}
    assert_eq!((hdwrr.entries(), hdwrr.purge(C, &mut drops)), (0, Purged::default()));
}

#[test]
fn limits_may_change_while_frames_wait_and_those_stay() {
    let mut hdwrr = hundred();
    fill(&mut hdwrr, A, Class::Bulk, 20);
    hdwrr.set_limits(10_000, 100_000);
    assert_eq!(hdwrr.held_bytes(), 20_000);
    assert_eq!(try_push(&mut hdwrr, A, Class::Bulk), (Pushed::DroppedNewest, vec![]));
    assert_eq!(try_push(&mut hdwrr, B, Class::Bulk), (Pushed::Queued, vec![]));
    hdwrr.set_limits(100_000, 21_000);
    assert_eq!(try_push(&mut hdwrr, C, Class::Ctrl), (Pushed::Queued, vec![lost(A, Class::Bulk)]));
    hdwrr.set_limits(100_000, 100_000);
    assert_eq!(try_push(&mut hdwrr, A, Class::Bulk), (Pushed::Queued, vec![]));
}

#[test]
fn an_edge_that_is_half_full_keeps_no_more_memory_than_its_frames() {
    // A lane of its own that is nearly empty is no reason to keep what came together, where the edge has little left.
    let chunk = Bytes::from(vec![0; 64 * 1024]);
    let part = || QueuedFrame::new(chunk.slice(..1_000));
    for class in Class::ALL {
        let mut hdwrr = Hdwrr::new(HdwrrConfig { held_bytes_max: 20_000, ..HdwrrConfig::default() });
        let stands_alone = |hdwrr: &mut Hdwrr, tenant: TenantKey| {
            let mut drops = Drops::new();
            assert_eq!(hdwrr.push(tenant, class, part(), ZERO, &mut drops), Pushed::Queued);
            let mut out = Vec::new();
            while hdwrr.next_slice(ZERO, &mut out, &mut drops).unwrap().tenant != tenant {
                out.clear();
            }
            out.last().unwrap().is_unique()
        };
        assert!(!stands_alone(&mut hdwrr, A), "{class}: with room, frames share what they came in");
        push(&mut hdwrr, B, Class::Bulk, 12_000);
        assert!(stands_alone(&mut hdwrr, A), "{class}: without, they do not");
    }
}
