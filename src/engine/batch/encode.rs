//! The bytes of one copy of a message.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use glocal_core::identity::Role;
use glocal_core::limits::SHARED_PAYLOAD_BYTES_MIN;
use glocal_core::name::Class;
use glocal_core::port::{SessionPort, Sub};
use glocal_wire::data::{DataHead, DataKind, TailLengths};
use glocal_wire::ext::ExtBuilder;

use super::Message;
use super::delivery_ext::DeliveryExt;

/// The subject a NATS client is given: the raw name, the qualified one where it asked so, and its own alias for what the
/// node itself tells its tenant.
pub(super) fn nats_subject<'m>(port: &SessionPort, qualified: bool, message: &'m Message<'_>) -> Cow<'m, str> {
    let raw = message.destination.raw().as_str();
    if !qualified {
        return Cow::Borrowed(raw);
    }
    let own = port.principal().tenant() == message.tenant.id() && message.destination.class() == Class::Ctrl;
    match raw.strip_prefix("advisory.").filter(|_| own) {
        Some(rest) => Cow::Owned(format!("$ADV.{rest}")),
        None => Cow::Owned(message.destination.to_string()),
    }
}

/// The tenant whose eyes see the sender's name: the reader's own, but a superuser sees as the tenant itself does.
fn viewer<'m>(port: &'m SessionPort, message: &'m Message<'_>) -> &'m str {
    match port.principal().role() {
        Role::Tenant => port.principal().tenant().as_str(),
        Role::Superuser | Role::Internal | Role::Node => message.tenant.id().as_str(),
    }
}

pub(super) fn joined(parts: &[&[u8]]) -> Bytes {
    let mut out = BytesMut::with_capacity(parts.iter().map(|part| part.len()).sum());
    parts.iter().for_each(|part| out.extend_from_slice(part));
    out.freeze()
}

pub(super) enum NameBytes {
    Raw,
    Qualified(String),
}

pub(super) const fn lengths(name: &[u8], message: &Message<'_>) -> TailLengths {
    TailLengths {
        name: name.len(),
        reply: message.reply.len(),
        headers: message.headers.len(),
        payload: message.payload.len(),
    }
}

/// Appends one native delivery for some subscriptions of one session to a chunk, with the extensions and the tail of the last one where
/// they are the same. Returns the bytes in the chunk and the tail.
pub(super) fn encode_native(
    chunk: &mut BytesMut,
    (ext, shared_tail): (&mut DeliveryExt, &mut Option<Bytes>),
    port: &SessionPort,
    qualified: bool,
    subs: &[&Arc<Sub>],
    message: &Message<'_>,
) -> Option<(usize, Option<Bytes>)> {
    let class = message.destination.class();
    let sender = message.sender.text(viewer(port, message));
    ext.set(subs, sender, message.redelivered);
    let head = DataHead { ttl_ms: message.ttl_ms, ..DataHead::new(DataKind::Deliver, Some(class)) };
    let name = if qualified { NameBytes::Qualified(message.destination.to_string()) } else { NameBytes::Raw };
    encode(chunk, head, &ext.ext, message, &name, shared_tail)
}

/// Appends one frame to a chunk; a large tail is made once and shared. Returns the bytes in the chunk and the tail.
pub(super) fn encode(
    chunk: &mut BytesMut,
    head: DataHead,
    ext: &ExtBuilder,
    message: &Message<'_>,
    name: &NameBytes,
    shared_tail: &mut Option<Bytes>,
) -> Option<(usize, Option<Bytes>)> {
    let start = chunk.len();
    let ext = ext.bytes().ok()?;
    let raw = message.destination.raw().as_str().as_bytes();
    let (name, shareable) = match name {
        NameBytes::Raw => (raw, true),
        NameBytes::Qualified(text) => (text.as_bytes(), false),
    };
    let tail = if shareable && message.payload.len() >= SHARED_PAYLOAD_BYTES_MIN {
        head.encode_prefix_into(chunk, ext, &lengths(name, message)).ok()?;
        let tail = shared_tail.get_or_insert_with(|| joined(&[name, message.reply, message.headers, message.payload]));
        Some(tail.clone())
    } else {
        head.encode_into(chunk, ext, name, message.reply, message.headers, message.payload).ok()?;
        None
    };
    Some((chunk.len() - start, tail))
}
