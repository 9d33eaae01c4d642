//! What one flow keeps, charged to its tenant.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::limits::MEMORY_STEP_BYTES;
use crate::memory::{Account, Charge};

/// What one flow of one tenant keeps, kept and early together, against bounds that it shares with others: the tenant's accounts,
/// of which every one must have room.
///
/// It looks at these when it has taken a step since it looked last, and charges whole steps, so that what is shared is touched
/// once in a step. A flow that keeps nothing has room for any one message: it is slow then, but never stands still.
#[derive(Debug)]
pub struct Budget {
    used: AtomicUsize,
    /// What it may take before it looks again.
    credit: AtomicUsize,
    charges: Mutex<SmallVec<[Charge; 2]>>,
    /// Whether there was no room for something since it was asked last.
    was_short: AtomicBool,
}

impl Budget {
    /// Nothing kept yet.
    #[must_use]
    pub fn new(accounts: impl IntoIterator<Item = Arc<Account>>) -> Self {
        Self {
            used: AtomicUsize::new(0),
            credit: AtomicUsize::new(0),
            charges: Mutex::new(accounts.into_iter().map(Charge::new).collect()),
            was_short: AtomicBool::new(false),
        }
    }

    /// Whether there is room for `bytes` more.
    #[must_use]
    pub fn fits(&self, bytes: usize) -> bool {
        let used = self.used();
        let more = used.saturating_add(bytes);
        if used == 0 || more <= MEMORY_STEP_BYTES || bytes <= self.credit.load(Ordering::Relaxed) {
            return true;
        }
        let room = self.charges.lock().iter().map(|charge| charge.account().room()).min().unwrap_or(usize::MAX);
        match room.checked_sub(more) {
            Some(left) => self.credit.store(bytes.saturating_add(left.min(MEMORY_STEP_BYTES)), Ordering::Relaxed),
            None => self.was_short.store(true, Ordering::Relaxed),
        }
        more <= room
    }

    /// Takes room. It is not refused: whoever asked for it has it, and what is sent instead of something else must have it.
    pub fn take(&self, bytes: usize) {
        // Who takes beside it costs it an early look at most.
        let credit = self.credit.load(Ordering::Relaxed);
        self.credit.store(credit.saturating_sub(bytes), Ordering::Relaxed);
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        self.settle(before, before.saturating_add(bytes));
    }

    /// Gives room back.
    pub fn give(&self, bytes: usize) {
        let before = self.used.fetch_sub(bytes, Ordering::Relaxed);
        self.settle(before, before.saturating_sub(bytes));
    }

    /// Bytes in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether there was no room for something since the last call.
    pub fn take_short(&self) -> bool {
        self.was_short.swap(false, Ordering::Relaxed)
    }

    /// Charges what is in use now, where a step was begun or ended.
    fn settle(&self, before: usize, after: usize) {
        if before / MEMORY_STEP_BYTES == after / MEMORY_STEP_BYTES {
            return;
        }
        let mut charges = self.charges.lock();
        // Read under the lock: whoever comes last sees all that came before.
        let used = self.used();
        charges.iter_mut().for_each(|charge| charge.settle(used));
    }
}
