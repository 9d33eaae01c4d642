//! Accepting bridges that others dial.

use std::sync::Arc;
use std::time::Duration;

use glocal_core::limits::{BRIDGE_HANDSHAKES_MAX, HANDSHAKE_MS_MAX};
use tokio::sync::Semaphore;

use super::{Candidate, note, run};
use crate::context::Context;
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
            match context.trust().identify_node(chain.certificates(), Usage::Client, unix_now()) {
                Ok(principal) => {
                    let peer = principal.node().cloned();
                    let candidate = Candidate { connection, principal: Arc::new(principal), chain, dialled: None };
                    let ended = run(&context, candidate).await;
                    // Before the hellos have told the edge, any edge with this peer can say what is wrong.
                    let of_peer = || context.edges.list().into_iter().find(|s| Some(s.edge().peer()) == peer.as_ref());
                    match ended.edge.and_then(|edge| context.edges.get(edge)).or_else(of_peer) {
                        Some(status) => note(&context, &status, &ended, Some(remote)),
                        None => tracing::warn!(%remote, "bridge refused: {}", ended.detail),
                    }
                }
                Err(reason) => {
                    context.counters.handshakes_failed.add(1);
                    tracing::warn!(%remote, reason = reason.code(), "bridge refused: {}", reason.template());
                    connection.close(quinn::VarInt::from_u32(1), reason.code().as_bytes());
                }
            }
        });
    }
}
