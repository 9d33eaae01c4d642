use bytes::BytesMut;
use proptest::prelude::*;

use super::*;

mod answers;
mod like;
mod options;

const MAX: u32 = 1_000;
const OPEN: NatsLimits = NatsLimits::open(MAX, true);
const LINE: usize = NATS_CONTROL_LINE_BYTES_MAX;

fn one(bytes: &[u8]) -> Result<Op<'_>, NatsError> {
    match next_op(bytes, &OPEN)? {
        Next::Op { op, bytes: taken } => {
            assert_eq!(taken, bytes.len(), "{}", bytes.escape_ascii());
            Ok(op)
        }
        Next::Need(need) => panic!("{need} bytes wanted: {}", bytes.escape_ascii()),
    }
}

fn publish<'a>(subject: &'a str, reply: &'a str, payload: &'a str) -> Op<'a> {
    Op::Pub { subject: subject.as_bytes(), reply: reply.as_bytes(), payload: payload.as_bytes() }
}

fn subscribe<'a>(subject: &'a str, queue: &'a str, sid: &'a str) -> Op<'a> {
    Op::Sub { subject: subject.as_bytes(), queue: queue.as_bytes(), sid: sid.as_bytes() }
}

/// Checklist 9: names in any case, runs of space or tab, blanks at the end; LF alone ends a line.
#[test]
fn lines_are_read_liberally() {
    for (line, op) in [
        ("PUB a  2\r\nhi\r\n", publish("a", "", "hi")),
        ("pub\ta\t r \t2 \t\r\nhi\r\n", publish("a", "r", "hi")),
        ("PuB a 2\nhi\r\n", publish("a", "", "hi")),
        ("PUB a 002\r\nhi\r\n", publish("a", "", "hi")),
        ("SUB a  1\r\n", subscribe("a", "", "1")),
        ("sub a.* workers  0 \n", subscribe("a.*", "workers", "0")),
        ("SUB > x-y#1\r\n", subscribe(">", "", "x-y#1")),
        ("UNSUB 1 \r\n", Op::Unsub { sid: b"1", max: None }),
        ("unsub\t1  5\r\n", Op::Unsub { sid: b"1", max: Some(5) }),
        ("PING\r\n", Op::Ping),
        ("ping  \n", Op::Ping),
        ("PING words are ignored\r\n", Op::Ping),
        ("PoNg\r\n", Op::Pong),
        ("CONNECT \t{} \r\n", Op::Connect(b"{}")),
        ("connect{}\n", Op::Connect(b"{}")),
    ] {
        assert_eq!(one(line.as_bytes()), Ok(op), "{line:?}");
    }
}

/// Checklist 11: the end of a subscription after no deliveries, or after what is no number, is its end now.
#[test]
fn unsubscribe_without_a_number_is_at_once() {
    for max in ["0", "000", "-1", "+1", "x", "1x"] {
        let line = format!("UNSUB 7 {max}\r\n");
        assert_eq!(one(line.as_bytes()), Ok(Op::Unsub { sid: b"7", max: None }), "{max}");
    }
    let line = "UNSUB 7 99999999999999999999999\r\n";
    assert_eq!(one(line.as_bytes()), Ok(Op::Unsub { sid: b"7", max: Some(u64::MAX) }));
}

/// Checklist 12: headers of no bytes, empty payloads, header blocks handed on as they are.
#[test]
fn header_publishes_are_split_and_not_read() {
    let hpub = |subject: &'static [u8], reply: &'static [u8], headers: &'static [u8], payload: &'static [u8]| {
        Op::Hpub { subject, reply, headers, payload }
    };
    for (line, op) in [
        ("HPUB a r 0 2\r\nhi\r\n", hpub(b"a", b"r", b"", b"hi")),
        ("HPUB a 0 0\r\n\r\n", hpub(b"a", b"", b"", b"")),
        ("hpub a  12 14\r\nNATS/1.0\r\n\r\nhi\r\n", hpub(b"a", b"", b"NATS/1.0\r\n\r\n", b"hi")),
        ("HPUB a r 12 12\r\nNATS/1.0\r\n\r\n\r\n", hpub(b"a", b"r", b"NATS/1.0\r\n\r\n", b"")),
        ("HPUB a 4 6\r\njunkhi\r\n", hpub(b"a", b"", b"junk", b"hi")),
    ] {
        assert_eq!(one(line.as_bytes()), Ok(op), "{line:?}");
    }
    let without = NatsLimits::open(MAX, false);
    assert_eq!(next_op(b"HPUB a 0 0\r\n", &without), Err(NatsError::HeadersNotSupported));
}

