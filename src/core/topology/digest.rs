//! Digests: what two neighbours know, compared in 64 parts, so that only what differs is told again.
//!
//! They find drift between honest brokers. A broker that lies in its own digest harms what it is told itself.

use super::{FabricEdge, Item, LinkState, Topology};

/// Parts of a digest.
pub const BUCKETS: usize = 64;

/// What one broker knows, in short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digest {
    /// Over everything.
    pub root: u64,
    /// Over each part; empty where the root alone is told.
    pub buckets: Vec<u64>,
}

impl Topology {
    /// What is known here, in short.
    pub(super) fn digest(&self, with_buckets: bool) -> Digest {
        let mut buckets = vec![0u64; BUCKETS];
        for (_, bucket, hash) in self.hashes() {
            if let Some(slot) = buckets.get_mut(bucket) {
                *slot ^= hash;
            }
        }
        let root = buckets.iter().fold(0, |root: u64, part| mix(root ^ *part));
        Digest { root, buckets: if with_buckets { buckets } else { Vec::new() } }
    }

    /// Everything known that is in a part where `theirs` differs.
    pub(super) fn differing(&self, theirs: &Digest) -> Vec<Item> {
        let own = self.digest(true);
        let differs = |bucket: usize| own.buckets.get(bucket) != theirs.buckets.get(bucket);
        self.hashes().filter(|(_, bucket, _)| differs(*bucket)).map(|(item, ..)| item).collect()
    }

    fn hashes(&self) -> impl Iterator<Item = (Item, usize, u64)> {
        let keys = self.keys.iter().filter_map(|(broker, key)| {
            let name = self.brokers.name(*broker)?.to_string();
            Some((Item::Key(*broker), bucket(&name), hash(&name, &[key.incarnation])))
        });
        let states = self.edges.iter().enumerate().filter_map(|(place, edge)| {
            let (name, order) = (edge.name.as_str(), order(edge)?);
            Some((Item::State(place), bucket(name), hash(name, &order)))
        });
        let observers = self.observers.iter().map(|(broker, word)| {
            let (name, (life, seq)) = (format!("{} observes", word.node), word.order());
            (Item::Observer(*broker), bucket(&name), hash(&name, &[life, seq]))
        });
        keys.chain(states).chain(observers)
    }
}

fn order(edge: &FabricEdge) -> Option<[u64; 3]> {
    let (epoch, down, revision) = edge.state.as_ref().map(LinkState::order)?;
    Some([epoch, u64::from(down), u64::from(revision)])
}

fn bucket(name: &str) -> usize {
    usize::try_from(hash(name, &[]) % BUCKETS as u64).unwrap_or(0)
}

/// FNV-1a over a name and numbers, mixed so that the exclusive or of several tells their set.
pub(crate) fn hash(name: &str, numbers: &[u64]) -> u64 {
    let bytes = name.bytes().chain([0]).chain(numbers.iter().flat_map(|number| number.to_le_bytes()));
    mix(bytes.fold(0xcbf2_9ce4_8422_2325_u64, |h, byte| (h ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)))
}

/// The finalizer of SplitMix64.
const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
