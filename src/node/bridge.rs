//! Bridges: the live QUIC connection of an edge, from either side (DESIGN section 6).
//!
//! What a connection is follows from its ALPN, its certificate and the configured edge. A bridge is up only after both
//! hellos and both allowed sets; from then on every lane is checked against the effective set, here and at the peer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use glocal_core::edge::EdgeKey;
use glocal_core::identity::Principal;
use glocal_core::limits::{DIAL_MS_MAX, HANDSHAKE_MS_MAX, TEXT_BYTES_MAX};
use glocal_core::tenant::TenantKey;
use glocal_engine::allowance::Allowance;
use glocal_engine::driver::{Command, Outcome};
use glocal_engine::handshake::{HandshakeError, Mac, PeerSet, allowed_frames, check_hello, hello};
use glocal_engine::lane_reader::Incoming;
use glocal_engine::link::Link;
use glocal_wire::control::{BridgeError, BridgeHello, Control, Ready, clip};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::edge_status::{EdgeStatus, Failure, Holder, State};
use crate::trust::PeerChain;
use crate::trust::Usage;

mod accept;
mod control_stream;
mod dial;
mod follow;
mod reader;
mod writer;

pub(crate) use accept::serve;
pub(crate) use dial::keep_dialled;

use control_stream::ControlStream;
use follow::Follower;

/// Label of the key under which allowed tenants are compared (RFC 8446 section 7.5).
const EXPORTER_LABEL: &[u8] = b"EXPORTER-glocal-allowed-set";

/// Why a bridge ended, or never came up.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    failure: Failure,
    detail: String,
    /// The edge it was of, once the hellos have told.
    edge: Option<EdgeKey>,
}

impl Ended {
    /// The detail may quote the peer: what could forge a log line is replaced, and what is too long is cut.
    pub(crate) fn new(failure: Failure, detail: impl ToString) -> Self {
        let detail = clip(detail.to_string().as_bytes(), TEXT_BYTES_MAX);
        Self { failure, detail: detail.replace(char::is_control, "\u{fffd}"), edge: None }
    }
}

impl From<HandshakeError> for Ended {
    fn from(error: HandshakeError) -> Self {
        Self::new(Failure::Handshake, format!("{}: {error}", error.code()))
    }
}

/// One connection on its way to be a bridge.
struct Candidate {
    connection: quinn::Connection,
    principal: Arc<Principal>,
    chain: PeerChain,
    /// `Some` on the side that dialled.
    dialled: Option<(EdgeKey, u64)>,
}

impl Candidate {
    /// How long the peer may take for its hello, and again for its allowed set. The side that dialled tries again sooner.
    const fn patience(&self) -> Duration {
        Duration::from_millis(if self.dialled.is_some() { DIAL_MS_MAX } else { HANDSHAKE_MS_MAX })
    }
}

/// Runs a connection as a bridge until it ends.
async fn run(context: &Context, candidate: Candidate) -> Ended {
    let greeted = match tokio::time::timeout(candidate.patience(), greet(context, &candidate)).await {
        Ok(Ok(greeted)) => greeted,
        Ok(Err(ended)) => {
            close(&candidate.connection, &ended);
            return ended;
        }
        Err(_) => {
            let ended = Ended::new(Failure::Silent, "no hello in time");
            close(&candidate.connection, &ended);
            return ended;
        }
    };
    let edge = greeted.edge;
    let ended = hold_edge(context, &candidate, greeted).await;
    close(&candidate.connection, &ended);
    Ended { edge: Some(edge), ..ended }
}

