//! Routing what a session publishes: the copies that follow from a decision.

use std::sync::Arc;

use glocal_core::count::Drop as DropReason;
use glocal_core::data::{Member, choose};
use glocal_core::edge::Edge;
use glocal_core::limits::{TARGETS_BYTES_MAX, TARGETS_MAX};
use glocal_core::name::QueueGroup;
use glocal_core::policy::Rule;
use glocal_core::port::{SessionPort, Sub};
use glocal_core::routes::BrokerIndex;
use glocal_core::table::{Match, PortTarget};
use glocal_core::time::Time;
use smallvec::SmallVec;

use super::cache::Route;
use crate::batch::{Batch, Crowds, Message, TargetGroups};
use crate::reliable::{self, Chosen, Full};
use crate::shared::Shared;

/// Who was given a copy.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reached {
    /// Sessions here and brokers elsewhere that were given a copy. Observers are not counted: that they exist is not the
    /// tenant's to know.
    pub(crate) targets: usize,
    /// Whether anyone wants it, reached or not.
    pub(crate) wanted: bool,
    /// Whether anyone who counts as a responder was among them.
    pub(crate) responders: bool,
    /// Whether the acknowledgement comes later, when brokers elsewhere have theirs.
    pub(crate) pending: bool,
}

impl Reached {
    /// Collects the message for the subscriptions of one session.
    fn deliver(&mut self, target: &PortTarget, message: &Message<'_>, batch: &mut Batch) {
        if batch.deliver(&target.port, target.qualified, target.subs.iter(), message) {
            let counts = target.subs.iter().any(|s| !s.is_observer());
            self.targets += usize::from(counts);
            self.responders |= counts;
        }
    }

    /// Collects the message for crowds, and for the others who want it, but for sessions of which `takes` says no.
    fn deliver_to_crowds(
        &mut self,
        crowds: &Arc<Crowds>,
        found: &Match,
        message: &Message<'_>,
        takes: impl Fn(&SessionPort) -> bool,
        batch: &mut Batch,
    ) {
        batch.deliver_to_crowds(crowds, message);
        (self.targets, self.responders) = (crowds.members(), true);
        let others = crowds.others(found).filter(|target| takes(&target.port));
        others.for_each(|target| self.deliver(target, message, batch));
    }
}

/// Whose publish it is.
pub(crate) struct Publisher<'p> {
    pub(crate) port: &'p Arc<SessionPort>,
    /// By whose turn members of groups are chosen.
    pub(crate) turn: u64,
    /// The client's own number for it.
    pub(crate) number: Option<u64>,
}

