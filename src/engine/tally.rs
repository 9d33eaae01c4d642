//! What became of `live` and `tele`, end to end: the questions and answers of [`glocal_core::tally`].
//!
//! Copies are counted under the lock of the lane they go into ([`note`]), and the question is put into the same lane under
//! the same lock ([`tick`]), so that it is behind all that it asks about. It may be lost like any frame, and is asked again.

use std::collections::BTreeSet;
use std::sync::Arc;

use glocal_core::count::Drop as DropReason;
use glocal_core::name::Class;
use glocal_core::routes::BrokerIndex;
use glocal_core::tally::{CLASSES, Sent};
use glocal_core::tenant::{Tenant, TenantKey};
use glocal_core::time::Time;
use glocal_wire::control::{Control, Tallied, Tally};
use parking_lot::Mutex;

use crate::link::Handles;
use crate::routed;
use crate::shared::Shared;

/// The tenants of which copies are on their way.
#[derive(Debug, Default)]
pub struct Open(Mutex<BTreeSet<TenantKey>>);

/// Notes frames that go into a lane, whether or not there is room. The first broker of their handles is their origin; the
/// others are targets.
pub(crate) fn note(shared: &Shared, tenant: &Tenant, class: Class, handles: &Handles, frames: u32) {
    let Some(((origin, _), targets)) = handles.brokers.split_first() else { return };
    let is_own = *origin == shared.own && !class.is_reliable();
    if is_own && tenant.tallies().send(class, targets.iter().map(|(target, _)| *target), u64::from(frames)) {
        shared.open_tallies().0.lock().insert(tenant.key());
    }
}

/// Asks what is due, and gives up those who say nothing; to be called about once a second.
pub(crate) fn tick(shared: &Shared, now: Time) {
    let open = std::mem::take(&mut *shared.open_tallies().0.lock());
    let tenants = shared.tenants();
    let mut still = Vec::new();
    for tenant in open.into_iter().filter_map(|key| tenants.by_key(key)) {
        CLASSES.into_iter().for_each(|class| ask(shared, tenant, class, now));
        if !tenant.tallies().rest() {
            still.push(tenant.key());
        }
    }
    shared.open_tallies().0.lock().extend(still);
}

/// This broker begins another life: what is open of the one before is lost.
pub(crate) fn begin_life(shared: &Shared) {
    for tenant in shared.tenants().iter() {
        for (class, lost) in CLASSES.into_iter().zip(tenant.tallies().begin_life()) {
            tenant.counters().class(class).lost.add(lost);
        }
    }
}

fn ask(shared: &Shared, tenant: &Arc<Tenant>, class: Class, now: Time) {
    let (mut due, mut lost) = (Vec::new(), 0);
    tenant.tallies().sent(class, |sent| {
        for (target, sent) in sent.iter_mut() {
            lost += sent.give_up(now);
            due.extend(Some(*target).filter(|_| sent.is_due(now)));
        }
    });
    tenant.counters().class(class).lost.add(lost);
    for target in due {
        let question = || {
            let copies = tenant.tallies().sent(class, |sent| sent.get_mut(&target).map(|sent| sent.ask(now)));
            let copies = copies.flatten().unwrap_or(0);
            Tally { class: class.code(), incarnation: shared.incarnation(), copies }.into()
        };
        if !routed::send_behind(shared, tenant, class, target, question, now) {
            // Out of reach: the silence counts from now on.
            tenant.tallies().sent(class, |sent| sent.get_mut(&target).map(|sent| sent.ask(now)));
        }
    }
}

/// Takes a question or an answer of another broker; anything else comes back.
pub(crate) fn on_letter(
    shared: &Shared,
    tenant: &Tenant,
    (from, life): (BrokerIndex, u64),
    control: Control,
    now: Time,
) -> Option<Control> {
    match control {
        Control::Tally(Tally { class: code, incarnation, copies }) => {
            let class = Class::from_code(code)?;
            let received = tenant.tallies().received(class, from, incarnation);
            let body = Tallied { class: code, incarnation, copies, received };
            routed::send(shared, tenant, from, &body.into(), now);
        }
        Control::Tallied(Tallied { class, incarnation, copies, received }) => {
            let class = Class::from_code(class).filter(|_| incarnation == shared.incarnation())?;
            let counters = tenant.counters().class(class);
            let answer = |sent: &mut Sent| sent.answer(life, copies, received);
            match tenant.tallies().sent(class, |sent| sent.get_mut(&from).and_then(answer)).flatten() {
                Some(lost) => counters.lost.add(lost),
                None => counters.dropped(DropReason::BadTarget, 1),
            }
        }
        other => return Some(other),
    }
    None
}
