//! What a live bridge carries, while bundle and configuration change at either end (DESIGN section 6).
//!
//! Each end tells its set again after a change, as codes under a key of the connection, with a generation. An end accepts what
//! both sets have as soon as it knows both; it sends of that what the peer has said to go by. So a tenant that comes to an
//! edge is never sent before the other end accepts it, and one that goes is refused at once at the end that knows.

use std::collections::{HashSet, VecDeque};

use glocal_core::edge::TenantSet;
use glocal_core::limits::{ALLOWED_SET_MACS_MAX, ALLOWED_UPDATES_MAX, ALLOWED_UPDATES_PER_MINUTE_MAX, TENANTS_MAX};
use glocal_core::tenant::TenantKey;
use glocal_core::time::Time;
use glocal_wire::control::{AllowedApplied, AllowedUpdate};

use crate::handshake::{HandshakeError, Mac, PeerSet};

/// One minute, in milliseconds.
const MINUTE_MS: u64 = 60_000;

/// The two sets of one bridge.
#[derive(Debug)]
pub struct Allowance {
    own: Vec<(TenantKey, Mac)>,
    /// Grows with every change of what this end goes by.
    revision: u64,
    generation: u64,
    /// Sets told to the peer that it has not said to go by yet, oldest first.
    told: VecDeque<(u64, HashSet<Mac>)>,
    /// The set of this end that the peer goes by.
    confirmed: HashSet<Mac>,
    peer: HashSet<Mac>,
    arriving: Option<(u64, HashSet<Mac>)>,
    updates: u32,
    minute: Time,
}

/// A set of the peer that has arrived as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// To be sent once the set is gone by.
    pub generation: u64,
    /// Epoch and version of the bundle the peer goes by.
    pub bundle: (u64, u64),
}

impl Allowance {
    /// The sets that the handshake has settled: this end's by what it goes by in this `revision`, and the peer's.
    #[must_use]
    pub fn settled(own: Vec<(TenantKey, Mac)>, peer: PeerSet, revision: u64, now: Time) -> Self {
        let confirmed = own.iter().map(|(_, mac)| *mac).collect();
        Self {
            own,
            revision,
            generation: 0,
            told: VecDeque::new(),
            confirmed,
            peer: peer.into_macs(),
            arriving: None,
            updates: 0,
            minute: now,
        }
    }

    /// What is accepted: what both ends allow, as far as this one knows.
    #[must_use]
    pub fn accepts(&self) -> TenantSet {
        self.own.iter().filter(|(_, mac)| self.peer.contains(mac)).map(|(key, _)| *key).collect()
    }

    /// What may be sent: of what is accepted, what the peer goes by.
    #[must_use]
    pub fn sends(&self) -> TenantSet {
        let sent = |mac: &Mac| self.peer.contains(mac) && self.confirmed.contains(mac);
        self.own.iter().filter(|(_, mac)| sent(mac)).map(|(key, _)| *key).collect()
    }

    /// This end goes by something else: another set perhaps, or other sections of `bundle`, from which the peer learns that
    /// it may tell again what could not be placed before. The frames are to be sent once this end accepts by the set; there
    /// are none when the revision is the same.
    pub fn change(&mut self, own: Vec<(TenantKey, Mac)>, bundle: (u64, u64), revision: u64) -> Vec<AllowedUpdate> {
        if self.revision == revision {
            return Vec::new();
        }
        let set = own.iter().map(|(_, mac)| *mac).collect::<HashSet<_>>();
        self.own = own;
        self.revision = revision;
        self.generation += 1;
        if self.told.len() >= ALLOWED_UPDATES_MAX {
            // A peer that does not answer is sent nothing new; what it went by before stays.
            self.told.pop_front();
        }
        let mut sorted: Vec<Mac> = set.iter().copied().collect();
        // An order that tells nothing.
        sorted.sort_unstable();
        self.told.push_back((self.generation, set));
        let frame = |macs: &[Mac]| AllowedUpdate {
            generation: self.generation,
            epoch: bundle.0,
            version: bundle.1,
            macs: macs.to_vec(),
            last: false,
        };
        let mut frames: Vec<_> = sorted.chunks(ALLOWED_SET_MACS_MAX).map(frame).collect();
        if frames.is_empty() {
            frames.push(frame(&[]));
        }
        if let Some(last) = frames.last_mut() {
            last.last = true;
        }
        frames
    }

    /// Takes one frame of the peer's set; tells when the set is whole and the sets are to be looked at again.
    ///
    /// # Errors
    /// [`HandshakeError::TooManyTenants`], and [`HandshakeError::TooManyUpdates`] for a peer that changes all the time.
    pub fn on_update(&mut self, frame: AllowedUpdate, now: Time) -> Result<Option<Arrived>, HandshakeError> {
        let AllowedUpdate { generation, epoch, version, macs, last } = frame;
        let (arriving, set) = self.arriving.get_or_insert_with(|| (generation, HashSet::new()));
        if *arriving != generation {
            (*arriving, *set) = (generation, HashSet::new());
        }
        set.extend(macs);
        if set.len() > TENANTS_MAX {
            return Err(HandshakeError::TooManyTenants);
        }
        if !last {
            return Ok(None);
        }
        if now >= self.minute.plus_millis(MINUTE_MS) {
            (self.minute, self.updates) = (now, 0);
        }
        self.updates += 1;
        if self.updates > ALLOWED_UPDATES_PER_MINUTE_MAX {
            return Err(HandshakeError::TooManyUpdates);
        }
        self.peer = self.arriving.take().map(|(_, set)| set).unwrap_or_default();
        Ok(Some(Arrived { generation, bundle: (epoch, version) }))
    }

    /// The peer goes by the set of this generation; whether that was news.
    pub fn on_applied(&mut self, frame: &AllowedApplied) -> bool {
        let mut news = false;
        while self.told.front().is_some_and(|(generation, _)| *generation <= frame.generation) {
            if let Some((generation, set)) = self.told.pop_front()
                && generation == frame.generation
            {
                self.confirmed = set;
                news = true;
            }
        }
        news
    }
}

#[cfg(test)]
mod tests;