/// Collects the copies of one message: one per session here, one per next hop with the list of target brokers.
///
/// # Errors
/// [`Full`] in a reliable class, where somebody who must get it has no room. Nothing was collected then.
pub(crate) fn publish(
    shared: &Shared,
    route: &Route,
    message: &Message<'_>,
    own: &Publisher<'_>,
    now: Time,
    batch: &mut Batch,
) -> Result<Reached, Full> {
    let found = route.found();
    let echo = |port: &SessionPort| own.port.echo() || port.id() != own.port.id();
    let takes = |sub: &Sub| !sub.is_over() && echo(sub.port());
    let mut groups: SmallVec<[(&QueueGroup, Member<'_>); 2]> = SmallVec::new();
    if !found.groups.is_empty() {
        groups.extend(found.groups.iter().filter_map(|group| Some((&group.name, choose(group, own.turn, takes)?))));
    }
    let reply_to = message.tenant.replies().find(message.destination.raw().as_str(), now);
    let with_token = reply_to.map(|reply| Message { reply_token: Some(reply.token), ..*message });
    let message = with_token.as_ref().unwrap_or(message);
    let mut chosen = Targets::new();
    choose_brokers(found, &groups, reply_to.map(|reply| reply.origin), &mut chosen);
    let is_reliable = route.class().is_reliable();
    let locals = || found.ports.iter().filter(|target| echo(&target.port));
    batch.begin();
    if is_reliable {
        let plain =
            locals().filter(|target| target.subs.iter().any(|sub| !sub.is_observer())).map(|target| &target.port);
        let members = groups.iter().filter_map(|(_, member)| match member {
            Member::Local(sub) => Some(sub.port()),
            Member::Remote(_) => None,
        });
        let ports: SmallVec<[&Arc<SessionPort>; 8]> = plain.chain(members).collect();
        ask_lanes(shared, &ports, message, now, batch)?;
        if !chosen.is_empty() {
            reliable::take_room(shared, message, &chosen, own.port)?;
        }
    }
    lose_unreached(found, message);
    let mut reached = Reached::default();
    match route.wanted().crowds(message) {
        None => locals().for_each(|target| reached.deliver(target, message, batch)),
        Some(crowds) => reached.deliver_to_crowds(crowds, found, message, echo, batch),
    }
    for (_, member) in &groups {
        if let Member::Local(sub) = member {
            let delivered = batch.deliver(sub.port(), sub.is_qualified(), std::iter::once(*sub), message);
            reached.targets += usize::from(delivered);
            reached.responders |= delivered;
        }
    }
    let responders =
        found.far_responders || reply_to.is_some() || chosen.iter().any(|one| !one.target.groups.is_empty());
    let remote = if is_reliable && !chosen.is_empty() {
        let remote = chosen.iter().filter(|one| !one.observes).count();
        let told = matches!(route.rule(), Rule::Grant(_)).then_some(1);
        let targets = u32::try_from(reached.targets + remote).unwrap_or(u32::MAX);
        let here = reached.targets;
        let asked = reliable::Asked { port: own.port, number: own.number, targets, told, here };
        reached.pending = reliable::publish(shared, &found.routes, message, chosen, &asked, now, batch);
        remote
    } else {
        reached.wanted = found.unreached > 0 || chosen.iter().any(|one| !one.observes);
        keep_request(shared, route, message, &chosen, (own, reached.targets), now, batch);
        relay_chosen(shared, found, &mut chosen, message, batch)
    };
    reached.targets += remote;
    reached.wanted |= reached.targets > 0;
    reached.responders |= remote > 0 && responders;
    Ok(reached)
}

/// Counts what is lost of a message since no way leads to who wants it.
fn lose_unreached(found: &Match, message: &Message<'_>) {
    if found.unreached > 0 {
        let counters = message.tenant.counters().class(message.destination.class());
        counters.dropped(DropReason::NoRoute, found.unreached as u64);
    }
}

/// Collects the copies for brokers elsewhere in a class that nobody acknowledges. Returns how many of them were reached.
fn relay_chosen(
    shared: &Shared,
    found: &Match,
    chosen: &mut Targets<'_>,
    message: &Message<'_>,
    batch: &mut Batch,
) -> usize {
    if chosen.is_empty() {
        return 0;
    }
    let observes: SmallVec<[BrokerIndex; 4]> =
        chosen.iter().filter(|one| one.observes).map(|one| one.target.broker).collect();
    let targets = chosen.drain(..).map(|one| one.target).collect();
    relay_to(shared, &found.routes, targets, message, batch, |broker| observes.contains(broker))
}

/// Keeps a request for a moment, where nobody acknowledges it. Who asks another tenant is not told whether anybody is there.
fn keep_request(
    shared: &Shared,
    route: &Route,
    message: &Message<'_>,
    chosen: &[Chosen<'_>],
    asked: (&Publisher<'_>, usize),
    now: Time,
    batch: &mut Batch,
) {
    if !message.reply.is_empty() && !route.class().is_reliable() && !matches!(route.rule(), Rule::Grant(_)) {
        reliable::keep(shared, message, chosen, asked, now, batch);
    }
}

/// Asks room of the lanes of sessions here, a second time after what was collected has gone into them.
fn ask_lanes(
    shared: &Shared,
    ports: &[&Arc<SessionPort>],
    message: &Message<'_>,
    now: Time,
    batch: &mut Batch,
) -> Result<(), Full> {
    if batch.have_room(ports.iter().copied(), message, now) {
        return Ok(());
    }
    batch.push(shared, now);
    if batch.have_room(ports.iter().copied(), message, now) { Ok(()) } else { Err(Full) }
}

/// The target brokers of a message. It is large, and so it is filled where it lies and not moved about.
type Targets<'g> = SmallVec<[Chosen<'g>; 4]>;

/// Adds the target brokers of a message, each with the groups it serves.
fn choose_brokers<'g>(
    found: &Match,
    groups: &[(&'g QueueGroup, Member<'_>)],
    reply_to: Option<BrokerIndex>,
    chosen: &mut Targets<'g>,
) {
    let plain = |broker: &BrokerIndex| {
        let (target, observes) = (TargetGroups::plain(*broker), found.observers.contains(broker));
        Chosen { target, plain: true, observes }
    };
    if !found.edges.is_empty() || !found.missed.is_empty() {
        chosen.extend(found.edges.iter().flat_map(|edge| &edge.brokers).chain(&found.missed).map(plain));
    }
    for (group, member) in groups {
        let Member::Remote(broker) = member else { continue };
        match chosen.iter_mut().find(|one| one.target.broker == *broker) {
            Some(one) => {
                one.target.groups.push(group);
                one.observes = false;
            }
            None => {
                let groups = SmallVec::from_slice(&[*group]);
                let target = TargetGroups { groups, ..TargetGroups::plain(*broker) };
                chosen.push(Chosen { target, plain: false, observes: false });
            }
        }
    }
    if let Some(origin) = reply_to {
        match chosen.iter_mut().find(|one| one.target.broker == origin) {
            Some(one) => (one.plain, one.observes) = (true, false),
            None => chosen.push(Chosen { target: TargetGroups::plain(origin), plain: true, observes: false }),
        }
    }
}

/// Sorts target brokers by next hop and collects one copy for each edge that allows the tenant. Returns how many of
/// them, without those that only observe, were reached.
pub(crate) fn relay_to(
    shared: &Shared,
    routes: &glocal_core::routes::Routes,
    mut targets: SmallVec<[TargetGroups<'_>; 4]>,
    message: &Message<'_>,
    batch: &mut Batch,
    observes: impl Fn(&BrokerIndex) -> bool,
) -> usize {
    let counters = message.tenant.counters().class(message.destination.class());
    let mut reached = 0;
    while let Some(first) = targets.first() {
        let Some(hop) = routes.hop(first.broker) else {
            counters.dropped(DropReason::NoRoute, 1);
            targets.remove(0);
            continue;
        };
        let is_here = |one: &TargetGroups<'_>| routes.hop(one.broker).is_some_and(|h| h.edge.key() == hop.edge.key());
        if targets.iter().all(is_here) {
            // Mostly one edge leads to all of them.
            return reached + relay_over(shared, &hop.edge, &targets, message, batch, &observes);
        }
        let (here, rest): (SmallVec<[TargetGroups<'_>; 4]>, _) = targets.into_iter().partition(is_here);
        targets = rest;
        reached += relay_over(shared, &hop.edge, &here, message, batch, &observes);
    }
    reached
}

/// Collects one copy for an edge, in as many frames as its targets need, if it allows the tenant. Returns how many of the
/// targets, without those that only observe, were reached.
fn relay_over(
    shared: &Shared,
    edge: &Edge,
    targets: &[TargetGroups<'_>],
    message: &Message<'_>,
    batch: &mut Batch,
    observes: impl Fn(&BrokerIndex) -> bool,
) -> usize {
    let lost = |reason| {
        message.tenant.counters().class(message.destination.class()).dropped(reason, targets.len() as u64);
        0
    };
    if !edge.may_send(message.tenant.key()) {
        return lost(edge.reason(DropReason::NoRoute));
    }
    let Some(link) = shared.link(edge.key()) else { return lost(DropReason::NoRoute) };
    let (mut reached, mut rest) = (0, targets);
    while !rest.is_empty() {
        let (chunk, after) = rest.split_at(frame_targets(rest));
        batch.relay(&link, chunk, message);
        reached += chunk.iter().filter(|one| !observes(&one.broker)).count();
        rest = after;
    }
    reached
}

/// How many of `targets` go into one frame; at least one.
fn frame_targets(targets: &[TargetGroups<'_>]) -> usize {
    let mut bytes = 0;
    // With step and life.
    let fitting = targets.iter().take(TARGETS_MAX).take_while(|one| {
        bytes += 5 + 4 + 8 + one.groups.iter().map(|g| 1 + g.as_str().len()).sum::<usize>();
        bytes <= TARGETS_BYTES_MAX
    });
    fitting.count().max(1)
}
