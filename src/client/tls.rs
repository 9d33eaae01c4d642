//! TLS of the client: TLS 1.3 only, one provider, no resumption, no early data, and a verifier that accepts brokers only.
//!
//! It guarantees that a connection is used only when the server's chain leads to the given root, its leaf is for
//! servers, names a broker by exactly one URI SAN `glocal://node/<region>/<agent>` (the expected one, where one is
//! expected) and carries the dialled host. An agent's certificate therefore never passes for a broker's. It never logs
//! or shows a key.

use std::path::Path;
use std::sync::{Arc, Mutex};

use glocal_core::limits::{CERTIFICATE_BYTES_MAX, CHAIN_CERTIFICATES_MAX, CONFIG_BYTES_MAX};
use glocal_core::name::NodeId;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::{CertificateError, DigitallySignedStruct, SignatureScheme};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, TrustAnchor, UnixTime};
use webpki::{EndEntityCert, KeyUsage};

use crate::error::{ConnectError, ServerError};
use crate::options::{ConnectOptions, PemSource};
use crate::sync::lock;

/// The protocol name of the native edge.
pub(crate) const ALPN: &[u8] = b"glocal/1";
const NODE_URI_PREFIX: &str = "glocal://node/";

/// A TLS configuration for one connection, and its verifier, which remembers why it refused.
pub(crate) struct TlsConfig {
    pub(crate) rustls: Arc<rustls::ClientConfig>,
    pub(crate) verifier: Arc<BrokerVerifier>,
}

/// Reads the files and builds the configuration of one connection.
pub(crate) fn config(options: &ConnectOptions) -> Result<TlsConfig, ConnectError> {
    let expected = match &options.expected_node {
        Some(text) => Some(NodeId::parse(text).map_err(|_| ConnectError::NodeName(text.clone()))?),
        None => None,
    };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = Arc::new(BrokerVerifier {
        roots: roots(&options.root)?,
        expected,
        algorithms: provider.signature_verification_algorithms,
        outcome: Mutex::new(Outcome::default()),
    });
    let builder = rustls::ClientConfig::builder_with_provider(Arc::<CryptoProvider>::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(ConnectError::Tls)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::<BrokerVerifier>::clone(&verifier));
    let mut rustls = match &options.identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let chain = certificates("certificate", &identity.certificate)?;
            let key = key(&identity.key)?;
            builder.with_client_auth_cert(chain, key).map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => ConnectError::KeyMismatch {
                    key: identity.key.to_string(),
                    certificate: identity.certificate.to_string(),
                },
                rustls::Error::InvalidCertificate(_) => {
                    pem_error("certificate", &identity.certificate, "cannot be parsed")
                }
                other => ConnectError::Tls(other),
            })?
        }
    };
    rustls.alpn_protocols = vec![ALPN.to_vec()];
    // A resumed session would keep the identity of a certificate that was revoked since.
    rustls.resumption = Resumption::disabled();
    rustls.enable_early_data = false;
    Ok(TlsConfig { rustls: Arc::new(rustls), verifier })
}

fn roots(source: &PemSource) -> Result<Vec<TrustAnchor<'static>>, ConnectError> {
    certificates("root certificate", source)?
        .iter()
        .map(|der| {
            webpki::anchor_from_trusted_cert(der)
                .map(|anchor| anchor.to_owned())
                .map_err(|_| pem_error("root certificate", source, "cannot be parsed"))
        })
        .collect()
}

fn certificates(what: &'static str, source: &PemSource) -> Result<Vec<CertificateDer<'static>>, ConnectError> {
    let text = read(what, source)?;
    let chain = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| pem_error(what, source, "is not well-formed PEM"))?;
    if chain.is_empty() {
        return Err(pem_error(what, source, "holds no PEM certificate"));
    }
    Ok(chain)
}

fn key(source: &PemSource) -> Result<PrivateKeyDer<'static>, ConnectError> {
    let text = read("key", source)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|_| pem_error("key", source, "holds no PEM private key"))
}

