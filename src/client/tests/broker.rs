//! A broker for tests: it speaks the wire over TLS and QUIC and does what subjects tell it.
//!
//! Subjects `denied.…` are refused; publishing to `cmd.kill` closes the connection, to `cmd.garbage` answers with bytes
//! that are no frame, to `cmd.error` with an error frame, to `cmd.goodbye` with a goodbye, after `cmd.mute` there is no
//! answer at all; publishes whose subject begins with `lost.` get no acknowledgement. Everything else is delivered to
//! the publisher's own session.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use glocal_core::name::{Class, RawFilter, RawName};
use glocal_wire::control::{self, Control};
use glocal_wire::data::{DataFrame, DataHead, DataKind};
use glocal_wire::ext::ExtBuilder;
use glocal_wire::frame::{FrameLimits, Next, next_frame};
use quinn::crypto::rustls::QuicServerConfig;
use rustls::server::WebPkiClientVerifier;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::pki::{Leaf, Pki};

pub(crate) const MAX_PAYLOAD: u32 = 64 * 1024;

/// What the broker saw, in order, as `Kind detail`.
#[derive(Clone, Default)]
pub(crate) struct Seen(Arc<Mutex<Vec<String>>>);

impl Seen {
    fn note(&self, text: String) {
        self.0.lock().unwrap().push(text);
    }

    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn count(&self, text: &str) -> usize {
        self.0.lock().unwrap().iter().filter(|seen| *seen == text).count()
    }
}

pub(crate) struct Broker {
    pub(crate) address: String,
    pub(crate) seen: Seen,
    /// While set, new connections are closed at once.
    pub(crate) is_away: Arc<AtomicBool>,
    stop: CancellationToken,
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

pub(crate) fn server_config(pki: &Pki, leaf: &Leaf, alpn: &[u8]) -> rustls::ServerConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(pki.root.clone()).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build().unwrap();
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(leaf.chain.clone(), leaf.key_der())
        .unwrap();
    config.alpn_protocols = vec![alpn.to_vec()];
    config
}

impl Broker {
    pub(crate) async fn tls(pki: &Pki, leaf: &Leaf) -> Self {
        Self::tls_alpn(pki, leaf, b"glocal/1").await
    }

    pub(crate) async fn tls_alpn(pki: &Pki, leaf: &Leaf, alpn: &[u8]) -> Self {
        let acceptor = TlsAcceptor::from(Arc::new(server_config(pki, leaf, alpn)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let broker = Self::new(format!("tls://{}", listener.local_addr().unwrap()));
        let (seen, is_away, stop) = (broker.seen.clone(), Arc::clone(&broker.is_away), broker.stop.clone());
        tokio::spawn(stop.run_until_cancelled_owned(async move {
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                if is_away.load(Ordering::SeqCst) {
                    continue;
                }
                let (acceptor, seen) = (acceptor.clone(), seen.clone());
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(tcp).await {
                        let (reader, writer) = tokio::io::split(stream);
                        session(reader, writer, seen).await;
                    }
                });
            }
        }));
        broker
    }

    pub(crate) async fn quic(pki: &Pki, leaf: &Leaf) -> Self {
        let crypto = QuicServerConfig::try_from(server_config(pki, leaf, b"glocal/1")).unwrap();
        let config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let endpoint = quinn::Endpoint::server(config, any).unwrap();
        let broker = Self::new(format!("quic://{}", endpoint.local_addr().unwrap()));
        let (seen, stop) = (broker.seen.clone(), broker.stop.clone());
        tokio::spawn(stop.run_until_cancelled_owned(async move {
            while let Some(incoming) = endpoint.accept().await {
                let seen = seen.clone();
                tokio::spawn(async move {
                    let Ok(connection) = incoming.await else { return };
                    if let Ok((writer, reader)) = connection.accept_bi().await {
                        session(reader, writer, seen).await;
                    }
                    let _ = tokio::time::timeout(Duration::from_secs(2), connection.closed()).await;
                });
            }
        }));
        broker
    }

    fn new(address: String) -> Self {
        Self {
            address,
            seen: Seen::default(),
            is_away: Arc::new(AtomicBool::new(false)),
            stop: CancellationToken::new(),
        }
    }
}

#[derive(Default)]
struct Session {
    is_mute: bool,
    subscriptions: Vec<(u32, String)>,
    out: BytesMut,
}

