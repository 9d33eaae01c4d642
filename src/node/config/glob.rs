//! Patterns over tenant ids: how an edge's configuration narrows its tenants.

use std::fmt;

use glocal_core::name::TenantId;

/// A tenant id, a prefix of one followed by `*`, or `*` alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TenantGlob {
    /// Exactly this tenant.
    Exact(TenantId),
    /// Every tenant whose id begins so; empty for every tenant.
    Prefix(String),
}

impl TenantGlob {
    /// Parses `acme`, `acme-*` or `*`.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.strip_suffix('*') {
            Some("") => Ok(Self::Prefix(String::new())),
            Some(prefix) => {
                TenantId::check(prefix)
                    .map_err(|_| "is not a tenant id, a prefix followed by '*', or '*'".to_owned())?;
                Ok(Self::Prefix(prefix.to_owned()))
            }
            None => match TenantId::parse(text) {
                Ok(tenant) => Ok(Self::Exact(tenant)),
                Err(_) if text.contains('*') => Err("has '*' elsewhere than at its end".to_owned()),
                Err(error) => Err(error.to_string()),
            },
        }
    }

    /// Whether it names this tenant.
    #[must_use]
    pub fn matches(&self, tenant: &TenantId) -> bool {
        match self {
            Self::Exact(exact) => exact == tenant,
            Self::Prefix(prefix) => tenant.as_str().starts_with(prefix.as_str()),
        }
    }
}

impl fmt::Display for TenantGlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(tenant) => write!(f, "{tenant}"),
            Self::Prefix(prefix) => write!(f, "{prefix}*"),
        }
    }
}

/// The union of some globs; empty matches nobody.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantSet(Vec<TenantGlob>);

impl TenantSet {
    /// The union of these.
    #[must_use]
    pub const fn new(globs: Vec<TenantGlob>) -> Self {
        Self(globs)
    }

    /// Every tenant.
    #[must_use]
    pub fn all() -> Self {
        Self(vec![TenantGlob::Prefix(String::new())])
    }

    /// Whether any glob names this tenant.
    #[must_use]
    pub fn matches(&self, tenant: &TenantId) -> bool {
        self.0.iter().any(|glob| glob.matches(tenant))
    }

    /// The globs, in file order.
    #[must_use]
    pub fn globs(&self) -> &[TenantGlob] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_whole_ids_or_prefixes() {
        let tenant = |text| TenantId::parse(text).unwrap();
        let set = TenantSet::new(vec![TenantGlob::parse("acme-*").unwrap(), TenantGlob::parse("beta").unwrap()]);
        for (text, expected) in [("acme-eu", true), ("acme-", true), ("acme", false), ("beta", true), ("beta2", false)]
        {
            assert_eq!(set.matches(&tenant(text)), expected, "{text}");
        }
        assert!(TenantSet::all().matches(&tenant("anyone")));
        assert!(!TenantSet::default().matches(&tenant("anyone")), "an empty set is nobody");
    }

    #[test]
    fn globs_refuse_what_could_be_misread() {
        for bad in ["", "a*b", "**", "a.*", "*a", " a", "tn-x", ">", "a,b"] {
            assert!(TenantGlob::parse(bad).is_err(), "{bad:?}");
        }
    }
}
