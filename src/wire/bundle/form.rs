//! The form of heads and sections on the wire: plain fields, parsed into checked types in one place.

use bincode::{Decode, Encode};
use glocal_core::bundle::{
    AgentRule, EdgeEntry, Grant, Head, IssuerEntry, NodeEntry, Revocation, Section, SectionDigest, TenantIdForm,
};
use glocal_core::identity::KeyId;
use glocal_core::name::{Label, NameError, NodeId, RawFilter, TenantId};
use glocal_core::rate::RateLimits;
use glocal_core::sched::EdgeTerms;
use glocal_core::time::UnixTime;

use super::BundleCodecError;

/// The form of heads, and of sections that limit nothing; a changed body is a new number.
const FORM: u16 = 1;
/// The form of sections with limits: a section of [`FORM`] with its limits after it. Brokers that know no limits refuse it
/// rather than carry the tenant without them.
pub(super) const FORM_LIMITED: u16 = 2;
/// The form of sections with terms on edges or a bound of memory: a section of [`FORM_LIMITED`], whether it limits anything
/// or not, with both after it.
pub(super) const FORM_TERMS: u16 = 3;

const HEAD: &str = "head";
const SECTION: &str = "section";

#[derive(Encode, Decode)]
pub(super) struct WireHead {
    form: u16,
    fabric: String,
    epoch: u64,
    version: u64,
    roots: Vec<[u8; 32]>,
    nodes: Vec<WireNode>,
    superusers: Vec<String>,
    edges: Vec<WireEdge>,
    max_payload_bytes: u32,
    tenant_id_opaque: bool,
    resigner: Option<String>,
    revocations: Vec<WireRevocation>,
    sections: Vec<SectionDigest>,
    issued: i64,
    expires: i64,
}

#[derive(Encode, Decode)]
struct WireNode {
    node: String,
    tenant: String,
    issuers: Vec<[u8; 32]>,
}

#[derive(Encode, Decode)]
struct WireEdge {
    name: String,
    a: String,
    b: String,
}

#[derive(Encode, Decode)]
pub(super) struct WireSection {
    form: u16,
    tenant: String,
    nonce: [u8; 16],
    issuers: Vec<WireIssuer>,
    edges: Vec<String>,
    grants: Vec<WireGrant>,
    weight: u32,
    sessions_max: u32,
    revocations: Vec<WireRevocation>,
    rules: Vec<WireRule>,
    owner_only_replies: bool,
}

/// A section of [`FORM_LIMITED`].
#[derive(Encode, Decode)]
pub(super) struct WireLimited {
    section: WireSection,
    messages_per_s: Option<u64>,
    bytes_per_s: Option<u64>,
    burst_ms: u32,
    live_percent: u8,
    ctrl_percent: u8,
    session_messages_per_s: Option<u64>,
    session_bytes_per_s: Option<u64>,
}

/// A section of [`FORM_TERMS`].
#[derive(Encode, Decode)]
pub(super) struct WireTerms {
    limited: WireLimited,
    class_weights: [u32; 4],
    edge_bytes_per_s: Option<u64>,
    edge_class_bytes_per_s: [Option<u64>; 4],
    memory_bytes: Option<u64>,
}

#[derive(Encode, Decode)]
struct WireIssuer {
    key: [u8; 32],
    regions: Vec<String>,
}

#[derive(Encode, Decode)]
struct WireGrant {
    name: String,
    tenant: String,
    write: bool,
    filter: String,
}

#[derive(Encode, Decode)]
enum WireRevocation {
    Serial { issuer: [u8; 32], serial: Vec<u8> },
    IssuedBefore { region: String, agent: Option<String>, before: i64 },
}

#[derive(Encode, Decode)]
struct WireRule {
    region: Option<String>,
    agent: Option<String>,
    deny: bool,
    write: bool,
    filter: String,
}

fn text(value: &impl ToString) -> String {
    value.to_string()
}

fn bytes(keys: &[KeyId]) -> Vec<[u8; 32]> {
    keys.iter().map(|key| key.0).collect()
}

fn keys(bytes: Vec<[u8; 32]>) -> Vec<KeyId> {
    bytes.into_iter().map(KeyId).collect()
}

fn label(text: Option<&str>) -> Result<Option<Label>, NameError> {
    text.map(Label::parse).transpose()
}

