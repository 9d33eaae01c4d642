//! The token bucket, as a computation: when what is offered now will have passed, or that there is no room for it.

/// What a direction of a link is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Bytes it carries in a second.
    pub(crate) bytes_per_s: f64,
    /// Bytes that pass at once after a pause.
    pub(crate) burst_bytes: u64,
    /// Bytes that may wait.
    pub(crate) buffer_bytes: u64,
}

/// A bucket, full at first. Times are nanoseconds since any moment, and never run back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    shape: Shape,
    /// When the bucket will be full again.
    full_ns: u64,
}

impl Bucket {
    pub(crate) const fn new(shape: Shape) -> Self {
        Self { shape, full_ns: 0 }
    }

    /// Takes so many bytes, and says when they are through; nothing where they find no room to wait.
    pub(crate) fn offer(&mut self, now_ns: u64, bytes: u64) -> Option<u64> {
        if self.room_ns(bytes) > now_ns {
            return None;
        }
        self.full_ns = self.full_ns.max(now_ns) + self.lasts_ns(bytes);
        Some(now_ns.max(self.full_ns.saturating_sub(self.lasts_ns(self.shape.burst_bytes))))
    }

    /// From when on so many bytes find room. What passes at once needs none, and so does what is more than all room there
    /// is, once nothing waits.
    pub(crate) fn room_ns(&self, bytes: u64) -> u64 {
        let others = self.shape.burst_bytes + self.shape.buffer_bytes.saturating_sub(bytes);
        self.full_ns.saturating_sub(self.lasts_ns(others))
    }

    fn lasts_ns(&self, bytes: u64) -> u64 {
        whole(bytes as f64 * 1e9 / self.shape.bytes_per_s)
    }
}

/// The nearest whole number of bytes or nanoseconds, neither of which are negative.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "what is too large is the greatest there is"
)]
pub(crate) fn whole(value: f64) -> u64 {
    value.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A byte lasts a microsecond.
    fn bucket() -> Bucket {
        Bucket::new(Shape { bytes_per_s: 1e6, burst_bytes: 1_000, buffer_bytes: 5_000 })
    }

    #[test]
    fn a_burst_passes_at_once_and_then_the_rate_rules() {
        let mut bucket = bucket();
        let due: Vec<_> = (0..4).map(|_| bucket.offer(10_000_000, 500)).collect();
        assert_eq!(due, [Some(10_000_000), Some(10_000_000), Some(10_500_000), Some(11_000_000)]);
        // 0.2 ms later all that was taken is still due when it was, and what comes is behind it.
        assert_eq!(bucket.offer(10_200_000, 100), Some(11_100_000));
    }

    #[test]
    fn a_pause_earns_a_burst_and_no_more() {
        let mut bucket = bucket();
        assert_eq!(bucket.offer(0, 2_000), Some(1_000_000));
        // Empty at 1 ms, full at 2 ms, and no fuller at 2 s.
        assert_eq!(bucket.offer(1_500_000, 1_000), Some(2_000_000));
        assert_eq!(bucket.offer(2_000_000_000, 1_500), Some(2_000_500_000));
    }

    #[test]
    fn what_finds_no_room_is_refused_and_costs_nothing() {
        let mut bucket = bucket();
        let taken = (0..100).filter(|_| bucket.offer(0, 1_000).is_some()).count();
        assert_eq!(taken, 6, "a burst, and the buffer");
        assert_eq!(bucket.room_ns(1_000), 1_000_000);
        assert_eq!(bucket.offer(999_999, 1_000), None);
        assert_eq!(bucket.offer(1_000_000, 1_000), Some(6_000_000), "the last place in the buffer is 5 ms away");
    }

    #[test]
    fn what_is_larger_than_the_buffer_passes_when_nothing_waits() {
        let mut bucket = bucket();
        assert_eq!(bucket.offer(0, 9_000), Some(8_000_000));
        assert_eq!((bucket.offer(7_999_999, 9_000), bucket.offer(8_000_000, 9_000)), (None, Some(17_000_000)));
    }
}
