//! The control streams of bridges: what neighbours tell each other of the fabric's edges, as frames with delay.

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
        for broker in self.brokers.iter_mut().flatten() {
            broker.driver.tick(self.now);
            broker.driver.commit(self.now);
        }
    }

    /// Sends what one end has to say.
    pub(crate) fn write_words(&mut self, edge: usize, side: usize) {
        let delay = self.random.between(50, 3_000) as u64;
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
        let Some(bridge) = self.bridges.get_mut(edge).and_then(Option::as_mut) else { return Ok(()) };
        let Some(broker) = self.brokers.get_mut(node).and_then(Option::as_mut) else { return Ok(()) };
        let Some(key) = broker.key(edge) else { return Ok(()) };
        let end = bridge.pair(side).0;
        if end.stage != Stage::Up {
            return Ok(());
        }
        while end.words.front().is_some_and(|(time, _)| *time <= self.now) {
            let Some((_, frame)) = end.words.pop_front() else { break };
            self.trace.bytes(&frame);
            let bad = || Violation(format!("node {node} cannot read {frame:?}"));
            let (kind, body) = frame.get(4).zip(frame.get(HEAD_BYTES..)).ok_or_else(bad)?;
            let control = Control::decode(*kind, body, CONTROL_BYTES_MAX).map_err(|_| bad())?.ok_or_else(bad)?;
            let message = link_state::from_wire(control).map_err(|_| bad())?.map_err(|_| bad())?;
            broker.todo.push_back(Todo::Reader(Command::LinkState { edge: key, message }));
        }
        Ok(())
    }
}
