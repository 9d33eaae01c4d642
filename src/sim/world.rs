//! The world: brokers, bridges and clients under one clock, moved on by one source of chance.
//!
//! Nothing here is concurrent: what threads would do in any order is done in the order the seed draws. Time is a number.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use glocal_core::name::{Class, RawName};
use glocal_core::tenant::Tenants;
use glocal_core::time::Time;
use glocal_core::topology::{LinkError, LinkMessage};
use glocal_engine::batch::Batch;
use glocal_engine::driver::{Command, FOLLOW_MS, Outcome};
use glocal_engine::lane_reader::{Arrivals, Carries, Incoming};
use glocal_engine::machine::Machine as _;
use glocal_engine::reliable;
use glocal_engine::session::take_replies;

use crate::bridge::{Bridge, Stage};
use crate::broker::{Broker, Todo, node_principal};
use crate::client::{Client, Got, Publish};
use crate::fault::Weather;
use crate::oracle::{Delivered, Entered, Message, MessageId, Oracle, Violation, ensure};
use crate::plan::Plan;
use crate::random::{Random, Trace};
use crate::tap::Tally;

/// What a world did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Messages published.
    pub published: u64,
    /// Messages received by clients.
    pub received: u64,
    /// Bytes that crossed bridges.
    pub wire_bytes: u64,
    /// Bridges that broke.
    pub cuts: u64,
    /// Brokers that died.
    pub crashes: u64,
    /// Edges that fell silent, and brokers that stood still.
    pub silences: u64,
    /// Attempts of liars.
    pub lies: u64,
    /// Deliveries that had to happen whatever broke, and did.
    pub kept: u64,
}

/// Everything there is.
#[derive(Debug)]
pub struct World {
    /// What it was drawn as.
    pub plan: Plan,
    /// Chance.
    pub random: Random,
    /// The clock.
    pub now: Time,
    /// The hash of what happened.
    pub trace: Trace,
    /// What must hold.
    pub oracle: Oracle,
    /// Brokers by number; `None` while dead.
    pub brokers: Vec<Option<Broker>>,
    /// Their incarnations.
    pub lives: Vec<u64>,
    /// Bridges by edge; `None` while there is none.
    pub bridges: Vec<Option<Bridge>>,
    /// Connected clients.
    pub clients: BTreeMap<u32, Client>,
    /// Counters of every life of every broker.
    pub counters: Vec<Arc<Tenants>>,
    /// Messages that went down with a broker, a bridge or a client.
    pub lost: Tally,
    /// Messages that clients received.
    pub received: Tally,
    /// Link state that was seen on control streams, where peers lie.
    pub heard: Vec<LinkMessage>,
    /// What is wrong now.
    pub weather: Weather,
    /// Whether anything broke yet.
    pub faulted: bool,
    /// What it did.
    pub stats: Stats,
    /// What happened, in words, where it is wanted.
    pub story: Option<Vec<String>>,
    pub(crate) next_client: u32,
    pub(crate) next_bridge: u64,
    pub(crate) next_tick: Time,
}

impl World {
    /// The world of a seed, its bridges down and nobody connected.
    ///
    /// # Errors
    /// When it cannot be built.
    pub fn new(seed: u64) -> Result<Self, Violation> {
        let mut random = Random::new(seed);
        let plan = Plan::draw(&mut random);
        Self::of(plan, random)
    }

    /// The world of a plan.
    ///
    /// # Errors
    /// When it cannot be built.
    pub fn of(plan: Plan, random: Random) -> Result<Self, Violation> {
        let mut world = Self {
            random,
            now: Time::from_millis(1),
            trace: Trace::default(),
            oracle: Oracle::default(),
            brokers: Vec::new(),
            lives: vec![0; plan.nodes.len()],
            bridges: plan.edges.iter().map(|_| None).collect(),
            clients: BTreeMap::new(),
            counters: Vec::new(),
            lost: Tally::new(),
            received: Tally::new(),
            heard: Vec::new(),
            weather: Weather::fair(&plan),
            faulted: false,
            stats: Stats::default(),
            story: None,
            next_client: 1,
            next_bridge: 1,
            next_tick: Time::from_millis(1),
            plan,
        };
        world.brokers.resize_with(world.plan.nodes.len(), || None);
        for node in 0..world.plan.nodes.len() {
            world.restart(node)?;
        }
        Ok(world)
    }

