//! The NATS text protocol, as clients speak it to a server: bytes in, operations out, and bytes of the answers.
//!
//! This module is for the codec behind the NATS edge; the public NATS client protocol documentation is its source, and
//! where that is silent it accepts what the common servers accept. [`next_op`] takes the next operation from a receive
//! buffer; [`ConnectOptions`] reads what CONNECT carries; [`ServerInfo`], [`Refusal`] and the `encode_…` functions
//! write what goes to the client; [`client`] is the other end, for tests and load programs.
//!
//! It guarantees that names and sizes are checked before more bytes are asked for, that an operation borrows from the
//! buffer, so that nothing is allocated for what has not arrived, that the same bytes give the same operations however
//! they are cut, and that no argument can break out of a line that is written. It decides nothing: whether a subject is
//! well formed, and who may use it, is for its callers, and it looks at no payload.

use glocal_core::limits::NATS_CONTROL_LINE_BYTES_MAX;

pub mod client;
mod connect;
mod encode;
mod error;
mod header;
mod info;
mod line;
mod refusal;

pub use connect::ConnectOptions;
pub use encode::{
    LastLine, OK, PING, PONG, encode_msg_into, encode_msg_prefix_into, encode_no_responders_into,
    no_responders_headers_into,
};
pub use error::{NatsEncodeError, NatsError};
pub use header::{CLASS_HEADER, HEADER_VERSION, header_value};
pub use info::ServerInfo;
pub use line::{like_pub, pub_head};
pub use refusal::Refusal;

use line::{Body, Found, Tokens};

/// What a client may send now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NatsLimits {
    /// Most bytes of arguments in one line, in bytes, the operation's name and the line's end not counted.
    pub control_line_bytes_max: usize,
    /// Largest message, headers and payload together, in bytes; `None` before CONNECT, when nothing but CONNECT, PING
    /// and PONG is accepted.
    pub payload_bytes_max: Option<usize>,
    /// Whether CONNECT said that the client knows headers: HPUB is refused otherwise.
    pub headers: bool,
}

impl NatsLimits {
    /// Limits for a client that has not sent CONNECT.
    pub const BEFORE_CONNECT: Self =
        Self { control_line_bytes_max: NATS_CONTROL_LINE_BYTES_MAX, payload_bytes_max: None, headers: false };

    /// Limits for a client after CONNECT.
    #[must_use]
    pub const fn open(max_payload: u32, headers: bool) -> Self {
        Self {
            control_line_bytes_max: NATS_CONTROL_LINE_BYTES_MAX,
            payload_bytes_max: Some(max_payload as usize),
            headers,
        }
    }
}

/// One operation of a client. Subjects, replies and queue names are not empty and hold no space or control character;
/// nothing else is known of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op<'a> {
    /// CONNECT, with its JSON for [`ConnectOptions::parse`].
    Connect(&'a [u8]),
    /// PUB.
    Pub {
        /// The subject.
        subject: &'a [u8],
        /// The reply subject; empty for none.
        reply: &'a [u8],
        /// The payload.
        payload: &'a [u8],
    },
    /// HPUB.
    Hpub {
        /// The subject.
        subject: &'a [u8],
        /// The reply subject; empty for none.
        reply: &'a [u8],
        /// The header block, verbatim and unchecked; empty when the client announced a length of 0, as nats.js does
        /// for a message without headers, which is then delivered by MSG.
        headers: &'a [u8],
        /// The payload.
        payload: &'a [u8],
    },
    /// SUB.
    Sub {
        /// The filter.
        subject: &'a [u8],
        /// The queue group; empty for none.
        queue: &'a [u8],
        /// The subscription's id: opaque, echoed in MSG.
        sid: &'a [u8],
    },
    /// UNSUB.
    Unsub {
        /// The subscription's id.
        sid: &'a [u8],
        /// After how many deliveries in total; `None` for at once, which 0 and what is no number mean, too.
        max: Option<u64>,
    },
    /// PING.
    Ping,
    /// PONG.
    Pong,
}

