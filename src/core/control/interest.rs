//! The interest part of the control half: what subscribers want, told to brokers that have a publisher of the tenant and ask.
//!
//! A tenant's view is in sync while all neighbours have told whom they know and every origin in reach has told its list.
//! An origin whose list is not complete here is sent everything, and decides.

use std::collections::{BTreeMap, BTreeSet};

use super::{Control, RecordError};
use crate::count::Drop;
use crate::interest::presence::{Cut, Presence, View};
use crate::interest::pulled::{Pulled, Taken};
use crate::interest::stream::{News, Pull, Streams};
use crate::interest::{Change, Interest, Local};
use crate::limits::{INTEREST_FILTERS_MAX, INTEREST_PULLERS_MAX, PUBLISH_WAIT_MS, PUBLISHER_IDLE_MS};
use crate::name::Class;
use crate::routes::BrokerIndex;
use crate::table::{RemoteInterest, Table};
use crate::tenant::TenantKey;
use crate::time::Time;

/// What is said to another broker of a tenant's mesh, however far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// To an origin: what is wanted of it.
    Pull(Pull),
    /// To a broker that asked: what is wanted here.
    News(News),
}

/// A message with its tenant and target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    /// The tenant at whose expense it travels.
    pub tenant: TenantKey,
    /// The broker it is for.
    pub target: BrokerIndex,
    /// What it says.
    pub message: Message,
}

/// What is known of one tenant's interest.
#[derive(Debug, Default)]
pub(super) struct TenantState {
    pub(super) local: Local,
    /// Advertised subscriptions here.
    pub(super) holders: usize,
    /// The number of what was said of this broker last.
    pub(super) seq: u64,
    pub(super) view: View,
    /// Which edges are cut for the tenant, by the word of their ends; this broker's own word among them.
    pub(super) cuts: View<Cut>,
    pub(super) streams: Streams,
    /// Whether what observers of all tenants want is part of the list: while anybody follows it.
    pub(super) joined: bool,
    following: Option<Following>,
}

impl TenantState {
    /// What this broker says of itself; with number zero it has said nothing yet.
    pub(super) const fn own_presence(&self, incarnation: u64) -> Presence {
        Presence { incarnation, seq: self.seq, present: self.holders > 0 }
    }
}

/// The interest of others, while there is a publisher here.
#[derive(Debug)]
struct Following {
    since: Time,
    publishers: BTreeSet<u64>,
    /// When the last publisher went.
    idle: Time,
    origins: BTreeMap<BrokerIndex, Followed>,
}

#[derive(Debug, Default)]
struct Followed {
    pulled: Pulled,
    in_reach: bool,
    /// Whether it only observes. Nobody waits for that: observers slow nobody.
    observes: bool,
}

impl Followed {
    /// Whether the view is not whole without it.
    const fn counts(&self) -> bool {
        self.in_reach && !self.observes
    }
}

impl Control {
    /// One more subscription that others may know of.
    pub(super) fn hold(&mut self, tenant: TenantKey, interest: Interest) {
        let state = self.states.entry(tenant).or_default();
        state.holders += 1;
        let first = state.holders == 1;
        let change = state.local.add(interest);
        self.changed(tenant, change, first);
    }

    /// One subscription less.
    pub(super) fn release(&mut self, tenant: TenantKey, interest: Interest) {
        let Some(state) = self.states.get_mut(&tenant) else { return };
        state.holders = state.holders.saturating_sub(1);
        let last = state.holders == 0;
        let change = state.local.remove(interest);
        self.changed(tenant, change, last);
    }

    fn changed(&mut self, tenant: TenantKey, change: Option<Change>, flips: bool) {
        let Some(state) = self.states.get_mut(&tenant) else { return };
        if let Some(change) = change {
            state.streams.changed(change);
            self.busy.insert(tenant);
        }
        if flips {
            state.seq += 1;
            let presence = state.own_presence(self.incarnation);
            self.flood(tenant, self.own, presence.incarnation, &presence.record(), None);
        }
    }

