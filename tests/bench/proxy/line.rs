//! One direction of the link, for everything that shares its rate: the bucket, the clock and the account.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::bucket::{Bucket, Shape};

/// One direction.
#[derive(Debug)]
pub(crate) struct Line {
    began: Instant,
    bucket: Mutex<Bucket>,
    counts: Counts,
}

/// What a direction did.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Datagrams, or pieces of streams, that were taken.
    pub(crate) taken: AtomicU64,
    /// Their bytes, without heads.
    pub(crate) taken_bytes: AtomicU64,
    /// Their bytes on the wire.
    pub(crate) wire_bytes: AtomicU64,
    /// Datagrams that found the buffer full.
    pub(crate) dropped: AtomicU64,
    /// Datagrams larger than the link's packets.
    pub(crate) too_large: AtomicU64,
    /// Datagrams of senders beyond those that are told apart, or whose receiver is gone.
    pub(crate) unheard: AtomicU64,
}

impl Line {
    pub(crate) fn new(shape: Shape) -> Self {
        Self { began: Instant::now(), bucket: Mutex::new(Bucket::new(shape)), counts: Counts::default() }
    }

    /// Takes a datagram, of so many bytes and so many on the wire: when it is due at the other side, or that it is dropped.
    pub(crate) fn take_or_drop(&self, bytes: usize, wire_bytes: u64) -> Option<Instant> {
        let due = self.bucket().offer(self.now_ns(), wire_bytes);
        match due {
            Some(_) => self.count(bytes, wire_bytes),
            None => add(&self.counts.dropped, 1),
        }
        due.map(|due| self.began + Duration::from_nanos(due))
    }

    /// Waits until there is room, and takes a piece of a stream: when it is due at the other side.
    pub(crate) fn take(&self, bytes: usize, wire_bytes: u64) -> Instant {
        loop {
            let room = {
                let mut bucket = self.bucket();
                if let Some(due) = bucket.offer(self.now_ns(), wire_bytes) {
                    self.count(bytes, wire_bytes);
                    return self.began + Duration::from_nanos(due);
                }
                bucket.room_ns(wire_bytes)
            };
            sleep_until(self.began + Duration::from_nanos(room));
        }
    }

    /// Counts a datagram that is larger than the link's packets.
    pub(crate) fn too_large(&self) {
        add(&self.counts.too_large, 1);
    }

    /// Counts a datagram that has nobody to go to.
    pub(crate) fn unheard(&self) {
        add(&self.counts.unheard, 1);
    }

    /// The account.
    pub(crate) fn json(&self) -> Value {
        let Counts { taken, taken_bytes, wire_bytes, dropped, too_large, unheard } = &self.counts;
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        json!({
            "taken": of(taken), "taken_bytes": of(taken_bytes), "wire_bytes": of(wire_bytes),
            "dropped": of(dropped), "too_large": of(too_large), "unheard": of(unheard),
        })
    }

    fn count(&self, bytes: usize, wire_bytes: u64) {
        add(&self.counts.taken, 1);
        add(&self.counts.taken_bytes, bytes as u64);
        add(&self.counts.wire_bytes, wire_bytes);
    }

    fn bucket(&self) -> std::sync::MutexGuard<'_, Bucket> {
        self.bucket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

fn add(count: &AtomicU64, value: u64) {
    count.fetch_add(value, Ordering::Relaxed);
}

/// Returns at the moment, or as soon after it as the system wakes this thread.
pub(crate) fn sleep_until(moment: Instant) {
    while let Some(left) = moment.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        std::thread::sleep(left);
    }
}
