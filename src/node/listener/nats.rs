//! The listener for NATS clients: both handshake orders on one port, TLS always.
//!
//! A client that begins with TLS is known by its first byte; one that waits is sent INFO in clear, and must then begin
//! with TLS. No other byte is ever read in clear, and nothing read in clear is kept.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use glocal_core::limits::{NATS_TLS_FIRST_MS, NATS_TLS_MS_MAX};
use glocal_engine::nats::{Listening, NatsSession, info};
use glocal_wire::nats::Refusal;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::{Admission, Admitted, accept, failed, nats_ws, refused, tls_handshake};
use crate::context::Context;
use crate::random::rand_u64;
use crate::session;
use crate::trust::unix_now;

/// The first byte of a TLS connection: a handshake record (RFC 8446 section 5.1).
const TLS_HANDSHAKE: u8 = 0x16;

/// What carries the NATS protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// TLS over TCP, in either order of the handshake.
    Tcp,
    /// WebSocket over TLS.
    WebSocket,
}

/// Accepts NATS clients over one carrier until the node leaves.
pub(crate) async fn serve(
    context: Context,
    listener: TcpListener,
    carrier: Carrier,
    tls: Arc<rustls::ServerConfig>,
    listening: Listening,
    admission: Admission,
) {
    let acceptor = TlsAcceptor::from(tls);
    let listening = Arc::new(listening);
    accept(context, listener, admission, |context, stream, remote, admitted| {
        let (acceptor, listening) = (acceptor.clone(), Arc::clone(&listening));
        async move {
            match carrier {
                Carrier::Tcp => handshake(context, acceptor, listening, stream, remote, admitted).await,
                Carrier::WebSocket => {
                    nats_ws::handshake(context, acceptor, listening, stream, remote, admitted).await;
                }
            }
        }
    })
    .await;
}

async fn handshake(
    context: Context,
    acceptor: TlsAcceptor,
    listening: Arc<Listening>,
    mut stream: TcpStream,
    remote: SocketAddr,
    mut admitted: Admitted,
) {
    let info = info(&context.shared, &listening, rand_u64(), &remote.ip().to_string());
    let patience = Duration::from_millis(NATS_TLS_MS_MAX);
    let tls_first = match tokio::time::timeout(patience, begin(&mut stream, &info)).await {
        Ok(Ok(tls_first)) => tls_first,
        Ok(Err(error)) => return failed(&context, remote, &error.to_string()),
        Err(_) => return failed(&context, remote, "no TLS in time after INFO"),
    };
    let Some((stream, chain)) = tls_handshake(&context, &acceptor, stream, remote, patience).await else { return };
    let identified = context.trust().identify_client(chain.certificates(), unix_now());
    admitted.handshake = None;
    match identified {
        Ok(principal) => {
            let (shared, now) = (Arc::clone(&context.shared), context.clock.now());
            let machine = NatsSession::new(shared, Arc::new(principal), info, tls_first, now);
            session::run(context, stream, machine, chain, remote, now).await;
        }
        Err(reason) => refused(&context, remote, reason),
    }
}

/// Waits for the first byte, with INFO in clear where it does not come at once. Whether the client began with TLS.
async fn begin(stream: &mut TcpStream, info: &glocal_wire::nats::ServerInfo) -> std::io::Result<bool> {
    let mut first = [0];
    let early = tokio::time::timeout(Duration::from_millis(NATS_TLS_FIRST_MS), stream.peek(&mut first)).await;
    let tls_first = match early {
        Ok(peeked) => {
            peeked?;
            true
        }
        Err(_) => {
            let mut line = BytesMut::new();
            info.encode_into(&mut line).map_err(std::io::Error::other)?;
            stream.write_all(&line).await?;
            stream.peek(&mut first).await?;
            false
        }
    };
    if first == [TLS_HANDSHAKE] {
        return Ok(tls_first);
    }
    let mut line = BytesMut::new();
    Refusal::TlsRequired.encode_into(&mut line);
    stream.write_all(&line).await?;
    stream.shutdown().await?;
    Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "bytes in clear where TLS must begin"))
}
