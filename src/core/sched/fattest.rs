//! Finds, in constant time, a tenant whose queue is among the longest for its weight.

use hashbrown::HashMap;

use crate::tenant::TenantKey;

/// Queues shorter than this power of two for their weight are not tracked: with so little each, no bound is reached.
const RANK_MIN: u8 = 10;

/// Tenants that an empty rank keeps room for.
const RANK_KEEP: usize = 4;

/// Tenants by the power of two of (held bytes / weight): the top one is within a factor of two of the longest.
#[derive(Debug)]
pub(super) struct Fattest {
    ranks: [Vec<TenantKey>; 64],
    places: HashMap<TenantKey, usize>,
    /// A bit for each rank that has tenants.
    used: u64,
}

impl Default for Fattest {
    fn default() -> Self {
        Self { ranks: std::array::from_fn(|_| Vec::new()), places: HashMap::new(), used: 0 }
    }
}

impl Fattest {
    /// The rank of a queue; zero when it is not worth tracking.
    pub(super) fn rank(held: usize, weight: u32) -> u8 {
        let rank = (held as u64 / u64::from(weight.max(1))).checked_ilog2().unwrap_or(0);
        u8::try_from(rank).ok().filter(|rank| *rank >= RANK_MIN).unwrap_or(0)
    }

    /// Moves a tenant between two different ranks.
    pub(super) fn set(&mut self, tenant: TenantKey, from: u8, to: u8) {
        if from > 0
            && let Some(place) = self.places.remove(&tenant)
            && let Some(list) = self.ranks.get_mut(usize::from(from))
            && place < list.len()
        {
            list.swap_remove(place);
            if let Some(moved) = list.get(place) {
                self.places.insert(*moved, place);
            }
            if list.is_empty() {
                // A tenant alone goes up and down through the ranks all the time.
                if list.capacity() > RANK_KEEP {
                    *list = Vec::new();
                }
                self.used &= !(1 << from);
            }
        }
        if to > 0
            && let Some(list) = self.ranks.get_mut(usize::from(to))
        {
            self.places.insert(tenant, list.len());
            list.push(tenant);
            self.used |= 1 << to;
        }
    }

    /// A tenant of the highest rank.
    pub(super) fn top(&self) -> Option<TenantKey> {
        let rank = self.used.checked_ilog2()?;
        self.ranks.get(usize::try_from(rank).ok()?)?.last().copied()
    }

    /// Tracked tenants.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }
}
