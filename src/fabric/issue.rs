//! Issuing one leaf outside a plan, into files of its own.
//!
//! Nothing is overwritten. What the bundle allows is not asked here: `glocal pki verify --explain` answers that.

use std::path::{Path, PathBuf};

use glocal_core::limits::PEM_BYTES_MAX;
use glocal_core::name::Label;
use rustls_pki_types::CertificateDer;

use crate::apply::now;
use crate::bundle::ReadError;
use crate::files::{self, PUBLIC, SECRET};
use crate::pki::{self, Ca, LeafRequest, PkiError};

/// Why a leaf was not issued.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The CA's files do not make a CA, or the certificate could not be made.
    #[error("{path}: {source}", path = path.display())]
    Pki {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: PkiError,
    },
    /// The CA is of another region than the leaf.
    #[error("{path}: is of '{found}', not of region '{region}': brokers would refuse what it issues there", path = path.display())]
    Region {
        /// The CA's certificate.
        path: PathBuf,
        /// Its name.
        found: String,
        /// The region asked for.
        region: Label,
    },
    /// A file is in the way.
    #[error("{path}: exists and is not overwritten", path = .0.display())]
    Exists(PathBuf),
    /// A file could not be written.
    #[error("{path}: {source}", path = path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
}

/// What was issued, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issued {
    /// The leaf and the CA's certificate.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
    /// The leaf.
    pub der: CertificateDer<'static>,
}

/// The certificates of a PEM or DER file, leaf first.
///
/// # Errors
/// When it cannot be read or holds none.
pub fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ReadError> {
    let bytes = read(path)?;
    if bytes.first() == Some(&0x30) && pki::parse(&bytes).is_ok() {
        return Ok(vec![CertificateDer::from(bytes)]);
    }
    pki::certificates(&bytes).map_err(|error| ReadError { path: path.to_owned(), problem: error.to_string() })
}

/// A CA and the region it is of, when its name says one.
///
/// # Errors
/// When its files cannot be read or do not make a CA.
pub fn open_ca(certificate: &Path, key: &Path) -> Result<(Ca, Option<Label>), IssueError> {
    let der = read_certificates(certificate)?.into_iter().next();
    let problem = |path: &Path| {
        let path = path.to_owned();
        move |source| IssueError::Pki { path, source }
    };
    let der = der.ok_or(PkiError::NoCertificate).map_err(problem(certificate))?;
    let text = read(key)?;
    let key_pair = pki::key_from_pem(&String::from_utf8_lossy(&text)).map_err(problem(key))?;
    let region = name_of(&der).and_then(|name| Label::parse(name.strip_suffix(" CA")?).ok());
    Ok((Ca::new(der, key_pair).map_err(problem(certificate))?, region))
}

/// Issues a leaf with a CA of its region into `<out>/<agent>@<region>.pem` and `.key`.
///
/// # Errors
/// When the CA does not fit, a file is in the way, or the system refuses.
pub fn issue(certificate: &Path, key: &Path, request: &LeafRequest, out: &Path) -> Result<Issued, IssueError> {
    let (ca, region) = open_ca(certificate, key)?;
    if region.as_ref() != Some(&request.region) {
        return Err(IssueError::Region {
            path: certificate.to_owned(),
            found: name_of(ca.der()).unwrap_or_default().escape_debug().to_string(),
            region: request.region.clone(),
        });
    }
    let problem = |source| IssueError::Pki { path: certificate.to_owned(), source };
    let leaf_key = pki::new_key().map_err(problem)?;
    let der = pki::issue(&ca, request, &leaf_key, now()).map_err(problem)?;
    let stem = format!("{}@{}", request.agent, request.region);
    let (pem_path, key_path) = (out.join(format!("{stem}.pem")), out.join(format!("{stem}.key")));
    if let Some(path) = [&pem_path, &key_path].into_iter().find(|path| path.exists()) {
        return Err(IssueError::Exists(path.clone()));
    }
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source: std::io::Error| match source.kind() {
            std::io::ErrorKind::AlreadyExists => IssueError::Exists(path),
            _ => IssueError::Write { path, source },
        }
    };
    files::make_directory(out, files::SECRET_DIRECTORY).map_err(failed(out))?;
    files::write_new(&key_path, leaf_key.serialize_pem().as_bytes(), SECRET).map_err(failed(&key_path))?;
    let chain = pki::to_pem(&der) + &pki::to_pem(ca.der());
    files::write_new(&pem_path, chain.as_bytes(), PUBLIC).map_err(failed(&pem_path))?;
    Ok(Issued { certificate: pem_path, key: key_path, der })
}

fn name_of(der: &[u8]) -> Option<String> {
    let certificate = pki::parse(der).ok()?;
    let name = certificate.subject().iter_common_name().next()?.as_str().ok()?;
    Some(name.to_owned())
}

fn read(path: &Path) -> Result<Vec<u8>, ReadError> {
    files::read_existing(path, PEM_BYTES_MAX)
        .map_err(|error| ReadError { path: path.to_owned(), problem: error.to_string() })
}

#[cfg(test)]
mod tests {
    use glocal_core::identity::leaf_name;
    use glocal_core::name::TenantId;

    use super::*;
    use crate::pki::LeafKind;

    #[test]
    fn one_leaf_is_issued_and_never_over_another() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let fabric = Label::parse("f").unwrap();
        let region = Label::parse("r").unwrap();
        let root = pki::make_root(&fabric, pki::new_key().unwrap(), now()).unwrap();
        let key = pki::new_key().unwrap();
        std::fs::write(path("ca.key"), key.serialize_pem()).unwrap();
        let ca = pki::make_region_ca(&root, &region, key, now()).unwrap();
        std::fs::write(path("ca.pem"), pki::to_pem(ca.der())).unwrap();
        let mut request = LeafRequest {
            tenant: TenantId::parse("acme").unwrap(),
            region,
            agent: Label::parse("alice").unwrap(),
            kind: LeafKind::Agent,
            days: 7,
        };
        let out = path("out");
        let issued = issue(&path("ca.pem"), &path("ca.key"), &request, &out).unwrap();
        assert_eq!(issued.certificate, out.join("alice@r.pem"));
        let chain = read_certificates(&issued.certificate).unwrap();
        assert_eq!(chain.len(), 2);
        assert_eq!(leaf_name(&chain[0]).unwrap().tenant.as_str(), "acme");
        let again = issue(&path("ca.pem"), &path("ca.key"), &request, &out).unwrap_err();
        assert!(matches!(again, IssueError::Exists(_)), "{again}");
        request.region = Label::parse("other").unwrap();
        let text = issue(&path("ca.pem"), &path("ca.key"), &request, &out).unwrap_err().to_string();
        assert!(
            text.ends_with("is of 'r CA', not of region 'other': brokers would refuse what it issues there"),
            "{text}"
        );
        let text = read_certificates(&path("ca.key")).unwrap_err().to_string();
        assert!(text.ends_with("ca.key: holds no certificate in PEM form"), "{text}");
        let text = open_ca(&path("ca.pem"), &path("nothing")).map(|_| ()).unwrap_err().to_string();
        assert!(text.contains("nothing: "), "{text}");
    }
}
