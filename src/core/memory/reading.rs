//! What a session has read of a large message that is not complete, or that waits for room.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Account, Charge};
use crate::limits::{READING_NODE_PARTS, READING_TENANT_PARTS, RELIABLE_WAIT_MS_MAX};
use crate::time::Time;

/// Whether a session may read a large message into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// It may; the room is charged.
    Given,
    /// Not now: nothing more of it is to be read until it has asked again.
    Later,
    /// It has waited for [`RELIABLE_WAIT_MS_MAX`]. What is read of a message cannot be given back, so the session must end.
    Never,
}

/// What one session's read buffer takes, charged to its tenant.
///
/// Room for all of a large message is asked for before the most of it is read: whoever has begun can finish, and as many
/// sessions as there may be cannot fill memory with beginnings. A client may stop within a message, and then nothing gives way
/// for as long as its session lives; so what is read leaves the most of a node's memory, and half of a tenant's, to what waits to
/// be sent. Of each tenant one message may be read in any case.
#[derive(Debug)]
pub struct Reading {
    account: Arc<Account>,
    charge: Charge,
    held: usize,
    /// Since when there is no room for what it asks for.
    short: Option<Time>,
}

impl Reading {
    /// Nothing read yet.
    #[must_use]
    pub fn new(account: Arc<Account>) -> Self {
        Self { charge: Charge::new(Arc::clone(&account)), account, held: 0, short: None }
    }

    /// Asks for a buffer of `bytes` in place of what is held.
    pub fn ask(&mut self, bytes: usize, now: Time) -> Room {
        let (account, pool, held) = (&self.account, &self.account.pool, self.held);
        let in_all = pool.used();
        let most_of_all = pool.bounds().node_bytes / READING_NODE_PARTS;
        let most = account.budget(in_all) / READING_TENANT_PARTS;
        let fits = account.used().saturating_sub(held).saturating_add(bytes) <= most
            && pool.reading.load(Ordering::Relaxed).saturating_sub(held).saturating_add(bytes) <= most_of_all;
        let more = |reading: usize| (fits || reading == held).then_some(reading - held + bytes);
        if account.reading.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok() {
            pool.reading.fetch_add(bytes, Ordering::Relaxed);
            pool.reading.fetch_sub(held, Ordering::Relaxed);
            (self.held, self.short) = (bytes, None);
            self.charge.settle(bytes);
            return Room::Given;
        }
        let since = *self.short.get_or_insert(now);
        if now < since.plus_millis(RELIABLE_WAIT_MS_MAX) { Room::Later } else { Room::Never }
    }

