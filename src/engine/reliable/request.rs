//! Requests in the classes that nobody acknowledges: kept for a moment, so that another member of a queue group can be
//! chosen where a target has nobody left, and the requester told where nobody is.
//!
//! Interest takes a moment to cross the mesh, and a member may leave meanwhile. The target then answers with
//! [`glocal_wire::control::Unserved`]. Nothing else is kept of `live` and `tele`: what asks for no answer is counted there
//! as `no-member`.

use std::collections::VecDeque;
use std::sync::Arc;

use glocal_core::limits::{REQUESTS_BYTES_MAX, REQUESTS_KEPT_MAX, REQUESTS_KEPT_MS, UNSERVED_GROUPS_MAX};
use glocal_core::name::{Class, QueueGroup};
use glocal_core::reliable::outgoing::{Groups, Sending};
use glocal_core::routes::BrokerIndex;
use glocal_core::tenant::Tenant;
use glocal_core::time::Time;
use glocal_wire::control::Unserved;
use hashbrown::HashMap;
use smallvec::SmallVec;

use super::again::{Instead, choose_again, no_responders, send};
use super::publish::cost;
use super::{Asker, Chosen, Parcel};
use crate::batch::{Batch, Message, TargetGroups};
use crate::client::route::Publisher;
use crate::routed;
use crate::shared::Shared;

/// What a request is known by: class, the requester's session, and its number among that session's messages.
type Key = (u8, u64, u64);

/// A target of a request: whether plain subscribers were behind it, and the groups it was to serve.
type Asked = (BrokerIndex, bool, Groups);

#[derive(Debug)]
pub(super) struct Kept {
    parcel: Arc<Parcel>,
    targets: SmallVec<[Asked; 2]>,
    bytes: usize,
}

/// The latest requests of one tenant.
#[derive(Debug, Default)]
pub(super) struct Latest {
    pub(super) kept: HashMap<Key, Kept>,
    pub(super) order: VecDeque<(Time, Key)>,
    pub(super) bytes: usize,
}

impl Latest {
    /// Forgets what is too old; to be called now and then.
    pub(super) fn sweep(&mut self, now: Time) {
        self.shrink(REQUESTS_KEPT_MAX, REQUESTS_BYTES_MAX, now);
        if self.order.is_empty() {
            // With the room that a burst of them has taken.
            *self = Self::default();
        }
    }

    /// Lets go of the oldest, down to `max` requests and `bytes_max` bytes, and of what is too old.
    fn shrink(&mut self, max: usize, bytes_max: usize, now: Time) {
        while let Some((since, key)) = self.order.front().copied() {
            let old = now >= since.plus_millis(REQUESTS_KEPT_MS);
            if !old && self.order.len() <= max && self.bytes <= bytes_max {
                return;
            }
            self.order.pop_front();
            self.bytes -= self.kept.remove(&key).map_or(0, |kept| kept.bytes);
        }
    }
}

/// Keeps a request that goes to `chosen`, of which `here` sessions on this broker have it.
pub(crate) fn keep(
    shared: &Shared,
    message: &Message<'_>,
    chosen: &[Chosen<'_>],
    (own, here): (&Publisher<'_>, usize),
    now: Time,
    batch: &mut Batch,
) {
    let of = |one: &Chosen<'_>| {
        (one.target.broker, one.plain, one.target.groups.iter().map(|group| (*group).clone()).collect())
    };
    let targets: SmallVec<[Asked; 2]> = chosen.iter().filter(|one| !one.observes).map(of).collect();
    if targets.is_empty() {
        return;
    }
    let asker = Asker::new(own.port, own.number, chosen, here);
    let parcel = Arc::new(Parcel { asker: Some(asker), ..Parcel::of(message, batch) });
    let key = (message.destination.class().code(), message.sender.info().session, message.seq);
    let bytes = cost(message);
    let flows = shared.reliable().flows(message.tenant.key());
    let mut latest = flows.requests.lock();
    latest.shrink(REQUESTS_KEPT_MAX - 1, REQUESTS_BYTES_MAX.saturating_sub(bytes), now);
    latest.bytes += bytes;
    latest.order.push_back((now, key));
    latest.kept.insert(key, Kept { parcel, targets, bytes });
}

/// Tells the origin of a request that nobody here took: `groups` have no member, and `plain` says whether anybody else has it.
pub(crate) fn unserved(shared: &Shared, message: &Message<'_>, mut groups: Vec<String>, plain: bool, now: Time) {
    groups.truncate(UNSERVED_GROUPS_MAX);
    let body = Unserved {
        class: message.destination.class().code(),
        incarnation: message.incarnation,
        session: message.sender.info().session,
        seq: message.seq,
        groups,
        plain,
    };
    routed::send(shared, message.tenant, message.sender.origin(), &body.into(), now);
}

/// A target had nobody for a request: another member of each group is chosen, or the requester told that nobody is left.
/// `false` where that target was not asked.
pub(super) fn on_unserved(
    shared: &Shared,
    tenant: &Arc<Tenant>,
    from: BrokerIndex,
    body: &Unserved,
    batch: &mut Batch,
) -> bool {
    let Some(class) = Class::from_code(body.class) else { return false };
    let Some(flows) = shared.reliable().known(tenant.key()) else { return false };
    let mut latest = flows.requests.lock();
    let Some((kept, at)) = latest.kept.get_mut(&(body.class, body.session, body.seq)).and_then(|kept| {
        let at = kept.targets.iter().position(|(broker, ..)| *broker == from)?;
        Some((kept, at))
    }) else {
        return false;
    };
    let (_, plain, mut groups) = kept.targets.remove(at);
    groups.retain(|group| body.groups.iter().any(|name| name == group.as_str()));
    let parcel = Arc::new(kept.parcel.again(from));
    let mut lost = usize::from(plain && !body.plain);
    let mut instead: SmallVec<[(BrokerIndex, QueueGroup); 1]> = SmallVec::new();
    for group in groups {
        match choose_again(shared, tenant, class, body.seq, &parcel, &group, batch) {
            Some(Instead::Here) => {}
            Some(Instead::There(other)) => instead.push((other, group)),
            None => lost += 1,
        }
    }
    if !instead.is_empty() {
        kept.parcel = Arc::clone(&parcel);
        kept.targets.extend(instead.iter().map(|(other, group)| (*other, false, Groups::from_iter([group.clone()]))));
    }
    drop(latest);
    let routes = Arc::clone(tenant.table().routes());
    for (target, group) in instead {
        let (groups, step) = (Groups::from_iter([group]), TargetGroups::plain(target).step);
        let sending = Sending { seq: body.seq, target, groups, step, message: Arc::clone(&parcel) };
        send(shared, tenant, class, &routes, &sending, batch);
    }
    if parcel.asker.as_ref().is_some_and(|asker| asker.lose(lost)) {
        no_responders(tenant, class, &parcel, batch);
    }
    true
}
