//! One publish for subscribers at many brokers, and how often it crosses each edge.

use bytes::Bytes;

use super::net::Net;
use super::peer::{Peer, Protocol};
use crate::graph::Ends;
use crate::oracle::Violation;

/// What everybody subscribes to, and what is published.
const NAME: &str = "load.everywhere";

/// Brokers of which many have subscribers of one tenant.
#[derive(Debug)]
pub struct FanOut {
    net: Net,
    edges: usize,
    publisher: Peer,
    at: usize,
    subscribers: Vec<Peer>,
}

/// What became of one publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Sessions that were given it.
    pub delivered: usize,
    /// How often each edge carried it, both directions together.
    pub copies: Vec<u64>,
}

impl FanOut {
    /// `brokers` brokers joined by `edges`, each with so many subscribers, and a publisher at broker `at`.
    ///
    /// # Errors
    /// When they do not learn of each other.
    pub fn new(brokers: usize, edges: Vec<Ends>, at: usize, subscribers: usize) -> Result<Self, Violation> {
        let count = edges.len();
        let net = Net::new(brokers, edges, 1)?;
        let mut fan = Self { net, edges: count, publisher: Peer::Away, at, subscribers: Vec::new() };
        (0..brokers).try_for_each(|node| fan.subscribe(node, subscribers))?;
        fan.publisher = fan.connect(at, 0)?;
        // The first one waits until it is known who wants it.
        fan.publish(16)?;
        Ok(fan)
    }

    fn connect(&mut self, node: usize, number: usize) -> Result<Peer, Violation> {
        let none = || Violation(format!("broker {node} opens no session"));
        let site = self.net.sites.get(node).ok_or_else(none)?;
        let mut peer = Peer::new(Protocol::Native, site, 0, number, self.net.now).ok_or_else(none)?;
        self.net.feed(&mut peer, node, &Protocol::Native.hello()?)?;
        Ok(peer)
    }

    /// So many subscribers more at one broker.
    ///
    /// # Errors
    /// When one is refused.
    pub fn subscribe(&mut self, node: usize, count: usize) -> Result<(), Violation> {
        for _ in 0..count {
            let mut peer = self.connect(node, 1 + self.subscribers.len())?;
            self.net.feed(&mut peer, node, &Protocol::Native.subscribe(NAME)?)?;
            self.subscribers.push(peer);
        }
        self.net.settle()
    }

    /// Publishes one message of so many bytes, which are to be more than all that brokers tell each other meanwhile.
    ///
    /// # Errors
    /// When it is refused or comes garbled.
    pub fn publish(&mut self, payload_bytes: usize) -> Result<Sent, Violation> {
        let before = self.net.wires.wrote();
        let message: Bytes = Protocol::Native.publishes(&[NAME.to_owned()], payload_bytes)?;
        let mut publisher = std::mem::take(&mut self.publisher);
        let fed = self.net.feed(&mut publisher, self.at, &message);
        self.publisher = publisher;
        fed?;
        self.net.settle()?;
        let grown = self.net.wires.wrote().into_iter().zip(before).map(|(now, before)| now - before);
        let grown: Vec<u64> = grown.collect();
        let whole = payload_bytes.max(1) as u64;
        // Two directions of each edge follow each other.
        let copies =
            grown.chunks(2).map(|both| both.iter().map(|bytes| bytes / whole).sum()).take(self.edges).collect();
        let mut delivered = 0;
        for subscriber in &self.subscribers {
            let Some(port) = subscriber.port() else { continue };
            self.net.read(port);
            delivered += Protocol::Native.count(&self.net.text(), payload_bytes)?;
        }
        Ok(Sent { delivered, copies })
    }
}
