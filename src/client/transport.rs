//! Links to a broker: TLS/TCP, or one bidirectional QUIC stream that carries the same bytes.
//!
//! With TLS 1.3 a client believes it is connected before the server has judged its certificate: [`refusal`] therefore
//! reads what a failed read or write on a fresh link really means.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::{HandshakeData, QuicClientConfig};
use quinn::{ConnectionError, IdleTimeout, TransportConfig, VarInt};
use rustls::AlertDescription;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, BufReader};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::error::ConnectError;
use crate::options::{Address, Scheme};
use crate::tls::{ALPN, TlsConfig};

const QUIC_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
const QUIC_IDLE_MS: u32 = 30_000;
const QUIC_CLOSE_WAIT: Duration = Duration::from_millis(50);
/// Bytes asked of a socket at once; rustls by itself asks for 4 KiB.
const READ_AHEAD_BYTES: usize = 32 * 1024;
/// First QUIC error code that carries a TLS alert (RFC 9001, section 4.8).
const QUIC_CRYPTO_ERROR: u64 = 0x100;

/// The reading half of a link.
pub(crate) type Reader = Box<dyn AsyncRead + Send + Unpin>;
/// The writing half of a link.
pub(crate) type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// A connection to a server that our verifier accepted; it has not welcomed us yet.
pub(crate) struct Link {
    pub(crate) reader: Reader,
    pub(crate) writer: Writer,
    pub(crate) quic: Option<QuicLink>,
}

/// What keeps a QUIC link alive; dropping it closes the connection.
pub(crate) struct QuicLink {
    connection: quinn::Connection,
    endpoint: quinn::Endpoint,
}

impl QuicLink {
    /// Closes the connection and gives the closing packet time to leave; whether it arrives is the idle timeout's matter.
    pub(crate) async fn close(self) {
        self.connection.close(VarInt::from_u32(0), b"");
        let _ = tokio::time::timeout(QUIC_CLOSE_WAIT, self.endpoint.wait_idle()).await;
    }
}

/// Connects to one address.
pub(crate) async fn dial(address: &Address, tls: &TlsConfig) -> Result<Link, ConnectError> {
    let targets: Vec<SocketAddr> = tokio::net::lookup_host((address.host(), address.port()))
        .await
        .map_err(|source| ConnectError::Resolve { address: address.clone(), source })?
        .collect();
    let name = ServerName::try_from(address.host().to_owned()).map_err(|_| ConnectError::Resolve {
        address: address.clone(),
        source: io::Error::from(io::ErrorKind::InvalidInput),
    })?;
    match address.scheme() {
        Scheme::Tls => dial_tls(address, &targets, name, tls).await,
        Scheme::Quic => dial_quic(address, &targets, tls).await,
    }
}

async fn dial_tls(
    address: &Address,
    targets: &[SocketAddr],
    name: ServerName<'static>,
    tls: &TlsConfig,
) -> Result<Link, ConnectError> {
    let unreachable = |source| ConnectError::Unreachable { address: address.clone(), source };
    let tcp = TcpStream::connect(targets).await.map_err(unreachable)?;
    tcp.set_nodelay(true).map_err(unreachable)?;
    let stream = TlsConnector::from(Arc::clone(&tls.rustls))
        .connect(name, BufReader::with_capacity(READ_AHEAD_BYTES, tcp))
        .await
        .map_err(|error| refusal(address, tls, &error, None))?;
    if stream.get_ref().1.alpn_protocol() != Some(ALPN) {
        return Err(ConnectError::RefusedProtocol { address: address.clone() });
    }
    let (reader, writer) = tokio::io::split(stream);
    Ok(Link { reader: Box::new(reader), writer: Box::new(writer), quic: None })
}

