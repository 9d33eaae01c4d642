//! Control frames: `len u32 (bytes after it) · kind u8 · 0[3]`, then a bincode body under a size limit.
//!
//! [`Control`] is closed: one variant per kind, one public struct per body. Every field is bounded when it is encoded
//! and again when it is decoded; a body must be consumed to its last byte. A changed body is a new kind, and kinds
//! `0x20`–`0x3f` are skipped when unknown, so that neighbours of two releases work together. What is welcome on which
//! stream, and when, is for the session and bridge machines. Bodies are never hashed or signed: an encoding is not
//! canonical.

mod body;
mod bundle;
mod delivery;
mod interest;
mod link;

use bincode::config;
use bytes::{BufMut, BytesMut};
use glocal_core::limits::{CONTROL_BYTES_MAX, CONTROL_BYTES_MAX_BEFORE_HELLO};

pub use body::{
    Ack, AllowedSet, AnnounceBroker, AnnounceSender, BridgeError, BridgeHello, Denied, Error, ForgetHandles, Goodbye,
    Hello, Interest, InterestSync, NoMember, NoResponders, Ping, Pong, Probe, ProbeAck, Ready, Routed, Subscribe,
    Subscribed, TenantAttach, TenantAttached, Unsubscribe, Welcome, clip,
};
pub use delivery::{Delivered, Memberless, Overflowed, Tallied, Tally, Unserved};
pub use interest::{
    EdgeCut, InterestChange, InterestNews, InterestPull, InterestSum, Presence, PresenceEnd, PresenceRoot, PresenceSum,
};

pub use bundle::{AllowedApplied, AllowedUpdate, BundleGet, BundleNews, BundlePart, SectionOffer};
pub use link::{LinkAgree, LinkDigest, LinkDown, LinkKey, LinkObserver, LinkPropose, LinkUp, PathProbeAck};

use crate::frame::CONTROL_HEAD_BYTES;
use crate::{EncodeError, FrameError};

/// The protocol version that this crate speaks, as offered in a hello.
pub const PROTOCOL_VERSION: u16 = 1;

/// Bit of [`BridgeHello::features`]: this side's edge gives each tenant a connection of its own. Both sides must say the
/// same.
pub const FEATURE_DEDICATED: u64 = 1;

/// Bit of [`BridgeHello::features`]: this side answers probes in data streams.
pub const FEATURE_PATH_PROBE: u64 = 2;

macro_rules! control {
    ($($(#[$doc:meta])+ $body:ident = $kind:literal;)*) => {
        /// Every control body.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Control { $($(#[$doc])+ $body($body),)* }

        impl Control {
            /// Every known kind.
            pub const KINDS: &[u8] = &[$($kind,)*];

            /// The kind of this body.
            #[must_use]
            pub const fn kind(&self) -> u8 {
                match self { $(Self::$body(_) => $kind,)* }
            }

            /// The name of this body, for logs.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self { $(Self::$body(_) => stringify!($body),)* }
            }

            fn check(&self) -> Result<(), &'static str> {
                match self { $(Self::$body(body) => body.check(),)* }
            }

            fn write(&self, writer: &mut Writer<'_>) -> Result<(), bincode::error::EncodeError> {
                match self { $(Self::$body(body) => bincode::encode_into_writer(body, writer, config::standard()),)* }
            }

            /// `None` for an unknown kind.
            fn read(kind: u8, body: &[u8], limit: usize) -> Result<Option<Self>, FrameError> {
                match kind {
                    $($kind => read_body::<$body>(kind, body, limit).map(|body| Some(Self::$body(body))),)*
                    _ => Ok(None),
                }
            }
        }

        $(impl From<$body> for Control {
            fn from(body: $body) -> Self {
                Self::$body(body)
            }
        })*

        const fn is_known(kind: u8) -> bool {
            matches!(kind, $($kind)|*)
        }
    };
}

