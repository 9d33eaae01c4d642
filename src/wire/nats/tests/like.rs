//! Publishes that are like another one.

use super::*;

fn head(bytes: &str, payload: usize) -> Option<&str> {
    pub_head(bytes.as_bytes(), payload).map(|head| std::str::from_utf8(head).unwrap())
}

#[test]
fn what_a_publish_begins_with_is_kept_where_its_line_is_written_as_usual() {
    for (bytes, payload, expected) in [
        ("PUB a.b 2\r\nhi\r\n", 2, Some("PUB a.b ")),
        ("pub\ta  0\r\n\r\n", 0, Some("pub\ta  ")),
        ("PUB 7 2\r\nhi\r\n", 2, Some("PUB 7 ")),
        ("PUB a 2 \r\nhi\r\n", 2, None),
        ("PUB a 2\nhi\r\n", 2, None),
        ("PUB a \r\nhi\r\n", 2, None),
        ("2\r\nhi\r\n", 2, None),
        ("\r\n", 2, None),
        ("", 0, None),
    ] {
        assert_eq!(head(bytes, payload), expected, "{}", bytes.escape_debug());
    }
    let line = |subject: usize| format!("PUB {} 0\r\n\r\n", "s".repeat(subject));
    // Of the line's bytes, five are around the subject and eight are kept for digits.
    assert!(head(&line(LINE - 13), 0).is_some(), "any size fits behind it");
    assert_eq!(head(&line(LINE - 12), 0), None);
}

#[test]
fn a_publish_is_like_another_one_that_differs_in_its_payload_alone() {
    let like = |bytes: &'static str| like_pub(bytes.as_bytes(), b"PUB a ");
    assert_eq!(like("PUB a 2\r\nhi\r\nPUB a"), Some((&b"hi"[..], 13)));
    assert_eq!(like("PUB a 0\r\n\r\n"), Some((&b""[..], 11)));
    assert_eq!(like("PUB a 002\r\n\r\n\r\n"), Some((&b"\r\n"[..], 15)));
    for bytes in [
        "PUB b 2\r\nhi\r\n",
        "pub a 2\r\nhi\r\n",
        "PUB a r 2\r\nhi\r\n",
        "PUB a 2 2\r\nhi\r\n",
        "PUB a  2\r\nhi\r\n",
        "PUB a 2\nhi\r\n",
        "PUB a -2\r\nhi\r\n",
        "PUB a \r\nhi\r\n",
        "PUB a 2\r\nhi!\r\n",
        "PUB a 000000002\r\nhi\r\n",
        "PUB a 99999999\r\nhi\r\n",
    ] {
        assert_eq!(like(bytes), None, "{}", bytes.escape_debug());
    }
    let whole = "PUB a 2\r\nhi\r\n";
    (0..whole.len()).for_each(|len| assert_eq!(like(&whole[..len]), None, "{len}"));
}

proptest! {
    /// Whatever is taken for like a publish is read as that publish with this payload.
    #[test]
    fn what_is_like_a_publish_is_read_as_that_publish(
        subject in "[a-z0-9.]{1,6}", blank in "[ \t]{1,2}", sizes in (0..30usize, 0..30usize),
        changes in proptest::collection::vec((0..40usize, prop_oneof![Just(b' '), Just(b'1'), any::<u8>()]), 0..3),
    ) {
        let bytes = |size: usize| format!("PUB {subject}{blank}{size}\r\n{}\r\n", "p".repeat(size)).into_bytes();
        let first = bytes(sizes.0);
        let head = pub_head(&first, sizes.0).unwrap();
        let mut other = bytes(sizes.1);
        other.extend_from_slice(b"PING\r\n");
        for (at, byte) in changes {
            if let Some(slot) = other.get_mut(at) {
                *slot = byte;
            }
        }
        if let Some((payload, taken)) = like_pub(&other, head) {
            let op = Op::Pub { subject: subject.as_bytes(), reply: b"", payload };
            prop_assert_eq!(next_op(&other, &OPEN), Ok(Next::Op { op, bytes: taken }));
        }
    }
}
