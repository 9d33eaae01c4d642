//! Acknowledged delivery: the flows of `glocal_core::reliable` with real messages, and what is said about them.
//!
//! A session's publish asks for room and is kept ([`publish`]); what comes over bridges is delivered in sequence
//! ([`arrival`]) and acknowledged when a batch is in all lanes ([`settle`]); [`tick`] sends again what is due; letters of
//! other brokers end here ([`on_letter`]). Every lock is of one tenant and one class, and is never held while waiting.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::{Bytes, BytesMut};
use glocal_core::limits::RELIABLE_NODE_BYTES_MAX;
use glocal_core::memory::{Account, MemoryBounds, Pool};
use glocal_core::name::{Class, Destination, RawName};
use glocal_core::port::SessionPort;
use glocal_core::reliable::Budget;
use glocal_core::reliable::incoming::{Bringer, Incoming};
use glocal_core::reliable::outgoing::{Finished, Groups, Orphan, Outgoing, Sight, Way};
use glocal_core::routes::{BrokerIndex, Routes};
use glocal_core::tenant::{Tenant, TenantKey};
use glocal_core::time::Time;
use glocal_wire::control::{Ack, Delivered, Overflowed};
use glocal_wire::data::TailLengths;
use hashbrown::HashMap;
use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;

use crate::batch::{Batch, Message};
use crate::link::append;
use crate::routed;
use crate::sender::Sender;
use crate::shared::Shared;

mod again;
mod arrival;
mod publish;
mod request;

pub use again::tick;
pub(crate) use again::{begin_life, heard, on_letter};
pub(crate) use arrival::{Arrived, arrive};
pub(crate) use publish::{Asked, Chosen, Full, publish, take_room};
pub(crate) use request::{keep, unserved};

/// A message as it is kept: of a session here until its targets have it, or of another broker until its turn.
#[derive(Clone, Debug)]
pub(crate) struct Parcel {
    sender: Arc<Sender>,
    incarnation: u64,
    /// Name, reply subject, headers and payload.
    tail: Bytes,
    lengths: TailLengths,
    ttl_ms: Option<u32>,
    reply_token: Option<u64>,
    hops: u8,
    redelivered: bool,
    /// Of another broker's message: the groups this one serves a member of.
    groups: Groups,
    /// Brokers that were chosen for a group and had nobody.
    tried: SmallVec<[BrokerIndex; 2]>,
    /// The session here that waits for a reply.
    asker: Option<Asker>,
}

/// A session that has sent a request.
#[derive(Clone, Debug)]
pub(crate) struct Asker {
    pub(crate) port: Arc<SessionPort>,
    /// Its own number for the request.
    pub(crate) number: u64,
    /// How many may still answer it: sessions here, plain subscribers of a broker, groups.
    pub(crate) left: Arc<AtomicUsize>,
}

impl Asker {
    /// Of a message that `here` sessions on this broker have, and that goes to `chosen`.
    fn new(port: &Arc<SessionPort>, number: Option<u64>, chosen: &[Chosen<'_>], here: usize) -> Self {
        let answering = chosen.iter().filter(|one| !one.observes);
        let ways: usize = answering.map(|one| usize::from(one.plain) + one.target.groups.len()).sum();
        let left = Arc::new(AtomicUsize::new(here + ways));
        Self { port: Arc::clone(port), number: number.unwrap_or(0), left }
    }

    /// `lost` of those who might have answered do not; whether they were the last.
    fn lose(&self, lost: usize) -> bool {
        let less = |left: usize| (left > 0).then(|| left.saturating_sub(lost));
        lost > 0 && self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok_and(|left| left <= lost)
    }
}

impl Parcel {
    fn of(message: &Message<'_>, batch: &mut Batch) -> Self {
        let (tail, lengths) = batch.tail(message);
        Self {
            sender: Arc::clone(message.sender),
            incarnation: message.incarnation,
            tail,
            lengths,
            ttl_ms: message.ttl_ms,
            reply_token: message.reply_token,
            hops: message.hops,
            redelivered: message.redelivered,
            groups: Groups::new(),
            tried: SmallVec::new(),
            asker: None,
        }
    }

