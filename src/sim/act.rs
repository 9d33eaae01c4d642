//! What chance lets happen: clients come, ask and go; bridges break; brokers die.

use std::sync::Arc;

use glocal_core::identity::Role;
use glocal_core::name::Class;
use glocal_core::sched::Drops;
use glocal_core::time::Time;
use glocal_engine::driver::Command;
use glocal_engine::machine::Machine as _;
use glocal_engine::session::NativeSession;

use crate::bridge::{Bridge, Stage};
use crate::broker::{Todo, client_principal};
use crate::client::{Client, PAYLOAD_BYTES_MIN, Publish};
use crate::oracle::{ClientView, Subscription, Violation};
use crate::world::World;

/// Clients connected at once.
const CLIENTS_AT_ONCE: usize = 12;
/// Words of names; few, so that much matches.
const WORDS: [&str; 3] = ["a", "b", "c"];
/// Queue groups.
const GROUPS: [&str; 2] = ["g", "h"];

impl World {
    /// One thing of any kind.
    ///
    /// # Errors
    /// The first broken promise.
    pub fn act(&mut self) -> Result<(), Violation> {
        match self.random.below(100) {
            0..12 => self.connect(),
            12..15 => self.with_client(|world, number| world.disconnect(number)),
            15..35 => self.with_client(Self::subscribe),
            35..42 => self.with_client(Self::unsubscribe),
            42..46 => self.with_client(Self::ask_what_is_not_theirs),
            46..52 => self.with_client(|world, number| world.tell(number, true)),
            52..88 => self.with_client(|world, number| world.tell(number, false)),
            88..91 if self.plan.faults => self.go_wrong(),
            91..92 if self.plan.faults => {
                let node = self.random.below(self.brokers.len());
                self.kill(node);
            }
            92..94 => {
                let node = self.random.below(self.brokers.len());
                return self.restart(node);
            }
            94..97 => {
                let edge = self.random.below(self.bridges.len());
                self.dial(edge);
            }
            97 => {
                let edge = self.random.below(self.bridges.len());
                self.lighten(edge);
            }
            98 => self.settle_one(),
            99 if self.plan.liars && self.random.chance(40) => return self.lie(),
            99 if self.plan.liars => return self.forge(),
            _ => {}
        }
        Ok(())
    }

    fn with_client(&mut self, act: impl FnOnce(&mut Self, u32)) {
        let numbers: Vec<u32> = self.clients.keys().copied().collect();
        if let Some(number) = self.random.pick(&numbers).copied() {
            act(self, number);
        }
    }

    /// A client comes.
    pub fn connect(&mut self) {
        if self.clients.len() >= CLIENTS_AT_ONCE {
            return;
        }
        let node = self.random.below(self.brokers.len());
        let superuser = self.plan.superusers && self.random.chance(15);
        let tenant = if superuser { self.plan.root() } else { self.random.below(self.plan.root()) };
        self.connect_to(node, tenant, superuser);
    }

    /// A client of `tenant` comes to one broker.
    pub fn connect_to(&mut self, node: usize, tenant: usize, superuser: bool) {
        let Some(broker) = self.brokers.get(node).and_then(Option::as_ref) else { return };
        let number = self.next_client;
        self.next_client += 1;
        let role = if superuser { Role::Superuser } else { Role::Tenant };
        let Some((id, name)) = self.plan.tenants.get(tenant).zip(self.plan.nodes.get(node)) else { return };
        let Some(principal) = client_principal(id, name, number, role) else { return };
        let session = NativeSession::new(Arc::clone(&broker.shared), principal, self.random.bits(), self.now);
        let echo = self.random.chance(75);
        let text = format!("{}/agent{number}", name.region());
        let view =
            ClientView { tenant, node, superuser, echo, alive: true, text, subs: std::collections::BTreeMap::new() };
        self.oracle.clients.insert(number, view);
        self.clients.insert(number, Client::new(number, node, session, echo));
        self.tell_story(|| format!("client {number} of tenant {tenant} comes to node {node}"));
    }

