//! Trust: roots, the signed bundle, certificate verification, and TLS configurations made from them.
//!
//! [`Trust`] is immutable: one value per trust epoch, from which every listener and dialler is configured. A change of
//! the bundle makes a new one, and whoever holds a connection asks the new one again. It guarantees that a principal
//! comes from a chain that webpki verified, with the issuer of the verified path and not of the presented chain, and
//! that the bundle admits it. It never takes a name from anything but the certificate, and a bad certificate is never
//! treated as none.

use std::sync::Arc;

use glocal_core::bundle::{Bundle, BundleState};
use glocal_core::deny::Deny;
use glocal_core::identity::{LeafName, Principal, Role};
use glocal_core::name::{NodeId, TenantId};
use glocal_core::time::UnixTime;
use rustls_pki_types::CertificateDer;

mod chain;
mod credential;
mod link;
mod peer;
mod refusal;
mod signed;
mod signing;
mod tenant_leaf;
#[cfg(test)]
pub(crate) mod testing;
pub mod tls;
mod verifier;

pub use chain::{Roots, Usage, VerifiedChain};
pub use credential::{CredentialError, NodeIdentity};
pub use link::{LinkKeyError, NodeLinkCrypto, admit_by};
pub use peer::PeerChain;
pub use refusal::{Refusals, Side, deny_of, deny_of_alert, deny_of_quic};
pub use signed::{
    BundleFileError, BundleLoadError, Unsigned, load_bundle, load_bundle_file, read_bundle_file, section_piece,
    verify_head,
};
pub use signing::{BundleSigner, SignerError, check_private};
pub use tenant_leaf::{BridgeCertificates, TenantLeafError, load_tenant_leaf};
pub use verifier::{BridgePeerVerifier, BridgeVerifier, NativeVerifier};

use chain::ChainCache;

/// What local configuration adds to the bundle: it only narrows.
#[derive(Clone, Debug, Default)]
pub struct TrustOptions {
    /// Superuser tenants of this node; they count only if the bundle lists them, too. `None` for all of the bundle's.
    pub superusers: Option<Vec<TenantId>>,
    /// The tenant of connections without a certificate; `None` to refuse them.
    pub anonymous: Option<TenantId>,
}

/// Why a trust epoch cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// None of the configured roots is a root of the bundle.
    #[error("none of the configured roots is in the bundle")]
    NoCommonRoot,
    /// The bundle does not admit this node's own certificate.
    #[error("the bundle does not admit it as node {node}: {}", reason.template())]
    OwnCertificate {
        /// The node it names.
        node: NodeId,
        /// Why not.
        reason: Deny,
    },
    /// The anonymous tenant may not be used as such.
    #[error("'{tenant}' may not be used without a certificate: {}", reason.template())]
    Anonymous {
        /// The tenant.
        tenant: TenantId,
        /// Why not.
        reason: Deny,
    },
    /// The new bundle is of another fabric.
    #[error("the bundle is of another fabric")]
    OtherFabric,
    /// The new bundle is older than the one in use.
    #[error("bundle {epoch}.{version} is older than the one in use")]
    OlderBundle {
        /// Its epoch.
        epoch: u64,
        /// Its version.
        version: u64,
    },
    /// The new bundle has epoch and version of the one in use, but other contents: someone signed twice.
    #[error("two different bundles {epoch}.{version}: the first is kept")]
    Equivocation {
        /// Its epoch.
        epoch: u64,
        /// Its version.
        version: u64,
    },
}

/// One trust epoch of this node.
#[derive(Debug)]
pub struct Trust {
    configured_roots: Roots,
    roots: Roots,
    bundle: Arc<Bundle>,
    identity: NodeIdentity,
    options: TrustOptions,
    cache: Arc<ChainCache>,
    refusals: Arc<Refusals>,
}