/// Runs a bridge that knows its edge, if no other one has a better right to it.
async fn hold_edge(context: &Context, candidate: &Candidate, greeted: Greeted) -> Ended {
    let Some(status) = context.edges.get(greeted.edge) else {
        return Ended::new(Failure::Handshake, "no such edge");
    };
    let status = &*status;
    let (cancel, number) = match take_edge(context, status, candidate, &greeted) {
        Ok(taken) => taken,
        Err(ended) => return ended,
    };
    // The bridge that held the edge before has been told to go; it lets go of the turn when it has.
    let turn = tokio::select! {
        biased;
        () = cancel.cancelled() => None,
        turn = status.turn.lock() => Some(turn),
    };
    let ended = match turn {
        Some(_turn) => serve_bridge(context, status, candidate, greeted, cancel).await,
        None => replaced(),
    };
    status.holder.lock().take_if(|h| h.number == number);
    ended
}

fn replaced() -> Ended {
    Ended::new(Failure::Closed, "replaced, or the node is ending")
}

struct Greeted {
    edge: EdgeKey,
    control: ControlStream,
    peer: BridgeHello,
}

/// Exchanges hellos: the dialler speaks first.
async fn greet(context: &Context, candidate: &Candidate) -> Result<Greeted, Ended> {
    let shared = &context.shared;
    let peer_node = candidate.principal.node().ok_or_else(|| Ended::new(Failure::WrongName, "no node name"))?;
    let connection = &candidate.connection;
    let (mut control, edge, peer) = if let Some((edge, dial)) = candidate.dialled {
        let link = shared.link(edge).ok_or(HandshakeError::Edge)?;
        let mut control = ControlStream::open(connection).await?;
        control.send(&hello(shared, link.edge().name(), dial).into()).await?;
        let peer = control.hello().await?;
        if check_hello(shared, &peer, peer_node)? != edge {
            return Err(HandshakeError::Edge.into());
        }
        (control, edge, peer)
    } else {
        let mut control = ControlStream::accept(connection).await?;
        let peer = control.hello().await?;
        let checked = check_hello(shared, &peer, peer_node);
        let edge = match checked {
            Ok(edge) => edge,
            Err(error) => {
                // The dialler learns what does not fit; if it does not listen any more, nothing is lost.
                let body = BridgeError { code: error.code().to_owned(), text: error.to_string() };
                let _ = control.send(&body.into()).await;
                return Err(error.into());
            }
        };
        let link = shared.link(edge).ok_or(HandshakeError::Edge)?;
        control.send(&hello(shared, link.edge().name(), peer.dial).into()).await?;
        (control, edge, peer)
    };
    control.greeted();
    Ok(Greeted { edge, control, peer })
}

/// Makes this bridge the one that holds its edge and returns what ends it and its number, or says why another one stays.
/// Dials that overlap collapse to that of the lesser node; otherwise the newer one of the same key wins at once. One of
/// another key must wait until the broker that holds the edge is dead: two brokers bear one name.
fn take_edge(
    context: &Context,
    status: &EdgeStatus,
    candidate: &Candidate,
    greeted: &Greeted,
) -> Result<(CancellationToken, u64), Ended> {
    /// Dials this close together are taken to overlap, in milliseconds.
    const OVERLAP_MS: u64 = 2_000;
    let now = context.clock.now();
    let age = match candidate.dialled {
        Some((_, dial)) => (context.shared.incarnation, dial),
        None => (greeted.peer.incarnation, greeted.peer.dial),
    };
    let dialled = candidate.dialled.is_some();
    let key = candidate.chain.leaf_key();
    let mut holder = status.holder.lock();
    if let Some(held) = holder.as_ref() {
        if held.key != key {
            context.counters.duplicate_nodes.add(1);
            let (edge, peer) = (status.edge().name(), status.edge().peer());
            tracing::error!(%edge, %peer, remote = %candidate.connection.remote_address(),
                "duplicate-node: two brokers with different keys say to be {peer}; the one that was there first stays");
            return Err(Ended::new(Failure::DuplicateNode, "another broker with this name and another key is there"));
        }
        let stays = if held.dialled == dialled {
            held.age > age
        } else {
            let own_is_lesser = context.shared.node < *status.edge().peer();
            now < held.since.plus_millis(OVERLAP_MS) && held.dialled == own_is_lesser
        };
        if stays {
            return Err(Ended::new(Failure::Closed, "another bridge holds this edge"));
        }
        held.cancel.cancel();
    }
    let cancel = context.stop.child_token();
    let number = status.next_number();
    *holder = Some(Holder { age, dialled, cancel: cancel.clone(), since: now, number, key });
    Ok((cancel, number))
}

