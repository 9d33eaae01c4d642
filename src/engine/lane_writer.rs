//! The sending half of a bridge: slices in scheduler order, each on the stream its lane is pinned to.

use bytes::{Bytes, BytesMut};
use glocal_core::limits::{BRIDGE_STREAMS, LANE_IDLE_MS};
use glocal_core::name::Class;
use glocal_core::tenant::TenantKey;
use glocal_core::time::Time;
use glocal_wire::slice::{OpenHeader, SliceHeader, SliceKind};
use hashbrown::HashMap;

use crate::link::{EdgeLanes, Link};
use crate::shared::Shared;

/// Bytes for one data stream.
#[derive(Debug)]
pub struct StreamWrite {
    /// The stream, below [`BRIDGE_STREAMS`].
    pub stream: usize,
    /// What to write, in order.
    pub parts: Vec<Bytes>,
}

#[derive(Debug)]
struct OutLane {
    id: u32,
    used: Time,
}

/// The lanes this side has opened on one bridge.
#[derive(Debug, Default)]
pub struct LaneWriter {
    newest_lane: u32,
    lanes: HashMap<(TenantKey, Class), OutLane>,
    parts: Vec<Bytes>,
}

impl LaneWriter {
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
        while filled < max_bytes {
            self.parts.clear();
            let Some(slice) = lanes.next_slice(now, &mut self.parts) else { break };
            let tenants = shared.policy.tenants();
            let Some(tenant) = tenants.by_key(slice.tenant).filter(|t| link.edge().may_send(t.key())) else {
                let id = tenants.by_key(slice.tenant).map(|t| t.id().to_string());
                lanes.purge(slice.tenant, tenants);
                writes.extend(id.and_then(|id| self.reset_tenant(slice.tenant, &id)));
                continue;
            };
            let stream = stream_of(tenant.id().as_str());
            let mut header = BytesMut::new();
            self.head(slice.tenant, slice.class, tenant.id().as_str(), slice.bytes, now, &mut header);
            filled += header.len() + slice.bytes;
            let index = match writes.last() {
                Some(last) if last.stream == stream => writes.len() - 1,
                _ => {
                    writes.push(StreamWrite { stream, parts: Vec::new() });
                    writes.len() - 1
                }
            };
            if let Some(write) = writes.get_mut(index) {
                write.parts.push(header.freeze());
                write.parts.append(&mut self.parts);
            }
        }
        lanes.count_drops(shared.policy.tenants());
        writes
    }

    fn head(&mut self, tenant: TenantKey, class: Class, id: &str, bytes: usize, now: Time, out: &mut BytesMut) {
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
        if kind == SliceKind::Open {
            let encoded = open.encode_into(out);
            debug_assert!(encoded.is_ok(), "tenant ids have the form of lane tenants: {encoded:?}");
        }
    }

    /// Resets every open lane of a tenant whose queue was purged, perhaps in the middle of a frame.
    fn reset_tenant(&mut self, tenant: TenantKey, id: &str) -> Option<StreamWrite> {
        let lanes: Vec<_> = self.lanes.extract_if(|(t, _), _| *t == tenant).map(|(_, lane)| lane.id).collect();
        let parts: Vec<_> = lanes.into_iter().map(reset).collect();
        (!parts.is_empty()).then(|| StreamWrite { stream: stream_of(id), parts })
    }

    /// Resets the lanes that have been empty and unused for [`LANE_IDLE_MS`], so that neither side remembers them.
    pub fn sweep(&mut self, lanes: &mut EdgeLanes, shared: &Shared, now: Time) -> Vec<StreamWrite> {
        let idle: Vec<_> = self
            .lanes
            .iter()
            .filter(|((tenant, class), lane)| {
                now >= lane.used.plus_millis(LANE_IDLE_MS) && lanes.sched().lane_backlog(*tenant, *class) == 0
            })
            .map(|(key, lane)| (*key, lane.id))
            .collect();
        let mut writes = Vec::new();
        for ((tenant, class), id) in idle {
            self.lanes.remove(&(tenant, class));
            lanes.forget_lane(tenant, class);
            if let Some(tenant) = shared.policy.tenants().by_key(tenant) {
                writes.push(StreamWrite { stream: stream_of(tenant.id().as_str()), parts: vec![reset(id)] });
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
