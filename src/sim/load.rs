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

use crate::filters::site::Site;
use crate::graph::Ends;
use crate::oracle::{Violation, ensure};

pub mod fanout;
mod net;
mod peer;

use net::Net;
use peer::Peer;
pub use peer::Protocol;

/// Messages that a session is given at once.
pub const BATCH: usize = 64;
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
    net: Net,
    publishers: Vec<(Peer, Vec<Bytes>)>,
    subscribers: Vec<Peer>,
    /// Batches carried so far.
    batches: usize,
    /// Bytes of one delivery.
    delivery_bytes: u64,
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
        let mut world = Self {
            shape,
            net: Net::new(if shape.far { 2 } else { 1 }, edges, shape.tenants)?,
            publishers: Vec::new(),
            subscribers: Vec::new(),
            batches: 0,
            delivery_bytes: 0,
            passed: 0,
            passing: None,
        };
        world.subscribe_others()?;
        for pair in 0..shape.pairs {
            world.join(pair)?;
        }
        world.net.settle()?;
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
        let (tenant, target, now) = (self.tenant(), self.target(), self.net.now);
        let Some(site) = self.net.sites.get_mut(target) else { return Ok(()) };
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
        let (tenant, now) = (self.tenant(), self.net.now);
        let Shape { protocol, payload_bytes, names, .. } = self.shape;
        let peer = |site: Option<&Site>, number: usize| {
            let none = || Violation(format!("session {number} cannot be opened"));
            Peer::new(protocol, site.ok_or_else(none)?, tenant, number, now).ok_or_else(none)
        };
        let mut publisher = peer(self.net.sites.first(), 2 * pair)?;
        let mut subscriber = peer(self.net.sites.get(self.target()), 2 * pair + 1)?;
        self.net.feed(&mut publisher, 0, &protocol.hello()?)?;
        self.net.feed(&mut subscriber, self.target(), &protocol.hello()?)?;
        self.net.feed(&mut subscriber, self.target(), &protocol.subscribe(&format!("load.unit{pair:06}.*"))?)?;
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
            self.net.feed(&mut publisher, 0, bytes)?;
            self.net.settle()?;
            self.read(pair);
        }
        let first = input.first().cloned().unwrap_or_default();
        if let Some(slot) = self.publishers.get_mut(pair) {
            *slot = (publisher, input);
        }
        self.batches = pair;
        self.publish(pair, &first)?;
        let bytes = self.read(pair);
        let messages = self.shape.protocol.count(&self.net.text(), self.shape.payload_bytes)?;
        ensure!(messages == BATCH, "pair {pair}: {messages} of {BATCH} messages have come");
        let each = bytes / BATCH as u64;
        ensure!(each * BATCH as u64 == bytes, "pair {pair}: messages of different lengths");
        ensure!(self.delivery_bytes == 0 || self.delivery_bytes == each, "pair {pair}: {each} bytes a message");
        self.delivery_bytes = each;
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
        let now = self.net.now;
        let Some((publisher, _)) = self.publishers.get_mut(pair) else { return Ok(()) };
        let used = publisher.on_bytes(input, now, &mut self.net.effects)?;
        ensure!(used == input.len() && self.net.effects.commands.is_empty(), "pair {pair}: {used} of {}", input.len());
        let Some(site) = self.net.sites.first() else { return Ok(()) };
        self.net.effects.batch.flush(&site.shared, now);
        if self.shape.far {
            self.net.wires.write(site, 0, now);
            self.net.now = self.net.wires.next().unwrap_or(now);
            self.net.wires.read(&mut self.net.sites, self.net.now)?;
        }
        Ok(())
    }

    /// Reads what has come to a subscriber.
    fn read(&mut self, pair: usize) -> u64 {
        self.subscribers.get(pair).and_then(Peer::port).map_or(0, |port| self.net.read(port))
    }

    /// Another session of the tenant subscribes to something, and ends that; each is published at once.
    ///
    /// # Errors
    /// When it is refused.
    pub fn change(&mut self) -> Result<(), Violation> {
        let (target, now) = (self.target(), self.net.now);
        let (Some(site), Some(port)) = (self.net.sites.get_mut(target), &self.passing) else { return Ok(()) };
        let number = self.shape.subscriptions + self.passed;
        self.passed += 1;
        site.subscribe(port, PASSING_SID, number, now)?;
        site.commit(now);
        site.unsubscribe(port, PASSING_SID, now);
        site.commit(now);
        if self.shape.far { self.net.cross() } else { Ok(()) }
    }

    /// Bytes that one delivery has.
    #[must_use]
    pub const fn delivery_bytes(&self) -> u64 {
        self.delivery_bytes
    }
}

#[cfg(test)]
mod tests;
