//! Publishes in a row that are alike but for their payloads: what precedes the payload is compared as it came, byte by byte,
//! and nothing of it is parsed.

use glocal_core::time::Time;
use glocal_wire::data::{DataFrame, like_unnumbered};

use super::NativeSession;
use crate::client::Effects;

/// What the last publish began with, where another one may be like it.
#[derive(Debug, Default)]
pub(super) struct Like {
    /// Everything before its payload; empty where no other one may be.
    head: Vec<u8>,
    name_bytes: usize,
}

impl Like {
    /// Forgets the last publish, as another one is looked at for itself.
    pub(super) fn forget(&mut self) {
        self.head.clear();
    }
}

impl NativeSession {
    /// Takes publishes at the front of `bytes` that are like the last one, and returns their bytes; none where commands are
    /// waiting. What is not as simple is left where it is.
    pub(super) fn take_again(&mut self, bytes: &[u8], now: Time, effects: &mut Effects) -> usize {
        let Self { client: Some(client), like: Like { head, name_bytes }, identity, .. } = self else { return 0 };
        if head.is_empty() || !effects.commands.is_empty() {
            return 0;
        }
        let (shared, mut used) = (&*identity.shared, 0);
        while let Some(payload) = bytes.get(used..).and_then(|rest| like_unnumbered(rest, head)) {
            let fits = payload.len() <= shared.max_payload_bytes as usize;
            if !fits || !client.offer_again(shared, (*name_bytes, payload), now, effects) {
                break;
            }
            used += head.len() + payload.len();
        }
        used
    }

    /// Notes what the publish in `bytes` began with, where another one may be like it.
    pub(super) fn note_like(&mut self, frame: &DataFrame<'_>, bytes: &[u8]) {
        let may_repeat = self.client.as_ref().is_some_and(|client| client.may_repeat(frame.name));
        let before = bytes.len().checked_sub(frame.payload.len()).and_then(|before| bytes.get(..before));
        if let Some(before) = before.filter(|_| may_repeat && frame.seq.is_none()) {
            self.like.head.extend_from_slice(before);
            self.like.name_bytes = frame.name.len();
        }
    }
}
