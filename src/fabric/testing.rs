//! Odd certificates, to show and test that brokers refuse them. Never used to issue anything real.
//!
//! [`Forge`] opens the CAs that an apply has made and bends one thing per certificate. `glocal demo` and the tests of
//! attacks use it; what it makes is written nowhere.

use std::path::Path;

use glocal_core::name::{Label, TenantId};
use glocal_core::time::UnixTime;
use rcgen::string::BmpString;
use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, ExtendedKeyUsagePurpose, KeyPair};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::apply::now;
use crate::pki::{self, Ca, LeafKind, LeafRequest, PkiError};

const DAY_SECONDS: i64 = 86_400;

/// What is odd about a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Oddity {
    /// Nothing: an ordinary agent of the tenant.
    None,
    /// No `O=` at all.
    NoTenant,
    /// Two `O=`: the tenant, then `cresco-system`.
    TwoTenants,
    /// Two `O=`: `cresco-system`, then the tenant.
    TwoTenantsSwapped,
    /// The `O=` is a BMPString.
    BmpTenant,
    /// The CN contains `,O=cresco-system`, which a printed DN would not escape.
    CommaInName,
    /// The `O=` has a NUL in it: the tenant, NUL, `x`.
    NulInTenant,
    /// Two `OU=`.
    TwoRegions,
    /// The CN is `>`.
    WildcardName,
    /// It expired a day ago.
    Expired,
    /// It becomes valid in a day.
    NotYetValid,
    /// An agent that may also serve.
    ServerAuth,
    /// An agent that claims to be a broker: a node SAN, though the bundle knows no such node.
    NodeName,
}

impl Oddity {
    /// Every oddity that [`Forge::leaf`] makes.
    pub const ALL: &[Self] = &[
        Self::None,
        Self::NoTenant,
        Self::TwoTenants,
        Self::TwoTenantsSwapped,
        Self::BmpTenant,
        Self::CommaInName,
        Self::NulInTenant,
        Self::TwoRegions,
        Self::WildcardName,
        Self::Expired,
        Self::NotYetValid,
        Self::ServerAuth,
        Self::NodeName,
    ];
}

/// A chain to present, leaf first, with the leaf's private key.
pub struct Forged {
    /// The certificates, leaf first.
    pub chain: Vec<CertificateDer<'static>>,
    /// The leaf's private key, PKCS #8.
    pub key: PrivateKeyDer<'static>,
    key_pem: String,
}

impl Forged {
    /// The chain in PEM form.
    #[must_use]
    pub fn chain_pem(&self) -> String {
        self.chain.iter().map(|der| pki::to_pem(der)).collect()
    }

    /// The private key in PEM form.
    #[must_use]
    pub fn key_pem(&self) -> &str {
        &self.key_pem
    }
}

