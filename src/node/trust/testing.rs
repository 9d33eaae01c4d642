//! A small fabric in memory for the tests of this crate: a root, three region CAs, brokers, tenants and a signed bundle.

use std::sync::Arc;
use std::time::Duration;

use glocal_core::bundle::{Bundle, EdgeEntry, Head, IssuerEntry, NodeEntry, Section};
use glocal_core::identity::KeyId;
use glocal_core::name::{Label, NodeId, TenantId};
use glocal_core::time::UnixTime;
use glocal_wire::bundle::{Envelope, encode_head, encode_section};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, PKCS_ED25519, PublicKeyData, SanType, SigningKey,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use super::chain::{key_id, sha256};
use super::{NodeIdentity, Roots, Trust, TrustOptions, load_bundle, unix_now};

pub(crate) fn label(text: &str) -> Label {
    Label::parse(text).unwrap()
}

pub(crate) fn node(text: &str) -> NodeId {
    NodeId::parse(text).unwrap()
}

pub(crate) fn tenant(text: &str) -> TenantId {
    TenantId::parse(text).unwrap()
}

fn date(at: UnixTime) -> std::time::SystemTime {
    std::time::UNIX_EPOCH + Duration::from_secs(at.0.try_into().unwrap())
}

/// A certificate authority with its key.
pub(crate) type Authority = CertifiedIssuer<'static, KeyPair>;

pub(crate) fn authority_key(authority: &Authority) -> KeyId {
    key_id(&authority.key().subject_public_key_info())
}

/// A leaf with its chain and key.
#[derive(Clone)]
pub(crate) struct Leaf {
    /// Leaf and issuing CA.
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) chain_pem: String,
    pub(crate) key_pem: String,
    key_der: Vec<u8>,
}

impl Leaf {
    pub(crate) fn key(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.key_der.clone()).into()
    }
}

/// Parameters of a leaf `CN=agent, OU=region, O=tenant`, valid from an hour ago for a day.
pub(crate) fn agent(tenant: &str, region: &str, agent: &str) -> CertificateParams {
    let now = unix_now();
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, agent);
    params.distinguished_name.push(DnType::OrganizationalUnitName, region);
    params.distinguished_name.push(DnType::OrganizationName, tenant);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.not_before = date(UnixTime(now.0 - 3_600)).into();
    params.not_after = date(UnixTime(now.0 + 86_400)).into();
    params
}

/// Parameters of a broker's leaf.
pub(crate) fn broker(id: &str) -> CertificateParams {
    let id = node(id);
    let mut params = agent("operator", id.region().as_str(), id.agent().as_str());
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
    params.subject_alt_names =
        vec![uri(&format!("glocal://node/{id}")), SanType::DnsName("localhost".try_into().unwrap())];
    params
}

pub(crate) fn uri(text: &str) -> SanType {
    SanType::URI(text.try_into().unwrap())
}

/// Sets the validity, in seconds from now.
pub(crate) fn valid(mut params: CertificateParams, from: i64, until: i64) -> CertificateParams {
    let now = unix_now().0;
    params.not_before = date(UnixTime(now + from)).into();
    params.not_after = date(UnixTime(now + until)).into();
    params
}

pub(crate) fn authority_params(name: &str) -> CertificateParams {
    let mut params = valid(CertificateParams::default(), -3_600, 864_000);
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

pub(crate) fn issue(params: &CertificateParams, by: &Authority) -> Leaf {
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, by).unwrap();
    Leaf {
        chain: vec![certificate.der().clone(), by.der().clone()],
        chain_pem: certificate.pem() + &by.pem(),
        key_pem: key.serialize_pem(),
        key_der: key.serialize_der(),
    }
}

/// The fabric `demo`: `global/g1`, `region-a/a1` and `region-b/b1` in a line of two edges, `g-a` and `g-b`.
pub(crate) struct Fabric {
    pub(crate) root: Authority,
    pub(crate) global: Authority,
    pub(crate) region_a: Authority,
    pub(crate) region_b: Authority,
    bundle_key: KeyPair,
}

impl Fabric {
    pub(crate) fn new() -> Self {
        Self::with_root(&authority_params("demo root"))
    }

    pub(crate) fn with_root(root: &CertificateParams) -> Self {
        let key = || KeyPair::generate().unwrap();
        let root = CertifiedIssuer::self_signed(root.clone(), key()).unwrap();
        let region =
            |name: &str| CertifiedIssuer::signed_by(authority_params(&format!("{name} CA")), key(), &root).unwrap();
        Self {
            global: region("global"),
            region_a: region("region-a"),
            region_b: region("region-b"),
            bundle_key: KeyPair::generate_for(&PKCS_ED25519).unwrap(),
            root,
        }
    }