    /// The same message, sent to somebody else.
    fn again(&self, tried: BrokerIndex) -> Self {
        let mut again = Self { redelivered: true, groups: Groups::new(), ..self.clone() };
        again.tried.push(tried);
        again
    }

    /// The same message, of another life of this broker: its target may have had it in the life before.
    fn in_life(&self, incarnation: u64) -> Self {
        Self { incarnation, redelivered: true, ..self.clone() }
    }

    /// The message under a number; `None` never, since its name was parsed before.
    fn message<'p>(&'p self, tenant: &'p Arc<Tenant>, class: Class, seq: u64) -> Option<Message<'p>> {
        let (name, rest) = self.tail.split_at_checked(self.lengths.name)?;
        let (reply, rest) = rest.split_at_checked(self.lengths.reply)?;
        let (headers, payload) = rest.split_at_checked(self.lengths.headers)?;
        Some(Message {
            tenant,
            destination: Destination::of(tenant.id(), class, RawName::parse(name).ok()?),
            reply,
            headers,
            payload,
            ttl_ms: self.ttl_ms,
            sender: &self.sender,
            incarnation: self.incarnation,
            seq,
            reply_token: self.reply_token,
            hops: self.hops,
            redelivered: self.redelivered,
        })
    }
}

/// A native session that waits for the acknowledgement of its publish.
#[derive(Debug)]
pub(crate) struct Waiting {
    port: Arc<SessionPort>,
    /// Its own number for the publish.
    number: u64,
    /// What it is told instead of the number of targets, where that is not its to know.
    told: Option<u32>,
}

/// One tenant's messages of one reliable class.
#[derive(Debug)]
pub(crate) struct Flow {
    class: Class,
    /// What it keeps against what its tenant may hold.
    budget: Budget,
    outgoing: Mutex<Outgoing<Arc<Parcel>, Waiting>>,
    incoming: Mutex<Incoming<Arc<Parcel>>>,
    /// Sessions that wait for room.
    waiters: Mutex<Vec<Arc<SessionPort>>>,
    /// Copies whose target began a new life, to be looked after at the next tick.
    orphans: Mutex<Vec<(BrokerIndex, Orphan<Arc<Parcel>>)>>,
}

impl Flow {
    fn new(class: Class, accounts: &[Arc<Account>]) -> Arc<Self> {
        Arc::new(Self {
            class,
            budget: Budget::new(accounts.iter().cloned()),
            outgoing: Mutex::default(),
            incoming: Mutex::default(),
            waiters: Mutex::default(),
            orphans: Mutex::default(),
        })
    }

    /// Lets everybody who waits for room try again.
    fn wake(&self) {
        for port in std::mem::take(&mut *self.waiters.lock()) {
            port.retry();
        }
    }
}

/// One tenant's flows, and its requests.
#[derive(Debug)]
pub(crate) struct Flows {
    ctrl: Arc<Flow>,
    bulk: Arc<Flow>,
    /// The lives of brokers, as their interest told them.
    lives: Mutex<HashMap<BrokerIndex, u64>>,
    /// The latest requests in the classes that nobody acknowledges.
    requests: Mutex<request::Latest>,
}

impl Flows {
    fn new(accounts: &[Arc<Account>]) -> Arc<Self> {
        Arc::new(Self {
            ctrl: Flow::new(Class::Ctrl, accounts),
            bulk: Flow::new(Class::Bulk, accounts),
            lives: Mutex::default(),
            requests: Mutex::default(),
        })
    }

    /// The flow of a reliable class.
    const fn of(&self, class: Class) -> &Arc<Flow> {
        match class {
            Class::Bulk => &self.bulk,
            _ => &self.ctrl,
        }
    }

