//! Clients that do what no library of ours would: any certificate or none, any protocol name, any frame.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::{Buf as _, BytesMut};
use glocal_client::Scheme;
use glocal_core::deny::Deny;
use glocal_core::limits::CONTROL_BYTES_MAX;
use glocal_fabric::testing::Forged;
use glocal_node::trust::tls::provider;
use glocal_node::trust::{deny_of_alert, deny_of_quic};
use glocal_wire::control::{Control, Hello, PROTOCOL_VERSION, Welcome};
use glocal_wire::frame::{FrameLimits, Next, next_frame};
use quinn::crypto::rustls::QuicClientConfig;
use rustls::version::TLS13;
use rustls::{AlertDescription, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::mesh::PATIENCE;
use super::plan::{Agent, Fabric};

/// A chain and key to show, or nothing.
pub(super) type Shown = Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>;

/// How an attempt ended.
#[derive(Debug)]
pub(super) enum End {
    /// There is a session, which was still open when everything had been sent and answered.
    Welcomed {
        /// What the broker takes the client for.
        welcome: Box<Welcome>,
        /// Codes of the operations that it has refused meanwhile.
        denied: Vec<String>,
    },
    /// The broker said why, in a frame, and closed.
    Refused {
        /// The catalogued code.
        code: String,
        /// The text.
        text: String,
    },
    /// The handshake was ended, by a TLS alert or a QUIC close.
    Handshake {
        /// The deny reason that it stands for, as far as it tells.
        deny: Option<Deny>,
        /// The alert.
        text: String,
    },
    /// Closed without a word.
    Closed(String),
}

/// The identity of a forged certificate.
pub(super) fn forged(forged: &Forged) -> Shown {
    Some((forged.chain.clone(), forged.key.clone_key()))
}

/// The true identity of an agent.
pub(super) fn identity(fabric: &Fabric, agent: Agent) -> anyhow::Result<Shown> {
    let (cert, key) = fabric.identity(agent);
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(cert)?.collect();
    Ok(Some((chain?, PrivateKeyDer::from_pem_file(key)?)))
}

/// A client's hello; the name is only for logs, whatever it says.
pub(super) fn hello(name: &str) -> Control {
    let versions = vec![PROTOCOL_VERSION];
    Hello { versions, features: u64::MAX, client: name.to_owned(), default_class: 0, echo: true }.into()
}

/// The bytes of control frames.
pub(super) fn frames(controls: &[Control]) -> anyhow::Result<BytesMut> {
    let mut bytes = BytesMut::new();
    for control in controls {
        control.encode_into(&mut bytes)?;
    }
    Ok(bytes)
}

fn config(fabric: &Fabric, alpn: &[u8], shown: Shown) -> anyhow::Result<rustls::ClientConfig> {
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_file_iter(fabric.root())? {
        roots.add(root?)?;
    }
    let builder = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots);
    let mut config = match shown {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key)?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![alpn.to_vec()];
    Ok(config)
}

/// Dials and sends `sent`, then reads until the broker closes, or answers a ping that was sent last.
pub(super) async fn dial(
    fabric: &Fabric,
    (scheme, at): (Scheme, SocketAddr),
    alpn: &[u8],
    shown: Shown,
    sent: &[u8],
) -> anyhow::Result<End> {
    let config = config(fabric, alpn, shown)?;
    let attempt = async {
        match scheme {
            Scheme::Tls => tcp(config, at, sent).await,
            Scheme::Quic => quic(config, at, sent).await,
        }
    };
    let deadline = PATIENCE + Duration::from_secs(1);
    tokio::time::timeout(deadline, attempt).await.context("the broker neither answers nor closes")?
}

async fn tcp(config: rustls::ClientConfig, at: SocketAddr, sent: &[u8]) -> anyhow::Result<End> {
    let stream = TcpStream::connect(at).await?;
    let connected = TlsConnector::from(Arc::new(config)).connect(ServerName::from(at.ip()), stream).await;
    let talked = match connected {
        Ok(stream) => converse(stream, sent).await,
        Err(error) => Err(error),
    };
    Ok(talked.unwrap_or_else(|error| ended(&error)))
}