    /// Adds a line to the story, where it is wanted.
    pub fn tell_story(&mut self, line: impl FnOnce() -> String) {
        if let Some(story) = &mut self.story {
            story.push(format!("{:>9.3} ms  {}", self.now.0 as f64 / 1000.0, line()));
        }
    }

    /// Starts a dead broker in a new life.
    ///
    /// # Errors
    /// When it cannot be built.
    pub fn restart(&mut self, node: usize) -> Result<(), Violation> {
        if self.brokers.get(node).is_none_or(Option::is_some) {
            return Ok(());
        }
        let life = self.lives.get_mut(node).map_or(0, |life| {
            *life += 1;
            *life
        });
        self.tell_story(|| format!("node {node} starts its life {life}"));
        let broker = Broker::start(&self.plan, node, life)?;
        self.counters.push(Arc::clone(&broker.tenants));
        if let Some(slot) = self.brokers.get_mut(node) {
            *slot = Some(broker);
        }
        Ok(())
    }

    /// Moves everything on a little: in a hurry, all there is; else what chance picks.
    ///
    /// # Errors
    /// The first broken promise.
    pub fn pump(&mut self, hurry: bool) -> Result<(), Violation> {
        self.now = self.now.plus_micros(self.random.below(self.weather.pace_micros) as u64);
        self.tick();
        for number in self.clients.keys().copied().collect::<Vec<_>>() {
            let node = self.clients.get(&number).map_or(0, |client| client.node);
            if (hurry || self.random.chance(60)) && !self.weather.is_frozen(node, self.now) {
                self.move_client(number, hurry)?;
            }
        }
        for node in 0..self.brokers.len() {
            if (hurry || self.random.chance(60)) && !self.weather.is_frozen(node, self.now) {
                let most = if hurry { usize::MAX } else { self.random.between(1, 6) };
                self.drive(node, most)?;
                self.look_after(node);
            }
        }
        for edge in 0..self.bridges.len() {
            if hurry || self.random.chance(70) {
                self.move_bridge(edge, hurry)?;
            }
        }
        Ok(())
    }

    fn move_client(&mut self, number: u32, hurry: bool) -> Result<(), Violation> {
        let Some(client) = self.clients.get_mut(&number) else { return Ok(()) };
        let most = if hurry { usize::MAX } else { self.random.between(1, 4_000) };
        let arriving = client.written.split_to(client.written.len().min(most));
        client.arrived.extend_from_slice(&arriving);
        self.serve(number, hurry)?;
        let most = if hurry { usize::MAX } else { self.random.between(1, 20_000) };
        let Some(client) = self.clients.get_mut(&number) else { return Ok(()) };
        let (got, drops) = client.read(most, self.now)?;
        let tenant = self.oracle.clients.get(&number).map_or(0, |view| view.tenant);
        for drop in drops.iter() {
            *self.lost.entry((tenant, drop.class.code())).or_default() += drop.frames;
        }
        got.into_iter().try_for_each(|got| self.receive(number, got))
    }