async fn dial_quic(address: &Address, targets: &[SocketAddr], tls: &TlsConfig) -> Result<Link, ConnectError> {
    let failed = |reason: String| ConnectError::Handshake { address: address.clone(), reason };
    let crypto = QuicClientConfig::try_from(Arc::clone(&tls.rustls)).map_err(|error| failed(error.to_string()))?;
    let mut config = quinn::ClientConfig::new(Arc::new(crypto));
    config.transport_config(Arc::new(quic_transport()));
    let mut last = ConnectError::Unreachable {
        address: address.clone(),
        source: io::Error::from(io::ErrorKind::AddrNotAvailable),
    };
    for target in targets {
        match dial_quic_one(address, *target, config.clone(), tls).await {
            Ok(link) => return Ok(link),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn dial_quic_one(
    address: &Address,
    target: SocketAddr,
    config: quinn::ClientConfig,
    tls: &TlsConfig,
) -> Result<Link, ConnectError> {
    let unreachable = |source| ConnectError::Unreachable { address: address.clone(), source };
    let local = match target.ip() {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let endpoint = quinn::Endpoint::client(SocketAddr::new(local, 0)).map_err(unreachable)?;
    let connection = endpoint
        .connect_with(config, target, address.host())
        .map_err(|error| unreachable(io::Error::other(error)))?
        .await
        .map_err(|error| quic_refusal(address, tls, &error))?;
    let protocol = connection
        .handshake_data()
        .and_then(|data| data.downcast::<HandshakeData>().ok())
        .and_then(|data| data.protocol);
    if protocol.as_deref() != Some(ALPN) {
        return Err(ConnectError::RefusedProtocol { address: address.clone() });
    }
    let (writer, reader) = connection.open_bi().await.map_err(|error| quic_refusal(address, tls, &error))?;
    let quic = Some(QuicLink { connection, endpoint });
    Ok(Link { reader: Box::new(reader), writer: Box::new(writer), quic })
}

fn quic_transport() -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(QUIC_WINDOW_BYTES))
        .receive_window(VarInt::from_u32(QUIC_WINDOW_BYTES))
        .send_window(u64::from(QUIC_WINDOW_BYTES))
        .datagram_receive_buffer_size(None)
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(QUIC_IDLE_MS))))
        .keep_alive_interval(Some(Duration::from_millis(u64::from(QUIC_IDLE_MS / 3))));
    transport
}

/// What a failed read or write on a link without a welcome means.
pub(crate) fn refusal(address: &Address, tls: &TlsConfig, error: &io::Error, quic: Option<&QuicLink>) -> ConnectError {
    if let Some(reason) = quic.and_then(|q| q.connection.close_reason()) {
        return quic_refusal(address, tls, &reason);
    }
    if let Some(source) = tls.verifier.refusal() {
        return ConnectError::Server { address: address.clone(), source };
    }
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::AlertReceived(alert)) => alert_refusal(address, *alert),
        Some(rustls::Error::NoApplicationProtocol) => ConnectError::RefusedProtocol { address: address.clone() },
        Some(rustls::Error::InvalidMessage(_)) => {
            ConnectError::Handshake { address: address.clone(), reason: "what answers does not speak TLS".to_owned() }
        }
        _ => ConnectError::Handshake { address: address.clone(), reason: closed_text(error) },
    }
}

fn closed_text(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe => {
            "the connection was closed before the broker's welcome (a certificate missing or refused, or not a broker)"
                .to_owned()
        }
        _ => error.to_string(),
    }
}

fn quic_refusal(address: &Address, tls: &TlsConfig, error: &ConnectionError) -> ConnectError {
    if let Some(source) = tls.verifier.refusal() {
        return ConnectError::Server { address: address.clone(), source };
    }
    let code = match error {
        ConnectionError::TransportError(error) => u64::from(error.code),
        ConnectionError::ConnectionClosed(close) => u64::from(close.error_code),
        ConnectionError::ApplicationClosed(close) => {
            let text = String::from_utf8_lossy(&close.reason).into_owned();
            return ConnectError::Refused { address: address.clone(), code: close.error_code.to_string(), text };
        }
        ConnectionError::TimedOut => {
            let source = io::Error::from(io::ErrorKind::TimedOut);
            return ConnectError::Unreachable { address: address.clone(), source };
        }
        _ => 0,
    };
    match code.checked_sub(QUIC_CRYPTO_ERROR).and_then(|alert| u8::try_from(alert).ok()) {
        Some(alert) => alert_refusal(address, AlertDescription::from(alert)),
        None => ConnectError::Handshake { address: address.clone(), reason: error.to_string() },
    }
}

/// What a TLS alert of the broker means to a user.
fn alert_refusal(address: &Address, alert: AlertDescription) -> ConnectError {
    use AlertDescription as Alert;
    let reason = match alert {
        Alert::NoApplicationProtocol => return ConnectError::RefusedProtocol { address: address.clone() },
        Alert::CertificateRequired => "it requires one and none was sent",
        Alert::UnknownCA => "it is not issued by this fabric",
        Alert::CertificateExpired => "it has expired, or is not valid yet",
        Alert::CertificateRevoked => "it is revoked",
        Alert::BadCertificate => "it is malformed or not acceptable",
        Alert::UnsupportedCertificate => "it is not for clients",
        Alert::CertificateUnknown => "it is not acceptable to this fabric",
        Alert::AccessDenied => "its issuer may not issue this name",
        Alert::DecryptError => "it is not issued by this fabric: a signature does not verify",
        Alert::ProtocolVersion => {
            let reason = "the broker does not speak TLS 1.3".to_owned();
            return ConnectError::Handshake { address: address.clone(), reason };
        }
        other => {
            return ConnectError::Handshake { address: address.clone(), reason: format!("TLS alert {other:?}") };
        }
    };
    ConnectError::RefusedCertificate { address: address.clone(), reason: reason.to_owned() }
}
