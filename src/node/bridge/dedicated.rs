//! The connections of single tenants beside the bridge of a dedicated edge (DESIGN section 6).
//!
//! The bridge itself carries no tenant's lanes. The end that dialled it opens a further connection for each tenant that both
//! ends allow; its first frame proves that whoever opened it holds the bridge. On it, both ends send and accept lanes of that
//! tenant and nothing else. One of them may end while the others and the bridge go on; they all end with the bridge.
//!
//! [`TenantConnections`] belongs to the task of the bridge and decides who is taken in; every connection has a task of its
//! own, which runs only while it has been let in.

use std::sync::Arc;

use glocal_core::edge::TenantSet;
use glocal_core::identity::{KeyId, Principal};
use glocal_core::limits::{TENANT_ATTACHES_MAX, TENANT_ATTACHES_PER_MINUTE_MAX};
use glocal_core::tenant::TenantKey;
use glocal_core::time::Time;
use glocal_engine::dedicated::Dedicated;
use glocal_engine::link::Link;
use hashbrown::HashMap;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::context::Context;
use crate::edge_status::EdgeStatus;
use serve::Place;

mod attach;
mod codes;
mod dial;
mod pump;
mod serve;

pub(super) use attach::accept;
pub(super) use pump::{Ways, run as pump};

/// One minute, in milliseconds.
const MINUTE_MS: u64 = 60_000;

/// Why a connection of a tenant is not taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttachRefusal {
    /// No bridge of a dedicated edge is up with this peer, or another one than it names.
    NoBridge,
    /// Whoever opened it does not hold the bridge.
    Proof,
    /// The tenant is not one that both ends allow on the edge; foreign and missing look alike.
    Tenant,
    /// It is under a certificate that is neither the one of the bridge nor one of the tenant.
    Certificate,
    /// One that was dialled later is there.
    Older,
    /// The tenant's connection comes and goes all the time.
    TooOften,
}

impl AttachRefusal {
    /// Every refusal.
    pub(crate) const ALL: [Self; 6] =
        [Self::NoBridge, Self::Proof, Self::Tenant, Self::Certificate, Self::Older, Self::TooOften];

    /// The stable code: log field, metric label and `code` of the error frame.
    pub(crate) const fn code(self) -> &'static str {
        match self {
            Self::NoBridge => "no-bridge",
            Self::Proof => "proof",
            Self::Tenant => "edge-tenant",
            Self::Certificate => "certificate",
            Self::Older => "older",
            Self::TooOften => "too-often",
        }
    }

    const fn text(self) -> &'static str {
        match self {
            Self::NoBridge => "no such bridge of a dedicated edge is up",
            Self::Proof => "whoever opened this connection does not hold the bridge",
            Self::Tenant => "the tenant is not allowed on this edge",
            Self::Certificate => "the certificate is neither that of the bridge nor one of the tenant",
            Self::Older => "a connection that was dialled later is there",
            Self::TooOften => "the tenant's connection comes and goes too often",
        }
    }
}

/// The bridge that tenants' connections belong to.
#[derive(Clone, Debug)]
pub(crate) struct AttachPoint {
    /// The dialler's life and the number of its dial.
    age: (u64, u64),
    connection: quinn::Connection,
    /// Whether this side dialled.
    dialled: bool,
    /// The key in the certificate under which the peer holds the bridge.
    key: Option<KeyId>,
    peer: Arc<Principal>,
    events: mpsc::Sender<Event>,
    /// Told when there is an event.
    stir: Arc<Notify>,
    ways: Arc<Ways>,
}

impl AttachPoint {
    /// Waits for room and tells; nobody listens once the bridge is gone.
    async fn tell(&self, event: Event) {
        if self.events.send(event).await.is_ok() {
            self.stir.notify_one();
        }
    }
}

/// What the tasks of tenants' connections tell the bridge's.
#[derive(Debug)]
enum Event {
    /// A connection that would be taken in.
    Attach(Attach),
    /// The connection of this tenant with this number has ended, and reads no more.
    Ended(TenantKey, u64),
}

#[derive(Debug)]
struct Attach {
    tenant: TenantKey,
    /// Higher is newer.
    number: u64,
    go: oneshot::Sender<Result<Go, AttachRefusal>>,
}

/// That a connection is taken in.
#[derive(Debug)]
struct Go {
    /// Ends it.
    cancel: CancellationToken,
    /// Held until it reads no more.
    _token: TaskTrackerToken,
}

#[derive(Debug)]
struct Slot {
    number: u64,
    cancel: CancellationToken,
    /// The one that takes its place.
    next: Option<Attach>,
}

