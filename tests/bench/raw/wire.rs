//! The bytes of the protocols: what a client writes, and what a broker's bytes begin with.

use anyhow::{Result, anyhow, bail, ensure};
use bytes::BytesMut;
use clap::ValueEnum;
use glocal_core::name::Class;
use glocal_wire::control::{Control, Hello, PROTOCOL_VERSION, Ping, Pong, Subscribe};
use glocal_wire::data::{DataHead, DataKind};
use glocal_wire::frame::{FrameLimits, Next, next_frame};
use glocal_wire::nats::client::{ClientLimits, ServerNext, ServerOp, encode_pub_into, encode_sub_into, next_server_op};

mod mqtt;

/// Largest message that is understood.
const PAYLOAD_BYTES_MAX: u32 = 8 * 1024 * 1024;
const NATS_LIMITS: ClientLimits = ClientLimits { line_bytes_max: 64 * 1024, payload_bytes_max: 8 * 1024 * 1024 };
const NATS_CONNECT: &[u8] =
    b"CONNECT {\"verbose\":false,\"pedantic\":false,\"echo\":true,\"headers\":true,\"no_responders\":false,\"protocol\":1}\r\n";

/// What is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Protocol {
    /// The native protocol of this broker, over TLS/TCP.
    Native,
    /// That of NATS.
    Nats,
    /// MQTT 3.1.1, everything at quality of service 0. It carries no reply subject: whoever answers knows where.
    Mqtt,
    /// Nothing but native publishes, for the relay: it greets nobody and knows no subscriptions.
    Bare,
}

/// What a broker has sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Seen<'a> {
    /// The answer to a client's first words, and the prefix of reply subjects, where there is one.
    Welcome(String),
    /// A subscription is there, and everything that was sent before it.
    Confirmed,
    /// A message with its payload.
    Message(&'a [u8]),
    /// The broker asks for a sign of life; the answer.
    Ping(Vec<u8>),
    /// Nothing of interest.
    Other,
}

impl Protocol {
    /// The protocol's name in TLS, where it has one.
    pub(crate) const fn alpn(self) -> &'static [&'static [u8]] {
        match self {
            Self::Native => &[b"glocal/1"],
            Self::Nats | Self::Mqtt | Self::Bare => &[],
        }
    }

    /// Whether the server speaks first, a line in clear, before TLS.
    pub(crate) const fn greets_in_clear(self) -> bool {
        matches!(self, Self::Nats)
    }

    /// Whether there is a broker to talk to, or only the relay.
    pub(crate) const fn has_sessions(self) -> bool {
        !matches!(self, Self::Bare)
    }

    /// The client's first words, answered by [`Seen::Welcome`].
    pub(crate) fn opening(self) -> Result<Vec<u8>> {
        match self {
            Self::Native => control(
                &Hello {
                    versions: vec![PROTOCOL_VERSION],
                    features: 0,
                    client: "raw-load".to_owned(),
                    default_class: Class::Live.code(),
                    echo: true,
                }
                .into(),
            ),
            Self::Nats => Ok([NATS_CONNECT, b"PING\r\n"].concat()),
            Self::Mqtt => mqtt::connect(),
            Self::Bare => Ok(Vec::new()),
        }
    }

    /// Subscribes, answered by [`Seen::Confirmed`]. Answers to requests are for this broker only.
    pub(crate) fn subscribe(self, name: &str, sid: u32, answers: bool) -> Result<Vec<u8>> {
        match self {
            Self::Native => {
                let mut bytes =
                    control(&Subscribe { sid, filter: name.to_owned(), queue: None, local_only: answers }.into())?;
                bytes.extend(control(&Ping { token: 1 }.into())?);
                Ok(bytes)
            }
            Self::Nats => {
                let mut out = BytesMut::new();
                encode_sub_into(&mut out, name.as_bytes(), b"", sid.to_string().as_bytes())
                    .map_err(|error| anyhow!("{error}"))?;
                out.extend_from_slice(b"PING\r\n");
                Ok(out.to_vec())
            }
            Self::Mqtt => mqtt::subscribe(name),
            Self::Bare => Ok(Vec::new()),
        }
    }

    /// One publish.
    pub(crate) fn message(self, name: &str, reply: &[u8], payload: &[u8]) -> Result<Vec<u8>> {
        let mut out = BytesMut::new();
        match self {
            Self::Native | Self::Bare => DataHead::new(DataKind::Publish, Some(Class::Live))
                .encode_into(&mut out, &[], name.as_bytes(), reply, &[], payload)
                .map_err(|error| anyhow!("{error}"))?,
            Self::Nats => {
                encode_pub_into(&mut out, name.as_bytes(), reply, payload).map_err(|error| anyhow!("{error}"))?;
            }
            Self::Mqtt => return mqtt::publish(name, payload),
        }
        Ok(out.to_vec())
    }

    /// Whether what begins with these bytes is a message; `false` where it is too short to tell.
    pub(crate) fn is_message(self, bytes: &[u8]) -> bool {
        match self {
            Self::Native => bytes.get(4) == Some(&DataKind::Deliver.code()),
            Self::Bare => bytes.get(4) == Some(&DataKind::Publish.code()),
            Self::Nats => bytes.first() == Some(&b'M'),
            Self::Mqtt => mqtt::is_publish(bytes),
        }
    }

    /// What `bytes` begin with, and its length; nothing when it is not complete.
    pub(crate) fn next(self, bytes: &[u8]) -> Result<Option<(Seen<'_>, usize)>> {
        match self {
            Self::Native | Self::Bare => next_native(bytes),
            Self::Nats => next_nats(bytes),
            Self::Mqtt => mqtt::next(bytes),
        }
    }
}

