//! Accepting bridges that others dial.

use std::sync::Arc;
use std::time::Duration;

use glocal_core::identity::Principal;
use glocal_core::limits::{BRIDGE_HANDSHAKES_MAX, HANDSHAKE_MS_MAX};
use glocal_wire::control::Control;
use tokio::sync::Semaphore;

use super::control_stream::ControlStream;
use super::{Candidate, Ended, close, dedicated, note, run, said_by_peer};
use crate::context::Context;
use crate::edge_status::Failure;
use crate::trust::PeerChain;
use crate::trust::{Usage, unix_now};

/// Accepts bridges until the node ends. Their handshakes have a budget of their own, so that a storm of clients cannot
/// keep brokers out.
pub(crate) async fn serve(context: Context, endpoint: quinn::Endpoint) {
    let handshakes = Arc::new(Semaphore::new(BRIDGE_HANDSHAKES_MAX));
    loop {
        let incoming = tokio::select! {
            incoming = endpoint.accept() => incoming,
            () = context.stop.cancelled() => return,
        };
        let Some(incoming) = incoming else { return };
        if handshakes.available_permits() < BRIDGE_HANDSHAKES_MAX / 2 && !incoming.remote_address_validated() {
            // Whoever sends from addresses that are not its own must not use up what brokers need.
            drop(incoming.retry());
            continue;
        }
        let Ok(permit) = Arc::clone(&handshakes).try_acquire_owned() else {
            context.counters.connections_refused.add(1);
            incoming.refuse();
            continue;
        };
        let context = context.clone();
        context.tasks.clone().spawn(async move {
            let remote = incoming.remote_address();
            let deadline = Duration::from_millis(HANDSHAKE_MS_MAX);
            let connection = match tokio::time::timeout(deadline, async { incoming.await }).await {
                Ok(Ok(connection)) => connection,
                Ok(Err(error)) => {
                    context.counters.handshakes_failed.add(1);
                    tracing::debug!(%remote, "bridge handshake failed: {error}");
                    return;
                }
                Err(_) => return context.counters.handshakes_failed.add(1),
            };
            drop(permit);
            let chain = PeerChain::of_quic(&connection);
            match context.trust().identify_dialler(chain.certificates(), unix_now()) {
                Ok(principal) => take(&context, connection, chain, principal).await,
                Err(reason) => {
                    context.counters.handshakes_failed.add(1);
                    tracing::warn!(%remote, reason = reason.code(), "bridge refused: {}", reason.template());
                    connection.close(quinn::VarInt::from_u32(1), reason.code().as_bytes());
                }
            }
        });
    }
}

/// Takes a broker's connection for what its first frame says: a bridge, or one of a single tenant beside a bridge.
async fn take(context: &Context, connection: quinn::Connection, chain: PeerChain, principal: Principal) {
    let remote = connection.remote_address();
    let deadline = Duration::from_millis(HANDSHAKE_MS_MAX);
    let first = tokio::time::timeout(deadline, first_frame(&connection)).await;
    let peer = principal.node().cloned();
    let ended = match first.unwrap_or_else(|_| Err(Ended::new(Failure::Silent, "no hello in time"))) {
        Ok((control, Control::BridgeHello(hello))) => {
            // A certificate of one tenant is not the broker's own.
            match context.trust().identify_node(chain.certificates(), Usage::Client, unix_now()) {
                Ok(principal) => {
                    let candidate = Candidate { connection, principal: Arc::new(principal), chain, dialled: None };
                    run(context, candidate, Some((control, hello))).await
                }
                Err(reason) => refuse(&connection, Ended::new(Failure::Refused, reason.template())),
            }
        }
        Ok((control, Control::TenantAttach(attach))) => {
            let Some(peer) = peer else { return };
            return dedicated::accept(context, &peer, (connection, chain), control, &attach).await;
        }
        Ok((_, other)) => refuse(&connection, not_a_hello(&other)),
        Err(ended) => refuse(&connection, ended),
    };
    // Before the hellos have told the edge, any edge with this peer can say what is wrong.
    let of_peer = || context.edges.list().into_iter().find(|s| Some(s.edge().peer()) == peer.as_ref());
    match ended.edge.and_then(|edge| context.edges.get(edge)).or_else(of_peer) {
        Some(status) => note(context, &status, &ended, Some(remote)),
        None => tracing::warn!(%remote, "bridge refused: {}", ended.detail),
    }
}

async fn first_frame(connection: &quinn::Connection) -> Result<(ControlStream, Control), Ended> {
    let mut control = ControlStream::accept(connection).await?;
    let first = control.receive().await?;
    Ok((control, first))
}

fn not_a_hello(control: &Control) -> Ended {
    match control {
        Control::BridgeError(error) => said_by_peer(error),
        other => Ended::new(Failure::Fault, format!("{} instead of a hello", other.name())),
    }
}

fn refuse(connection: &quinn::Connection, ended: Ended) -> Ended {
    close(connection, &ended);
    ended
}
