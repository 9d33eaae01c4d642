//! Keeping one tenant's connection up, on the side that dialled the bridge.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use glocal_core::limits::{DIAL_MS_MAX, HANDSHAKE_MS_MAX};
use glocal_core::name::TenantId;
use glocal_core::tenant::TenantKey;
use glocal_engine::redial::Redial;
use glocal_wire::control::{Control, TenantAttach};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::super::control_stream::ControlStream;
use super::super::dial::refusal;
use super::super::{Ended, close};
use super::serve::{Attached, Place, check_certificate, note, serve};
use super::{Attach, Event, Go, codes};
use crate::edge_status::Failure;
use crate::node::endpoint;
use crate::random::rand_u64;
use crate::trust::tls::{bridge_endpoint_config, tenant_client_config};
use crate::trust::{PeerChain, unix_now};

/// The newest number of such a dial in this life.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// Dials the tenant's connection again whenever it is down, until `cancel`.
pub(super) async fn keep(place: Place, tenant: TenantKey, cancel: CancellationToken) {
    let tenants = place.context.shared.tenants();
    let Some(id) = tenants.by_key(tenant).map(|held| held.id().clone()) else { return };
    let clock = place.context.clock;
    let mut redial = Redial::default();
    loop {
        let before = clock.now();
        let dialled = tokio::select! {
            biased;
            () = cancel.cancelled() => return,
            dialled = dial(&place, tenant, &id) => dialled,
        };
        // From here on nothing is broken off: what was let in ends by its own token, after its readers have.
        let attached = match dialled {
            Ok(attached) => enter(&place, tenant, attached.number).await.map(|go| (attached, go)),
            Err(ended) => Err(ended),
        };
        match attached {
            Ok((attached, go)) => drop(serve(&place, attached, go).await),
            Err(ended) => note(&place, tenant, &id, &ended),
        }
        redial.ended(false, clock.now().micros_since(before) / 1000);
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(redial.pause_ms(rand_u64()))) => {}
            () = cancel.cancelled() => return,
        }
    }
}

/// Opens one connection and attaches it at the peer.
async fn dial(place: &Place, tenant: TenantKey, id: &TenantId) -> Result<Attached, Ended> {
    let connection = connect(place, id).await?;
    let deadline = Duration::from_millis(HANDSHAKE_MS_MAX);
    let greeted = tokio::time::timeout(deadline, greet(place, &connection, tenant, id)).await;
    match greeted.unwrap_or_else(|_| Err(Ended::new(Failure::Silent, "no answer in time"))) {
        Ok(greeted) => Ok(greeted),
        Err(ended) => {
            close(&connection, &ended);
            Err(ended)
        }
    }
}

async fn greet(
    place: &Place,
    connection: &quinn::Connection,
    tenant: TenantKey,
    id: &TenantId,
) -> Result<Attached, Ended> {
    let chain = PeerChain::of_quic(connection);
    let under_tenant = check_certificate(place, &chain, id)?;
    let mut control = ControlStream::open(connection).await?;
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    let attach = TenantAttach {
        edge: place.link.edge().name().to_string(),
        incarnation: place.point.age.0,
        dial: place.point.age.1,
        number,
        tenant: codes::tenant_code(&place.link, connection, id.as_str())?,
        proof: codes::proof(&place.point, &place.link, connection)?,
    };
    control.send(&attach.into()).await?;
    match control.receive().await? {
        Control::TenantAttached(body) if body.number == number => {}
        Control::BridgeError(error) => {
            return Err(Ended::new(Failure::Refused, format!("{}: {}", error.code, error.text)));
        }
        other => return Err(Ended::new(Failure::Fault, format!("{} instead of an answer", other.name()))),
    }
    control.greeted();
    Ok(Attached { connection: connection.clone(), control, chain, under_tenant, tenant, id: id.clone(), number })
}

/// Waits until this side lets the connection in, too.
async fn enter(place: &Place, tenant: TenantKey, number: u64) -> Result<Go, Ended> {
    let (go, let_in) = oneshot::channel();
    place.point.tell(Event::Attach(Attach { tenant, number, go })).await;
    match let_in.await {
        Ok(Ok(go)) => Ok(go),
        Ok(Err(refusal)) => Err(Ended::new(Failure::Refused, refusal.text())),
        Err(_) => Err(Ended::new(Failure::Closed, "the bridge has ended")),
    }
}

/// From a port of its own, so that what is between the brokers can tell the tenants' connections apart, under the tenant's
/// certificate where one is configured.
async fn connect(place: &Place, id: &TenantId) -> Result<quinn::Connection, Ended> {
    let Place { context, link, point, .. } = place;
    let (config, trust) = (context.config(), context.trust());
    let configured = config.edges.iter().find(|edge| edge.name == *link.edge().name());
    let certificate = configured.and_then(|edge| edge.certificate_of(id));
    let leaf = match certificate.map(|certificate| trust.tenant_leaf(certificate, unix_now())).transpose() {
        Ok(leaf) => leaf,
        Err(error) => return Err(Ended::new(Failure::Refused, format!("our own certificate: {error}"))),
    };
    let identity = leaf.as_ref().unwrap_or_else(|| trust.identity());
    let refused = |error: &dyn std::fmt::Display| Ended::new(Failure::Refused, error);
    let client = tenant_client_config(&context.trust, link.edge().peer().clone(), id.clone(), identity);
    let client = client.map_err(|error| refused(&error))?;
    let own = context.bridges.local_addr().map_err(|error| refused(&error))?;
    let from =
        endpoint(SocketAddr::new(own.ip(), 0), None, bridge_endpoint_config()).map_err(|error| refused(&error))?;
    let name = codes::server_name(point, link, id.as_str())
        .ok_or_else(|| Ended::new(Failure::Handshake, "the bridge exports no key"))?;
    let connecting = from
        .connect_with(client, point.connection.remote_address(), &name)
        .map_err(|error| Ended::new(Failure::NobodyThere, error))?;
    match tokio::time::timeout(Duration::from_millis(DIAL_MS_MAX), connecting).await {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(error)) => Err(refusal(&error)),
        Err(_) => Err(Ended::new(Failure::NobodyThere, "no answer")),
    }
}
