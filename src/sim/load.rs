//! A load that does the same at every run, so that what a message costs can be counted in instructions.
//!
//! Publishers' bytes go into sessions, subscribers' bytes come out of theirs, on one broker or over the edge between two. In
//! between is what a node runs: frames, policy, tables, lanes, slices. What a node adds to that (TLS, sockets, tasks) is left
//! out, and so is everything that comes by chance. How many tenants, subscriptions and sessions there are besides is chosen
//! by a [`Shape`]: with the same messages, it should not matter.

use std::sync::Arc;

use bytes::Bytes;
use glocal_core::limits::SESSION_SUBSCRIPTIONS_MAX;
use glocal_core::port::SessionPort;
use glocal_core::sched::Drops;
use glocal_core::time::Time;
use glocal_engine::driver::FOLLOW_MS;
use glocal_engine::session::Effects;

use crate::filters::site::{Fabric, Site};
use crate::filters::wires::Wires;
use crate::graph::Ends;
use crate::oracle::{Violation, ensure};
use crate::random::Random;

mod peer;

use peer::Peer;
pub use peer::Protocol;

/// Messages that a session is given at once.
pub const BATCH: usize = 64;
/// Bytes taken from a session's lanes for one write, as a node does.
const WRITE_BYTES: usize = 64 * 1024;
/// Bytes of a piece that a bridge's reader is given: what a packet of a common path brings.
const PIECE_BYTES: usize = 1_400;
/// How often brokers may look after what they have to tell each other until they know everything.
const ROUNDS: usize = 200;
/// Number of the subscription that comes and goes.
const PASSING_SID: u32 = 1;

/// What is carried, and beside what.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// What the sessions speak.
    pub protocol: Protocol,
    /// Whether subscribers are at the other of two brokers.
    pub far: bool,
    /// Bytes of a message's payload.
    pub payload_bytes: usize,
    /// Tenants in the bundle.
    pub tenants: usize,
    /// Subscriptions of the tenant that want none of the messages.
    pub subscriptions: u64,
    /// Sessions that publish; as many subscribe, each to what one of them publishes.
    pub pairs: usize,
    /// Names that each publisher uses in turns.
    pub names: usize,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            protocol: Protocol::Native,
            far: false,
            payload_bytes: 256,
            tenants: 1,
            subscriptions: 0,
            pairs: 1,
            names: 1,
        }
    }
}

/// Brokers with sessions that know of each other.
#[derive(Debug)]
pub struct World {
    shape: Shape,
    sites: Vec<Site>,
    wires: Wires,
    now: Time,
    publishers: Vec<(Peer, Vec<Bytes>)>,
    subscribers: Vec<Peer>,
    /// What sessions bring about; empty between batches.
    effects: Effects,
    /// Batches carried so far.
    batches: usize,
    /// Bytes of one delivery.
    delivery_bytes: u64,
    /// What was read of the last delivery.
    parts: Vec<Bytes>,
    /// Subscriptions that came and went.
    passed: u64,
    /// The session whose they were.
    passing: Option<Arc<SessionPort>>,
}

impl World {
    /// A world in which every publisher has been heard by its subscriber.
    ///
    /// # Errors
    /// When one has not.
    pub fn new(shape: Shape) -> Result<Self, Violation> {
        let edges: Vec<Ends> = if shape.far { vec![[0, 1]] } else { Vec::new() };
        let count = if shape.far { 2 } else { 1 };
        let built = Fabric::new(count, edges, shape.tenants)
            .and_then(|fabric| Some(((0..count).map(|n| Site::new(&fabric, n)).collect::<Option<Vec<_>>>()?, fabric)));
        let (mut sites, fabric) = built.ok_or_else(|| Violation("the brokers cannot be built".to_owned()))?;
        let mut wires = Wires::new(&fabric, &mut sites, &mut Random::new(1))?;
        wires.cut(PIECE_BYTES);
        let mut world = Self {
            shape,
            sites,
            wires,
            now: Time::from_millis(1),
            publishers: Vec::new(),
            subscribers: Vec::new(),
            effects: Effects::default(),
            batches: 0,
            delivery_bytes: 0,
            parts: Vec::new(),
            passed: 0,
            passing: None,
        };
        world.settle()?;
        world.subscribe_others()?;
        for pair in 0..shape.pairs {
            world.join(pair)?;
        }
        world.settle()?;
        for pair in 0..shape.pairs {
            world.warm_up(pair)?;
        }
        world.batches = 0;
        Ok(world)
    }

