//! Making keys and certificates: the root, region CAs, leaves and the bundle key's certificate (DESIGN section 3).
//!
//! Everything is ECDSA P-256 but the bundle key, which is Ed25519. Nothing here touches files; [`crate::apply`] decides
//! what is made and where it goes.

use std::net::IpAddr;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use glocal_core::identity::{Fingerprint, KeyId};
use glocal_core::name::{Label, NodeId, TenantId};
use glocal_core::time::UnixTime;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ED25519, SanType, SerialNumber,
};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use time::OffsetDateTime;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

/// How far validity is dated back, in seconds: clocks of brokers differ.
const BACKDATE_SECONDS: i64 = 300;
/// Validity of a root, in days: ten years.
pub const ROOT_DAYS: u32 = 3653;
/// Validity of region CAs and bundle key certificates, in days: five years.
pub const CA_DAYS: u32 = 1826;
const DAY_SECONDS: i64 = 86_400;

/// Why a key or certificate could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// The certificate library refused.
    #[error("cannot make the certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// The key is not a private key this tool makes.
    #[error("is not a private key in PEM form that this tool can use: {0}")]
    Key(rcgen::Error),
    /// The file holds no certificate.
    #[error("holds no certificate in PEM form")]
    NoCertificate,
    /// The certificate cannot be parsed.
    #[error("holds a certificate that cannot be parsed")]
    Malformed,
    /// Key and certificate are not of each other.
    #[error("the private key is not the one of the certificate")]
    Mismatch,
    /// The certificate is no CA.
    #[error("the certificate is not a CA's")]
    NotCa,
    /// A date is out of range.
    #[error("a date is out of range")]
    Date,
    /// The system gave no random bytes.
    #[error("the system gave no random bytes")]
    Random,
}

/// SHA-256 of bytes.
#[must_use]
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    for (to, from) in out.iter_mut().zip(digest(&SHA256, bytes).as_ref()) {
        *to = *from;
    }
    out
}

/// Random bytes from the system.
///
/// # Errors
/// [`PkiError::Random`].
pub fn random<const N: usize>() -> Result<[u8; N], PkiError> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| PkiError::Random)?;
    Ok(bytes)
}

/// The fingerprint of a certificate.
#[must_use]
pub fn fingerprint(der: &[u8]) -> Fingerprint {
    Fingerprint(sha256(der))
}

/// Parses a certificate; nothing may follow it.
///
/// # Errors
/// [`PkiError::Malformed`].
pub fn parse(der: &[u8]) -> Result<X509Certificate<'_>, PkiError> {
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Ok(certificate),
        _ => Err(PkiError::Malformed),
    }
}

/// The key id of a certificate's own key.
///
/// # Errors
/// [`PkiError::Malformed`].
pub fn key_id(der: &[u8]) -> Result<KeyId, PkiError> {
    Ok(KeyId(sha256(parse(der)?.tbs_certificate.subject_pki.raw)))
}

/// Whether `child` was signed by the key of `parent`, both P-256.
#[must_use]
pub fn is_signed_by(child: &[u8], parent: &[u8]) -> bool {
    let (Ok(child), Ok(parent)) = (parse(child), parse(parent)) else { return false };
    let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, parent.public_key().subject_public_key.data.as_ref());
    key.verify(child.tbs_certificate.as_ref(), child.signature_value.data.as_ref()).is_ok()
}

/// The certificates of a PEM file, leaf first.
///
/// # Errors
/// [`PkiError::NoCertificate`] when there is none or one is not base64.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, PkiError> {
    let list: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    list.ok().filter(|list| !list.is_empty()).ok_or(PkiError::NoCertificate)
}

