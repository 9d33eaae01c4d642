//! What must hold when the world is at rest: every table tells the truth, nothing is queued, nothing vanished.

use std::collections::BTreeSet;
use std::sync::Arc;

use glocal_core::count::Drop as DropReason;
use glocal_core::interest::Interest;
use glocal_core::name::{Class, ClassSet, QueueGroup, RawFilter, RawName};
use glocal_core::routes::BrokerIndex;
use glocal_core::sched::Lanes as _;
use glocal_core::tenant::Tenant;
use glocal_engine::driver::{Command, FOLLOW_MS};

use crate::broker::{Broker, Todo};
use crate::oracle::{Subscription, Violation, ensure};
use crate::world::World;

/// Rounds after which a world that is left alone must have come to rest.
const ROUNDS_TO_REST: usize = 4_000;
/// Rounds after which time passes faster, and by how much, in milliseconds.
const ROUNDS_OF_HASTE: usize = 500;
const PATIENCE_MS: u64 = 20;
/// Names asked of every table.
const PROBES: [&str; 9] = ["a", "b", "a.a", "a.b", "b.a", "c.b", "a.b.c", "c.c.c", "b.b.a"];

impl World {
    /// Heals everything and waits until nothing moves.
    ///
    /// # Errors
    /// When it never comes to rest, or a promise breaks on the way.
    pub fn rest(&mut self) -> Result<(), Violation> {
        self.heal();
        for node in 0..self.brokers.len() {
            self.restart(node)?;
        }
        self.end_limited();
        for broker in self.brokers.iter_mut().flatten() {
            broker.todo.push_back(Todo::Client(0, Command::Settle));
        }
        self.learn()
    }

    /// Waits until nothing moves.
    ///
    /// # Errors
    /// When it never comes to rest, or a promise breaks on the way.
    pub fn drain(&mut self) -> Result<(), Violation> {
        for round in 0..ROUNDS_TO_REST {
            if round > ROUNDS_OF_HASTE {
                // What is left waits for its time, such as what lanes had no room for.
                self.sleep(self.now.plus_millis(PATIENCE_MS));
            }
            // Also after the last fault an end may find its peer to have been silent for too long.
            (0..self.bridges.len()).for_each(|edge| self.dial(edge));
            self.pump(true)?;
            for broker in self.brokers.iter_mut().flatten() {
                broker.driver.pump(self.now);
            }
            if self.is_idle() {
                let is_quiet = |broker: &Broker| {
                    broker.driver.control().is_quiet()
                        && broker.tenants.iter().all(|tenant| tenant.tallies().is_settled())
                };
                if self.brokers.iter().flatten().all(is_quiet) {
                    return Ok(());
                }
                // Nothing moves but clocks: what was lost is said again, or asked for, in its time.
                self.sleep(self.now.plus_millis(FOLLOW_MS));
            }
            if let Some(next) = crate::fault::next_arrival(self) {
                self.now = self.now.max(next);
            }
        }
        let what = self.unrest().unwrap_or_else(|| "brokers want what others have not told".to_owned());
        let kept = |(node, broker): (usize, &Option<Broker>)| {
            let text = broker.as_ref().filter(|b| !b.shared.reliable().is_idle())?.shared.reliable().to_string();
            Some(format!("; node {node} keeps messages: {text}"))
        };
        let kept: String = self.brokers.iter().enumerate().filter_map(kept).collect();
        Err(Violation(format!("the world does not come to rest: {what}{kept}")))
    }

    fn is_idle(&self) -> bool {
        self.unrest().is_none()
    }

    /// What has not come to rest.
    fn unrest(&self) -> Option<String> {
        for (node, broker) in self.brokers.iter().enumerate() {
            let Some(broker) = broker else { return Some(format!("node {node} is dead")) };
            let links = broker.shared.links();
            let lanes = links.iter();
            let queued = lanes.map(|link| link.inbox().with(|lanes| lanes.sched().backlog_bytes())).sum::<usize>();
            let told = links.iter().all(|link| link.outbox().with(|outbox| outbox.is_empty()));
            let waits = [
                (!broker.todo.is_empty(), "has commands to take"),
                (broker.driver.is_waiting() || !told, "has something to tell its neighbours"),
                (queued > 0, "has messages in its lanes"),
                (!broker.shared.reliable().is_idle(), "waits for acknowledgements, or for what is missing"),
            ];
            if let Some((_, what)) = waits.iter().find(|(waits, _)| *waits) {
                return Some(format!("node {node} {what}"));
            }
        }
        let still = |bridge: &Option<crate::bridge::Bridge>| bridge.as_ref().is_some_and(|bridge| bridge.is_quiet());
        if let Some(edge) = self.bridges.iter().position(|bridge| !still(bridge)) {
            return Some(format!("edge {edge} is not up, or something is on its way over it"));
        }
        let client = self.clients.values().find(|client| !client.is_quiet());
        client.map(|client| format!("client {} waits", client.number))
    }

