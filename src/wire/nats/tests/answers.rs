//! What a server writes, read by the client's end.

use proptest::prelude::*;

use crate::nats::client::{ClientLimits, ServerNext, ServerOp, next_server_op};
use crate::nats::{
    LastLine, NatsEncodeError, Refusal, encode_msg_into, encode_msg_prefix_into, encode_no_responders_into,
    header_value,
};

use super::{BytesMut, argument, bytes, optional};

const LIMITS: ClientLimits = ClientLimits { line_bytes_max: 64 * 1024, payload_bytes_max: 1024 * 1024 };

fn read(out: &[u8]) -> ServerOp<'_> {
    match next_server_op(out, &LIMITS).unwrap() {
        ServerNext::Op { op, bytes } if bytes == out.len() => op,
        other => panic!("{other:?} of {}", out.escape_ascii()),
    }
}

fn written(encode: impl FnOnce(&mut BytesMut) -> Result<(), NatsEncodeError>) -> String {
    let mut out = BytesMut::new();
    encode(&mut out).unwrap();
    String::from_utf8(out.to_vec()).unwrap()
}

/// Checklist 14.
#[test]
fn messages_have_their_lines() {
    let msg = |reply: &'static str, headers: &'static str, payload: &'static str| {
        let (reply, headers, payload) = (reply.as_bytes(), headers.as_bytes(), payload.as_bytes());
        written(|out| encode_msg_into(out, b"a.b", b"0", reply, headers, payload))
    };
    assert_eq!(msg("", "", "hello"), "MSG a.b 0 5\r\nhello\r\n");
    assert_eq!(msg("", "", ""), "MSG a.b 0 0\r\n\r\n");
    assert_eq!(msg("r", "", "hi"), "MSG a.b 0 r 2\r\nhi\r\n");
    assert_eq!(msg("", "NATS/1.0\r\n\r\n", "hi"), "HMSG a.b 0 12 14\r\nNATS/1.0\r\n\r\nhi\r\n");
    assert_eq!(msg("r", "NATS/1.0\r\n\r\n", ""), "HMSG a.b 0 r 12 12\r\nNATS/1.0\r\n\r\n\r\n");
    let prefix = |headers, payload| written(|out| encode_msg_prefix_into(out, b"a", b"1", b"r", headers, payload));
    assert_eq!(prefix(0, 1_234_567_890), "MSG a 1 r 1234567890\r\n");
    assert_eq!(prefix(100, 9_900), "HMSG a 1 r 100 10000\r\n");
}

/// Checklist 15, in the words of the common servers.
#[test]
fn no_responders_is_a_status_message_of_the_reply_subject() {
    let out = written(|out| encode_no_responders_into(out, b"_INBOX.x.1", b"9", b"svc.echo"));
    assert_eq!(out, "HMSG _INBOX.x.1 9 40 40\r\nNATS/1.0 503\r\nNats-Subject: svc.echo\r\n\r\n\r\n");
    let ServerOp::Msg { headers, payload, .. } = read(out.as_bytes()) else { panic!("{out}") };
    assert!(headers.ends_with(b"\r\n\r\n") && payload.is_empty());
    assert_eq!(header_value(headers, b"Nats-Subject"), Some(&b"svc.echo"[..]));
}

#[test]
fn nothing_that_breaks_its_line_is_written() {
    let refused =
        |part, result: Result<(), NatsEncodeError>| assert_eq!(result, Err(NatsEncodeError::BadArgument { part }));
    let mut out = BytesMut::from(&b"before"[..]);
    for bad in [&b""[..], b"a b", b"a\tb", b"a\r\nPING", b"a\n", b"\0", b"a\x1f"] {
        refused("subject", encode_msg_into(&mut out, bad, b"1", b"", b"", b"x"));
        refused("sid", encode_msg_into(&mut out, b"a", bad, b"", b"", b"x"));
        refused("sid", encode_msg_prefix_into(&mut out, b"a", bad, b"", 0, 1));
        refused("subject", encode_no_responders_into(&mut out, b"r", b"1", bad));
        if !bad.is_empty() {
            refused("reply subject", encode_msg_into(&mut out, b"a", b"1", bad, b"", b"x"));
        }
    }
    assert_eq!(&out[..], b"before");
}

