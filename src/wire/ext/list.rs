//! Lists of numbers in extensions, little-endian.

/// A list of numbers of `N` bytes each, never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List<'a, const N: usize>(&'a [[u8; N]]);

/// A list of u32, never empty.
pub type U32List<'a> = List<'a, 4>;

/// A list of u64, never empty.
pub type U64List<'a> = List<'a, 8>;

impl<'a, const N: usize> List<'a, N> {
    pub(super) fn parse(value: &'a [u8]) -> Option<Self> {
        match value.as_chunks::<N>() {
            ([], _) => None,
            (items, []) => Some(Self(items)),
            _ => None,
        }
    }

    /// How many.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub const fn len(self) -> usize {
        self.0.len()
    }
}

impl<'a> U32List<'a> {
    /// The numbers in the order sent.
    #[must_use]
    pub fn iter(self) -> impl ExactSizeIterator<Item = u32> + Clone + 'a {
        self.0.iter().map(|item| u32::from_le_bytes(*item))
    }
}

impl<'a> U64List<'a> {
    /// The numbers in the order sent.
    #[must_use]
    pub fn iter(self) -> impl ExactSizeIterator<Item = u64> + Clone + 'a {
        self.0.iter().map(|item| u64::from_le_bytes(*item))
    }
}