/// Parses every element, or yields the first error.
fn all<W, T>(wire: Vec<W>, parse: impl FnMut(W) -> Result<T, NameError>) -> Result<Vec<T>, NameError> {
    wire.into_iter().map(parse).collect()
}

impl From<&Head> for WireHead {
    fn from(head: &Head) -> Self {
        let node =
            |n: &NodeEntry| WireNode { node: text(&n.node), tenant: text(&n.tenant), issuers: bytes(&n.issuers) };
        let edge = |e: &EdgeEntry| WireEdge { name: text(&e.name), a: text(&e.a), b: text(&e.b) };
        Self {
            form: FORM,
            fabric: text(&head.fabric),
            epoch: head.epoch,
            version: head.version,
            roots: bytes(&head.roots),
            nodes: head.nodes.iter().map(node).collect(),
            superusers: head.superusers.iter().map(text).collect(),
            edges: head.edges.iter().map(edge).collect(),
            max_payload_bytes: head.max_payload_bytes,
            tenant_id_opaque: head.tenant_id_form == TenantIdForm::Opaque,
            resigner: head.resigner.as_ref().map(text),
            revocations: head.revocations.iter().map(WireRevocation::from).collect(),
            sections: head.sections.clone(),
            issued: head.issued.0,
            expires: head.expires.0,
        }
    }
}

impl WireHead {
    pub(super) fn check(self) -> Result<Head, BundleCodecError> {
        if self.form != FORM {
            return Err(BundleCodecError::UnknownForm { part: HEAD, form: self.form });
        }
        self.parse().map_err(|source| BundleCodecError::Name { part: HEAD, source })
    }

    fn parse(self) -> Result<Head, NameError> {
        let node = |n: WireNode| {
            Ok(NodeEntry {
                node: NodeId::parse(&n.node)?,
                tenant: TenantId::parse(&n.tenant)?,
                issuers: keys(n.issuers),
            })
        };
        let edge = |e: WireEdge| {
            Ok(EdgeEntry { name: Label::parse(&e.name)?, a: NodeId::parse(&e.a)?, b: NodeId::parse(&e.b)? })
        };
        Ok(Head {
            fabric: Label::parse(&self.fabric)?,
            epoch: self.epoch,
            version: self.version,
            roots: keys(self.roots),
            nodes: all(self.nodes, node)?,
            superusers: all(self.superusers, |t| TenantId::parse(&t))?,
            edges: all(self.edges, edge)?,
            max_payload_bytes: self.max_payload_bytes,
            tenant_id_form: if self.tenant_id_opaque { TenantIdForm::Opaque } else { TenantIdForm::Plain },
            resigner: self.resigner.as_deref().map(NodeId::parse).transpose()?,
            revocations: all(self.revocations, WireRevocation::parse)?,
            sections: self.sections,
            issued: UnixTime(self.issued),
            expires: UnixTime(self.expires),
        })
    }
}

impl From<&Section> for WireSection {
    fn from(section: &Section) -> Self {
        let issuer = |i: &IssuerEntry| WireIssuer { key: i.key.0, regions: i.regions.iter().map(text).collect() };
        let grant = |g: &Grant| WireGrant {
            name: text(&g.name),
            tenant: text(&g.tenant),
            write: g.write,
            filter: text(&g.filter),
        };
        let rule = |r: &AgentRule| WireRule {
            region: r.region.as_ref().map(text),
            agent: r.agent.as_ref().map(text),
            deny: r.deny,
            write: r.write,
            filter: text(&r.filter),
        };
        Self {
            form: FORM,
            tenant: text(&section.tenant),
            nonce: section.nonce,
            issuers: section.issuers.iter().map(issuer).collect(),
            edges: section.edges.iter().map(text).collect(),
            grants: section.grants.iter().map(grant).collect(),
            weight: section.weight,
            sessions_max: section.sessions_max,
            revocations: section.revocations.iter().map(WireRevocation::from).collect(),
            rules: section.rules.iter().map(rule).collect(),
            owner_only_replies: section.owner_only_replies,
        }
    }
}

impl WireSection {
    pub(super) fn check(self) -> Result<Section, BundleCodecError> {
        if self.form != FORM {
            return Err(BundleCodecError::UnknownForm { part: SECTION, form: self.form });
        }
        self.parse().map_err(|source| BundleCodecError::Name { part: SECTION, source })
    }