    pub(crate) fn roots(&self) -> Roots {
        Roots::from_pem("root.pem", self.root.pem().as_bytes(), unix_now()).unwrap()
    }

    /// The CA of a region.
    pub(crate) fn authority(&self, region: &str) -> &Authority {
        match region {
            "global" => &self.global,
            "region-a" => &self.region_a,
            "region-b" => &self.region_b,
            other => panic!("no region {other}"),
        }
    }

    /// The leaf of an agent, from its region's CA.
    pub(crate) fn agent(&self, tenant: &str, region: &str, name: &str) -> Leaf {
        issue(&agent(tenant, region, name), self.authority(region))
    }

    /// The leaf of a broker, from its region's CA.
    pub(crate) fn broker(&self, id: &str) -> Leaf {
        issue(&broker(id), self.authority(node(id).region().as_str()))
    }

    pub(crate) fn identity(&self, id: &str) -> NodeIdentity {
        let leaf = self.broker(id);
        NodeIdentity::from_pem(
            ("node.pem", leaf.chain_pem.as_bytes()),
            ("node.key", leaf.key_pem.as_bytes()),
            unix_now(),
        )
        .unwrap()
    }

    fn head(&self) -> Head {
        let entry = |id: &str| NodeEntry {
            node: node(id),
            tenant: tenant("operator"),
            issuers: vec![authority_key(self.authority(node(id).region().as_str()))],
        };
        let edge = |name: &str, b: &str| EdgeEntry { name: label(name), a: node("global/g1"), b: node(b) };
        let now = unix_now();
        Head {
            roots: vec![authority_key(&self.root)],
            nodes: vec![entry("global/g1"), entry("region-a/a1"), entry("region-b/b1")],
            superusers: vec![tenant("cresco-system")],
            edges: vec![edge("g-a", "region-a/a1"), edge("g-b", "region-b/b1")],
            ..Head::empty(label("demo"), UnixTime(now.0 - 60), UnixTime(now.0 + 86_400))
        }
    }

    /// Tenants `acme` and `beta` in both regions, the superuser `cresco-system` in `global`, and `public` of no CA.
    fn sections(&self) -> Vec<Section> {
        let issuer =
            |region: &str| IssuerEntry { key: authority_key(self.authority(region)), regions: vec![label(region)] };
        let section = |id: &str, regions: &[&str]| Section {
            issuers: regions.iter().map(|region| issuer(region)).collect(),
            edges: vec![label("g-a"), label("g-b")],
            ..Section::new(tenant(id), sha256(id.as_bytes())[..16].try_into().unwrap())
        };
        vec![
            section("acme", &["region-a", "region-b"]),
            section("beta", &["region-a", "region-b"]),
            section("cresco-system", &["global"]),
            section("public", &[]),
        ]
    }

    /// The certificate of the bundle key, with the given URI names.
    pub(crate) fn bundle_key_certificate(&self, uris: &[&str], by: &Authority) -> Vec<u8> {
        let mut params = valid(CertificateParams::default(), -3_600, 864_000);
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "glocal bundle key");
        params.subject_alt_names = uris.iter().map(|text| uri(text)).collect();
        params.signed_by(&self.bundle_key, by).unwrap().der().to_vec()
    }

    /// The envelope of a signed bundle, after `change`.
    pub(crate) fn envelope(&self, change: impl FnOnce(&mut Head, &mut Vec<Section>)) -> Envelope {
        let (mut head, mut sections) = (self.head(), self.sections());
        change(&mut head, &mut sections);
        let sections: Vec<Vec<u8>> = sections.iter().map(|section| encode_section(section).unwrap()).collect();
        head.sections = sections.iter().map(|bytes| sha256(bytes)).collect();
        head.sections.sort_unstable();
        let uri = format!("glocal://bundle-key/demo/{}", head.epoch);
        let head = encode_head(&head).unwrap();
        Envelope {
            bundle_key_cert: self.bundle_key_certificate(&[&uri], &self.root),
            signature: self.bundle_key.sign(&head).unwrap(),
            head,
            sections,
        }
    }

    /// A bundle, read from the bytes of its file, after `change`.
    pub(crate) fn bundle(&self, change: impl FnOnce(&mut Head, &mut Vec<Section>)) -> Arc<Bundle> {
        let file = self.envelope(change).encode().unwrap();
        Arc::new(load_bundle(&file, &self.roots(), 0, unix_now()).unwrap())
    }

    /// The trust of one broker.
    pub(crate) fn trust(&self, id: &str, options: TrustOptions) -> Arc<Trust> {
        let bundle = self.bundle(|_, _| ());
        Arc::new(Trust::new(self.roots(), bundle, self.identity(id), options, unix_now()).unwrap())
    }
}
