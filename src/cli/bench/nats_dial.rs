//! From an address to a NATS session: INFO, mutual TLS, CONNECT.
//!
//! It begins with TLS at once, which every server takes: one that sends INFO in clear first has it passed over on the way,
//! and nothing else is read in clear.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use anyhow::Context as _;
use bytes::{Buf as _, BytesMut};
use glocal_client::{Address, ConnectOptions};
use glocal_core::limits::{BENCH_NATS_LINE_BYTES, MAX_PAYLOAD_BYTES_DEFAULT};
use glocal_wire::nats::client::{ClientLimits, ServerNext, ServerOp, encode_connect_into, next_server_op};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::cli::WithHint as _;

/// A session's bytes.
pub(crate) type Stream = tokio_rustls::client::TlsStream<PastInfo>;

const LIMITS: ClientLimits =
    ClientLimits { line_bytes_max: BENCH_NATS_LINE_BYTES, payload_bytes_max: BENCH_NATS_LINE_BYTES };
const HINT: &str = "is this a port for NATS clients ('nats_port'), and is the certificate of this fabric?";

/// What a server said of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Greeted {
    /// Its name.
    pub(crate) name: String,
    /// The largest message, in bytes.
    pub(crate) payload_max: usize,
}

impl Greeted {
    /// Reads INFO's JSON.
    fn read(json: &[u8]) -> anyhow::Result<Self> {
        let info: serde_json::Value = serde_json::from_slice(json).context("INFO is malformed")?;
        let payload_max = info.get("max_payload").and_then(serde_json::Value::as_u64);
        let name = info.get("server_name").and_then(serde_json::Value::as_str);
        Ok(Self {
            name: name.unwrap_or_default().to_owned(),
            payload_max: payload_max
                .and_then(|bytes| usize::try_from(bytes).ok())
                .unwrap_or(MAX_PAYLOAD_BYTES_DEFAULT as usize),
        })
    }
}

/// Bytes to and from a server, without the INFO that it may send in clear.
#[derive(Debug)]
pub(crate) struct PastInfo {
    tcp: TcpStream,
    /// INFO, if it came.
    info: BytesMut,
    /// What was read and not passed on yet.
    rest: BytesMut,
    is_past: bool,
}

impl AsyncRead for PastInfo {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while !this.is_past {
            let mut part = [0; 1024];
            let mut part = ReadBuf::new(&mut part);
            std::task::ready!(Pin::new(&mut this.tcp).poll_read(context, &mut part))?;
            this.rest.extend_from_slice(part.filled());
            this.is_past = pass(&mut this.info, &mut this.rest) || part.filled().is_empty();
            if this.rest.len() > BENCH_NATS_LINE_BYTES {
                return Poll::Ready(Err(io::Error::other("INFO is too long")));
            }
        }
        if this.rest.is_empty() {
            return Pin::new(&mut this.tcp).poll_read(context, buffer);
        }
        let bytes = this.rest.len().min(buffer.remaining());
        buffer.put_slice(&this.rest.split_to(bytes));
        Poll::Ready(Ok(()))
    }
}

/// Moves INFO from what was read to `info`; whether what is left, if anything, is TLS. No TLS record begins with an `I`.
fn pass(info: &mut BytesMut, read: &mut BytesMut) -> bool {
    match read.first() {
        None => false,
        Some(b'I') => match read.iter().position(|byte| *byte == b'\n') {
            Some(end) => {
                *info = read.split_to(end + 1);
                true
            }
            None => false,
        },
        Some(_) => true,
    }
}

impl AsyncWrite for PastInfo {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().tcp).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_shutdown(context)
    }
}

