//! Head and sections put together, every invariant checked once, with indexes for the questions asked of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::admission::RevocationIndex;
use super::{BundleError, EdgeEntry, Entries, Head, NodeEntry, Section, SectionDigest, TenantIdForm};
use crate::identity::KeyId;
use crate::limits::{
    AGENT_RULES_MAX, BUNDLE_GRACE_SECONDS, EDGES_MAX, GRANTS_MAX, ISSUER_REGIONS_MAX, ISSUERS_MAX,
    MAX_PAYLOAD_BYTES_CEILING, MEMORY_BYTES_MAX, NODES_MAX, REVOCATIONS_MAX, ROOTS_MAX, SUPERUSERS_MAX,
    TENANT_MEMORY_BYTES_MIN, TENANT_WEIGHT_MAX, TENANTS_MAX,
};
use crate::name::{Label, NodeId, TenantId};
use crate::time::UnixTime;

/// How old a bundle is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BundleState {
    /// In the first half of its life.
    Fresh,
    /// Past half of its life: warn, and have it signed afresh.
    Ageing,
    /// Expired for less than a day: sessions that exist stay, no new ones.
    Grace,
    /// Expired for a day or more: no sessions at all.
    Dead,
}

/// A checked bundle.
///
/// Its contents may be partial: a broker holds the sections of the tenants it may meet. A tenant without a section is
/// unknown, and unknown means no.
#[derive(Clone, Debug)]
pub struct Bundle {
    head: Head,
    pub(super) nodes: BTreeMap<NodeId, NodeEntry>,
    pub(super) node_revocations: RevocationIndex,
    edges: BTreeMap<Label, EdgeEntry>,
    edges_of: BTreeMap<NodeId, Vec<Label>>,
    superusers: BTreeSet<TenantId>,
    tenants: BTreeMap<TenantId, TenantEntry>,
}

/// Who may issue a tenant's agents, and in which regions.
type Issuers = Box<[(KeyId, Box<[Label]>)]>;

/// One tenant's section with its indexes.
#[derive(Clone, Debug)]
pub(super) struct TenantEntry {
    pub(super) section: Arc<Section>,
    digest: SectionDigest,
    /// In ascending order, as the two that follow: most tenants have few, and there are many tenants.
    edges: Box<[Label]>,
    pub(super) issuers: Issuers,
    pub(super) revocations: RevocationIndex,
}

impl Bundle {
    /// Puts a head and sections, whose signature and digests the caller has verified, together.
    ///
    /// # Errors
    /// The first invariant that does not hold, with the entry that breaks it.
    pub fn assemble(head: Head, sections: Vec<(SectionDigest, impl Into<Arc<Section>>)>) -> Result<Self, BundleError> {
        let sections = sections.into_iter().map(|(digest, section)| (digest, section.into())).collect();
        Self::assemble_with_stale(head, sections, Vec::new())
    }

    /// As [`Bundle::assemble`], with sections that an earlier head listed and nothing newer is known of. Of their edges
    /// those count that the head still has.
    ///
    /// # Errors
    /// As [`Bundle::assemble`].
    pub(super) fn assemble_with_stale(
        head: Head,
        sections: Vec<(SectionDigest, Arc<Section>)>,
        stale: Vec<(SectionDigest, Arc<Section>)>,
    ) -> Result<Self, BundleError> {
        check_head(&head)?;
        let nodes = index_nodes(&head)?;
        if let Some(resigner) = head.resigner.as_ref().filter(|r| !nodes.contains_key(*r)) {
            return Err(BundleError::UnknownResigner(resigner.clone()));
        }
        let edges = index_edges(&head, &nodes)?;
        let mut edges_of: BTreeMap<NodeId, Vec<Label>> = BTreeMap::new();
        for edge in edges.values() {
            edges_of.entry(edge.a.clone()).or_default().push(edge.name.clone());
            edges_of.entry(edge.b.clone()).or_default().push(edge.name.clone());
        }
        let mut superusers = BTreeSet::new();
        for tenant in &head.superusers {
            if !superusers.insert(tenant.clone()) {
                return Err(BundleError::RepeatedSuperuser(tenant.clone()));
            }
        }
        let mut tenants = index_sections(&head, &edges, sections)?;
        for (digest, mut section) in stale {
            if !section.edges.iter().all(|edge| edges.contains_key(edge)) {
                Arc::make_mut(&mut section).edges.retain(|edge| edges.contains_key(edge));
            }
            if !tenants.contains_key(&section.tenant) {
                tenants.insert(section.tenant.clone(), index_section(digest, section, &edges)?);
            }
        }
        let node_revocations = RevocationIndex::build(&head.revocations, || "nodes".to_owned())?;
        Ok(Self { head, nodes, node_revocations, edges, edges_of, superusers, tenants })
    }

    /// The head.
    #[must_use]
    pub const fn head(&self) -> &Head {
        &self.head
    }