    /// Checks everything that must hold at rest.
    ///
    /// # Errors
    /// The first promise that is broken.
    pub fn check(&self) -> Result<(), Violation> {
        for client in self.clients.values() {
            client.check_answers()?;
        }
        for node in 0..self.brokers.len() {
            for tenant in 0..self.plan.tenants.len() {
                self.check_routes(node, tenant)?;
                self.check_table(node, tenant)?;
            }
            self.check_observers(node)?;
            self.check_bounds(node)?;
        }
        self.check_roots()?;
        self.check_tallies()?;
        self.check_account()
    }

    /// Neighbours know the same of who is present, and can tell so by one number.
    fn check_roots(&self) -> Result<(), Violation> {
        for (number, edge) in self.plan.edges.iter().enumerate() {
            let root = |node: usize| {
                let broker = self.brokers.get(node)?.as_ref()?;
                Some(broker.driver.control().presence_root(broker.key(number)?))
            };
            let [a, b] = edge.ends;
            ensure!(root(a) == root(b), "edge {number}: nodes {a} and {b} hold {:?} and {:?}", root(a), root(b));
        }
        Ok(())
    }

    /// Of every copy that nobody acknowledges the broker at which it entered knows whether it arrived, and says so once.
    fn check_tallies(&self) -> Result<(), Violation> {
        let live = || self.brokers.iter().enumerate().filter_map(|(node, broker)| Some((node, broker.as_ref()?)));
        for ((node, broker), tenant) in live().flat_map(|from| self.plan.tenants.iter().map(move |id| (from, id))) {
            let Some(held) = broker.tenants.by_id(tenant.as_str()) else { continue };
            for class in glocal_core::tally::CLASSES {
                let mut lost = 0;
                for (far, other) in live().filter(|(far, _)| *far != node) {
                    let index = |node| BrokerIndex(u32::try_from(node).unwrap_or(u32::MAX));
                    let of = |sent: &mut std::collections::BTreeMap<_, glocal_core::tally::Sent>| {
                        sent.get(&index(far)).map(glocal_core::tally::Sent::account)
                    };
                    let Some((copies, arrived, missing)) = held.tallies().sent(class, of).flatten() else { continue };
                    lost += missing;
                    let place = format!("node {node}, {tenant}, {}, to node {far}", class.as_str());
                    ensure!(copies <= arrived + missing, "{place}: {copies} copies, {arrived} arrived, {missing} lost");
                    let exact = self.lives.get(far) == Some(&1);
                    let there = other
                        .tenants
                        .by_id(tenant.as_str())
                        .map(|tenant| tenant.tallies().received(class, index(node), broker.shared.incarnation()));
                    ensure!(!exact || there == Some(arrived), "{place}: {arrived} arrived, {there:?} say they");
                    ensure!(
                        !exact || copies == arrived + missing,
                        "{place}: {copies} copies, {arrived} arrived, {missing} lost"
                    );
                }
                let counted = held.counters().class(class).lost.value();
                ensure!(lost == counted, "node {node}, {tenant}, {}: {lost} lost, {counted} counted", class.as_str());
            }
        }
        Ok(())
    }

    /// Every broker knows which others observe all tenants.
    fn check_observers(&self, node: usize) -> Result<(), Violation> {
        let Some(broker) = self.brokers.get(node).and_then(Option::as_ref) else { return Ok(()) };
        let observes = |far: usize| {
            let here = self.oracle.clients.values().filter(|v| v.alive && v.node == far);
            here.flat_map(|v| v.subs.values()).any(|s| s.is_live() && s.tenant.is_none())
        };
        let expected: Vec<BrokerIndex> = (0..self.brokers.len())
            .filter(|far| *far != node && observes(*far))
            .filter_map(|far| u32::try_from(far).map(BrokerIndex).ok())
            .collect();
        let known: Vec<BrokerIndex> = broker.driver.control().topology().observing().collect();
        ensure!(known == expected, "node {node}: {known:?} are known to observe, {expected:?} do");
        Ok(())
    }