    /// Lets the session of a client read, unless it must wait.
    fn serve(&mut self, number: u32, hurry: bool) -> Result<(), Violation> {
        let Some(client) = self.clients.get_mut(&number) else { return Ok(()) };
        let Some(broker) = self.brokers.get_mut(client.node).and_then(Option::as_mut) else { return Ok(()) };
        if std::mem::take(&mut client.held) {
            client.effects.batch.flush(&broker.shared, self.now);
        }
        if client.waiting > 0 || client.arrived.is_empty() {
            return Ok(());
        }
        let used = client
            .session
            .on_bytes(&client.arrived, self.now, &mut client.effects)
            .map_err(|end| Violation(format!("the session of client {number} ended: {end}")))?;
        let _ = client.arrived.split_to(used);
        client.read += used as u64;
        while client.unread.front().is_some_and(|(end, _)| *end <= client.read) {
            let Some((_, id)) = client.unread.pop_front() else { break };
            if let Some(message) = self.oracle.messages.get_mut(&id) {
                message.entered = enter(&self.plan, broker, message, &self.lives);
            }
        }
        self.trace.number(used as u64);
        if let (Some(replies), Some(port)) = (take_replies(&mut client.effects), client.session.port()) {
            let _ = port.inbox().push_batch(|lanes| lanes.push_control(replies));
        }
        client.effects.denials.clear();
        client.effects.allowances.clear();
        client.waiting += client.effects.commands.len();
        broker.todo.extend(client.effects.commands.drain(..).map(|command| Todo::Client(number, command)));
        if !hurry && self.random.chance(10) {
            client.held = true;
        } else {
            client.effects.batch.flush(&broker.shared, self.now);
        }
        Ok(())
    }

    fn receive(&mut self, number: u32, got: Got) -> Result<(), Violation> {
        use glocal_wire::control::Control;
        let Some(client) = self.clients.get_mut(&number) else { return Ok(()) };
        let known = match &got {
            Got::Control(Control::Welcome(welcome)) => {
                client.inbox.clone_from(&welcome.inbox);
                return self.subscribe_inbox(number);
            }
            Got::Control(Control::Subscribed(body)) => client.unconfirmed.remove(&body.sid),
            Got::Control(Control::Ack(body)) => client.acks.remove(&body.seq),
            Got::Control(Control::Denied(body)) => client.refusals.remove(&(body.access, body.id)),
            Got::Control(Control::NoResponders(body)) => client.unanswered.insert(body.seq),
            Got::Control(_) => false,
            Got::Message { .. } => return self.receive_message(number, got),
        };
        ensure!(known, "client {number} got an answer to nothing: {got:?}");
        Ok(())
    }

    fn receive_message(&mut self, number: u32, got: Got) -> Result<(), Violation> {
        let Got::Message { name, sids, sender, class, reply, id, payload_bytes, redelivered } = got else {
            return Ok(());
        };
        let Some(id) = id else { return Err(Violation(format!("client {number} got a payload that nobody sent"))) };
        let delivered = Delivered {
            client: number,
            name: &name,
            sids: &sids,
            sender: &sender,
            class,
            id,
            payload_bytes,
            redelivered,
        };
        self.oracle.deliver(&self.plan, &delivered)?;
        self.trace.number(u64::from(number) << 32 | u64::from(id.0));
        self.trace.number(u64::from(id.2) << 8 | u64::from(id.1));
        self.stats.received += 1;
        let tenant = self.oracle.messages.get(&id).map_or(0, |m| m.tenant);
        *self.received.entry((tenant, class.code())).or_default() += 1;
        let superuser = self.oracle.clients.get(&number).is_none_or(|v| v.superuser);
        if !reply.is_empty() && !superuser {
            let asker = self.oracle.clients.get(&id.0).map(|v| v.node);
            self.publish(
                number,
                &Publish { name: &reply, class: Class::Live, reply: "", payload_bytes: 20, numbered: false },
                tenant,
                &reply,
                false,
                asker,
            );
        }
        Ok(())
    }

