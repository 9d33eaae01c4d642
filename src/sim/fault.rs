//! What goes wrong between brokers and with them: bridges that fall silent, in one direction or both, partitions, and
//! brokers that stand still. Nobody is told of any of it: an end learns it from its own probes, as in a node.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use glocal_core::time::Time;
use glocal_engine::liveness::Liveness;
use glocal_wire::control::{Control, Probe, ProbeAck};

use crate::bridge::Stage;
use crate::plan::Plan;
use crate::world::World;

/// Kinds of the frames that keep a bridge alive.
const PROBES: [u8; 2] = [0x13, 0x14];
/// How fast time passes by default: at most so many microseconds from one round to the next.
const PACE_MICROS: usize = 2_000;
/// Other paces: silence takes a second to be noticed.
const PACES_MICROS: [usize; 3] = [PACE_MICROS, 12_000, 50_000];

/// What is wrong now.
#[derive(Debug)]
pub struct Weather {
    /// By edge: whether nothing arrives at its first and at its second end.
    dark: Vec<[bool; 2]>,
    /// By broker: until when it stands still.
    frozen: Vec<Time>,
    /// How fast time passes.
    pub pace_micros: usize,
}

impl Weather {
    /// Nothing is wrong.
    #[must_use]
    pub fn fair(plan: &Plan) -> Self {
        let frozen = vec![Time(0); plan.nodes.len()];
        Self { dark: vec![[false; 2]; plan.edges.len()], frozen, pace_micros: PACE_MICROS }
    }

    /// Whether nothing arrives at one end of an edge.
    #[must_use]
    pub fn is_dark(&self, edge: usize, side: usize) -> bool {
        self.dark.get(edge).and_then(|sides| sides.get(side)).copied().unwrap_or(false)
    }

    /// Whether a broker stands still.
    #[must_use]
    pub fn is_frozen(&self, node: usize, now: Time) -> bool {
        self.frozen.get(node).is_some_and(|until| now < *until)
    }
}

impl World {
    /// One fault of any kind.
    pub(crate) fn go_wrong(&mut self) {
        let edge = self.random.below(self.bridges.len());
        let node = self.random.below(self.brokers.len());
        match self.random.below(8) {
            0..3 => self.cut(edge),
            3 => self.darken(edge, [true, true]),
            4 => self.darken(edge, [true, false]),
            5 => self.darken(edge, [false, true]),
            6 => self.partition(),
            _ => {
                let until = self.now.plus_millis(self.random.between(50, 3_000) as u64);
                self.freeze(node, until);
            }
        }
    }

    /// How fast time passes from now on.
    pub(crate) fn draw_pace(&mut self) {
        self.weather.pace_micros = self.random.pick(&PACES_MICROS).copied().unwrap_or(PACE_MICROS);
    }

    /// Nothing arrives any more at these ends of an edge.
    pub fn darken(&mut self, edge: usize, sides: [bool; 2]) {
        self.faulted = true;
        self.stats.silences += 1;
        if let Some(dark) = self.weather.dark.get_mut(edge) {
            *dark = sides;
        }
        self.tell_story(|| format!("edge {edge} falls silent towards its ends: {sides:?}"));
    }

    /// Some brokers lose all others.
    fn partition(&mut self) {
        let apart: Vec<bool> = (0..self.brokers.len()).map(|_| self.random.chance(40)).collect();
        let of = |node: &usize| apart.get(*node).copied().unwrap_or(false);
        let across = |(edge, planned): (usize, &crate::plan::PlannedEdge)| {
            let [a, b] = planned.ends;
            (of(&a) != of(&b)).then_some(edge)
        };
        let edges: Vec<usize> = self.plan.edges.iter().enumerate().filter_map(across).collect();
        edges.into_iter().for_each(|edge| self.darken(edge, [true, true]));
    }

    /// A broker does nothing for a while.
    pub fn freeze(&mut self, node: usize, until: Time) {
        self.faulted = true;
        self.stats.silences += 1;
        if let Some(frozen) = self.weather.frozen.get_mut(node) {
            *frozen = until;
        }
        self.tell_story(|| format!("node {node} stands still until {:.3} ms", until.0 as f64 / 1000.0));
    }

    /// Bytes arrive again at both ends of an edge.
    pub fn lighten(&mut self, edge: usize) {
        let Some(dark) = self.weather.dark.get_mut(edge) else { return };
        if std::mem::take(dark) == [false; 2] {
            return;
        }
        self.tell_story(|| format!("edge {edge} is heard again"));
        let soon = self.now.plus_millis(self.random.between(1, 200) as u64);
        // What one end had given up, the other one hears of now.
        for end in self.bridges.get_mut(edge).into_iter().flatten().filter(|b| b.broken).flat_map(|b| &mut b.ends) {
            end.lose(soon);
        }
    }