    /// Live subscriptions of one broker that reach one tenant.
    fn subs(&self, node: usize, tenant: usize) -> Vec<(u32, &Subscription)> {
        let clients = self.oracle.clients.iter().filter(move |(_, v)| v.alive && v.node == node);
        clients
            .flat_map(|(number, v)| v.subs.values().map(move |s| (*number, s)))
            .filter(|(_, s)| s.is_live() && s.tenant.is_none_or(|t| t == tenant))
            .collect()
    }

    fn check_table(&self, node: usize, tenant: usize) -> Result<(), Violation> {
        let Some(broker) = self.brokers.get(node).and_then(Option::as_ref) else { return Ok(()) };
        let Some(held) = self.plan.tenants.get(tenant).and_then(|id| broker.tenants.by_id(id.as_str())) else {
            return Ok(());
        };
        let table = held.table();
        let place = format!("node {node}, tenant {tenant}");
        let control = broker.driver.control();
        let follows = control.is_following(held.key());
        ensure!(table.in_sync() == follows, "{place}: in sync {}, followed {follows}", table.in_sync());
        let hops = self.plan.distances(node, tenant);
        let mut filters: BTreeSet<&str> = self.subs(node, tenant).iter().map(|(_, s)| s.filter.as_str()).collect();
        let (mut remote, mut present) = (0, Vec::new());
        for far in (0..self.brokers.len()).filter(|far| *far != node && hops.get(*far).is_some_and(Option::is_some)) {
            let told: Vec<_> = self.subs(far, tenant).into_iter().filter(|(_, s)| !s.local_only).collect();
            // Observers of all tenants are told of as one, whatever the tenant.
            let is_here = told.iter().any(|(_, s)| s.tenant.is_some());
            present.extend(is_here.then(|| u32::try_from(far).map(BrokerIndex).ok()).flatten());
            if !follows {
                continue;
            }
            filters.extend(told.iter().map(|(_, s)| s.filter.as_str()));
            remote += told.iter().filter_map(|(_, s)| wish(s)).collect::<BTreeSet<_>>().len();
        }
        let known = control.present(held.key());
        ensure!(known == present, "{place}: {known:?} are known to be present, {present:?} are");
        let known = control.remote_filters(held.key());
        ensure!(known == remote, "{place}: {known} filters of others are known, they have {remote}");
        ensure!(
            table.filters() == filters.len(),
            "{place}: the table has {} filters, {} are wanted: {filters:?}",
            table.filters(),
            filters.len()
        );
        for probe in PROBES {
            for class in [Class::Live, Class::Bulk] {
                self.probe(node, tenant, held, class, probe)?;
            }
        }
        Ok(())
    }

    fn probe(&self, node: usize, tenant: usize, held: &Arc<Tenant>, class: Class, name: &str) -> Result<(), Violation> {
        let Ok(raw) = RawName::parse(name.as_bytes()) else { return Ok(()) };
        let found = held.table().find(class, raw, &held.section());
        let hops = self.plan.distances(node, tenant);
        let (mut plain, mut members) = (BTreeSet::new(), BTreeSet::new());
        for far in (0..self.brokers.len()).filter(|far| *far != node && hops.get(*far).is_some_and(Option::is_some)) {
            for (_, sub) in self.subs(far, tenant) {
                if !sub.local_only && sub.wants(tenant, class, name) {
                    match sub.queue.clone().filter(|_| !sub.observer) {
                        Some(group) => members.insert((group, far)),
                        None => plain.insert(far),
                    };
                }
            }
        }
        let number = |index: &BrokerIndex| usize::try_from(index.0).unwrap_or(usize::MAX);
        let told: BTreeSet<usize> = found.edges.iter().flat_map(|e| e.brokers.iter().map(number)).collect();
        let place = format!("node {node}, tenant {tenant}, {}.{name}", class.as_str());
        let control = self.brokers.get(node).and_then(Option::as_ref).map(|broker| broker.driver.control());
        if let Some(control) = control.filter(|control| !control.is_following(held.key())) {
            // Without a publisher here, whoever is present decides.
            let present: BTreeSet<usize> = control.present(held.key()).iter().map(number).collect();
            ensure!(told == present, "{place}: goes to {told:?}, present are {present:?}");
            return Ok(());
        }
        ensure!(told == plain, "{place}: goes to {told:?}, wanted by {plain:?}");
        let groups: BTreeSet<(String, usize)> = found
            .groups
            .iter()
            .flat_map(|g| g.remotes.iter().map(|b| (g.name.as_str().to_owned(), number(b))))
            .collect();
        ensure!(groups == members, "{place}: groups are {groups:?}, should be {members:?}");
        let here = self.subs(node, tenant).into_iter().filter(|(_, s)| s.wants(tenant, class, name)).count();
        let locals = found.ports.iter().map(|p| p.subs.len()).sum::<usize>()
            + found.groups.iter().map(|g| g.locals.len()).sum::<usize>();
        ensure!(here == locals, "{place}: {locals} subscriptions here, should be {here}");
        Ok(())
    }

