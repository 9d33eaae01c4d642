//! One client of the world: its session at the broker, the bytes on their way, and what it waits for.

use std::collections::{BTreeSet, VecDeque};

use bytes::{BufMut, BytesMut};
use glocal_core::name::Class;
use glocal_core::sched::Drops;
use glocal_core::time::Time;
use glocal_engine::machine::Machine as _;
use glocal_engine::session::{Effects, NativeSession};
use glocal_wire::control::{Control, Hello, PROTOCOL_VERSION, Subscribe, Unsubscribe};
use glocal_wire::data::{DataFrame, DataHead, DataKind};
use glocal_wire::frame::{FrameLimits, Next, next_frame};

use crate::oracle::{MessageId, Subscription, Violation, ensure};

/// First bytes of every honest payload.
const MARK: &[u8; 4] = b"MSG!";
/// Shortest payload: the mark and the message's id.
pub const PAYLOAD_BYTES_MIN: usize = 4 + 4 + 1 + 4;

/// One client.
#[derive(Debug)]
pub struct Client {
    /// Its number in the world.
    pub number: u32,
    /// Its broker.
    pub node: usize,
    /// Its session there.
    pub session: NativeSession,
    /// What the session brought about last.
    pub effects: Effects,
    /// Bytes the client has written.
    pub written: BytesMut,
    /// Bytes that arrived at the broker.
    pub arrived: BytesMut,
    /// Commands that have not taken effect.
    pub waiting: usize,
    /// Whether the last batch is not flushed yet.
    pub held: bool,
    /// Bytes the client has received.
    received: BytesMut,
    /// Prefix of its reply subjects.
    pub inbox: String,
    /// Acknowledgements it waits for.
    pub acks: BTreeSet<u64>,
    /// Refusals it waits for: access and number.
    pub refusals: BTreeSet<(u8, u64)>,
    /// Subscriptions it waits for.
    pub unconfirmed: BTreeSet<u32>,
    /// Requests of which it was told that nobody answers.
    pub unanswered: BTreeSet<u64>,
    /// Messages the broker has not read, with where their frames end among all that was written.
    pub unread: VecDeque<(u64, MessageId)>,
    /// Bytes the broker has read.
    pub read: u64,
    total: u64,
    /// Its requests: number and message.
    pub requests: Vec<(u64, MessageId)>,
    next_sid: u32,
    next_seq: u64,
    counts: [u32; 4],
}

/// A message to publish.
#[derive(Clone, Copy, Debug)]
pub struct Publish<'p> {
    /// Name as written.
    pub name: &'p str,
    /// Class where the name says none.
    pub class: Class,
    /// Reply subject.
    pub reply: &'p str,
    /// Bytes of payload.
    pub payload_bytes: usize,
    /// Whether an acknowledgement is asked for.
    pub numbered: bool,
}

/// A frame the client got.
#[derive(Debug)]
pub enum Got {
    /// A control frame.
    Control(Control),
    /// A message.
    Message {
        /// Name.
        name: String,
        /// Subscriptions.
        sids: Vec<u32>,
        /// The sender as told.
        sender: String,
        /// Its class.
        class: Class,
        /// Reply subject.
        reply: String,
        /// Its id, `None` when the payload is none of ours.
        id: Option<MessageId>,
        /// Bytes of payload.
        payload_bytes: usize,
        /// Whether somebody else may have got it before.
        redelivered: bool,
    },
}

impl Client {
    /// A client that has written its hello.
    #[must_use]
    pub fn new(number: u32, node: usize, session: NativeSession, echo: bool) -> Self {
        let mut client = Self {
            number,
            node,
            session,
            effects: Effects::default(),
            written: BytesMut::new(),
            arrived: BytesMut::new(),
            waiting: 0,
            held: false,
            received: BytesMut::new(),
            inbox: String::new(),
            acks: BTreeSet::new(),
            refusals: BTreeSet::new(),
            unconfirmed: BTreeSet::new(),
            unanswered: BTreeSet::new(),
            unread: VecDeque::new(),
            read: 0,
            total: 0,
            requests: Vec::new(),
            next_sid: 1,
            next_seq: 1,
            counts: [0; 4],
        };
        let hello =
            Hello { versions: vec![PROTOCOL_VERSION], features: 0, client: "sim".into(), default_class: 0, echo };
        client.write(&hello.into());
        client
    }

    fn write(&mut self, control: &Control) {
        let before = self.written.len();
        let encoded = control.encode_into(&mut self.written);
        self.total += (self.written.len() - before) as u64;
        debug_assert!(encoded.is_ok(), "the simulator writes valid frames: {encoded:?}");
    }

    /// Subscribes; returns the subscription's number.
    pub fn subscribe(&mut self, text: &str, sub: &Subscription, refused: bool) -> u32 {
        let sid = self.next_sid;
        self.next_sid += 1;
        let body = Subscribe { sid, filter: text.to_owned(), queue: sub.queue.clone(), local_only: sub.local_only };
        self.write(&body.into());
        if refused {
            self.refusals.insert((0, u64::from(sid)));
        } else {
            self.unconfirmed.insert(sid);
        }
        sid
    }

    /// Unsubscribes, now or after `max` deliveries.
    pub fn unsubscribe(&mut self, sid: u32, max: Option<u64>) {
        self.write(&Unsubscribe { sid, max }.into());
    }