    /// Publishes in the name of a client and tells the oracle; `raw` is the name within `tenant`.
    pub fn publish(
        &mut self,
        number: u32,
        publish: &Publish<'_>,
        tenant: usize,
        raw: &str,
        foreign: bool,
        reply_to: Option<usize>,
    ) -> Option<MessageId> {
        let client = self.clients.get_mut(&number)?;
        let (id, seq) = client.publish(publish, foreign);
        if !publish.reply.is_empty() {
            client.requests.push((seq, id));
        }
        let message = Message {
            tenant,
            class: publish.class,
            name: raw.to_owned(),
            node: client.node,
            foreign,
            reply_to,
            reply: publish.reply.to_owned(),
            payload_bytes: publish.payload_bytes.max(crate::client::PAYLOAD_BYTES_MIN),
            got: std::collections::BTreeSet::new(),
            groups: BTreeMap::new(),
            entered: None,
        };
        self.oracle.messages.insert(id, message);
        self.stats.published += 1;
        Some(id)
    }

    /// Lets the control half of a broker work on up to `most` commands.
    fn drive(&mut self, node: usize, most: usize) -> Result<(), Violation> {
        let Some(broker) = self.brokers.get_mut(node).and_then(Option::as_mut) else { return Ok(()) };
        let mut done = Vec::new();
        let mut up = Vec::new();
        let mut told = Vec::new();
        if broker.follow <= self.now {
            broker.follow = self.now.plus_millis(FOLLOW_MS);
            broker.driver.follow(self.now);
        }
        for _ in 0..most {
            let Some(todo) = broker.todo.pop_front() else { break };
            match todo {
                Todo::Client(number, command) => match broker.driver.apply(command) {
                    Outcome::Awaits(tenant) => broker.held.push((number, tenant)),
                    _ => done.push(number),
                },
                Todo::Reader(command) => {
                    // Words are for stories; a seed that fails is told again as one.
                    let text = self.story.as_ref().map(|_| format!("{command:?}")).unwrap_or_default();
                    told.push(text.clone());
                    match broker.driver.apply(command) {
                        Outcome::RecordRefused(error) => {
                            return Err(Violation(format!("node {node} refused an honest record: {error}: {text}")));
                        }
                        // The word of an earlier life, whose key is not known any more, proves nothing.
                        Outcome::LinkRefused(LinkError::NoKey) => {}
                        Outcome::LinkRefused(error) => {
                            return Err(Violation(format!("node {node} refused honest link state: {error}: {text}")));
                        }
                        Outcome::Done | Outcome::Lists(_) | Outcome::Awaits(_) => {}
                    }
                }
                Todo::Up(edge, side, bridge, command) => {
                    if let Outcome::Lists(lists) = broker.driver.apply(command) {
                        up.push((edge, side, bridge, lists));
                    }
                }
                Todo::Down(edge, side, bridge, command) => {
                    broker.driver.apply(command);
                    if let Some(bridge) =
                        self.bridges.get_mut(edge).and_then(Option::as_mut).filter(|b| b.number == bridge)
                    {
                        bridge.pair(side).0.stage = Stage::Over;
                    }
                }
            }
        }
        broker.driver.commit(self.now);
        let driver = &broker.driver;
        done.extend(broker.held.extract_if(.., |(_, tenant)| driver.is_ready(*tenant)).map(|(number, _)| number));
        told.into_iter().for_each(|text| self.tell_story(|| format!("node {node} is told {text}")));
        self.trace.number(done.len() as u64);
        for number in done {
            if let Some(client) = self.clients.get_mut(&number) {
                client.waiting -= 1;
            }
        }
        up.into_iter().for_each(|(edge, side, bridge, lists)| self.opened(node, edge, side, bridge, lists));
        Ok(())
    }

    /// Lets a broker send again what is due.
    fn look_after(&mut self, node: usize) {
        let Some(broker) = self.brokers.get_mut(node).and_then(Option::as_mut) else { return };
        let mut batch = Batch::default();
        reliable::tick(&broker.shared, self.now, &mut batch);
        batch.flush(&broker.shared, self.now);
        broker.end(&mut batch);
    }