    const fn both(&self) -> [&Arc<Flow>; 2] {
        [&self.ctrl, &self.bulk]
    }
}

/// The flows of all tenants of one node.
#[derive(Debug)]
pub struct Reliable {
    tenants: RwLock<HashMap<TenantKey, Arc<Flows>>>,
    /// The lives of brokers as they have signed them themselves: what others say of later ones is not believed.
    signed: RwLock<HashMap<BrokerIndex, u64>>,
    /// The node's memory, in which each tenant has its account.
    memory: Arc<Pool>,
    /// What all flows keep together, shared among the tenants by the same rule: whoever keeps most gives way first.
    kept: Arc<Pool>,
    bringers: AtomicU64,
}

/// Who looks after what waits for room in a lane.
const TICK: Bringer = Bringer(0);

impl Reliable {
    /// No flows yet; what they will keep is charged to the tenants' accounts in this pool.
    #[must_use]
    pub fn new(memory: Arc<Pool>) -> Self {
        let (node_bytes, tenant_bytes) = (RELIABLE_NODE_BYTES_MAX, RELIABLE_NODE_BYTES_MAX);
        Self {
            tenants: RwLock::default(),
            signed: RwLock::default(),
            memory,
            kept: Arc::new(Pool::new(MemoryBounds { node_bytes, tenant_bytes })),
            bringers: AtomicU64::new(TICK.0 + 1),
        }
    }