impl Trust {
    /// The first trust epoch.
    ///
    /// Of the configured roots, only those the bundle lists are used.
    ///
    /// # Errors
    /// Why it cannot begin: this node's own certificate must be admitted, too.
    pub fn new(
        roots: Roots,
        bundle: Arc<Bundle>,
        identity: NodeIdentity,
        options: TrustOptions,
        now: UnixTime,
    ) -> Result<Self, TrustError> {
        let used = roots.listed_in(&bundle.head().roots).ok_or(TrustError::NoCommonRoot)?;
        let trust = Self {
            configured_roots: roots,
            roots: used,
            bundle,
            identity,
            options,
            cache: Arc::default(),
            refusals: Arc::default(),
        };
        trust.check(now)?;
        Ok(trust)
    }

    /// The next trust epoch, with a newer bundle. Chains verified so far need no cryptography again, only admission.
    ///
    /// # Errors
    /// Why it cannot begin; this one then stays in force.
    pub fn renew(&self, bundle: Arc<Bundle>, now: UnixTime) -> Result<Self, TrustError> {
        self.renew_with(bundle, self.options.clone(), now)
    }

    /// As [`Trust::renew`], with other local options.
    ///
    /// # Errors
    /// As [`Trust::renew`].
    pub fn renew_with(&self, bundle: Arc<Bundle>, options: TrustOptions, now: UnixTime) -> Result<Self, TrustError> {
        let (old, new) = (self.bundle.head(), bundle.head());
        let (epoch, version) = (new.epoch, new.version);
        if new.fabric != old.fabric {
            return Err(TrustError::OtherFabric);
        }
        if (epoch, version) < (old.epoch, old.version) {
            return Err(TrustError::OlderBundle { epoch, version });
        }
        if (epoch, version) == (old.epoch, old.version) && new != old {
            return Err(TrustError::Equivocation { epoch, version });
        }
        let trust = Self {
            configured_roots: self.configured_roots.clone(),
            roots: self.configured_roots.listed_in(&new.roots).ok_or(TrustError::NoCommonRoot)?,
            bundle,
            identity: self.identity.clone(),
            options,
            cache: self.cache.clone(),
            refusals: self.refusals.clone(),
        };
        trust.check(now)?;
        Ok(trust)
    }

    fn check(&self, now: UnixTime) -> Result<(), TrustError> {
        let node = self.node().clone();
        for usage in [Usage::Client, Usage::Server] {
            let admitted = self.verify(self.identity.chain(), usage, now).and_then(|chain| {
                // An expired bundle is told by its own error when it is read, and by its state afterwards.
                self.bundle.retain_node(&chain.leaf, chain.issuer, now)
            });
            if let Err(reason) = admitted {
                return Err(TrustError::OwnCertificate { node, reason });
            }
        }
        match &self.options.anonymous {
            Some(tenant) => self
                .bundle
                .admit_anonymous(tenant.as_str(), now)
                .map_err(|reason| TrustError::Anonymous { tenant: tenant.clone(), reason }),
            None => Ok(()),
        }
    }

    /// The roots that local configuration trusts, whether the bundle lists them or not: a bundle is verified with these.
    #[must_use]
    pub const fn configured_roots(&self) -> &Roots {
        &self.configured_roots
    }

    /// The bundle.
    #[must_use]
    pub const fn bundle(&self) -> &Arc<Bundle> {
        &self.bundle
    }

    /// How old the bundle is.
    #[must_use]
    pub fn bundle_state(&self, now: UnixTime) -> BundleState {
        self.bundle.state(now)
    }

    /// This node's certificate and key.
    #[must_use]
    pub const fn identity(&self) -> &NodeIdentity {
        &self.identity
    }

    /// This node, as its certificate names it.
    #[must_use]
    pub const fn node(&self) -> &NodeId {
        self.identity.node()
    }

    /// Whether a connection without a certificate is let in.
    #[must_use]
    pub const fn admits_anonymous(&self) -> bool {
        self.options.anonymous.is_some()
    }

    /// Refused handshakes, counted by reason over all epochs.
    #[must_use]
    pub const fn refusals(&self) -> &Arc<Refusals> {
        &self.refusals
    }