    fn parse(self) -> Result<Section, NameError> {
        let issuer = |i: WireIssuer| {
            Ok(IssuerEntry { key: KeyId(i.key), regions: all(i.regions, |region| Label::parse(&region))? })
        };
        let grant = |g: WireGrant| {
            Ok(Grant {
                name: Label::parse(&g.name)?,
                tenant: TenantId::parse(&g.tenant)?,
                write: g.write,
                filter: RawFilter::parse(g.filter.as_bytes())?,
            })
        };
        let rule = |r: WireRule| {
            Ok(AgentRule {
                region: label(r.region.as_deref())?,
                agent: label(r.agent.as_deref())?,
                deny: r.deny,
                write: r.write,
                filter: RawFilter::parse(r.filter.as_bytes())?,
            })
        };
        Ok(Section {
            tenant: TenantId::parse(&self.tenant)?,
            nonce: self.nonce,
            issuers: all(self.issuers, issuer)?,
            edges: all(self.edges, |edge| Label::parse(&edge))?,
            grants: all(self.grants, grant)?,
            weight: self.weight,
            sessions_max: self.sessions_max,
            limits: RateLimits::NONE,
            terms: EdgeTerms::DEFAULT,
            memory_bytes: None,
            revocations: all(self.revocations, WireRevocation::parse)?,
            rules: all(self.rules, rule)?,
            owner_only_replies: self.owner_only_replies,
        })
    }
}

impl From<&Section> for WireLimited {
    fn from(section: &Section) -> Self {
        let RateLimits {
            messages_per_s,
            bytes_per_s,
            burst_ms,
            live_percent,
            ctrl_percent,
            session_messages_per_s,
            session_bytes_per_s,
        } = section.limits;
        Self {
            section: WireSection { form: FORM_LIMITED, ..WireSection::from(section) },
            messages_per_s,
            bytes_per_s,
            burst_ms,
            live_percent,
            ctrl_percent,
            session_messages_per_s,
            session_bytes_per_s,
        }
    }
}

impl WireLimited {
    pub(super) fn check(self) -> Result<Section, BundleCodecError> {
        let limits = RateLimits {
            messages_per_s: self.messages_per_s,
            bytes_per_s: self.bytes_per_s,
            burst_ms: self.burst_ms,
            live_percent: self.live_percent,
            ctrl_percent: self.ctrl_percent,
            session_messages_per_s: self.session_messages_per_s,
            session_bytes_per_s: self.session_bytes_per_s,
        };
        let section = WireSection { form: FORM, ..self.section }.check()?;
        Ok(Section { limits, ..section })
    }
}

impl From<&Section> for WireTerms {
    fn from(section: &Section) -> Self {
        let mut limited = WireLimited::from(section);
        limited.section.form = FORM_TERMS;
        let EdgeTerms { class_weights, bytes_per_s, class_bytes_per_s } = section.terms;
        Self {
            limited,
            class_weights,
            edge_bytes_per_s: bytes_per_s,
            edge_class_bytes_per_s: class_bytes_per_s,
            memory_bytes: section.memory_bytes,
        }
    }
}

impl WireTerms {
    pub(super) fn check(self) -> Result<Section, BundleCodecError> {
        let terms = EdgeTerms {
            class_weights: self.class_weights,
            bytes_per_s: self.edge_bytes_per_s,
            class_bytes_per_s: self.edge_class_bytes_per_s,
        };
        Ok(Section { terms, memory_bytes: self.memory_bytes, ..self.limited.check()? })
    }
}

impl From<&Revocation> for WireRevocation {
    fn from(revocation: &Revocation) -> Self {
        match revocation {
            Revocation::Serial { issuer, serial } => Self::Serial { issuer: issuer.0, serial: serial.clone() },
            Revocation::IssuedBefore { region, agent, before } => {
                Self::IssuedBefore { region: text(region), agent: agent.as_ref().map(text), before: before.0 }
            }
        }
    }
}

impl WireRevocation {
    fn parse(self) -> Result<Revocation, NameError> {
        Ok(match self {
            Self::Serial { issuer, serial } => Revocation::Serial { issuer: KeyId(issuer), serial },
            Self::IssuedBefore { region, agent, before } => Revocation::IssuedBefore {
                region: Label::parse(&region)?,
                agent: label(agent.as_deref())?,
                before: UnixTime(before),
            },
        })
    }
}