/// Checklist 19 and 20: the words, and whether the session goes on.
#[test]
fn refusals_have_the_words_that_clients_know() {
    use Refusal::*;
    let publish = |subject: &'static [u8], reason| Publish { subject, reason };
    let subscription = |queue: &'static [u8], reason| Subscription { subject: b"a.>", queue, reason };
    let open = [
        (publish(b"a.b", ""), r#"Permissions Violation for Publish to "a.b""#),
        (publish(b"a", "rate limit exceeded"), r#"Permissions Violation for Publish to "a": rate limit exceeded"#),
        (subscription(b"", ""), r#"Permissions Violation for Subscription to "a.>""#),
        (subscription(b"q", ""), r#"Permissions Violation for Subscription to "a.>" using queue "q""#),
        (subscription(b"q", "why"), r#"Permissions Violation for Subscription to "a.>" using queue "q": why"#),
        (InvalidSubject, "Invalid Subject"),
        (InvalidPublishSubject, "Invalid Publish Subject"),
    ];
    let closed = [
        (AuthorizationViolation, "Authorization Violation"),
        (AuthenticationTimeout, "Authentication Timeout"),
        (AuthenticationExpired, "User Authentication Expired"),
        (AuthenticationRevoked, "User Authentication Revoked"),
        (TooManyConnections, "maximum connections exceeded"),
        (TooManyTenantConnections, "maximum account active connections exceeded"),
        (PayloadTooLarge, "Maximum Payload Violation"),
        (ControlLineTooLong, "maximum control line exceeded"),
        (UnknownOperation, "Unknown Protocol Operation"),
        (ParserError, "Parser Error"),
        (StaleConnection, "Stale Connection"),
        (SlowConsumer, "Slow Consumer"),
        (InsufficientResources, "Insufficient Resources"),
        (InvalidClientProtocol, "invalid client protocol"),
        (NoRespondersWithoutHeaders, "no responders requires headers support"),
        (HeadersNotSupported, "message headers not supported"),
        (TlsRequired, "Secure Connection - TLS Required"),
    ];
    let all = open.into_iter().map(|row| (row, false)).chain(closed.into_iter().map(|row| (row, true)));
    for ((refusal, text), closes) in all {
        let mut out = BytesMut::new();
        refusal.encode_into(&mut out);
        assert_eq!(str::from_utf8(&out), Ok(&*format!("-ERR '{text}'\r\n")));
        assert_eq!(refusal.closes(), closes, "{text}");
        assert_eq!(read(&out), ServerOp::Err(text.as_bytes()));
    }
}

#[test]
fn names_in_refusals_stay_in_their_quotes() {
    let text = |subject: &[u8]| {
        let mut out = BytesMut::new();
        Refusal::Publish { subject, reason: "" }.encode_into(&mut out);
        String::from_utf8(out.to_vec()).unwrap()
    };
    assert!(text("é.'x'".as_bytes()).ends_with("to \"é.'x'\"'\r\n"));
    assert!(text(b"a\"b\\c").contains(r#""a\"b\\c""#));
    assert!(text(b"a\r\nPING\0\xff\x7f").contains(r#""a\x0d\x0aPING\x00\xff\x7f""#));
    let long = text(&[b'x'; 5_000]);
    assert!(long.len() < 1_300, "{}", long.len());
}

#[test]
fn short_answers_are_read() {
    for (line, op) in [
        (&b"+OK\r\n"[..], ServerOp::Ok),
        (b"PING\r\n", ServerOp::Ping),
        (b"PONG\r\n", ServerOp::Pong),
        (b"INFO {}\r\n", ServerOp::Info(b"{}")),
    ] {
        assert_eq!(read(line), op);
        for cut in 0..line.len() {
            assert!(matches!(next_server_op(&line[..cut], &LIMITS), Ok(ServerNext::Need(need)) if need > cut));
        }
    }
    assert!(next_server_op(b"PUB a 0\r\n", &LIMITS).is_err());
    assert!(next_server_op(b"HMSG a 1 5 4\r\njunk\r\n", &LIMITS).is_err());
}

proptest! {
    #[test]
    fn messages_read_as_they_were_written(
        subject in argument(), sid in argument(), reply in optional(), headers in bytes(60), payload in bytes(200),
    ) {
        let mut out = BytesMut::new();
        encode_msg_into(&mut out, &subject, &sid, &reply, &headers, &payload).unwrap();
        let (subject, sid, reply, headers, payload) = (&*subject, &*sid, &*reply, &*headers, &*payload);
        prop_assert_eq!(read(&out), ServerOp::Msg { subject, sid, reply, headers, payload });
        let mut split = BytesMut::new();
        encode_msg_prefix_into(&mut split, subject, sid, reply, headers.len(), payload.len()).unwrap();
        prop_assert_eq!([&split[..], headers, payload, b"\r\n"].concat(), out);
    }

    /// Few distinct values, so that lines repeat in part and as a whole.
    #[test]
    fn a_line_that_is_kept_is_the_line_that_would_be_made(
        messages in prop::collection::vec((0..3usize, 0..3usize, 0..2usize, 0..3usize, 0..3usize), 1..40),
    ) {
        let (subjects, sids): ([&[u8]; 3], [&[u8]; 3]) = ([b"a.b", b"a.bc", b""], [b"1", b"c1", b"x y"]);
        let (replies, bodies): ([&[u8]; 2], [&[u8]; 3]) = ([b"", b"r"], [b"", b"xy", b"zw"]);
        let mut kept = LastLine::default();
        for (subject, sid, reply, headers, payload) in messages {
            let (subject, sid, reply) = (subjects[subject], sids[sid], replies[reply]);
            let (mut one, mut two) = (BytesMut::new(), BytesMut::new());
            let fresh = encode_msg_into(&mut one, subject, sid, reply, bodies[headers], bodies[payload]);
            let again = kept.encode_msg_into(&mut two, subject, sid, reply, bodies[headers], bodies[payload]);
            prop_assert_eq!((fresh, one), (again, two));
        }
    }

    #[test]
    fn any_refusal_is_one_line(subject in bytes(80), queue in bytes(20), reason in ".{0,60}") {
        let mut out = BytesMut::new();
        Refusal::Subscription { subject: &subject, queue: &queue, reason: &reason }.encode_into(&mut out);
        prop_assert!(str::from_utf8(&out).is_ok());
        prop_assert!(matches!(read(&out), ServerOp::Err(_)));
    }
}
