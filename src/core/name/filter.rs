//! Filters: what a subscription asks for.

use std::fmt;
use std::sync::Arc;

use super::{Class, ClassSet, NameError, RawName, TenantId, check_raw, qualified_rest};
use crate::guard::{Guard, off};

/// The tenants a filter covers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TenantPattern {
    /// One tenant; the only form a TENANT principal can be permitted.
    One(TenantId),
    /// Every tenant, `T.*.…`; for SUPERUSER.
    Any,
}

/// A filter over raw names; `*` is one token, a final `>` is one or more.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RawFilter(Arc<str>);

impl RawFilter {
    /// Parses a raw filter.
    ///
    /// # Errors
    /// [`NameError::Nested`] when it begins with the token `T`, [`NameError::MisplacedTail`] for `>` before the end,
    /// otherwise what is wrong with its grammar.
    pub fn parse(bytes: &[u8]) -> Result<Self, NameError> {
        if qualified_rest(bytes).is_some() {
            return Err(NameError::Nested);
        }
        let text = check_raw(bytes)?;
        let mut tokens = text.split('.').peekable();
        while let Some(token) = tokens.next() {
            if token == ">" && tokens.peek().is_some() {
                return Err(NameError::MisplacedTail);
            }
        }
        Ok(Self(Arc::from(text)))
    }

    /// The filter as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The filter's tokens; `*` and a final `>` are wildcards.
    pub fn tokens(&self) -> std::str::Split<'_, char> {
        self.0.split('.')
    }

    /// Whether the filter has no wildcard.
    #[must_use]
    pub fn is_literal(&self) -> bool {
        self.tokens().all(|t| t != "*" && t != ">")
    }

    /// Whether `name` matches, token by token. Routing uses tables; this is their reference.
    #[must_use]
    pub fn matches(&self, name: RawName<'_>) -> bool {
        let mut names = name.tokens();
        let mut filters = self.tokens();
        loop {
            match (filters.next(), names.next()) {
                (Some(">"), Some(_)) | (None, None) => return true,
                (Some("*"), Some(_)) => {}
                (Some(filter), Some(name)) if filter == name => {}
                _ => return false,
            }
        }
    }

    /// The region and agent whose inbox this filter names outright, `inbox.<region>.<agent>[.…]`; `None` when a
    /// wildcard stands in either place, since delivery then skips inboxes of others.
    #[must_use]
    pub fn inbox_owner(&self) -> Option<(&str, &str)> {
        let mut tokens = self.0.strip_prefix("inbox.")?.split('.');
        let (region, agent) = (tokens.next()?, tokens.next()?);
        let literal = |t: &str| t != "*" && t != ">";
        (literal(region) && literal(agent)).then_some((region, agent))
    }
}

impl fmt::Display for RawFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for RawFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// A parsed filter: tenants, classes and a raw filter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Filter {
    tenant: TenantPattern,
    classes: ClassSet,
    raw: RawFilter,
    qualified: bool,
}

impl Filter {
    /// Reads `text` as a client of tenant `own` means it: qualified when its first token is `T`, otherwise a raw filter
    /// over `own` in any class. The result may cover other tenants; only policy decides whether that is allowed.
    ///
    /// # Errors
    /// What is wrong with the filter; an unknown class is refused.
    pub fn qualify(own: &TenantId, text: &[u8]) -> Result<Self, NameError> {
        match qualified_rest(text) {
            Some(rest) => Self::parse_rest(rest),
            None => Ok(Self {
                tenant: TenantPattern::One(own.clone()),
                classes: ClassSet::ALL,
                raw: RawFilter::parse(text)?,
                qualified: false,
            }),
        }
    }

    /// A filter from the parts of one that was parsed before.
    pub(crate) const fn of(tenant: TenantPattern, classes: ClassSet, raw: RawFilter, qualified: bool) -> Self {
        Self { tenant, classes, raw, qualified }
    }

    fn parse_rest(rest: &[u8]) -> Result<Self, NameError> {
        if rest.contains(&b',') && !off(Guard::Composite) {
            return Err(NameError::Composite);
        }
        let mut parts = rest.splitn(3, |b| *b == b'.');
        let (tenant, class, raw) = match (parts.next(), parts.next(), parts.next()) {
            (Some(b">"), None, None) => (&b"*"[..], &b"*"[..], &b">"[..]),
            (Some(tenant), Some(b">"), None) => (tenant, &b"*"[..], &b">"[..]),
            (Some(tenant), Some(class), Some(raw)) => (tenant, class, raw),
            _ => return Err(NameError::Incomplete),
        };
        let tenant = match tenant {
            b"*" => TenantPattern::Any,
            id => TenantPattern::One(TenantId::parse(std::str::from_utf8(id).map_err(|_| NameError::BadTenant)?)?),
        };
        let classes = match class {
            b"*" => ClassSet::ALL,
            name => std::str::from_utf8(name)
                .ok()
                .and_then(Class::from_name)
                .map(ClassSet::one)
                .ok_or(NameError::UnknownClass)?,
        };
        Ok(Self { tenant, classes, raw: RawFilter::parse(raw)?, qualified: true })
    }

    /// The tenants covered.
    #[must_use]
    pub const fn tenant(&self) -> &TenantPattern {
        &self.tenant
    }

    /// The classes covered.
    #[must_use]
    pub const fn classes(&self) -> ClassSet {
        self.classes
    }

    /// The raw filter.
    #[must_use]
    pub const fn raw(&self) -> &RawFilter {
        &self.raw
    }

    /// Whether the client wrote the qualified form, and so wants qualified names back.
    #[must_use]
    pub const fn is_qualified(&self) -> bool {
        self.qualified
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.tenant {
            TenantPattern::One(id) => write!(f, "T.{id}.")?,
            TenantPattern::Any => f.write_str("T.*.")?,
        }
        let mut classes = Class::ALL.into_iter().filter(|c| self.classes.contains(*c));
        match (classes.next(), classes.next()) {
            (Some(class), None) => write!(f, "{class}.{}", self.raw),
            _ => write!(f, "*.{}", self.raw),
        }
    }
}

impl RawFilter {
    /// Whether every name that `other` matches is matched by this filter too.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let mut mine = self.tokens();
        let mut theirs = other.tokens();
        loop {
            match (mine.next(), theirs.next()) {
                (Some(">"), Some(_)) | (None, None) => return true,
                (Some("*"), Some(token)) if token != ">" => {}
                (Some(mine), Some(token)) if mine == token && token != "*" && token != ">" => {}
                _ => return false,
            }
        }
    }
}