    /// The section of a tenant, when this broker holds it.
    #[must_use]
    pub fn section(&self, tenant: &str) -> Option<&Section> {
        self.tenants.get(tenant).map(|entry| &*entry.section)
    }

    /// The digest of a tenant's section.
    #[must_use]
    pub fn section_digest(&self, tenant: &str) -> Option<SectionDigest> {
        self.tenants.get(tenant).map(|entry| entry.digest)
    }

    /// All sections held, by tenant in ascending order.
    pub fn sections(&self) -> impl ExactSizeIterator<Item = &Arc<Section>> {
        self.tenants.values().map(|entry| &entry.section)
    }

    /// A broker's entry.
    #[must_use]
    pub fn node(&self, node: &NodeId) -> Option<&NodeEntry> {
        self.nodes.get(node)
    }

    /// An edge by its name.
    #[must_use]
    pub fn edge(&self, name: &Label) -> Option<&EdgeEntry> {
        self.edges.get(name)
    }

    /// The edges of a broker, by name in ascending order.
    pub fn edges_of(&self, node: &NodeId) -> impl Iterator<Item = &EdgeEntry> {
        self.edges_of.get(node).into_iter().flatten().filter_map(|name| self.edges.get(name))
    }

    /// Whether the edge may carry the tenant.
    #[must_use]
    pub fn edge_allows(&self, edge: &Label, tenant: &str) -> bool {
        self.tenants.get(tenant).is_some_and(|entry| entry.edges.binary_search(edge).is_ok())
    }

    /// Whether the head lists the tenant as superuser.
    #[must_use]
    pub fn is_superuser(&self, tenant: &str) -> bool {
        self.superusers.contains(tenant)
    }

    /// How old the bundle is.
    #[must_use]
    pub const fn state(&self, now: UnixTime) -> BundleState {
        let (half, expires) = (self.head.half_life().0, self.head.expires.0);
        if now.0 >= expires.saturating_add(BUNDLE_GRACE_SECONDS) {
            BundleState::Dead
        } else if now.0 >= expires {
            BundleState::Grace
        } else if now.0 >= half {
            BundleState::Ageing
        } else {
            BundleState::Fresh
        }
    }

    pub(super) fn tenant(&self, tenant: &TenantId) -> Option<&TenantEntry> {
        self.tenants.get(tenant)
    }
}

const fn check_count(entries: Entries, count: usize, max: usize) -> Result<(), BundleError> {
    if count > max { Err(BundleError::TooMany { entries, count }) } else { Ok(()) }
}

fn check_head(head: &Head) -> Result<(), BundleError> {
    if head.epoch == 0 || head.version == 0 {
        return Err(BundleError::ZeroVersion);
    }
    if head.issued >= head.expires {
        return Err(BundleError::Dates);
    }
    if head.max_payload_bytes == 0 || head.max_payload_bytes > MAX_PAYLOAD_BYTES_CEILING {
        return Err(BundleError::MaxPayload(head.max_payload_bytes));
    }
    if head.tenant_id_form != TenantIdForm::Plain {
        return Err(BundleError::OpaqueTenantIds);
    }
    check_count(Entries::Roots, head.roots.len(), ROOTS_MAX)?;
    check_count(Entries::Nodes, head.nodes.len(), NODES_MAX)?;
    check_count(Entries::Edges, head.edges.len(), EDGES_MAX)?;
    check_count(Entries::Superusers, head.superusers.len(), SUPERUSERS_MAX)?;
    check_count(Entries::Sections, head.sections.len(), TENANTS_MAX)?;
    check_count(Entries::Revocations, head.revocations.len(), REVOCATIONS_MAX)?;
    if head.roots.is_empty() {
        return Err(BundleError::NoRoot);
    }
    let mut roots = BTreeSet::new();
    if let Some(root) = head.roots.iter().find(|root| !roots.insert(**root)) {
        return Err(BundleError::RepeatedRoot(*root));
    }
    if !head.sections.is_sorted_by(|a, b| a < b) {
        return Err(BundleError::DigestOrder);
    }
    Ok(())
}

fn index_nodes(head: &Head) -> Result<BTreeMap<NodeId, NodeEntry>, BundleError> {
    let mut nodes = BTreeMap::new();
    for entry in &head.nodes {
        check_count(Entries::Issuers, entry.issuers.len(), ISSUERS_MAX)?;
        if entry.issuers.is_empty() {
            return Err(BundleError::NodeWithoutIssuer(entry.node.clone()));
        }
        let mut issuers = BTreeSet::new();
        if let Some(issuer) = entry.issuers.iter().find(|issuer| !issuers.insert(**issuer)) {
            return Err(BundleError::RepeatedNodeIssuer { node: entry.node.clone(), issuer: *issuer });
        }
        if nodes.insert(entry.node.clone(), entry.clone()).is_some() {
            return Err(BundleError::RepeatedNode(entry.node.clone()));
        }
    }
    Ok(nodes)
}