    /// The principal of a new client session. `chain` is what the peer presented, leaf first; empty without one.
    ///
    /// # Errors
    /// Why it is refused. A bad chain is never taken for no chain.
    pub fn identify_client(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> Result<Principal, Deny> {
        if chain.is_empty() {
            return self.anonymous(now);
        }
        let verified = self.verify(chain, Usage::Client, now)?;
        let role = self.bundle.admit_client(&verified.leaf, verified.issuer, now)?;
        Ok(self.principal(&verified, role))
    }

    /// The principal of a client session that exists, asked again after a change or from time to time. The session
    /// ends when it is refused, or is another principal than before.
    ///
    /// # Errors
    /// Why the session must end.
    pub fn retain_client(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> Result<Principal, Deny> {
        if chain.is_empty() {
            let tenant = self.options.anonymous.clone().ok_or(Deny::NoCertificate)?;
            return self.bundle.retain_anonymous(tenant.as_str(), now).map(|()| Principal::anonymous(tenant));
        }
        let verified = self.verify(chain, Usage::Client, now)?;
        let role = self.bundle.retain_client(&verified.leaf, verified.issuer, now)?;
        Ok(self.principal(&verified, role))
    }

    /// The principal of a broker that opens a bridge to this one, or whose bridge this one opens (`usage`).
    ///
    /// # Errors
    /// Why it is refused; without an edge between the two it is an unknown node.
    pub fn identify_node(&self, chain: &[CertificateDer<'_>], usage: Usage, now: UnixTime) -> Result<Principal, Deny> {
        let verified = self.verify(chain, usage, now)?;
        let peer = self.bundle.admit_node(&verified.leaf, verified.issuer, now)?;
        self.neighbour(&verified, &peer)
    }

    /// The principal of a broker on a bridge that exists, asked again after a change or from time to time.
    ///
    /// # Errors
    /// Why the bridge must be closed.
    pub fn retain_node(&self, chain: &[CertificateDer<'_>], usage: Usage, now: UnixTime) -> Result<Principal, Deny> {
        let verified = self.verify(chain, usage, now)?;
        let peer = self.bundle.retain_node(&verified.leaf, verified.issuer, now)?;
        self.neighbour(&verified, &peer)
    }

    /// The broker that a chain names, neighbour or not, as the signer of link state.
    ///
    /// # Errors
    /// Why it is none of the fabric's.
    pub fn admit_broker(&self, chain: &[CertificateDer<'_>], usage: Usage, now: UnixTime) -> Result<NodeId, Deny> {
        let verified = self.verify(chain, usage, now)?;
        self.bundle.retain_node(&verified.leaf, verified.issuer, now)
    }

    fn neighbour(&self, verified: &VerifiedChain, peer: &NodeId) -> Result<Principal, Deny> {
        let own = self.node();
        let is_neighbour = peer != own && self.bundle.edges_of(own).any(|edge| edge.a == *peer || edge.b == *peer);
        if !is_neighbour {
            return Err(Deny::UnknownNode);
        }
        // It is the broker it was admitted as.
        let leaf = LeafName { node: Some(peer.clone()), ..verified.leaf.clone() };
        Ok(Principal::from_leaf(leaf, Role::Node, verified.issuer, verified.fingerprint))
    }

    fn anonymous(&self, now: UnixTime) -> Result<Principal, Deny> {
        let tenant = self.options.anonymous.clone().ok_or(Deny::NoCertificate)?;
        self.bundle.admit_anonymous(tenant.as_str(), now)?;
        Ok(Principal::anonymous(tenant))
    }

    fn principal(&self, verified: &VerifiedChain, role: Role) -> Principal {
        let narrowed = self.options.superusers.as_ref().is_some_and(|here| !here.contains(&verified.leaf.tenant));
        let role = if role == Role::Superuser && narrowed { Role::Tenant } else { role };
        Principal::from_leaf(verified.leaf.clone(), role, verified.issuer, verified.fingerprint)
    }

    /// Verifies a presented chain, leaf first, or remembers that it was.
    ///
    /// # Errors
    /// Why no path leads to a root, or the leaf names nobody.
    pub fn verify(
        &self,
        chain: &[CertificateDer<'_>],
        usage: Usage,
        now: UnixTime,
    ) -> Result<Arc<VerifiedChain>, Deny> {
        self.cache.verify(&self.roots, chain, usage, now)
    }
}

/// The wall clock.
#[must_use]
pub fn unix_now() -> UnixTime {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    UnixTime(i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests;
