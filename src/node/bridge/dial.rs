//! Dialling: keeping one edge's bridge up, with jittered pauses between attempts.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use glocal_core::deny::Deny;
use glocal_core::edge::EdgeKey;
use glocal_core::limits::DIAL_MS_MAX;
use glocal_engine::redial::Redial;

use super::{Candidate, Ended, note, run};
use crate::config::HostPort;
use crate::context::Context;
use crate::edge_status::{EdgeStatus, Failure};
use crate::random::rand_u64;
use crate::trust::PeerChain;
use crate::trust::tls::{BRIDGE_SERVER_NAME, bridge_client_config};
use crate::trust::{Side, Usage, deny_of_quic, unix_now};

static DIALS: AtomicU64 = AtomicU64::new(1);

/// Dials an edge again whenever it is down, until it is taken from the node or the node ends. Where to, the configuration
/// in force says; it may be nowhere.
///
/// Boxed, since a bridge may bring a bundle that brings further edges.
pub(crate) fn keep_dialled(context: Context, edge: EdgeKey) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(dial_on(context, edge))
}

async fn dial_on(context: Context, edge: EdgeKey) {
    let Some(status) = context.edges.get(edge) else { return };
    let status = &*status;
    let mut changes = context.changes.hear();
    let mut redial = Redial::default();
    loop {
        let addresses = addresses(&context, status);
        if status.edge().is_retired() {
            return;
        } else if addresses.is_empty() {
            // Nothing to do before the configuration says where.
            tokio::select! {
                _ = changes.changed() => continue,
                () = context.stop.cancelled() => return,
            }
        } else if status.edge().is_up() {
            redial.up();
        } else {
            let before = context.clock.now();
            let (ended, remote) = dial_any(&context, status, &addresses).await;
            note(&context, status, &ended, remote);
            let lived_ms = context.clock.now().micros_since(before) / 1000;
            redial.ended(ended.failure == Failure::DuplicateNode, lived_ms);
        }
        let pause = Duration::from_millis(redial.pause_ms(rand_u64()));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = context.stop.cancelled() => return,
        }
    }
}

fn addresses(context: &Context, status: &EdgeStatus) -> Vec<HostPort> {
    let (config, edge) = (context.config(), status.edge());
    let configured = config.edges.iter().find(|e| e.name == *edge.name() && e.peer == *edge.peer());
    configured.map(|e| e.addresses.clone()).unwrap_or_default()
}

/// Tries the addresses in turn and runs the first bridge that comes up until it ends.
async fn dial_any(context: &Context, status: &EdgeStatus, addresses: &[HostPort]) -> (Ended, Option<SocketAddr>) {
    let mut last = (Ended::new(Failure::NobodyThere, "no address is configured"), None);
    for address in addresses {
        let resolved = match tokio::net::lookup_host((address.host.as_str(), address.port)).await {
            Ok(resolved) => resolved.collect::<Vec<_>>(),
            Err(error) => {
                last = (Ended::new(Failure::NobodyThere, format!("{address}: {error}")), None);
                continue;
            }
        };
        for remote in resolved {
            status.dials.add(1);
            match dial(context, status, remote).await {
                Ok(candidate) => return (run(context, candidate, None).await, Some(remote)),
                Err(ended) => last = (ended, Some(remote)),
            }
        }
    }
    last
}

async fn dial(context: &Context, status: &EdgeStatus, remote: SocketAddr) -> Result<Candidate, Ended> {
    let peer = status.edge().peer().clone();
    let config = bridge_client_config(&context.trust, peer).map_err(|e| Ended::new(Failure::Refused, e))?;
    let connecting = context
        .bridges
        .connect_with(config, remote, BRIDGE_SERVER_NAME)
        .map_err(|error| Ended::new(Failure::NobodyThere, error))?;
    let deadline = Duration::from_millis(DIAL_MS_MAX);
    let connection = match tokio::time::timeout(deadline, connecting).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return Err(refusal(&error)),
        Err(_) => return Err(Ended::new(Failure::NobodyThere, "no answer")),
    };
    let chain = PeerChain::of_quic(&connection);
    let principal = context
        .trust()
        .identify_node(chain.certificates(), Usage::Server, unix_now())
        .map_err(|reason| Ended::new(failure_of(reason), reason.template()))?;
    let dial = DIALS.fetch_add(1, Ordering::Relaxed);
    let dialled = Some((status.edge().key(), dial));
    Ok(Candidate { connection, principal: Arc::new(principal), chain, dialled })
}

/// What a refused certificate means for an edge.
const fn failure_of(reason: Deny) -> Failure {
    match reason {
        Deny::CertUntrusted => Failure::WrongCa,
        Deny::CertExpired | Deny::CertNotYetValid => Failure::Expired,
        Deny::CertNodeName | Deny::ClientOnBridgePort | Deny::UnknownNode => Failure::WrongName,
        _ => Failure::Refused,
    }
}

/// What a connection error before the hello means for an edge.
pub(super) fn refusal(error: &quinn::ConnectionError) -> Ended {
    use quinn::ConnectionError as E;
    match (deny_of_quic(error), error) {
        (Some((Side::Local, Deny::UnknownNode)), _) => {
            Ended::new(Failure::WrongName, "another node than the edge's peer answers")
        }
        (Some((Side::Local, reason)), _) => Ended::new(failure_of(reason), reason.template()),
        (Some((Side::Peer, reason)), _) => {
            Ended::new(failure_of(reason), format!("the peer refused our certificate: {}", reason.template()))
        }
        (None, E::TimedOut | E::Reset | E::VersionMismatch) => Ended::new(Failure::NobodyThere, error),
        (None, E::ApplicationClosed(close)) => {
            let text = String::from_utf8_lossy(&close.reason).into_owned();
            let reason = Deny::ALL.iter().find(|reason| reason.code() == text);
            reason.map_or_else(
                || Ended::new(Failure::Closed, &text),
                |reason| Ended::new(failure_of(*reason), format!("the peer refused us: {}", reason.template())),
            )
        }
        (None, E::ConnectionClosed(close)) => Ended::new(Failure::Refused, close),
        (None, E::TransportError(transport)) => Ended::new(Failure::Refused, transport),
        (None, other) => Ended::new(Failure::NobodyThere, other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brokers_that_lost_one_peer_dial_again_spread_over_half_a_pause() {
        // Case RB-74: of ten thousand brokers, each twentieth of the span gets about a twentieth. Pauses are whole
        // milliseconds, of which some twentieths of a short span hold more than others.
        for failures in [0, 3, 20] {
            let mut redial = Redial::default();
            (0..failures).for_each(|_| redial.ended(false, 0));
            let half = redial.pause_ms(0);
            let bucket = |pause: u64| usize::try_from(((pause - half) * 20 / (half + 1)).min(19)).unwrap();
            let (mut histogram, mut widths) = ([0u64; 20], [0u64; 20]);
            (half..=2 * half).for_each(|pause| widths[bucket(pause)] += 1);
            for _ in 0..10_000 {
                let pause = redial.pause_ms(rand_u64());
                assert!(pause >= half && pause <= 2 * half, "{pause} after {failures} failures");
                histogram[bucket(pause)] += 1;
            }
            let of_twentieth = |(count, width): (&u64, &u64)| count * (half + 1) / (20 * width);
            let even: Vec<_> = histogram.iter().zip(&widths).map(of_twentieth).collect();
            assert!(even.iter().all(|count| (350..=650).contains(count)), "{failures}: {even:?}");
        }
    }
}
