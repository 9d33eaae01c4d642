//! What a batch notes of the frames in a chunk.

use std::sync::Arc;

use bytes::Bytes;
use glocal_core::count::{ClassCounters, Drop as DropReason};
use glocal_core::limits::RUN_BYTES_MAX;
use glocal_core::name::Class;
use glocal_core::sched::QueuedFrame;
use glocal_core::tenant::Tenant;

use super::Message;

/// What is queued as one: a frame, or small ones in a row.
#[derive(Debug)]
pub(super) struct Item<H> {
    pub(super) class: Class,
    pub(super) bytes: usize,
    pub(super) tail: Option<Bytes>,
    pub(super) ttl_ms: Option<u32>,
    pub(super) tenant: Arc<Tenant>,
    pub(super) handles: H,
    /// Whether room was asked for.
    pub(super) admitted: bool,
    /// The number of the first message, for edges.
    pub(super) seq: u64,
    /// Small frames in a row that are queued as one.
    pub(super) frames: u32,
    /// Bytes of the last of them.
    pub(super) last_bytes: usize,
}

/// One frame that was appended to a target's chunk.
pub(super) struct Frame {
    pub(super) bytes: usize,
    pub(super) tail: Option<Bytes>,
    pub(super) admitted: bool,
    pub(super) seq: u64,
}

impl Item<()> {
    /// Frames that are in no chunk of the target's own, since others are given the same.
    pub(super) fn shared(class: Class, tenant: &Arc<Tenant>, frame: QueuedFrame) -> Self {
        let (tenant, tail, frames) = (Arc::clone(tenant), Some(frame.bytes), frame.frames);
        let (handles, admitted) = ((), false);
        Self { class, bytes: 0, tail, ttl_ms: None, tenant, handles, admitted, seq: 0, frames, last_bytes: 0 }
    }
}

impl<H> Item<H> {
    /// The entry of a queue, with its bytes from the chunk.
    pub(super) fn into_frame(self, chunk: &mut Bytes) -> (Class, QueuedFrame, Arc<Tenant>) {
        let frame = match self.tail {
            Some(all) if self.bytes == 0 => QueuedFrame::new(all),
            tail => QueuedFrame { tail, ..QueuedFrame::new(chunk.split_to(self.bytes.min(chunk.len()))) },
        };
        let frame = frame.with_ttl_ms(self.ttl_ms).with_frames(self.frames).admitted(self.admitted);
        (self.class, frame, self.tenant)
    }

    /// Takes in one frame more.
    const fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.frames += 1;
        self.last_bytes = bytes;
    }

    /// Where it is counted.
    pub(super) fn counters(&self) -> &ClassCounters {
        self.tenant.counters().class(self.class)
    }

    /// Counts what went no further because its target is gone.
    pub(super) fn gone(&self) {
        self.counters().dropped(DropReason::Gone, u64::from(self.frames));
    }
}

/// Notes a frame that was appended to a target's chunk; small ones in a row become one entry of the queue, for which
/// nothing is made or moved.
pub(super) fn append<H>(
    items: &mut Vec<Item<H>>,
    frame: Frame,
    message: &Message<'_>,
    same: impl FnOnce(&H) -> bool,
    handles: impl FnOnce() -> H,
) {
    let (class, ttl_ms, tenant) = (message.destination.class(), message.ttl_ms, message.tenant);
    let Frame { bytes, tail, admitted, seq } = frame;
    let joins = |last: &&mut Item<H>| {
        last.class == class
            && last.bytes + bytes <= RUN_BYTES_MAX
            && last.tail.is_none()
            && tail.is_none()
            && last.ttl_ms.is_none()
            && ttl_ms.is_none()
            && last.admitted == admitted
            && Arc::ptr_eq(&last.tenant, tenant)
            && same(&last.handles)
    };
    match items.last_mut().filter(joins) {
        Some(last) => last.add(bytes),
        None => {
            let (tenant, handles) = (Arc::clone(tenant), handles());
            let item =
                Item { class, bytes, tail, ttl_ms, tenant, handles, admitted, seq, frames: 1, last_bytes: bytes };
            items.push(item);
        }
    }
}

/// Notes a frame that was appended to a target's chunk and is like the last one: small, and of all that this one is of.
pub(super) fn append_like<H: Clone>(items: &mut Vec<Item<H>>, bytes: usize, seq: u64) {
    match items.last_mut() {
        Some(last) if last.bytes + bytes <= RUN_BYTES_MAX => last.add(bytes),
        Some(last) => {
            let (tenant, handles) = (Arc::clone(&last.tenant), last.handles.clone());
            let more = Item { tenant, handles, bytes, seq, tail: None, frames: 1, last_bytes: bytes, ..*last };
            items.push(more);
        }
        None => {}
    }
}
