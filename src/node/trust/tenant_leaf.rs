//! Certificates under which a dedicated edge has the connection of one tenant (DESIGN section 6).
//!
//! Such a leaf names a broker as its own leaf does, under the same issuers, but its `O` is the tenant. It opens and accepts
//! that tenant's connection beside a bridge that is there, and nothing else: no bridge, and no session.

use std::sync::Arc;

use glocal_core::deny::Deny;
use glocal_core::identity::{Principal, leaf_name};
use glocal_core::limits::TENANTS_MAX;
use glocal_core::name::{NodeId, TenantId};
use glocal_core::time::UnixTime;
use hashbrown::HashMap;
use parking_lot::RwLock;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::CertificateDer;

use super::{CredentialError, NodeIdentity, Trust, Usage, unix_now};
use crate::config::TenantCertificate;

/// What is wrong with a configured certificate of a tenant.
#[derive(Debug, thiserror::Error)]
pub enum TenantLeafError {
    /// The certificate or key file.
    #[error(transparent)]
    Credential(#[from] CredentialError),
    /// It is of another broker.
    #[error("{file}: is of {certified}, not of this node, {node}")]
    OtherNode {
        /// The file.
        file: String,
        /// By certificate.
        certified: NodeId,
        /// This node.
        node: NodeId,
    },
    /// It is of another tenant.
    #[error("{file}: is of tenant '{certified}', not of '{tenant}'")]
    OtherTenant {
        /// The file.
        file: String,
        /// By certificate.
        certified: TenantId,
        /// By configuration.
        tenant: TenantId,
    },
    /// The bundle does not admit it.
    #[error("{file}: the bundle does not admit it: {}", reason.template())]
    NotAdmitted {
        /// The file.
        file: String,
        /// Why not.
        reason: Deny,
    },
}

/// Reads a configured certificate: it must be of this node and of the tenant it is configured for. What the bundle says of
/// it is asked when it is used.
///
/// # Errors
/// What is wrong, naming the file.
pub fn load_tenant_leaf(
    configured: &TenantCertificate,
    node: &NodeId,
    now: UnixTime,
) -> Result<NodeIdentity, TenantLeafError> {
    let identity = NodeIdentity::load(&configured.certificate, &configured.key, now)?;
    let file = configured.certificate.display().to_string();
    if identity.node() != node {
        return Err(TenantLeafError::OtherNode { file, certified: identity.node().clone(), node: node.clone() });
    }
    let leaf = identity.chain().first().ok_or(Deny::NoCertificate).and_then(|leaf| leaf_name(leaf));
    let leaf = leaf.map_err(|reason| CredentialError::BadCertificate { file: file.clone(), reason })?;
    if leaf.tenant == configured.tenant {
        Ok(identity)
    } else {
        Err(TenantLeafError::OtherTenant { file, certified: leaf.tenant, tenant: configured.tenant.clone() })
    }
}

impl Trust {
    /// Reads a configured certificate for a connection that is made now.
    ///
    /// # Errors
    /// As [`load_tenant_leaf`], and what the bundle has against it.
    pub fn tenant_leaf(&self, configured: &TenantCertificate, now: UnixTime) -> Result<NodeIdentity, TenantLeafError> {
        let identity = load_tenant_leaf(configured, self.node(), now)?;
        for usage in [Usage::Client, Usage::Server] {
            let admitted = self.verify(identity.chain(), usage, now);
            let admitted = admitted.and_then(|chain| self.bundle().retain_tenant_leaf(&chain.leaf, chain.issuer, now));
            if let Err(reason) = admitted {
                return Err(TenantLeafError::NotAdmitted {
                    file: configured.certificate.display().to_string(),
                    reason,
                });
            }
        }
        Ok(identity)
    }

    /// The broker, and the tenant it stands for, of a leaf that is not its own but of one tenant. The principal's tenant is
    /// that tenant.
    ///
    /// # Errors
    /// Why it is refused; without an edge between the two it is an unknown node.
    pub fn identify_tenant_leaf(
        &self,
        chain: &[CertificateDer<'_>],
        usage: Usage,
        now: UnixTime,
    ) -> Result<Principal, Deny> {
        let verified = self.verify(chain, usage, now)?;
        let peer = self.bundle().admit_tenant_leaf(&verified.leaf, verified.issuer, now)?;
        self.neighbour(&verified, &peer)
    }

    /// As [`Trust::identify_tenant_leaf`], for a connection that exists.
    ///
    /// # Errors
    /// Why it must be closed.
    pub fn retain_tenant_leaf(
        &self,
        chain: &[CertificateDer<'_>],
        usage: Usage,
        now: UnixTime,
    ) -> Result<Principal, Deny> {
        let verified = self.verify(chain, usage, now)?;
        let peer = self.bundle().retain_tenant_leaf(&verified.leaf, verified.issuer, now)?;
        self.neighbour(&verified, &peer)
    }

    /// The broker that dials the bridge port, by its own leaf or by one of a tenant: which of them, its first frame must fit.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn identify_dialler(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> Result<Principal, Deny> {
        self.identify_node(chain, Usage::Client, now).or_else(|reason| match reason {
            Deny::IssuerBinding => self.identify_tenant_leaf(chain, Usage::Client, now).map_err(|_| reason),
            reason => Err(reason),
        })
    }
}

/// What a broker presents on its bridge port: its own leaf, or that of a tenant to whoever asks by a name that only the
/// other end of a live bridge can know. Read again for every connection, so that a renewed file is used at once.
#[derive(Debug)]
pub struct BridgeCertificates {
    own: Arc<CertifiedKey>,
    node: NodeId,
    named: RwLock<HashMap<String, TenantCertificate>>,
}

impl BridgeCertificates {
    /// The node's own leaf, for everybody.
    #[must_use]
    pub fn new(identity: &NodeIdentity) -> Arc<Self> {
        let (own, node) = (identity.certified_key(), identity.node().clone());
        Arc::new(Self { own, node, named: RwLock::default() })
    }

    /// From now on, whoever asks by `name` is presented this certificate.
    pub fn insert(&self, name: String, certificate: TenantCertificate) {
        let mut named = self.named.write();
        if named.len() < TENANTS_MAX {
            named.insert(name, certificate);
        }
    }

    /// From now on, whoever asks by `name` is presented the node's own leaf.
    pub fn remove(&self, name: &str) {
        self.named.write().remove(name);
    }
}

impl ResolvesServerCert for BridgeCertificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let configured = hello.server_name().and_then(|name| self.named.read().get(name).cloned());
        let Some(configured) = configured else { return Some(Arc::clone(&self.own)) };
        match load_tenant_leaf(&configured, &self.node, unix_now()) {
            Ok(identity) => Some(identity.certified_key()),
            Err(error) => {
                tracing::error!(tenant = %configured.tenant, "a tenant's connection is refused: {error}");
                None
            }
        }
    }
}