    /// An end's control half has taken note that its bridge is up.
    fn opened(&mut self, node: usize, edge: usize, side: usize, number: u64, lists: u32) {
        let ready = self.now.plus_micros(self.delay(edge));
        let Some(broker) = self.brokers.get(node).and_then(Option::as_ref) else { return };
        let Some(bridge) = self.bridges.get_mut(edge).and_then(Option::as_mut).filter(|b| b.number == number) else {
            return;
        };
        let (end, other) = bridge.pair(side);
        if end.stage != Stage::Announced {
            return;
        }
        let Some(link) = broker.link(edge) else { return };
        let peer = self.plan.nodes.iter().find(|n| *n == link.edge().peer()).and_then(node_principal);
        if let Some(peer) = peer {
            end.open(
                &Arc::new(Incoming::new(Arc::clone(&broker.shared), Arc::clone(link.edge()), peer, Carries::Everybody)),
                self.now,
            );
        }
        other.ready = Some((ready, lists));
        self.tell_story(|| format!("bridge {number} of edge {edge} is up at node {node}, which sends {lists} lists"));
    }

    fn move_bridge(&mut self, edge: usize, hurry: bool) -> Result<(), Violation> {
        for side in 0..2 {
            let node = self.plan.edges.get(edge).and_then(|e| e.ends.get(side)).copied().unwrap_or(0);
            if self.weather.is_frozen(node, self.now) {
                continue;
            }
            self.turn(edge, side)?;
            self.watch(edge, side);
            self.write(edge, side, hurry)?;
            self.write_words(edge, side);
            if !self.weather.is_dark(edge, side) {
                self.read(edge, side, hurry)?;
                self.read_words(edge, side)?;
            }
        }
        let over = |bridge: &Bridge| bridge.ends.iter().all(|end| end.stage == Stage::Over);
        if self.bridges.get(edge).and_then(Option::as_ref).is_some_and(over) {
            self.bury(edge);
        }
        Ok(())
    }

    /// Takes a bridge away and counts what it lost.
    pub(crate) fn bury(&mut self, edge: usize) {
        if let Some(bridge) = self.bridges.get_mut(edge).and_then(Option::take) {
            for (key, count) in bridge.lost() {
                *self.lost.entry(key).or_default() += count;
            }
        }
    }

