//! Brokers with the bridges between them, and a clock.

use bytes::Bytes;
use glocal_core::port::SessionPort;
use glocal_core::sched::Drops;
use glocal_core::time::Time;
use glocal_engine::driver::FOLLOW_MS;
use glocal_engine::session::Effects;

use super::peer::Peer;
use crate::filters::site::{Fabric, Site};
use crate::filters::wires::Wires;
use crate::graph::Ends;
use crate::oracle::{Violation, ensure};
use crate::random::Random;

/// Bytes of a piece that a bridge's reader is given: what a packet of a common path brings.
const PIECE_BYTES: usize = 1_400;
/// How often brokers may look after what they have to tell each other until they know everything.
const ROUNDS: usize = 200;
/// Bytes taken from a session's lanes for one write, as a node does.
const WRITE_BYTES: usize = 64 * 1024;

/// Some brokers, all bridges up.
#[derive(Debug)]
pub(super) struct Net {
    pub(super) sites: Vec<Site>,
    pub(super) wires: Wires,
    pub(super) now: Time,
    /// What sessions bring about; empty between their turns.
    pub(super) effects: Effects,
    /// What was read of a session's lanes last.
    pub(super) parts: Vec<Bytes>,
}

impl Net {
    /// `count` brokers joined by `edges`, which carry everybody.
    pub(super) fn new(count: usize, edges: Vec<Ends>, tenants: usize) -> Result<Self, Violation> {
        let built = Fabric::new(count, edges, tenants)
            .and_then(|fabric| Some(((0..count).map(|n| Site::new(&fabric, n)).collect::<Option<Vec<_>>>()?, fabric)));
        let (mut sites, fabric) = built.ok_or_else(|| Violation("the brokers cannot be built".to_owned()))?;
        let mut wires = Wires::new(&fabric, &mut sites, &mut Random::new(1))?;
        wires.cut(PIECE_BYTES);
        let (now, effects) = (Time::from_millis(1), Effects::default());
        let mut net = Self { sites, wires, now, effects, parts: Vec::new() };
        net.settle()?;
        Ok(net)
    }

    /// Reads all that has come to a session, into `parts`; how many bytes that is.
    pub(super) fn read(&mut self, port: &SessionPort) -> u64 {
        self.parts.clear();
        let (mut bytes, mut drops) = (0, Drops::new());
        loop {
            match port.inbox().with(|lanes| lanes.fill(WRITE_BYTES, self.now, &mut self.parts, &mut drops)) {
                0 => return bytes,
                filled => bytes += filled as u64,
            }
        }
    }

    /// What was read last, in one piece.
    pub(super) fn text(&self) -> Vec<u8> {
        self.parts.iter().flat_map(|part| part.iter().copied()).collect()
    }

    /// Gives bytes to a session until it has read them all, as a node does.
    pub(super) fn feed(&mut self, peer: &mut Peer, at: usize, bytes: &Bytes) -> Result<(), Violation> {
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
    pub(super) fn settle(&mut self) -> Result<(), Violation> {
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
    pub(super) fn cross(&mut self) -> Result<(), Violation> {
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
}