/// The next operation of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next<'a> {
    /// The operation is not complete: the buffer must hold at least this many bytes.
    Need(usize),
    /// A complete operation.
    Op {
        /// The operation.
        op: Op<'a>,
        /// Its bytes, by which the buffer is to be advanced.
        bytes: usize,
    },
}

/// Takes the operation that `buffer` begins with.
///
/// # Errors
/// A [`NatsError`] as soon as enough has arrived to know it; one with [`NatsError::skip_bytes`] leaves the session open.
#[inline]
pub fn next_op<'a>(buffer: &'a [u8], limits: &NatsLimits) -> Result<Next<'a>, NatsError> {
    // A publish whose line is complete and plain is decoded in one pass; everything else takes the long way, and so does
    // a publish that turns out not to be plain. Both ways end in `publish`.
    if let Some(max) = limits.payload_bytes_max
        && let Some((name, name_bytes)) = publish_name(buffer)
        && (name == Name::Pub || limits.headers)
        && let Some((tokens, line_bytes)) = line::plain(buffer, name_bytes, limits.control_line_bytes_max)
    {
        return publish(name, buffer, &tokens, line_bytes, max);
    }
    any_op(buffer, limits)
}

/// The operations of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    Connect,
    Pub,
    Hpub,
    Sub,
    Unsub,
    Ping,
    Pong,
}

const NAMES: [(&[u8], Name); 7] = [
    (b"PUB", Name::Pub),
    (b"HPUB", Name::Hpub),
    (b"SUB", Name::Sub),
    (b"UNSUB", Name::Unsub),
    (b"PING", Name::Ping),
    (b"PONG", Name::Pong),
    (b"CONNECT", Name::Connect),
];

impl Name {
    const fn text(self) -> &'static str {
        match self {
            Self::Connect => "CONNECT",
            Self::Pub => "PUB",
            Self::Hpub => "HPUB",
            Self::Sub => "SUB",
            Self::Unsub => "UNSUB",
            Self::Ping => "PING",
            Self::Pong => "PONG",
        }
    }
}

/// Whether the buffer begins with PUB or HPUB and a blank, in a few comparisons.
#[inline]
fn publish_name(buffer: &[u8]) -> Option<(Name, usize)> {
    const LOWER: u32 = 0x2020_2020;
    const PUB: u32 = u32::from_le_bytes(*b"pub ") & 0x00ff_ffff;
    const HPUB: u32 = u32::from_le_bytes(*b"hpub");
    let &[a, b, c, d] = buffer.first_chunk::<4>()?;
    let folded = u32::from_le_bytes([a, b, c, d]) | LOWER;
    if folded & 0x00ff_ffff == PUB && line::is_blank(d) {
        return Some((Name::Pub, 3));
    }
    (folded == HPUB && line::is_blank(*buffer.get(4)?)).then_some((Name::Hpub, 4))
}

/// The long way: any operation, in any state of completeness.
fn any_op<'a>(buffer: &'a [u8], limits: &NatsLimits) -> Result<Next<'a>, NatsError> {
    let Some((name, name_bytes)) = line::name(buffer, &NAMES)? else {
        return Ok(Next::Need(buffer.len() + 1));
    };
    if let Name::Pub | Name::Hpub | Name::Sub | Name::Unsub = name {
        if limits.payload_bytes_max.is_none() {
            return Err(NatsError::BeforeConnect);
        }
        match buffer.get(name_bytes) {
            None => return Ok(Next::Need(name_bytes + 1)),
            Some(byte) if line::is_blank(*byte) => {}
            Some(_) => return Err(NatsError::UnknownOperation),
        }
    }
    if name == Name::Hpub && !limits.headers {
        return Err(NatsError::HeadersNotSupported);
    }
    let (arguments, bytes) = match line::find(buffer, name_bytes, limits.control_line_bytes_max)? {
        Found::Need(bytes) => return Ok(Next::Need(bytes)),
        Found::Line { arguments, line_bytes } => (arguments, line_bytes),
    };
    let tokens = || Tokens::split(arguments);
    let op = match name {
        Name::Ping => Op::Ping,
        Name::Pong => Op::Pong,
        Name::Connect => Op::Connect(line::trim(arguments)),
        Name::Sub => subscribe(&tokens(), bytes)?,
        Name::Unsub => unsubscribe(&tokens())?,
        Name::Pub | Name::Hpub => {
            return publish(name, buffer, &tokens(), bytes, limits.payload_bytes_max.unwrap_or_default());
        }
    };
    Ok(Next::Op { op, bytes })
}