    /// A client goes, with everything that is on its way to it.
    pub fn disconnect(&mut self, number: u32) {
        let Some(mut client) = self.clients.remove(&number) else { return };
        self.forget(&mut client);
        self.tell_story(|| format!("client {number} goes"));
        if let Some(broker) = self.brokers.get_mut(client.node).and_then(Option::as_mut) {
            broker.todo.push_back(Todo::Client(number, Command::CloseSession { session: client.session.id() }));
        }
    }

    fn forget(&mut self, client: &mut Client) {
        let broker = self.brokers.get(client.node).and_then(Option::as_ref);
        if let Some(broker) = broker.filter(|_| client.held) {
            client.effects.batch.flush(&broker.shared, self.now);
        }
        let tenant = self.oracle.clients.get_mut(&client.number).map_or(0, |view| {
            view.alive = false;
            view.tenant
        });
        if let Some(port) = client.session.port() {
            port.inbox().close();
            let mut drops = Drops::new();
            port.inbox().with(|lanes| lanes.clear_classes(&mut drops));
            for drop in drops.iter() {
                // Small messages leave a lane together: of those the client may have read some.
                self.faulted = true;
                *self.lost.entry((tenant, drop.class.code())).or_default() += drop.frames;
            }
        }
    }

    /// A client that was welcomed listens for answers.
    pub(crate) fn subscribe_inbox(&mut self, number: u32) -> Result<(), Violation> {
        let Some(client) = self.clients.get_mut(&number) else { return Ok(()) };
        let Some(view) = self.oracle.clients.get_mut(&number).filter(|v| !v.superuser) else { return Ok(()) };
        let filter = format!("{}*", client.inbox);
        let sub = subscription(filter.clone(), Some(view.tenant));
        let sub = Subscription { local_only: true, ..sub };
        let sid = client.subscribe(&filter, &sub, false);
        view.subs.insert(sid, sub);
        Ok(())
    }

    fn subscribe(&mut self, number: u32) {
        let mut words: Vec<&str> = (0..self.random.between(1, 3))
            .map(|_| if self.random.chance(25) { "*" } else { self.random.pick(&WORDS).copied().unwrap_or("a") })
            .collect();
        if self.random.chance(20) {
            words.pop();
            words.push(">");
        }
        let filter = words.join(".");
        let Some(view) = self.oracle.clients.get(&number) else { return };
        let (own, superuser) = (view.tenant, view.superuser);
        let mut sub = subscription(filter.clone(), Some(own));
        sub.queue = self.random.chance(30).then(|| (*self.random.pick(&GROUPS).unwrap_or(&"g")).to_owned());
        let mut text = filter.clone();
        if superuser || self.random.chance(25) {
            let tenant = if superuser { self.random.below(self.plan.tenants.len()) } else { own };
            let class = self.random.chance(50).then(|| self.class());
            sub.class = class;
            sub.qualified = true;
            sub.tenant = Some(tenant).filter(|_| !(superuser && self.random.chance(40)));
            let id = sub.tenant.and_then(|t| self.plan.tenants.get(t)).map_or("*", |t| t.as_str());
            text = format!("T.{id}.{}.{filter}", class.map_or("*", Class::as_str));
        }
        // At home a superuser is an agent like any other; elsewhere, and over all tenants, it observes.
        sub.observer = superuser && sub.tenant != Some(own);
        self.subscribe_to(number, &text, sub);
    }

