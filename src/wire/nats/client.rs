//! The client's end of the protocol: what a server sends, and the bytes of what a client sends.
//!
//! This module is for tests and load programs, which need a client that is not the code under test of somebody else. It
//! has the guarantees of [`super`], but trusts a server's sizes up to one limit.

use bytes::BytesMut;

use super::encode::{argument, decimal_into};
use super::line::{self, Body, Found, Tokens};
use super::{ConnectOptions, NatsEncodeError, NatsError};

/// Sizes that a client accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// Longest line after its name, in bytes: INFO is the longest.
    pub line_bytes_max: usize,
    /// Largest message, in bytes.
    pub payload_bytes_max: usize,
}

/// One operation of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerOp<'a> {
    /// INFO, with its JSON.
    Info(&'a [u8]),
    /// `+OK`.
    Ok,
    /// `-ERR`, with its text, without the quotes around it.
    Err(&'a [u8]),
    /// PING.
    Ping,
    /// PONG.
    Pong,
    /// MSG or HMSG.
    Msg {
        /// The subject.
        subject: &'a [u8],
        /// The subscription's id.
        sid: &'a [u8],
        /// The reply subject; empty for none.
        reply: &'a [u8],
        /// The header block; empty for none.
        headers: &'a [u8],
        /// The payload.
        payload: &'a [u8],
    },
}

/// The next operation of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerNext<'a> {
    /// The operation is not complete: the buffer must hold at least this many bytes.
    Need(usize),
    /// A complete operation.
    Op {
        /// The operation.
        op: ServerOp<'a>,
        /// Its bytes, by which the buffer is to be advanced.
        bytes: usize,
    },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Name {
    Info,
    Ok,
    Err,
    Ping,
    Pong,
    Msg,
    Hmsg,
}

const NAMES: [(&[u8], Name); 7] = [
    (b"MSG ", Name::Msg),
    (b"HMSG ", Name::Hmsg),
    (b"PING", Name::Ping),
    (b"PONG", Name::Pong),
    (b"+OK", Name::Ok),
    (b"-ERR ", Name::Err),
    (b"INFO ", Name::Info),
];

/// Takes the operation of a server that `buffer` begins with.
///
/// # Errors
/// A [`NatsError`] as soon as enough has arrived to know it.
pub fn next_server_op<'a>(buffer: &'a [u8], limits: &ClientLimits) -> Result<ServerNext<'a>, NatsError> {
    let Some((name, name_bytes)) = line::name(buffer, &NAMES)? else {
        return Ok(ServerNext::Need(buffer.len() + 1));
    };
    let (arguments, bytes) = match line::find(buffer, name_bytes, limits.line_bytes_max)? {
        Found::Need(bytes) => return Ok(ServerNext::Need(bytes)),
        Found::Line { arguments, line_bytes } => (arguments, line_bytes),
    };
    let op = match name {
        Name::Info => ServerOp::Info(line::trim(arguments)),
        Name::Ok => ServerOp::Ok,
        Name::Err => ServerOp::Err(unquoted(line::trim(arguments))),
        Name::Ping => ServerOp::Ping,
        Name::Pong => ServerOp::Pong,
        Name::Msg | Name::Hmsg => return message(name, buffer, &Tokens::split(arguments), bytes, limits),
    };
    Ok(ServerNext::Op { op, bytes })
}

fn unquoted(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"'").and_then(|text| text.strip_suffix(b"'")).unwrap_or(text)
}

fn message<'a>(
    name: Name,
    buffer: &'a [u8],
    tokens: &Tokens<'a>,
    line_bytes: usize,
    limits: &ClientLimits,
) -> Result<ServerNext<'a>, NatsError> {
    let (subject, sid, reply, header_size, size) = match (name, tokens.as_slice()) {
        (Name::Msg, &[subject, sid, size]) => (subject, sid, &b""[..], None, size),
        (Name::Msg, &[subject, sid, reply, size]) => (subject, sid, reply, None, size),
        (Name::Hmsg, &[subject, sid, header_size, size]) => (subject, sid, &b""[..], Some(header_size), size),
        (Name::Hmsg, &[subject, sid, reply, header_size, size]) => (subject, sid, reply, Some(header_size), size),
        _ => return Err(NatsError::BadArguments("MSG")),
    };
    let total = line::size(size).ok_or(NatsError::BadSize("MSG"))?;
    let header_bytes = match header_size {
        Some(size) => line::size(size).ok_or(NatsError::BadSize("HMSG"))?,
        None => 0,
    };
    if total > limits.payload_bytes_max {
        return Err(NatsError::PayloadTooLarge { bytes: total, max: limits.payload_bytes_max });
    }
    let (message, bytes) = match line::body(buffer, line_bytes, total)? {
        Body::Need(bytes) => return Ok(ServerNext::Need(bytes)),
        Body::Message { message, bytes } => (message, bytes),
    };
    let (headers, payload) = message
        .split_at_checked(header_bytes)
        .ok_or(NatsError::HeadersTooLong { bytes: header_bytes, total: message.len() })?;
    Ok(ServerNext::Op { op: ServerOp::Msg { subject, sid, reply, headers, payload }, bytes })
}

