//! Peers that speak the native wire format by hand, well or badly.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use glocal_core::limits::CONTROL_BYTES_MAX;
use glocal_core::name::Class;
use glocal_wire::control::{Control, Hello, PROTOCOL_VERSION, Subscribe, Welcome};
use glocal_wire::data::{DataHead, DataKind};
use glocal_wire::frame::{FrameLimits, Next, next_frame};
use rustls::RootCertStore;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::fabric::{Credential, Fabric};
use super::{is_advisory, soon};

pub(crate) const NATIVE: &[u8] = b"glocal/1";
pub(crate) const BRIDGE: &[u8] = b"glocal-bridge/1";

/// A TLS client of the fabric with any credential and protocol, and with resumption and early data wanted.
pub(crate) fn tls(root: CertificateDer<'static>, credential: Option<&Credential>, alpn: &[u8]) -> rustls::ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(root).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match credential {
        Some(c) => builder.with_client_auth_cert(c.chain.clone(), c.key.clone_key()).unwrap(),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![alpn.to_vec()];
    config.enable_early_data = true;
    config
}

pub(crate) fn tls_of(fabric: &Fabric, credential: Option<&Credential>, alpn: &[u8]) -> rustls::ClientConfig {
    tls(fabric.root(), credential, alpn)
}

pub(crate) fn server_name() -> ServerName<'static> {
    ServerName::try_from("localhost").unwrap()
}

/// A QUIC connection with any credential and protocol.
pub(crate) async fn quic(
    at: SocketAddr,
    tls: rustls::ClientConfig,
) -> Result<quinn::Connection, quinn::ConnectionError> {
    let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap();
    let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let config = quinn::ClientConfig::new(Arc::new(crypto));
    endpoint.connect_with(config, at, "localhost").unwrap().await
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// What came from a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Control(Control),
    Data { name: String, payload: Vec<u8> },
}

/// One native connection.
pub(crate) struct Peer {
    stream: Box<dyn Stream>,
    buffer: BytesMut,
    _quic: Option<quinn::Connection>,
}

impl Peer {
    pub(crate) async fn tcp(at: SocketAddr, tls: rustls::ClientConfig) -> io::Result<Self> {
        Self::over(TcpStream::connect(at).await?, tls).await
    }

    pub(crate) async fn over(tcp: TcpStream, tls: rustls::ClientConfig) -> io::Result<Self> {
        tcp.set_nodelay(true)?;
        let stream = tokio_rustls::TlsConnector::from(Arc::new(tls)).connect(server_name(), tcp).await?;
        Ok(Self { stream: Box::new(stream), buffer: BytesMut::new(), _quic: None })
    }

    pub(crate) async fn quic(at: SocketAddr, tls: rustls::ClientConfig) -> io::Result<Self> {
        let connection = quic(at, tls).await.map_err(io::Error::other)?;
        let (send, receive) = connection.open_bi().await.map_err(io::Error::other)?;
        let stream = Box::new(tokio::io::join(receive, send));
        Ok(Self { stream, buffer: BytesMut::new(), _quic: Some(connection) })
    }

    pub(crate) async fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    pub(crate) async fn send(&mut self, control: impl Into<Control>) -> io::Result<()> {
        self.send_bytes(&frame(control)).await
    }

    /// The next frame; `None` when the broker has closed.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Heard>> {
        loop {
            match next_frame(&self.buffer, &FrameLimits::open(1 << 23)).map_err(io::Error::other)? {
                Next::Control { kind, body, frame_bytes } => {
                    let control = Control::decode(kind, body, CONTROL_BYTES_MAX).map_err(io::Error::other)?.unwrap();
                    self.buffer.advance(frame_bytes);
                    return Ok(Some(Heard::Control(control)));
                }
                Next::Data { frame, frame_bytes } => {
                    let heard = Heard::Data {
                        name: String::from_utf8(frame.name.to_vec()).unwrap(),
                        payload: frame.payload.to_vec(),
                    };
                    self.buffer.advance(frame_bytes);
                    return Ok(Some(heard));
                }
                Next::Need(_) => {
                    if self.stream.read_buf(&mut self.buffer).await? == 0 {
                        return Ok(None);
                    }
                }
            }
        }
    }

    pub(crate) async fn control(&mut self) -> Control {
        loop {
            match soon("a control frame", self.next()).await {
                Ok(Some(Heard::Data { name, .. })) if is_advisory(&name) => {}
                Ok(Some(Heard::Control(control))) => return control,
                other => panic!("{other:?} instead of a control frame"),
            }
        }
    }

    /// The next message of a client: its name and payload.
    pub(crate) async fn message(&mut self) -> (String, Vec<u8>) {
        loop {
            match soon("a message", self.next()).await {
                Ok(Some(Heard::Data { name, .. })) if is_advisory(&name) => {}
                Ok(Some(Heard::Data { name, payload })) => return (name, payload),
                other => panic!("{other:?} instead of a message"),
            }
        }
    }

    /// Says hello and returns the welcome.
    pub(crate) async fn hello(&mut self) -> io::Result<Welcome> {
        self.send(hello()).await?;
        match self.next().await? {
            Some(Heard::Control(Control::Welcome(welcome))) => Ok(welcome),
            other => Err(io::Error::other(format!("{other:?} instead of a welcome"))),
        }
    }

    pub(crate) async fn subscribe(&mut self, sid: u32, filter: &str) -> Control {
        self.send(Subscribe { sid, filter: filter.to_owned(), queue: None, local_only: false }).await.unwrap();
        self.control().await
    }

    pub(crate) async fn publish(&mut self, class: Class, name: &[u8], reply: &[u8], payload: &[u8]) {
        self.send_bytes(&publish(class, name, reply, payload)).await.unwrap();
    }

    /// Reads until the broker closes; what it said before.
    pub(crate) async fn until_closed(&mut self) -> Vec<Heard> {
        let mut heard = Vec::new();
        let read = async {
            while let Ok(Some(next)) = self.next().await {
                heard.push(next);
            }
        };
        soon("the broker to close", read).await;
        heard
    }

    /// Reads until the broker closes; the code of the error it named.
    pub(crate) async fn refused_with(&mut self) -> Option<String> {
        let heard = self.until_closed().await;
        heard.into_iter().find_map(|heard| match heard {
            Heard::Control(Control::Error(error)) => Some(error.code),
            Heard::Control(Control::Goodbye(goodbye)) => Some(goodbye.code),
            _ => None,
        })
    }
}

pub(crate) fn hello() -> Hello {
    Hello { versions: vec![PROTOCOL_VERSION], features: 0, client: "trial".to_owned(), default_class: 0, echo: true }
}

pub(crate) fn frame(control: impl Into<Control>) -> BytesMut {
    let mut out = BytesMut::new();
    control.into().encode_into(&mut out).unwrap();
    out
}

pub(crate) fn publish(class: Class, name: &[u8], reply: &[u8], payload: &[u8]) -> BytesMut {
    let mut out = BytesMut::new();
    let head = DataHead { seq: Some(7), ..DataHead::new(DataKind::Publish, Some(class)) };
    head.encode_into(&mut out, &[], name, reply, b"", payload).unwrap();
    out
}
