//! The listener for NATS clients over WebSocket: the same TLS, the same machine, in binary messages.
//!
//! A page of another origin that opens a WebSocket is given the browser's certificate along with it; so a request that
//! names an origin is refused unless the origin is listed. There is no compression.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Sink, Stream};
use glocal_core::deny::Escaped;
use glocal_core::limits::{NATS_TLS_MS_MAX, WEBSOCKET_BUFFER_BYTES_MAX, WEBSOCKET_FRAME_BYTES_MAX};
use glocal_engine::nats::{Listening, NatsSession, info};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::http::StatusCode;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::{Admitted, failed, refused, tls_handshake};
use crate::context::Context;
use crate::random::rand_u64;
use crate::session;
use crate::trust::unix_now;

/// Shakes hands with one client, TLS and then WebSocket, and runs its session.
pub(super) async fn handshake(
    context: Context,
    acceptor: TlsAcceptor,
    listening: Arc<Listening>,
    stream: TcpStream,
    remote: SocketAddr,
    mut admitted: Admitted,
) {
    let patience = Duration::from_millis(NATS_TLS_MS_MAX);
    let Some((stream, chain)) = tls_handshake(&context, &acceptor, stream, remote, patience).await else { return };
    let principal = match context.trust().identify_client(chain.certificates(), unix_now()) {
        Ok(principal) => principal,
        Err(reason) => return refused(&context, remote, reason),
    };
    let config_in_force = context.config();
    let origins = &config_in_force.nats_ws_allowed_origins;
    #[expect(clippy::result_large_err, reason = "the signature is the library's")]
    let check = |request: &Request, response: Response| check_origin(origins, request, response);
    // Clients put what they have gathered into one message: a largest payload comes with its command and others.
    let message_bytes_max = WEBSOCKET_FRAME_BYTES_MAX.saturating_add(context.shared.max_payload_bytes as usize);
    let config = WebSocketConfig::default()
        .max_message_size(Some(message_bytes_max))
        .max_frame_size(Some(message_bytes_max))
        .max_write_buffer_size(WEBSOCKET_BUFFER_BYTES_MAX);
    let upgrade = tokio_tungstenite::accept_hdr_async_with_config(stream, check, Some(config));
    let socket = match tokio::time::timeout(patience, upgrade).await {
        Ok(Ok(socket)) => socket,
        Ok(Err(error)) => return failed(&context, remote, &error.to_string()),
        Err(_) => return failed(&context, remote, "WebSocket handshake took too long"),
    };
    admitted.handshake = None;
    let info = info(&context.shared, &listening, rand_u64(), &remote.ip().to_string());
    let (shared, now) = (Arc::clone(&context.shared), context.clock.now());
    let machine = NatsSession::new(shared, Arc::new(principal), info, true, now);
    session::run(context, Binary::new(socket), machine, chain, remote, now).await;
}

/// Refuses a page whose origin is not listed.
#[expect(clippy::result_large_err, reason = "the signature is the library's")]
fn check_origin(allowed: &[String], request: &Request, response: Response) -> Result<Response, ErrorResponse> {
    let mut origins = request.headers().get_all("origin").iter();
    let (first, second) = (origins.next(), origins.next());
    let listed = match (first.map(|origin| origin.to_str()), second) {
        (None, None) => true,
        (Some(Ok(origin)), None) => allowed.iter().any(|listed| listed.eq_ignore_ascii_case(origin)),
        _ => false,
    };
    if listed {
        return Ok(response);
    }
    let origin = first.map_or(&b""[..], |origin| origin.as_bytes());
    tracing::warn!("WebSocket refused: origin '{}' is not in nats_ws_allowed_origins", Escaped(origin));
    let mut refusal = ErrorResponse::new(Some("origin is not allowed".to_owned()));
    *refusal.status_mut() = StatusCode::FORBIDDEN;
    Err(refusal)
}

/// The binary messages of a WebSocket as one byte stream.
#[derive(Debug)]
struct Binary<S> {
    socket: WebSocketStream<S>,
    arrived: Bytes,
}

impl<S> Binary<S> {
    const fn new(socket: WebSocketStream<S>) -> Self {
        Self { socket, arrived: Bytes::new() }
    }
}

fn broken(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        Error::ConnectionClosed | Error::AlreadyClosed => io::ErrorKind::BrokenPipe.into(),
        error => io::Error::other(error),
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Binary<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        while self.arrived.is_empty() {
            match ready!(Pin::new(&mut self.socket).poll_next(cx)) {
                Some(Ok(Message::Binary(bytes))) => self.arrived = bytes,
                Some(Ok(Message::Text(text))) => self.arrived = Bytes::from(text),
                // The library answers pings and closes; its answers leave with the next write or flush.
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Ok(Message::Close(_))) | None => return Poll::Ready(Ok(())),
                Some(Err(Error::ConnectionClosed | Error::AlreadyClosed)) => return Poll::Ready(Ok(())),
                Some(Err(error)) => return Poll::Ready(Err(broken(error))),
            }
        }
        let bytes = self.arrived.len().min(out.remaining());
        out.put_slice(&self.arrived.split_to(bytes));
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Binary<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(Pin::new(&mut self.socket).poll_ready(cx)).map_err(broken)?;
        let part = bytes.get(..WEBSOCKET_FRAME_BYTES_MAX).unwrap_or(bytes);
        Pin::new(&mut self.socket).start_send(Message::Binary(Bytes::copy_from_slice(part))).map_err(broken)?;
        Poll::Ready(Ok(part.len()))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // One message for what the lanes gave at once, instead of one per part.
        let joined: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        self.poll_write(cx, &joined)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx).map_err(broken)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_close(cx).map_err(broken)
    }
}
