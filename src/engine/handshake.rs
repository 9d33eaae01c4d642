//! The handshake of a bridge: hellos, allowed sets, and what both sides make of them (DESIGN section 6).
//!
//! Neither side names a tenant the other may not know: allowed tenants are compared as codes under a key of the TLS
//! connection, which the node computes. The effective set is what both sides and the bundle allow.

use std::collections::HashSet;

use glocal_core::bundle::TenantIdForm;
use glocal_core::edge::{Edge, TenantSet};
use glocal_core::limits::{ALLOWED_SET_MACS_MAX, TENANTS_MAX};
use glocal_core::name::NodeId;
use glocal_core::tenant::TenantKey;
use glocal_wire::control::{AllowedSet, BridgeHello, FEATURE_DEDICATED, FEATURE_PATH_PROBE, PROTOCOL_VERSION};

use crate::shared::Shared;

/// The code of one tenant under the key of one connection.
pub type Mac = [u8; 16];

/// The code of [`HandshakeError::Mode`], by which the other end knows it again.
pub const EDGE_MODE_CODE: &str = "edge-mode";

/// Why a bridge is not opened. Each is its own state in logs, metrics and `status`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// No protocol version in common.
    #[error("no protocol version in common, this node speaks {PROTOCOL_VERSION}")]
    Version,
    /// The peer belongs to another fabric.
    #[error("the peer belongs to another fabric")]
    Fabric,
    /// The hello names another node than the certificate.
    #[error("the hello names another node than the certificate")]
    Node,
    /// The peer speaks of an edge that this side does not have with it.
    #[error("no such edge between these nodes")]
    Edge,
    /// One side of the edge gives each tenant a connection of its own, the other does not.
    #[error(
        "the mode of edge '{edge}' is \"{ours}\" here and \"{theirs}\" at the other end: both ends must have the same"
    )]
    Mode {
        /// The edge.
        edge: String,
        /// The mode of the end that says so.
        ours: &'static str,
        /// The mode of the other.
        theirs: &'static str,
    },
    /// Plain and opaque tenant ids do not mix.
    #[error("one side has plain tenant ids, the other opaque ones")]
    TenantIdForm,
    /// The two sides allow different payloads.
    #[error("the two sides allow different payload sizes")]
    MaxPayload,
    /// The peer sent more tenants than a fabric has.
    #[error("the peer's allowed set is too large")]
    TooManyTenants,
    /// The peer changes its allowed set all the time.
    #[error("the peer changes its allowed set too often")]
    TooManyUpdates,
}

impl HandshakeError {
    /// The stable code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Version => "version",
            Self::Fabric => "fabric",
            Self::Node => "node-name",
            Self::Edge => "unknown-edge",
            Self::Mode { .. } => EDGE_MODE_CODE,
            Self::TenantIdForm => "tenant-id-form",
            Self::MaxPayload => "max-payload",
            Self::TooManyTenants => "too-many-tenants",
            Self::TooManyUpdates => "too-many-updates",
        }
    }
}

/// This side's hello for `edge`.
#[must_use]
pub fn hello(shared: &Shared, edge: &Edge, dial: u64) -> BridgeHello {
    BridgeHello {
        versions: vec![PROTOCOL_VERSION],
        features: FEATURE_PATH_PROBE | if edge.is_dedicated() { FEATURE_DEDICATED } else { 0 },
        fabric: shared.fabric.to_string(),
        node: shared.node.to_string(),
        incarnation: shared.incarnation(),
        edge: edge.name().to_string(),
        dial,
        max_payload: shared.max_payload_bytes,
        tenant_id_form: form_code(shared.tenant_id_form),
        bundle_epoch: shared.bundle().0,
        bundle_version: shared.bundle().1,
    }
}

const fn form_code(form: TenantIdForm) -> u8 {
    match form {
        TenantIdForm::Plain => 0,
        TenantIdForm::Opaque => 1,
    }
}