    /// Forgets a broker that has left the bundle. Nobody is told: everybody gets the same bundle.
    pub(super) fn forget_origin(&mut self, origin: BrokerIndex) {
        self.noted.remove(&origin);
        let tenants: Vec<_> = self.states.keys().copied().collect();
        for tenant in tenants {
            let Some(state) = self.states.get_mut(&tenant) else { continue };
            state.streams.forget(origin);
            if state.cuts.forget_end(origin) {
                self.recut.insert(tenant);
            }
            if state.view.forget(origin) {
                self.refresh(tenant);
            }
        }
    }

    /// Forgets what others want of a tenant that has left the bundle. It may come back in the same life: then this broker
    /// goes on counting what it says.
    pub(super) fn forget_tenant(&mut self, tenant: TenantKey) {
        let Some(state) = self.states.get_mut(&tenant) else { return };
        *state = TenantState { seq: state.seq, ..TenantState::default() };
        for tenants in self.publishing.values_mut() {
            tenants.remove(&tenant);
        }
    }

    /// A broker lives as `incarnation`: what was heard of an older life is void. Everybody learns it in the same way.
    pub(super) fn reborn(&mut self, origin: BrokerIndex, incarnation: u64) {
        let noted = self.noted.entry(origin).or_default();
        if incarnation <= *noted {
            return;
        }
        *noted = incarnation;
        let tenants: Vec<_> = self.states.keys().copied().collect();
        tenants.into_iter().for_each(|tenant| self.reborn_in(tenant, origin, incarnation));
    }

    /// Takes note of the lives that are told with the topology.
    pub(super) fn note_lives(&mut self) {
        let lives: Vec<_> = self.topology.incarnations().collect();
        lives.into_iter().for_each(|(broker, life)| self.reborn(broker, life));
    }

    /// As [`Self::reborn`], for one tenant: what is said in its lanes means nothing to others.
    pub(super) fn reborn_in(&mut self, tenant: TenantKey, origin: BrokerIndex, incarnation: u64) {
        let Some(state) = self.states.get_mut(&tenant) else { return };
        if state.cuts.reborn_end(origin, incarnation) {
            self.recut.insert(tenant);
        }
        let view = &mut state.view;
        let before = view.of(&origin);
        if let Some(now) = view.reborn(origin, incarnation) {
            self.moved(tenant, origin, before, now);
        }
    }

    /// What a broker says of itself has changed.
    pub(super) fn moved(&mut self, tenant: TenantKey, origin: BrokerIndex, before: Option<Presence>, now: Presence) {
        let is_other_life = before.is_some_and(|before| before.incarnation < now.incarnation);
        if is_other_life && let Some(followed) = self.followed(tenant, origin) {
            let removed = followed.pulled.clear();
            self.change_table(tenant, origin, removed);
        }
        self.refresh(tenant);
    }

    fn followed(&mut self, tenant: TenantKey, origin: BrokerIndex) -> Option<&mut Followed> {
        self.states.get_mut(&tenant)?.following.as_mut()?.origins.get_mut(&origin)
    }

    /// A session here is about to publish for `tenant`, and may until it is closed.
    pub fn publish_from(&mut self, session: u64, tenant: TenantKey) {
        let now = self.now;
        let state = self.states.entry(tenant).or_default();
        let make = || Following { since: now, publishers: BTreeSet::new(), idle: now, origins: BTreeMap::new() };
        let is_new = state.following.is_none();
        state.following.get_or_insert_with(make).publishers.insert(session);
        self.publishing.entry(session).or_default().insert(tenant);
        if is_new {
            self.refresh(tenant);
        }
    }

