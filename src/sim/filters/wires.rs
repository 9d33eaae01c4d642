//! Bridges that never break: bytes with delay in both directions, counted.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use glocal_core::limits::{BRIDGE_STREAMS, CONTROL_BYTES_MAX};
use glocal_core::time::Time;
use glocal_engine::driver::{Command, Outcome};
use glocal_engine::lane_reader::{Arrivals, Carries, Incoming, LaneReader};
use glocal_engine::lane_writer::LaneWriter;
use glocal_engine::link_state;
use glocal_wire::control::Control;

use super::site::{Fabric, Site};
use crate::broker::node_principal;
use crate::oracle::{Violation, ensure};
use crate::random::Random;

/// Greatest delay of an edge in one direction, in milliseconds.
const DELAY_MS: usize = 20;
/// Bytes before the body of a control frame.
const HEAD_BYTES: usize = 8;
/// Where the kind of a control frame stands.
const KIND_AT: usize = 4;

/// One end of a bridge.
#[derive(Debug)]
struct End {
    node: usize,
    writer: LaneWriter,
    readers: Vec<LaneReader>,
    coming: Vec<VecDeque<(Time, Bytes)>>,
    words: VecDeque<(Time, Bytes)>,
    /// Bytes of lanes that this end wrote.
    wrote: u64,
}

/// All bridges, in the order of the fabric's edges.
#[derive(Debug)]
pub(crate) struct Wires {
    bridges: Vec<([End; 2], u64)>,
    due: BinaryHeap<Reverse<(Time, usize, usize)>>,
    /// Most bytes of one piece that arrives.
    piece_bytes_max: usize,
}

impl Wires {
    /// A bridge for every edge, up on both sides.
    pub(crate) fn new(fabric: &Fabric, sites: &mut [Site], random: &mut Random) -> Result<Self, Violation> {
        let mut wires = Self { bridges: Vec::new(), due: BinaryHeap::new(), piece_bytes_max: usize::MAX };
        for (number, ends) in fabric.edges.iter().enumerate() {
            let bridge = ends.map(|node| sites.get(node).and_then(|site| end(site, node, number)));
            let [Some(a), Some(b)] = bridge else { return Err(Violation(format!("edge {number} has no ends"))) };
            wires.bridges.push(([a, b], random.between(1, DELAY_MS) as u64));
        }
        for (number, ends) in fabric.edges.iter().enumerate() {
            for node in ends {
                let Some(site) = sites.get_mut(*node) else { continue };
                let effective = site.shared.tenants().iter().map(|tenant| tenant.key()).collect();
                let Some(edge) = site.key(number) else { continue };
                site.driver.apply(Command::EdgeUp { edge, effective, peer_incarnation: 1 });
                // Nobody knows of any subscriber yet.
                site.driver.apply(Command::EdgeReady { edge, lists: 0 });
            }
        }
        Ok(wires)
    }

    /// Has everything arrive in pieces of at most so many bytes, as packets bring it.
    pub(crate) fn cut(&mut self, piece_bytes_max: usize) {
        self.piece_bytes_max = piece_bytes_max.max(1);
    }

    /// When something arrives next.
    pub(crate) fn next(&self) -> Option<Time> {
        self.due.peek().map(|Reverse((time, ..))| *time)
    }

    /// Bytes of lanes written so far: all, and on how many edges.
    pub(crate) fn wrote(&self) -> Vec<u64> {
        self.bridges.iter().flat_map(|(ends, _)| ends.iter().map(|end| end.wrote)).collect()
    }

    /// Bytes of lanes that have been sent towards a broker so far.
    pub(crate) fn sent_to(&self, node: usize) -> u64 {
        let towards =
            |([a, b], _): &([End; 2], u64)| u64::from(b.node == node) * a.wrote + u64::from(a.node == node) * b.wrote;
        self.bridges.iter().map(towards).sum()
    }

