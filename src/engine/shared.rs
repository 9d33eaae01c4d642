//! What every session and bridge of one node knows: the policy, the brokers, the links, and numbers to hand out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};
use glocal_core::bundle::TenantIdForm;
use glocal_core::edge::EdgeKey;
use glocal_core::name::{Label, NodeId};
use glocal_core::policy::Policy;
use glocal_core::routes::{BrokerIndex, Brokers};
use glocal_core::tenant::{Tenant, Tenants};

use crate::link::Link;
use crate::reliable::Reliable;
use crate::sender::DeliveredSenders;
use crate::tally;

/// The facts of one node, and its counters of handles.
#[derive(Debug)]
pub struct Shared {
    /// This node.
    pub node: NodeId,
    /// This node's number.
    pub own: BrokerIndex,
    incarnation: AtomicU64,
    /// The fabric's name.
    pub fabric: Label,
    /// Largest payload, in bytes.
    pub max_payload_bytes: u32,
    /// How tenant ids relate to `O=`.
    pub tenant_id_form: TenantIdForm,
    bundle: ArcSwap<(u64, u64)>,
    policy: ArcSwap<Policy>,
    /// The policy's epoch, set when it is in its place.
    policy_epoch: AtomicU64,
    brokers: ArcSwap<Brokers>,
    links: ArcSwap<Vec<Arc<Link>>>,
    log_allow: AtomicBool,
    /// What was delivered of senders elsewhere.
    pub delivered: DeliveredSenders,
    next_session: AtomicU64,
    next_sender: AtomicU32,
    next_turn: AtomicU64,
    reliable: Reliable,
    open_tallies: tally::Open,
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
            incarnation: AtomicU64::new(incarnation),
            fabric: head.fabric.clone(),
            max_payload_bytes: head.max_payload_bytes,
            tenant_id_form: head.tenant_id_form,
            bundle: ArcSwap::from_pointee((head.epoch, head.version)),
            reliable: Reliable::new(Arc::clone(policy.tenants().memory())),
            policy_epoch: AtomicU64::new(policy.epoch()),
            policy: ArcSwap::new(policy),
            brokers: ArcSwap::new(brokers),
            links: ArcSwap::from_pointee(links),
            log_allow: AtomicBool::new(log_allow),
            delivered: DeliveredSenders::default(),
            next_session: AtomicU64::new(1),
            next_sender: AtomicU32::new(1),
            next_turn: AtomicU64::new(0),
            open_tallies: tally::Open::default(),
        }
    }

    /// Replaces what a newer bundle or another configuration changes; the driver's right alone.
    pub(crate) fn renew(&self, bundle: (u64, u64), policy: Arc<Policy>, brokers: Arc<Brokers>, links: Vec<Arc<Link>>) {
        // Names first: whoever sees a new number must find what it stands for.
        self.brokers.store(brokers);
        self.links.store(Arc::new(links));
        let epoch = policy.epoch();
        self.policy.store(policy);
        self.policy_epoch.store(epoch, Ordering::Release);
        self.bundle.store(Arc::new(bundle));
    }

    /// This node's life.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.incarnation.load(Ordering::Acquire)
    }

    /// Begins another life; the driver's right alone.
    pub(crate) fn set_incarnation(&self, incarnation: u64) {
        self.incarnation.store(incarnation, Ordering::Release);
    }

    /// Epoch and version of the bundle in force.
    #[must_use]
    pub fn bundle(&self) -> (u64, u64) {
        **self.bundle.load()
    }

    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> Guard<Arc<Policy>> {
        self.policy.load()
    }

    /// The epoch of the policy in force: a decision holds as long as it was made in this one.
    #[must_use]
    pub fn policy_epoch(&self) -> u64 {
        self.policy_epoch.load(Ordering::Acquire)
    }

    /// The tenants of the policy in force.
    #[must_use]
    pub fn tenants(&self) -> Arc<Tenants> {
        Arc::clone(self.policy.load().tenants())
    }

    /// The tenant with this id.
    #[must_use]
    pub fn tenant(&self, id: &str) -> Option<Arc<Tenant>> {
        self.policy.load().tenants().by_id(id).cloned()
    }

    /// The fabric's brokers.
    #[must_use]
    pub fn brokers(&self) -> Guard<Arc<Brokers>> {
        self.brokers.load()
    }

    /// This node's edges with what is queued for them, indexed by their keys.
    #[must_use]
    pub fn links(&self) -> Guard<Arc<Vec<Arc<Link>>>> {
        self.links.load()
    }

    /// The link of an edge.
    #[must_use]
    pub fn link(&self, edge: EdgeKey) -> Option<Arc<Link>> {
        self.links.load().get(usize::try_from(edge.0).ok()?).cloned()
    }

    /// Whether allowed operations are to be logged.
    #[must_use]
    pub fn log_allow(&self) -> bool {
        self.log_allow.load(Ordering::Relaxed)
    }

    /// Says whether allowed operations are to be logged from now on.
    pub fn set_log_allow(&self, log_allow: bool) {
        self.log_allow.store(log_allow, Ordering::Relaxed);
    }

    /// The messages that wait for acknowledgements, or for their turn.
    #[must_use]
    pub const fn reliable(&self) -> &Reliable {
        &self.reliable
    }

    /// The tenants whose copies are on their way.
    pub(crate) const fn open_tallies(&self) -> &tally::Open {
        &self.open_tallies
    }

    /// A number that is another at each call, to take turns by.
    #[must_use]
    pub fn next_turn(&self) -> u64 {
        self.next_turn.fetch_add(1, Ordering::Relaxed)
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