control! {
    /// A client's first frame.
    Hello = 0x01;
    /// The broker's answer to a hello.
    Welcome = 0x02;
    /// A client subscribes.
    Subscribe = 0x03;
    /// The subscription took effect.
    Subscribed = 0x04;
    /// A client unsubscribes.
    Unsubscribe = 0x05;
    /// An operation was refused; the session stays open.
    Denied = 0x06;
    /// A publish was accepted here, and copies are on their way to its targets.
    Ack = 0x07;
    /// A request matched nobody in the mesh.
    NoResponders = 0x08;
    /// Asks for a pong after all earlier commands took effect.
    Ping = 0x09;
    /// Answers a ping.
    Pong = 0x0a;
    /// The sender is about to close.
    Goodbye = 0x0b;
    /// The peer broke the protocol; the sender closes.
    Error = 0x0c;
    /// A broker's first frame on a bridge's control stream.
    BridgeHello = 0x10;
    /// A part of the sender's allowed tenants, as codes.
    AllowedSet = 0x11;
    /// The sender knows the effective set and opens lanes.
    Ready = 0x12;
    /// Liveness probe.
    Probe = 0x13;
    /// Answers a probe.
    ProbeAck = 0x14;
    /// The peer broke the protocol; the sender closes the bridge.
    BridgeError = 0x15;
    /// A broker's first frame on a connection of one tenant, beside the bridge of a dedicated edge.
    TenantAttach = 0x16;
    /// The sender has taken the tenant's connection for one, and reads its lanes.
    TenantAttached = 0x17;
    /// Gives a broker a handle, within one lane.
    AnnounceBroker = 0x18;
    /// Gives a sender a handle, within one lane.
    AnnounceSender = 0x19;
    /// A change of what subscribers behind a broker want; not sent any more, and passed over.
    Interest = 0x1a;
    /// Frames a full list of interest; not sent any more, and passed over.
    InterestSync = 0x1b;
    /// A target had no member for a message.
    NoMember = 0x1c;
    /// Ends the meaning of all handles announced in this lane so far.
    ForgetHandles = 0x1d;
    /// A control frame for a broker that need not be the neighbour.
    Routed = 0x1e;
    /// The epoch proposed for a new bridge.
    LinkPropose = 0x20;
    /// The greater end's word that the edge is up.
    LinkAgree = 0x21;
    /// A broker's link key.
    LinkKey = 0x22;
    /// An edge is up.
    LinkUp = 0x23;
    /// An edge is down.
    LinkDown = 0x24;
    /// What the sender knows of the fabric's edges, in short.
    LinkDigest = 0x25;
    /// Whether a broker has an observer of all tenants.
    LinkObserver = 0x26;
    /// What the sender knows of who is present, in one number.
    PresenceRoot = 0x27;
    /// A target tells an origin how far it has delivered.
    Delivered = 0x28;
    /// A broker on the way had no room for a message.
    Overflowed = 0x29;
    /// A target has nobody of a queue group any more.
    Memberless = 0x2a;
    /// An origin asks a target how many of its copies have arrived.
    Tally = 0x2b;
    /// A target tells an origin how many have.
    Tallied = 0x2c;
    /// A target had nobody for a request.
    Unserved = 0x2d;
    /// A part of the sender's allowed tenants, after a change.
    AllowedUpdate = 0x30;
    /// The sender goes by the peer's set.
    AllowedApplied = 0x31;
    /// Which bundle the sender goes by.
    BundleNews = 0x32;
    /// Sections that the sender holds and that may cross this edge.
    SectionOffer = 0x33;
    /// Asks for a head or a section.
    BundleGet = 0x34;
    /// A part of a head or a section.
    BundlePart = 0x35;
    /// Answers a probe in a data stream.
    PathProbeAck = 0x36;
    /// That a broker has any subscriber of the tenant.
    Presence = 0x38;
    /// All brokers known to have subscribers of the tenant were told.
    PresenceEnd = 0x39;
    /// Asks an origin for its interest.
    InterestPull = 0x3a;
    /// Tells a broker that asked of interest.
    InterestNews = 0x3b;
    /// Whether an edge is cut for the tenant, by the word of one of its ends.
    EdgeCut = 0x3c;
    /// What the sender knows of who is present of one tenant, in one number.
    PresenceSum = 0x3d;
}

