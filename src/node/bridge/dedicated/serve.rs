//! One tenant's connection while it is taken in: lanes of that tenant in both directions, probes, and its certificate asked
//! again.

use std::sync::Arc;
use std::time::Duration;

use glocal_core::name::TenantId;
use glocal_core::tenant::TenantKey;
use glocal_engine::lane_reader::{Carries, Incoming};
use glocal_engine::link::Link;
use glocal_engine::liveness::Liveness;
use glocal_wire::control::{Control, ProbeAck, TenantAttached};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::super::control_stream::{ControlStream, RECHECK_MS, due, on_wake};
use super::super::path::Path;
use super::super::writer::UNREAD;
use super::super::{Ended, close, closed, reader};
use super::pump::{Batch, Ways};
use super::{AttachPoint, AttachRefusal, Event, Go};
use crate::congestion::Window;
use crate::context::Context;
use crate::edge_status::{EdgeStatus, Failure, TenantState};
use crate::trust::{PeerChain, Usage, unix_now};

/// A connection that has been attached, from either side.
pub(super) struct Attached {
    pub(super) connection: quinn::Connection,
    pub(super) control: ControlStream,
    pub(super) chain: PeerChain,
    /// Whether the peer is there under a certificate of the tenant.
    pub(super) under_tenant: bool,
    pub(super) tenant: TenantKey,
    pub(super) id: TenantId,
    /// From its attach.
    pub(super) number: u64,
}

/// The end of a connection that belongs to a bridge.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) context: Context,
    pub(super) status: Arc<EdgeStatus>,
    pub(super) link: Arc<Link>,
    pub(super) point: AttachPoint,
}

/// Whether the other end may be there for the tenant: under the certificate of the bridge, or one of the tenant. In the
/// latter case it is `true`.
///
/// # Errors
/// Why not.
pub(super) fn check_certificate(place: &Place, chain: &PeerChain, tenant: &TenantId) -> Result<bool, Ended> {
    let usage = if place.point.dialled { Usage::Server } else { Usage::Client };
    let (trust, now) = (place.context.trust(), unix_now());
    let refused = |reason: glocal_core::deny::Deny| Ended::new(Failure::Refused, reason.template());
    let is_own = place.point.key.is_some() && chain.leaf_key() == place.point.key;
    let principal = if is_own {
        trust.retain_node(chain.certificates(), usage, now).map_err(refused)?
    } else {
        trust.retain_tenant_leaf(chain.certificates(), usage, now).map_err(refused)?
    };
    if principal.node() != Some(place.link.edge().peer()) {
        return Err(Ended::new(Failure::WrongName, "the certificate is of another broker than the bridge's"));
    }
    if !is_own && principal.tenant() != tenant {
        return Err(Ended::new(Failure::Refused, AttachRefusal::Certificate.text()));
    }
    Ok(!is_own)
}

/// Carries the tenant's lanes until something ends the connection; then nothing of it is read or sent any more.
pub(super) async fn serve(place: &Place, attached: Attached, go: Go) -> Ended {
    let Attached { connection, mut control, chain, under_tenant, tenant, id, number } = attached;
    let Place { context, link, point, .. } = place;
    let incoming = Incoming::new(
        Arc::clone(&context.shared),
        Arc::clone(link.edge()),
        Arc::clone(&point.peer),
        Carries::One(tenant),
    );
    let incoming = Arc::new(incoming);
    let (opened, opening) = oneshot::channel();
    let opener =
        Opener { place, tenant, number, id: &id, remote: connection.remote_address().to_string(), under_tenant };
    // Its one stream is probed by what its control stream says: no probes travel in it.
    let path = Arc::new(Path::new(&connection, 0).0);
    let mut readers = JoinSet::new();
    let ended = match control.send(&TenantAttached { number }.into()).await {
        Ok(()) => tokio::select! {
            biased;
            () = go.cancel.cancelled() => Ended::new(Failure::Closed, "ended here: replaced, not allowed any more, or with its bridge"),
            ended = converse(&opener, &mut control, (&chain, &path), &go, opened) => ended,
            ended = reader::run(context, &connection, (&incoming, &path), &mut readers) => ended,
            ended = write(&connection, link, tenant, opening) => ended,
            reason = connection.closed() => closed(&reason),
        },
        Err(ended) => ended,
    };
    point.ways.close(link, tenant);
    readers.shutdown().await;
    let ended = match connection.close_reason() {
        Some(reason) if ended.failure == Failure::Closed => closed(&reason),
        _ => ended,
    };
    close(&connection, &ended);
    note(place, tenant, &id, &ended);
    drop(go);
    point.tell(Event::Ended(tenant, number)).await;
    ended
}

