//! What every session and bridge of one node knows: the policy, the brokers, the links, and numbers to hand out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use glocal_core::bundle::TenantIdForm;
use glocal_core::edge::EdgeKey;
use glocal_core::name::{Label, NodeId};
use glocal_core::policy::Policy;
use glocal_core::routes::{BrokerIndex, Brokers};

use crate::link::Link;

/// The fixed facts of one life of one node, and its counters of handles.
#[derive(Debug)]
pub struct Shared {
    /// This node.
    pub node: NodeId,
    /// This node's number.
    pub own: BrokerIndex,
    /// This node's life.
    pub incarnation: u64,
    /// The fabric's name.
    pub fabric: Label,
    /// Largest payload, in bytes.
    pub max_payload_bytes: u32,
    /// How tenant ids relate to `O=`.
    pub tenant_id_form: TenantIdForm,
    /// Epoch and version of the bundle in force.
    pub bundle: (u64, u64),
    /// The policy in force.
    pub policy: Arc<Policy>,
    /// The fabric's brokers.
    pub brokers: Arc<Brokers>,
    /// This node's edges, indexed by their keys.
    pub links: Vec<Arc<Link>>,
    /// Whether allowed operations are to be logged.
    pub log_allow: bool,
    next_session: AtomicU64,
    next_sender: AtomicU32,
}

impl Shared {
    /// Gathers the facts; see the fields.
    #[must_use]
    #[expect(clippy::too_many_arguments, reason = "one call per node, each argument a fact of its own type")]
    pub fn new(
        node: NodeId,
        own: BrokerIndex,
        incarnation: u64,
        head: &glocal_core::bundle::Head,
        policy: Arc<Policy>,
        brokers: Arc<Brokers>,
        links: Vec<Arc<Link>>,
        log_allow: bool,
    ) -> Self {
        Self {
            node,
            own,
            incarnation,
            fabric: head.fabric.clone(),
            max_payload_bytes: head.max_payload_bytes,
            tenant_id_form: head.tenant_id_form,
            bundle: (head.epoch, head.version),
            policy,
            brokers,
            links,
            log_allow,
            next_session: AtomicU64::new(1),
            next_sender: AtomicU32::new(1),
        }
    }

    /// The link of an edge.
    #[must_use]
    pub fn link(&self, edge: EdgeKey) -> Option<&Arc<Link>> {
        self.links.get(usize::try_from(edge.0).ok()?)
    }

    /// A fresh session number.
    #[must_use]
    pub fn next_session(&self) -> u64 {
        self.next_session.fetch_add(1, Ordering::Relaxed)
    }

    /// A fresh sender handle. They wrap after four thousand million senders; a lane re-announces what it replaces.
    #[must_use]
    pub fn next_sender(&self) -> u32 {
        self.next_sender.fetch_add(1, Ordering::Relaxed)
    }
}