/// Why something could not be forged.
#[derive(Debug, thiserror::Error)]
pub enum ForgeError {
    /// A file of the fabric could not be read.
    #[error("{path}: {source}")]
    Io {
        /// Which.
        path: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// A certificate could not be made.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// The library refused.
    #[error(transparent)]
    Library(#[from] rcgen::Error),
}

/// A region's CA, used to make odd certificates.
pub struct Forge {
    ca: Ca,
    region: Label,
}

impl Forge {
    /// Opens the CA of a region in the output directory of an apply.
    ///
    /// # Errors
    /// When its files cannot be read or used.
    pub fn open(out: &Path, region: &Label) -> Result<Self, ForgeError> {
        let read = |name: &str| {
            let path = out.join("regions").join(region.as_str()).join(name);
            std::fs::read_to_string(&path).map_err(|source| ForgeError::Io { path: path.display().to_string(), source })
        };
        let ca = Ca::from_pem(read("ca.pem")?.as_bytes(), &read("ca.key")?)?;
        Ok(Self { ca, region: region.clone() })
    }

    /// A CA of another fabric altogether, with the same names.
    ///
    /// # Errors
    /// When the library refuses.
    pub fn foreign(fabric: &Label, region: &Label) -> Result<Self, ForgeError> {
        let root = pki::make_root(fabric, pki::new_key()?, now())?;
        let ca = pki::make_region_ca(&root, region, pki::new_key()?, now())?;
        Ok(Self { ca, region: region.clone() })
    }

    /// Its certificate.
    #[must_use]
    pub const fn ca(&self) -> &CertificateDer<'static> {
        self.ca.der()
    }

    /// An agent of `tenant` in this CA's region with one thing odd about it.
    ///
    /// # Errors
    /// When the library refuses.
    pub fn leaf(&self, tenant: &TenantId, agent: &Label, oddity: Oddity) -> Result<Forged, ForgeError> {
        self.leaf_in(tenant, &self.region.clone(), agent, oddity)
    }

    /// An agent of `tenant` that claims any region, signed by this region's CA.
    ///
    /// # Errors
    /// When the library refuses.
    pub fn leaf_in(
        &self,
        tenant: &TenantId,
        region: &Label,
        agent: &Label,
        oddity: Oddity,
    ) -> Result<Forged, ForgeError> {
        let kind = match oddity {
            Oddity::NodeName => LeafKind::Node { hosts: vec!["localhost".to_owned()] },
            _ => LeafKind::Agent,
        };
        let request =
            LeafRequest { tenant: tenant.clone(), region: region.clone(), agent: agent.clone(), kind, days: 1 };
        let now = now();
        let start = match oddity {
            Oddity::Expired => UnixTime(now.0 - 2 * DAY_SECONDS),
            Oddity::NotYetValid => UnixTime(now.0 + DAY_SECONDS),
            _ => now,
        };
        let mut params = pki::leaf_params(&request, start)?;
        bend(&mut params, &request, oddity)?;
        let key = pki::new_key()?;
        let leaf: CertificateDer<'static> = params.signed_by(&key, self.ca.issuer())?.into();
        Ok(forged(vec![leaf, self.ca.der().clone()], &key))
    }

    /// A leaf of `tenant` in `claimed`'s region, signed by this CA and presented with the claimed region's CA in second
    /// place, where code that reads "the second certificate" would take it for the issuer.
    ///
    /// # Errors
    /// When the library refuses.
    pub fn decoy(&self, claimed: &Self, tenant: &TenantId, agent: &Label) -> Result<Forged, ForgeError> {
        let mut forged = self.leaf_in(tenant, &claimed.region, agent, Oddity::None)?;
        forged.chain.insert(1, claimed.ca.der().clone());
        Ok(forged)
    }
}

fn forged(chain: Vec<CertificateDer<'static>>, key: &KeyPair) -> Forged {
    let der = PrivatePkcs8KeyDer::from(key.serialize_der());
    Forged { chain, key: PrivateKeyDer::Pkcs8(der), key_pem: key.serialize_pem() }
}

/// Bends the parameters of an ordinary leaf.
fn bend(params: &mut CertificateParams, request: &LeafRequest, oddity: Oddity) -> Result<(), ForgeError> {
    // A distinguished name of this library is a map; a custom type of the same number is another entry.
    let again = |number| DnType::CustomDnType(vec![2, 5, 4, number]);
    let tenant = request.tenant.as_str();
    let mut name = DistinguishedName::new();
    match oddity {
        Oddity::CommaInName => {
            name.push(DnType::CommonName, format!("{},O=cresco-system", request.agent));
        }
        Oddity::WildcardName => name.push(DnType::CommonName, ">"),
        _ => name.push(DnType::CommonName, request.agent.as_str()),
    }
    name.push(DnType::OrganizationalUnitName, request.region.as_str());
    match oddity {
        Oddity::NoTenant => {}
        Oddity::BmpTenant => {
            let utf16 = tenant.encode_utf16().flat_map(u16::to_be_bytes).collect();
            name.push(DnType::OrganizationName, DnValue::BmpString(BmpString::from_utf16be(utf16)?));
        }
        Oddity::TwoTenantsSwapped => {
            name.push(DnType::OrganizationName, "cresco-system");
            name.push(again(10), tenant);
        }
        Oddity::NulInTenant => name.push(DnType::OrganizationName, format!("{tenant}\0x")),
        _ => name.push(DnType::OrganizationName, tenant),
    }
    match oddity {
        Oddity::TwoTenants => name.push(again(10), "cresco-system"),
        Oddity::TwoRegions => name.push(again(11), "elsewhere"),
        Oddity::ServerAuth => {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
            params.subject_alt_names.push(rcgen::SanType::DnsName("localhost".try_into()?));
        }
        _ => {}
    }
    params.distinguished_name = name;
    Ok(())
}