    /// Publishes; returns the message's id and the frame's number.
    pub fn publish(&mut self, publish: &Publish<'_>, refused: bool) -> (MessageId, u64) {
        let count = self.counts.get_mut(publish.class.index()).map_or(0, |count| {
            *count += 1;
            *count
        });
        let id = (self.number, publish.class.code(), count);
        let mut payload = BytesMut::with_capacity(publish.payload_bytes);
        payload.put_slice(MARK);
        payload.put_u32_le(id.0);
        payload.put_u8(id.1);
        payload.put_u32_le(id.2);
        payload.resize(publish.payload_bytes.max(PAYLOAD_BYTES_MIN), fill(id));
        let seq = self.next_seq;
        self.next_seq += 1;
        let numbered = publish.numbered || refused || !publish.reply.is_empty();
        let head = DataHead { seq: numbered.then_some(seq), ..DataHead::new(DataKind::Publish, Some(publish.class)) };
        let (name, reply) = (publish.name.as_bytes(), publish.reply.as_bytes());
        let before = self.written.len();
        let encoded = head.encode_into(&mut self.written, &[], name, reply, b"", &payload);
        self.total += (self.written.len() - before) as u64;
        self.unread.push_back((self.total, id));
        debug_assert!(encoded.is_ok(), "the simulator writes valid frames: {encoded:?}");
        if refused {
            self.refusals.insert((1, seq));
        } else if numbered && publish.class.is_reliable() {
            self.acks.insert(seq);
        }
        (id, seq)
    }

    /// Whether nothing is on its way, in either direction, and nothing is waited for.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let idle = self.session.port().is_some_and(|port| port.inbox().with(|lanes| is_empty(lanes)));
        self.written.is_empty() && self.arrived.is_empty() && self.waiting == 0 && !self.held && idle
    }

    /// Checks that nothing asked was left unanswered.
    ///
    /// # Errors
    /// What was.
    pub fn check_answers(&self) -> Result<(), Violation> {
        let number = self.number;
        ensure!(self.acks.is_empty(), "client {number} was not acknowledged {:?}", self.acks);
        ensure!(self.refusals.is_empty(), "client {number} was not refused {:?}", self.refusals);
        ensure!(self.unconfirmed.is_empty(), "client {number} was not confirmed {:?}", self.unconfirmed);
        ensure!(self.received.is_empty(), "client {number} holds half a frame");
        Ok(())
    }

    /// Reads up to `max_bytes` from the session's egress; frames, and how many were dropped for their age.
    ///
    /// # Errors
    /// When the broker sends what cannot be parsed.
    pub fn read(&mut self, max_bytes: usize, now: Time) -> Result<(Vec<Got>, Drops), Violation> {
        let (mut parts, mut drops) = (Vec::new(), Drops::new());
        if let Some(port) = self.session.port() {
            port.inbox().with(|lanes| lanes.fill(max_bytes, now, &mut parts, &mut drops));
        }
        parts.iter().for_each(|part| self.received.extend_from_slice(part));
        let mut out = Vec::new();
        loop {
            let used = match next_frame(&self.received, &FrameLimits::open(1 << 20)) {
                Ok(Next::Need(_)) => return Ok((out, drops)),
                Ok(Next::Control { kind, body, frame_bytes }) => {
                    let control = Control::decode(kind, body, 1 << 16).ok().flatten();
                    out.push(Got::Control(control.ok_or_else(|| self.garbled("control"))?));
                    frame_bytes
                }
                Ok(Next::Data { frame, frame_bytes }) => {
                    out.push(message(&frame).ok_or_else(|| self.garbled("data"))?);
                    frame_bytes
                }
                Err(error) => return Err(self.garbled(&error.to_string())),
            };
            let _ = self.received.split_to(used);
        }
    }

    fn garbled(&self, what: &str) -> Violation {
        Violation(format!("client {} was sent garbage: {what}", self.number))
    }
}

fn is_empty(lanes: &glocal_core::sched::SessionLanes) -> bool {
    use glocal_core::sched::Lanes;
    lanes.is_empty()
}

const fn fill(id: MessageId) -> u8 {
    let ([a, ..], [b, ..]) = (id.0.to_le_bytes(), id.2.to_le_bytes());
    a.wrapping_mul(31) ^ b ^ id.1
}

fn message(frame: &DataFrame<'_>) -> Option<Got> {
    let fields = frame.ext.fields();
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok().map(str::to_owned);
    Some(Got::Message {
        name: text(frame.name)?,
        sids: fields.subs?.iter().collect(),
        sender: fields.sender_text?.to_owned(),
        class: frame.class?,
        reply: text(frame.reply)?,
        id: identify(frame.payload),
        payload_bytes: frame.payload.len(),
        redelivered: fields.redelivered,
    })
}

/// The id in a payload, if it is whole.
fn identify(payload: &[u8]) -> Option<MessageId> {
    let (mark, rest) = payload.split_first_chunk::<4>()?;
    let (publisher, rest) = rest.split_first_chunk::<4>()?;
    let (class, rest) = rest.split_first()?;
    let (count, rest) = rest.split_first_chunk::<4>()?;
    let id = (u32::from_le_bytes(*publisher), *class, u32::from_le_bytes(*count));
    (mark == MARK && rest.iter().all(|byte| *byte == fill(id))).then_some(id)
}
