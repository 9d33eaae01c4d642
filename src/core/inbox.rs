//! The one queue between tasks: an inbox per target (DESIGN section 11).
//!
//! Whoever has frames for a session or an edge appends a whole batch under one lock and wakes the target at most once,
//! and not at all while it is busy. The target drains under the same lock. Guarantees: nothing appended before a drain
//! found nothing is left unannounced; wakers are called outside the lock. It is bounded because its lanes are, and it
//! never waits for room: what happens when a lane is full is the lane's rule.

use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use crate::sched::Lanes;

/// Lanes shared by those who push and the one task that drains.
#[derive(Debug)]
pub struct Inbox<L> {
    inner: Mutex<Inner<L>>,
}

#[derive(Debug)]
struct Inner<L> {
    lanes: L,
    waker: Option<Waker>,
    /// Whether the drainer left frames behind on purpose and comes back by itself: pushes need not wake it.
    paced: bool,
    closed: bool,
}

impl<L: Lanes> Inbox<L> {
    /// An open inbox.
    #[must_use]
    pub const fn new(lanes: L) -> Self {
        Self { inner: Mutex::new(Inner { lanes, waker: None, paced: false, closed: false }) }
    }

    /// Appends a batch under one lock: `push` gets the lanes and appends all it has. Wakes the drainer if it waits and
    /// there is something for it. `None`, without calling `push`, once closed.
    pub fn push_batch<R>(&self, push: impl FnOnce(&mut L) -> R) -> Option<R> {
        let mut inner = self.inner.lock();
        if inner.closed {
            return None;
        }
        let result = push(&mut inner.lanes);
        let waker = if inner.paced || inner.lanes.is_empty() { None } else { inner.waker.take() };
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
        Some(result)
    }

    /// Looks at or changes the lanes without waking anybody, open or closed: for status, weights and purges.
    pub fn with<R>(&self, f: impl FnOnce(&mut L) -> R) -> R {
        f(&mut self.inner.lock().lanes)
    }

    /// Drains: calls `take` unless the lanes are empty. What it returns is returned; if it returns nothing, or there was
    /// nothing, the task is woken by the next batch. `Ready(None)` once closed and empty.
    ///
    /// A `take` that returns nothing and leaves frames behind (a shaped edge, a full socket) says that it comes back by
    /// itself: its task must have arranged that, and only [`Self::wake`] and [`Self::close`] wake it before.
    /// One task drains; a second would replace the first one's waker.
    pub fn poll_drain<R>(&self, cx: &Context<'_>, take: impl FnOnce(&mut L) -> Option<R>) -> Poll<Option<R>> {
        let mut inner = self.inner.lock();
        inner.waker = None;
        inner.paced = false;
        if !inner.lanes.is_empty()
            && let Some(taken) = take(&mut inner.lanes)
        {
            return Poll::Ready(Some(taken));
        }
        if inner.closed && inner.lanes.is_empty() {
            return Poll::Ready(None);
        }
        inner.paced = !inner.lanes.is_empty();
        inner.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Refuses further batches and wakes the drainer; what is queued can still be drained.
    pub fn close(&self) {
        let mut inner = self.inner.lock();
        inner.closed = true;
        let waker = inner.waker.take();
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether it was closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.inner.lock().closed
    }

    /// Wakes the drainer whatever is queued: a weight, a shaper or a state beside the lanes changed.
    pub fn wake(&self) {
        let waker = self.inner.lock().waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests;