/// Counts and notes that a tenant's connection ended or did not come up, and why; logs it when it is news.
pub(super) fn note(place: &Place, tenant: TenantKey, id: &TenantId, ended: &Ended) {
    let Place { context, status, link, .. } = place;
    let now = context.clock.now();
    let mut is_news = false;
    status.tenant_failures.add(1);
    status.tenant(tenant, |state| {
        is_news = state.up || state.failure != Some(ended.failure);
        let since = if is_news { now } else { state.since };
        let (failure, detail) = (Some(ended.failure), ended.detail.clone());
        *state = TenantState { failure, detail, since, ups: state.ups, ..TenantState::default() };
    });
    if ended.failure == Failure::Fault {
        context.counters.bridge_faults.add(1);
    }
    if is_news {
        let (edge, peer) = (link.edge().name(), link.edge().peer());
        tracing::warn!(%edge, %peer, tenant = %id, state = ended.failure.code(),
            "connection of a tenant down: {}", ended.detail);
    }
}

/// What is done when both ends accept the tenant's lanes.
struct Opener<'p> {
    place: &'p Place,
    tenant: TenantKey,
    number: u64,
    id: &'p TenantId,
    remote: String,
    under_tenant: bool,
}

impl Opener<'_> {
    fn open(&self, go: &Go) -> mpsc::Receiver<Batch> {
        let Place { context, status, link, point } = self.place;
        let since = context.clock.now();
        status.tenant_ups.add(1);
        status.tenant(self.tenant, |state| {
            let (remote, under_tenant) = (self.remote.clone(), self.under_tenant);
            *state =
                TenantState { up: true, since, remote, under_tenant, ups: state.ups + 1, ..TenantState::default() };
        });
        let (edge, peer, remote) = (link.edge().name(), link.edge().peer(), &self.remote);
        tracing::info!(%edge, %peer, tenant = %self.id, %remote, under_tenant = self.under_tenant,
            "connection of a tenant up");
        point.ways.open(link, self.tenant, go.cancel.clone())
    }
}

/// Probes the peer and answers its probes, until it is dead, lies, or may no longer be there.
async fn converse(
    opener: &Opener<'_>,
    control: &mut ControlStream,
    (chain, path): (&PeerChain, &Path),
    go: &Go,
    opened: oneshot::Sender<mpsc::Receiver<Batch>>,
) -> Ended {
    let place = opener.place;
    let clock = &place.context.clock;
    let mut life = Liveness::new(clock.now());
    let mut changes = place.context.changes.hear();
    let mut recheck = tokio::time::interval(Duration::from_millis(RECHECK_MS));
    let mut opened = Some(opened);
    if place.point.dialled {
        // The peer has said that it accepts.
        let _ = opened.take().map(|opened| opened.send(opener.open(go)));
    }
    loop {
        let wake = clock.instant(life.wake_at());
        let result = tokio::select! {
            received = control.receive() => match received {
                Ok(Control::Probe(probe)) => control.send(&ProbeAck { id: probe.id }.into()).await,
                Ok(Control::ProbeAck(ack)) => {
                    life.on_ack(ack.id, clock.now());
                    place.status.tenant(opener.tenant, |state| state.rtt_micros = life.rtt_micros());
                    Ok(())
                }
                Ok(Control::TenantAttached(body)) if body.number == opener.number && opened.is_some() => {
                    let _ = opened.take().map(|opened| opened.send(opener.open(go)));
                    Ok(())
                }
                Ok(Control::BridgeError(error)) => Err(Ended::new(Failure::Closed, error.text)),
                Ok(other) => Err(Ended::new(Failure::Fault, format!("unexpected {}", other.name()))),
                Err(ended) => Err(ended),
            },
            () = tokio::time::sleep_until(wake) => on_wake(clock.now(), &mut life, path, control).await,
            () = due(&mut changes, &mut recheck) => {
                check_certificate(place, chain, opener.id).map(|_| ())
            }
        };
        if let Err(ended) = result {
            return ended;
        }
    }
}

/// Writes what the edge's scheduler gives the tenant, once both ends accept it. All lanes of a tenant are on one stream.
async fn write(
    connection: &quinn::Connection,
    link: &Link,
    tenant: TenantKey,
    opening: oneshot::Receiver<mpsc::Receiver<Batch>>,
) -> Ended {
    let Ok(mut batches) = opening.await else { return std::future::pending().await };
    let mut stream = match connection.open_uni().await {
        Ok(stream) => stream,
        Err(error) => return closed(&error),
    };
    let mut window = Window::of(connection);
    while let Some(batch) = batches.recv().await {
        window.set_rate(link.inbox().with(|lanes| lanes.sched().shaped_rate()));
        window.mark_idle(false);
        window.apply();
        for mut write in batch {
            match tokio::time::timeout(UNREAD, stream.write_all_chunks(&mut write.parts)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Ended::new(Failure::Closed, error),
                Err(_) => return Ended::new(Failure::Silent, "the peer does not read what it is sent"),
            }
        }
        window.mark_idle(link.inbox().with(|lanes| lanes.sched().tenant_backlog(tenant)) == 0);
        Ways::go_on(link, tenant);
    }
    std::future::pending().await
}
