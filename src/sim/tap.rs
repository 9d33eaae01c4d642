//! A tap on one direction of one bridge: it reads what crosses the wire with a parser of its own.
//!
//! It shares no code with the engine, so that a mistake there is not made here as well. It checks that every lane is of
//! a tenant that may cross, and counts the messages that crossed as a whole.

use std::collections::BTreeMap;

use crate::plan::Tenants;

/// Messages by (tenant, class).
pub type Tally = BTreeMap<(usize, u8), u64>;

/// What went wrong on the wire.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireFault {
    /// A lane of a tenant that the edge forbids.
    #[error("a lane of tenant '{0}' was opened on an edge that forbids it")]
    Forbidden(String),
    /// Something that no correct sender writes.
    #[error("the sender broke the protocol: {0}")]
    Broken(&'static str),
}

#[derive(Debug, Default)]
struct Lane {
    tenant: usize,
    class: u8,
    partial: Vec<u8>,
}

/// One direction of one bridge.
#[derive(Debug)]
pub struct Tap {
    names: Vec<String>,
    allowed: Tenants,
    streams: Vec<Vec<u8>>,
    lanes: BTreeMap<u32, Lane>,
    newest: Vec<u32>,
    /// Whole messages seen.
    pub messages: Tally,
    /// Whole records of presence seen.
    pub records: u64,
}

impl Tap {
    /// A tap on an edge that may carry `allowed`, over `streams` streams; tenants are known by `names`.
    #[must_use]
    pub fn new(names: Vec<String>, allowed: Tenants, streams: usize) -> Self {
        Self {
            names,
            allowed,
            streams: vec![Vec::new(); streams],
            lanes: BTreeMap::new(),
            newest: vec![0; streams],
            messages: Tally::new(),
            records: 0,
        }
    }

    /// Takes bytes of one stream.
    ///
    /// # Errors
    /// What should not be there.
    pub fn see(&mut self, stream: usize, bytes: &[u8]) -> Result<(), WireFault> {
        let mut buffer = std::mem::take(self.streams.get_mut(stream).ok_or(WireFault::Broken("stream"))?);
        buffer.extend_from_slice(bytes);
        let mut rest = buffer.as_slice();
        while let Some((header, after)) = rest.split_first_chunk::<12>() {
            let [i0, i1, i2, i3, l0, l1, l2, l3, flags, ..] = *header;
            let lane = u32::from_le_bytes([i0, i1, i2, i3]);
            let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
            if len > 16 * 1024 {
                return Err(WireFault::Broken("slice too long"));
            }
            let Some((data, after)) = after.split_at_checked(len) else { break };
            self.slice(stream, lane, flags, data)?;
            rest = after;
        }
        let left = rest.to_vec();
        if let Some(slot) = self.streams.get_mut(stream) {
            *slot = left;
        }
        Ok(())
    }

    fn slice(&mut self, stream: usize, lane: u32, flags: u8, data: &[u8]) -> Result<(), WireFault> {
        let data = match flags {
            0 => data,
            1 => self.open(stream, lane, data)?,
            2 => {
                let gone = self.lanes.remove(&lane).ok_or(WireFault::Broken("reset of no lane"))?;
                return if gone.partial.is_empty() { Ok(()) } else { Err(WireFault::Broken("reset inside a frame")) };
            }
            _ => return Err(WireFault::Broken("flags")),
        };
        let state = self.lanes.get_mut(&lane).ok_or(WireFault::Broken("bytes of no lane"))?;
        state.partial.extend_from_slice(data);
        let mut rest = state.partial.as_slice();
        while let Some((&[a, b, c, d, kind], _)) = rest.split_first_chunk::<5>() {
            let len = u32::from_le_bytes([a, b, c, d]) as usize + 4;
            let Some((_, after)) = rest.split_at_checked(len) else { break };
            match kind {
                0x42 => *self.messages.entry((state.tenant, state.class)).or_default() += 1,
                0x38 | 0x39 | 0x3c | 0x3d => self.records += 1,
                0x18 | 0x19 | 0x1d | 0x1e => {}
                _ => return Err(WireFault::Broken("a kind that no lane has")),
            }
            rest = after;
        }
        state.partial = rest.to_vec();
        Ok(())
    }

    fn open<'d>(&mut self, stream: usize, lane: u32, data: &'d [u8]) -> Result<&'d [u8], WireFault> {
        match self.newest.get_mut(stream) {
            Some(newest) if lane > *newest => *newest = lane,
            _ => return Err(WireFault::Broken("a lane number was used again")),
        }
        let (&[class, len], rest) = data.split_first_chunk::<2>().ok_or(WireFault::Broken("open"))?;
        let (name, rest) = rest.split_at_checked(usize::from(len)).ok_or(WireFault::Broken("open"))?;
        let name = String::from_utf8_lossy(name).into_owned();
        let tenant = self.names.iter().position(|n| *n == name);
        match tenant.filter(|t| self.allowed.contains(t)) {
            Some(tenant) => {
                self.lanes.insert(lane, Lane { tenant, class, partial: Vec::new() });
                Ok(rest)
            }
            None => Err(WireFault::Forbidden(name)),
        }
    }

    /// Lanes open now.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }
}
