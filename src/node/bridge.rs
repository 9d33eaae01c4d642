//! Bridges: the live QUIC connection of an edge, from either side (DESIGN section 6).
//!
//! What a connection is follows from its ALPN, its certificate and the configured edge. A bridge is up only after both
//! hellos and both allowed sets; from then on every lane is checked against the effective set, here and at the peer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac;
use glocal_core::edge::{EdgeKey, TenantSet};
use glocal_core::identity::Principal;
use glocal_core::limits::{DIAL_MS_MAX, HANDSHAKE_MS_MAX, TEXT_BYTES_MAX};
use glocal_core::tenant::TenantKey;
use glocal_engine::allowance::Allowance;
use glocal_engine::driver::{Command, Outcome};
use glocal_engine::handshake::{EDGE_MODE_CODE, HandshakeError, Mac, PeerSet, allowed_frames, check_hello, hello};
use glocal_engine::lane_reader::{Carries, Incoming};
use glocal_engine::link::Link;
use glocal_wire::control::{BridgeError, BridgeHello, Control, FEATURE_DEDICATED, Ready, clip};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::edge_status::{EdgeStatus, Failure, Holder, State};
use crate::trust::PeerChain;
use crate::trust::Usage;

mod accept;
mod control_stream;
mod dedicated;
mod dial;
mod follow;
mod path;
mod reader;
mod writer;

pub(crate) use accept::serve;
pub(crate) use dedicated::{AttachPoint, AttachRefusal};
pub(crate) use dial::keep_dialled;

use control_stream::ControlStream;
use dedicated::TenantConnections;
use follow::Follower;
use path::Path;

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
        let failure = if error.code() == EDGE_MODE_CODE { Failure::EdgeMode } else { Failure::Handshake };
        Self::new(failure, format!("{}: {error}", error.code()))
    }
}

/// The peer's last word in a handshake.
fn said_by_peer(error: &BridgeError) -> Ended {
    if error.code == EDGE_MODE_CODE {
        Ended::new(Failure::EdgeMode, format!("{EDGE_MODE_CODE}: the peer says: {}", error.text))
    } else {
        Ended::new(Failure::Handshake, &error.text)
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
async fn run(context: &Context, candidate: Candidate, said: Option<(ControlStream, BridgeHello)>) -> Ended {
    let greeted = match tokio::time::timeout(candidate.patience(), greet(context, &candidate, said)).await {
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
    let status = &status;
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
    /// Whether each tenant has a connection of its own, as both ends have said.
    is_dedicated: bool,
}

/// Exchanges hellos: the dialler speaks first, and what it `said` the other side has read.
async fn greet(
    context: &Context,
    candidate: &Candidate,
    said: Option<(ControlStream, BridgeHello)>,
) -> Result<Greeted, Ended> {
    let shared = &context.shared;
    let peer_node = candidate.principal.node().ok_or_else(|| Ended::new(Failure::WrongName, "no node name"))?;
    let connection = &candidate.connection;
    let (mut control, edge, peer) = if let Some((edge, dial)) = candidate.dialled {
        let link = shared.link(edge).ok_or(HandshakeError::Edge)?;
        let mut control = ControlStream::open(connection).await?;
        control.send(&hello(shared, link.edge(), dial).into()).await?;
        let peer = control.hello().await?;
        if check_hello(shared, &peer, peer_node)? != edge {
            return Err(HandshakeError::Edge.into());
        }
        (control, edge, peer)
    } else {
        let (mut control, peer) = said.ok_or_else(|| Ended::new(Failure::Fault, "no hello"))?;
        let checked = check_hello(shared, &peer, peer_node);
        let edge = match checked {
            Ok(edge) => edge,
            Err(error) => {
                // The dialler learns what does not fit.
                let body = BridgeError { code: error.code().to_owned(), text: error.to_string() };
                control.last_word(&body.into()).await;
                return Err(error.into());
            }
        };
        let link = shared.link(edge).ok_or(HandshakeError::Edge)?;
        control.send(&hello(shared, link.edge(), peer.dial).into()).await?;
        (control, edge, peer)
    };
    control.greeted();
    let is_dedicated = peer.features & FEATURE_DEDICATED != 0;
    Ok(Greeted { edge, control, peer, is_dedicated })
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
    let age = age_of(context, candidate, greeted);
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
    status: &Arc<EdgeStatus>,
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
    let allowed = effective.len();
    let tenants = tenants_of(context, status, &link, candidate, &greeted, &effective);
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
            status.up(State { since, dialled, remote: remote.clone(), allowed, ..State::default() });
            tracing::info!(edge = %link.edge().name(), peer = %link.edge().peer(), %remote, tenants = allowed,
                "bridge up: {} <-> {}", context.shared.node, link.edge().peer());
            let features = greeted.peer.features;
            let parts = (greeted.control, allowance, tenants, features);
            carry(context, status, &link, candidate, parts, cancel).await
        }
        Err(ended) => {
            if let Some(tenants) = tenants {
                tenants.end().await;
            }
            ended
        }
    };
    context.control.apply(vec![Command::EdgeDown { edge }]).await;
    ended
}

/// The tenants' connections of a dedicated edge. From here on its lanes are held, each until its connection is up.
fn tenants_of(
    context: &Context,
    status: &Arc<EdgeStatus>,
    link: &Arc<Link>,
    candidate: &Candidate,
    greeted: &Greeted,
    allowed: &TenantSet,
) -> Option<TenantConnections> {
    link.inbox().with(|lanes| lanes.sched_mut().gate(greeted.is_dedicated));
    let bridge = (candidate.connection.clone(), Arc::clone(&candidate.principal), candidate.chain.leaf_key());
    let age = age_of(context, candidate, greeted);
    greeted.is_dedicated.then(|| {
        let age = (age, candidate.dialled.is_some());
        let mut tenants = TenantConnections::new(context, status, link, allowed, bridge, age);
        tenants.arrange(allowed, allowed);
        tenants
    })
}

/// The life of the side that dialled, and the number of its dial.
fn age_of(context: &Context, candidate: &Candidate, greeted: &Greeted) -> (u64, u64) {
    match candidate.dialled {
        Some((_, dial)) => (context.shared.incarnation(), dial),
        None => (greeted.peer.incarnation, greeted.peer.dial),
    }
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
            Control::BridgeError(error) => return Err(said_by_peer(&error)),
            other => return Err(Ended::new(Failure::Fault, format!("unexpected {}", other.name()))),
        }
    }
    Ok(Allowance::settled(own, peer, revision, context.clock.now()))
}

