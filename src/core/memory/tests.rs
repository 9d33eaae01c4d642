use super::*;

const STEP: usize = MEMORY_STEP_BYTES;
const ALL: usize = usize::MAX;

fn pool(node_steps: usize, tenant_steps: usize) -> Arc<Pool> {
    Arc::new(Pool::new(MemoryBounds { node_bytes: node_steps * STEP, tenant_bytes: tenant_steps * STEP }))
}

fn account(pool: &Arc<Pool>) -> Arc<Account> {
    Arc::new(Account::new(Arc::clone(pool)))
}

fn charge(account: &Arc<Account>, held: usize) -> Charge {
    let mut charge = Charge::new(Arc::clone(account));
    charge.settle(held);
    charge
}

#[test]
fn whole_steps_are_charged_and_all_of_it_is_given_back() {
    let pool = pool(100, 50);
    let account = account(&pool);
    let mut one = charge(&account, STEP - 1);
    assert_eq!((account.used(), pool.used()), (0, 0), "less than a step is free");
    one.settle(3 * STEP + 1);
    let other = charge(&account, 2 * STEP);
    assert_eq!((account.used(), pool.used()), (5 * STEP, 5 * STEP));
    one.settle(STEP);
    assert_eq!((account.used(), pool.used()), (3 * STEP, 3 * STEP));
    drop((one, other));
    assert_eq!((account.used(), pool.used()), (0, 0));
    assert_eq!((account.holders.load(Ordering::Relaxed), pool.holders.load(Ordering::Relaxed)), (0, 0));
}

#[test]
fn a_tenant_that_holds_too_much_leaves_its_sessions_their_parts() {
    let pool = pool(100, 10);
    let (noisy, calm) = (account(&pool), account(&pool));
    let mut hog = charge(&noisy, 8 * STEP);
    let second = charge(&noisy, 2 * STEP);
    assert_eq!((noisy.room(), noisy.keep()), (ALL, ALL), "as much as it may is not too much");
    hog.settle(9 * STEP);
    assert_eq!((noisy.room(), noisy.keep()), (5 * STEP, 5 * STEP), "ten steps for two sessions");
    assert_eq!(calm.room(), ALL, "nobody else is limited");
    hog.settle(8 * STEP);
    assert_eq!(noisy.room(), ALL);
    drop(second);
    let many: Vec<_> = (0..20).map(|_| charge(&noisy, STEP)).collect();
    assert_eq!(noisy.room(), STEP, "a step at least");
    drop(many);
}

#[test]
fn who_holds_most_of_a_scarce_pool_gives_way_first() {
    let pool = pool(80, 60);
    let (noisy, calm) = (account(&pool), account(&pool));
    let mut hog = charge(&noisy, 60 * STEP);
    let _calm = charge(&calm, 10 * STEP);
    assert_eq!((noisy.room(), calm.room()), (ALL, ALL), "seven eighths are not scarce");
    hog.settle(61 * STEP);
    assert_eq!(noisy.room(), 40 * STEP, "its part of two, although it might have sixty");
    assert_eq!(calm.room(), ALL, "below its part nothing is limited");
    hog.settle(70 * STEP);
    assert_eq!((noisy.room(), calm.room()), (STEP, STEP), "what is used up is used up");
    assert_eq!((noisy.keep(), calm.keep()), (40 * STEP, ALL), "but only one of them gives up what it has");
}

#[test]
fn the_lesser_of_what_node_and_section_allow_counts() {
    let pool = pool(100, 10);
    let (own, other) = (account(&pool), account(&pool));
    let mut held = charge(&own, 6 * STEP);
    let _others = charge(&other, 6 * STEP);
    own.set_own(Some(5 * STEP as u64));
    assert_eq!((own.max(), own.room(), own.keep()), (5 * STEP, 5 * STEP, 5 * STEP));
    assert_eq!((other.max(), other.room()), (10 * STEP, ALL));
    own.set_own(Some(50 * STEP as u64));
    assert_eq!((own.max(), own.room()), (10 * STEP, ALL), "a section widens nothing");
    held.settle(11 * STEP);
    assert_eq!(own.room(), 10 * STEP);
    own.set_own(None);
    assert_eq!((own.max(), own.room()), (10 * STEP, 10 * STEP));
}

#[test]
fn bounds_change_for_whoever_holds_anything() {
    let pool = pool(100, 50);
    let account = account(&pool);
    let _held = charge(&account, 40 * STEP);
    assert_eq!(account.room(), ALL);
    pool.set(MemoryBounds::of_node(60 * STEP));
    assert_eq!(pool.bounds().tenant_bytes, 30 * STEP);
    assert_eq!(account.room(), 30 * STEP);
    pool.set(MemoryBounds::of_node(200 * STEP));
    assert_eq!(account.room(), ALL);
}
