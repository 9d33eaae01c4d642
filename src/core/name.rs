//! Names: tenants, labels, classes, destinations and filters (DESIGN section 2).
//!
//! Everything here is parsed once, at the boundary, by one fallible constructor per type; afterwards nothing is
//! re-validated. [`Destination::qualify`] is the only way from a client's text to a destination, and a text whose first
//! token is `T` always yields the tenant it names: only policy decides whether the caller may.

mod destination;
mod filter;
mod label;

pub use destination::{Class, ClassSet, Destination, OwnedName, RawName};
pub use filter::{Filter, RawFilter, TenantPattern};
pub use label::{Label, NodeId, QueueGroup, TenantId};

/// Why a text is not a name. The texts never quote the input; the caller escapes and adds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum NameError {
    /// The text is empty.
    #[error("null/empty destination")]
    Empty,
    /// The text is longer than its limit in [`crate::limits`].
    #[error("name is too long")]
    TooLong,
    /// The name has more tokens than [`crate::limits::NAME_TOKENS_MAX`].
    #[error("name has too many tokens")]
    TooManyTokens,
    /// Two dots in a row, or a dot at an end.
    #[error("empty token in name")]
    EmptyToken,
    /// A control character, white space, or bytes that are not UTF-8.
    #[error("control character, space or bad UTF-8 in name")]
    BadCharacter,
    /// A tenant id outside `[A-Za-z0-9][A-Za-z0-9_-]{0,62}`.
    #[error("tenant id is not of the form [A-Za-z0-9][A-Za-z0-9_-]{{0,62}}")]
    BadTenant,
    /// A literal tenant id that begins with the prefix of opaque ids.
    #[error("tenant id begins with the reserved prefix 'tn-'")]
    ReservedTenant,
    /// A region or agent label outside the same form.
    #[error("label is not of the form [A-Za-z0-9][A-Za-z0-9_-]{{0,62}}")]
    BadLabel,
    /// The text begins with the token `T` but has no tenant, class and raw part.
    #[error("qualified name is not of the form T.<tenant>.<class>.<name>")]
    Incomplete,
    /// The class token is none of `live`, `ctrl`, `tele`, `bulk`.
    #[error("unknown class in qualified name")]
    UnknownClass,
    /// A comma in a qualified name: there are no composite destinations.
    #[error("composite destination")]
    Composite,
    /// The raw part of a qualified name begins with the token `T` again.
    #[error("qualified name inside a qualified name")]
    Nested,
    /// `>` before the last token of a filter.
    #[error("'>' is only allowed as the last token of a filter")]
    MisplacedTail,
}

/// Checks the grammar shared by raw names and raw filters and returns it as text.
pub(crate) fn check_raw(bytes: &[u8]) -> Result<&str, NameError> {
    if bytes.is_empty() {
        return Err(NameError::Empty);
    }
    if bytes.len() > crate::limits::RAW_BYTES_MAX {
        return Err(NameError::TooLong);
    }
    let mut previous = b'.';
    let mut tokens = 1usize;
    let mut ascii = true;
    for &byte in bytes {
        if byte == b'.' {
            if previous == b'.' {
                return Err(NameError::EmptyToken);
            }
            tokens += 1;
        }
        if byte <= b' ' || byte == 0x7f {
            return Err(NameError::BadCharacter);
        }
        ascii &= byte < 0x80;
        previous = byte;
    }
    if previous == b'.' {
        return Err(NameError::EmptyToken);
    }
    if tokens > crate::limits::NAME_TOKENS_MAX {
        return Err(NameError::TooManyTokens);
    }
    let text = std::str::from_utf8(bytes).map_err(|_| NameError::BadCharacter)?;
    if !ascii && text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(NameError::BadCharacter);
    }
    Ok(text)
}

/// Splits a text whose first token is `T` into what follows it; `None` when the first token is another.
pub(crate) fn qualified_rest(bytes: &[u8]) -> Option<&[u8]> {
    match bytes {
        [b'T'] => Some(&[]),
        [b'T', b'.', rest @ ..] => Some(rest),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