    /// The buffer has `bytes` now, which is no more than was given.
    pub fn keep(&mut self, bytes: usize) {
        self.short = None;
        let less = self.held.saturating_sub(bytes);
        if less > 0 {
            self.account.reading.fetch_sub(less, Ordering::Relaxed);
            self.account.pool.reading.fetch_sub(less, Ordering::Relaxed);
            self.held -= less;
            self.charge.settle(self.held);
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.keep(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::MEMORY_STEP_BYTES as STEP;
    use crate::memory::{MemoryBounds, Pool};

    fn pool(node_steps: usize, tenant_steps: usize) -> Arc<Pool> {
        Arc::new(Pool::new(MemoryBounds { node_bytes: node_steps * STEP, tenant_bytes: tenant_steps * STEP }))
    }

    fn sessions(pool: &Arc<Pool>, count: usize) -> (Arc<Account>, Vec<Reading>) {
        let account = Arc::new(Account::new(Arc::clone(pool)));
        let sessions = (0..count).map(|_| Reading::new(Arc::clone(&account))).collect();
        (account, sessions)
    }

    fn begin(sessions: &mut [Reading], steps: usize) -> usize {
        sessions.iter_mut().filter_map(|one| (one.ask(steps * STEP, at(0)) == Room::Given).then_some(())).count()
    }

    const fn at(millis: u64) -> Time {
        Time::from_millis(7 + millis)
    }

    #[test]
    fn beginnings_take_half_of_what_the_tenant_may_hold() {
        let pool = pool(10_000, 200);
        let (account, mut sessions) = sessions(&pool, 50);
        assert_eq!(begin(&mut sessions, 30), 3);
        assert_eq!((account.used(), account.room()), (90 * STEP, usize::MAX));
        // Whoever has begun finishes, and the next one begins.
        sessions[0].keep(0);
        assert_eq!(sessions[10].ask(30 * STEP, at(0)), Room::Given);
        assert_eq!(sessions[11].ask(30 * STEP, at(0)), Room::Later);
        assert_eq!(sessions[12].ask(10 * STEP, at(0)), Room::Given, "there is room for less");
        // Another size in place of the first.
        assert_eq!(sessions[12].ask(11 * STEP, at(0)), Room::Later);
        assert_eq!(sessions[12].ask(5 * STEP, at(0)), Room::Given);
        sessions[12].keep(9 * STEP);
        assert_eq!(account.used(), 95 * STEP, "to keep gives nothing");
        drop(sessions);
        assert_eq!((account.used(), account.reading.load(Ordering::Relaxed)), (0, 0));
        assert_eq!((pool.used(), pool.reading.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn one_message_of_a_tenant_is_read_whatever_it_holds_and_however_large() {
        let pool = pool(1_000, 10);
        let (account, mut sessions) = sessions(&pool, 2);
        let mut full = Charge::new(Arc::clone(&account));
        full.settle(20 * STEP);
        assert_eq!(sessions[0].ask(64 * STEP, at(0)), Room::Given, "slow, but it goes on");
        assert_eq!(sessions[0].ask(65 * STEP, at(0)), Room::Given, "it is the same one");
        assert_eq!(sessions[1].ask(STEP, at(0)), Room::Later);
        sessions[0].keep(0);
        assert_eq!(sessions[1].ask(STEP, at(0)), Room::Given);
    }

    #[test]
    fn tenants_that_stop_within_messages_leave_the_most_of_a_node_and_one_message_to_each_other_one() {
        let pool = pool(1_000, 500);
        let mut stopped: Vec<_> = (0..10).map(|_| sessions(&pool, 100)).collect();
        let begun: usize = stopped.iter_mut().map(|(_, sessions)| begin(sessions, 10)).sum();
        assert_eq!(begun, 25 + 9, "a quarter, most of it of the first, and one of each other one");
        let (calm, mut reads) = sessions(&pool, 2);
        assert_eq!((begin(&mut reads, 10), calm.room()), (1, usize::MAX));
    }

    #[test]
    fn who_has_waited_for_too_long_waits_no_more_and_who_was_given_room_begins_anew() {
        let pool = pool(1_000, 10);
        let (_, mut sessions) = sessions(&pool, 2);
        let [one, other] = sessions.as_mut_slice() else { panic!() };
        assert_eq!(other.ask(20 * STEP, at(0)), Room::Given);
        assert_eq!(one.ask(20 * STEP, at(0)), Room::Later);
        assert_eq!(one.ask(20 * STEP, at(RELIABLE_WAIT_MS_MAX - 1)), Room::Later);
        other.keep(0);
        assert_eq!(one.ask(20 * STEP, at(RELIABLE_WAIT_MS_MAX)), Room::Given);
        one.keep(0);
        assert_eq!(other.ask(20 * STEP, at(0)), Room::Given);
        assert_eq!(one.ask(20 * STEP, at(RELIABLE_WAIT_MS_MAX + 1)), Room::Later);
        assert_eq!(one.ask(20 * STEP, at(2 * RELIABLE_WAIT_MS_MAX)), Room::Later);
        assert_eq!(one.ask(20 * STEP, at(2 * RELIABLE_WAIT_MS_MAX + 1)), Room::Never);
    }
}