async fn serve_bridge(
    context: &Context,
    status: &EdgeStatus,
    candidate: &Candidate,
    mut greeted: Greeted,
    cancel: CancellationToken,
) -> Ended {
    let edge = greeted.edge;
    let Some(link) = context.shared.link(edge) else {
        return Ended::new(Failure::Handshake, "no such edge");
    };
    let settled = settle(context, &link, candidate, &mut greeted.control);
    let settled = tokio::select! {
        biased;
        () = cancel.cancelled() => return replaced(),
        settled = tokio::time::timeout(candidate.patience(), settled) => settled,
    };
    let allowance = match settled {
        Ok(Ok(allowance)) => allowance,
        Ok(Err(ended)) => return ended,
        Err(_) => return Ended::new(Failure::Silent, "no allowed set in time"),
    };
    let effective = allowance.accepts();
    let tenants = effective.len();
    let up = Command::EdgeUp { edge, effective, peer_incarnation: greeted.peer.incarnation };
    let lists = match context.control.apply(vec![up]).await.first() {
        Some(Outcome::Lists(lists)) => *lists,
        _ => return Ended::new(Failure::Closed, "the node is ending"),
    };
    let ended = match greeted.control.send(&Ready { tenants: lists }.into()).await {
        Ok(()) => {
            let remote = candidate.connection.remote_address().to_string();
            let since = context.clock.now();
            let dialled = candidate.dialled.is_some();
            status.up(State { since, dialled, remote: remote.clone(), allowed: tenants, ..State::default() });
            tracing::info!(edge = %link.edge().name(), peer = %link.edge().peer(), %remote, tenants,
                "bridge up: {} <-> {}", context.shared.node, link.edge().peer());
            carry(context, status, &link, candidate, (greeted.control, allowance), cancel).await
        }
        Err(ended) => ended,
    };
    context.control.apply(vec![Command::EdgeDown { edge }]).await;
    ended
}

/// Exchanges the allowed sets of both sides.
async fn settle(
    context: &Context,
    link: &Link,
    candidate: &Candidate,
    control: &mut ControlStream,
) -> Result<Allowance, Ended> {
    // Read before the set, so that a change in between is seen as one.
    let revision = context.shared.policy().epoch();
    let own = own_macs(context, link, &candidate.connection)?;
    for frame in allowed_frames(own.iter().map(|(_, mac)| *mac).collect()) {
        control.send(&frame.into()).await?;
    }
    let mut peer = PeerSet::default();
    while !peer.is_complete() {
        match control.receive().await? {
            Control::AllowedSet(frame) => peer.add(frame)?,
            Control::BridgeError(error) => return Err(Ended::new(Failure::Handshake, error.text)),
            other => return Err(Ended::new(Failure::Fault, format!("unexpected {}", other.name()))),
        }
    }
    Ok(Allowance::settled(own, peer, revision, context.clock.now()))
}

/// The tenants that configuration and bundle allow here, each with its code under this connection's key.
fn own_macs(context: &Context, link: &Link, connection: &quinn::Connection) -> Result<Vec<(TenantKey, Mac)>, Ended> {
    let mut secret = [0; 32];
    connection
        .export_keying_material(&mut secret, EXPORTER_LABEL, link.edge().name().as_str().as_bytes())
        .map_err(|_| Ended::new(Failure::Handshake, "the connection exports no key"))?;
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &secret);
    let name = link.edge().name();
    let (config, trust) = (context.config(), context.trust());
    let configured = config.edges.iter().find(|e| e.name == *name);
    let tenants = context.shared.tenants();
    let allowed = tenants.iter().filter(|tenant| {
        trust.bundle().edge_allows(name, tenant.id().as_str())
            && configured.is_some_and(|edge| edge.tenants.matches(tenant.id()))
    });
    let code = |id: &str| {
        let tag = aws_lc_rs::hmac::sign(&key, id.as_bytes());
        tag.as_ref().first_chunk::<16>().copied().unwrap_or_default()
    };
    Ok(allowed.map(|tenant| (tenant.key(), code(tenant.id().as_str()))).collect())
}

