//! Mutual TLS on blocking sockets.

use std::io::{IoSlice, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme, StreamOwned,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

/// A client's end of a connection.
pub(crate) type ClientStream = StreamOwned<ClientConnection, Wide>;

/// A socket that is read in large pieces: rustls by itself asks for 4 KiB at a time.
#[derive(Debug)]
pub(crate) struct Wide {
    pub(crate) tcp: TcpStream,
    buffer: Vec<u8>,
    at: usize,
    filled: usize,
}

impl Wide {
    pub(crate) fn new(tcp: TcpStream, bytes: usize) -> Self {
        Self { tcp, buffer: vec![0; bytes], at: 0, filled: 0 }
    }

    /// Whether something was read from the socket that nobody has taken.
    pub(crate) const fn holds_bytes(&self) -> bool {
        self.at < self.filled
    }
}

impl Read for Wide {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if !self.holds_bytes() {
            (self.at, self.filled) = (0, 0);
            self.filled = self.tcp.read(&mut self.buffer)?;
        }
        let bytes = out.len().min(self.filled - self.at);
        out[..bytes].copy_from_slice(&self.buffer[self.at..self.at + bytes]);
        self.at += bytes;
        Ok(bytes)
    }
}

impl Write for Wide {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.tcp.write(bytes)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> std::io::Result<usize> {
        self.tcp.write_vectored(parts)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.tcp.flush()
    }
}

/// How clients connect.
pub(crate) fn client(cert: &Path, key: &Path, alpn: &[&[u8]]) -> Result<Arc<ClientConfig>> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Trusting(provider)))
        .with_client_auth_cert(chain(cert)?, PrivateKeyDer::from_pem_file(key)?)?;
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    config.resumption = Resumption::disabled();
    config.enable_early_data = false;
    Ok(Arc::new(config))
}

/// How the relay takes connections.
pub(crate) fn server(cert: &Path, key: &Path, root: &Path) -> Result<Arc<ServerConfig>> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    for certificate in chain(root)? {
        roots.add(certificate)?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build()?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain(cert)?, PrivateKeyDer::from_pem_file(key)?)?;
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(Arc::new(config))
}

/// The name that every broker of a bench has in its certificate.
pub(crate) fn server_name() -> Result<ServerName<'static>> {
    Ok(ServerName::try_from("localhost")?)
}

fn chain(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    Ok(CertificateDer::pem_file_iter(file)?.collect::<Result<Vec<_>, _>>()?)
}

/// A load program measures; whom it talks to was decided by whoever started the broker.
#[derive(Debug)]
struct Trusting(Arc<rustls::crypto::CryptoProvider>);

impl ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        _leaf: &CertificateDer<'_>,
        _chain: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