/// How often a tenant's connections came within a minute.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    minute: Time,
    count: u32,
}

/// The tenants' connections of one bridge.
pub(super) struct TenantConnections {
    context: Context,
    status: Arc<EdgeStatus>,
    link: Arc<Link>,
    point: AttachPoint,
    carried: Dedicated,
    slots: HashMap<TenantKey, Slot>,
    paces: HashMap<TenantKey, Pace>,
    /// Taken in, and let go on once what the edge carries is changed.
    starting: Vec<(Attach, CancellationToken)>,
    /// To be looked at in the next round.
    waiting: Vec<Attach>,
    dials: HashMap<TenantKey, CancellationToken>,
    /// Names by which the peer asks for certificates of tenants.
    names: HashMap<TenantKey, String>,
    events: mpsc::Receiver<Event>,
    tasks: TaskTracker,
    cancel: CancellationToken,
    /// Whether the peer has said that it is ready.
    is_peer_ready: bool,
}

impl TenantConnections {
    /// None yet, for a bridge that may carry `allowed`; connections that the peer opens are taken in from now on.
    pub(super) fn new(
        context: &Context,
        status: &Arc<EdgeStatus>,
        link: &Arc<Link>,
        allowed: &TenantSet,
        bridge: (quinn::Connection, Arc<Principal>, Option<KeyId>),
        (age, dialled): ((u64, u64), bool),
    ) -> Self {
        let (connection, peer, key) = bridge;
        let (sender, events) = mpsc::channel(TENANT_ATTACHES_MAX);
        let (stir, ways) = (Arc::default(), Arc::default());
        let point = AttachPoint { age, connection, dialled, key, peer, events: sender, stir, ways };
        if !dialled {
            *status.attach.lock() = Some(point.clone());
        }
        Self {
            context: context.clone(),
            status: Arc::clone(status),
            link: Arc::clone(link),
            point,
            carried: Dedicated::new(allowed, context.clock.now()),
            slots: HashMap::new(),
            paces: HashMap::new(),
            starting: Vec::new(),
            waiting: Vec::new(),
            dials: HashMap::new(),
            names: HashMap::new(),
            events,
            tasks: TaskTracker::new(),
            cancel: CancellationToken::new(),
            is_peer_ready: false,
        }
    }

    /// Where the pump puts what is for each tenant.
    pub(super) const fn ways(&self) -> &Arc<Ways> {
        &self.point.ways
    }

    /// Told when [`Self::gather`] may have something to do.
    pub(super) fn stir(&self) -> Arc<Notify> {
        Arc::clone(&self.point.stir)
    }

    /// When [`Self::gather`] has something to do without being told.
    pub(super) fn wake_at(&self) -> Option<Time> {
        self.carried.wake_at()
    }

    /// The tenants of `set` whose connections are up, or are waited for.
    pub(super) fn carried(&self, set: &TenantSet) -> TenantSet {
        self.carried.carried(set)
    }

    /// The peer accepts connections.
    pub(super) const fn peer_is_ready(&mut self) {
        self.is_peer_ready = true;
    }

    /// Takes what has happened to connections; whether the edge carries others than before.
    pub(super) fn gather(&mut self, accepts: &TenantSet) -> bool {
        let mut has_changed = self.carried.tick(self.context.clock.now());
        for attach in std::mem::take(&mut self.waiting) {
            has_changed |= self.take_in(attach, accepts);
        }
        while let Ok(event) = self.events.try_recv() {
            match event {
                Event::Attach(attach) => has_changed |= self.on_attach(attach, accepts),
                Event::Ended(tenant, number) => {
                    let is_there = self.slots.get(&tenant).is_some_and(|slot| slot.number == number);
                    if is_there && let Some(slot) = self.slots.remove(&tenant) {
                        has_changed |= self.carried.down(tenant);
                        self.waiting.extend(slot.next);
                    }
                }
            }
        }
        has_changed
    }

    /// Lets those go on that were taken in; whether there is more to gather.
    pub(super) fn start(&mut self) -> bool {
        for (attach, cancel) in self.starting.drain(..) {
            // Whoever has gone meanwhile says so by an event of its own.
            let _ = attach.go.send(Ok(Go { cancel, _token: self.tasks.token() }));
        }
        !self.waiting.is_empty()
    }