    /// Whether who publishes for `tenant` need not wait: what brokers in reach want is known, or was waited for long
    /// enough. Nobody waits for edges that are down.
    #[must_use]
    pub fn is_ready(&self, tenant: TenantKey) -> bool {
        let following = self.states.get(&tenant).and_then(|state| state.following.as_ref());
        let heard = |f: &Following| f.origins.values().all(|o| !o.in_reach || o.pulled.is_complete());
        following.is_none_or(|f| self.now >= f.since.plus_millis(PUBLISH_WAIT_MS) || (self.is_told(tenant) && heard(f)))
    }

    /// A session has ended.
    pub(super) fn publish_no_more(&mut self, session: u64) {
        for tenant in self.publishing.remove(&session).unwrap_or_default() {
            if let Some(following) = self.states.get_mut(&tenant).and_then(|state| state.following.as_mut()) {
                following.publishers.remove(&session);
                following.idle = self.now;
            }
        }
    }

    /// Another broker, in its life `incarnation`, asks for what is wanted here.
    ///
    /// # Errors
    /// [`RecordError::Origin`] when it names this broker, [`RecordError::Full`] when too many have asked already.
    pub fn pull(
        &mut self,
        tenant: TenantKey,
        puller: BrokerIndex,
        incarnation: u64,
        pull: Pull,
    ) -> Result<(), RecordError> {
        if puller == self.own {
            return Err(RecordError::Origin);
        }
        self.reborn_in(tenant, puller, incarnation);
        let now = self.now;
        let state = self.states.entry(tenant).or_default();
        if !std::mem::replace(&mut state.joined, true) {
            // Nobody follows yet who would have to be told.
            self.observers.keys().for_each(|interest| drop(state.local.add(interest.clone())));
        }
        if !state.streams.pull(puller, pull, &state.local, now, INTEREST_PULLERS_MAX) {
            self.count_drop(tenant, Class::Ctrl, Drop::Interest);
            return Err(RecordError::Full);
        }
        self.busy.insert(tenant);
        Ok(())
    }

    /// An origin in its life `incarnation` tells what is wanted there. What was not asked for changes nothing.
    pub fn news(&mut self, tenant: TenantKey, origin: BrokerIndex, incarnation: u64, news: News) {
        let now = self.now;
        let known = self.states.get(&tenant).and_then(|state| state.view.of(&origin));
        if known.is_some_and(|known| known.incarnation > incarnation) {
            return;
        }
        self.reborn_in(tenant, origin, incarnation);
        let Some(followed) = self.followed(tenant, origin) else { return };
        let was_complete = followed.pulled.is_complete();
        let taken = followed.pulled.take(news, now, INTEREST_FILTERS_MAX);
        let is_complete = followed.pulled.is_complete();
        let Taken { changes, answer, overfull, .. } = taken;
        self.change_table(tenant, origin, changes);
        if overfull {
            self.count_drop(tenant, Class::Ctrl, Drop::Interest);
        }
        self.letters.extend(answer.map(|pull| Letter { tenant, target: origin, message: Message::Pull(pull) }));
        if was_complete != is_complete {
            self.refresh(tenant);
        }
    }

    fn change_table(&mut self, tenant: TenantKey, origin: BrokerIndex, changes: Vec<Change>) {
        if changes.is_empty() {
            return;
        }
        let Some(table) = self.table(tenant) else { return };
        for Change { add, interest } in changes {
            let Interest { filter, classes, queue, observer } = interest;
            let of = RemoteInterest { broker: origin, queue, classes, observer };
            if add { table.add_remote(&filter, &of) } else { table.remove_remote(&filter, &of) }
        }
    }

    /// Brings every tenant in line, as a broker has begun or ceased to observe all.
    pub(super) fn refresh_all(&mut self) {
        let tenants: Vec<_> = self.tenants.iter().map(|tenant| tenant.key()).collect();
        for tenant in tenants {
            self.states.entry(tenant).or_default();
            self.refresh(tenant);
        }
    }

