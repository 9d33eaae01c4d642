//! What holds for any bytes that a NATS client sends.

use bytes::BytesMut;
use glocal_wire::nats::{ConnectOptions, NatsError, NatsLimits, Next, Op, Refusal, client, header_value, next_op};

/// Small enough for mutations to reach them.
const PAYLOAD: u32 = 300;
const LINE: usize = 256;

/// What one read of a buffer came to.
#[derive(Debug, PartialEq, Eq)]
enum Step<'a> {
    Op(Op<'a>),
    Refused(NatsError),
}

/// Checks one input as of a client before CONNECT and after it, with and without headers; returns how many operations
/// and refusals came of it.
pub(crate) fn check(data: &[u8]) -> usize {
    let limits = [NatsLimits::BEFORE_CONNECT, NatsLimits::open(PAYLOAD, true), NatsLimits::open(PAYLOAD, false)]
        .map(|limits| NatsLimits { control_line_bytes_max: LINE, ..limits });
    let mut found = 0;
    for limits in &limits {
        let steps = read(data, limits);
        found += steps.len();
        for step in &steps {
            match step {
                Step::Op(op) => check_op(*op),
                Step::Refused(error) => check_error(error),
            }
        }
        check_pieces(data, limits, &steps);
    }
    found
}

/// Takes operations until bytes are missing or the session would end.
fn read<'a>(data: &'a [u8], limits: &NatsLimits) -> Vec<Step<'a>> {
    let mut steps = Vec::new();
    let mut rest = data;
    while let Some((step, bytes)) = next(rest, limits) {
        steps.push(step);
        let Some(bytes) = bytes else { break };
        rest = &rest[bytes..];
    }
    steps
}

/// One read, its sizes checked: a step and by how much to advance, or nothing while bytes are missing.
fn next<'a>(rest: &'a [u8], limits: &NatsLimits) -> Option<(Step<'a>, Option<usize>)> {
    let most = "CONNECT".len() + limits.control_line_bytes_max + 2 + limits.payload_bytes_max.unwrap_or(0) + 2;
    match next_op(rest, limits) {
        Ok(Next::Need(bytes)) => {
            assert!(bytes > rest.len() && bytes <= most, "{bytes} bytes wanted after {}", rest.len());
            None
        }
        Ok(Next::Op { op, bytes }) => {
            assert!(bytes > 0 && bytes <= rest.len() && bytes <= most);
            Some((Step::Op(op), Some(bytes)))
        }
        Err(error) => {
            let skip = error.skip_bytes();
            assert!(skip.is_none_or(|bytes| bytes > 0 && bytes <= rest.len()));
            assert_eq!(skip.is_some(), !error.refusal().closes(), "{error}");
            Some((Step::Refused(error), skip))
        }
    }
}

/// Arguments are arguments, and the operation as a client writes it reads as the same operation.
fn check_op(op: Op<'_>) {
    let argument = |text: &[u8]| assert!(!text.is_empty() && text.iter().all(|byte| *byte > b' '), "{text:?}");
    let mut out = BytesMut::new();
    match op {
        Op::Connect(json) => {
            if let Err(error) = ConnectOptions::parse(json) {
                check_error(&error);
            }
            return;
        }
        Op::Pub { subject, reply, payload } => {
            argument(subject);
            client::encode_pub_into(&mut out, subject, reply, payload).unwrap();
        }
        Op::Hpub { subject, reply, headers, payload } => {
            argument(subject);
            assert!(header_value(headers, b"Glocal-Class").is_none_or(|value| value.len() < headers.len()));
            client::encode_hpub_into(&mut out, subject, reply, headers, payload).unwrap();
        }
        Op::Sub { subject, queue, sid } => {
            argument(subject);
            argument(sid);
            client::encode_sub_into(&mut out, subject, queue, sid).unwrap();
        }
        Op::Unsub { sid, max } => {
            if sid.iter().any(|byte| *byte < b' ') {
                return;
            }
            argument(sid);
            client::encode_unsub_into(&mut out, sid, max.map(|max| usize::try_from(max).unwrap())).unwrap();
        }
        Op::Ping => out.extend_from_slice(b"PING\r\n"),
        Op::Pong => out.extend_from_slice(b"PONG\r\n"),
    }
    let limits = NatsLimits::open(PAYLOAD, true);
    // The largest number of UNSUB may be longer than what was read as it.
    assert_eq!(next_op(&out, &limits), Ok(Next::Op { op, bytes: out.len() }));
}

/// A refusal is one line that a client reads as an error.
fn check_error(error: &NatsError) {
    let refusals = [error.refusal(), Refusal::Publish { subject: error.code().as_bytes(), reason: error.code() }];
    for refusal in refusals {
        let mut out = BytesMut::new();
        refusal.encode_into(&mut out);
        let line = out.strip_suffix(b"\r\n").unwrap();
        assert!(line.starts_with(b"-ERR '") && line.ends_with(b"'") && line.iter().all(|byte| *byte >= b' '));
    }
}

/// The same bytes in pieces give the same steps: of a length that depends on the input.
/// (Every place is the property test's.)
fn check_pieces(data: &[u8], limits: &NatsLimits, whole: &[Step<'_>]) {
    let hash = data.iter().fold(data.len(), |hash, byte| hash.wrapping_mul(31).wrapping_add(usize::from(*byte)));
    let piece = 1 + data.len() / 32 + hash % (1 + data.len() / 2);
    let mut whole = whole.iter();
    let (mut begin, mut arrived) = (0, 0);
    while arrived < data.len() {
        arrived = data.len().min(arrived + piece);
        while let Some((step, bytes)) = next(&data[begin..arrived], limits) {
            assert_eq!(Some(&step), whole.next(), "in pieces of {piece}");
            let Some(bytes) = bytes else {
                assert_eq!(whole.next(), None);
                return;
            };
            begin += bytes;
        }
    }
    assert_eq!(whole.next(), None, "in pieces of {piece}");
}
