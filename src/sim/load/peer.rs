//! A session of either protocol, and the bytes that its client writes and reads.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use glocal_core::identity::Role;
use glocal_core::limits::MAX_PAYLOAD_BYTES_CEILING;
use glocal_core::name::TenantId;
use glocal_core::port::SessionPort;
use glocal_core::time::Time;
use glocal_engine::machine::Machine as _;
use glocal_engine::nats::{Listening, NatsSession, info};
use glocal_engine::session::{Effects, NativeSession};
use glocal_wire::control::{Control, Hello, PROTOCOL_VERSION, Subscribe};
use glocal_wire::data::{DataHead, DataKind};
use glocal_wire::frame::{FrameLimits, Next, next_frame};
use glocal_wire::nats::ConnectOptions;
use glocal_wire::nats::client::{self, ClientLimits, ServerNext, ServerOp};

use crate::broker::client_principal;
use crate::filters::site::Site;
use crate::oracle::Violation;

/// Numbers of agents begin here, so that all have names of one length.
const AGENT: usize = 1_000_000;

/// What sessions speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// The native protocol.
    Native,
    /// The NATS text protocol.
    Nats,
}

impl Protocol {
    /// What a client says first.
    pub(super) fn hello(self) -> Result<Bytes, Violation> {
        let mut out = BytesMut::new();
        match self {
            Self::Native => {
                let versions = vec![PROTOCOL_VERSION];
                let hello = Hello { versions, features: 0, client: "load".into(), default_class: 0, echo: true };
                Control::from(hello).encode_into(&mut out).map_err(unwritten)?;
            }
            // As client libraries connect: nothing is answered to a publish.
            Self::Nats => {
                let options = ConnectOptions { verbose: false, pedantic: false, ..ConnectOptions::default() };
                client::encode_connect_into(&mut out, &options);
            }
        }
        Ok(out.freeze())
    }

    pub(super) fn subscribe(self, filter: &str) -> Result<Bytes, Violation> {
        let mut out = BytesMut::new();
        match self {
            Self::Native => {
                let subscribe = Subscribe { sid: 1, filter: filter.into(), queue: None, local_only: false };
                Control::from(subscribe).encode_into(&mut out).map_err(unwritten)?;
            }
            Self::Nats => client::encode_sub_into(&mut out, filter.as_bytes(), b"", b"1").map_err(unwritten)?,
        }
        Ok(out.freeze())
    }

    /// One message under each of the names.
    pub(super) fn publishes(self, names: &[String], payload_bytes: usize) -> Result<Bytes, Violation> {
        let (mut out, payload) = (BytesMut::new(), vec![b'x'; payload_bytes]);
        for name in names {
            let name = name.as_bytes();
            match self {
                Self::Native => {
                    let head = DataHead::new(DataKind::Publish, None);
                    head.encode_into(&mut out, &[], name, b"", b"", &payload).map_err(unwritten)?;
                }
                Self::Nats => client::encode_pub_into(&mut out, name, b"", &payload).map_err(unwritten)?,
            }
        }
        Ok(out.freeze())
    }

    /// How many messages a client was given, all with whole payloads.
    pub(super) fn count(self, mut bytes: &[u8], payload_bytes: usize) -> Result<usize, Violation> {
        let (mut count, limits) = (0, FrameLimits::open(MAX_PAYLOAD_BYTES_CEILING));
        let limits_nats = ClientLimits { line_bytes_max: 4096, payload_bytes_max: MAX_PAYLOAD_BYTES_CEILING as usize };
        let is_whole = |payload: &[u8]| payload.len() == payload_bytes && payload.iter().all(|byte| *byte == b'x');
        while !bytes.is_empty() {
            let (used, whole) = match self {
                Self::Native => match next_frame(bytes, &limits).map_err(garbled)? {
                    Next::Data { frame, frame_bytes } => (frame_bytes, is_whole(frame.payload)),
                    Next::Control { frame_bytes, .. } => (frame_bytes, false),
                    Next::Need(_) => return Err(garbled("half a frame")),
                },
                Self::Nats => match client::next_server_op(bytes, &limits_nats).map_err(garbled)? {
                    ServerNext::Op { op: ServerOp::Msg { payload, .. }, bytes } => (bytes, is_whole(payload)),
                    ServerNext::Op { bytes, .. } => (bytes, false),
                    ServerNext::Need(_) => return Err(garbled("half an operation")),
                },
            };
            count += usize::from(whole);
            bytes = bytes.get(used..).unwrap_or_default();
        }
        Ok(count)
    }
}

fn unwritten(error: impl std::fmt::Display) -> Violation {
    Violation(format!("the load cannot be written: {error}"))
}

fn garbled(what: impl std::fmt::Display) -> Violation {
    Violation(format!("a client was sent garbage: {what}"))
}

/// One session.
#[derive(Debug, Default)]
pub(super) enum Peer {
    /// Its place while it is worked on.
    #[default]
    Away,
    Native(Box<NativeSession>),
    Nats(Box<NatsSession>),
}

impl Peer {
    /// A session that has not been said hello to.
    pub(super) fn new(protocol: Protocol, site: &Site, tenant: usize, number: usize, now: Time) -> Option<Self> {
        let id = TenantId::parse(&format!("tenant{tenant:06}")).ok()?;
        let number = u32::try_from(AGENT + number).ok()?;
        let principal = client_principal(&id, &site.shared.node, number, Role::Tenant)?;
        let shared = Arc::clone(&site.shared);
        Some(match protocol {
            Protocol::Native => Self::Native(Box::new(NativeSession::new(shared, principal, u64::from(number), now))),
            Protocol::Nats => {
                let listening = Listening { host: "localhost".to_owned(), port: 4222 };
                let info = info(&shared, &listening, u64::from(number), "127.0.0.1");
                Self::Nats(Box::new(NatsSession::new(shared, principal, info, false, now)))
            }
        })
    }

    /// The session's egress, once it has said hello.
    pub(super) fn port(&self) -> Option<&Arc<SessionPort>> {
        match self {
            Self::Away => None,
            Self::Native(session) => session.port(),
            Self::Nats(session) => session.port(),
        }
    }

    /// Takes the complete operations at the front of `buffer` and returns how many bytes they had.
    pub(super) fn on_bytes(&mut self, buffer: &[u8], now: Time, effects: &mut Effects) -> Result<usize, Violation> {
        match self {
            Self::Away => Ok(0),
            Self::Native(session) => session.on_bytes(buffer, now, effects).map_err(|end| refused(&end)),
            Self::Nats(session) => session.on_bytes(buffer, now, effects).map_err(|end| refused(&end)),
        }
    }
}

fn refused(end: &dyn std::fmt::Display) -> Violation {
    Violation(format!("a session has ended: {end}"))
}