async fn session(mut reader: impl AsyncRead + Unpin, mut writer: impl AsyncWrite + Unpin, seen: Seen) {
    let mut session = Session::default();
    let mut buffer = BytesMut::new();
    let limits = FrameLimits::open(MAX_PAYLOAD);
    loop {
        let mut goes_on = true;
        loop {
            let used = match next_frame(&buffer, &limits).unwrap() {
                Next::Need(_) => break,
                Next::Control { kind, body, frame_bytes } => {
                    let frame = Control::decode(kind, body, 65536).unwrap().unwrap();
                    session.on_control(frame, &seen);
                    frame_bytes
                }
                Next::Data { frame, frame_bytes } => {
                    goes_on &= session.on_publish(&frame, &seen);
                    frame_bytes
                }
            };
            buffer.advance(used);
        }
        if session.is_mute {
            session.out.clear();
        }
        if writer.write_all(&session.out).await.is_err() || writer.flush().await.is_err() || !goes_on {
            break;
        }
        session.out.clear();
        match reader.read_buf(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
    }
    seen.note("closed".to_owned());
    let _ = writer.shutdown().await;
}

impl Session {
    fn send(&mut self, frame: impl Into<Control>) {
        frame.into().encode_into(&mut self.out).unwrap();
    }

    fn on_control(&mut self, frame: Control, seen: &Seen) {
        match frame {
            Control::Hello(hello) => {
                seen.note(format!("hello {}", hello.client));
                self.send(control::Welcome {
                    version: 1,
                    features: 0,
                    node: "region-a/broker".to_owned(),
                    session: 7,
                    tenant: "acme".to_owned(),
                    role: "TENANT".to_owned(),
                    region: Some("region-a".to_owned()),
                    agent: Some("agent".to_owned()),
                    uid: "0123456789abcdef".to_owned(),
                    max_payload: MAX_PAYLOAD,
                    inbox: "_INBOX.x.".to_owned(),
                });
            }
            Control::Subscribe(body) if body.filter.starts_with("denied.") => {
                self.deny(0, u64::from(body.sid), body.filter);
            }
            Control::Subscribe(body) => {
                seen.note(format!("subscribe {}", body.filter));
                self.subscriptions.push((body.sid, body.filter));
                self.send(control::Subscribed { sid: body.sid });
            }
            Control::Unsubscribe(body) => {
                seen.note(body.max.map_or_else(|| "unsubscribe".to_owned(), |max| format!("unsubscribe after {max}")));
                if body.max.is_none() {
                    self.subscriptions.retain(|(sid, _)| *sid != body.sid);
                }
            }
            Control::Ping(body) => {
                seen.note("ping".to_owned());
                self.send(control::Pong { token: body.token });
            }
            other => seen.note(other.name().to_owned()),
        }
    }

    fn deny(&mut self, access: u8, id: u64, subject: String) {
        let (code, text) = ("cross-tenant".to_owned(), "not yours".to_owned());
        self.send(control::Denied { access, id, subject, code, text, retry_after_ms: None });
    }

    /// Whether the session goes on.
    fn on_publish(&mut self, frame: &DataFrame<'_>, seen: &Seen) -> bool {
        let name = std::str::from_utf8(frame.name).unwrap();
        seen.note(format!("publish {name}"));
        match name {
            "cmd.kill" => return false,
            "cmd.mute" => self.is_mute = true,
            "cmd.garbage" => {
                self.out.extend_from_slice(&[0xff; 64]);
                return true;
            }
            "cmd.goodbye" => {
                self.send(control::Goodbye { code: "shutting-down".to_owned(), text: "bye".to_owned(), grace_ms: 50 });
                return true;
            }
            "cmd.error" => {
                self.send(control::Error { code: "protocol".to_owned(), text: "told to".to_owned() });
                return false;
            }
            _ => {}
        }
        if name.starts_with("denied.") {
            self.deny(1, frame.seq.unwrap_or(0), name.to_owned());
            return true;
        }
        let class = frame.class.unwrap_or(Class::Live);
        let raw = RawName::parse(frame.name).unwrap();
        let matches = |filter: &str| RawFilter::parse(filter.as_bytes()).unwrap().matches(raw);
        let sids: Vec<u32> = self.subscriptions.iter().filter(|(_, f)| matches(f)).map(|(sid, _)| *sid).collect();
        let targets = u32::from(!sids.is_empty());
        if !sids.is_empty() {
            let mut ext = ExtBuilder::new();
            ext.subs(sids).sender_text("region-a/agent");
            let head = DataHead::new(DataKind::Deliver, Some(class));
            head.reencode_into(&mut self.out, ext.bytes().unwrap(), frame).unwrap();
        } else if !frame.reply.is_empty() {
            let reply = String::from_utf8(frame.reply.to_vec()).unwrap();
            self.send(control::NoResponders { seq: frame.seq.unwrap_or(0), subject: name.to_owned(), reply });
        }
        if let Some(seq) = frame.seq.filter(|_| class.is_reliable() && !name.starts_with("lost.")) {
            self.send(control::Ack { seq, targets });
        }
        true
    }
}