    /// Everything is well again.
    pub(crate) fn heal(&mut self) {
        (0..self.bridges.len()).for_each(|edge| self.lighten(edge));
        self.weather = Weather::fair(&self.plan);
    }

    /// One end believes its peer to be dead, and closes the bridge.
    pub(crate) fn give_up(&mut self, edge: usize, side: usize) {
        let hears = !self.weather.is_dark(edge, 1 - side);
        let soon = self.now.plus_millis(self.random.between(1, 50) as u64);
        let now = self.now;
        let Some(bridge) = self.bridges.get_mut(edge).and_then(Option::as_mut) else { return };
        bridge.broken = true;
        self.faulted = true;
        let number = bridge.number;
        let (end, other) = bridge.pair(side);
        end.lose(now);
        if hears {
            other.lose(soon);
        }
        self.tell_story(|| format!("bridge {number} of edge {edge} is given up by its end {side}"));
    }

    /// Sends the probe that is due at one end, and gives up a peer that has been silent for too long.
    pub(crate) fn watch(&mut self, edge: usize, side: usize) {
        let (now, delay) = (self.now, self.delay(edge));
        let Some(bridge) = self.bridges.get_mut(edge).and_then(Option::as_mut) else { return };
        let broken = bridge.broken;
        let (end, other) = bridge.pair(side);
        let Some(life) = end.life.as_mut().filter(|_| end.stage == Stage::Up) else { return };
        if life.is_dead(now) {
            return self.give_up(edge, side);
        }
        if let Some(id) = life.probe(now).filter(|_| !broken) {
            say(&mut other.words, now, delay, Probe { id }.into());
        }
    }

    /// Takes a probe or the answer to one; gives any other frame back.
    pub(crate) fn on_probe(&mut self, edge: usize, side: usize, control: Control) -> Option<Control> {
        let (now, delay) = (self.now, self.delay(edge));
        let Some(bridge) = self.bridges.get_mut(edge).and_then(Option::as_mut) else { return Some(control) };
        let broken = bridge.broken;
        let (end, other) = bridge.pair(side);
        match control {
            Control::Probe(Probe { id }) if !broken => say(&mut other.words, now, delay, ProbeAck { id }.into()),
            Control::Probe(_) => {}
            Control::ProbeAck(ack) => end.life.iter_mut().for_each(|life| life.on_ack(ack.id, now)),
            other => return Some(other),
        }
        None
    }

    /// Time passes in which nothing happens, but for probes that are answered.
    pub(crate) fn sleep(&mut self, until: Time) {
        self.now = self.now.max(until);
        let ends = self.bridges.iter_mut().flatten().flat_map(|bridge| &mut bridge.ends);
        ends.for_each(|end| end.life = end.life.map(|_| Liveness::new(self.now)));
    }

    /// How long something takes over an edge this time, in microseconds.
    pub(crate) fn delay(&mut self, edge: usize) -> u64 {
        let steady = self.plan.edges.get(edge).map_or(0, |planned| planned.delay_micros);
        steady + self.random.between(50, 3_000) as u64
    }
}

/// Whether a frame is a probe or the answer to one: those never cease.
pub(crate) fn is_probe(frame: &Bytes) -> bool {
    frame.get(4).is_some_and(|kind| PROBES.contains(kind))
}

/// Puts a frame on its way.
fn say(words: &mut VecDeque<(Time, Bytes)>, now: Time, delay_micros: u64, control: Control) {
    let mut frame = BytesMut::new();
    if control.encode_into(&mut frame).is_ok() {
        let earliest = words.back().map_or(now, |(time, _)| *time);
        words.push_back((earliest.max(now.plus_micros(delay_micros)), frame.freeze()));
    }
}

/// When nothing else is to be done before: the time at which something arrives next.
pub(crate) fn next_arrival(world: &World) -> Option<Time> {
    let ends = world.bridges.iter().flatten().flat_map(|bridge| &bridge.ends);
    let times = ends.flat_map(|end| {
        let streams = end.coming.iter().filter_map(|stream| stream.front().map(|(time, _)| *time));
        let ready = end.ready.map(|(time, _)| time);
        let turn = match end.stage {
            Stage::Opening(time) | Stage::Losing(time) => Some(time),
            _ => None,
        };
        streams.chain(end.words.front().map(|(time, _)| *time)).chain(ready).chain(turn)
    });
    times.min()
}