/// Checklist 13: wildcards are literal characters here, and payloads are bytes.
#[test]
fn subjects_and_payloads_are_not_judged() {
    let line = b"PUB $JS.API.CONSUMER.CREATE.S.c.> _INBOX.*.\xff 4\r\n\0\r\n\xff\r\n";
    let op = Op::Pub { subject: b"$JS.API.CONSUMER.CREATE.S.c.>", reply: b"_INBOX.*.\xff", payload: b"\0\r\n\xff" };
    assert_eq!(one(line), Ok(op));
}

#[test]
fn each_fault_has_its_error() {
    use NatsError::*;
    for (line, error) in [
        ("\r\n", UnknownOperation),
        (" PING\r\n", UnknownOperation),
        ("GET / HTTP/1.1\r\n", UnknownOperation),
        ("\x16\x03\x01", UnknownOperation),
        ("PUBa 1\r\n", UnknownOperation),
        ("PUB\r\n", UnknownOperation),
        ("MSG a 1 0\r\n", UnknownOperation),
        ("INFO {}\r\n", UnknownOperation),
        ("+OK\r\n", UnknownOperation),
        ("-ERR 'x'\r\n", UnknownOperation),
        ("PUB \r\n", BadArguments("PUB")),
        ("PUB 5\r\n", BadArguments("PUB")),
        ("PUB a b c 5\r\n", BadArguments("PUB")),
        ("PUB a b c d 5\r\n", BadArguments("PUB")),
        ("HPUB a 1\r\n", BadArguments("HPUB")),
        ("HPUB a b c 1 1\r\n", BadArguments("HPUB")),
        ("SUB a\r\n", BadArguments("SUB")),
        ("SUB a b c d\r\n", BadArguments("SUB")),
        ("SUB a \x01\r\n", BadArguments("SUB")),
        ("UNSUB \r\n", BadArguments("UNSUB")),
        ("UNSUB 1 2 3\r\n", BadArguments("UNSUB")),
        ("PUB a b\r\n", BadSize("PUB")),
        ("PUB a -1\r\n", BadSize("PUB")),
        ("PUB a +1\r\n", BadSize("PUB")),
        ("PUB a 1_0\r\n", BadSize("PUB")),
        ("PUB a 0x1\r\n", BadSize("PUB")),
        ("HPUB a x 1\r\n", BadSize("HPUB")),
        ("HPUB a 1 x\r\n", BadSize("HPUB")),
        ("HPUB a 3 2\r\n", HeadersTooLong { bytes: 3, total: 2 }),
        ("PUB a 1001\r\n", PayloadTooLarge { bytes: 1_001, max: 1_000 }),
        ("HPUB a 1 1001\r\n", PayloadTooLarge { bytes: 1_001, max: 1_000 }),
        ("PUB a 18446744073709551615\r\n", PayloadTooLarge { bytes: usize::MAX, max: 1_000 }),
        ("PUB a 18446744073709551616\r\n", PayloadTooLarge { bytes: usize::MAX, max: 1_000 }),
        ("PUB a 2\r\nhi!", PayloadNotTerminated),
        ("PUB a 2\r\nhi\n", PayloadNotTerminated),
        ("PUB a 2\r\nhi\rx", PayloadNotTerminated),
    ] {
        assert_eq!(next_op(line.as_bytes(), &OPEN), Err(error.clone()), "{line:?}");
        assert_eq!(error.skip_bytes(), None);
        assert!(error.refusal().closes(), "{line:?}");
    }
}

