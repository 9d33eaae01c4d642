//! Lists of numbers in extensions, little-endian.

/// A list of u32, never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct U32List<'a>(&'a [[u8; 4]]);

impl<'a> U32List<'a> {
    pub(super) fn parse(value: &'a [u8]) -> Option<Self> {
        match value.as_chunks::<4>() {
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

    /// The numbers in the order sent.
    #[must_use]
    pub fn iter(self) -> impl ExactSizeIterator<Item = u32> + Clone + 'a {
        self.0.iter().map(|item| u32::from_le_bytes(*item))
    }
}

/// A list of u64, never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct U64List<'a>(&'a [[u8; 8]]);

impl<'a> U64List<'a> {
    pub(super) fn parse(value: &'a [u8]) -> Option<Self> {
        match value.as_chunks::<8>() {
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

    /// The numbers in the order sent.
    #[must_use]
    pub fn iter(self) -> impl ExactSizeIterator<Item = u64> + Clone + 'a {
        self.0.iter().map(|item| u64::from_le_bytes(*item))
    }
}