/// Connects and waits until the server has taken CONNECT.
pub(crate) async fn dial(address: &Address, options: &ConnectOptions) -> anyhow::Result<(Stream, Greeted)> {
    let tls = Arc::new(options.tls()?);
    let host = address.host();
    let dialled = async {
        let tcp = TcpStream::connect((host, address.port())).await.context("cannot reach it")?;
        tcp.set_nodelay(true)?;
        let name = ServerName::try_from(host.to_owned()).context("not a host")?;
        let tcp = PastInfo { tcp, info: BytesMut::new(), rest: BytesMut::new(), is_past: false };
        let mut stream = TlsConnector::from(tls).connect(name, tcp).await.context("the TLS handshake failed")?;
        let mut info = std::mem::take(&mut stream.get_mut().0.info);
        let greeted = greet(&mut stream, &mut info).await?;
        anyhow::Ok((stream, greeted))
    };
    let timeout = options.timeouts.connect;
    let late = || format!("no answer within {} ms", timeout.as_millis());
    let dialled = tokio::time::timeout(timeout, dialled).await.with_context(late).and_then(|dialled| dialled);
    dialled.with_context(|| format!("NATS at {host}:{}", address.port())).hint(HINT)
}

/// CONNECT, and the PONG after it; `buffer` holds what came in clear.
async fn greet(stream: &mut Stream, buffer: &mut BytesMut) -> anyhow::Result<Greeted> {
    let connect = glocal_wire::nats::ConnectOptions {
        verbose: false,
        pedantic: false,
        headers: true,
        no_responders: true,
        tls_required: true,
        protocol: 1,
        name: concat!("glocal-bench/", env!("CARGO_PKG_VERSION")).to_owned(),
        lang: "rust".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..glocal_wire::nats::ConnectOptions::default()
    };
    let mut out = BytesMut::new();
    encode_connect_into(&mut out, &connect);
    out.extend_from_slice(b"PING\r\n");
    stream.write_all(&out).await.context("it closed")?;
    stream.flush().await.context("it closed")?;
    let mut greeted = Greeted { name: String::new(), payload_max: MAX_PAYLOAD_BYTES_DEFAULT as usize };
    loop {
        match next_server_op(buffer, &LIMITS).map_err(|error| anyhow::anyhow!("not NATS: {error}"))? {
            ServerNext::Need(_) => {
                let read = stream.read_buf(buffer).await.context("it closed")?;
                anyhow::ensure!(read > 0, "it closed: the certificate was refused, or it is no NATS server");
            }
            ServerNext::Op { op, bytes } => {
                match op {
                    ServerOp::Info(json) => greeted = Greeted::read(json)?,
                    ServerOp::Err(text) => anyhow::bail!("it refuses: {}", String::from_utf8_lossy(text)),
                    ServerOp::Pong => return Ok(greeted),
                    ServerOp::Ok | ServerOp::Ping | ServerOp::Msg { .. } => {}
                }
                buffer.advance(bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_a_name_or_a_limit_gets_the_usual_ones() {
        let read = |json: &str| Greeted::read(json.as_bytes()).unwrap();
        let said = Greeted { name: "n".to_owned(), payload_max: 7 };
        assert_eq!(read(r#"{"server_name":"n","max_payload":7}"#), said);
        assert_eq!(read("{}"), Greeted { name: String::new(), payload_max: 1_048_576 });
        assert!(Greeted::read(b"{").is_err());
    }

    #[test]
    fn info_in_clear_is_passed_over_and_tls_is_not() {
        let pass_all = |parts: &[&[u8]]| {
            let (mut info, mut read, mut past) = (BytesMut::new(), BytesMut::new(), false);
            for part in parts {
                assert!(!past);
                read.extend_from_slice(part);
                past = pass(&mut info, &mut read);
            }
            (info.to_vec(), read.to_vec(), past)
        };
        assert_eq!(
            pass_all(&[b"IN", b"FO {}\r", b"\n\x16\x03"]),
            (b"INFO {}\r\n".to_vec(), b"\x16\x03".to_vec(), true)
        );
        assert_eq!(pass_all(&[b"INFO {}\r\n"]), (b"INFO {}\r\n".to_vec(), Vec::new(), true));
        assert_eq!(pass_all(&[b"\x16\x03"]), (Vec::new(), b"\x16\x03".to_vec(), true));
        assert_eq!(pass_all(&[b"", b"INFO"]), (Vec::new(), b"INFO".to_vec(), false));
    }
}