    fn check_bounds(&self, node: usize) -> Result<(), Violation> {
        let Some(broker) = self.brokers.get(node).and_then(Option::as_ref) else { return Ok(()) };
        let subscriptions: usize = self
            .oracle
            .clients
            .values()
            .filter(|v| v.alive && v.node == node)
            .map(|v| v.subs.values().filter(|s| s.is_live()).count())
            .sum();
        let held = broker.driver.control().subscriptions();
        ensure!(held == subscriptions, "node {node} holds {held} subscriptions of {subscriptions}");
        for link in broker.shared.links().iter() {
            let entries = link.inbox().with(|lanes| lanes.sched().entries());
            ensure!(entries == 0, "node {node} keeps {entries} empty lanes");
            let refused = link.edge().refused.value();
            ensure!(refused == 0 || self.plan.liars, "node {node} refused {refused} things of honest peers");
        }
        for bridge in self.bridges.iter().flatten() {
            for end in &bridge.ends {
                let most = self.plan.tenants.len() * Class::ALL.len();
                ensure!(end.writer.lanes() <= most, "bridge {} has too many lanes", bridge.number);
                ensure!(end.writer.lanes() == end.wrote.lanes(), "bridge {}: lanes were forgotten", bridge.number);
            }
        }
        Ok(())
    }

    /// Every message copy was received, or counted as dropped, or was lost with somebody who broke.
    fn check_account(&self) -> Result<(), Violation> {
        let mut totals = [(0u64, 0u64); 4];
        for (tenant, id) in self.plan.tenants.iter().enumerate() {
            for class in Class::ALL {
                let (mut made, mut met) = (0, 0);
                for counters in self.counters.iter().filter_map(|tenants| tenants.by_id(id.as_str())) {
                    let counters = counters.counters().class(class);
                    made += counters.delivered.value() + counters.relayed_out.value();
                    met += counters.relayed_in.value();
                    met += [DropReason::LaneFull, DropReason::Aged, DropReason::Gone, DropReason::EdgeTenant]
                        .map(|reason| counters.drops(reason))
                        .iter()
                        .sum::<u64>();
                }
                let key = (tenant, class.code());
                met += self.received.get(&key).copied().unwrap_or(0) + self.lost.get(&key).copied().unwrap_or(0);
                let what = format!("tenant {tenant}, {}: {made} copies, {met} accounted for", class.as_str());
                let exact = !self.faulted && !self.plan.liars;
                // A superuser's lanes hold messages of many tenants, so that their drops cannot be told apart.
                ensure!(made <= met || self.plan.superusers, "lost without a trace: {what}");
                ensure!(made == met || !exact || self.plan.superusers, "counted too often: {what}");
                if let Some((all_made, all_met)) = totals.get_mut(class.index()) {
                    *all_made += made;
                    *all_met += met;
                }
            }
        }
        for (class, (made, met)) in Class::ALL.iter().zip(totals) {
            ensure!(made <= met, "lost without a trace: {}: {made} copies, {met} accounted for", class.as_str());
        }
        Ok(())
    }
}

/// A subscription as other brokers are told of it.
fn wish(sub: &Subscription) -> Option<Interest> {
    Some(Interest {
        filter: RawFilter::parse(sub.filter.as_bytes()).ok()?,
        classes: sub.class.map_or(ClassSet::ALL, ClassSet::one),
        queue: sub.queue.as_deref().filter(|_| !sub.observer).map(QueueGroup::parse).transpose().ok()?,
        observer: sub.observer,
    })
}
