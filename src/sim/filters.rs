//! Scale of interest: a million filters on one broker, ten million in a mesh, what they cost and whom they cost it.
//!
//! Brokers are the engine's drivers, subscriptions pass policy, and what brokers say to each other travels as bytes in
//! lanes. Time and memory are measured by whoever runs this: a [`Gauge`] is an argument, so that the world knows no clock.

pub mod mesh;
pub mod node;
pub mod site;
pub(crate) mod wires;

/// What the runner measures with.
pub trait Gauge {
    /// A clock that never goes back, in nanoseconds.
    fn nanos(&self) -> u64;
    /// Time that this process has spent on a processor, in nanoseconds: others disturb it less. As fine as some milliseconds.
    fn cpu_nanos(&self) -> u64;
    /// Memory this process holds, in bytes.
    fn resident_bytes(&self) -> u64;
}

/// Filters of one unit of a plant, and names by which they are found.
const KINDS: u64 = 10;
/// Sites over which the units of a tenant are spread.
const SITES: u64 = 20;
/// Queue groups of one tenant.
const GROUPS: u64 = 4;

/// The filter `number`, and its queue group if it has one: six of ten are literal, two have a `*`, two end in `>`; of two to
/// five tokens; one of ten is in a queue group. Different numbers make different filters.
#[must_use]
pub fn filter(number: u64) -> (String, Option<String>) {
    let (unit, kind) = (number / KINDS, number % KINDS);
    let site = unit % SITES;
    let text = match kind {
        0 => format!("plant.site{site}.unit{unit}.temperature"),
        1 => format!("plant.site{site}.unit{unit}.pressure"),
        2 => format!("plant.site{site}.unit{unit}.status"),
        3 => format!("orders.{unit}.created"),
        4 => format!("orders.{unit}.created.eu.urgent"),
        5 => format!("cmd.unit{unit}"),
        6 => format!("plant.site{site}.*.alarm{unit}"),
        7 => format!("plant.site{site}.unit{unit}.*"),
        8 => format!("plant.site{site}.unit{unit}.>"),
        _ => format!("orders.{unit}.>"),
    };
    (text, (kind == 2).then(|| format!("workers{}", unit % GROUPS)))
}

/// How many filters a name hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hits {
    /// None, though its first tokens are known.
    None,
    /// One.
    One,
    /// Three: a literal, one with `*` and one with `>`.
    Several,
}

impl Hits {
    /// All kinds, in the order of their figures.
    pub const ALL: [Self; 3] = [Self::None, Self::One, Self::Several];

    /// How figures name it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::One => "one",
            Self::Several => "several",
        }
    }

    /// How many filters it hits.
    #[must_use]
    pub const fn count(self) -> usize {
        match self {
            Self::None => 0,
            Self::One => 1,
            Self::Several => 3,
        }
    }

    /// A name about the unit of filter `number`, all ten filters of which are held.
    #[must_use]
    pub fn name(self, number: u64) -> String {
        let unit = number / KINDS;
        let site = unit % SITES;
        match self {
            Self::None => format!("plant.site{site}.nobody{unit}.temperature"),
            Self::One => format!("cmd.unit{unit}"),
            Self::Several => format!("plant.site{site}.unit{unit}.temperature"),
        }
    }
}

/// Median and 99th percentile of what was measured; sorts it.
#[must_use]
pub fn quantiles(measured: &mut [u64]) -> [u64; 2] {
    measured.sort_unstable();
    [50, 99].map(|percent| {
        let at = (measured.len() * percent).div_ceil(100).saturating_sub(1);
        measured.get(at).copied().unwrap_or(0)
    })
}

/// What grew from `before` to `after`, for each of `count`.
#[must_use]
pub fn each(before: u64, after: u64, count: u64) -> u64 {
    after.saturating_sub(before) / count.max(1)
}

#[cfg(test)]
mod tests;
