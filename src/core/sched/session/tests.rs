use proptest::prelude::*;

use super::*;
use crate::limits::MEMORY_STEP_BYTES;
use crate::memory::{MemoryBounds, Pool};

#[test]
fn a_reliable_lane_that_stays_full_is_stuck() {
    let mut lanes = SessionLanes::new(ClassConfig::new(1024));
    let frame = || QueuedFrame::new(Bytes::from_static(&[0; 512]));
    let start = Time::from_millis(7);
    while lanes.push(Class::Tele, frame(), start) == Pushed::Queued {}
    assert!(!lanes.is_stuck(start.plus_millis(SLOW_CONSUMER_MS_MAX)), "other classes drop, and that is all");
    while lanes.ask(Class::Ctrl, 512, 0, start) >= 512 {
        assert_eq!(lanes.push(Class::Ctrl, frame().admitted(true), start), Pushed::Queued);
    }
    assert!(!lanes.is_stuck(start.plus_millis(SLOW_CONSUMER_MS_MAX - 1)));
    assert!(lanes.is_stuck(start.plus_millis(SLOW_CONSUMER_MS_MAX)));
    let late = start.plus_millis(SLOW_CONSUMER_MS_MAX);
    assert_eq!(lanes.ask(Class::Ctrl, 512, 0, late), usize::MAX, "nobody waits for it");
    assert_eq!(lanes.push(Class::Ctrl, frame().admitted(true), late), Pushed::DroppedNewest);
    // Whoever reads again is not stuck.
    let (mut out, mut drops) = (Vec::new(), Drops::new());
    lanes.fill(usize::MAX, start.plus_millis(SLOW_CONSUMER_MS_MAX), &mut out, &mut drops);
    assert!(!lanes.is_stuck(start.plus_millis(2 * SLOW_CONSUMER_MS_MAX)));
}

#[test]
fn what_an_observer_does_not_read_is_dropped_and_its_patience_does_not_begin() {
    let frame = || QueuedFrame::new(Bytes::from_static(&[0; 512]));
    let start = Time::from_millis(7);
    let late = start.plus_millis(SLOW_CONSUMER_MS_MAX);
    for class in [Class::Ctrl, Class::Bulk] {
        let mut lanes = SessionLanes::new(ClassConfig::new(1024));
        while lanes.push(class, frame(), start) == Pushed::Queued {}
        assert_eq!(lanes.push(class, frame(), late), Pushed::DroppedNewest, "to be counted");
        assert_eq!(lanes.lost_by(), DropReason::LaneFull);
        assert!(!lanes.is_stuck(late.plus_millis(SLOW_CONSUMER_MS_MAX)), "{class}: nobody promised it anything");
        // What is promised to the same session is waited for, behind whatever its lane is full of.
        assert_eq!(lanes.ask(class, 512, 0, late), 1024 - lanes.classes().lane_held(class));
        assert!(!lanes.is_stuck(late.plus_millis(SLOW_CONSUMER_MS_MAX - 1)));
        assert!(lanes.is_stuck(late.plus_millis(SLOW_CONSUMER_MS_MAX)), "{class}");
    }
}

#[test]
fn room_that_was_asked_for_is_kept_and_a_refusal_starts_the_clock() {
    let mut lanes = SessionLanes::new(ClassConfig::new(1024));
    let frame = || QueuedFrame::new(Bytes::from_static(&[0; 512])).admitted(true);
    let (start, all) = (Time::from_millis(7), usize::MAX);
    assert_eq!(lanes.ask(Class::Bulk, 4096, 0, start), all, "an empty lane takes any one");
    assert_eq!(lanes.ask(Class::Bulk, 512, 640, start), 1024 - 640, "not beside what is still to come");
    assert!((0..3).all(|_| lanes.push(Class::Bulk, frame(), start) == Pushed::Queued), "over the limit, as promised");
    assert_eq!(lanes.ask(Class::Bulk, 512, 0, start), 0);
    assert!(lanes.is_stuck(start.plus_millis(SLOW_CONSUMER_MS_MAX)));
}