    /// Stages of one end that come with time.
    fn turn(&mut self, edge: usize, side: usize) -> Result<(), Violation> {
        let now = self.now;
        let dark = self.weather.is_dark(edge, side);
        let Some(planned) = self.plan.edges.get(edge) else { return Ok(()) };
        let [a, b] = planned.ends;
        let [node, peer] = if side == 0 { [a, b] } else { [b, a] };
        let life = self.lives.get(peer).copied().unwrap_or(0);
        let Some(bridge) = self.bridges.get_mut(edge).and_then(Option::as_mut) else { return Ok(()) };
        let (number, end) = (bridge.number, bridge.pair(side).0);
        let Some(broker) = self.brokers.get_mut(node).and_then(Option::as_mut) else { return Ok(()) };
        let Some(key) = broker.key(edge) else { return Ok(()) };
        match end.stage {
            Stage::Opening(time) if time <= now && !dark => {
                let effective = crate::greet::shake_hands(planned, side, number)?;
                end.stage = Stage::Announced;
                let command = Command::EdgeUp { edge: key, effective, peer_incarnation: life };
                broker.todo.push_back(Todo::Up(edge, side, number, command));
            }
            Stage::Losing(time) if time <= now => {
                end.stage = Stage::Losing(Time(u64::MAX));
                broker.todo.push_back(Todo::Down(edge, side, number, Command::EdgeDown { edge: key }));
            }
            Stage::Up if !dark => {
                if let Some((_, lists)) = end.ready.take_if(|(time, _)| *time <= now) {
                    broker.todo.push_back(Todo::Reader(Command::EdgeReady { edge: key, lists }));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn write(&mut self, edge: usize, side: usize, hurry: bool) -> Result<(), Violation> {
        let most = if hurry { 1 << 20 } else { self.random.between(1, 30_000) };
        let delay = self.delay(edge);
        let Some(planned) = self.plan.edges.get(edge) else { return Ok(()) };
        let Some(node) = planned.ends.get(side) else { return Ok(()) };
        let Some(bridge) = self.bridges.get_mut(edge).and_then(Option::as_mut) else { return Ok(()) };
        let Some(broker) = self.brokers.get(*node).and_then(Option::as_ref) else { return Ok(()) };
        let Some(link) = broker.link(edge) else { return Ok(()) };
        let end = bridge.pair(side).0;
        if !matches!(end.stage, Stage::Up | Stage::Losing(_)) || end.readers.is_empty() {
            return Ok(());
        }
        let mut writes = link.inbox().with(|lanes| end.writer.fill(&link, lanes, &broker.shared, self.now, most));
        if self.random.chance(5) {
            writes.extend(link.inbox().with(|lanes| end.writer.sweep(lanes, &broker.shared, self.now)));
        }
        let bytes = bridge.carry(side, writes, self.now, delay)?;
        self.stats.wire_bytes += bytes;
        self.trace.number(bytes);
        Ok(())
    }

    fn read(&mut self, edge: usize, side: usize, hurry: bool) -> Result<(), Violation> {
        let Some(node) = self.plan.edges.get(edge).and_then(|e| e.ends.get(side)).copied() else { return Ok(()) };
        let Some(bridge) = self.bridges.get_mut(edge).and_then(Option::as_mut) else { return Ok(()) };
        let Some(broker) = self.brokers.get_mut(node).and_then(Option::as_mut) else { return Ok(()) };
        let (number, end) = (bridge.number, bridge.pair(side).0);
        if end.stage != Stage::Up {
            return Ok(());
        }
        for (stream, reader) in end.readers.iter_mut().enumerate() {
            let Some(coming) = end.coming.get_mut(stream) else { continue };
            while coming.front().is_some_and(|(time, _)| *time <= self.now) {
                let Some((_, mut bytes)) = coming.pop_front() else { break };
                let most = if hurry { usize::MAX } else { self.random.between(1, 3_000) };
                let chunk = bytes.split_to(bytes.len().min(most));
                if !bytes.is_empty() {
                    coming.push_front((self.now, bytes));
                }
                end.read
                    .see(stream, &chunk)
                    .map_err(|fault| Violation(format!("read from bridge {number}: {fault}")))?;
                let mut arrivals = Arrivals::default();
                self.trace.bytes(&chunk);
                reader
                    .on_chunk(copy(&chunk), self.now, &mut arrivals)
                    .map_err(|fault| Violation(format!("node {node} closed an honest bridge: {fault}")))?;
                broker.todo.extend(arrivals.commands.drain(..).map(Todo::Reader));
                arrivals.batch.flush(&broker.shared, self.now);
                broker.end(&mut arrivals.batch);
                if !hurry && self.random.chance(30) {
                    break;
                }
            }
        }
        Ok(())
    }
}

/// Where a message goes that its broker has just read.
fn enter(plan: &Plan, broker: &Broker, message: &Message, lives: &[u64]) -> Option<Entered> {
    let tenant = broker.tenants.by_id(plan.tenants.get(message.tenant)?.as_str())?;
    let raw = RawName::parse(message.name.as_bytes()).ok()?;
    let found = tenant.table().find(message.class, raw, &tenant.section());
    let far = found.edges.iter().flat_map(|edge| edge.brokers.iter()).filter_map(|b| usize::try_from(b.0).ok());
    let life = |node: usize| lives.get(node).copied();
    let chosen = far.chain([message.node]).filter_map(|node| Some((node, life(node)?))).collect();
    Some(Entered { life: life(message.node)?, chosen })
}

/// Bytes as a socket hands them over: in memory of their own.
fn copy(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}