/// A control character in a name refuses that operation, and the next one is read.
#[test]
fn control_characters_refuse_one_operation() {
    for (line, part, publish) in [
        ("PUB a\0b 2\r\nhi\r\n", "subject", true),
        ("PUB a\rb 2\r\nhi\r\n", "subject", true),
        ("PUB a b\x1f 2\r\nhi\r\n", "reply subject", true),
        ("HPUB \0 0 2\r\nhi\r\n", "subject", true),
        ("SUB a\0 1\r\n", "subject", false),
        ("SUB a\r 1\r\n", "subject", false),
        ("SUB a q\0 1\r\n", "queue group", false),
    ] {
        let stream = format!("{line}PING\r\n");
        let error = next_op(stream.as_bytes(), &OPEN).unwrap_err();
        assert_eq!(error, NatsError::BadSubject { part, publish, skip_bytes: line.len() });
        let wanted = if publish { Refusal::InvalidPublishSubject } else { Refusal::InvalidSubject };
        assert_eq!(error.refusal(), wanted);
        assert!(!wanted.closes());
        assert_eq!(one(&stream.as_bytes()[error.skip_bytes().unwrap()..]), Ok(Op::Ping));
    }
}

#[test]
fn before_connect_nothing_else_is_read() {
    let before = |line: &'static [u8]| next_op(line, &NatsLimits::BEFORE_CONNECT);
    for line in [&b"PUB"[..], b"PUB a 2\r\nhi\r\n", b"HPUB", b"hpub a 0 2\r\n", b"SUB a 1\r\n", b"UNSUB 1\r\n"] {
        assert_eq!(before(line), Err(NatsError::BeforeConnect), "{}", line.escape_ascii());
    }
    assert_eq!(before(b"CONNECT {}\r\n"), Ok(Next::Op { op: Op::Connect(b"{}"), bytes: 12 }));
    assert_eq!(before(b"PING\r\n"), Ok(Next::Op { op: Op::Ping, bytes: 6 }));
    assert_eq!(before(b"PONG\r\n"), Ok(Next::Op { op: Op::Pong, bytes: 6 }));
}

#[test]
fn what_is_missing_is_asked_for() {
    for (begin, need) in [
        ("", 1),
        ("p", 2),
        ("PUB", 4),
        ("PUB ", 5),
        ("PUB a 2\r", 9),
        // Once the line is there, the whole operation is known.
        ("PUB a 2\r\n", 13),
        ("PUB a 2\r\nhi", 13),
        ("PUB a 2\r\nhi\r", 13),
        ("HPUB a 12 20\r\nNATS", 36),
        ("UNSUB", 6),
        ("PING", 5),
        ("CONNECT {", 10),
    ] {
        assert_eq!(next_op(begin.as_bytes(), &OPEN), Ok(Next::Need(need)), "{begin:?}");
    }
}

#[test]
fn the_line_is_limited_with_and_without_an_end() {
    let too_long = Err(NatsError::ControlLineTooLong { max: LINE });
    for (name, tail) in [("PUB", " 0"), ("SUB", " 1"), ("UNSUB", " 1"), ("PING", ""), ("CONNECT", "")] {
        for end in ["\r\n", "\n"] {
            let line = |bytes: usize| format!("{name} {}{tail}{end}", "x".repeat(bytes - 1 - tail.len()));
            let longest = line(LINE);
            let taken = next_op(longest.as_bytes(), &OPEN);
            let complete = matches!(taken, Ok(Next::Op { bytes, .. } | Next::Need(bytes)) if bytes >= longest.len());
            assert!(complete, "{name}: {taken:?}");
            assert_eq!(next_op(line(LINE + 1).as_bytes(), &OPEN), too_long, "{name}");
        }
        // An end is not waited for where none can come, and is where one can.
        let open = format!("{name} {}", "x".repeat(LINE));
        assert_eq!(next_op(open.as_bytes(), &OPEN), Ok(Next::Need(open.len() + 1)), "{name}");
        assert_eq!(next_op(format!("{open}x").as_bytes(), &OPEN), too_long, "{name}");
    }
}

