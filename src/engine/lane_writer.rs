//! The sending half of a bridge: slices in scheduler order, each on the stream its lane is pinned to.
//!
//! Small parts are joined: QUIC walks a stream's unacknowledged pieces for every packet, so that thousands of small ones
//! cost several times what one more copy does.

use bytes::{Bytes, BytesMut};
use glocal_core::count::Drop as DropReason;
use glocal_core::limits::{BRIDGE_STREAMS, LANE_IDLE_MS, PACKET_OVERHEAD_BYTES, SHARED_PAYLOAD_BYTES_MIN};
use glocal_core::name::Class;
use glocal_core::tenant::{TenantKey, Tenants};
use glocal_core::time::Time;
use glocal_wire::slice::{OpenHeader, SLICE_HEADER_BYTES, SliceHeader, SliceKind};
use hashbrown::HashMap;

use crate::link::{EdgeLanes, Link};
use crate::shared::Shared;

/// Bytes for one data stream.
#[derive(Debug)]
pub struct StreamWrite {
    /// Whose lanes they are of; of several tenants, on a shared edge, the first one's.
    pub tenant: TenantKey,
    /// The stream, below [`BRIDGE_STREAMS`].
    pub stream: usize,
    /// What to write, in order.
    pub parts: Vec<Bytes>,
}

/// What comes next on a bridge that has something queued.
#[derive(Debug)]
pub enum Due {
    /// These writes, now.
    Writes(Vec<StreamWrite>),
    /// The edge is shaped and may not send before this moment.
    Later(Time),
}

#[derive(Debug)]
struct OutLane {
    id: u32,
    used: Time,
}

/// The lanes this side has opened on one bridge, or on the tenants' connections beside it.
#[derive(Debug, Default)]
pub struct LaneWriter {
    newest_lane: u32,
    lanes: HashMap<(TenantKey, Class), OutLane>,
    parts: Vec<Bytes>,
    joined: BytesMut,
    /// Bytes of heads written since the last [`Self::next`].
    head_bytes: usize,
}

/// Memory taken at once for joined parts, in bytes.
const JOINED_BYTES: usize = 64 * 1024;

impl LaneWriter {
    /// As [`Self::fill`]; `None` only when nothing is queued that may go before [`glocal_core::sched::Hdwrr::wakes_at`]. Whoever
    /// gets [`Due::Later`] comes back by itself then: pushes do not wake it, see [`glocal_core::inbox::Inbox::poll_drain`].
    pub fn next(
        &mut self,
        link: &Link,
        lanes: &mut EdgeLanes,
        shared: &Shared,
        now: Time,
        max_bytes: usize,
    ) -> Option<Due> {
        let writes = self.fill(link, lanes, shared, now, max_bytes);
        let heads = std::mem::take(&mut self.head_bytes);
        if lanes.sched().shaped_rate().is_some() {
            // The scheduler has charged what is in the slices: their heads and packets come on top.
            let bytes: usize = writes.iter().flat_map(|write| &write.parts).map(Bytes::len).sum();
            let packets = bytes.div_ceil(lanes.sched().packet_bytes().saturating_sub(PACKET_OVERHEAD_BYTES).max(1));
            lanes.sched_mut().charge(heads + packets * PACKET_OVERHEAD_BYTES, now);
        }
        if writes.is_empty() { lanes.sched_mut().ready_at(now).map(Due::Later) } else { Some(Due::Writes(writes)) }
    }

    /// Takes up to `max_bytes` from the lanes, as writes to streams in the order in which they are to happen. The
    /// sender's check is made a second time here, since a queue may be older than a narrowing.
    pub fn fill(
        &mut self,
        link: &Link,
        lanes: &mut EdgeLanes,
        shared: &Shared,
        now: Time,
        max_bytes: usize,
    ) -> Vec<StreamWrite> {
        let mut writes: Vec<StreamWrite> = Vec::new();
        let mut filled = 0;
        if self.joined.capacity() == 0 {
            self.joined.reserve(JOINED_BYTES);
        }
        let tenants = shared.tenants();
        let apart = link.edge().is_dedicated();
        writes.extend(self.reset_purged(lanes, &tenants));
        while filled < max_bytes {
            self.parts.clear();
            let Some(slice) = lanes.next_slice(now, &mut self.parts) else { break };
            let Some(tenant) = tenants.by_key(slice.tenant).filter(|t| link.edge().may_send(t.key())) else {
                let id = tenants.by_key(slice.tenant).map(|t| {
                    // The slice in hand goes with the rest.
                    let reason = link.edge().reason(DropReason::Gone);
                    t.counters().class(slice.class).dropped(reason, 1);
                    lanes.note_lost(slice.tenant, slice.class, reason, 1);
                    t.id().to_string()
                });
                lanes.purge(slice.tenant, &tenants);
                self.finish_part(writes.last_mut());
                writes.extend(id.and_then(|id| self.reset_tenant(slice.tenant, &id)));
                continue;
            };
            let stream = stream_of(tenant.id().as_str());
            let is_next = |last: &StreamWrite| last.stream == stream && (!apart || last.tenant == slice.tenant);
            if !writes.last().is_some_and(is_next) {
                self.finish_part(writes.last_mut());
                writes.push(StreamWrite { tenant: slice.tenant, stream, parts: Vec::new() });
            }
            let before = self.joined.len();
            self.head(slice.tenant, slice.class, tenant.id().as_str(), slice.bytes, now);
            filled += self.joined.len() - before + slice.bytes;
            self.join(writes.last_mut());
        }
        self.finish_part(writes.last_mut());
        lanes.count_drops(&tenants);
        writes
    }