    /// Brings what is followed, and what the table says of it, in line with who is present.
    fn refresh(&mut self, tenant: TenantKey) {
        let routes = self.routes(tenant);
        let Some(state) = self.states.get_mut(&tenant) else { return };
        let present: BTreeSet<BrokerIndex> = state.view.present().chain(self.topology.observing()).collect();
        let mut gone = Vec::new();
        // Who only observes is sent what it is known to want, and nothing on suspicion.
        let mut unsynced: Vec<BrokerIndex> = state.view.present().collect();
        if let Some(following) = &mut state.following {
            for (origin, followed) in following.origins.iter_mut().filter(|(origin, _)| !present.contains(*origin)) {
                let end = followed.pulled.end().filter(|_| followed.in_reach);
                let letter = |pull| Letter { tenant, target: *origin, message: Message::Pull(pull) };
                self.letters.extend(end.map(letter));
                gone.push((*origin, followed.pulled.clear()));
            }
            following.origins.retain(|origin, _| present.contains(origin));
            for origin in &present {
                following.origins.entry(*origin).or_insert_with(|| {
                    let in_reach = routes.hop(*origin).is_some();
                    Followed { pulled: Pulled::default(), in_reach, observes: true }
                });
            }
            for (origin, followed) in &mut following.origins {
                followed.observes = !state.view.is_present(*origin);
            }
            self.curious.insert(tenant);
            unsynced.retain(|origin| following.origins.get(origin).is_none_or(|f| !f.pulled.is_complete()));
        }
        for (origin, removed) in gone {
            self.change_table(tenant, origin, removed);
        }
        let in_sync = self.in_sync(tenant);
        let fits = |table: &Table| table.unsynced() == unsynced && table.in_sync() == in_sync;
        let pending = self.pending.get(&tenant).map(&fits);
        let published = || self.tenants.by_key(tenant).is_some_and(|t| fits(&t.table()));
        if !pending.unwrap_or_else(published)
            && let Some(table) = self.table(tenant)
        {
            table.set_unsynced(unsynced);
            table.set_in_sync(in_sync);
        }
    }

    /// The routes of `tenant` have changed: who was out of reach is asked whether anything was missed.
    pub(super) fn rerouted(&mut self, tenant: TenantKey) {
        let routes = self.routes(tenant);
        let Some(following) = self.states.get_mut(&tenant).and_then(|state| state.following.as_mut()) else { return };
        for (origin, followed) in &mut following.origins {
            let in_reach = routes.hop(*origin).is_some();
            if in_reach && !followed.in_reach {
                followed.pulled.doubt();
            }
            followed.in_reach = in_reach;
        }
        self.refresh(tenant);
    }

    /// Asks the origins of `tenant` in reach for what is due.
    fn ask(&mut self, tenant: TenantKey) {
        let (now, next, letters) = (self.now, &mut self.next_stream, &mut self.letters);
        let Some(following) = self.states.get_mut(&tenant).and_then(|state| state.following.as_mut()) else { return };
        let mut doubted = false;
        for (origin, followed) in following.origins.iter_mut().filter(|(_, followed)| followed.in_reach) {
            let was_complete = followed.pulled.is_complete();
            let pull = if followed.pulled.is_due(now) {
                *next += 1;
                Some(followed.pulled.ask(*next, now))
            } else {
                followed.pulled.tick(now)
            };
            doubted |= was_complete && !followed.pulled.is_complete();
            letters.extend(pull.map(|pull| Letter { tenant, target: *origin, message: Message::Pull(pull) }));
        }
        if doubted {
            self.refresh(tenant);
        }
    }

    /// Moves the clock on.
    pub fn at(&mut self, now: Time) {
        self.now = self.now.max(now);
    }

    /// Moves the clock on, and does what is due.
    pub fn tick(&mut self, now: Time) {
        self.at(now);
        self.miss_no_more();
        self.compare();
        let tenants: Vec<TenantKey> = self.states.keys().copied().collect();
        for tenant in tenants {
            self.ask(tenant);
            let Some(state) = self.states.get_mut(&tenant) else { continue };
            if !state.streams.is_empty() {
                state.streams.tick(now);
                self.busy.insert(tenant);
            } else if std::mem::take(&mut state.joined) {
                self.observers.keys().for_each(|interest| drop(state.local.remove(interest.clone())));
            }
            let is_idle = |f: &Following| f.publishers.is_empty() && now >= f.idle.plus_millis(PUBLISHER_IDLE_MS);
            if state.following.as_ref().is_some_and(is_idle) {
                self.follow_no_more(tenant);
            }
        }
    }