    fn on_attach(&mut self, attach: Attach, accepts: &TenantSet) -> bool {
        let tenant = attach.tenant;
        let refusal = if !accepts.contains(tenant) {
            Some(AttachRefusal::Tenant)
        } else if self.slots.get(&tenant).is_some_and(|slot| slot.number >= attach.number) {
            Some(AttachRefusal::Older)
        } else {
            self.is_too_often(tenant).then_some(AttachRefusal::TooOften)
        };
        if let Some(refusal) = refusal {
            let _ = attach.go.send(Err(refusal));
            return false;
        }
        if let Some(slot) = self.slots.get_mut(&tenant) {
            // The newer one waits until the other has gone.
            slot.cancel.cancel();
            if let Some(before) = slot.next.replace(attach) {
                let _ = before.go.send(Err(AttachRefusal::Older));
            }
            return false;
        }
        self.take_in(attach, accepts)
    }

    /// Gives the tenant's place, which is free, to a connection; whether the edge did not carry the tenant before.
    fn take_in(&mut self, attach: Attach, accepts: &TenantSet) -> bool {
        let tenant = attach.tenant;
        if !accepts.contains(tenant) || self.slots.contains_key(&tenant) {
            let _ = attach.go.send(Err(AttachRefusal::Tenant));
            return false;
        }
        let was_carried = self.carried.carried(accepts).contains(tenant);
        let cancel = self.cancel.child_token();
        self.slots.insert(tenant, Slot { number: attach.number, cancel: cancel.clone(), next: None });
        self.carried.up(tenant);
        self.starting.push((attach, cancel));
        !was_carried
    }

    fn is_too_often(&mut self, tenant: TenantKey) -> bool {
        let now = self.context.clock.now();
        let pace = self.paces.entry(tenant).or_default();
        if now >= pace.minute.plus_millis(MINUTE_MS) {
            *pace = Pace { minute: now, count: 0 };
        }
        pace.count += 1;
        pace.count > TENANT_ATTACHES_PER_MINUTE_MAX
    }

    /// Brings connections in line with what both ends allow: on the side that dialled, one is kept for each of `sends`; those
    /// of tenants that are not among `accepts` end.
    pub(super) fn arrange(&mut self, sends: &TenantSet, accepts: &TenantSet) {
        for (tenant, slot) in &self.slots {
            if !accepts.contains(*tenant) {
                slot.cancel.cancel();
            }
        }
        self.dials.retain(|tenant, cancel| {
            let keeps = accepts.contains(*tenant);
            if !keeps {
                cancel.cancel();
            }
            keeps
        });
        self.status.retain_tenants(|tenant| accepts.contains(tenant));
        for tenant in accepts.iter() {
            self.status.tenant(tenant, |_| {});
        }
        if !self.point.dialled {
            self.name_certificates(accepts);
        } else if self.is_peer_ready {
            for tenant in sends.iter().filter(|tenant| !self.dials.contains_key(tenant)).collect::<Vec<_>>() {
                let cancel = self.cancel.child_token();
                self.dials.insert(tenant, cancel.clone());
                self.tasks.spawn(dial::keep(self.place(), tenant, cancel));
            }
        }
    }

    fn place(&self) -> Place {
        Place {
            context: self.context.clone(),
            status: Arc::clone(&self.status),
            link: Arc::clone(&self.link),
            point: self.point.clone(),
        }
    }

    /// The peer may ask for a tenant's certificate where one is configured, by a name that only it can know.
    fn name_certificates(&mut self, accepts: &TenantSet) {
        let (config, tenants) = (self.context.config(), self.context.shared.tenants());
        let certificates = &self.context.bridge_certificates;
        let edge = config.edges.iter().find(|edge| edge.name == *self.link.edge().name());
        let wanted = accepts.iter().filter_map(|key| {
            let tenant = tenants.by_key(key)?;
            let certificate = edge?.certificate_of(tenant.id())?;
            Some((key, codes::server_name(&self.point, &self.link, tenant.id().as_str())?, certificate.clone()))
        });
        let mut names = HashMap::new();
        for (key, name, certificate) in wanted {
            certificates.insert(name.clone(), certificate);
            names.insert(key, name);
        }
        for (key, name) in std::mem::replace(&mut self.names, names) {
            if !self.names.contains_key(&key) {
                certificates.remove(&name);
            }
        }
    }

    /// Ends every connection; returns when none reads any more.
    pub(super) async fn end(mut self) {
        self.status.attach.lock().take_if(|point| point.age == self.point.age);
        self.cancel.cancel();
        self.starting.clear();
        self.waiting.clear();
        self.slots.clear();
        // Whoever waits to be let in learns that nobody is there.
        self.events.close();
        while self.events.try_recv().is_ok() {}
        for name in self.names.values() {
            self.context.bridge_certificates.remove(name);
        }
        self.tasks.close();
        self.tasks.wait().await;
        self.status.retain_tenants(|_| false);
        self.link.inbox().with(|lanes| lanes.sched_mut().gate(false));
    }
}
