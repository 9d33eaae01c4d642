//! Building, signing, narrowing and verifying the fabric bundle (DESIGN section 3).
//!
//! What is signed is the head's bytes, and what its digests name are the sections' bytes, as they are stored: nothing is
//! encoded again to be compared.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use aws_lc_rs::hmac;
use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
use glocal_core::bundle::{
    Bundle, BundleError, EdgeEntry, Grant, Head, IssuerEntry, NodeEntry, Revocation, Section, SectionDigest,
};
use glocal_core::identity::KeyId;
use glocal_core::limits::BUNDLE_BYTES_MAX;
use glocal_core::name::{Label, NodeId, TenantId};
use glocal_core::time::UnixTime;
use glocal_wire::bundle::{BundleCodecError, Envelope, decode_head, decode_section, encode_head, encode_section};
use rcgen::{KeyPair, SigningKey};
use rustls_pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;

use crate::chain;
use crate::files;
use crate::pki::{self, PkiError};
use crate::plan::{Plan, Revoked, TenantPlan};

/// Epoch of the first bundle key.
pub const EPOCH: u64 = 1;
pub(crate) const DAY_SECONDS: i64 = 86_400;

/// Why a bundle file is not believed.
#[derive(Debug, thiserror::Error)]
pub enum BundleFileError {
    /// It is not a bundle file.
    #[error(transparent)]
    Codec(#[from] BundleCodecError),
    /// The bundle key's certificate does not verify.
    #[error("the bundle key's certificate is not by a root of the fabric: {0}")]
    Certificate(String),
    /// The bundle key's certificate is by another CA than a root itself.
    #[error("the bundle key's certificate is not issued by the root itself")]
    NotByRoot,
    /// The bundle key's certificate names something else than this fabric's bundle key of this epoch.
    #[error("the bundle key's certificate is for '{found}', the bundle needs '{wanted}'")]
    KeyName {
        /// What it names.
        found: String,
        /// What it must name.
        wanted: String,
    },
    /// The signature is wrong.
    #[error("the signature does not verify: the file was changed after signing")]
    Signature,
    /// The root used is not one of the head's.
    #[error("the head does not list the root that certified the bundle key")]
    ForeignRoot,
    /// The contents break an invariant.
    #[error(transparent)]
    Contents(#[from] BundleError),
}

/// The keys a bundle names.
#[derive(Clone, Debug)]
pub struct Keys {
    /// The root's.
    pub root: KeyId,
    /// Each region's CA's.
    pub regions: Vec<(Label, KeyId)>,
}

impl Keys {
    fn region(&self, region: &Label) -> Option<KeyId> {
        self.regions.iter().find(|(name, _)| name == region).map(|(_, key)| *key)
    }
}

/// A head without digests, and the bytes of each section with its tenant.
pub(crate) struct Contents {
    pub(crate) head: Head,
    pub(crate) sections: Vec<(TenantId, Vec<u8>)>,
}

impl Contents {
    /// The contents of a plan, in an order that does not follow the plan's, so that moving lines about in a plan
    /// changes nothing. The nonce of a section follows from the salt and the tenant, so it is the same every time.
    pub(crate) fn of(plan: &Plan, keys: &Keys, salt: &[u8]) -> Result<Self, BundleCodecError> {
        let mut head = Head::empty(plan.fabric.clone(), UnixTime(0), UnixTime(1));
        head.epoch = EPOCH;
        head.roots = vec![keys.root];
        head.max_payload_bytes = plan.max_payload_bytes;
        head.resigner.clone_from(&plan.resigner);
        head.superusers = plan.superusers.clone();
        head.superusers.sort_unstable();
        head.nodes = plan
            .nodes
            .iter()
            .map(|node| NodeEntry {
                node: node.id.clone(),
                tenant: plan.operator.clone(),
                issuers: keys.region(node.id.region()).into_iter().collect(),
            })
            .collect();
        head.nodes.sort_by(|x, y| x.node.cmp(&y.node));
        head.edges = plan
            .edges
            .iter()
            .map(|edge| {
                let (a, b) = (edge.dial.clone().min(edge.accept.clone()), edge.dial.clone().max(edge.accept.clone()));
                EdgeEntry { name: edge.name.clone(), a, b }
            })
            .collect();
        head.edges.sort_by(|x, y| x.name.cmp(&y.name));
        head.revocations = revocations(plan, &plan.operator, keys);
        let carried = carried(plan);
        let mut sections = Vec::new();
        for tenant in &plan.tenants {
            let section = section(plan, tenant, carried.get(&tenant.id), keys, salt);
            sections.push((tenant.id.clone(), encode_section(&section)?));
        }
        head.sections = sections.iter().map(|(_, bytes)| pki::sha256(bytes)).collect();
        head.sections.sort_unstable();
        Ok(Self { head, sections })
    }

    /// Whether the envelope says the same, dates and version apart.
    pub(crate) fn equals(&self, other: &Head) -> bool {
        let mut mine = self.head.clone();
        (mine.version, mine.issued, mine.expires) = (other.version, other.issued, other.expires);
        mine == *other
    }

    /// Signs the contents as one version.
    pub(crate) fn sign(
        mut self,
        version: u64,
        days: u32,
        certificate: &CertificateDer<'_>,
        key: &KeyPair,
        now: UnixTime,
    ) -> Result<Envelope, SignError> {
        self.head.version = version;
        self.head.issued = now;
        self.head.expires = UnixTime(now.0.saturating_add(i64::from(days).saturating_mul(DAY_SECONDS)));
        let head = encode_head(&self.head)?;
        let signature = key.sign(&head).map_err(PkiError::Certificate)?;
        let envelope = Envelope {
            bundle_key_cert: certificate.as_ref().to_vec(),
            head,
            signature,
            sections: self.sections.into_iter().map(|(_, bytes)| bytes).collect(),
        };
        Bundle::assemble(self.head, decode_sections(&envelope)?)?;
        Ok(envelope)
    }
}

/// Why a bundle could not be signed.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// It does not fit its form.
    #[error(transparent)]
    Codec(#[from] BundleCodecError),
    /// Its contents break an invariant.
    #[error(transparent)]
    Contents(#[from] BundleError),
    /// The key refused.
    #[error(transparent)]
    Key(#[from] PkiError),
}

/// The edges that carry each tenant, by name.
fn carried(plan: &Plan) -> BTreeMap<&TenantId, Vec<&Label>> {
    let mut carried: BTreeMap<&TenantId, Vec<&Label>> = BTreeMap::new();
    for edge in &plan.edges {
        edge.tenants.iter().for_each(|tenant| carried.entry(tenant).or_default().push(&edge.name));
    }
    carried
}

fn section(plan: &Plan, tenant: &TenantPlan, edges: Option<&Vec<&Label>>, keys: &Keys, salt: &[u8]) -> Section {
    let id = &tenant.id;
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, salt), id.as_str().as_bytes());
    let mut nonce = [0; 16];
    for (to, from) in nonce.iter_mut().zip(tag.as_ref()) {
        *to = *from;
    }
    let mut section = Section::new(id.clone(), nonce);
    section.weight = tenant.weight;
    section.sessions_max = tenant.sessions_max;
    section.limits = tenant.limits;
    section.terms = tenant.terms;
    section.memory_bytes = tenant.memory_bytes;
    section.owner_only_replies = tenant.owner_only_replies;
    section.issuers = tenant
        .regions
        .iter()
        .filter_map(|region| Some(IssuerEntry { key: keys.region(region)?, regions: vec![region.clone()] }))
        .collect();
    section.issuers.sort_by(|x, y| x.regions.cmp(&y.regions));
    section.edges = edges.into_iter().flatten().map(|name| (*name).clone()).collect();
    section.edges.sort_unstable();
    section.grants = plan
        .grants
        .iter()
        .filter(|g| g.from == *id)
        .map(|g| Grant { name: g.name.clone(), tenant: g.to.clone(), write: g.write, filter: g.filter.clone() })
        .collect();
    section.grants.sort_by(|x, y| x.name.cmp(&y.name));
    section.revocations = revocations(plan, id, keys);
    section
}

fn revocations(plan: &Plan, tenant: &TenantId, keys: &Keys) -> Vec<Revocation> {
    plan.revocations
        .iter()
        .filter(|r| r.tenant == *tenant)
        .filter_map(|r| match &r.what {
            Revoked::Serial(serial) => {
                Some(Revocation::Serial { issuer: keys.region(&r.region)?, serial: serial.clone() })
            }
            Revoked::IssuedBefore { agent, before } => {
                Some(Revocation::IssuedBefore { region: r.region.clone(), agent: agent.clone(), before: *before })
            }
        })
        .collect()
}

/// The tenants whose sections a broker holds: those on its edges, those issued in its region, and superusers.
#[must_use]
pub fn tenants_of(plan: &Plan, node: &NodeId) -> Vec<TenantId> {
    let carried: BTreeSet<&TenantId> = plan.edges_of(node).flat_map(|edge| &edge.tenants).collect();
    plan.tenants
        .iter()
        .filter(|tenant| {
            plan.superusers.contains(&tenant.id)
                || tenant.regions.contains(node.region())
                || carried.contains(&tenant.id)
        })
        .map(|tenant| tenant.id.clone())
        .collect()
}

/// The same signed bundle with the sections of these tenants only.
///
/// # Errors
/// When a section cannot be decoded.
pub fn narrow(envelope: &Envelope, tenants: &[TenantId]) -> Result<Envelope, BundleCodecError> {
    let tenants: BTreeSet<&TenantId> = tenants.iter().collect();
    let mut sections = Vec::new();
    for bytes in &envelope.sections {
        if tenants.contains(&decode_section(bytes)?.tenant) {
            sections.push(bytes.clone());
        }
    }
    Ok(Envelope { sections, ..envelope.clone() })
}

fn decode_sections(envelope: &Envelope) -> Result<Vec<(SectionDigest, Section)>, BundleCodecError> {
    envelope.sections.iter().map(|bytes| Ok((pki::sha256(bytes), decode_section(bytes)?))).collect()
}

/// Verifies a bundle as a broker does: the bundle key's certificate against the roots, its name, the signature over the
/// head, every section against the head's digests, and the invariants of the contents.
///
/// # Errors
/// The first thing that does not hold.
pub fn verify(envelope: &Envelope, roots: &[CertificateDer<'_>], now: UnixTime) -> Result<Bundle, BundleFileError> {
    let certificate = CertificateDer::from(envelope.bundle_key_cert.as_slice());
    let path = chain::verify(&certificate, &[], roots, chain::Usage::Client, now)
        .map_err(|error| BundleFileError::Certificate(error.text))?;
    let root = path.issuer;
    let parsed = pki::parse(&certificate).map_err(|error| BundleFileError::Certificate(error.to_string()))?;
    let key = UnparsedPublicKey::new(&ED25519, parsed.public_key().subject_public_key.data.as_ref());
    key.verify(&envelope.head, &envelope.signature).map_err(|_| BundleFileError::Signature)?;
    let head = decode_head(&envelope.head)?;
    let wanted = pki::bundle_key_uri(&head.fabric, head.epoch);
    let found = uris(&parsed);
    if found != [wanted.as_str()] {
        return Err(BundleFileError::KeyName { found: found.join(", "), wanted });
    }
    if !roots.iter().any(|r| pki::key_id(r).is_ok_and(|id| id == root)) {
        return Err(BundleFileError::NotByRoot);
    }
    if !head.roots.contains(&root) {
        return Err(BundleFileError::ForeignRoot);
    }
    Ok(Bundle::assemble(head, decode_sections(envelope)?)?)
}

/// The contents of a bundle whose signature nobody has verified: to be shown, never to be obeyed. Sections still fit the
/// head's digests.
///
/// # Errors
/// What is wrong with the contents.
pub fn unverified(envelope: &Envelope) -> Result<Bundle, BundleFileError> {
    Ok(Bundle::assemble(decode_head(&envelope.head)?, decode_sections(envelope)?)?)
}

/// Reads a bundle file; nothing in it is verified.
///
/// # Errors
/// Whether it cannot be read or is no bundle file.
pub fn read(path: &Path) -> Result<Envelope, ReadError> {
    let failed = |problem| ReadError { path: path.to_owned(), problem };
    let bytes = files::read_existing(path, BUNDLE_BYTES_MAX).map_err(|error| failed(error.to_string()))?;
    Envelope::decode(&bytes).map_err(|error| failed(error.to_string()))
}

/// A file that cannot be read or is not what it should be.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {problem}", path = path.display())]
pub struct ReadError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: String,
}

fn uris<'a>(certificate: &'a x509_parser::certificate::X509Certificate<'_>) -> Vec<&'a str> {
    let names = certificate.subject_alternative_name().ok().flatten().map(|ext| &ext.value.general_names);
    let uri = |name: &'a GeneralName<'_>| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    };
    names.into_iter().flatten().filter_map(uri).collect()
}