    fn follow_no_more(&mut self, tenant: TenantKey) {
        let Some(following) = self.states.get_mut(&tenant).and_then(|state| state.following.take()) else { return };
        for (origin, mut followed) in following.origins {
            let end = followed.pulled.end().filter(|_| followed.in_reach);
            self.letters.extend(end.map(|pull| Letter { tenant, target: origin, message: Message::Pull(pull) }));
            let removed = followed.pulled.clear();
            self.change_table(tenant, origin, removed);
        }
        self.refresh(tenant);
    }

    /// What is to be said to brokers of the mesh, once the tables are published.
    pub fn letters(&mut self) -> Vec<Letter> {
        for tenant in std::mem::take(&mut self.curious) {
            self.ask(tenant);
        }
        for tenant in std::mem::take(&mut self.busy) {
            let Some(state) = self.states.get_mut(&tenant) else { continue };
            let news = state.streams.send(&state.local, self.now).into_iter();
            let letter = |(target, news)| Letter { tenant, target, message: Message::News(news) };
            self.letters.extend(news.map(letter));
        }
        std::mem::take(&mut self.letters)
    }

    /// Filters of other brokers that are held for `tenant`.
    #[must_use]
    pub fn remote_filters(&self, tenant: TenantKey) -> usize {
        let following = self.states.get(&tenant).and_then(|state| state.following.as_ref());
        following.map_or(0, |f| f.origins.values().map(|followed| followed.pulled.list().len()).sum())
    }

    /// The other brokers known to have subscribers of `tenant`, in order.
    #[must_use]
    pub fn present(&self, tenant: TenantKey) -> Vec<BrokerIndex> {
        self.states.get(&tenant).map(|state| state.view.present().collect()).unwrap_or_default()
    }

    /// How many brokers follow the interest of `tenant` here.
    #[must_use]
    pub fn pullers(&self, tenant: TenantKey) -> usize {
        self.states.get(&tenant).map_or(0, |state| state.streams.len())
    }

    /// Whether the interest of others in `tenant` is followed, since somebody publishes here.
    #[must_use]
    pub fn is_following(&self, tenant: TenantKey) -> bool {
        self.states.get(&tenant).is_some_and(|state| state.following.is_some())
    }

    /// Whether everything that was asked is answered, and everything told was taken.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let follows = |f: &Following| f.origins.values().all(|o| !o.in_reach || o.pulled.is_quiet());
        let is_quiet = |s: &TenantState| s.streams.is_quiet() && s.following.as_ref().is_none_or(follows);
        self.letters.is_empty() && self.states.values().all(is_quiet)
    }

    pub(super) fn refresh_sync(&mut self) {
        let followed = self.states.iter().filter(|(_, state)| state.following.is_some());
        let tenants: Vec<TenantKey> = followed.map(|(tenant, _)| *tenant).collect();
        for tenant in tenants {
            self.refresh(tenant);
        }
    }

    pub(super) fn in_sync(&self, tenant: TenantKey) -> bool {
        self.is_told(tenant) && (self.settled || self.edges.values().all(|state| state.up))
    }

    /// Whether all who can be reached now have told all they know.
    fn is_told(&self, tenant: TenantKey) -> bool {
        let following = self.states.get(&tenant).and_then(|state| state.following.as_ref());
        let heard = self.edges.values().all(|e| !e.up || !e.edge.may_receive(tenant) || e.in_sync(tenant));
        heard && following.is_some_and(|f| f.origins.values().all(|o| !o.counts() || o.pulled.is_complete()))
    }
}
