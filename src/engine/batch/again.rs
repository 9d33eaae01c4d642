//! One message more like the last one: of the same sender, decided on once, for one subscription here. All but its payload
//! is known then, and what is written before it lies ready.

use std::sync::Arc;

use glocal_core::limits::{QUEUED_FRAME_OVERHEAD_BYTES, SHARED_PAYLOAD_BYTES_MIN};
use glocal_core::name::Class;
use glocal_core::port::{Dialect, Sub};
use glocal_core::tenant::Tenant;
use glocal_wire::data::fit_payload;

use super::item::{Frame, Kind, append};
use super::{Batch, Target};

/// What decides on everything of a message but its payload: a sender's handle, and which of its decisions it was.
pub(crate) type Decided = (u32, u64);

/// What the last message was written with.
#[derive(Debug, Default)]
pub(super) struct Head {
    /// Whose it is; nobody's once its target has been given everything.
    of: Option<Decided>,
    /// The place of the target.
    port: usize,
    /// What precedes the payload.
    before: Vec<u8>,
    /// What follows it.
    after: &'static [u8],
    /// The length of payload that is written in `before`.
    payload_bytes: usize,
}

impl Head {
    /// Forgets whose it is.
    pub(super) const fn forget(&mut self) {
        self.of = None;
    }
}

impl Batch {
    /// Whether one message more like the last one would be written as such.
    #[cfg(test)]
    pub(crate) const fn repeats(&self) -> bool {
        self.head.of.is_some()
    }

    /// Has the next message written as if it were the first.
    #[cfg(test)]
    pub(crate) const fn forget_head(&mut self) {
        self.head.forget();
    }

    /// Keeps what the message that was collected last, in one frame for one subscription, begins with. It has neither
    /// reply subject nor headers nor a time to live.
    pub(crate) fn keep_head(&mut self, of: Decided, sub: &Sub, payload_bytes: usize) {
        self.head.forget();
        let after: &[u8] = match sub.port().dialect() {
            Dialect::Native => b"",
            Dialect::Nats { .. } => b"\r\n",
        };
        let Some(target) = self.ports.get(self.last_port).filter(|target| Arc::ptr_eq(&target.to, sub.port())) else {
            return;
        };
        let Some(last) = target.items.last().filter(|last| last.tail.is_none()) else { return };
        let rest = payload_bytes + after.len();
        let begin = target.chunk.len().checked_sub(last.last_bytes);
        let end = target.chunk.len().checked_sub(rest);
        let Some(before) = begin.zip(end).and_then(|(begin, end)| target.chunk.get(begin..end)) else { return };
        self.head.before.clear();
        self.head.before.extend_from_slice(before);
        (self.head.after, self.head.payload_bytes, self.head.port) = (after, payload_bytes, self.last_port);
        self.head.of = Some(of);
    }

    /// Collects a message that differs from the last one in its payload at most. `false` where that cannot be: nothing was
    /// collected or counted then.
    pub(crate) fn again(&mut self, of: Decided, sub: &Sub, tenant: &Arc<Tenant>, class: Class, payload: &[u8]) -> bool {
        if self.head.of != Some(of) || payload.len() >= SHARED_PAYLOAD_BYTES_MIN {
            return false;
        }
        let Some(target) = self.ports.get_mut(self.head.port) else { return false };
        if payload.len() != self.head.payload_bytes {
            if !self.head.after.is_empty()
                || !fit_payload(&mut self.head.before, self.head.payload_bytes, payload.len())
            {
                return false;
            }
            self.head.payload_bytes = payload.len();
        }
        if !sub.deliver_one_of_any() {
            return false;
        }
        self.held += write(target, &self.head, tenant, class, payload) + QUEUED_FRAME_OVERHEAD_BYTES;
        true
    }
}

/// Appends the frame and returns its bytes.
fn write<T>(target: &mut Target<T, ()>, head: &Head, tenant: &Arc<Tenant>, class: Class, payload: &[u8]) -> usize {
    let bytes = head.before.len() + payload.len() + head.after.len();
    target.chunk.reserve(bytes);
    target.chunk.extend_from_slice(&head.before);
    target.chunk.extend_from_slice(payload);
    if !head.after.is_empty() {
        target.chunk.extend_from_slice(head.after);
    }
    let kind = Kind { tenant, class, ttl_ms: None };
    append(&mut target.items, Frame { bytes, tail: None, admitted: false, seq: 0 }, kind, |()| true, || ());
    bytes
}