/// Carries traffic until something ends the bridge; everything that belongs to it ends with it.
async fn carry(
    context: &Context,
    status: &EdgeStatus,
    link: &Arc<Link>,
    candidate: &Candidate,
    (control, allowance): (ControlStream, Allowance),
    cancel: CancellationToken,
) -> Ended {
    let connection = &candidate.connection;
    let edge = Arc::clone(link.edge());
    let incoming = Arc::new(Incoming::new(Arc::clone(&context.shared), edge, Arc::clone(&candidate.principal)));
    let usage = if candidate.dialled.is_some() { Usage::Server } else { Usage::Client };
    let mut follower = Follower::new(context, link, connection, allowance);
    let mut readers = JoinSet::new();
    let ended = tokio::select! {
        biased;
        () = cancel.cancelled() => replaced(),
        ended = control_stream::run(context, status, &mut follower, control, &candidate.chain, usage) => ended,
        ended = reader::run(context, connection, &incoming, &mut readers) => ended,
        ended = writer::run(context, connection, link) => ended,
        reason = connection.closed() => closed(&reason),
    };
    // None of them may still route for this bridge when the next one of the edge comes up.
    readers.shutdown().await;
    // A stream that breaks first knows less than the connection.
    match connection.close_reason() {
        Some(reason) if ended.failure == Failure::Closed => closed(&reason),
        _ => ended,
    }
}

/// What an ended connection means for its edge.
fn closed(error: &quinn::ConnectionError) -> Ended {
    use quinn::ConnectionError as E;
    match error {
        E::ApplicationClosed(close) if close.reason == Failure::DuplicateNode.code().as_bytes() => {
            Ended::new(Failure::DuplicateNode, "the peer knows another broker with this name and another key")
        }
        E::ApplicationClosed(close) => {
            Ended::new(Failure::Closed, format!("closed by the peer: {}", String::from_utf8_lossy(&close.reason)))
        }
        E::TimedOut => Ended::new(Failure::Silent, "the peer fell silent"),
        E::LocallyClosed => Ended::new(Failure::Closed, "closed here"),
        other => Ended::new(Failure::Closed, other),
    }
}

fn close(connection: &quinn::Connection, ended: &Ended) {
    connection.close(quinn::VarInt::from_u32(ended.failure as u32), ended.failure.code().as_bytes());
}

/// Notes how a bridge ended, and logs it when it is news.
fn note(context: &Context, status: &EdgeStatus, ended: &Ended, remote: Option<SocketAddr>) {
    if ended.failure == Failure::Fault {
        context.counters.bridge_faults.add(1);
    }
    if status.edge().is_up() {
        return;
    }
    let edge = status.edge();
    if status.down(ended.failure, &ended.detail, context.clock.now()) {
        let remote = remote.map_or_else(String::new, |r| format!(" at {r}"));
        tracing::warn!(edge = %edge.name(), peer = %edge.peer(), state = ended.failure.code(),
            "bridge down: {}{remote}: {}", edge.peer(), ended.detail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_peer_says_forges_no_log_line() {
        let ended = Ended::new(Failure::Closed, format!("bye\nDENY READ 'x'\u{1b}[31m{}", "x".repeat(4096)));
        assert!(ended.detail.starts_with("bye\u{fffd}DENY READ 'x'\u{fffd}[31mxxx"), "{:?}", ended.detail);
        assert!(ended.detail.len() <= TEXT_BYTES_MAX + 4, "{}", ended.detail.len());
    }
}