/// A certificate in PEM form.
#[must_use]
pub fn to_pem(der: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in der.chunks(48) {
        for group in line.chunks(3) {
            let bits = group.iter().fold(0u32, |bits, b| (bits << 8) | u32::from(*b)) << (8 * (3 - group.len()));
            for place in 0..4 {
                let index = (bits >> (18 - 6 * place)) & 63;
                let letter = ALPHABET.get(index as usize).filter(|_| place <= group.len());
                text.push(char::from(*letter.unwrap_or(&b'=')));
            }
        }
        text.push('\n');
    }
    text.push_str("-----END CERTIFICATE-----\n");
    text
}

/// A private key read from PEM.
///
/// # Errors
/// [`PkiError::Key`].
pub fn key_from_pem(pem: &str) -> Result<KeyPair, PkiError> {
    KeyPair::from_pem(pem).map_err(PkiError::Key)
}

/// A new P-256 key.
///
/// # Errors
/// [`PkiError::Certificate`].
pub fn new_key() -> Result<KeyPair, PkiError> {
    Ok(KeyPair::generate()?)
}

/// A new Ed25519 key.
///
/// # Errors
/// [`PkiError::Certificate`].
pub fn new_bundle_key() -> Result<KeyPair, PkiError> {
    Ok(KeyPair::generate_for(&PKCS_ED25519)?)
}

/// Whether the key is the one the certificate speaks of.
#[must_use]
pub fn key_fits(key: &KeyPair, certificate: &[u8]) -> bool {
    use rcgen::PublicKeyData;
    key_id(certificate).is_ok_and(|id| id.0 == sha256(&key.subject_public_key_info()))
}

/// A CA that can issue: its certificate and private key.
pub struct Ca {
    der: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
    key_id: KeyId,
}

impl Ca {
    /// A CA from its certificate and key.
    ///
    /// # Errors
    /// When they are not a CA's, or not of each other.
    pub fn new(der: CertificateDer<'static>, key: KeyPair) -> Result<Self, PkiError> {
        if !key_fits(&key, &der) {
            return Err(PkiError::Mismatch);
        }
        if !parse(&der)?.is_ca() {
            return Err(PkiError::NotCa);
        }
        let key_id = key_id(&der)?;
        let issuer = Issuer::from_ca_cert_der(&der, key)?;
        Ok(Self { der, issuer, key_id })
    }

    /// A CA from PEM files.
    ///
    /// # Errors
    /// As [`Ca::new`], and when the files are no PEM.
    pub fn from_pem(certificate: &[u8], key: &str) -> Result<Self, PkiError> {
        let der = certificates(certificate)?.into_iter().next().ok_or(PkiError::NoCertificate)?;
        Self::new(der, key_from_pem(key)?)
    }

    /// Its certificate.
    #[must_use]
    pub const fn der(&self) -> &CertificateDer<'static> {
        &self.der
    }

    /// The id of its key.
    #[must_use]
    pub const fn key_id(&self) -> KeyId {
        self.key_id
    }

    pub(crate) const fn issuer(&self) -> &Issuer<'static, KeyPair> {
        &self.issuer
    }
}

/// What a leaf is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeafKind {
    /// An agent: clientAuth only, no DNS or IP names.
    Agent,
    /// A broker: with its node name, and the hosts it is dialled at.
    Node {
        /// DNS names and IP addresses.
        hosts: Vec<String>,
    },
}

/// A leaf to be issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafRequest {
    /// The `O=`.
    pub tenant: TenantId,
    /// The `OU=`.
    pub region: Label,
    /// The `CN=`.
    pub agent: Label,
    /// What it is for.
    pub kind: LeafKind,
    /// Validity, in days.
    pub days: u32,
}

/// The URI SAN of a broker.
#[must_use]
pub fn node_uri(node: &NodeId) -> String {
    format!("glocal://node/{node}")
}

/// The URI SAN of a bundle key.
#[must_use]
pub fn bundle_key_uri(fabric: &Label, epoch: u64) -> String {
    format!("glocal://bundle-key/{fabric}/{epoch}")
}

