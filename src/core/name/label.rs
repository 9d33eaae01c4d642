//! Tenant ids, region and agent labels, node ids, queue group names.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use super::NameError;
use crate::limits::{LABEL_BYTES_MAX, QUEUE_GROUP_BYTES_MAX};

/// Prefix of opaque tenant ids, which no literal id may have.
pub(crate) const OPAQUE_PREFIX: &str = "tn-";

fn has_label_form(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() <= LABEL_BYTES_MAX
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_' || *b == b'-')
}

/// The organisation named by exactly one `O=` of a validated certificate: `[A-Za-z0-9][A-Za-z0-9_-]{0,62}`, compared
/// byte for byte, never trimmed or folded.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(Arc<str>);

impl TenantId {
    /// Parses a literal tenant id.
    ///
    /// # Errors
    /// [`NameError::BadTenant`] outside the grammar, [`NameError::ReservedTenant`] for the prefix `tn-`.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        Self::check(text)?;
        Ok(Self(Arc::from(text)))
    }

    /// Checks a literal tenant id without making one.
    ///
    /// # Errors
    /// As [`TenantId::parse`].
    pub fn check(text: &str) -> Result<(), NameError> {
        if !has_label_form(text) {
            return Err(NameError::BadTenant);
        }
        if text.starts_with(OPAQUE_PREFIX) {
            return Err(NameError::ReservedTenant);
        }
        Ok(())
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A region (`OU=`) or agent (`CN=`) name; the grammar of tenant ids.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(Arc<str>);

impl Label {
    /// Parses a label.
    ///
    /// # Errors
    /// [`NameError::BadLabel`] outside the grammar.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        if has_label_form(text) { Ok(Self(Arc::from(text))) } else { Err(NameError::BadLabel) }
    }

    /// The label as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A broker's name, `<region>/<agent>`, ordered as the bytes of that text.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct NodeId {
    region: Label,
    agent: Label,
}

impl NodeId {
    /// The node `agent` of `region`.
    #[must_use]
    pub const fn new(region: Label, agent: Label) -> Self {
        Self { region, agent }
    }

    /// Parses `<region>/<agent>`.
    ///
    /// # Errors
    /// [`NameError::BadLabel`] when there is not exactly one `/` or a part is outside the grammar.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let (region, agent) = text.split_once('/').ok_or(NameError::BadLabel)?;
        Ok(Self { region: Label::parse(region)?, agent: Label::parse(agent)? })
    }

    /// The node's region.
    #[must_use]
    pub const fn region(&self) -> &Label {
        &self.region
    }

    /// The node's agent name.
    #[must_use]
    pub const fn agent(&self) -> &Label {
        &self.agent
    }
}

impl Ord for NodeId {
    fn cmp(&self, other: &Self) -> Ordering {
        fn text(id: &NodeId) -> impl Iterator<Item = u8> + '_ {
            id.region.as_str().bytes().chain(*b"/").chain(id.agent.as_str().bytes())
        }
        text(self).cmp(text(other))
    }
}

impl PartialOrd for NodeId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The name of a queue group: 1 to 128 bytes, no control character or white space. Few filters have one, and all have a place
/// for it: that is one pointer, not an address and a length.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueGroup(Arc<Box<str>>);

impl QueueGroup {
    /// Parses a queue group name.
    ///
    /// # Errors
    /// [`NameError::Empty`], [`NameError::TooLong`] or [`NameError::BadCharacter`].
    pub fn parse(text: &str) -> Result<Self, NameError> {
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        if text.len() > QUEUE_GROUP_BYTES_MAX {
            return Err(NameError::TooLong);
        }
        if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(NameError::BadCharacter);
        }
        Ok(Self(Arc::new(Box::from(text))))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

macro_rules! text_impls {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }
        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    )*};
}
text_impls!(TenantId, Label, QueueGroup);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.region, self.agent)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_ids_follow_the_grammar() {
        for good in ["a", "acme", "Acme", "0", "a_b-c", &"x".repeat(63), "tn", "tnx-", "Tn-a"] {
            assert_eq!(TenantId::parse(good).map(|t| t.as_str().to_owned()), Ok(good.to_owned()));
        }
        for bad in ["", " acme", "acme ", "acme.eu", "-a", "_a", "*", ">", "a,b", "a\0", "é", &"x".repeat(64)] {
            assert_eq!(TenantId::parse(bad), Err(NameError::BadTenant), "{bad:?}");
        }
        assert_eq!(TenantId::parse("tn-acme"), Err(NameError::ReservedTenant));
    }

    #[test]
    fn node_ids_order_as_their_text() {
        let id = |t| NodeId::parse(t).unwrap();
        assert!(id("a-b/c") < id("a/c"), "'-' sorts before '/'");
        assert!(id("a/b") < id("a/c"));
        for bad in ["a", "a/", "/a", "a/b/c", "a b/c"] {
            assert!(NodeId::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn queue_groups_are_plain_words() {
        assert!(QueueGroup::parse("T.beta").is_ok(), "a group name is only a name");
        assert_eq!(QueueGroup::parse(""), Err(NameError::Empty));
        assert_eq!(QueueGroup::parse("a b"), Err(NameError::BadCharacter));
        assert_eq!(QueueGroup::parse(&"g".repeat(129)), Err(NameError::TooLong));
    }
}
