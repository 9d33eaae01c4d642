//! Taking in connections of single tenants that the other end of a bridge opens.

use std::sync::Arc;

use glocal_core::name::NodeId;
use glocal_wire::control::{BridgeError, TenantAttach};
use tokio::sync::oneshot;

use super::super::control_stream::ControlStream;
use super::super::{Ended, close};
use super::serve::{Attached, Place, check_certificate, serve};
use super::{Attach, AttachRefusal, Event, Go, codes};
use crate::context::Context;
use crate::edge_status::Failure;
use crate::trust::PeerChain;

/// Attaches a connection of the broker `peer` to the bridge that its first frame names, and runs it until it ends.
pub(in super::super) async fn accept(
    context: &Context,
    peer: &NodeId,
    (connection, chain): (quinn::Connection, PeerChain),
    mut control: ControlStream,
    attach: &TenantAttach,
) {
    let admitted = match place_of(context, peer, attach) {
        Ok(place) => admit(&place, &connection, &chain, attach).await.map(|(admitted, go)| (place, admitted, go)),
        Err(refusal) => Err(refusal),
    };
    match admitted {
        Ok((place, Admitted { tenant, id, under_tenant }, go)) => {
            control.greeted();
            let number = attach.number;
            serve(&place, Attached { connection, control, chain, under_tenant, tenant, id, number }, go).await;
        }
        Err(refusal) => {
            if let Some(counter) = context.counters.attaches_refused.get(refusal as usize) {
                counter.add(1);
            }
            tracing::warn!(%peer, remote = %connection.remote_address(), reason = refusal.code(),
                "a connection of a tenant is refused: {}", refusal.text());
            let body = BridgeError { code: refusal.code().to_owned(), text: refusal.text().to_owned() };
            control.last_word(&body.into()).await;
            close(&connection, &Ended::new(Failure::Refused, refusal.text()));
        }
    }
}

/// The bridge that is meant. There is one only while it is up, dedicated, and was dialled by the peer.
fn place_of(context: &Context, peer: &NodeId, attach: &TenantAttach) -> Result<Place, AttachRefusal> {
    let is_meant = |status: &&Arc<crate::edge_status::EdgeStatus>| {
        status.edge().name().as_str() == attach.edge && status.edge().peer() == peer
    };
    let status = context.edges.list().iter().find(is_meant).cloned().ok_or(AttachRefusal::NoBridge)?;
    let point = status.attach.lock().clone().filter(|point| point.age == (attach.incarnation, attach.dial));
    let point = point.ok_or(AttachRefusal::NoBridge)?;
    let link = context.shared.link(status.edge().key()).ok_or(AttachRefusal::NoBridge)?;
    Ok(Place { context: context.clone(), status, link, point })
}

struct Admitted {
    tenant: glocal_core::tenant::TenantKey,
    id: glocal_core::name::TenantId,
    under_tenant: bool,
}

/// Checks everything, the proof first, and waits until the bridge lets the connection in.
async fn admit(
    place: &Place,
    connection: &quinn::Connection,
    chain: &PeerChain,
    attach: &TenantAttach,
) -> Result<(Admitted, Go), AttachRefusal> {
    if !codes::is_proof(&place.point, &place.link, connection, &attach.proof) {
        return Err(AttachRefusal::Proof);
    }
    let tenant = codes::tenant_of(&place.context, &place.link, connection, &attach.tenant);
    let tenant = tenant.ok_or(AttachRefusal::Tenant)?;
    let tenants = place.context.shared.tenants();
    let id = tenants.by_key(tenant).map(|held| held.id().clone()).ok_or(AttachRefusal::Tenant)?;
    let under_tenant = check_certificate(place, chain, &id).map_err(|ended| {
        tracing::warn!(edge = %place.link.edge().name(), tenant = %id, "{}", ended.detail);
        AttachRefusal::Certificate
    })?;
    let (go, let_in) = oneshot::channel();
    place.point.tell(Event::Attach(Attach { tenant, number: attach.number, go })).await;
    // The bridge always answers, or is gone.
    match let_in.await {
        Ok(Ok(go)) => Ok((Admitted { tenant, id, under_tenant }, go)),
        Ok(Err(refusal)) => Err(refusal),
        Err(_) => Err(AttachRefusal::NoBridge),
    }
}
