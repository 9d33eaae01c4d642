//! Publishes in a row that are alike but for their payloads: what precedes the payload is compared as it came, byte by byte,
//! and nothing of it is parsed.

use glocal_core::time::Time;

use super::{Client, Effects};
use crate::shared::Shared;

/// What the last publish of a session began with, where another one may be like it.
#[derive(Debug, Default)]
pub(crate) struct Like {
    /// Everything before its payload, or what of that stays the same; empty where no other one may be.
    head: Vec<u8>,
    name_bytes: usize,
}

impl Like {
    /// Forgets the last publish, as what comes is looked at for itself.
    pub(crate) fn forget(&mut self) {
        self.head.clear();
    }

    /// Notes what a publish to `name` began with that was just offered. It has neither reply subject nor headers nor a time
    /// to live, and no number by which its sender would be told of it.
    pub(crate) fn note(&mut self, client: &Client, name: &[u8], head: &[u8]) {
        if client.may_repeat(name) {
            self.head.clear();
            self.head.extend_from_slice(head);
            self.name_bytes = name.len();
        }
    }

    /// Takes publishes at the front of `bytes` that are like the last one, and returns their bytes; none where commands are
    /// waiting. What is not as simple is left where it is. `read` compares what `bytes` begin with with the head, and returns
    /// the payload and the bytes of all of it.
    pub(crate) fn take<'b>(
        &self,
        (client, shared): (&mut Client, &Shared),
        bytes: &'b [u8],
        read: impl Fn(&'b [u8], &[u8]) -> Option<(&'b [u8], usize)>,
        now: Time,
        effects: &mut Effects,
    ) -> usize {
        if self.head.is_empty() || !effects.commands.is_empty() {
            return 0;
        }
        let mut used = 0;
        while let Some((payload, whole)) = bytes.get(used..).and_then(|rest| read(rest, &self.head)) {
            let fits = payload.len() <= shared.max_payload_bytes as usize;
            if !fits || !client.offer_again(shared, (self.name_bytes, payload), now, effects) {
                break;
            }
            used += whole;
        }
        used
    }
}