/// Checks the peer's hello against its certificate's node and this side's facts; returns the key of the edge it names.
///
/// # Errors
/// What does not fit.
pub fn check_hello(
    shared: &Shared,
    hello: &BridgeHello,
    peer: &NodeId,
) -> Result<glocal_core::edge::EdgeKey, HandshakeError> {
    if !hello.versions.contains(&PROTOCOL_VERSION) {
        return Err(HandshakeError::Version);
    }
    if hello.fabric != shared.fabric.as_str() {
        return Err(HandshakeError::Fabric);
    }
    if NodeId::parse(&hello.node).as_ref() != Ok(peer) {
        return Err(HandshakeError::Node);
    }
    if hello.tenant_id_form != form_code(shared.tenant_id_form) {
        return Err(HandshakeError::TenantIdForm);
    }
    if hello.max_payload != shared.max_payload_bytes {
        return Err(HandshakeError::MaxPayload);
    }
    let links = shared.links();
    let is_meant = |edge: &Edge| edge.name().as_str() == hello.edge && edge.peer() == peer && !edge.is_retired();
    let link = links.iter().find(|l| is_meant(l.edge())).ok_or(HandshakeError::Edge)?;
    let is_dedicated = hello.features & FEATURE_DEDICATED != 0;
    if is_dedicated != link.edge().is_dedicated() {
        let (ours, theirs) = (mode(!is_dedicated), mode(is_dedicated));
        return Err(HandshakeError::Mode { edge: link.edge().name().to_string(), ours, theirs });
    }
    Ok(link.edge().key())
}

/// The value of the configuration key `mode`.
#[must_use]
pub const fn mode(is_dedicated: bool) -> &'static str {
    if is_dedicated { "dedicated" } else { "shared" }
}

/// This side's allowed tenants as frames, in an order that tells nothing.
#[must_use]
pub fn allowed_frames(mut macs: Vec<Mac>) -> Vec<AllowedSet> {
    macs.sort_unstable();
    let mut frames: Vec<_> =
        macs.chunks(ALLOWED_SET_MACS_MAX).map(|part| AllowedSet { macs: part.to_vec(), last: false }).collect();
    if frames.is_empty() {
        frames.push(AllowedSet { macs: Vec::new(), last: false });
    }
    if let Some(last) = frames.last_mut() {
        last.last = true;
    }
    frames
}

/// The peer's allowed set as it arrives.
#[derive(Debug, Default)]
pub struct PeerSet {
    macs: HashSet<Mac>,
    complete: bool,
}

impl PeerSet {
    /// Takes one frame.
    ///
    /// # Errors
    /// [`HandshakeError::TooManyTenants`].
    pub fn add(&mut self, frame: AllowedSet) -> Result<(), HandshakeError> {
        self.macs.extend(frame.macs);
        self.complete |= frame.last;
        if self.macs.len() > TENANTS_MAX { Err(HandshakeError::TooManyTenants) } else { Ok(()) }
    }

    /// Whether it is complete.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.complete
    }

    /// The codes themselves.
    #[must_use]
    pub(crate) fn into_macs(self) -> HashSet<Mac> {
        self.macs
    }

    /// The tenants of `own` that the peer allows too.
    #[must_use]
    pub fn effective(&self, own: impl IntoIterator<Item = (TenantKey, Mac)>) -> TenantSet {
        own.into_iter().filter(|(_, mac)| self.macs.contains(mac)).map(|(key, _)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_effective_set_is_what_both_allow() {
        let mut peer = PeerSet::default();
        for frame in allowed_frames(vec![[1; 16], [3; 16]]) {
            peer.add(frame).unwrap();
        }
        assert!(peer.is_complete());
        let own = [(TenantKey(1), [1; 16]), (TenantKey(2), [2; 16])];
        assert_eq!(peer.effective(own).iter().collect::<Vec<_>>(), [TenantKey(1)]);
    }

    #[test]
    fn large_sets_go_in_parts_and_empty_ones_are_told() {
        let macs: Vec<Mac> = (0..5000u32)
            .map(|i| {
                let mut m = [0; 16];
                m[..4].copy_from_slice(&i.to_le_bytes());
                m
            })
            .collect();
        let frames = allowed_frames(macs);
        assert_eq!(frames.len(), 3);
        assert_eq!(frames.iter().filter(|f| f.last).count(), 1);
        assert_eq!(allowed_frames(Vec::new()).len(), 1);
    }
}
