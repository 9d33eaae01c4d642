//! One message more like the last one: of the same sender, decided on once, for one subscription here or over one edge. All
//! but its payload and its number is known then, and what is written before it lies ready.

use std::sync::Arc;

use glocal_core::edge::Edge;
use glocal_core::limits::{QUEUED_FRAME_OVERHEAD_BYTES, SHARED_PAYLOAD_BYTES_MIN};
use glocal_core::port::{Dialect, Sub};
use glocal_core::tenant::TenantKey;
use glocal_wire::data::{fit_payload, renumber};

use super::item::append_like;
use super::{Batch, Target};

/// What decides on everything of a message but its payload: a sender's handle, and which of the decisions it was that are
/// made for it where it comes in.
pub(crate) type Decided = (u32, u64);

/// So many target brokers without groups go into one frame whatever else is in it.
pub(crate) const SINGLE_FRAME_BROKERS: usize = 4;

/// Where the only copy of a message goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Only<'t> {
    /// To one subscription here.
    Sub(&'t Sub),
    /// Over an edge, in one frame for all brokers behind it that it is for.
    Edge(&'t Edge),
}

impl Only<'_> {
    /// Whether the edge carries a tenant; a subscription is the tenant's own.
    pub(crate) fn may_take(self, tenant: TenantKey) -> bool {
        match self {
            Self::Sub(_) => true,
            Self::Edge(edge) => edge.may_send(tenant),
        }
    }

    /// What [`Self::may_take`] was asked of, which holds as long as this is the same.
    pub(crate) fn version(self) -> u64 {
        match self {
            Self::Sub(_) => 0,
            Self::Edge(edge) => edge.version(),
        }
    }
}

/// The target that a message was written for, by its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Written {
    /// None, or more than one.
    #[default]
    Otherwise,
    /// A session.
    Port(usize),
    /// A link.
    Link(usize),
}

/// What the last message was written with.
#[derive(Debug, Default)]
pub(super) struct Head {
    /// Whose it is; nobody's once its target has been given everything.
    of: Option<Decided>,
    /// The target.
    at: Written,
    /// How many entries the target has, the last of which it is in.
    items: usize,
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

    /// Whether `before` is made to fit another payload.
    fn fit(&mut self, payload_bytes: usize) -> bool {
        let fits = payload_bytes == self.payload_bytes
            || (self.after.is_empty() && fit_payload(&mut self.before, self.payload_bytes, payload_bytes));
        if fits {
            self.payload_bytes = payload_bytes;
        }
        fits
    }

    /// Takes what precedes the payload from where the last message of a target was written.
    fn take<T, H>(&mut self, target: &Target<T, H>, payload_bytes: usize) -> Option<()> {
        let last = target.items.last().filter(|last| last.tail.is_none() && last.ttl_ms.is_none() && !last.admitted)?;
        let begin = target.chunk.len().checked_sub(last.last_bytes)?;
        let end = target.chunk.len().checked_sub(payload_bytes + self.after.len())?;
        self.before.clear();
        self.before.extend_from_slice(target.chunk.get(begin..end)?);
        (self.payload_bytes, self.items) = (payload_bytes, target.items.len());
        Some(())
    }

    /// Appends a message that fits, and returns its bytes.
    fn write<T, H: Clone>(&mut self, target: &mut Target<T, H>, payload: &[u8], seq: u64) -> usize {
        let bytes = self.before.len() + payload.len() + self.after.len();
        append_like(&mut target.items, bytes, seq);
        self.items = target.items.len();
        target.chunk.reserve(bytes);
        target.chunk.extend_from_slice(&self.before);
        target.chunk.extend_from_slice(payload);
        if !self.after.is_empty() {
            target.chunk.extend_from_slice(self.after);
        }
        bytes
    }
}

/// One message more like the last one, for which everything lies ready.
#[derive(Debug)]
pub(crate) struct Again<'b> {
    batch: &'b mut Batch,
    only: Only<'b>,
    payload: &'b [u8],
    seq: u64,
}

