//! Listeners for clients: TLS over TCP, and QUIC. They bound what strangers cost: unfinished handshakes, connections per
//! address, time.

use std::collections::HashMap;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use glocal_core::deny::Deny;
use glocal_core::limits::{CONNECTIONS_PER_IP_MAX, HANDSHAKE_MS_MAX, HANDSHAKES_MAX, SESSIONS_MAX};
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;

use crate::context::Context;
use crate::read_ahead::ReadAhead;
use crate::session;
use crate::trust::PeerChain;
use crate::trust::tls::{ALPN_NATIVE, require_alpn};
use crate::trust::unix_now;

pub(crate) mod nats;
mod nats_ws;

/// Pause after the system refused a connection, for instance for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What connections of strangers may take up.
#[derive(Clone, Debug)]
pub(crate) struct Admission {
    handshakes: Arc<Semaphore>,
    per_address: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl Default for Admission {
    fn default() -> Self {
        Self { handshakes: Arc::new(Semaphore::new(HANDSHAKES_MAX)), per_address: Arc::default() }
    }
}

/// One admitted connection; gives its place back when dropped.
#[derive(Debug)]
struct Admitted {
    address: IpAddr,
    per_address: Arc<Mutex<HashMap<IpAddr, usize>>>,
    handshake: Option<OwnedSemaphorePermit>,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut map = self.per_address.lock();
        if let Some(count) = map.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                map.remove(&self.address);
            }
        }
    }
}

impl Admission {
    /// Whether so many handshakes are unfinished that addresses must be proved first.
    fn is_busy(&self) -> bool {
        self.handshakes.available_permits() < HANDSHAKES_MAX / 2
    }

    fn admit(&self, context: &Context, address: IpAddr) -> Option<Admitted> {
        let full = context.counters.sessions.value() >= SESSIONS_MAX || context.lame_duck.is_cancelled();
        let handshake = if full { None } else { Arc::clone(&self.handshakes).try_acquire_owned().ok() };
        let mut map = self.per_address.lock();
        let count = map.entry(address).or_insert(0);
        if handshake.is_none() || *count >= CONNECTIONS_PER_IP_MAX {
            if *count == 0 {
                map.remove(&address);
            }
            context.counters.connections_refused.add(1);
            return None;
        }
        *count += 1;
        drop(map);
        Some(Admitted { address, per_address: Arc::clone(&self.per_address), handshake })
    }
}