/// A publish whose line is complete: sizes first, then the message, then what its line says of subjects, so that a
/// refused subject leaves the stream in a known place.
#[inline]
fn publish<'a>(
    name: Name,
    buffer: &'a [u8],
    tokens: &Tokens<'a>,
    line_bytes: usize,
    max: usize,
) -> Result<Next<'a>, NatsError> {
    let bad = NatsError::BadArguments(name.text());
    let (subject, reply, header_size, size) = match (name, tokens.as_slice()) {
        (Name::Pub, &[subject, size]) => (subject, &b""[..], None, size),
        (Name::Pub, &[subject, reply, size]) => (subject, reply, None, size),
        (Name::Hpub, &[subject, header_size, size]) => (subject, &b""[..], Some(header_size), size),
        (Name::Hpub, &[subject, reply, header_size, size]) => (subject, reply, Some(header_size), size),
        _ => return Err(bad),
    };
    let total = line::size(size).ok_or(NatsError::BadSize(name.text()))?;
    let header_bytes = match header_size {
        Some(size) => line::size(size).ok_or(NatsError::BadSize(name.text()))?,
        None => 0,
    };
    if header_bytes > total {
        return Err(NatsError::HeadersTooLong { bytes: header_bytes, total });
    }
    if total > max {
        return Err(NatsError::PayloadTooLarge { bytes: total, max });
    }
    let (message, bytes) = match line::body(buffer, line_bytes, total)? {
        Body::Need(bytes) => return Ok(Next::Need(bytes)),
        Body::Message { message, bytes } => (message, bytes),
    };
    if tokens.has_control {
        checked("subject", subject, true, bytes)?;
        checked("reply subject", reply, true, bytes)?;
    }
    let (headers, payload) = message.split_at_checked(header_bytes).ok_or(bad)?;
    let op = match name {
        Name::Hpub => Op::Hpub { subject, reply, headers, payload },
        _ => Op::Pub { subject, reply, payload },
    };
    Ok(Next::Op { op, bytes })
}

fn subscribe<'a>(tokens: &Tokens<'a>, bytes: usize) -> Result<Op<'a>, NatsError> {
    let (subject, queue, sid) = match *tokens.as_slice() {
        [subject, sid] => (subject, &b""[..], sid),
        [subject, queue, sid] => (subject, queue, sid),
        _ => return Err(NatsError::BadArguments(Name::Sub.text())),
    };
    if line::has_control(sid) {
        return Err(NatsError::BadArguments(Name::Sub.text()));
    }
    checked("subject", subject, false, bytes)?;
    checked("queue group", queue, false, bytes)?;
    Ok(Op::Sub { subject, queue, sid })
}

fn unsubscribe<'a>(tokens: &Tokens<'a>) -> Result<Op<'a>, NatsError> {
    match *tokens.as_slice() {
        [sid] => Ok(Op::Unsub { sid, max: None }),
        [sid, max] => {
            Ok(Op::Unsub { sid, max: line::size(max).and_then(|max| u64::try_from(max).ok()).filter(|max| *max > 0) })
        }
        _ => Err(NatsError::BadArguments(Name::Unsub.text())),
    }
}

/// Refuses a part with a control character; the operation is complete, so its bytes can be skipped.
fn checked(part: &'static str, text: &[u8], publish: bool, skip_bytes: usize) -> Result<(), NatsError> {
    if line::has_control(text) {
        return Err(NatsError::BadSubject { part, publish, skip_bytes });
    }
    Ok(())
}
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;
