//! Reading a leaf certificate's names from DER.
//!
//! The subject is walked element by element, and bytes that do not parse refuse the certificate: nothing may hide
//! behind an element that a lenient parser skips. Signatures, usages and chains are the caller's; this reads only
//! certificates whose chain was verified.

use x509_parser::asn1_rs::{Any, FromDer, Oid, Tag};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::oid_registry::{
    OID_X509_COMMON_NAME, OID_X509_EXT_BASIC_CONSTRAINTS, OID_X509_EXT_SUBJECT_ALT_NAME, OID_X509_ORGANIZATION_NAME,
    OID_X509_ORGANIZATIONAL_UNIT,
};

use super::IdentityError;
use crate::limits::{CERTIFICATE_BYTES_MAX, SERIAL_BYTES_MAX};
use crate::name::{Label, NodeId, TenantId};
use crate::time::UnixTime;

/// Scheme of the fabric's own URI SANs. Schemes are compared without case (RFC 3986 section 3.1), so another spelling
/// is refused rather than overlooked.
const URI_SCHEME: &str = "glocal:";
/// What stands before `<region>/<agent>` in a broker's URI SAN.
const NODE_URI: &str = "glocal://node/";

/// The names and dates of one leaf certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafName {
    /// The tenant: the one `O=`.
    pub tenant: TenantId,
    /// The region: the one `OU=`, when it is a label.
    pub region: Option<Label>,
    /// The agent: the one `CN=`, when it is a label.
    pub agent: Option<Label>,
    /// The broker named by the URI SAN `glocal://node/<region>/<agent>`, equal to OU and CN.
    pub node: Option<NodeId>,
    /// The certificate's serial number, big-endian, without leading zeros.
    pub serial: Vec<u8>,
    /// Start of validity.
    pub not_before: UnixTime,
    /// End of validity.
    pub not_after: UnixTime,
}

/// Reads the names of a leaf from its DER form.
///
/// An absent or ill-formed OU or CN is left out: such a principal is nameless, but not refused.
///
/// # Errors
/// The catalogued reason why it names no principal.
pub fn leaf_name(der: &[u8]) -> Result<LeafName, IdentityError> {
    let certificate = parse(der)?;
    refuse_ca(&certificate)?;
    let subject = Subject::read(certificate.subject().as_raw())?;
    let tenant = subject.tenant()?;
    let (region, agent) = subject.region_and_agent()?;
    let node = node_name(&certificate, region.as_ref(), agent.as_ref())?;
    let serial = certificate.tbs_certificate.raw_serial();
    let serial = serial.get(serial.iter().take_while(|byte| **byte == 0).count()..).unwrap_or_default();
    if serial.len() > SERIAL_BYTES_MAX {
        return Err(IdentityError::CertMalformed);
    }
    let validity = certificate.validity();
    Ok(LeafName {
        tenant,
        region,
        agent,
        node,
        serial: serial.to_vec(),
        not_before: UnixTime(validity.not_before.timestamp()),
        not_after: UnixTime(validity.not_after.timestamp()),
    })
}

/// Kind and dates of any certificate, authorities included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    /// Whether it may issue others.
    pub authority: bool,
    /// Start of validity.
    pub not_before: UnixTime,
    /// End of validity.
    pub not_after: UnixTime,
}

/// Reads kind and dates of a certificate from its DER form.
///
/// # Errors
/// [`IdentityError::CertMalformed`] when it cannot be parsed or is too large.
pub fn certificate_facts(der: &[u8]) -> Result<CertificateFacts, IdentityError> {
    let certificate = parse(der)?;
    let validity = certificate.validity();
    Ok(CertificateFacts {
        authority: match refuse_ca(&certificate) {
            Ok(()) => false,
            Err(IdentityError::CertUsage) => true,
            Err(error) => return Err(error),
        },
        not_before: UnixTime(validity.not_before.timestamp()),
        not_after: UnixTime(validity.not_after.timestamp()),
    })
}

fn parse(der: &[u8]) -> Result<X509Certificate<'_>, IdentityError> {
    if der.len() > CERTIFICATE_BYTES_MAX {
        return Err(IdentityError::CertMalformed);
    }
    let (rest, certificate) = X509Certificate::from_der(der).map_err(|_| IdentityError::CertMalformed)?;
    if rest.is_empty() { Ok(certificate) } else { Err(IdentityError::CertMalformed) }
}

fn refuse_ca(certificate: &X509Certificate<'_>) -> Result<(), IdentityError> {
    let extension =
        certificate.get_extension_unique(&OID_X509_EXT_BASIC_CONSTRAINTS).map_err(|_| IdentityError::CertMalformed)?;
    match extension.map(|extension| extension.parsed_extension()) {
        None => Ok(()),
        Some(ParsedExtension::BasicConstraints(constraints)) if constraints.ca => Err(IdentityError::CertUsage),
        Some(ParsedExtension::BasicConstraints(_)) => Ok(()),
        Some(_) => Err(IdentityError::CertMalformed),
    }
}

/// The attributes of a subject that name someone, in any grouping into RDNs.
#[derive(Default)]
struct Subject<'a> {
    organizations: Vec<Any<'a>>,
    units: Vec<Any<'a>>,
    common_names: Vec<Any<'a>>,
}