fn read(what: &'static str, source: &PemSource) -> Result<Vec<u8>, ConnectError> {
    match source {
        PemSource::Text(text) => Ok(text.clone().into_bytes()),
        PemSource::File(path) => {
            read_file(path).map_err(|error| ConnectError::ReadFile { what, file: source.to_string(), source: error })
        }
    }
}

fn read_file(path: &Path) -> std::io::Result<Vec<u8>> {
    let size = std::fs::metadata(path)?.len();
    if size > CONFIG_BYTES_MAX as u64 {
        return Err(std::io::Error::other(format!("larger than {CONFIG_BYTES_MAX} bytes")));
    }
    std::fs::read(path)
}

fn pem_error(what: &'static str, source: &PemSource, reason: &str) -> ConnectError {
    ConnectError::Pem { what, file: source.to_string(), reason: reason.to_owned() }
}

/// Accepts brokers of the fabric, and nothing else.
#[derive(Debug)]
pub(crate) struct BrokerVerifier {
    roots: Vec<TrustAnchor<'static>>,
    expected: Option<NodeId>,
    algorithms: WebPkiSupportedAlgorithms,
    outcome: Mutex<Outcome>,
}

#[derive(Debug, Default)]
struct Outcome {
    refusal: Option<ServerError>,
    node: Option<NodeId>,
}

impl BrokerVerifier {
    /// Why the last server was refused, if it was.
    pub(crate) fn refusal(&self) -> Option<ServerError> {
        lock(&self.outcome).refusal.clone()
    }

    /// The broker that was accepted last.
    pub(crate) fn node(&self) -> Option<NodeId> {
        lock(&self.outcome).node.clone()
    }

    fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        host: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<NodeId, ServerError> {
        let too_large = |der: &CertificateDer<'_>| der.len() > CERTIFICATE_BYTES_MAX;
        if intermediates.len() >= CHAIN_CERTIFICATES_MAX || too_large(leaf) || intermediates.iter().any(too_large) {
            return Err(ServerError::TooLarge);
        }
        let certificate = EndEntityCert::try_from(leaf).map_err(server_error)?;
        certificate
            .verify_for_usage(self.algorithms.all, &self.roots, intermediates, now, KeyUsage::server_auth(), None, None)
            .map_err(server_error)?;
        let mut names = certificate.valid_uri_names().filter_map(|uri| uri.strip_prefix(NODE_URI_PREFIX));
        let node = match (names.next(), names.next()) {
            (Some(name), None) => NodeId::parse(name).map_err(|_| ServerError::NotABroker)?,
            _ => return Err(ServerError::NotABroker),
        };
        if let Some(expected) = self.expected.as_ref().filter(|expected| **expected != node) {
            return Err(ServerError::OtherBroker { expected: expected.to_string(), found: node.to_string() });
        }
        certificate
            .verify_is_valid_for_subject_name(host)
            .map_err(|_| ServerError::Host(host.to_str().into_owned()))?;
        Ok(node)
    }
}

fn server_error(error: webpki::Error) -> ServerError {
    use webpki::Error;
    match error {
        Error::CertExpired { .. } => ServerError::Expired,
        Error::CertNotValidYet { .. } => ServerError::NotYetValid,
        Error::UnknownIssuer | Error::InvalidSignatureForPublicKey => ServerError::Untrusted,
        Error::RequiredEkuNotFoundContext(_) => ServerError::Usage,
        other => ServerError::Other(other.to_string()),
    }
}

impl ServerCertVerifier for BrokerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match self.verify(end_entity, intermediates, server_name, now) {
            Ok(node) => {
                *lock(&self.outcome) = Outcome { refusal: None, node: Some(node) };
                Ok(ServerCertVerified::assertion())
            }
            Err(refusal) => {
                let alert = match &refusal {
                    ServerError::Untrusted => CertificateError::UnknownIssuer,
                    ServerError::Expired => CertificateError::Expired,
                    ServerError::NotYetValid => CertificateError::NotValidYet,
                    ServerError::Usage => CertificateError::InvalidPurpose,
                    _ => CertificateError::ApplicationVerificationFailure,
                };
                *lock(&self.outcome) = Outcome { refusal: Some(refusal), node: None };
                Err(rustls::Error::InvalidCertificate(alert))
            }
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2 is not spoken".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
