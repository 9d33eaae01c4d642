//! What lanes of an edge hold is charged to their tenants, and a tenant that holds too much loses by the rules of its classes.

use std::sync::Arc;

use super::*;
use crate::limits::{MEMORY_STEP_BYTES, QUEUED_FRAME_OVERHEAD_BYTES};
use crate::memory::{Account, MemoryBounds, Pool};

const STEP: usize = MEMORY_STEP_BYTES;
const FRAME: usize = 1024 - QUEUED_FRAME_OVERHEAD_BYTES;

struct World {
    hdwrr: Hdwrr,
    pool: Arc<Pool>,
    a: Arc<Account>,
    b: Arc<Account>,
}

fn world(node_steps: usize, tenant_steps: usize) -> World {
    let bounds = MemoryBounds { node_bytes: node_steps * STEP, tenant_bytes: tenant_steps * STEP };
    let pool = Arc::new(Pool::new(bounds));
    let (a, b) = (pool.open(A), pool.open(B));
    let mut hdwrr = Hdwrr::default();
    hdwrr.charge_to(Arc::clone(&pool));
    World { hdwrr, pool, a, b }
}

impl World {
    fn push(&mut self, tenant: TenantKey, class: Class) -> (Pushed, DropReason) {
        let pushed = self.hdwrr.push(tenant, class, frame(FRAME), ZERO, &mut Drops::new());
        self.hdwrr.check();
        (pushed, self.hdwrr.lost_by())
    }

    /// Pushes until something is lost; how many frames were queued.
    fn fill(&mut self, tenant: TenantKey, class: Class) -> usize {
        (0..10_000).take_while(|_| self.push(tenant, class).0 == Pushed::Queued).count()
    }
}

#[test]
fn what_is_queued_is_charged_in_steps_and_given_back() {
    let mut world = world(2_000, 1_000);
    for frames in 1..=100 {
        assert_eq!(world.push(A, Class::Bulk).0, Pushed::Queued);
        let held = frames * 1024;
        assert_eq!((world.a.used(), world.pool.used()), (held - held % STEP, held - held % STEP));
    }
    assert_eq!(world.fill(B, Class::Live), 8 * 1024, "its lane is what bounds it");
    assert_eq!(world.push(B, Class::Live).1, DropReason::LaneFull);
    while slice_of(&mut world.hdwrr).is_some() {}
    assert_eq!((world.a.used(), world.b.used(), world.pool.used()), (0, 0, 0));
    for _ in 0..100 {
        assert_eq!(world.push(A, Class::Bulk).0, Pushed::Queued);
    }
    world.hdwrr.purge(A, &mut Drops::new());
    assert_eq!(world.pool.used(), 0);
    assert_eq!(world.push(A, Class::Bulk).0, Pushed::Queued);
    drop(world.hdwrr);
    assert_eq!(world.pool.used(), 0);
}

#[test]
fn a_tenant_above_its_part_loses_by_the_rules_of_its_classes_and_nobody_else_does() {
    let mut world = world(1_000, 10);
    let elsewhere = [(); 3].map(|()| {
        let mut charge = crate::memory::Charge::new(Arc::clone(&world.a));
        charge.settle(3 * STEP);
        charge
    });
    // Nine of ten steps are held by three sessions: its queue here may take one more, and a step until it looks.
    let queued = world.fill(A, Class::Bulk);
    assert!((16..=64).contains(&queued), "{queued}");
    assert_eq!(world.push(A, Class::Bulk), (Pushed::DroppedNewest, DropReason::Memory));
    assert_eq!(world.push(A, Class::Ctrl), (Pushed::DroppedNewest, DropReason::Memory));
    assert_eq!(world.push(A, Class::Tele), (Pushed::DroppedNewest, DropReason::Memory));
    assert_eq!(world.push(A, Class::Live), (Pushed::DroppedNewest, DropReason::Memory), "it has nothing to give up");
    assert!(world.a.used() <= 13 * STEP, "{}", world.a.used() / STEP);
    // Others have room, and answers of brokers have theirs.
    assert!(world.fill(B, Class::Bulk) > 100);
    let pinned = frame(FRAME).pinned();
    let pushed = world.hdwrr.push(A, Class::Ctrl, pinned, ZERO, &mut Drops::new());
    assert_eq!(pushed, Pushed::Queued);
    // What is given back elsewhere is room here.
    drop(elsewhere);
    assert_eq!(world.push(A, Class::Bulk).0, Pushed::Queued);
}

#[test]
fn live_gives_up_its_own_oldest_and_a_queue_with_nothing_takes_any_one_frame() {
    let mut world = world(1_000, 4);
    let mut pushes = (0..100).map(|_| world.push(A, Class::Live));
    let (pushed, reason) = pushes.find(|(pushed, _)| *pushed != Pushed::Queued).unwrap();
    assert!(matches!(pushed, Pushed::DroppedOldest { .. }) && reason == DropReason::Memory, "{pushed:?}");
    assert!(world.hdwrr.tenant_backlog(A) <= 6 * STEP);
    let mut hog = crate::memory::Charge::new(Arc::clone(&world.b));
    hog.settle(5 * STEP);
    let large = QueuedFrame::new(Bytes::from(vec![0; 10 * STEP]));
    assert_eq!(world.hdwrr.push(B, Class::Ctrl, large.clone(), ZERO, &mut Drops::new()), Pushed::Queued);
    assert_eq!(world.hdwrr.push(B, Class::Ctrl, large, ZERO, &mut Drops::new()), Pushed::DroppedNewest);
    assert_eq!(world.b.used(), 15 * STEP, "it is charged all the same");
}

#[test]
fn who_holds_too_much_sheds_what_may_be_lost() {
    let mut world = world(1_000, 500);
    for class in Class::ALL {
        (0..64).for_each(|_| assert_eq!(world.push(A, class).0, Pushed::Queued));
        (0..64).for_each(|_| assert_eq!(world.push(B, class).0, Pushed::Queued));
    }
    let mut drops = Drops::new();
    world.hdwrr.shed(&mut drops);
    assert!(drops.is_empty(), "nobody holds too much");
    world.a.set_own(Some(12 * STEP as u64));
    world.hdwrr.shed(&mut drops);
    world.hdwrr.check();
    assert!(drops.iter().all(|drop| drop.tenant == Some(A) && drop.reason == DropReason::Memory));
    assert_eq!(world.a.used(), 12 * STEP);
    assert_eq!(world.hdwrr.lane_backlog(A, Class::Live), 0, "the oldest of live go first");
    assert_eq!(world.hdwrr.lane_backlog(A, Class::Bulk), 64 * FRAME, "what is acknowledged stays");
    assert_eq!(world.b.used(), 16 * STEP);
    // A step it may always keep.
    world.hdwrr.purge(A, &mut Drops::new());
    (0..32).for_each(|_| assert_eq!(world.push(A, Class::Tele).0, Pushed::Queued));
    world.a.set_own(Some(1));
    world.hdwrr.shed(&mut Drops::new());
    world.hdwrr.check();
    assert_eq!(world.a.used(), STEP);
    while slice_of(&mut world.hdwrr).is_some() {}
    assert_eq!((world.hdwrr.entries(), world.pool.used()), (0, 0));
}
