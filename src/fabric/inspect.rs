//! What a certificate says, for people: subject attributes as they are, names, dates, usages and key ids.
//!
//! Subjects are shown attribute by attribute with their string types, never as one printed DN, which would not show
//! where an attribute ends.

use glocal_core::identity::{Fingerprint, KeyId};
use glocal_core::time::UnixTime;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use x509_parser::certificate::X509Certificate;
use x509_parser::der_parser::asn1_rs::Tag;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::x509::X509Name;

use crate::pki::{self, PkiError, sha256};

/// One attribute of a subject or issuer.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Attribute {
    /// `CN`, `OU`, `O`, or the object identifier.
    pub name: String,
    /// The value, control characters escaped, other than UTF-8 as hex.
    pub value: String,
    /// The string type.
    pub string_type: String,
}

/// What one certificate says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Attributes of the subject, in order.
    pub subject: Vec<Attribute>,
    /// Attributes of the issuer, in order.
    pub issuer: Vec<Attribute>,
    /// Subject alternative names, each with its kind: `URI:…`, `DNS:…`, `IP:…`.
    pub names: Vec<String>,
    /// Start of validity.
    pub not_before: UnixTime,
    /// End of validity.
    pub not_after: UnixTime,
    /// Serial number in hex digits.
    pub serial: String,
    /// Whether it is a CA's, and how many CAs may stand below it.
    pub ca: Option<Option<u32>>,
    /// Key usages and extended key usages.
    pub usages: Vec<String>,
    /// Algorithm of the key.
    pub key_algorithm: String,
    /// Id of its own key, as bundles name it.
    pub key_id: KeyId,
    /// The authority key identifier: a hint of who issued it, in hex digits.
    pub authority_key: Option<String>,
    /// SHA-256 of the certificate.
    pub fingerprint: Fingerprint,
}

/// Reads a certificate.
///
/// # Errors
/// [`PkiError::Malformed`].
pub fn inspect(der: &[u8]) -> Result<Certificate, PkiError> {
    let certificate = pki::parse(der)?;
    let ca = certificate.basic_constraints().ok().flatten().filter(|bc| bc.value.ca);
    Ok(Certificate {
        subject: attributes(certificate.subject()),
        issuer: attributes(certificate.issuer()),
        names: names(&certificate),
        not_before: UnixTime(certificate.validity().not_before.timestamp()),
        not_after: UnixTime(certificate.validity().not_after.timestamp()),
        serial: hex(significant(certificate.raw_serial())),
        ca: ca.map(|bc| bc.value.path_len_constraint),
        usages: usages(&certificate),
        key_algorithm: algorithm(&certificate),
        key_id: KeyId(sha256(certificate.public_key().raw)),
        authority_key: authority_key(&certificate),
        fingerprint: pki::fingerprint(der),
    })
}

/// A date as people and scripts read it, `2026-05-01T00:00:00Z`.
#[must_use]
pub fn date(time: UnixTime) -> String {
    OffsetDateTime::from_unix_timestamp(time.0)
        .ok()
        .and_then(|date| date.format(&Rfc3339).ok())
        .unwrap_or_else(|| time.to_string())
}

/// Bytes in hex digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// A serial number without the zeros that DER puts before it.
fn significant(serial: &[u8]) -> &[u8] {
    let zeros = serial.iter().take_while(|b| **b == 0).count();
    serial.get(zeros..).unwrap_or_default()
}

fn attributes(name: &X509Name<'_>) -> Vec<Attribute> {
    name.iter_attributes()
        .map(|attribute| {
            let id = attribute.attr_type().to_id_string();
            let value = attribute.attr_value();
            let text = match value.tag() {
                Tag::Utf8String | Tag::PrintableString | Tag::Ia5String => std::str::from_utf8(value.data).ok(),
                _ => None,
            };
            Attribute {
                name: match id.as_str() {
                    "2.5.4.3" => "CN".to_owned(),
                    "2.5.4.10" => "O".to_owned(),
                    "2.5.4.11" => "OU".to_owned(),
                    _ => id,
                },
                value: text.map_or_else(|| format!("#{}", hex(value.data)), |t| t.escape_debug().to_string()),
                string_type: string_type(value.tag()),
            }
        })
        .collect()
}

fn string_type(tag: Tag) -> String {
    match tag {
        Tag::Utf8String => "UTF8String".to_owned(),
        Tag::PrintableString => "PrintableString".to_owned(),
        Tag::Ia5String => "IA5String".to_owned(),
        Tag::BmpString => "BMPString".to_owned(),
        Tag::T61String => "TeletexString".to_owned(),
        Tag::UniversalString => "UniversalString".to_owned(),
        other => format!("tag {}", other.0),
    }
}

fn names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let list = certificate.subject_alternative_name().ok().flatten().map(|ext| &ext.value.general_names);
    list.into_iter()
        .flatten()
        .map(|name| match name {
            GeneralName::URI(uri) => format!("URI:{}", uri.escape_debug()),
            GeneralName::DNSName(host) => format!("DNS:{}", host.escape_debug()),
            GeneralName::IPAddress(bytes) => format!("IP:{}", address(bytes)),
            other => format!("other:{}", other.to_string().escape_debug()),
        })
        .collect()
}

fn address(bytes: &[u8]) -> String {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        std::net::Ipv4Addr::from(v4).to_string()
    } else if let Ok(v6) = <[u8; 16]>::try_from(bytes) {
        std::net::Ipv6Addr::from(v6).to_string()
    } else {
        format!("#{}", hex(bytes))
    }
}

fn usages(certificate: &X509Certificate<'_>) -> Vec<String> {
    let mut list = Vec::new();
    if let Ok(Some(usage)) = certificate.key_usage() {
        let usage = usage.value;
        let pairs = [
            (usage.digital_signature(), "digitalSignature"),
            (usage.key_cert_sign(), "keyCertSign"),
            (usage.crl_sign(), "cRLSign"),
        ];
        list.extend(pairs.iter().filter(|(set, _)| *set).map(|(_, name)| (*name).to_owned()));
    }
    if let Ok(Some(extended)) = certificate.extended_key_usage() {
        let extended = extended.value;
        let pairs = [
            (extended.any, "anyExtendedKeyUsage"),
            (extended.client_auth, "clientAuth"),
            (extended.server_auth, "serverAuth"),
        ];
        list.extend(pairs.iter().filter(|(set, _)| *set).map(|(_, name)| (*name).to_owned()));
        list.extend(extended.other.iter().map(|oid| oid.to_id_string()));
    }
    list
}

fn algorithm(certificate: &X509Certificate<'_>) -> String {
    match certificate.public_key().algorithm.algorithm.to_id_string().as_str() {
        "1.2.840.10045.2.1" => "EC".to_owned(),
        "1.3.101.112" => "Ed25519".to_owned(),
        "1.2.840.113549.1.1.1" => "RSA".to_owned(),
        other => other.to_owned(),
    }
}

fn authority_key(certificate: &X509Certificate<'_>) -> Option<String> {
    certificate.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(authority) => authority.key_identifier.as_ref().map(|id| hex(id.0)),
        _ => None,
    })
}
