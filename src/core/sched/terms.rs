//! What one tenant gets of every edge beside its weight, and how its classes share it, as the bundle says it.

use std::fmt;

use super::CLASS_WEIGHTS_DEFAULT;
use crate::limits::{CLASS_WEIGHT_MAX, EDGE_CAP_BYTES_MIN, RATE_BYTES_MAX};
use crate::name::Class;

/// Weights of a tenant's classes, and the most it may send over any one edge; lists are indexed by class.
///
/// Weights share what the tenant gets among its classes, of an edge and of what goes to any one of its sessions, and take
/// nothing from others. Caps hold on each edge for itself and count the bytes of frames, without the heads of slices and
/// packets; each is `None` for no cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EdgeTerms {
    /// Weights of the classes within the tenant, at least 1.
    pub class_weights: [u32; 4],
    /// Bytes per second of all classes together.
    pub bytes_per_s: Option<u64>,
    /// Bytes per second of each class.
    pub class_bytes_per_s: [Option<u64>; 4],
}

impl EdgeTerms {
    /// The default weights, and no caps.
    pub const DEFAULT: Self =
        Self { class_weights: CLASS_WEIGHTS_DEFAULT, bytes_per_s: None, class_bytes_per_s: [None; 4] };

    /// Whether anything is capped.
    #[must_use]
    pub fn is_capped(&self) -> bool {
        self.bytes_per_s.is_some() || self.class_bytes_per_s.iter().any(Option::is_some)
    }

    /// Whether every value is within its range. A cap of nothing is none: who may not use an edge is not allowed on it.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let mut caps = self.class_bytes_per_s.iter().chain([&self.bytes_per_s]).flatten();
        self.class_weights.iter().all(|weight| (1..=CLASS_WEIGHT_MAX).contains(weight))
            && caps.all(|cap| (EDGE_CAP_BYTES_MIN..=RATE_BYTES_MAX).contains(cap))
    }
}

impl Default for EdgeTerms {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl fmt::Display for EdgeTerms {
    /// What differs from the default, in words; `default` for nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if self.class_weights != CLASS_WEIGHTS_DEFAULT {
            let weights = Class::ALL.iter().zip(self.class_weights);
            let weights: Vec<_> = weights.map(|(class, weight)| format!("{class} {weight}")).collect();
            parts.push(format!("weights {}", weights.join(", ")));
        }
        parts.extend(self.bytes_per_s.map(|cap| format!("at most {cap} bytes/s")));
        for (class, cap) in Class::ALL.iter().zip(self.class_bytes_per_s) {
            parts.extend(cap.map(|cap| format!("{class} at most {cap} bytes/s")));
        }
        f.write_str(if parts.is_empty() { "default" } else { "" })?;
        f.write_str(&parts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_told_in_words() {
        assert_eq!(EdgeTerms::DEFAULT.to_string(), "default");
        let terms = EdgeTerms {
            class_weights: [1, 2, 3, 4],
            bytes_per_s: Some(100_000),
            class_bytes_per_s: [None, None, None, Some(20_000)],
        };
        let text = "weights live 1, ctrl 2, tele 3, bulk 4; at most 100000 bytes/s; bulk at most 20000 bytes/s";
        assert_eq!(terms.to_string(), text);
        assert!(terms.is_capped() && !EdgeTerms::DEFAULT.is_capped());
    }

    #[test]
    fn values_out_of_range_are_told() {
        assert!(EdgeTerms::DEFAULT.is_valid());
        let of = |change: fn(&mut EdgeTerms)| {
            let mut terms = EdgeTerms::DEFAULT;
            change(&mut terms);
            terms.is_valid()
        };
        assert!(of(|t| t.class_weights = [CLASS_WEIGHT_MAX; 4]));
        assert!(!of(|t| t.class_weights[3] = 0) && !of(|t| t.class_weights[0] = CLASS_WEIGHT_MAX + 1));
        assert!(of(|t| t.bytes_per_s = Some(EDGE_CAP_BYTES_MIN)));
        assert!(of(|t| t.class_bytes_per_s[1] = Some(RATE_BYTES_MAX)));
        assert!(!of(|t| t.bytes_per_s = Some(EDGE_CAP_BYTES_MIN - 1)));
        assert!(!of(|t| t.class_bytes_per_s[1] = Some(RATE_BYTES_MAX + 1)));
    }
}
