//! The one source of chance: a small generator whose numbers follow from the seed on every machine.

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The generator of `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The next eight bits.
    pub const fn byte(&mut self) -> u8 {
        let [byte, ..] = self.bits().to_le_bytes();
        byte
    }

    /// A number below `end`, zero when `end` is.
    pub fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { usize::try_from(self.bits() % end as u64).unwrap_or(0) }
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// `true` in `percent` of 100 cases.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of the items; `None` of none.
    pub fn pick<'i, T>(&mut self, items: &'i [T]) -> Option<&'i T> {
        items.get(self.below(items.len()))
    }
}

/// A hash of everything that happened, in order: equal for equal seeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace(u64);

impl Default for Trace {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Trace {
    /// Takes note of a number.
    pub fn number(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    /// Takes note of bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        let words = words.iter().map(|word| u64::from_le_bytes(*word));
        for word in words.chain(rest.iter().map(|byte| u64::from(*byte))) {
            self.0 = (self.0 ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
        }
    }

    /// The hash.
    #[must_use]
    pub const fn hash(&self) -> u64 {
        self.0
    }
}
