//! What a tenant and its sessions may publish through one broker, as the bundle and the configuration say it.

use std::fmt;

use crate::limits::{RATE_BURST_MS_DEFAULT, RATE_BURST_MS_MAX, RATE_BYTES_MAX, RATE_MESSAGES_MAX};

/// Limits of one tenant on one broker, each `None` for no limit. They are enforced from local facts: a tenant with sessions
/// on three brokers has them three times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimits {
    /// Messages per second of all its sessions together.
    pub messages_per_s: Option<u64>,
    /// Bytes per second of all its sessions together: names, reply subjects, headers and payloads.
    pub bytes_per_s: Option<u64>,
    /// How long the rates may be saved up, in milliseconds: a burst is what a rate gives in that time.
    pub burst_ms: u32,
    /// Share of the tenant's rates that `live` may take, in percent.
    pub live_percent: u8,
    /// Share of the tenant's rates that `ctrl` may take, in percent.
    pub ctrl_percent: u8,
    /// Messages per second of each session.
    pub session_messages_per_s: Option<u64>,
    /// Bytes per second of each session.
    pub session_bytes_per_s: Option<u64>,
}

impl RateLimits {
    /// No limit at all.
    pub const NONE: Self = Self {
        messages_per_s: None,
        bytes_per_s: None,
        burst_ms: RATE_BURST_MS_DEFAULT,
        live_percent: 100,
        ctrl_percent: 100,
        session_messages_per_s: None,
        session_bytes_per_s: None,
    };

    /// These limits where they are below what a broker lets any tenant and session have, else the broker's.
    #[must_use]
    pub fn within(self, bounds: &RateBounds) -> Self {
        Self {
            messages_per_s: least(self.messages_per_s, bounds.tenant_messages_per_s),
            bytes_per_s: least(self.bytes_per_s, bounds.tenant_bytes_per_s),
            session_messages_per_s: least(self.session_messages_per_s, bounds.session_messages_per_s),
            session_bytes_per_s: least(self.session_bytes_per_s, bounds.session_bytes_per_s),
            ..self
        }
    }

    /// Whether anything is limited.
    #[must_use]
    pub const fn is_limited(&self) -> bool {
        self.messages_per_s.is_some()
            || self.bytes_per_s.is_some()
            || self.session_messages_per_s.is_some()
            || self.session_bytes_per_s.is_some()
    }

    /// Whether every value is within its range. A rate of nothing is none: who may not publish has no session.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let rate = |rate: Option<u64>, max: u64| rate.is_none_or(|rate| (1..=max).contains(&rate));
        let percent = |percent: u8| (1..=100).contains(&percent);
        rate(self.messages_per_s, RATE_MESSAGES_MAX)
            && rate(self.session_messages_per_s, RATE_MESSAGES_MAX)
            && rate(self.bytes_per_s, RATE_BYTES_MAX)
            && rate(self.session_bytes_per_s, RATE_BYTES_MAX)
            && (1..=RATE_BURST_MS_MAX).contains(&self.burst_ms)
            && percent(self.live_percent)
            && percent(self.ctrl_percent)
    }
}

impl fmt::Display for RateLimits {
    /// What is limited, in words; `none` for nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        let mut rate = |rate: Option<u64>, of: &str| parts.extend(rate.map(|rate| format!("{rate} {of}")));
        rate(self.messages_per_s, "messages/s");
        rate(self.bytes_per_s, "bytes/s");
        rate(self.session_messages_per_s, "messages/s of a session");
        rate(self.session_bytes_per_s, "bytes/s of a session");
        for (percent, class) in [(self.live_percent, "live"), (self.ctrl_percent, "ctrl")] {
            if percent != 100 {
                parts.push(format!("{percent} % of them for {class}"));
            }
        }
        if self.is_limited() || self.burst_ms != RATE_BURST_MS_DEFAULT {
            parts.push(format!("bursts of {} ms", self.burst_ms));
        }
        f.write_str(if parts.is_empty() { "none" } else { "" })?;
        f.write_str(&parts.join(", "))
    }
}

impl Default for RateLimits {
    fn default() -> Self {
        Self::NONE
    }
}

/// What one broker lets any tenant and any session have, whatever the bundle allows; each `None` for no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateBounds {
    /// Messages per second of one tenant.
    pub tenant_messages_per_s: Option<u64>,
    /// Bytes per second of one tenant.
    pub tenant_bytes_per_s: Option<u64>,
    /// Messages per second of one session.
    pub session_messages_per_s: Option<u64>,
    /// Bytes per second of one session.
    pub session_bytes_per_s: Option<u64>,
}

fn least(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_only_narrows() {
        let limits = RateLimits { messages_per_s: Some(10), session_bytes_per_s: Some(5), ..RateLimits::NONE };
        assert_eq!(limits.within(&RateBounds::default()), limits);
        let bounds = RateBounds {
            tenant_messages_per_s: Some(20),
            tenant_bytes_per_s: Some(7),
            session_messages_per_s: None,
            session_bytes_per_s: Some(4),
        };
        let both = limits.within(&bounds);
        assert_eq!((both.messages_per_s, both.bytes_per_s), (Some(10), Some(7)));
        assert_eq!((both.session_messages_per_s, both.session_bytes_per_s), (None, Some(4)));
        assert!(!RateLimits::NONE.is_limited() && RateLimits::NONE.within(&bounds).is_limited());
    }

    #[test]
    fn limits_are_told_in_words() {
        assert_eq!(RateLimits::NONE.to_string(), "none");
        let limits = RateLimits { live_percent: 30, session_bytes_per_s: Some(5), ..RateLimits::NONE };
        assert_eq!(limits.to_string(), "5 bytes/s of a session, 30 % of them for live, bursts of 1000 ms");
    }

    #[test]
    fn values_out_of_range_are_told() {
        assert!(RateLimits::NONE.is_valid());
        let of = |change: fn(&mut RateLimits)| {
            let mut limits = RateLimits::NONE;
            change(&mut limits);
            limits.is_valid()
        };
        assert!(of(|l| l.messages_per_s = Some(RATE_MESSAGES_MAX)) && of(|l| l.bytes_per_s = Some(1)));
        assert!(!of(|l| l.messages_per_s = Some(0)) && !of(|l| l.messages_per_s = Some(RATE_MESSAGES_MAX + 1)));
        assert!(!of(|l| l.bytes_per_s = Some(0)) && !of(|l| l.session_bytes_per_s = Some(RATE_BYTES_MAX + 1)));
        assert!(!of(|l| l.session_messages_per_s = Some(0)) && !of(|l| l.burst_ms = 0));
        assert!(!of(|l| l.burst_ms = RATE_BURST_MS_MAX + 1) && !of(|l| l.live_percent = 101));
        assert!(!of(|l| l.live_percent = 0) && !of(|l| l.ctrl_percent = 0));
    }
}