    /// The tenant that is looked at: one in the middle.
    const fn tenant(&self) -> usize {
        self.shape.tenants / 2
    }

    /// The broker of the subscribers.
    const fn target(&self) -> usize {
        if self.shape.far { 1 } else { 0 }
    }

    /// Somebody subscribes to what is not published.
    fn subscribe_others(&mut self) -> Result<(), Violation> {
        const OF_EACH: u64 = SESSION_SUBSCRIPTIONS_MAX as u64;
        let (tenant, target, now) = (self.tenant(), self.target(), self.now);
        let Some(site) = self.sites.get_mut(target) else { return Ok(()) };
        let mut port = None;
        for number in 0..self.shape.subscriptions {
            let sid = u32::try_from(number % OF_EACH).unwrap_or(0);
            if sid == 0 {
                port = site.session(tenant);
            }
            let Some(port) = &port else { continue };
            site.subscribe(port, sid, number, now)?;
        }
        self.passing = site.session(tenant);
        site.commit(now);
        Ok(())
    }

    /// A publisher and its subscriber connect.
    fn join(&mut self, pair: usize) -> Result<(), Violation> {
        let (tenant, now) = (self.tenant(), self.now);
        let Shape { protocol, payload_bytes, names, .. } = self.shape;
        let peer = |site: Option<&Site>, number: usize| {
            let none = || Violation(format!("session {number} cannot be opened"));
            Peer::new(protocol, site.ok_or_else(none)?, tenant, number, now).ok_or_else(none)
        };
        let mut publisher = peer(self.sites.first(), 2 * pair)?;
        let mut subscriber = peer(self.sites.get(self.target()), 2 * pair + 1)?;
        self.feed(&mut publisher, 0, &protocol.hello()?)?;
        self.feed(&mut subscriber, self.target(), &protocol.hello()?)?;
        self.feed(&mut subscriber, self.target(), &protocol.subscribe(&format!("load.unit{pair:06}.*"))?)?;
        // Whole batches, so that all names come equally often.
        let mut input = Vec::new();
        let mut names = (0..names).map(|name| format!("load.unit{pair:06}.name{name:06}")).cycle();
        for _ in 0..self.shape.names.div_ceil(BATCH) {
            let batch: Vec<String> = names.by_ref().take(BATCH).collect();
            input.push(protocol.publishes(&batch, payload_bytes)?);
        }
        self.publishers.push((publisher, input));
        self.subscribers.push(subscriber);
        Ok(())
    }

    /// A first batch, after which the publisher knows who wants its messages, and a second one, which is looked at.
    fn warm_up(&mut self, pair: usize) -> Result<(), Violation> {
        let Some((mut publisher, input)) = self.publishers.get_mut(pair).map(std::mem::take) else { return Ok(()) };
        for bytes in &input {
            self.feed(&mut publisher, 0, bytes)?;
            self.settle()?;
            self.read(pair);
        }
        let first = input.first().cloned().unwrap_or_default();
        if let Some(slot) = self.publishers.get_mut(pair) {
            *slot = (publisher, input);
        }
        self.batches = pair;
        self.publish(pair, &first)?;
        let bytes = self.read(pair);
        let delivered: Vec<u8> = self.parts.iter().flat_map(|part| part.iter().copied()).collect();
        let messages = self.shape.protocol.count(&delivered, self.shape.payload_bytes)?;
        ensure!(messages == BATCH, "pair {pair}: {messages} of {BATCH} messages have come");
        let each = bytes / BATCH as u64;
        ensure!(each * BATCH as u64 == bytes, "pair {pair}: messages of different lengths");
        ensure!(self.delivery_bytes == 0 || self.delivery_bytes == each, "pair {pair}: {each} bytes a message");
        self.delivery_bytes = each;
        Ok(())
    }

    /// Gives bytes to a session until it has read them all, as a node does.
    fn feed(&mut self, peer: &mut Peer, at: usize, bytes: &Bytes) -> Result<(), Violation> {
        let mut rest = bytes.clone();
        for _ in 0..ROUNDS {
            let used = peer.on_bytes(&rest, self.now, &mut self.effects)?;
            let _ = rest.split_to(used);
            if let Some(site) = self.sites.get_mut(at) {
                self.effects.batch.flush(&site.shared, self.now);
                for command in self.effects.commands.drain(..) {
                    site.driver.apply(command);
                }
                site.commit(self.now);
            }
            self.effects.replies.clear();
            let refused = self.effects.denials.first();
            ensure!(refused.is_none(), "{refused:?}");
            if rest.is_empty() {
                return Ok(());
            }
            self.settle()?;
        }
        Err(Violation(format!("a session has left {} bytes", rest.len())))
    }

