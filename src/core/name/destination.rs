//! Classes and destinations.

use std::fmt;

use super::{NameError, TenantId, check_raw, qualified_rest};
use crate::guard::{Guard, off};

/// The MsgQoS tier of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Class {
    /// At most once, newest matters most: a full lane drops its oldest.
    Live = 0,
    /// Control: acknowledged, in order, small.
    Ctrl = 1,
    /// Telemetry: at most once, a full lane drops its newest.
    Tele = 2,
    /// Bulk: acknowledged, in order, large.
    Bulk = 3,
}

impl Class {
    /// Every class, in the order of its wire code.
    pub const ALL: [Self; 4] = [Self::Live, Self::Ctrl, Self::Tele, Self::Bulk];

    /// The class with this wire code.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Live),
            1 => Some(Self::Ctrl),
            2 => Some(Self::Tele),
            3 => Some(Self::Bulk),
            _ => None,
        }
    }

    /// The class with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|c| c.as_str() == name)
    }

    /// The wire code, 0 to 3.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The index into per-class arrays, 0 to 3.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The name used in destinations, logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Ctrl => "ctrl",
            Self::Tele => "tele",
            Self::Bulk => "bulk",
        }
    }

    /// Whether the class is acknowledged and slows its publishers instead of dropping.
    #[must_use]
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Ctrl | Self::Bulk)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A set of classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassSet(u8);

impl ClassSet {
    /// All four classes.
    pub const ALL: Self = Self(0b1111);

    /// The set of one class.
    #[must_use]
    pub const fn one(class: Class) -> Self {
        Self(1 << class.code())
    }

    /// The set with these bits, one per class code; `None` when empty or with unknown bits.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Option<Self> {
        if bits == 0 || bits > 0b1111 { None } else { Some(Self(bits)) }
    }

    /// One bit per class code.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Whether `class` is in the set.
    #[must_use]
    pub const fn contains(self, class: Class) -> bool {
        self.0 & (1 << class.code()) != 0
    }
}

/// A raw name: 1 byte to 1 KiB of dot-separated tokens, none empty, without control characters or white space, and
/// never beginning with the token `T`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RawName<'a>(&'a str);

impl<'a> RawName<'a> {
    /// Parses a raw name.
    ///
    /// # Errors
    /// [`NameError::Nested`] when it begins with the token `T`, otherwise what is wrong with its grammar.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, NameError> {
        if qualified_rest(bytes).is_some() {
            return Err(NameError::Nested);
        }
        Ok(Self(check_raw(bytes)?))
    }

    /// The name as text.
    #[must_use]
    pub const fn as_str(self) -> &'a str {
        self.0
    }

    /// The name's tokens.
    pub fn tokens(self) -> std::str::Split<'a, char> {
        self.0.split('.')
    }

    /// The region and agent of an agent inbox `inbox.<region>.<agent>[.…]`; `None` for any other name.
    #[must_use]
    pub fn inbox_owner(self) -> Option<(&'a str, &'a str)> {
        let rest = self.0.strip_prefix("inbox.")?;
        let mut tokens = rest.split('.');
        Some((tokens.next()?, tokens.next()?))
    }
}

/// A raw name that owns its text: what was parsed once is lent as a name without being parsed again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OwnedName(Box<str>);

impl OwnedName {
    /// The name.
    #[must_use]
    pub const fn name(&self) -> RawName<'_> {
        RawName(&self.0)
    }
}

impl From<RawName<'_>> for OwnedName {
    fn from(name: RawName<'_>) -> Self {
        Self(Box::from(name.0))
    }
}

impl fmt::Display for RawName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl fmt::Debug for RawName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

/// A parsed destination, `T.<tenant>.<class>.<raw>`, borrowed from the frame it came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Destination<'a> {
    tenant: &'a str,
    class: Class,
    raw: RawName<'a>,
    qualified: bool,
}

impl<'a> Destination<'a> {
    /// Reads `text` as a client of tenant `own` means it: a qualified name when its first token is `T`, otherwise a raw
    /// name of `own` in `class`. The result may name another tenant; only policy decides whether that is allowed.
    ///
    /// # Errors
    /// What is wrong with the name; nothing is trimmed, folded or repaired.
    pub fn qualify(own: &'a TenantId, class: Class, text: &'a [u8]) -> Result<Self, NameError> {
        match qualified_rest(text) {
            Some(rest) => Self::parse_rest(rest),
            None => Ok(Self { tenant: own.as_str(), class, raw: RawName::parse(text)?, qualified: false }),
        }
    }

    /// Parses a qualified name, `T.<tenant>.<class>.<raw>`.
    ///
    /// # Errors
    /// [`NameError::Incomplete`] when it does not begin with the token `T`, otherwise what is wrong with it.
    pub fn parse(text: &'a [u8]) -> Result<Self, NameError> {
        Self::parse_rest(qualified_rest(text).ok_or(NameError::Incomplete)?)
    }

    fn parse_rest(rest: &'a [u8]) -> Result<Self, NameError> {
        if rest.contains(&b',') && !off(Guard::Composite) {
            return Err(NameError::Composite);
        }
        let mut parts = rest.splitn(3, |b| *b == b'.');
        let (tenant, class, raw) = match (parts.next(), parts.next(), parts.next()) {
            (Some(tenant), Some(class), Some(raw)) => (tenant, class, raw),
            _ => return Err(NameError::Incomplete),
        };
        let tenant = std::str::from_utf8(tenant).map_err(|_| NameError::BadTenant)?;
        TenantId::check(tenant)?;
        let class = std::str::from_utf8(class).ok().and_then(Class::from_name).ok_or(NameError::UnknownClass)?;
        Ok(Self { tenant, class, raw: RawName::parse(raw)?, qualified: true })
    }

    /// The destination of `raw` in `tenant` and `class`, as relays and the node's own parts build it.
    #[must_use]
    pub fn of(tenant: &'a TenantId, class: Class, raw: RawName<'a>) -> Self {
        Self { tenant: tenant.as_str(), class, raw, qualified: true }
    }

    /// The tenant's id; it has the grammar of [`TenantId`] but need not exist in this fabric.
    #[must_use]
    pub const fn tenant(&self) -> &'a str {
        self.tenant
    }

    /// The class.
    #[must_use]
    pub const fn class(&self) -> Class {
        self.class
    }

    /// The raw name.
    #[must_use]
    pub const fn raw(&self) -> RawName<'a> {
        self.raw
    }

    /// Whether the client wrote the qualified form.
    #[must_use]
    pub const fn is_qualified(&self) -> bool {
        self.qualified
    }
}

impl fmt::Display for Destination<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "T.{}.{}.{}", self.tenant, self.class, self.raw)
    }
}
