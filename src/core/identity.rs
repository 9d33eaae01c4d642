//! Identity: who a validated certificate speaks for (DESIGN sections 2 and 3).
//!
//! [`leaf_name`] reads the parsed attributes of a subject, never a printed DN. It is given the leaf whose chain
//! the caller has verified; the issuer comes from the verified path, not from the presented chain. What the certificate
//! says overrides anything a client says about itself.

use std::fmt;

use crate::deny::Deny;
use crate::name::{Label, NodeId, TenantId};
use crate::time::UnixTime;

mod leaf;

pub use leaf::{CertificateFacts, LeafName, certificate_facts, leaf_name};

/// SHA-256 of a DER SubjectPublicKeyInfo: how issuers and keys are named in bundles.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub [u8; 32]);

/// SHA-256 of a whole DER certificate.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// The first 16 hex digits, the `uid` of log lines.
    #[must_use]
    pub fn uid(&self) -> String {
        self.0.iter().take(8).map(|b| format!("{b:02x}")).collect()
    }
}

macro_rules! hex_impls {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{self}")
            }
        }
    )*};
}
hex_impls!(KeyId, Fingerprint);

/// What a principal may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// A client of a tenant listed as superuser by bundle and local configuration.
    Superuser,
    /// This node's own parts, for one named tenant per operation.
    Internal,
    /// A client of any other tenant in the bundle.
    Tenant,
    /// A broker, on an edge only.
    Node,
}

impl Role {
    /// The name used in logs, `whoami` and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Superuser => "SUPERUSER",
            Self::Internal => "INTERNAL",
            Self::Tenant => "TENANT",
            Self::Node => "NODE",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The authenticated identity of one connection.
///
/// Made from a verified certificate by [`Principal::from_leaf`], or for the configured anonymous tenant by
/// [`Principal::anonymous`]; the role is decided by the bundle, never by the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    tenant: TenantId,
    role: Role,
    region: Option<Label>,
    agent: Option<Label>,
    node: Option<NodeId>,
    issuer: Option<KeyId>,
    fingerprint: Option<Fingerprint>,
    not_after: Option<UnixTime>,
}

impl Principal {
    /// The principal a verified leaf speaks for, in the role the bundle gave it.
    #[must_use]
    pub fn from_leaf(leaf: LeafName, role: Role, issuer: KeyId, fingerprint: Fingerprint) -> Self {
        Self {
            tenant: leaf.tenant,
            role,
            region: leaf.region,
            agent: leaf.agent,
            node: leaf.node,
            issuer: Some(issuer),
            fingerprint: Some(fingerprint),
            not_after: Some(leaf.not_after),
        }
    }

    /// A client without a certificate, where the node's configuration names an anonymous tenant. Always a nameless
    /// TENANT.
    #[must_use]
    pub const fn anonymous(tenant: TenantId) -> Self {
        Self {
            tenant,
            role: Role::Tenant,
            region: None,
            agent: None,
            node: None,
            issuer: None,
            fingerprint: None,
            not_after: None,
        }
    }

    /// Whoever may open the node's own socket: the operator, who sees everything of this node.
    #[must_use]
    pub fn operator(tenant: TenantId) -> Self {
        Self { role: Role::Superuser, ..Self::anonymous(tenant) }
    }

    /// This node's own parts, acting for `tenant`.
    #[must_use]
    pub const fn internal(tenant: TenantId) -> Self {
        Self {
            tenant,
            role: Role::Internal,
            region: None,
            agent: None,
            node: None,
            issuer: None,
            fingerprint: None,
            not_after: None,
        }
    }

    /// The tenant.
    #[must_use]
    pub const fn tenant(&self) -> &TenantId {
        &self.tenant
    }

    /// The role.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// The region (`OU=`), absent for a nameless principal.
    #[must_use]
    pub const fn region(&self) -> Option<&Label> {
        self.region.as_ref()
    }

    /// The agent (`CN=`), absent for a nameless principal.
    #[must_use]
    pub const fn agent(&self) -> Option<&Label> {
        self.agent.as_ref()
    }

    /// Region and agent when both are there: only such a principal owns an inbox.
    #[must_use]
    pub fn named(&self) -> Option<(&Label, &Label)> {
        self.region.as_ref().zip(self.agent.as_ref())
    }

    /// The broker this principal is, by its URI SAN.
    #[must_use]
    pub const fn node(&self) -> Option<&NodeId> {
        self.node.as_ref()
    }

    /// The key that issued the leaf, from the verified path.
    #[must_use]
    pub const fn issuer(&self) -> Option<KeyId> {
        self.issuer
    }

    /// The leaf's fingerprint.
    #[must_use]
    pub const fn fingerprint(&self) -> Option<Fingerprint> {
        self.fingerprint
    }

    /// When the leaf expires.
    #[must_use]
    pub const fn not_after(&self) -> Option<UnixTime> {
        self.not_after
    }

    /// The `uid` of log lines: the first 16 hex digits of the leaf's fingerprint, `-` without one.
    #[must_use]
    pub fn uid(&self) -> String {
        self.fingerprint.map_or_else(|| "-".to_owned(), |f| f.uid())
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label = |l: &Option<Label>| l.as_ref().map_or("-".to_owned(), ToString::to_string);
        write!(
            f,
            "CrescoIdentity{{tenant={}, region={}, agent={}, uid={}}}",
            self.tenant,
            label(&self.region),
            label(&self.agent),
            self.uid()
        )
    }
}

/// Why a leaf names no principal; always also a [`Deny`].
pub type IdentityError = Deny;
