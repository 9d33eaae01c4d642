//! One bridge of the world: bytes with delay on sixteen streams in each direction, until it breaks.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use glocal_core::limits::BRIDGE_STREAMS;
use glocal_core::time::Time;
use glocal_engine::lane_reader::{Incoming, LaneReader};
use glocal_engine::lane_writer::{LaneWriter, StreamWrite};
use glocal_engine::liveness::Liveness;

use crate::fault::is_probe;
use crate::oracle::Violation;
use crate::plan::{Plan, PlannedEdge};
use crate::tap::{Tally, Tap};

/// Where one end stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The handshake ends then.
    Opening(Time),
    /// The control half was told, and has not taken note yet.
    Announced,
    /// Up.
    Up,
    /// The bridge is lost; the end learns it then.
    Losing(Time),
    /// Nothing more to do.
    Over,
}

/// One end.
#[derive(Debug)]
pub struct End {
    /// Where it stands.
    pub stage: Stage,
    /// Its writer.
    pub writer: LaneWriter,
    /// Its readers, once it is up.
    pub readers: Vec<LaneReader>,
    /// Bytes on their way to it, by stream.
    pub coming: Vec<VecDeque<(Time, Bytes)>>,
    /// What it knows of the peer's life, once it is up.
    pub life: Option<Liveness>,
    /// Frames of the control stream on their way to it.
    pub words: VecDeque<(Time, Bytes)>,
    /// The other end's count of full lists, on its way.
    pub ready: Option<(Time, u32)>,
    /// What this end wrote.
    pub wrote: Tap,
    /// What this end read.
    pub read: Tap,
}

impl End {
    /// The bridge is lost for this end, which learns it then; nothing arrives any more.
    pub fn lose(&mut self, at: Time) {
        self.coming.iter_mut().for_each(VecDeque::clear);
        self.words.clear();
        self.ready = None;
        self.stage = match self.stage {
            Stage::Opening(_) | Stage::Over => Stage::Over,
            Stage::Losing(before) => Stage::Losing(before),
            Stage::Announced | Stage::Up => Stage::Losing(at),
        };
    }
}

/// One connection between two brokers.
#[derive(Debug)]
pub struct Bridge {
    /// Its number in the world.
    pub number: u64,
    /// Whether it broke: what is written from now on is lost.
    pub broken: bool,
    /// Its ends, in the order of the plan.
    pub ends: [End; 2],
}

impl Bridge {
    /// A bridge of `edge` of which the handshake ends at the given times.
    #[must_use]
    pub fn new(number: u64, plan: &Plan, edge: &PlannedEdge, up: [Time; 2]) -> Self {
        let names: Vec<String> = plan.tenants.iter().map(ToString::to_string).collect();
        let tap = || Tap::new(names.clone(), edge.effective(), BRIDGE_STREAMS);
        let end = |time| End {
            stage: Stage::Opening(time),
            writer: LaneWriter::default(),
            readers: Vec::new(),
            coming: (0..BRIDGE_STREAMS).map(|_| VecDeque::new()).collect(),
            life: None,
            words: VecDeque::new(),
            ready: None,
            wrote: tap(),
            read: tap(),
        };
        Self { number, broken: false, ends: up.map(end) }
    }

    /// One end and the other.
    pub const fn pair(&mut self, side: usize) -> (&mut End, &mut End) {
        let [a, b] = &mut self.ends;
        if side == 0 { (a, b) } else { (b, a) }
    }

    /// Carries writes of one end towards the other; they arrive after `delay_micros`, in order by stream.
    ///
    /// # Errors
    /// What should not cross.
    pub fn carry(
        &mut self,
        side: usize,
        writes: Vec<StreamWrite>,
        now: Time,
        delay_micros: u64,
    ) -> Result<u64, Violation> {
        let broken = self.broken;
        let number = self.number;
        let (end, other) = self.pair(side);
        let mut bytes = 0;
        for write in writes {
            for part in write.parts {
                bytes += part.len() as u64;
                end.wrote
                    .see(write.stream, &part)
                    .map_err(|fault| Violation(format!("on the wire of bridge {number}: {fault}")))?;
                if let Some(stream) = other.coming.get_mut(write.stream).filter(|_| !broken) {
                    let earliest = stream.back().map_or(now, |(time, _)| *time);
                    stream.push_back((earliest.max(now.plus_micros(delay_micros)), part));
                }
            }
        }
        Ok(bytes)
    }

    /// Whether nothing is on its way.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let empty = |end: &End| {
            let told = end.words.iter().all(|(_, frame)| is_probe(frame));
            end.ready.is_none() && told && end.coming.iter().all(VecDeque::is_empty)
        };
        !self.broken && self.ends.iter().all(|end| end.stage == Stage::Up && empty(end))
    }

    /// Whole messages that were written and never read: what a broken bridge lost on the way.
    #[must_use]
    pub fn lost(&self) -> Tally {
        let [a, b] = &self.ends;
        let mut lost = BTreeMap::new();
        for (from, to) in [(a, b), (b, a)] {
            for (key, written) in &from.wrote.messages {
                let read = to.read.messages.get(key).copied().unwrap_or(0);
                *lost.entry(*key).or_insert(0) += written - read.min(*written);
            }
        }
        lost
    }
}

impl End {
    /// Starts to read.
    pub fn open(&mut self, incoming: &Arc<Incoming>, now: Time) {
        self.stage = Stage::Up;
        self.life = Some(Liveness::new(now));
        self.readers = (0..BRIDGE_STREAMS).map(|_| LaneReader::new(Arc::clone(incoming))).collect();
    }
}