    /// Brokers tell each other until nobody has anything to tell.
    fn settle(&mut self) -> Result<(), Violation> {
        for _ in 0..ROUNDS {
            self.now = self.now.plus_millis(FOLLOW_MS);
            for (node, site) in self.sites.iter_mut().enumerate() {
                site.driver.follow(self.now);
                site.commit(self.now);
                self.wires.write(site, node, self.now);
            }
            self.cross()?;
            let is_quiet = |site: &Site| site.driver.control().is_quiet() && !site.driver.is_waiting();
            if self.sites.iter().all(is_quiet) && self.wires.next().is_none() {
                return Ok(());
            }
        }
        Err(Violation("the brokers do not come to rest".to_owned()))
    }

    /// Whatever is on its way arrives, and what comes of it.
    fn cross(&mut self) -> Result<(), Violation> {
        while let Some(next) = self.wires.next() {
            self.now = self.now.max(next);
            for node in self.wires.read(&mut self.sites, self.now)? {
                let Some(site) = self.sites.get_mut(node) else { continue };
                site.commit(self.now);
                self.wires.write(site, node, self.now);
            }
        }
        Ok(())
    }

    /// Carries one batch, of the publisher whose turn it is: from the bytes that it writes to those that its subscriber
    /// reads.
    ///
    /// # Errors
    /// When not every message has come.
    pub fn carry(&mut self) -> Result<(), Violation> {
        let pair = self.batches % self.publishers.len().max(1);
        let turn = self.batches / self.publishers.len().max(1);
        self.batches += 1;
        let input = self.publishers.get(pair).and_then(|(_, input)| input.get(turn % input.len().max(1)));
        let input = input.cloned().ok_or_else(|| Violation("nobody publishes".to_owned()))?;
        self.publish(pair, &input)?;
        let read = self.read(pair);
        let expected = self.delivery_bytes * BATCH as u64;
        ensure!(read == expected, "pair {pair}: {read} bytes of {expected} have come");
        Ok(())
    }

    fn publish(&mut self, pair: usize, input: &Bytes) -> Result<(), Violation> {
        let now = self.now;
        let Some((publisher, _)) = self.publishers.get_mut(pair) else { return Ok(()) };
        let used = publisher.on_bytes(input, now, &mut self.effects)?;
        ensure!(used == input.len() && self.effects.commands.is_empty(), "pair {pair}: {used} of {}", input.len());
        let Some(site) = self.sites.first() else { return Ok(()) };
        self.effects.batch.flush(&site.shared, now);
        if self.shape.far {
            self.wires.write(site, 0, now);
            self.now = self.wires.next().unwrap_or(now);
            self.wires.read(&mut self.sites, self.now)?;
        }
        Ok(())
    }

    /// Reads what has come to a subscriber, into `parts`.
    fn read(&mut self, pair: usize) -> u64 {
        self.parts.clear();
        let Some(port) = self.subscribers.get(pair).and_then(Peer::port) else { return 0 };
        let (mut bytes, mut drops) = (0, Drops::new());
        loop {
            match port.inbox().with(|lanes| lanes.fill(WRITE_BYTES, self.now, &mut self.parts, &mut drops)) {
                0 => return bytes,
                filled => bytes += filled as u64,
            }
        }
    }

    /// Another session of the tenant subscribes to something, and ends that; each is published at once.
    ///
    /// # Errors
    /// When it is refused.
    pub fn change(&mut self) -> Result<(), Violation> {
        let (target, now) = (self.target(), self.now);
        let (Some(site), Some(port)) = (self.sites.get_mut(target), &self.passing) else { return Ok(()) };
        let number = self.shape.subscriptions + self.passed;
        self.passed += 1;
        site.subscribe(port, PASSING_SID, number, now)?;
        site.commit(now);
        site.unsubscribe(port, PASSING_SID, now);
        site.commit(now);
        if self.shape.far { self.cross() } else { Ok(()) }
    }

    /// Bytes that one delivery has.
    #[must_use]
    pub const fn delivery_bytes(&self) -> u64 {
        self.delivery_bytes
    }
}

#[cfg(test)]
mod tests;
