//! A small fabric PKI for tests: a root, a region CA, a broker and an agent.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::options::PemSource;

/// A leaf with its chain and key.
pub(crate) struct Leaf {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) chain_pem: String,
    key: KeyPair,
}

impl Leaf {
    pub(crate) fn key_pem(&self) -> String {
        self.key.serialize_pem()
    }

    pub(crate) fn key_der(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.serialize_der()))
    }

    pub(crate) fn chain_source(&self) -> PemSource {
        PemSource::Text(self.chain_pem.clone())
    }

    pub(crate) fn key_source(&self) -> PemSource {
        PemSource::Text(self.key_pem())
    }
}

/// A fabric's authorities.
pub(crate) struct Pki {
    pub(crate) root_pem: String,
    pub(crate) root: CertificateDer<'static>,
    region_pem: String,
    region_der: CertificateDer<'static>,
    region: Issuer<'static, KeyPair>,
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn authority(name: &str) -> CertificateParams {
    let mut params = params(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

impl Pki {
    pub(crate) fn new() -> Self {
        let root_key = KeyPair::generate().unwrap();
        let root = authority("test root").self_signed(&root_key).unwrap();
        let (root_pem, root_der) = (root.pem(), root.der().clone());
        let issuer = Issuer::new(authority("test root"), root_key);
        let region_key = KeyPair::generate().unwrap();
        let region = authority("region-a CA").signed_by(&region_key, &issuer).unwrap();
        Self {
            root_pem,
            root: root_der,
            region_pem: region.pem(),
            region_der: region.der().clone(),
            region: Issuer::new(authority("region-a CA"), region_key),
        }
    }

    pub(crate) fn root_source(&self) -> PemSource {
        PemSource::Text(self.root_pem.clone())
    }

    /// A broker's leaf with these URI SANs and host names.
    pub(crate) fn broker(&self, uris: &[&str], hosts: &[&str]) -> Leaf {
        let mut params = CertificateParams::new(hosts.iter().map(|h| (*h).to_owned()).collect::<Vec<_>>()).unwrap();
        params.distinguished_name.push(DnType::CommonName, "broker");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.subject_alt_names.extend(uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap())));
        self.leaf(&params)
    }

    /// An agent's leaf.
    pub(crate) fn agent(&self, name: &str) -> Leaf {
        let mut params = params(name);
        params.distinguished_name.push(DnType::OrganizationalUnitName, "region-a");
        params.distinguished_name.push(DnType::OrganizationName, "acme");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.leaf(&params)
    }

    pub(crate) fn leaf(&self, params: &CertificateParams) -> Leaf {
        let key = KeyPair::generate().unwrap();
        let leaf = params.signed_by(&key, &self.region).unwrap();
        Leaf { chain: vec![leaf.der().clone(), self.region_der.clone()], chain_pem: leaf.pem() + &self.region_pem, key }
    }
}