/// Appends CONNECT.
pub fn encode_connect_into(out: &mut BytesMut, options: &ConnectOptions) {
    out.extend_from_slice(b"CONNECT ");
    out.extend_from_slice(&options.to_json());
    out.extend_from_slice(b"\r\n");
}

/// Appends PUB. An empty `reply` is none.
///
/// # Errors
/// [`NatsEncodeError::BadArgument`]; `out` is unchanged then.
pub fn encode_pub_into(
    out: &mut BytesMut,
    subject: &[u8],
    reply: &[u8],
    payload: &[u8],
) -> Result<(), NatsEncodeError> {
    publish_into(out, b"PUB", subject, reply, None, payload)
}

/// Appends HPUB, even when `headers` is empty. An empty `reply` is none.
///
/// # Errors
/// [`NatsEncodeError::BadArgument`]; `out` is unchanged then.
pub fn encode_hpub_into(
    out: &mut BytesMut,
    subject: &[u8],
    reply: &[u8],
    headers: &[u8],
    payload: &[u8],
) -> Result<(), NatsEncodeError> {
    publish_into(out, b"HPUB", subject, reply, Some(headers), payload)
}

fn publish_into(
    out: &mut BytesMut,
    name: &[u8],
    subject: &[u8],
    reply: &[u8],
    headers: Option<&[u8]>,
    payload: &[u8],
) -> Result<(), NatsEncodeError> {
    argument("subject", subject)?;
    if !reply.is_empty() {
        argument("reply subject", reply)?;
    }
    out.extend_from_slice(name);
    for part in [subject, reply].into_iter().filter(|part| !part.is_empty()) {
        out.extend_from_slice(b" ");
        out.extend_from_slice(part);
    }
    if let Some(headers) = headers {
        out.extend_from_slice(b" ");
        decimal_into(out, headers.len());
    }
    let headers = headers.unwrap_or_default();
    out.extend_from_slice(b" ");
    decimal_into(out, headers.len() + payload.len());
    for part in [b"\r\n", headers, payload, b"\r\n"] {
        out.extend_from_slice(part);
    }
    Ok(())
}

/// Appends SUB. An empty `queue` is none.
///
/// # Errors
/// [`NatsEncodeError::BadArgument`]; `out` is unchanged then.
pub fn encode_sub_into(out: &mut BytesMut, subject: &[u8], queue: &[u8], sid: &[u8]) -> Result<(), NatsEncodeError> {
    argument("subject", subject)?;
    argument("sid", sid)?;
    if !queue.is_empty() {
        argument("queue group", queue)?;
    }
    out.extend_from_slice(b"SUB");
    for part in [subject, queue, sid].into_iter().filter(|part| !part.is_empty()) {
        out.extend_from_slice(b" ");
        out.extend_from_slice(part);
    }
    out.extend_from_slice(b"\r\n");
    Ok(())
}

/// Appends UNSUB; `max` is the number of deliveries in total after which the subscription ends.
///
/// # Errors
/// [`NatsEncodeError::BadArgument`]; `out` is unchanged then.
pub fn encode_unsub_into(out: &mut BytesMut, sid: &[u8], max: Option<usize>) -> Result<(), NatsEncodeError> {
    argument("sid", sid)?;
    out.extend_from_slice(b"UNSUB ");
    out.extend_from_slice(sid);
    if let Some(max) = max {
        out.extend_from_slice(b" ");
        decimal_into(out, max);
    }
    out.extend_from_slice(b"\r\n");
    Ok(())
}