    /// Sends what a broker has for its neighbours.
    pub(crate) fn write(&mut self, site: &Site, node: usize, now: Time) {
        for edge in &site.edges {
            let Some((ends, delay)) = self.bridges.get_mut(*edge) else { continue };
            let arrival = now.plus_millis(*delay);
            let Some(side) = ends.iter().position(|end| end.node == node) else { continue };
            let Some(link) = site.key(*edge).and_then(|key| site.shared.link(key)) else { continue };
            let [a, b] = ends;
            let (from, to) = if side == 0 { (a, b) } else { (b, a) };
            let writes = link.inbox().with(|lanes| from.writer.fill(&link, lanes, &site.shared, now, usize::MAX));
            let words = link.outbox().with(link_state::Outbox::take);
            let any = !(writes.is_empty() && words.is_empty());
            for write in writes {
                let Some(stream) = to.coming.get_mut(write.stream) else { continue };
                for mut part in write.parts {
                    from.wrote += part.len() as u64;
                    while part.len() > self.piece_bytes_max {
                        stream.push_back((arrival, part.split_to(self.piece_bytes_max)));
                    }
                    stream.push_back((arrival, part));
                }
            }
            to.words.extend(words.into_iter().map(|frame| (arrival, frame)));
            if any {
                self.due.push(Reverse((arrival, *edge, 1 - side)));
            }
        }
    }

    /// Hands what has arrived by now to the brokers it is for; which these are.
    pub(crate) fn read(&mut self, sites: &mut [Site], now: Time) -> Result<Vec<usize>, Violation> {
        let mut touched = Vec::new();
        while let Some(Reverse((time, edge, side))) = self.due.peek().copied()
            && time <= now
        {
            self.due.pop();
            let Some(end) = self.bridges.get_mut(edge).and_then(|(ends, _)| ends.get_mut(side)) else { continue };
            let Some(site) = sites.get_mut(end.node) else { continue };
            hear(end, site, edge, now)?;
            for (reader, coming) in end.readers.iter_mut().zip(&mut end.coming) {
                let mut arrivals = Arrivals::default();
                while let Some(bytes) = arrived(coming, now) {
                    let read = reader.on_chunk(bytes, now, &mut arrivals);
                    ensure!(read.is_ok(), "broker {} cannot read a lane: {read:?}", end.node);
                }
                for command in arrivals.commands.drain(..) {
                    let outcome = site.driver.apply(command);
                    let refused = matches!(outcome, Outcome::RecordRefused(_) | Outcome::LinkRefused(_));
                    ensure!(!refused, "broker {} refuses what its neighbour says: {outcome:?}", end.node);
                }
                arrivals.batch.flush(&site.shared, now);
            }
            touched.push(end.node);
        }
        touched.sort_unstable();
        touched.dedup();
        Ok(touched)
    }
}

fn end(site: &Site, node: usize, edge: usize) -> Option<End> {
    let link = site.shared.link(site.key(edge)?)?;
    let peer = node_principal(link.edge().peer())?;
    let incoming = Arc::new(Incoming::new(Arc::clone(&site.shared), Arc::clone(link.edge()), peer, Carries::Everybody));
    Some(End {
        node,
        writer: LaneWriter::default(),
        readers: (0..BRIDGE_STREAMS).map(|_| LaneReader::new(Arc::clone(&incoming))).collect(),
        coming: (0..BRIDGE_STREAMS).map(|_| VecDeque::new()).collect(),
        words: VecDeque::new(),
        wrote: 0,
    })
}

/// The next piece that has arrived by now.
fn arrived(coming: &mut VecDeque<(Time, Bytes)>, now: Time) -> Option<Bytes> {
    let is_there = coming.front().is_some_and(|(time, _)| *time <= now);
    is_there.then(|| coming.pop_front()).flatten().map(|(_, bytes)| bytes)
}

/// Takes what has come over the control stream of a bridge.
fn hear(end: &mut End, site: &mut Site, edge: usize, now: Time) -> Result<(), Violation> {
    let Some(edge) = site.key(edge) else { return Ok(()) };
    while let Some(frame) = arrived(&mut end.words, now) {
        let bad = || Violation(format!("broker {} cannot read {frame:?}", end.node));
        let (kind, body) = frame.get(KIND_AT).zip(frame.get(HEAD_BYTES..)).ok_or_else(bad)?;
        let control = Control::decode(*kind, body, CONTROL_BYTES_MAX).map_err(|_| bad())?.ok_or_else(bad)?;
        let message = link_state::from_wire(control).map_err(|_| bad())?.map_err(|_| bad())?;
        site.driver.apply(Command::LinkState { edge, message });
    }
    Ok(())
}