fn index_edges(head: &Head, nodes: &BTreeMap<NodeId, NodeEntry>) -> Result<BTreeMap<Label, EdgeEntry>, BundleError> {
    let mut edges = BTreeMap::new();
    for edge in &head.edges {
        if edge.a >= edge.b {
            return Err(BundleError::EdgeOrder(edge.name.clone()));
        }
        if let Some(node) = [&edge.a, &edge.b].into_iter().find(|node| !nodes.contains_key(*node)) {
            return Err(BundleError::UnknownEdgeEnd { edge: edge.name.clone(), node: node.clone() });
        }
        if edges.insert(edge.name.clone(), edge.clone()).is_some() {
            return Err(BundleError::RepeatedEdge(edge.name.clone()));
        }
    }
    Ok(edges)
}

fn index_sections(
    head: &Head,
    edges: &BTreeMap<Label, EdgeEntry>,
    sections: Vec<(SectionDigest, Arc<Section>)>,
) -> Result<BTreeMap<TenantId, TenantEntry>, BundleError> {
    check_count(Entries::Sections, sections.len(), TENANTS_MAX)?;
    let mut tenants = BTreeMap::new();
    let mut digests = BTreeSet::new();
    for (digest, section) in sections {
        let tenant = section.tenant.clone();
        if head.sections.binary_search(&digest).is_err() {
            return Err(BundleError::UnlistedSection(tenant));
        }
        if !digests.insert(digest) {
            return Err(BundleError::RepeatedDigest(tenant));
        }
        if tenants.insert(tenant.clone(), index_section(digest, section, edges)?).is_some() {
            return Err(BundleError::RepeatedSection(tenant));
        }
    }
    Ok(tenants)
}

fn index_section(
    digest: SectionDigest,
    section: Arc<Section>,
    known: &BTreeMap<Label, EdgeEntry>,
) -> Result<TenantEntry, BundleError> {
    let tenant = &section.tenant;
    if !section.limits.is_valid() {
        return Err(BundleError::Limits { tenant: tenant.clone() });
    }
    if !section.terms.is_valid() {
        return Err(BundleError::Terms { tenant: tenant.clone() });
    }
    if let Some(bytes) = section.memory_bytes.filter(|bytes| !is_memory(*bytes)) {
        return Err(BundleError::Memory { tenant: tenant.clone(), bytes });
    }
    if section.weight == 0 || section.weight > TENANT_WEIGHT_MAX {
        return Err(BundleError::Weight { tenant: tenant.clone(), weight: section.weight });
    }
    check_count(Entries::Grants, section.grants.len(), GRANTS_MAX)?;
    check_count(Entries::Rules, section.rules.len(), AGENT_RULES_MAX)?;
    check_count(Entries::Revocations, section.revocations.len(), REVOCATIONS_MAX)?;
    let mut edges = BTreeSet::new();
    for edge in &section.edges {
        if !known.contains_key(edge) {
            return Err(BundleError::UnknownEdge { tenant: tenant.clone(), edge: edge.clone() });
        }
        if !edges.insert(edge.clone()) {
            return Err(BundleError::RepeatedSectionEdge { tenant: tenant.clone(), edge: edge.clone() });
        }
    }
    let mut names = BTreeSet::new();
    for grant in &section.grants {
        if grant.tenant == *tenant {
            return Err(BundleError::GrantToSelf { tenant: tenant.clone(), grant: grant.name.clone() });
        }
        if !names.insert(&grant.name) {
            return Err(BundleError::RepeatedGrant { tenant: tenant.clone(), grant: grant.name.clone() });
        }
    }
    let issuers = index_issuers(&section)?;
    let revocations = RevocationIndex::build(&section.revocations, || format!("'{tenant}'"))?;
    let edges = edges.into_iter().collect();
    Ok(TenantEntry { digest, edges, issuers, revocations, section })
}

fn is_memory(bytes: u64) -> bool {
    usize::try_from(bytes).is_ok_and(|bytes| (TENANT_MEMORY_BYTES_MIN..=MEMORY_BYTES_MAX).contains(&bytes))
}

fn index_issuers(section: &Section) -> Result<Issuers, BundleError> {
    check_count(Entries::Issuers, section.issuers.len(), ISSUERS_MAX)?;
    let mut issuers = BTreeMap::new();
    for entry in &section.issuers {
        let (tenant, issuer) = (section.tenant.clone(), entry.key);
        check_count(Entries::Regions, entry.regions.len(), ISSUER_REGIONS_MAX)?;
        if entry.regions.is_empty() {
            return Err(BundleError::IssuerWithoutRegion { tenant, issuer });
        }
        let regions: BTreeSet<Label> = entry.regions.iter().cloned().collect();
        if issuers.insert(issuer, regions.into_iter().collect()).is_some() {
            return Err(BundleError::RepeatedIssuer { tenant, issuer });
        }
    }
    Ok(issuers.into_iter().collect())
}
