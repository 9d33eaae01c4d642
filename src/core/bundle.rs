//! The signed bundle as a checked value (DESIGN section 3).
//!
//! The bytes and their signatures are the node's concern; this module takes contents that were verified and answers
//! questions of them: who may issue whom, which edges carry which tenants, who is revoked. Unknown means no.

use crate::identity::KeyId;
use crate::limits::MAX_PAYLOAD_BYTES_DEFAULT;
use crate::name::{Label, NodeId, TenantId};
use crate::rate::RateLimits;
use crate::sched::EdgeTerms;
use crate::time::UnixTime;

mod admission;
mod checked;
mod error;
mod holding;
mod resign;

pub use checked::{Bundle, BundleState};
pub use error::{BundleError, Entries};
pub use holding::{Holding, Piece, SignedHead, Standing};
pub use resign::{Resign, ResignHold, SignerState, resign, resign_pause_ms};

/// SHA-256 of one section's bytes, as the head lists it.
pub type SectionDigest = [u8; 32];

/// How tenant ids relate to `O=`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TenantIdForm {
    /// The id is the O itself.
    #[default]
    Plain,
    /// The id is `tn-` and a keyed hash of the O.
    Opaque,
}

/// Contents of a head: what every broker of the fabric may know. It names no tenant but the superusers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The fabric's name.
    pub fabric: Label,
    /// Epoch of the bundle key; orders bundles before the version.
    pub epoch: u64,
    /// Version within the epoch.
    pub version: u64,
    /// Keys of the fabric's roots.
    pub roots: Vec<KeyId>,
    /// Brokers with the keys that may issue their leaves.
    pub nodes: Vec<NodeEntry>,
    /// Tenants whose clients are superusers.
    pub superusers: Vec<TenantId>,
    /// Edges between brokers, without their tenants.
    pub edges: Vec<EdgeEntry>,
    /// Largest payload of one message, in bytes, fabric-wide.
    pub max_payload_bytes: u32,
    /// How tenant ids relate to `O=`.
    pub tenant_id_form: TenantIdForm,
    /// The one broker that may sign the same contents afresh.
    pub resigner: Option<NodeId>,
    /// Revoked leaves of brokers; those of agents are in their tenant's section, which not every broker holds.
    pub revocations: Vec<Revocation>,
    /// One digest per tenant section, strictly ascending.
    pub sections: Vec<SectionDigest>,
    /// When it was signed.
    pub issued: UnixTime,
    /// When it expires.
    pub expires: UnixTime,
}

impl Head {
    /// When half of its life has passed: it is to be signed afresh from then on.
    #[must_use]
    pub const fn half_life(&self) -> UnixTime {
        let (issued, expires) = (self.issued.0, self.expires.0);
        UnixTime(issued.saturating_add(expires.saturating_sub(issued) / 2))
    }

    /// A head with no brokers, tenants or edges, version 1 of epoch 1.
    #[must_use]
    pub const fn empty(fabric: Label, issued: UnixTime, expires: UnixTime) -> Self {
        Self {
            fabric,
            epoch: 1,
            version: 1,
            roots: Vec::new(),
            nodes: Vec::new(),
            superusers: Vec::new(),
            edges: Vec::new(),
            max_payload_bytes: MAX_PAYLOAD_BYTES_DEFAULT,
            tenant_id_form: TenantIdForm::Plain,
            resigner: None,
            revocations: Vec::new(),
            sections: Vec::new(),
            issued,
            expires,
        }
    }
}

/// A broker and the keys that may issue its leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEntry {
    /// The broker.
    pub node: NodeId,
    /// Tenant named in its leaf: the operator's organisation.
    pub tenant: TenantId,
    /// Keys of the CAs that may issue its leaf.
    pub issuers: Vec<KeyId>,
}

/// An adjacency of two brokers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EdgeEntry {
    /// The edge's name, unique in the fabric.
    pub name: Label,
    /// One end, the lesser node id.
    pub a: NodeId,
    /// The other end.
    pub b: NodeId,
}

/// Contents of one tenant's section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// The tenant.
    pub tenant: TenantId,
    /// Random bytes, so that the digest in the head tells nothing of the name.
    pub nonce: [u8; 16],
    /// CAs that may issue this tenant's agents, and in which regions.
    pub issuers: Vec<IssuerEntry>,
    /// Names of the edges that may carry this tenant.
    pub edges: Vec<Label>,
    /// What other tenants may do here.
    pub grants: Vec<Grant>,
    /// Share of every edge, at least 1.
    pub weight: u32,
    /// Most sessions on one node, zero for no limit beyond the node's.
    pub sessions_max: u32,
    /// What it and each of its sessions may publish through one node.
    pub limits: RateLimits,
    /// Weights of its classes, and the most it may send over any edge.
    pub terms: EdgeTerms,
    /// Most bytes that all its sessions on one node may hold together, `None` for no limit beyond the node's.
    pub memory_bytes: Option<u64>,
    /// Who is revoked.
    pub revocations: Vec<Revocation>,
    /// The tenant's own allow and deny lists per agent; deny wins.
    pub rules: Vec<AgentRule>,
    /// Whether reply subjects `_INBOX.<region>.<agent>.…` belong to their agent only.
    pub owner_only_replies: bool,
}

impl Section {
    /// A section that allows nothing yet.
    #[must_use]
    pub const fn new(tenant: TenantId, nonce: [u8; 16]) -> Self {
        Self {
            tenant,
            nonce,
            issuers: Vec::new(),
            edges: Vec::new(),
            grants: Vec::new(),
            weight: 1,
            sessions_max: 0,
            limits: RateLimits::NONE,
            terms: EdgeTerms::DEFAULT,
            memory_bytes: None,
            revocations: Vec::new(),
            rules: Vec::new(),
            owner_only_replies: false,
        }
    }
}

/// A CA that may issue agents of the section's tenant in the named regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuerEntry {
    /// The CA's key.
    pub key: KeyId,
    /// Regions (`OU=`) it may write into leaves of this tenant.
    pub regions: Vec<Label>,
}

/// A named grant: clients of `tenant` may do `access` on `filter` of the section's tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The grant's name, for logs.
    pub name: Label,
    /// The tenant that receives the right.
    pub tenant: TenantId,
    /// Whether it may publish; otherwise it may subscribe.
    pub write: bool,
    /// The raw filter it covers, in any class.
    pub filter: crate::name::RawFilter,
}

/// A revocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Revocation {
    /// One certificate.
    Serial {
        /// Key that issued it.
        issuer: KeyId,
        /// Its serial number, big-endian, without leading zeros.
        serial: Vec<u8>,
    },
    /// Every certificate of the agent, or of all agents of the region, issued before a date: a thief renews.
    IssuedBefore {
        /// The region.
        region: Label,
        /// The agent; `None` for all.
        agent: Option<Label>,
        /// Certificates whose validity starts before this are revoked. Issuers date leaves back by minutes, so a
        /// replacement is made at least that much later.
        before: UnixTime,
    },
}

/// One line of a tenant's own rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentRule {
    /// The region it applies to; `None` for all.
    pub region: Option<Label>,
    /// The agent it applies to; `None` for all.
    pub agent: Option<Label>,
    /// Whether it forbids; otherwise it allows, and what no allow line names is refused for agents that have any.
    pub deny: bool,
    /// Whether it speaks of publishing; otherwise of subscribing and delivery.
    pub write: bool,
    /// The raw filter it covers.
    pub filter: crate::name::RawFilter,
}

#[cfg(test)]
mod tests;