    /// A client subscribes by `text`, which means `sub`.
    pub fn subscribe_to(&mut self, number: u32, text: &str, sub: Subscription) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        let sid = client.subscribe(text, &sub, false);
        if let Some(view) = self.oracle.clients.get_mut(&number) {
            view.subs.insert(sid, sub);
        }
        self.tell_story(|| format!("client {number} subscribes {sid} '{text}'"));
    }

    fn unsubscribe(&mut self, number: u32) {
        let Some(view) = self.oracle.clients.get(&number) else { return };
        let live: Vec<u32> =
            view.subs.iter().filter(|(_, s)| s.is_live() && !s.local_only).map(|(sid, _)| *sid).collect();
        let Some(sid) = self.random.pick(&live).copied() else { return };
        let max = self.random.chance(30).then(|| self.random.between(1, 6) as u64);
        self.end(number, sid, max);
    }

    fn end(&mut self, number: u32, sid: u32, max: Option<u64>) {
        let Some(view) = self.oracle.clients.get_mut(&number) else { return };
        let Some((client, sub)) = self.clients.get_mut(&number).zip(view.subs.get_mut(&sid)) else { return };
        client.unsubscribe(sid, max);
        match max {
            Some(_) => sub.max_asked = true,
            None => sub.ended = true,
        }
        self.tell_story(|| format!("client {number} ends subscription {sid}, after {max:?}"));
    }

    /// Ends the subscriptions whose end depends on how many messages come.
    pub fn end_limited(&mut self) {
        let limited: Vec<(u32, u32)> = self
            .oracle
            .clients
            .iter()
            .flat_map(|(n, v)| v.subs.iter().filter(|(_, s)| s.max_asked && !s.ended).map(|(sid, _)| (*n, *sid)))
            .collect();
        limited.into_iter().for_each(|(number, sid)| self.end(number, sid, None));
    }

    fn class(&mut self) -> Class {
        self.random.pick(&Class::ALL).copied().unwrap_or(Class::Live)
    }

    fn name(&mut self) -> String {
        let words: Vec<&str> =
            (0..self.random.between(1, 3)).map(|_| self.random.pick(&WORDS).copied().unwrap_or("a")).collect();
        words.join(".")
    }

    /// A client publishes, perhaps a request.
    pub fn tell(&mut self, number: u32, request: bool) {
        let raw = self.name();
        let class = self.class();
        let Some(view) = self.oracle.clients.get(&number) else { return };
        let (own, superuser) = (view.tenant, view.superuser);
        let tenant = if superuser { self.random.below(self.plan.tenants.len()) } else { own };
        let qualified = tenant != own || self.random.chance(20);
        let name = match self.plan.tenants.get(tenant) {
            Some(id) if qualified => format!("T.{id}.{}.{raw}", class.as_str()),
            _ => raw.clone(),
        };
        let inbox = self.clients.get(&number).map_or("", |c| c.inbox.as_str());
        let reply = if request && !superuser && !inbox.is_empty() {
            format!("{inbox}{:x}", self.random.bits())
        } else {
            String::new()
        };
        let payload_bytes = match self.random.below(20) {
            0 => self.random.between(4_000, 60_000),
            1..4 => self.random.between(200, 4_000),
            _ => self.random.between(PAYLOAD_BYTES_MIN, 200),
        };
        let numbered = self.random.chance(50);
        let publish = Publish { name: &name, class, reply: &reply, payload_bytes, numbered };
        self.publish(number, &publish, tenant, &raw, false, None);
    }

    /// A client tries what policy must refuse.
    fn ask_what_is_not_theirs(&mut self, number: u32) {
        let Some(view) = self.oracle.clients.get(&number) else { return };
        if view.superuser {
            return;
        }
        let own = view.tenant;
        let other = (own + 1 + self.random.below(self.plan.tenants.len() - 1)) % self.plan.tenants.len();
        let Some((own_id, id)) = self.plan.tenants.get(own).zip(self.plan.tenants.get(other)) else { return };
        let raw = "a";
        if self.random.chance(50) {
            let name = match self.random.below(3) {
                0 => format!("T.{id}.live.{raw}"),
                1 => format!("T.{own_id}.live.a,T.{id}.live.{raw}"),
                _ => format!("T.{own_id}.ctrl.advisory.x"),
            };
            let publish = Publish { name: &name, class: Class::Live, reply: "", payload_bytes: 30, numbered: true };
            self.publish(number, &publish, other, raw, true, None);
        } else {
            let text = match self.random.below(3) {
                0 => format!("T.{id}.>"),
                1 => "T.*.>".to_owned(),
                _ => format!("T.{own_id}.live.a,T.{id}.live.a"),
            };
            if let Some(client) = self.clients.get_mut(&number) {
                client.subscribe(&text, &subscription(String::new(), None), true);
            }
        }
    }

    /// A bridge breaks; each end learns it in its own time.
    pub fn cut(&mut self, edge: usize) {
        let delays = [self.random.between(1, 200), self.random.between(1, 200)];
        let Some(bridge) = self.bridges.get_mut(edge).and_then(Option::as_mut).filter(|b| !b.broken) else { return };
        bridge.broken = true;
        let number = bridge.number;
        self.faulted = true;
        self.stats.cuts += 1;
        for (end, delay) in bridge.ends.iter_mut().zip(delays) {
            end.lose(self.now.plus_millis(delay as u64));
        }
        self.tell_story(|| format!("bridge {number} of edge {edge} breaks"));
    }

    /// A broker dies, with its sessions and its ends of bridges.
    pub fn kill(&mut self, node: usize) {
        if self.brokers.get(node).is_none_or(Option::is_none) {
            return;
        }
        self.faulted = true;
        self.stats.crashes += 1;
        // Half of them without a word: neighbours learn it from their own probes.
        let silently = self.random.chance(50);
        self.tell_story(|| format!("node {node} dies, silently: {silently}"));
        let here: Vec<u32> = self.clients.iter().filter(|(_, c)| c.node == node).map(|(n, _)| *n).collect();
        for number in here {
            if let Some(mut client) = self.clients.remove(&number) {
                self.forget(&mut client);
            }
        }
        for edge in 0..self.bridges.len() {
            let Some(side) = self.plan.edges.get(edge).and_then(|e| e.ends.iter().position(|n| *n == node)) else {
                continue;
            };
            if !silently {
                self.cut(edge);
            }
            if let Some(bridge) = self.bridges.get_mut(edge).and_then(Option::as_mut) {
                bridge.broken = true;
                bridge.pair(side).0.lose(Time(0));
                bridge.pair(side).0.stage = Stage::Over;
            }
        }
        if let Some(broker) = self.brokers.get_mut(node).and_then(Option::take) {
            for link in broker.shared.links().iter() {
                link.inbox().with(|lanes| lanes.clear(&broker.tenants));
            }
        }
    }

    /// Somebody dials an edge that has no bridge, or a broken one that not every end has given up.
    pub fn dial(&mut self, edge: usize) {
        if self.bridges.get(edge).and_then(Option::as_ref).is_some_and(|bridge| !bridge.broken) {
            return;
        }
        let Some(planned) = self.plan.edges.get(edge).cloned() else { return };
        let runs = |node: &usize| {
            self.brokers.get(*node).is_some_and(Option::is_some) && !self.weather.is_frozen(*node, self.now)
        };
        let alive = planned.ends.iter().all(runs) && !(0..2).any(|side| self.weather.is_dark(edge, side));
        if !alive {
            return;
        }
        self.bury(edge);
        let number = self.next_bridge;
        self.next_bridge += 1;
        let mut up = || self.now.plus_millis(self.random.between(1, 40) as u64);
        let bridge = Bridge::new(number, &self.plan, &planned, [up(), up()]);
        if let Some(slot) = self.bridges.get_mut(edge) {
            *slot = Some(bridge);
        }
    }

    /// The edges of one broker have had their time.
    fn settle_one(&mut self) {
        let node = self.random.below(self.brokers.len());
        if let Some(broker) = self.brokers.get_mut(node).and_then(Option::as_mut) {
            broker.todo.push_back(Todo::Client(0, Command::Settle));
        }
    }
}

/// A plain subscription.
#[must_use]
pub const fn subscription(filter: String, tenant: Option<usize>) -> Subscription {
    Subscription {
        filter,
        class: None,
        tenant,
        qualified: false,
        queue: None,
        local_only: false,
        max_asked: false,
        ended: false,
        observer: false,
        delivered: 0,
        settled: false,
    }
}