impl Again<'_> {
    /// Collects it.
    pub(crate) fn write(self) {
        let Self { batch: Batch { head, ports, links, held, .. }, only, payload, seq } = self;
        let written = match (only, head.at) {
            (Only::Sub(sub), Written::Port(at)) => {
                // It has no maximum.
                let _ = sub.deliver();
                ports.get_mut(at).map(|target| head.write(target, payload, 0))
            }
            (Only::Edge(_), Written::Link(at)) => links.get_mut(at).map(|target| head.write(target, payload, seq)),
            _ => None,
        };
        *held += written.map_or(0, |bytes| bytes + QUEUED_FRAME_OVERHEAD_BYTES);
        #[cfg(test)]
        testing::took();
    }
}

impl Batch {
    /// Keeps what the message that was collected last begins with, which went nowhere else than to `only`, in one frame. It
    /// has neither reply subject nor headers nor a time to live, and is of a class that nobody acknowledges.
    pub(crate) fn keep_head(&mut self, of: Decided, only: Only<'_>, payload_bytes: usize) {
        self.head.forget();
        self.head.after = match only {
            Only::Sub(sub) if matches!(sub.port().dialect(), Dialect::Nats { .. }) => b"\r\n",
            Only::Sub(_) | Only::Edge(_) => b"",
        };
        self.head.at = if self.frames == 1 { self.written } else { Written::Otherwise };
        let kept = match (only, self.head.at) {
            (Only::Sub(sub), Written::Port(at)) => {
                let target = self.ports.get(at).filter(|target| Arc::ptr_eq(&target.to, sub.port()));
                target.and_then(|target| self.head.take(target, payload_bytes))
            }
            (Only::Edge(edge), Written::Link(at)) => {
                let target = self.links.get(at).filter(|target| target.to.edge().key() == edge.key());
                target.and_then(|target| self.head.take(target, payload_bytes))
            }
            _ => None,
        };
        self.head.of = kept.map(|()| of);
    }

    /// A message that differs from the last one in its payload and its number at most; `None` where it does not, or cannot
    /// be written as if. Nothing is collected or counted yet.
    pub(crate) fn again<'b>(
        &'b mut self,
        of: Decided,
        only: Only<'b>,
        payload: &'b [u8],
        seq: u64,
    ) -> Option<Again<'b>> {
        #[cfg(test)]
        if testing::is_off() {
            return None;
        }
        let entries = match self.head.at {
            Written::Port(at) => self.ports.get(at).map(|target| target.items.len()),
            Written::Link(at) => self.links.get(at).map(|target| target.items.len()),
            Written::Otherwise => None,
        };
        let fits = self.head.of == Some(of)
            && entries == Some(self.head.items)
            && payload.len() < SHARED_PAYLOAD_BYTES_MIN
            && self.head.fit(payload.len())
            && match only {
                Only::Sub(sub) => sub.is_endless(),
                Only::Edge(_) => renumber(&mut self.head.before, seq),
            };
        fits.then_some(Again { batch: self, only, payload, seq })
    }
}

/// What tests want to know of it.
#[cfg(test)]
pub(crate) mod testing {
    use std::cell::Cell;

    thread_local! {
        static OFF: Cell<bool> = const { Cell::new(false) };
        static TAKEN: Cell<usize> = const { Cell::new(0) };
    }

    pub(in crate::batch) fn is_off() -> bool {
        OFF.get()
    }

    pub(in crate::batch) fn took() {
        TAKEN.set(TAKEN.get() + 1);
    }

    /// Messages of this thread that were written as one more like the last one.
    pub(crate) fn taken_again() -> usize {
        TAKEN.get()
    }

    /// Runs something in which every message is looked at for itself.
    pub(crate) fn without_again<T>(run: impl FnOnce() -> T) -> T {
        OFF.set(true);
        let result = run();
        OFF.set(false);
        result
    }
}
