//! Why the contents of a bundle are refused.

use std::fmt;

use crate::identity::KeyId;
use crate::name::{Label, NodeId, TenantId};

/// The lists of a bundle whose length is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entries {
    /// Root keys.
    Roots,
    /// Brokers.
    Nodes,
    /// Edges.
    Edges,
    /// Superuser tenants.
    Superusers,
    /// Section digests.
    Sections,
    /// Issuer keys.
    Issuers,
    /// Regions of an issuer key.
    Regions,
    /// Grants.
    Grants,
    /// Agent rules.
    Rules,
    /// Revocations.
    Revocations,
}

impl fmt::Display for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Roots => "roots",
            Self::Nodes => "nodes",
            Self::Edges => "edges",
            Self::Superusers => "superusers",
            Self::Sections => "sections",
            Self::Issuers => "issuers",
            Self::Regions => "regions of an issuer",
            Self::Grants => "grants",
            Self::Rules => "rules",
            Self::Revocations => "revocations",
        })
    }
}

/// The invariant a head or section breaks, and the entry that breaks it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BundleError {
    /// Epochs and versions count from 1, so that zero can mean "none yet".
    #[error("epoch and version must be at least 1")]
    ZeroVersion,
    /// The bundle would be expired when it is signed.
    #[error("the bundle expires before it is issued")]
    Dates,
    /// The payload limit is zero or above the ceiling.
    #[error("max_payload of {0} bytes is not between 1 and the ceiling")]
    MaxPayload(u32),
    /// Opaque tenant ids need keyed hashes, which this release cannot compute.
    #[error("opaque tenant ids are not yet supported")]
    OpaqueTenantIds,
    /// A fabric without a root trusts nobody.
    #[error("the head lists no root")]
    NoRoot,
    /// A list is longer than its limit.
    #[error("too many {entries}: {count}")]
    TooMany {
        /// Which list.
        entries: Entries,
        /// How many it has.
        count: usize,
    },
    /// A root key is listed twice.
    #[error("root {0} is listed twice")]
    RepeatedRoot(KeyId),
    /// A superuser tenant is listed twice.
    #[error("superuser '{0}' is listed twice")]
    RepeatedSuperuser(TenantId),
    /// A broker is listed twice.
    #[error("node {0} is listed twice")]
    RepeatedNode(NodeId),
    /// Nobody may issue the broker's leaf, so it could never connect.
    #[error("node {0} has no issuer")]
    NodeWithoutIssuer(NodeId),
    /// An issuer of a broker is listed twice.
    #[error("node {node} lists issuer {issuer} twice")]
    RepeatedNodeIssuer {
        /// The broker.
        node: NodeId,
        /// The issuer.
        issuer: KeyId,
    },
    /// The one re-signer is not a broker of the fabric.
    #[error("re-signer {0} is not a node of the fabric")]
    UnknownResigner(NodeId),
    /// An edge is listed twice.
    #[error("edge '{0}' is listed twice")]
    RepeatedEdge(Label),
    /// The ends of an edge are not in ascending order, or are the same broker.
    #[error("ends of edge '{0}' are not in ascending order")]
    EdgeOrder(Label),
    /// An edge ends at a broker that is not listed.
    #[error("edge '{edge}' ends at {node}, which is not a node of the fabric")]
    UnknownEdgeEnd {
        /// The edge.
        edge: Label,
        /// The broker.
        node: NodeId,
    },
    /// The head's digests are not strictly ascending.
    #[error("section digests of the head are not strictly ascending")]
    DigestOrder,
    /// The head does not list the section's digest.
    #[error("the head does not list the section of '{0}'")]
    UnlistedSection(TenantId),
    /// There are two sections of one tenant.
    #[error("tenant '{0}' has two sections")]
    RepeatedSection(TenantId),
    /// The same section, or another with the same digest, is there twice.
    #[error("the digest of the section of '{0}' is used twice")]
    RepeatedDigest(TenantId),
    /// A limit of what the tenant may publish is out of its range.
    #[error("a rate limit of tenant '{tenant}' is out of range")]
    Limits {
        /// The tenant.
        tenant: TenantId,
    },
    /// A weight of a class of the tenant, or a cap of it, is out of its range.
    #[error("a class weight or a cap of tenant '{tenant}' on edges is out of range")]
    Terms {
        /// The tenant.
        tenant: TenantId,
    },
    /// The tenant's bound of memory is out of its range.
    #[error("{bytes} bytes of memory of tenant '{tenant}' are out of range")]
    Memory {
        /// The tenant.
        tenant: TenantId,
        /// The bound.
        bytes: u64,
    },
    /// The tenant's weight is zero or above the limit.
    #[error("weight {weight} of tenant '{tenant}' is zero or too large")]
    Weight {
        /// The tenant.
        tenant: TenantId,
        /// Its weight.
        weight: u32,
    },
    /// The section names an edge that the head does not.
    #[error("section of '{tenant}' names unknown edge '{edge}'")]
    UnknownEdge {
        /// The tenant.
        tenant: TenantId,
        /// The edge.
        edge: Label,
    },
    /// The section names an edge twice.
    #[error("section of '{tenant}' names edge '{edge}' twice")]
    RepeatedSectionEdge {
        /// The tenant.
        tenant: TenantId,
        /// The edge.
        edge: Label,
    },
    /// An issuer of the tenant is listed twice.
    #[error("section of '{tenant}' lists issuer {issuer} twice")]
    RepeatedIssuer {
        /// The tenant.
        tenant: TenantId,
        /// The issuer.
        issuer: KeyId,
    },
    /// An issuer of the tenant has no region, so it could issue nothing.
    #[error("issuer {issuer} of tenant '{tenant}' has no region")]
    IssuerWithoutRegion {
        /// The tenant.
        tenant: TenantId,
        /// The issuer.
        issuer: KeyId,
    },
    /// Two grants of one section have the same name.
    #[error("section of '{tenant}' has two grants named '{grant}'")]
    RepeatedGrant {
        /// The tenant.
        tenant: TenantId,
        /// The grant.
        grant: Label,
    },
    /// A grant to the tenant itself.
    #[error("grant '{grant}' of tenant '{tenant}' is to itself")]
    GrantToSelf {
        /// The tenant.
        tenant: TenantId,
        /// The grant.
        grant: Label,
    },
    /// A serial number that no certificate could have, so that the revocation would silently do nothing.
    #[error("a revoked serial number of {owner} is empty, too long or has leading zeros")]
    Serial {
        /// `nodes`, or the tenant in quotes.
        owner: String,
    },
}