impl<'a> Subject<'a> {
    fn read(der: &'a [u8]) -> Result<Self, IdentityError> {
        let mut subject = Self::default();
        let name = only(der, Tag::Sequence)?;
        for rdn in elements(name.data)? {
            expect(&rdn, Tag::Set)?;
            for attribute in elements(rdn.data)? {
                expect(&attribute, Tag::Sequence)?;
                let (value, kind) = Oid::from_der(attribute.data).map_err(|_| IdentityError::CertMalformed)?;
                let (rest, value) = Any::from_der(value).map_err(|_| IdentityError::CertMalformed)?;
                if !rest.is_empty() {
                    return Err(IdentityError::CertMalformed);
                }
                if kind == OID_X509_ORGANIZATION_NAME {
                    subject.organizations.push(value);
                } else if kind == OID_X509_ORGANIZATIONAL_UNIT {
                    subject.units.push(value);
                } else if kind == OID_X509_COMMON_NAME {
                    subject.common_names.push(value);
                }
            }
        }
        Ok(subject)
    }

    fn tenant(&self) -> Result<TenantId, IdentityError> {
        match self.organizations.as_slice() {
            [] => Err(IdentityError::CertNoTenant),
            [value] => {
                let text = string(value).ok_or(IdentityError::CertStringType)?;
                let text = text.ok_or(IdentityError::CertBadTenant)?;
                TenantId::parse(text).map_err(|_| IdentityError::CertBadTenant)
            }
            _ => Err(IdentityError::CertAmbiguousTenant),
        }
    }

    fn region_and_agent(&self) -> Result<(Option<Label>, Option<Label>), IdentityError> {
        if self.units.len() > 1 || self.common_names.len() > 1 {
            return Err(IdentityError::CertAmbiguousName);
        }
        let label = |values: &[Any<'a>]| Label::parse(string(values.first()?)??).ok();
        Ok((label(&self.units), label(&self.common_names)))
    }
}

/// The elements of a constructed value; all bytes must belong to one.
fn elements(mut der: &[u8]) -> Result<Vec<Any<'_>>, IdentityError> {
    let mut elements = Vec::new();
    while !der.is_empty() {
        let (rest, element) = Any::from_der(der).map_err(|_| IdentityError::CertMalformed)?;
        elements.push(element);
        der = rest;
    }
    Ok(elements)
}

/// The one element, constructed and of the given tag, that fills `der`.
fn only(der: &[u8], tag: Tag) -> Result<Any<'_>, IdentityError> {
    let (rest, element) = Any::from_der(der).map_err(|_| IdentityError::CertMalformed)?;
    expect(&element, tag)?;
    if rest.is_empty() { Ok(element) } else { Err(IdentityError::CertMalformed) }
}

fn expect(element: &Any<'_>, tag: Tag) -> Result<(), IdentityError> {
    let header = &element.header;
    if header.is_universal() && header.is_constructed() && header.tag() == tag {
        Ok(())
    } else {
        Err(IdentityError::CertMalformed)
    }
}

/// The text of a UTF8String or PrintableString: outer `None` for any other type, inner for bytes its type forbids.
fn string<'a>(value: &Any<'a>) -> Option<Option<&'a str>> {
    let header = &value.header;
    if !header.is_universal() || header.is_constructed() {
        return None;
    }
    match header.tag() {
        Tag::Utf8String => Some(std::str::from_utf8(value.data).ok()),
        Tag::PrintableString if value.data.iter().all(is_printable) => Some(std::str::from_utf8(value.data).ok()),
        Tag::PrintableString => Some(None),
        _ => None,
    }
}

/// The alphabet of PrintableString (X.680 section 41.4).
fn is_printable(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b" '()+,-./:=?".contains(byte)
}

/// The broker a leaf names: at most one URI SAN of our scheme, which must equal region and agent.
fn node_name(
    certificate: &X509Certificate<'_>,
    region: Option<&Label>,
    agent: Option<&Label>,
) -> Result<Option<NodeId>, IdentityError> {
    let mut uris = Vec::new();
    for name in alternative_names(certificate)? {
        let bytes = match name {
            GeneralName::URI(uri) => uri.as_bytes(),
            // A URI that is not text; it may still begin with our scheme.
            GeneralName::Invalid(_, bytes) => bytes,
            _ => continue,
        };
        if bytes.get(..URI_SCHEME.len()).is_some_and(|scheme| scheme.eq_ignore_ascii_case(URI_SCHEME.as_bytes())) {
            uris.push(bytes);
        }
    }
    match (uris.as_slice(), region, agent) {
        ([], _, _) => Ok(None),
        ([uri], Some(region), Some(agent)) if *uri == format!("{NODE_URI}{region}/{agent}").as_bytes() => {
            Ok(Some(NodeId::new(region.clone(), agent.clone())))
        }
        _ => Err(IdentityError::CertNodeName),
    }
}

fn alternative_names<'c>(certificate: &'c X509Certificate<'_>) -> Result<&'c [GeneralName<'c>], IdentityError> {
    let extension =
        certificate.get_extension_unique(&OID_X509_EXT_SUBJECT_ALT_NAME).map_err(|_| IdentityError::CertMalformed)?;
    let Some(extension) = extension else { return Ok(&[]) };
    only(extension.value, Tag::Sequence)?;
    match extension.parsed_extension() {
        ParsedExtension::SubjectAlternativeName(names) => Ok(&names.general_names),
        _ => Err(IdentityError::CertMalformed),
    }
}

#[cfg(test)]
mod tests;