/// The one-pass way and the long way are the same.
#[test]
fn plain_lines_read_like_others() {
    let sizes = ["0", "00", "7", "1000", "1001", "-1", "99999999999999999999", "x", ""];
    let names = ["PUB", "pub", "HPUB", "hPub"];
    let subjects = ["a", "averylongsubject.with.tokens.beyond.sixteen", "é.ß", "a\x7fb"];
    let replies = ["", "r", "_INBOX.abcdefgh.1"];
    let mut seen = 0;
    for name in names {
        for (subject, reply) in subjects.iter().flat_map(|s| replies.iter().map(move |r| (s, r))) {
            for (first, second) in sizes.iter().flat_map(|f| sizes.iter().map(move |s| (f, s))) {
                for (blank, end) in [(" ", "\r\n"), (" \t ", " \n")] {
                    let arguments = [*subject, *reply, *first, *second].join(blank);
                    let line = format!("{name}{blank}{arguments}{end}1234567\r\n");
                    assert_eq!(next_op(line.as_bytes(), &OPEN), any_op(line.as_bytes(), &OPEN), "{line:?}");
                    seen += 1;
                }
            }
        }
    }
    assert!(seen > 5_000);
}

fn argument() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(0x21..=0xffu8, 1..40)
}

fn optional() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![Just(Vec::new()), argument()]
}

fn bytes(most: usize) -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..most)
}

/// One operation as a client writes it.
fn written() -> impl Strategy<Value = Vec<u8>> {
    let encode = |encode: &dyn Fn(&mut BytesMut) -> Result<(), NatsEncodeError>| {
        let mut out = BytesMut::new();
        encode(&mut out).unwrap();
        out.to_vec()
    };
    prop_oneof![
        (argument(), optional(), bytes(300))
            .prop_map(move |(s, r, p)| encode(&|out| client::encode_pub_into(out, &s, &r, &p))),
        (argument(), optional(), bytes(100), bytes(300))
            .prop_map(move |(s, r, h, p)| encode(&|out| client::encode_hpub_into(out, &s, &r, &h, &p))),
        (argument(), optional(), argument())
            .prop_map(move |(s, q, i)| encode(&|out| client::encode_sub_into(out, &s, &q, &i))),
        (argument(), proptest::option::of(1..usize::MAX))
            .prop_map(move |(i, max)| encode(&|out| client::encode_unsub_into(out, &i, max))),
        Just(PING.to_vec()),
        Just(PONG.to_vec()),
        Just(b"CONNECT {\"echo\":false}\r\n".to_vec()),
    ]
}

/// The operations of a stream, each as text, and what is left of it.
fn drain(buffer: &mut Vec<u8>) -> Vec<String> {
    let mut ops = Vec::new();
    loop {
        match next_op(buffer, &OPEN).unwrap() {
            Next::Need(need) => {
                assert!(need > buffer.len());
                return ops;
            }
            Next::Op { op, bytes } => {
                ops.push(format!("{op:?}"));
                buffer.drain(..bytes);
            }
        }
    }
}

proptest! {
    #[test]
    fn any_split_gives_the_same_operations(
        stream in proptest::collection::vec(written(), 1..8),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let whole = stream.concat();
        let ops = drain(&mut whole.clone());
        prop_assert_eq!(ops.len(), stream.len());
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(whole.len())).collect();
        cuts.sort_unstable();
        cuts.push(whole.len());
        let (mut buffer, mut begin, mut found) = (Vec::new(), 0, Vec::new());
        for cut in cuts {
            buffer.extend_from_slice(&whole[begin..cut]);
            found.extend(drain(&mut buffer));
            begin = cut;
        }
        prop_assert_eq!(found, ops);
        prop_assert!(buffer.is_empty());
    }

    #[test]
    fn byte_by_byte_gives_the_same_operations(stream in proptest::collection::vec(written(), 1..3)) {
        let whole = stream.concat();
        let (mut buffer, mut found) = (Vec::new(), Vec::new());
        for byte in &whole {
            buffer.push(*byte);
            found.extend(drain(&mut buffer));
        }
        prop_assert_eq!(found, drain(&mut whole.clone()));
    }

    #[test]
    fn any_bytes_are_read_without_a_panic_and_within_limits(bytes in bytes(600)) {
        for limits in [OPEN, NatsLimits::BEFORE_CONNECT] {
            if let Ok(Next::Need(need)) = next_op(&bytes, &limits) {
                prop_assert!(need > bytes.len() && need <= 7 + LINE + 2 + MAX as usize + 2);
            }
        }
    }
}