fn control(body: &Control) -> Result<Vec<u8>> {
    let mut out = BytesMut::new();
    body.encode_into(&mut out).map_err(|error| anyhow!("{error}"))?;
    Ok(out.to_vec())
}

fn next_native(bytes: &[u8]) -> Result<Option<(Seen<'_>, usize)>> {
    let limits = FrameLimits::open(PAYLOAD_BYTES_MAX);
    let (kind, body, length) = match next_frame(bytes, &limits).map_err(|error| anyhow!("{error}"))? {
        Next::Need(_) => return Ok(None),
        Next::Data { frame, frame_bytes } => return Ok(Some((Seen::Message(frame.payload), frame_bytes))),
        Next::Control { kind, body, frame_bytes } => (kind, body, frame_bytes),
    };
    let seen = match Control::decode(kind, body, limits.control_bytes_max).map_err(|error| anyhow!("{error}"))? {
        Some(Control::Welcome(welcome)) => Seen::Welcome(welcome.inbox),
        Some(Control::Pong(_)) => Seen::Confirmed,
        Some(Control::Ping(ping)) => Seen::Ping(control(&Pong { token: ping.token }.into())?),
        Some(Control::Denied(denied)) => bail!("denied: {}: {}", denied.code, denied.text),
        Some(Control::Goodbye(goodbye)) => bail!("the broker says goodbye: {}: {}", goodbye.code, goodbye.text),
        Some(Control::Error(error)) => bail!("refused: {}: {}", error.code, error.text),
        _ => Seen::Other,
    };
    Ok(Some((seen, length)))
}

fn next_nats(bytes: &[u8]) -> Result<Option<(Seen<'_>, usize)>> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let ServerNext::Op { op, bytes } = next_server_op(bytes, &NATS_LIMITS).map_err(|error| anyhow!("{error}"))? else {
        return Ok(None);
    };
    let seen = match op {
        ServerOp::Msg { payload, .. } => Seen::Message(payload),
        ServerOp::Pong => Seen::Confirmed,
        ServerOp::Ping => Seen::Ping(b"PONG\r\n".to_vec()),
        ServerOp::Err(text) => bail!("refused: {}", String::from_utf8_lossy(text)),
        ServerOp::Info(_) | ServerOp::Ok => Seen::Other,
    };
    Ok(Some((seen, bytes)))
}

/// A subject for answers that no other client of this program has.
pub(crate) fn answers(inbox: &str) -> Result<String> {
    ensure!(inbox.is_empty() || inbox.ends_with('.'), "'{inbox}' is no prefix");
    let prefix = if inbox.is_empty() { "_INBOX.load." } else { inbox };
    Ok(format!("{prefix}{}.1", std::process::id()))
}