async fn quic(config: rustls::ClientConfig, at: SocketAddr, sent: &[u8]) -> anyhow::Result<End> {
    let crypto = QuicClientConfig::try_from(config)?;
    let endpoint = quinn::Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    let connecting = endpoint.connect_with(quinn::ClientConfig::new(Arc::new(crypto)), at, "localhost")?;
    let connection = match connecting.await {
        Ok(connection) => connection,
        Err(error) => return Ok(ended_quic(&error)),
    };
    let talked = match connection.open_bi().await {
        Ok((send, receive)) => converse(tokio::io::join(receive, send), sent).await,
        Err(error) => return Ok(ended_quic(&error)),
    };
    Ok(match talked {
        Ok(End::Closed(text)) => connection.close_reason().map_or(End::Closed(text), |e| ended_quic(&e)),
        Ok(end) => end,
        Err(_) => ended_quic(&connection.closed().await),
    })
}

/// Sends, and reads answers until something has been decided.
async fn converse(mut stream: impl AsyncRead + AsyncWrite + Unpin, sent: &[u8]) -> std::io::Result<End> {
    // A broker that has refused us may have closed already; its alert is still there to be read.
    let written = async {
        stream.write_all(sent).await?;
        stream.flush().await
    }
    .await;
    let (mut received, mut welcome, mut denied) = (BytesMut::new(), None, Vec::new());
    loop {
        while let Some(control) = next_control(&mut received)? {
            match control {
                Control::Welcome(body) => welcome = Some(Box::new(body)),
                Control::Error(e) => return Ok(End::Refused { code: e.code, text: e.text }),
                Control::BridgeError(e) => return Ok(End::Refused { code: e.code, text: e.text }),
                Control::Goodbye(e) => return Ok(End::Refused { code: e.code, text: e.text }),
                Control::Denied(body) => denied.push(body.code),
                Control::Pong(_) => {
                    let welcome = welcome.ok_or_else(|| std::io::Error::other("a pong without a welcome"))?;
                    return Ok(End::Welcomed { welcome, denied });
                }
                _ => {}
            }
        }
        if stream.read_buf(&mut received).await? == 0 {
            written?;
            return Ok(End::Closed("closed without a word".to_owned()));
        }
    }
}

fn next_control(received: &mut BytesMut) -> std::io::Result<Option<Control>> {
    loop {
        let (control, used) = match next_frame(received, &FrameLimits::open(1 << 20)).map_err(std::io::Error::other)? {
            Next::Need(_) => return Ok(None),
            Next::Data { frame_bytes, .. } => (None, frame_bytes),
            Next::Control { kind, body, frame_bytes } => {
                (Control::decode(kind, body, CONTROL_BYTES_MAX).map_err(std::io::Error::other)?, frame_bytes)
            }
        };
        received.advance(used);
        if control.is_some() {
            return Ok(control);
        }
    }
}

fn ended(error: &std::io::Error) -> End {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::AlertReceived(alert)) => {
            End::Handshake { deny: deny_of_alert(*alert), text: format!("TLS alert {alert:?}") }
        }
        _ => End::Closed(error.to_string()),
    }
}

fn ended_quic(error: &quinn::ConnectionError) -> End {
    let deny = deny_of_quic(error).map(|(_, deny)| deny);
    let quinn::ConnectionError::ConnectionClosed(close) = error else { return End::Closed(error.to_string()) };
    // A crypto error is 0x100 and the alert (RFC 9001 section 4.8).
    let alert = u64::from(close.error_code).checked_sub(0x100).and_then(|alert| u8::try_from(alert).ok());
    match alert.map(AlertDescription::from) {
        Some(alert) => End::Handshake { deny, text: format!("TLS alert {alert:?}") },
        None => End::Closed(error.to_string()),
    }
}