const KIB: usize = 1024;
const NOW: Time = Time::from_millis(7);

fn account(tenant_kib: usize) -> (Arc<Pool>, Arc<Account>) {
    let bounds = MemoryBounds { node_bytes: 1 << 30, tenant_bytes: tenant_kib * KIB };
    let pool = Arc::new(Pool::new(bounds));
    (Arc::clone(&pool), Arc::new(Account::new(pool)))
}

fn session(account: &Arc<Account>) -> SessionLanes {
    SessionLanes::default().charged_to(Some(Arc::clone(account)))
}

/// A frame of one KiB with its bookkeeping, which begins with a number.
fn frame(number: u32) -> QueuedFrame {
    let mut bytes = vec![0; KIB - QUEUED_FRAME_OVERHEAD_BYTES];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    QueuedFrame::new(bytes.into())
}

/// Pushes so many frames in batches of eight; how many were queued without any loss.
fn fill_up(lanes: &mut SessionLanes, class: Class, frames: u32) -> u32 {
    let mut queued = 0;
    for batch in (0..frames).step_by(8) {
        lanes.begin();
        for number in batch..(batch + 8).min(frames) {
            queued += u32::from(lanes.push(class, frame(number), NOW) == Pushed::Queued);
        }
        lanes.settle();
    }
    queued
}

fn read_all(lanes: &mut SessionLanes) -> Vec<u32> {
    let (mut parts, mut drops) = (Vec::new(), Drops::new());
    lanes.fill(usize::MAX, NOW, &mut parts, &mut drops);
    parts.iter().map(|part| u32::from_le_bytes(part[..4].try_into().unwrap())).collect()
}

#[test]
fn without_a_tenant_nothing_is_charged_or_limited() {
    let mut lanes = SessionLanes::default();
    assert_eq!(fill_up(&mut lanes, Class::Tele, 4096), 4096);
    assert_eq!(lanes.lost_by(), DropReason::LaneFull);
}

#[test]
fn what_lanes_hold_is_charged_until_it_is_read_or_gone() {
    let (pool, account) = account(4096);
    let mut lanes = session(&account);
    assert_eq!(fill_up(&mut lanes, Class::Tele, 100), 100);
    assert_eq!((account.used(), pool.used()), (96 * KIB, 96 * KIB), "whole steps of 16 KiB");
    lanes.push_control(Bytes::from(vec![0; 12 * KIB])).unwrap();
    assert_eq!(account.used(), 112 * KIB, "answers, too");
    read_all(&mut lanes);
    assert_eq!(account.used(), 0);
    fill_up(&mut lanes, Class::Live, 100);
    lanes.clear_classes(&mut Drops::new());
    assert_eq!(account.used(), 0);
    fill_up(&mut lanes, Class::Bulk, 100);
    drop(lanes);
    assert_eq!((account.used(), pool.used()), (0, 0));
}

#[test]
fn short_of_memory_each_class_has_its_rule_and_nobody_who_reads_loses_anything() {
    let (_, account) = account(256);
    let (mut live, mut tele) = (session(&account), session(&account));
    let mut reader = session(&account);
    // Both are far below what a lane may hold, and together above what the tenant may.
    fill_up(&mut live, Class::Live, 1000);
    fill_up(&mut tele, Class::Tele, 1000);
    assert_eq!(account.used(), 384 * KIB, "the first took all of it, and the second its part");
    live.shed(NOW, &mut Drops::new());
    assert_eq!(account.used(), 256 * KIB);
    assert_eq!((live.lost_by(), tele.lost_by()), (DropReason::Memory, DropReason::Memory));
    for round in 0..100 {
        for class in [Class::Live, Class::Tele] {
            assert_eq!(fill_up(&mut reader, class, 8), 8, "round {round}");
        }
        assert_eq!(read_all(&mut reader).len(), 16);
    }
    let (kept, refused) = (read_all(&mut live), read_all(&mut tele));
    assert_eq!(kept.last(), Some(&999), "live keeps the newest");
    assert!(kept.len() < 300 && kept.windows(2).all(|two| two[0] + 1 == two[1]), "{kept:?}");
    assert!(refused.iter().copied().eq(0..u32::try_from(refused.len()).unwrap()), "tele keeps the oldest: {refused:?}");
    assert_eq!(fill_up(&mut live, Class::Live, 100), 100, "who reads again is not limited");
}