/// A self-signed root, `CN=<fabric> root`.
///
/// # Errors
/// When the library refuses.
pub fn make_root(fabric: &Label, key: KeyPair, now: UnixTime) -> Result<Ca, PkiError> {
    let mut params = base(now, ROOT_DAYS)?;
    params.distinguished_name.push(DnType::CommonName, format!("{fabric} root"));
    ca_usages(&mut params, 1);
    let der = params.self_signed(&key)?.into();
    Ca::new(der, key)
}

/// A region's CA, `CN=<region> CA`.
///
/// # Errors
/// When the library refuses.
pub fn make_region_ca(root: &Ca, region: &Label, key: KeyPair, now: UnixTime) -> Result<Ca, PkiError> {
    let mut params = base(now, CA_DAYS)?;
    params.distinguished_name.push(DnType::CommonName, format!("{region} CA"));
    ca_usages(&mut params, 0);
    params.use_authority_key_identifier_extension = true;
    let der = params.signed_by(&key, root.issuer())?.into();
    Ca::new(der, key)
}

/// The certificate by which the root names a bundle key.
///
/// # Errors
/// When the library refuses.
pub fn make_bundle_certificate(
    root: &Ca,
    fabric: &Label,
    epoch: u64,
    key: &KeyPair,
    now: UnixTime,
) -> Result<CertificateDer<'static>, PkiError> {
    let mut params = base(now, CA_DAYS)?;
    params.distinguished_name.push(DnType::CommonName, "glocal bundle key");
    params.subject_alt_names.push(SanType::URI(bundle_key_uri(fabric, epoch).try_into()?));
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    Ok(params.signed_by(key, root.issuer())?.into())
}

/// Issues a leaf for a key.
///
/// # Errors
/// When a host is no name or address, or the library refuses.
pub fn issue(
    ca: &Ca,
    request: &LeafRequest,
    key: &KeyPair,
    now: UnixTime,
) -> Result<CertificateDer<'static>, PkiError> {
    Ok(leaf_params(request, now)?.signed_by(key, ca.issuer())?.into())
}

/// The parameters of a leaf, before it is signed; [`crate::testing`] bends them.
pub(crate) fn leaf_params(request: &LeafRequest, now: UnixTime) -> Result<CertificateParams, PkiError> {
    let mut params = base(now, request.days)?;
    params.distinguished_name.push(DnType::CommonName, request.agent.as_str());
    params.distinguished_name.push(DnType::OrganizationalUnitName, request.region.as_str());
    params.distinguished_name.push(DnType::OrganizationName, request.tenant.as_str());
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    if let LeafKind::Node { hosts } = &request.kind {
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        let node = NodeId::new(request.region.clone(), request.agent.clone());
        params.subject_alt_names.push(SanType::URI(node_uri(&node).try_into()?));
        for host in hosts {
            params.subject_alt_names.push(match host.parse::<IpAddr>() {
                Ok(ip) => SanType::IpAddress(ip),
                Err(_) => SanType::DnsName(host.as_str().try_into()?),
            });
        }
    }
    Ok(params)
}

fn base(now: UnixTime, days: u32) -> Result<CertificateParams, PkiError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let date = |seconds: i64| OffsetDateTime::from_unix_timestamp(seconds).map_err(|_| PkiError::Date);
    params.not_before = date(now.0.saturating_sub(BACKDATE_SECONDS))?;
    params.not_after = date(now.0.saturating_add(i64::from(days).saturating_mul(DAY_SECONDS)))?;
    params.serial_number = Some(serial()?);
    Ok(params)
}

/// A random serial number of 128 bits, never with a leading zero, so that it has one form everywhere.
fn serial() -> Result<SerialNumber, PkiError> {
    loop {
        let bytes: [u8; 16] = random()?;
        if bytes.first().is_some_and(|first| *first != 0) {
            return Ok(SerialNumber::from_slice(&bytes));
        }
    }
}

fn ca_usages(params: &mut CertificateParams, path_length: u8) {
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(path_length));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
}
