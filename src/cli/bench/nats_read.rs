//! What one read of a NATS connection brought, without copying payloads.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use glocal_core::limits::{BENCH_NATS_LINE_BYTES, MAX_PAYLOAD_BYTES_CEILING};
use glocal_wire::nats::client::{ClientLimits, ServerNext, ServerOp, next_server_op};

const LIMITS: ClientLimits = ClientLimits {
    line_bytes_max: BENCH_NATS_LINE_BYTES,
    payload_bytes_max: MAX_PAYLOAD_BYTES_CEILING as usize + BENCH_NATS_LINE_BYTES,
};
const REFUSAL: &[u8] = b"Permissions Violation";

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    /// The payload.
    pub(crate) payload: Bytes,
    /// The reply subject; empty for none.
    pub(crate) reply: String,
    /// The last token of the subject where it is a number: which request a reply is for.
    pub(crate) number: Option<u64>,
    /// The server says that nobody answers.
    pub(crate) is_no_responders: bool,
}

/// What one read brought.
#[derive(Debug, Default)]
pub(crate) struct Read {
    /// Messages by the number of their subscription, in order.
    pub(crate) batches: Vec<(usize, Vec<Item>)>,
    /// Permissions violations; the session goes on.
    pub(crate) refusals: Vec<String>,
    /// Other errors; the server closes after them.
    pub(crate) errors: Vec<String>,
    /// PINGs to answer.
    pub(crate) pings: usize,
    /// PONGs.
    pub(crate) pongs: usize,
    /// Bytes that the next operation lacks at least.
    pub(crate) missing: usize,
}

/// A message whose payload still lies in the read buffer.
struct Found {
    sid: usize,
    payload: Range<usize>,
    item: Item,
}

/// Takes every complete operation out of `buffer`.
pub(crate) fn take(buffer: &mut BytesMut) -> anyhow::Result<Read> {
    let mut read = Read::default();
    let mut found: Vec<Found> = Vec::new();
    let mut used = 0;
    read.missing = loop {
        let rest = buffer.get(used..).unwrap_or_default();
        let next = next_server_op(rest, &LIMITS).map_err(|error| anyhow::anyhow!("not NATS: {error}"))?;
        let (op, bytes) = match next {
            ServerNext::Need(bytes) => break bytes.saturating_sub(rest.len()),
            ServerNext::Op { op, bytes } => (op, bytes),
        };
        used += bytes;
        match op {
            ServerOp::Ping => read.pings += 1,
            ServerOp::Pong => read.pongs += 1,
            ServerOp::Info(_) | ServerOp::Ok => {}
            ServerOp::Err(text) => {
                let list = if text.starts_with(REFUSAL) { &mut read.refusals } else { &mut read.errors };
                list.push(String::from_utf8_lossy(text).into_owned());
            }
            ServerOp::Msg { subject, sid, reply, headers, payload } => {
                // The payload is the last part, before the line's end.
                let end = used - 2;
                let sid = decimal(sid).and_then(|sid| usize::try_from(sid).ok());
                found.extend(sid.map(|sid| Found {
                    sid,
                    payload: end - payload.len()..end,
                    item: Item {
                        payload: Bytes::new(),
                        reply: String::from_utf8_lossy(reply).into_owned(),
                        number: subject.rsplit(|byte| *byte == b'.').next().and_then(decimal),
                        is_no_responders: payload.is_empty() && headers.starts_with(b"NATS/1.0 503"),
                    },
                }));
            }
        }
    };
    let taken = buffer.split_to(used).freeze();
    for Found { sid, payload, item } in found {
        let item = Item { payload: taken.slice(payload), ..item };
        match read.batches.iter_mut().find(|(known, _)| *known == sid) {
            Some((_, items)) => items.push(item),
            None => read.batches.push((sid, vec![item])),
        }
    }
    Ok(read)
}

fn decimal(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_sorted_into_what_it_holds_and_the_rest_stays() {
        let bytes = b"PING\r\nMSG a.b 1 3\r\none\r\n-ERR 'Permissions Violation for Publish to \"x\"'\r\nMSG _INBOX.q.7 0 0\r\n\r\n\
            HMSG _INBOX.q.8 0 16 16\r\nNATS/1.0 503\r\n\r\n\r\nMSG a.b 1 r.s 3\r\ntwo\r\nPONG\r\n-ERR 'Slow Consumer'\r\nMSG a.b 1 4\r\nth";
        let mut buffer = BytesMut::from(&bytes[..]);
        let read = take(&mut buffer).unwrap();
        assert_eq!((read.pings, read.pongs, read.missing), (1, 1, 4));
        assert_eq!(read.refusals, ["Permissions Violation for Publish to \"x\""]);
        assert_eq!(read.errors, ["Slow Consumer"]);
        let [(1, feed), (0, inbox)] = read.batches.as_slice() else { panic!("{read:?}") };
        let seen: Vec<_> = feed.iter().map(|item| (&item.payload[..], item.reply.as_str())).collect();
        assert_eq!(seen, [(&b"one"[..], ""), (&b"two"[..], "r.s")]);
        let seen: Vec<_> = inbox.iter().map(|item| (item.number, item.is_no_responders)).collect();
        assert_eq!(seen, [(Some(7), false), (Some(8), true)]);
        assert_eq!(&buffer[..], b"MSG a.b 1 4\r\nth");
        buffer.extend_from_slice(b"ee\r\n");
        assert_eq!(take(&mut buffer).unwrap().batches[0].1[0].payload, "thee");
    }

    #[test]
    fn what_is_no_nats_is_an_error() {
        assert!(take(&mut BytesMut::from(&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..])).is_err());
    }
}