    /// Moves the parts of one slice behind its head: small ones joined, large ones as they are.
    fn join(&mut self, mut write: Option<&mut StreamWrite>) {
        let mut parts = std::mem::take(&mut self.parts);
        for part in parts.drain(..) {
            if part.len() < SHARED_PAYLOAD_BYTES_MIN {
                self.joined.extend_from_slice(&part);
            } else {
                self.finish_part(write.as_deref_mut());
                if let Some(write) = write.as_deref_mut() {
                    write.parts.push(part);
                }
            }
        }
        // Its memory serves the next slice.
        self.parts = parts;
    }

    /// Ends the part that is being joined.
    fn finish_part(&mut self, write: Option<&mut StreamWrite>) {
        if let Some(write) = write.filter(|_| !self.joined.is_empty()) {
            write.parts.push(self.joined.split().freeze());
        }
    }

    fn head(&mut self, tenant: TenantKey, class: Class, id: &str, bytes: usize, now: Time) {
        let out = &mut self.joined;
        let open = OpenHeader { class, tenant: id };
        let (lane, kind, extra) = match self.lanes.get_mut(&(tenant, class)) {
            Some(lane) => {
                lane.used = now;
                (lane.id, SliceKind::Data, 0)
            }
            None => {
                self.newest_lane += 1;
                self.lanes.insert((tenant, class), OutLane { id: self.newest_lane, used: now });
                (self.newest_lane, SliceKind::Open, open.encoded_bytes())
            }
        };
        let len = u32::try_from(bytes + extra).unwrap_or(u32::MAX);
        let encoded = SliceHeader { lane, len, kind }.encode_into(out);
        debug_assert!(encoded.is_ok(), "slices are cut to leave room for the open header: {encoded:?}");
        self.head_bytes += SLICE_HEADER_BYTES + extra;
        if kind == SliceKind::Open {
            let encoded = open.encode_into(out);
            debug_assert!(encoded.is_ok(), "tenant ids have the form of lane tenants: {encoded:?}");
        }
    }

    /// Resets the lanes of tenants that were narrowed away since the last call: what comes after must find them closed.
    fn reset_purged(&mut self, lanes: &mut EdgeLanes, tenants: &Tenants) -> Vec<StreamWrite> {
        let purged = lanes.take_purged();
        purged.iter().filter_map(|key| self.reset_tenant(*key, tenants.by_key(*key)?.id().as_str())).collect()
    }

    /// Resets every open lane of a tenant whose queue was purged, perhaps in the middle of a frame.
    fn reset_tenant(&mut self, tenant: TenantKey, id: &str) -> Option<StreamWrite> {
        let mut lanes: Vec<_> = self.lanes.extract_if(|(t, _), _| *t == tenant).map(|(_, lane)| lane.id).collect();
        lanes.sort_unstable();
        let parts: Vec<_> = lanes.into_iter().map(reset).collect();
        (!parts.is_empty()).then(|| StreamWrite { tenant, stream: stream_of(id), parts })
    }

    /// Forgets the lanes of a tenant whose connection is another one now: its lanes are opened afresh there. Numbers go on,
    /// as those of lanes on one stream must.
    pub fn forget(&mut self, tenant: TenantKey) {
        self.lanes.retain(|(of, _), _| *of != tenant);
    }

    /// Resets the lanes that have been empty and unused for [`LANE_IDLE_MS`], so that neither side remembers them.
    pub fn sweep(&mut self, lanes: &mut EdgeLanes, shared: &Shared, now: Time) -> Vec<StreamWrite> {
        let mut idle: Vec<_> = self
            .lanes
            .iter()
            .filter(|((tenant, class), lane)| {
                now >= lane.used.plus_millis(LANE_IDLE_MS) && lanes.sched().lane_backlog(*tenant, *class) == 0
            })
            .map(|(key, lane)| (*key, lane.id))
            .collect();
        // The map's order is another in every process.
        idle.sort_unstable_by_key(|(_, id)| *id);
        let mut writes = self.reset_purged(lanes, &shared.tenants());
        for ((tenant, class), id) in idle {
            if !self.lanes.contains_key(&(tenant, class)) {
                continue;
            }
            self.lanes.remove(&(tenant, class));
            lanes.forget_lane(tenant, class);
            if let Some(held) = shared.tenants().by_key(tenant) {
                writes.push(StreamWrite { tenant, stream: stream_of(held.id().as_str()), parts: vec![reset(id)] });
            }
        }
        writes
    }

    /// Lanes open now.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }
}

fn reset(lane: u32) -> Bytes {
    let mut header = BytesMut::new();
    let encoded = SliceHeader { lane, len: 0, kind: SliceKind::Reset }.encode_into(&mut header);
    debug_assert!(encoded.is_ok(), "a reset has no length: {encoded:?}");
    header.freeze()
}

/// The stream of a tenant's lanes: FNV-1a of its id (DESIGN section 6).
fn stream_of(tenant: &str) -> usize {
    let hash = tenant.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    usize::try_from(hash % BRIDGE_STREAMS as u64).unwrap_or(0)
}
