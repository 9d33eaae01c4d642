//! The control streams of bridges: what neighbours tell each other of the fabric's edges, as frames with delay.

use bytes::Bytes;
use glocal_core::limits::CONTROL_BYTES_MAX;
use glocal_engine::driver::Command;
use glocal_engine::link_state;
use glocal_wire::control::Control;

use crate::bridge::Stage;
use crate::broker::Todo;
use crate::oracle::Violation;
use crate::world::World;

/// Bytes before a body.
const HEAD_BYTES: usize = 8;
/// How often brokers look after what comes with time, in milliseconds.
const TICK_MS: u64 = 1_000;

impl World {
    /// Lets every broker look after what comes with time, once in a while.
    pub(crate) fn tick(&mut self) {
        if self.now < self.next_tick {
            return;
        }
        self.next_tick = self.now.plus_millis(TICK_MS);
        let runs = |node: &usize| !self.weather.is_frozen(*node, self.now);
        let running: Vec<usize> = (0..self.brokers.len()).filter(runs).collect();
        for node in running {
            if let Some(broker) = self.brokers.get_mut(node).and_then(Option::as_mut) {
                broker.driver.tick(self.now);
                broker.driver.commit(self.now);
            }
        }
    }

    /// Sends what one end has to say.
    pub(crate) fn write_words(&mut self, edge: usize, side: usize) {
        let delay = self.delay(edge);
        let Some(node) = self.plan.edges.get(edge).and_then(|e| e.ends.get(side)) else { return };
        let Some(broker) = self.brokers.get(*node).and_then(Option::as_ref) else { return };
        let Some((link, bridge)) = broker.link(edge).zip(self.bridges.get_mut(edge).and_then(Option::as_mut)) else {
            return;
        };
        let broken = bridge.broken;
        let (end, other) = bridge.pair(side);
        if end.stage != Stage::Up {
            return;
        }
        for frame in link.outbox().with(link_state::Outbox::take) {
            self.stats.wire_bytes += frame.len() as u64;
            if !broken {
                let earliest = other.words.back().map_or(self.now, |(time, _)| *time);
                other.words.push_back((earliest.max(self.now.plus_micros(delay)), frame));
            }
        }
    }

    /// Takes what has come to one end.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(crate) fn read_words(&mut self, edge: usize, side: usize) -> Result<(), Violation> {
        let Some(node) = self.plan.edges.get(edge).and_then(|e| e.ends.get(side)).copied() else { return Ok(()) };
        while let Some(frame) = self.next_word(edge, side) {
            self.trace.bytes(&frame);
            let bad = || Violation(format!("node {node} cannot read {frame:?}"));
            let (kind, body) = frame.get(4).zip(frame.get(HEAD_BYTES..)).ok_or_else(bad)?;
            let control = Control::decode(*kind, body, CONTROL_BYTES_MAX).map_err(|_| bad())?.ok_or_else(bad)?;
            let Some(control) = self.on_probe(edge, side, control) else { continue };
            let message = link_state::from_wire(control).map_err(|_| bad())?.map_err(|_| bad())?;
            self.overhear(&message);
            let Some(broker) = self.brokers.get_mut(node).and_then(Option::as_mut) else { return Ok(()) };
            if let Some(key) = broker.key(edge) {
                broker.todo.push_back(Todo::Reader(Command::LinkState { edge: key, message }));
            }
        }
        Ok(())
    }

    /// The next frame that has come to one end.
    fn next_word(&mut self, edge: usize, side: usize) -> Option<Bytes> {
        let end = self.bridges.get_mut(edge)?.as_mut()?.pair(side).0;
        if end.stage != Stage::Up || end.words.front().is_none_or(|(time, _)| *time > self.now) {
            return None;
        }
        end.words.pop_front().map(|(_, frame)| frame)
    }
}
