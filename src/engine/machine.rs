//! What the node needs of any client protocol: one trait, so that one pump moves the bytes of all of them.

use std::fmt;
use std::sync::Arc;

use bytes::BytesMut;
use glocal_core::deny::Deny;
use glocal_core::identity::Principal;
use glocal_core::limits::HANDSHAKE_MS_MAX;
use glocal_core::port::SessionPort;
use glocal_core::time::Time;

use crate::client::Effects;

/// Why we end a session that did nothing wrong in its protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Farewell {
    /// For a catalogued reason: the certificate's end, revocation, our own leaving.
    Deny(Deny),
    /// It did not answer probes.
    Silent,
    /// It did not say hello in time.
    Late,
}

/// The machine of one client session.
pub trait Machine: Send {
    /// Why the protocol ends a session.
    type End: fmt::Display + fmt::Debug + Send + Sync;

    /// The session's number.
    fn id(&self) -> u64;

    /// Who is connected.
    fn principal(&self) -> &Arc<Principal>;

    /// The session's egress, once it has said hello.
    fn port(&self) -> Option<&Arc<SessionPort>>;

    /// How long the client may take to say hello, in milliseconds.
    fn patience_ms(&self) -> u64 {
        HANDSHAKE_MS_MAX
    }

    /// What is to be said before the client has said anything.
    fn greet(&mut self, _out: &mut BytesMut) {}

    /// Takes the complete operations at the front of `buffer` and returns how many bytes they had.
    ///
    /// # Errors
    /// Why the session must end; what it had sent before is in `effects`.
    fn on_bytes(&mut self, buffer: &[u8], now: Time, effects: &mut Effects) -> Result<usize, Self::End>;

    /// Appends a probe.
    fn probe(&self, number: u64, out: &mut BytesMut);

    /// Appends the news that the node leaves in `grace_ms`.
    fn leaving(&self, grace_ms: u32, out: &mut BytesMut);

    /// Appends what tells the client that it broke the protocol.
    fn reproach(&self, end: &Self::End, out: &mut BytesMut);

    /// Appends what tells the client that its session ends for a reason of ours.
    fn farewell(&self, reason: Farewell, out: &mut BytesMut);
}