/// Whether a receiver passes over this kind when it does not know it.
#[must_use]
pub const fn is_skippable(kind: u8) -> bool {
    kind >= 0x20 && kind < 0x40
}

/// Whether a frame of this kind is decoded or skipped; anything else is a protocol error.
#[must_use]
pub(crate) const fn is_control_kind(kind: u8) -> bool {
    is_known(kind) || is_skippable(kind)
}

impl Control {
    /// Appends the whole frame.
    ///
    /// # Errors
    /// [`EncodeError`] when a field is out of range or the body too large; `out` is unchanged then.
    pub fn encode_into(&self, out: &mut BytesMut) -> Result<(), EncodeError> {
        let kind = self.kind();
        self.check().map_err(|field| EncodeError::BadField { kind, field })?;
        let start = out.len();
        out.put_slice(&[0, 0, 0, 0, kind, 0, 0, 0]);
        let encoded = self.write(&mut Writer(out)).map_err(|_| EncodeError::Body);
        let bytes = out.len() - start - CONTROL_HEAD_BYTES;
        let len = u32::try_from(bytes + CONTROL_HEAD_BYTES - 4).ok().filter(|_| bytes <= CONTROL_BYTES_MAX);
        match (encoded, len, out.get_mut(start..start + 4)) {
            (Ok(()), Some(len), Some(slot)) => {
                slot.copy_from_slice(&len.to_le_bytes());
                Ok(())
            }
            (encoded, ..) => {
                out.truncate(start);
                encoded.and(Err(EncodeError::ControlTooLarge(bytes)))
            }
        }
    }

    /// The kind and the encoded body, to be carried inside [`Routed`].
    ///
    /// # Errors
    /// As [`Self::encode_into`].
    pub fn to_body(&self) -> Result<(u8, Vec<u8>), EncodeError> {
        let mut frame = BytesMut::new();
        self.encode_into(&mut frame)?;
        Ok((self.kind(), frame.get(CONTROL_HEAD_BYTES..).unwrap_or_default().to_vec()))
    }

    /// Decodes the body of a frame of `kind`, of at most `limit` bytes; `None` when the kind is unknown and skippable.
    ///
    /// # Errors
    /// [`FrameError::UnknownKind`], [`FrameError::ControlTooLarge`], [`FrameError::BadBody`],
    /// [`FrameError::Trailing`] or [`FrameError::BadField`].
    pub fn decode(kind: u8, body: &[u8], limit: usize) -> Result<Option<Self>, FrameError> {
        let max = limit.min(CONTROL_BYTES_MAX);
        if body.len() > max {
            return Err(FrameError::ControlTooLarge { bytes: body.len(), max });
        }
        let Some(control) = Self::read(kind, body, max)? else {
            return if is_skippable(kind) { Ok(None) } else { Err(FrameError::UnknownKind(kind)) };
        };
        control.check().map_err(|field| FrameError::BadField { kind, field })?;
        Ok(Some(control))
    }
}

/// Decodes one body under the smallest of the fixed limits that covers `limit`: a hostile length inside it then fails
/// before it is allocated for.
fn read_body<T: bincode::Decode<()>>(kind: u8, body: &[u8], limit: usize) -> Result<T, FrameError> {
    let read = if limit <= CONTROL_BYTES_MAX_BEFORE_HELLO {
        bincode::decode_from_slice(body, config::standard().with_limit::<CONTROL_BYTES_MAX_BEFORE_HELLO>())
    } else {
        bincode::decode_from_slice(body, config::standard().with_limit::<CONTROL_BYTES_MAX>())
    };
    match read {
        Ok((value, used)) if used == body.len() => Ok(value),
        Ok(_) => Err(FrameError::Trailing),
        Err(_) => Err(FrameError::BadBody { kind }),
    }
}

/// Lets bincode append to the output.
struct Writer<'a>(&'a mut BytesMut);

impl bincode::enc::write::Writer for Writer<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), bincode::error::EncodeError> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
