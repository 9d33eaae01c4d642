//! When to dial an edge again (DESIGN section 6: jittered back-off).

use glocal_core::limits::{DUPLICATE_NODE_MS, REDIAL_MS_MAX, REDIAL_MS_MIN};

/// The pauses between attempts to dial one edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redial {
    pause_ms: u64,
    duplicate: bool,
}

impl Default for Redial {
    fn default() -> Self {
        Self { pause_ms: REDIAL_MS_MIN, duplicate: false }
    }
}

impl Redial {
    /// The edge is up.
    pub const fn up(&mut self) {
        (self.pause_ms, self.duplicate) = (REDIAL_MS_MIN, false);
    }

    /// An attempt, or the bridge that came of it, has ended after `lived_ms`. One that lived for a while starts afresh; one
    /// that dies at once waits longer each time; where another broker bears this one's name (`duplicate`), longest.
    pub fn ended(&mut self, duplicate: bool, lived_ms: u64) {
        self.duplicate = duplicate;
        self.pause_ms = if lived_ms > REDIAL_MS_MAX { REDIAL_MS_MIN } else { (self.pause_ms * 2).min(REDIAL_MS_MAX) };
    }

    /// The pause now, in milliseconds: between half and all of it by `random`, so that brokers that lost the same peer do
    /// not come back in step; for a duplicate, never less than all of it.
    #[must_use]
    pub const fn pause_ms(&self, random: u64) -> u64 {
        if self.duplicate {
            return DUPLICATE_NODE_MS + random % (DUPLICATE_NODE_MS / 2 + 1);
        }
        self.pause_ms / 2 + random % (self.pause_ms / 2 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RB-45: the back-off doubles, is jittered, and has a cap.
    #[test]
    fn pauses_double_up_to_a_cap_and_are_jittered() {
        let mut redial = Redial::default();
        let mut before = 0;
        for _ in 0..20 {
            redial.ended(false, 0);
            let (least, most) = (redial.pause_ms(0), redial.pause_ms(redial.pause_ms / 2));
            assert_eq!(most, 2 * least);
            assert!(most >= before && most <= REDIAL_MS_MAX);
            assert!((0..1000).map(|random| redial.pause_ms(random * 7919)).all(|p| (least..=most).contains(&p)));
            before = most;
        }
        assert_eq!(before, REDIAL_MS_MAX);
        redial.ended(false, REDIAL_MS_MAX + 1);
        assert_eq!(redial, Redial::default(), "one that lived starts afresh");
    }

    /// RB-38: of two brokers under one name the second waits for at least 30 s.
    #[test]
    fn a_duplicate_waits_for_half_a_minute_at_least() {
        let mut redial = Redial::default();
        redial.ended(true, 0);
        assert!((0..1000).map(|random| redial.pause_ms(random * 104_729)).all(|p| (30_000..=45_000).contains(&p)));
        redial.up();
        assert_eq!(redial, Redial::default());
    }
}
