//! The handshake of a bridge, through the engine's own functions.

use glocal_core::edge::TenantSet;
use glocal_core::tenant::TenantKey;
use glocal_engine::handshake::{Mac, PeerSet, allowed_frames};

use crate::oracle::{Violation, ensure};
use crate::plan::{PlannedEdge, Tenants};
use crate::random::Trace;

/// What the end `side` of `edge` finds the bridge may carry, after hellos and allowed sets were exchanged.
///
/// # Errors
/// When it is not what the plan says.
pub fn shake_hands(edge: &PlannedEdge, side: usize, bridge: u64) -> Result<TenantSet, Violation> {
    let local = |side: usize| -> Tenants {
        let configured = edge.configured.get(side);
        edge.bundle.iter().filter(|t| configured.is_some_and(|c| c.contains(t))).copied().collect()
    };
    let mut peer = PeerSet::default();
    for frame in allowed_frames(local(1 - side).iter().map(|t| code(bridge, *t)).collect()) {
        peer.add(frame).map_err(|error| Violation(format!("handshake: {error}")))?;
    }
    ensure!(peer.is_complete(), "the allowed set has no end");
    let key = |tenant: usize| u32::try_from(tenant).map(TenantKey).unwrap_or(TenantKey(u32::MAX));
    let effective = peer.effective(local(side).iter().map(|t| (key(*t), code(bridge, *t))));
    let expected: TenantSet = edge.effective().into_iter().map(key).collect();
    ensure!(effective == expected, "edge {} may carry {effective:?}, not {expected:?}", edge.name);
    Ok(effective)
}

/// The code of a tenant under the key of one connection; what the node computes with an HMAC.
fn code(bridge: u64, tenant: usize) -> Mac {
    let mut trace = Trace::default();
    trace.number(bridge);
    trace.number(tenant as u64);
    let mut mac = [0; 16];
    mac.iter_mut().zip(trace.hash().to_le_bytes()).for_each(|(slot, byte)| *slot = byte);
    mac
}
