//! Lines as clients and servers write them, held against `golden.txt`.
//!
//! `in <name> <bytes> => <operations>` is what clients send and how it is read, `out <name> <bytes>` what is written;
//! bytes are escaped. Run the test with `GLOCAL_GOLDEN_WRITE=1` to write the file after adding a line: an `in` line may
//! be added to the file without its operations.

use std::fmt::Write as _;

use bytes::BytesMut;

use super::{
    NatsLimits, Next, OK, Op, PING, PONG, Refusal, ServerInfo, encode_msg_into, encode_no_responders_into, next_op,
};

const FILE: &str = include_str!("golden.txt");
const LIMITS: NatsLimits = NatsLimits::open(1_000, true);

/// Everything that is written, by name.
fn written() -> Vec<(&'static str, BytesMut)> {
    let bytes = |encode: &dyn Fn(&mut BytesMut)| {
        let mut out = BytesMut::new();
        encode(&mut out);
        out
    };
    let msg = |reply: &'static [u8], headers: &'static [u8], payload: &'static [u8]| {
        bytes(&|out| encode_msg_into(out, b"orders.new", b"1", reply, headers, payload).unwrap())
    };
    let refusal = |refusal: Refusal<'_>| bytes(&|out| refusal.encode_into(out));
    let info = ServerInfo {
        server_id: "NGLOCAL".to_owned(),
        server_name: "region-a/broker-a".to_owned(),
        version: "2.10.26".to_owned(),
        go: "rust".to_owned(),
        host: "0.0.0.0".to_owned(),
        port: 4222,
        headers: true,
        max_payload: 1_048_576,
        proto: 1,
        tls_required: true,
        tls_verify: true,
        client_id: 4_711,
        client_ip: "127.0.0.1".to_owned(),
        jetstream: false,
        connect_urls: Vec::new(),
        ldm: false,
    };
    let leaving =
        ServerInfo { connect_urls: vec!["b:4222".to_owned(), "c:4222".to_owned()], ldm: true, ..info.clone() };
    vec![
        ("info", bytes(&|out| info.encode_into(out).unwrap())),
        ("info-leaving", bytes(&|out| leaving.encode_into(out).unwrap())),
        ("ok", OK.into()),
        ("ping", PING.into()),
        ("pong", PONG.into()),
        ("msg", msg(b"", b"", b"hello")),
        ("msg-empty", msg(b"", b"", b"")),
        ("msg-reply", msg(b"_INBOX.x.1", b"", b"hello")),
        ("hmsg", msg(b"", b"NATS/1.0\r\nGlocal-Class: bulk\r\n\r\n", b"hello")),
        ("hmsg-reply", msg(b"_INBOX.x.1", b"NATS/1.0\r\n\r\n", b"")),
        ("no-responders", bytes(&|out| encode_no_responders_into(out, b"_INBOX.x.1", b"1", b"svc.echo").unwrap())),
        ("denied-publish", refusal(Refusal::Publish { subject: b"T.b.live.x", reason: "cross-tenant" })),
        ("denied-subscription", refusal(Refusal::Subscription { subject: b"x.>", queue: b"", reason: "" })),
        ("denied-queue", refusal(Refusal::Subscription { subject: b"x", queue: b"q", reason: "too many" })),
        ("stale", refusal(Refusal::StaleConnection)),
    ]
}

/// The operations that bytes are read as, up to what is missing or refused.
fn read(mut bytes: &[u8]) -> String {
    let mut text = String::new();
    while !bytes.is_empty() {
        let separator = if text.is_empty() { "" } else { " | " };
        let (step, taken) = match next_op(bytes, &LIMITS) {
            Ok(Next::Op { op, bytes }) => (describe(op), Some(bytes)),
            Ok(Next::Need(need)) => (format!("need {need}"), None),
            Err(error) => (format!("error {}", error.code()), error.skip_bytes()),
        };
        write!(text, "{separator}{step}").unwrap();
        bytes = taken.map_or(&[], |taken| &bytes[taken..]);
    }
    text
}

fn describe(op: Op<'_>) -> String {
    let list = |name: &str, parts: &[&[u8]]| {
        parts.iter().fold(name.to_owned(), |text, part| format!("{text} [{}]", part.escape_ascii()))
    };
    match op {
        Op::Connect(json) => list("connect", &[json]),
        Op::Pub { subject, reply, payload } => list("pub", &[subject, reply, payload]),
        Op::Hpub { subject, reply, headers, payload } => list("hpub", &[subject, reply, headers, payload]),
        Op::Sub { subject, queue, sid } => list("sub", &[subject, queue, sid]),
        Op::Unsub { sid, max } => format!("{} {max:?}", list("unsub", &[sid])),
        Op::Ping => "ping".to_owned(),
        Op::Pong => "pong".to_owned(),
    }
}

/// The reverse of `escape_ascii`.
fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let (byte, length) = match (first, after) {
            (b'\\', [b'r', ..]) => (b'\r', 2),
            (b'\\', [b'n', ..]) => (b'\n', 2),
            (b'\\', [b't', ..]) => (b'\t', 2),
            (b'\\', [b'x', high, low, ..]) => {
                let digits = [*high, *low];
                (u8::from_str_radix(str::from_utf8(&digits).unwrap(), 16).unwrap(), 4)
            }
            (b'\\', [byte, ..]) => (*byte, 2),
            _ => (*first, 1),
        };
        bytes.push(byte);
        rest = &rest[length..];
    }
    bytes
}

#[test]
fn lines_are_read_and_written_as_ever() {
    let mut made = String::new();
    for line in FILE.lines().filter(|line| !line.starts_with("out ")) {
        let Some(input) = line.strip_prefix("in ") else {
            writeln!(made, "{line}").unwrap();
            continue;
        };
        let (name, rest) = input.split_once(' ').expect("name and bytes");
        let escaped = rest.split_once(" => ").map_or(rest, |(escaped, _)| escaped);
        writeln!(made, "in {name} {escaped} => {}", read(&unescaped(escaped))).unwrap();
    }
    for (name, bytes) in written() {
        writeln!(made, "out {name} {}", bytes.escape_ascii()).unwrap();
    }
    if std::env::var_os("GLOCAL_GOLDEN_WRITE").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/nats/golden.txt"), &made).expect("the file is writable");
        return;
    }
    assert!(FILE.lines().filter(|line| line.starts_with("in ")).count() >= 20);
    for (made, stored) in made.lines().zip(FILE.lines()) {
        assert_eq!(made, stored);
    }
    assert_eq!(made.len(), FILE.len());
}