/// Accepts connections until the node leaves, and runs `handshake` for each that is admitted, in a task of its own.
async fn accept<H, F>(context: Context, listener: TcpListener, admission: Admission, handshake: H)
where
    H: Fn(Context, TcpStream, SocketAddr, Admitted) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = context.lame_duck.cancelled() => return,
        };
        match accepted {
            Ok((stream, remote)) => {
                let Some(admitted) = admission.admit(&context, remote.ip()) else { continue };
                // Small writes are batched by the pump; waiting for more in the kernel would only add delay.
                let _ = stream.set_nodelay(true);
                context.tasks.clone().spawn(handshake(context.clone(), stream, remote, admitted));
            }
            Err(error) => {
                tracing::warn!("a connection could not be accepted: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// The server side of one TLS connection over TCP; in a place of its own, since it is handed on several times.
type TlsStream = Box<tokio_rustls::server::TlsStream<ReadAhead<TcpStream>>>;

/// Shakes hands within `patience`; a connection that fails is counted and `None` comes back.
async fn tls_handshake(
    context: &Context,
    acceptor: &TlsAcceptor,
    stream: TcpStream,
    remote: SocketAddr,
    patience: Duration,
) -> Option<(TlsStream, PeerChain)> {
    match tokio::time::timeout(patience, acceptor.accept(ReadAhead::new(stream))).await {
        Ok(Ok(stream)) => {
            let chain = PeerChain::new(stream.get_ref().1.peer_certificates().unwrap_or_default());
            Some((Box::new(stream), chain))
        }
        Ok(Err(error)) => {
            // The verifier counts what it refuses; that there was nothing to verify it never sees.
            let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
            if matches!(inner, Some(rustls::Error::NoCertificatesPresented)) {
                context.trust().refusals().record(Deny::NoCertificate, "client", "-", unix_now());
            }
            failed(context, remote, &error.to_string());
            None
        }
        Err(_) => {
            failed(context, remote, "TLS handshake took too long");
            None
        }
    }
}

/// Accepts clients over TLS/TCP until the node leaves.
pub(crate) async fn serve_tcp(
    context: Context,
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
    admission: Admission,
) {
    let acceptor = TlsAcceptor::from(tls);
    accept(context, listener, admission, |context, stream, remote, admitted| {
        handshake_tcp(context, acceptor.clone(), stream, remote, admitted)
    })
    .await;
}

async fn handshake_tcp(
    context: Context,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    remote: SocketAddr,
    mut admitted: Admitted,
) {
    let began = context.clock.now();
    let patience = Duration::from_millis(HANDSHAKE_MS_MAX);
    let Some((stream, chain)) = tls_handshake(&context, &acceptor, stream, remote, patience).await else { return };
    let identified = require_alpn(stream.get_ref().1.alpn_protocol(), ALPN_NATIVE)
        .and_then(|()| context.trust().identify_client(chain.certificates(), unix_now()));
    admitted.handshake = None;
    match identified {
        Ok(principal) => session::run_native(context, stream, principal, chain, remote, began).await,
        Err(reason) => refused(&context, remote, reason),
    }
}

/// Accepts clients over QUIC until the node leaves: one bidirectional stream carries what TCP would.
pub(crate) async fn serve_quic(context: Context, endpoint: quinn::Endpoint, admission: Admission) {
    loop {
        let incoming = tokio::select! {
            incoming = endpoint.accept() => incoming,
            () = context.lame_duck.cancelled() => return,
        };
        let Some(incoming) = incoming else { return };
        if admission.is_busy() && !incoming.remote_address_validated() {
            // Whoever sends from addresses that are not its own must not use up what clients need.
            drop(incoming.retry());
            continue;
        }
        let remote = incoming.remote_address();
        match admission.admit(&context, remote.ip()) {
            Some(admitted) => {
                context.tasks.clone().spawn(handshake_quic(context.clone(), incoming, remote, admitted));
            }
            None => incoming.refuse(),
        }
    }
}

async fn handshake_quic(context: Context, incoming: quinn::Incoming, remote: SocketAddr, mut admitted: Admitted) {
    let began = context.clock.now();
    let deadline = Duration::from_millis(HANDSHAKE_MS_MAX);
    let opened = async {
        let connection = incoming.await?;
        let stream = connection.accept_bi().await?;
        Ok::<_, quinn::ConnectionError>((connection, stream))
    };
    let (connection, (send, receive)) = match tokio::time::timeout(deadline, opened).await {
        Ok(Ok(opened)) => opened,
        Ok(Err(error)) => return failed(&context, remote, &error.to_string()),
        Err(_) => return failed(&context, remote, "QUIC handshake took too long"),
    };
    let chain = PeerChain::of_quic(&connection);
    let identified = context.trust().identify_client(chain.certificates(), unix_now());
    admitted.handshake = None;
    match identified {
        Ok(principal) => {
            let stream = tokio::io::join(receive, send);
            session::run_native(context, stream, principal, chain, remote, began).await;
            // The peer has read the last words, or will not.
            let _ = tokio::time::timeout(ACCEPT_PAUSE, connection.closed()).await;
            connection.close(quinn::VarInt::from_u32(0), b"");
        }
        Err(reason) => {
            refused(&context, remote, reason);
            connection.close(quinn::VarInt::from_u32(1), reason.code().as_bytes());
        }
    }
}

fn failed(context: &Context, remote: SocketAddr, why: &str) {
    context.counters.handshakes_failed.add(1);
    tracing::debug!(%remote, "handshake failed: {why}");
}

fn refused(context: &Context, remote: SocketAddr, reason: Deny) {
    context.counters.handshakes_failed.add(1);
    tracing::warn!(%remote, reason = reason.code(), "connection refused: {}", reason.template());
}