#[test]
fn a_tenant_short_of_memory_is_asked_to_wait_and_only_who_does_not_read_is_stuck() {
    let (_, account) = account(64);
    let (mut hog, mut reader) = (session(&account), session(&account));
    while hog.ask(Class::Ctrl, KIB, 0, NOW) >= KIB {
        assert_eq!(hog.push(Class::Ctrl, frame(0).admitted(true), NOW), Pushed::Queued);
        hog.settle();
    }
    assert_eq!(account.used(), 80 * KIB, "a step more than it may have");
    assert!(hog.ask(Class::Bulk, KIB, 0, NOW) < KIB, "there is no room in the other lane either");
    // A large message finds no room where nothing waits to be read: that is not the reader's fault.
    assert_eq!(reader.ask(Class::Ctrl, 512 * KIB, 0, NOW), 64 * KIB);
    assert!(reader.ask(Class::Ctrl, KIB, 0, NOW) >= KIB, "a small one does");
    let late = NOW.plus_millis(SLOW_CONSUMER_MS_MAX);
    assert!(hog.is_stuck(late) && !reader.is_stuck(late));
    assert_eq!(hog.push(Class::Ctrl, frame(1), NOW), Pushed::DroppedNewest, "an observer's copy is refused");
    assert_eq!(hog.push(Class::Ctrl, frame(1).admitted(true), NOW), Pushed::Queued, "what was promised is kept");
    assert_eq!(hog.push(Class::Live, frame(1).pinned(), NOW), Pushed::Queued, "and what others depend on");
    read_all(&mut hog);
    assert!(!hog.is_stuck(late));
    assert_eq!(reader.ask(Class::Ctrl, 512 * KIB, 0, NOW), usize::MAX);
}

#[test]
fn who_does_not_read_gives_up_what_is_lossy_and_has_five_seconds_for_the_rest() {
    let (pool, account) = account(1024);
    let mut lanes = session(&account);
    for class in [Class::Live, Class::Tele, Class::Ctrl] {
        assert_eq!(fill_up(&mut lanes, class, 300), 300);
    }
    let mut drops = Drops::new();
    lanes.shed(NOW, &mut drops);
    assert!(drops.is_empty(), "while its tenant may hold as much, nothing is given up");
    pool.set(MemoryBounds { node_bytes: 1 << 30, tenant_bytes: 512 * KIB });
    lanes.shed(NOW, &mut drops);
    let shed: Vec<_> = drops.drain().map(|drop| (drop.class, drop.reason, drop.frames)).collect();
    assert_eq!(shed, [(Class::Live, DropReason::Memory, 300), (Class::Tele, DropReason::Memory, 88)]);
    assert_eq!(account.used(), 512 * KIB);
    assert!(!lanes.is_stuck(NOW.plus_millis(SLOW_CONSUMER_MS_MAX)), "that was enough");
    pool.set(MemoryBounds { node_bytes: 1 << 30, tenant_bytes: 128 * KIB });
    lanes.shed(NOW, &mut drops);
    assert_eq!(drops.frames(), 212);
    assert_eq!(account.used(), 288 * KIB, "what was acknowledged is never shed");
    assert!(lanes.is_stuck(NOW.plus_millis(SLOW_CONSUMER_MS_MAX)));
    let (mut parts, mut drops) = (Vec::new(), Drops::new());
    lanes.fill(KIB, NOW, &mut parts, &mut drops);
    assert!(!lanes.is_stuck(NOW.plus_millis(SLOW_CONSUMER_MS_MAX)), "it reads after all");
}

