//! Switching single guards off, in one test-only build.
//!
//! A test of an attack proves something only if the attack succeeds without the guard. Builds with `--cfg glocal_guards`
//! (`GLOCAL_GUARDS_BUILD=1`, debug profile only) can switch guards off by name; in every other build [`off`] is `false`
//! at compile time and nothing of this exists at run time.

/// A guard that overlaps with others, each of which must refuse alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Guard {
    /// The sending end of an edge checks the effective set before it queues.
    EdgeSender,
    /// The receiving end of an edge checks the effective set before it routes.
    EdgeReceiver,
    /// Policy refuses names of other tenants.
    CrossTenant,
    /// The bundle binds issuers to tenants, regions and roles.
    IssuerBinding,
    /// A bridge needs a certificate with a node name.
    NodeName,
    /// A comma in a qualified name is refused.
    Composite,
}

impl Guard {
    /// Every guard.
    pub const ALL: [Self; 6] =
        [Self::EdgeSender, Self::EdgeReceiver, Self::CrossTenant, Self::IssuerBinding, Self::NodeName, Self::Composite];

    /// The name used in `GLOCAL_GUARDS_OFF`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::EdgeSender => "edge-sender",
            Self::EdgeReceiver => "edge-receiver",
            Self::CrossTenant => "cross-tenant",
            Self::IssuerBinding => "issuer-binding",
            Self::NodeName => "node-name",
            Self::Composite => "composite",
        }
    }
}

#[cfg(glocal_guards)]
static OFF: std::sync::OnceLock<Vec<Guard>> = std::sync::OnceLock::new();

/// Switches the named guards off for this process, once; returns names that are no guard. Test builds only.
#[cfg(glocal_guards)]
pub fn switch_off(names: &str) -> Vec<String> {
    let wanted: Vec<&str> = names.split(',').filter(|n| !n.is_empty()).collect();
    let known = |name: &str| Guard::ALL.into_iter().find(|g| g.as_str() == name);
    let _ = OFF.set(wanted.iter().filter_map(|n| known(n)).collect());
    wanted.iter().filter(|n| known(n).is_none()).map(|n| (*n).to_owned()).collect()
}

/// Whether a test has switched `guard` off.
#[cfg(glocal_guards)]
#[must_use]
pub fn off(guard: Guard) -> bool {
    OFF.get().is_some_and(|off| off.contains(&guard))
}

/// Whether a test has switched `guard` off: never, in this build.
#[cfg(not(glocal_guards))]
#[must_use]
pub const fn off(_guard: Guard) -> bool {
    false
}