/// The tenants that configuration and bundle allow here, each with its code under this connection's key.
fn own_macs(context: &Context, link: &Link, connection: &quinn::Connection) -> Result<Vec<(TenantKey, Mac)>, Ended> {
    let key = exported_key(connection, EXPORTER_LABEL, link)?;
    let name = link.edge().name();
    let (config, trust) = (context.config(), context.trust());
    let configured = config.edges.iter().find(|e| e.name == *name);
    let tenants = context.shared.tenants();
    let allowed = tenants.iter().filter(|tenant| {
        trust.bundle().edge_allows(name, tenant.id().as_str())
            && configured.is_some_and(|edge| edge.tenants.matches(tenant.id()))
    });
    Ok(allowed.map(|tenant| (tenant.key(), code_of(&key, tenant.id().as_str()))).collect())
}

/// What TLS exports under a label, for this edge.
fn exported(connection: &quinn::Connection, label: &[u8], link: &Link) -> Result<[u8; 32], Ended> {
    let mut secret = [0; 32];
    let exported = connection.export_keying_material(&mut secret, label, link.edge().name().as_str().as_bytes());
    exported.map(|()| secret).map_err(|_| Ended::new(Failure::Handshake, "the connection exports no key"))
}

/// The same as a key for codes.
fn exported_key(connection: &quinn::Connection, label: &[u8], link: &Link) -> Result<hmac::Key, Ended> {
    Ok(hmac::Key::new(hmac::HMAC_SHA256, &exported(connection, label, link)?))
}

/// The code of a tenant.
fn code_of(key: &hmac::Key, tenant: &str) -> Mac {
    hmac::sign(key, tenant.as_bytes()).as_ref().first_chunk::<16>().copied().unwrap_or_default()
}

/// Carries traffic until something ends the bridge; everything that belongs to it ends with it.
async fn carry(
    context: &Context,
    status: &EdgeStatus,
    link: &Arc<Link>,
    candidate: &Candidate,
    (control, allowance, tenants, features): (ControlStream, Allowance, Option<TenantConnections>, u64),
    cancel: CancellationToken,
) -> Ended {
    let connection = &candidate.connection;
    let edge = Arc::clone(link.edge());
    // The bridge of a dedicated edge carries nobody itself.
    let carries = if tenants.is_some() { Carries::Nobody } else { Carries::Everybody };
    let incoming = Incoming::new(Arc::clone(&context.shared), edge, Arc::clone(&candidate.principal), carries);
    let incoming = Arc::new(incoming);
    let usage = if candidate.dialled.is_some() { Usage::Server } else { Usage::Client };
    let ways = tenants.as_ref().map(|tenants| Arc::clone(tenants.ways()));
    let mut follower = Follower::new(context, link, connection, allowance, tenants);
    let (path, to_answer) = Path::new(connection, features);
    let path = Arc::new(path);
    let write = async {
        match &ways {
            Some(ways) => match dedicated::pump(context, link, ways).await {},
            None => writer::run(context, connection, link, &path).await,
        }
    };
    let mut readers = JoinSet::new();
    let ended = tokio::select! {
        biased;
        () = cancel.cancelled() => replaced(),
        ended = control_stream::run(context, status, &mut follower, control, (&candidate.chain, usage), (&path, to_answer)) => ended,
        ended = reader::run(context, connection, (&incoming, &path), &mut readers) => ended,
        ended = write => ended,
        reason = connection.closed() => closed(&reason),
    };
    // None of them may still route for this bridge when the next one of the edge comes up.
    readers.shutdown().await;
    follower.end().await;
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
        E::ApplicationClosed(close) if close.reason == Failure::EdgeMode.code().as_bytes() => {
            Ended::new(Failure::EdgeMode, "edge-mode: the mode of the edge is another one at the other end")
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