#[test]
fn what_is_lossy_makes_room_for_what_is_acknowledged() {
    let (_, account) = account(64);
    let mut lanes = session(&account);
    fill_up(&mut lanes, Class::Tele, 200);
    assert_eq!(account.used(), 80 * KIB, "full");
    for _ in 0..64 {
        assert!(lanes.ask(Class::Ctrl, KIB, 0, NOW) >= KIB);
        assert_eq!(lanes.push(Class::Ctrl, frame(0).admitted(true), NOW), Pushed::Queued);
    }
    assert!(lanes.ask(Class::Ctrl, KIB, 0, NOW) < KIB);
    let mut drops = Drops::new();
    lanes.shed(NOW, &mut drops);
    assert_eq!((drops.frames(), account.used()), (80, 64 * KIB));
    assert!(lanes.is_stuck(NOW.plus_millis(SLOW_CONSUMER_MS_MAX)), "and whoever reads nothing of that is cut");
}

#[test]
fn answers_that_are_not_read_count_and_end_a_session_sooner_where_memory_is_short() {
    let (_, account) = account(64);
    let mut lanes = session(&account);
    let answer = || Bytes::from(vec![0; KIB - QUEUED_FRAME_OVERHEAD_BYTES]);
    for _ in 0..256 {
        assert_eq!(lanes.push_control(answer()), Ok(()));
    }
    assert_eq!(account.used(), 256 * KIB);
    assert_eq!(lanes.push_control(answer()), Err(ControlOverflow));
    // Those that wait behind messages are no way around it.
    let mut lanes = session(&account);
    fill_up(&mut lanes, Class::Tele, 512);
    lanes.begin();
    let pinned = (0..1024).filter(|number| lanes.push(Class::Live, frame(*number).pinned(), NOW) == Pushed::Queued);
    assert!((176..=256).contains(&pinned.count()), "up to 256 KiB in all");
    let (_, plenty) = self::account(1 << 20);
    let mut lanes = session(&plenty);
    assert!((0..4096).all(|_| lanes.push_control(answer()).is_ok()));
    assert_eq!(lanes.push_control(answer()), Err(ControlOverflow));
}

proptest! {
    /// Whoever pushes what to whom, in classes of any kind: the pool is exceeded by a batch and a step for every session at
    /// most, and everything is given back.
    #[test]
    fn the_pool_is_bounded_whatever_comes(
        steps in prop::collection::vec((0..24usize, 0..4usize, 1..64u32, 0..20u8), 1..400),
    ) {
        let bounds = MemoryBounds { node_bytes: 2048 * KIB, tenant_bytes: 1024 * KIB };
        let pool = Arc::new(Pool::new(bounds));
        let accounts: Vec<_> = (0..4).map(|_| Arc::new(Account::new(Arc::clone(&pool)))).collect();
        let mut sessions: Vec<_> = (0..24).map(|number: usize| session(&accounts[number % 4])).collect();
        let most = bounds.node_bytes + 64 * KIB + sessions.len() * MEMORY_STEP_BYTES;
        for (to, class, frames, what) in steps {
            let lanes = &mut sessions[to];
            match what {
                0 => drop(read_all(lanes)),
                1 => lanes.shed(NOW, &mut Drops::new()),
                _ => {
                    lanes.begin();
                    for number in 0..frames {
                        let _ = lanes.push(Class::ALL[class], frame(number), NOW);
                    }
                    lanes.settle();
                }
            }
            prop_assert!(pool.used() <= most, "{} of {most}", pool.used());
            prop_assert_eq!(pool.used(), accounts.iter().map(|account| account.used()).sum::<usize>());
        }
        drop(sessions);
        prop_assert_eq!(pool.used(), 0);
    }
}