    /// A fresh number for a reader.
    #[must_use]
    pub fn bringer(&self) -> Bringer {
        Bringer(self.bringers.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether no message is kept anywhere.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.tenants.read().values().flat_map(|flows| flows.both()).all(|flow| {
            flow.outgoing.lock().is_idle() && flow.incoming.lock().is_idle() && flow.orphans.lock().is_empty()
        })
    }

    /// Bytes of all messages that are kept.
    #[must_use]
    pub fn kept_bytes(&self) -> usize {
        self.tenants.read().values().flat_map(|flows| flows.both()).map(|flow| flow.budget.used()).sum()
    }

    /// What of a tenant is on its way to brokers that have not acknowledged all of it.
    #[must_use]
    pub fn windows(&self, tenant: TenantKey, now: Time) -> Vec<(Class, Sight)> {
        let Some(flows) = self.known(tenant) else { return Vec::new() };
        let of =
            |flow: &Arc<Flow>| flow.outgoing.lock().sights(now).map(|sight| (flow.class, sight)).collect::<Vec<_>>();
        flows.both().into_iter().flat_map(of).collect()
    }

    /// Whether a broker may be in a life: not in a later one than it has signed, where it has.
    fn may_be(&self, broker: BrokerIndex, life: u64) -> bool {
        self.signed.read().get(&broker).is_none_or(|signed| life <= *signed)
    }

    /// The life a broker is in, as far as it is known; zero otherwise.
    fn life(&self, flows: &Flows, broker: BrokerIndex) -> u64 {
        let told = flows.lives.lock().get(&broker).copied().unwrap_or(0);
        told.max(self.signed.read().get(&broker).copied().unwrap_or(0))
    }

    /// A tenant's flows, made at their first use.
    pub(crate) fn flows(&self, tenant: TenantKey) -> Arc<Flows> {
        if let Some(flows) = self.known(tenant) {
            return flows;
        }
        let accounts =
            || -> Vec<_> { self.memory.account(tenant).into_iter().chain([self.kept.open(tenant)]).collect() };
        Arc::clone(self.tenants.write().entry(tenant).or_insert_with(|| Flows::new(&accounts())))
    }

    /// A tenant's flows, if there are any.
    fn known(&self, tenant: TenantKey) -> Option<Arc<Flows>> {
        self.tenants.read().get(&tenant).cloned()
    }
}

impl fmt::Display for Reliable {
    /// What is kept, in numbers, for whoever looks for the reason.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenants = self.tenants.read();
        let mut keys: Vec<_> = tenants.keys().copied().collect();
        keys.sort_unstable();
        for (key, flows) in keys.iter().filter_map(|key| Some((key, tenants.get(key)?))) {
            for flow in flows.both() {
                let (outgoing, incoming) = (flow.outgoing.lock(), flow.incoming.lock());
                if !outgoing.is_idle() || !incoming.is_idle() {
                    write!(f, "[tenant {} {}: {outgoing} {incoming}]", key.0, flow.class.as_str())?;
                }
            }
        }
        Ok(())
    }
}

/// The first hop towards a broker, where the tenant may go that way now.
fn way(shared: &Shared, routes: &Routes, tenant: TenantKey, broker: BrokerIndex) -> Option<Way> {
    let edge = &routes.hop(broker)?.edge;
    let link = shared.link(edge.key())?;
    link.edge().may_send(tenant).then(|| Way { edge: edge.key(), bridge: edge.bridge() })
}

/// One origin's messages in a batch that is not in the lanes yet.
#[derive(Debug)]
pub(crate) struct Unsettled {
    flow: Arc<Flow>,
    tenant: Arc<Tenant>,
    origin: BrokerIndex,
    bringer: Bringer,
    /// The life of an origin that has to be told this broker's.
    stranger: Option<u64>,
}

/// Acknowledges what has got into all lanes, after delivering what had waited for it.
pub(crate) fn settle(batch: &mut Batch, shared: &Shared, now: Time) {
    while let Some(unsettled) = batch.unsettled.pop() {
        let Unsettled { flow, tenant, origin, bringer, .. } = &unsettled;
        let (class, budget) = (flow.class.code(), &flow.budget);
        loop {
            let mut incoming = flow.incoming.lock();
            let acknowledgement = incoming.settle(*origin, *bringer);
            let mut delivered = false;
            while let Some((seq, parcel)) = incoming.ready(*origin, *bringer, now) {
                let parcel = Arc::clone(parcel);
                if batch.is_heavy() || !arrival::deliver_kept(shared, tenant, flow.class, seq, &parcel, now, batch) {
                    break;
                }
                incoming.delivered(*origin, seq, *bringer, budget, now);
                delivered = true;
            }
            drop(incoming);
            if delivered {
                batch.push(shared, now);
                continue;
            }
            let known = acknowledgement.filter(|a| unsettled.stranger.is_none_or(|life| life == a.incarnation));
            let body = match (known, unsettled.stranger) {
                (Some(a), _) => Delivered { class, incarnation: a.incarnation, through: a.through, gap: a.gap },
                (None, Some(incarnation)) => Delivered { class, incarnation, through: 0, gap: false },
                (None, None) => break,
            };
            routed::send(shared, tenant, *origin, &body.into(), now);
            break;
        }
    }
}

/// A lane here had no room for a message: its origin is told, which may be this broker itself.
pub(crate) fn overflowed(
    shared: &Shared,
    tenant: &Arc<Tenant>,
    class: Class,
    (origin, incarnation): (BrokerIndex, u64),
    seq: u64,
    now: Time,
) {
    if origin == shared.own {
        if let Some(flows) = shared.reliable().known(tenant.key()) {
            flows.of(class).outgoing.lock().dropped(seq, now);
        }
        return;
    }
    let body = Overflowed { class: class.code(), incarnation, seq };
    routed::send(shared, tenant, origin, &body.into(), now);
}

/// Tells sessions that their publishes are acknowledged. One that does not read its answers is closed by its own task.
fn tell(finished: impl IntoIterator<Item = Finished<Waiting>>) {
    for Finished { to, targets } in finished {
        let mut frame = BytesMut::new();
        append(&mut frame, &Ack { seq: to.number, targets: to.told.unwrap_or(targets) }.into());
        let _ = to.port.inbox().push_batch(|lanes| lanes.push_control(frame.freeze()));
    }
}

#[cfg(test)]
mod tests;
