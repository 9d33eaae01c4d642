use proptest::prelude::*;

use super::*;
use crate::ext::ExtBuilder;
use crate::golden::data_frames;

fn publish() -> Vec<u8> {
    let mut out = BytesMut::new();
    let head = DataHead { seq: Some(7), ..DataHead::new(DataKind::Publish, Some(Class::Live)) };
    head.encode_into(&mut out, &[], b"a.b", b"r", b"h", b"payload").unwrap();
    out.to_vec()
}

/// The publish with one byte of its prefix replaced.
fn with_byte(at: usize, byte: u8) -> Vec<u8> {
    let mut frame = publish();
    frame[at] = byte;
    frame
}

#[test]
fn every_truncation_is_refused() {
    for (name, frame) in data_frames() {
        for cut in 0..frame.len() {
            assert_eq!(DataFrame::decode(&frame[..cut]), Err(FrameError::Truncated), "{name} cut at {cut}");
        }
        let longer = [&frame[..], &[0]].concat();
        assert_eq!(DataFrame::decode(&longer), Err(FrameError::Trailing), "{name}");
    }
}

#[test]
fn each_field_of_the_prefix_is_checked() {
    let refused = |frame: &[u8]| DataFrame::decode(frame).unwrap_err();
    assert_eq!(refused(&with_byte(0, 0)), FrameError::Truncated);
    assert_eq!(refused(&with_byte(3, 0xff)), FrameError::Truncated);
    for kind in (0..=u8::MAX).filter(|kind| !(0x40..=0x42).contains(kind)) {
        assert_eq!(refused(&with_byte(4, kind)), FrameError::UnknownKind(kind));
    }
    for flags in 4..=u8::MAX {
        assert_eq!(refused(&with_byte(5, flags)), FrameError::UnknownFlags(flags));
    }
    for class in 4..u8::MAX {
        assert_eq!(refused(&with_byte(6, class)), FrameError::BadClass(class));
    }
    assert_eq!(refused(&with_byte(7, 1)), FrameError::BadHops);
    assert_eq!(
        refused(&with_byte(9, 0x80)),
        FrameError::PartTooLong { part: "name", bytes: 0x8003, max: QUALIFIED_BYTES_MAX }
    );
    assert_eq!(
        refused(&with_byte(11, 0x80)),
        FrameError::PartTooLong { part: "reply", bytes: 0x8001, max: QUALIFIED_BYTES_MAX }
    );
    assert_eq!(
        refused(&with_byte(13, 0x80)),
        FrameError::PartTooLong { part: "headers", bytes: 0x8001, max: HEADERS_BYTES_MAX }
    );
    let mut frame = with_byte(15, 0x80);
    frame[14] = 1;
    assert_eq!(refused(&frame), FrameError::PartTooLong { part: "ext", bytes: 0x8001, max: EXT_BYTES_MAX });
    // Lengths that are allowed, but more than the frame has.
    for at in [8, 10, 12, 14] {
        assert_eq!(refused(&with_byte(at, 200)), FrameError::Truncated);
    }
}

#[test]
fn only_a_publish_leaves_the_class_open() {
    assert_eq!(DataFrame::decode(&with_byte(6, CLASS_DEFAULT)).map(|frame| frame.class), Ok(None));
    for kind in [DataKind::Deliver, DataKind::Relay] {
        let mut frame = with_byte(6, CLASS_DEFAULT);
        frame[4] = kind.code();
        assert_eq!(DataFrame::decode(&frame), Err(FrameError::BadClass(CLASS_DEFAULT)));
        assert_eq!(
            DataHead::new(kind, None).encode_into(&mut BytesMut::new(), &[], b"", b"", b"", b""),
            Err(EncodeError::BadHead)
        );
    }
}

#[test]
fn only_a_relay_has_hops() {
    for kind in [DataKind::Publish, DataKind::Deliver] {
        let head = DataHead { hops: 1, ..DataHead::new(kind, Some(Class::Live)) };
        assert_eq!(head.encode_into(&mut BytesMut::new(), &[], b"", b"", b"", b""), Err(EncodeError::BadHead));
        let mut frame = with_byte(7, 1);
        frame[4] = kind.code();
        assert_eq!(DataFrame::decode(&frame), Err(FrameError::BadHops));
    }
    let mut frame = with_byte(7, 255);
    frame[4] = DataKind::Relay.code();
    assert_eq!(DataFrame::decode(&frame).map(|frame| frame.hops), Ok(255));
}

#[test]
fn names_of_relays_are_raw() {
    let name = [b'a'; QUALIFIED_BYTES_MAX];
    let head = DataHead::new(DataKind::Publish, Some(Class::Live));
    let mut out = BytesMut::new();
    head.encode_into(&mut out, &[], &name, &name, b"", b"").unwrap();
    assert!(DataFrame::decode(&out).is_ok());
    out[4] = DataKind::Relay.code();
    let refused = FrameError::PartTooLong { part: "name", bytes: QUALIFIED_BYTES_MAX, max: RAW_BYTES_MAX };
    assert_eq!(DataFrame::decode(&out), Err(refused));
}

#[test]
fn what_is_too_long_is_not_encoded() {
    let head = DataHead::new(DataKind::Publish, None);
    let payload = vec![0; MAX_PAYLOAD_BYTES_CEILING as usize + 1];
    let name = vec![b'a'; QUALIFIED_BYTES_MAX + 1];
    let headers = vec![0; HEADERS_BYTES_MAX + 1];
    let mut out = BytesMut::from(&b"before"[..]);
    for (part, parts) in [
        ("name", [&name[..], b"", b"", b""]),
        ("reply", [b"", &name, b"", b""]),
        ("headers", [b"", b"", &headers, b""]),
        ("payload", [b"", b"", b"", &payload]),
    ] {
        let [name, reply, headers, payload] = parts;
        let bytes = parts.concat().len();
        let refused = head.encode_into(&mut out, &[], name, reply, headers, payload);
        assert_eq!(refused, Err(EncodeError::PartTooLong { part, bytes }));
        assert_eq!(out, &b"before"[..]);
    }
    assert!(head.encode_into(&mut out, &[], b"", b"", b"", &payload[1..]).is_ok());
}

#[test]
fn a_relay_changes_head_and_extensions_only() {
    let frame = publish();
    let view = DataFrame::decode(&frame).unwrap();
    let mut ext = ExtBuilder::new();
    ext.origin(3).targets().target(1);
    let head = DataHead { kind: DataKind::Relay, class: Some(Class::Bulk), hops: 1, seq: Some(8), ttl_ms: Some(5) };
    let mut out = BytesMut::new();
    head.reencode_into(&mut out, ext.bytes().unwrap(), &view).unwrap();
    let relayed = DataFrame::decode(&out).unwrap();
    assert_eq!(relayed.head(), head);
    assert_eq!(relayed.tail(), view.tail());
    assert_eq!(relayed.tail_lengths(), view.tail_lengths());
    assert_eq!(relayed.ext.fields().origin, Some(3));
}

proptest! {
    #[test]
    fn frames_come_back_as_they_were(
        kind in 0x40u8..0x43, class in 0u8..4, hops in any::<u8>(), seq in any::<Option<u64>>(),
        ttl_ms in any::<Option<u32>>(),
        name in proptest::collection::vec(any::<u8>(), 0..80), reply in proptest::collection::vec(any::<u8>(), 0..80),
        headers in proptest::collection::vec(any::<u8>(), 0..80),
        payload in proptest::collection::vec(any::<u8>(), 0..300),
        seal in proptest::collection::vec(any::<u8>(), 1..30),
    ) {
        let kind = DataKind::from_code(kind).unwrap();
        let hops = if kind == DataKind::Relay { hops } else { 0 };
        let head = DataHead { kind, class: Class::from_code(class), hops, seq, ttl_ms };
        let mut ext = ExtBuilder::new();
        ext.seal(&seal);
        let mut out = BytesMut::from(&b"before"[..]);
        head.encode_into(&mut out, ext.bytes().unwrap(), &name, &reply, &headers, &payload).unwrap();
        let view = DataFrame::decode(&out[6..]).unwrap();
        prop_assert_eq!(view.head(), head);
        prop_assert_eq!(view.ext.fields().seal, Some(&seal[..]));
        prop_assert_eq!((view.name, view.reply), (&name[..], &reply[..]));
        prop_assert_eq!((view.headers, view.payload), (&headers[..], &payload[..]));
    }

    #[test]
    fn mutated_frames_never_panic_and_what_decodes_encodes(
        pick in any::<prop::sample::Index>(),
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
    ) {
        let samples = data_frames();
        let mut frame = pick.get(&samples).1.clone();
        for (at, byte) in edits {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        if let Ok(view) = DataFrame::decode(&frame) {
            let mut again = BytesMut::new();
            view.head().reencode_into(&mut again, view.ext.bytes(), &view).unwrap();
            prop_assert_eq!(again, frame);
        }
    }
}

#[test]
fn a_head_is_made_to_fit_another_payload_or_left_alone() {
    let head = DataHead::new(DataKind::Deliver, Some(Class::Live));
    let frame = |payload: &[u8]| {
        let mut out = BytesMut::new();
        head.encode_into(&mut out, b"", b"a.b", b"", b"", payload).unwrap();
        out.to_vec()
    };
    let mut before = frame(b"");
    assert!(fit_payload(&mut before, 0, 300));
    before.extend_from_slice(&[7; 300]);
    assert_eq!(before, frame(&[7; 300]));
    for (len, from, to) in [(3, 0, 1), (19, 1, 2), (19, 0, MAX_PAYLOAD_BYTES_CEILING as usize + 1), (19, 0, usize::MAX)]
    {
        let mut other = frame(b"");
        other.truncate(len);
        let kept = other.clone();
        assert!(!fit_payload(&mut other, from, to), "{len} {from} {to}");
        assert_eq!(other, kept);
    }
}

/// A frame without a sequence number, and everything before its payload.
fn unnumbered(name: &[u8], reply: &[u8], payload: &[u8]) -> (BytesMut, Vec<u8>) {
    let mut out = BytesMut::new();
    let head = DataHead::new(DataKind::Publish, Some(Class::Live));
    head.encode_into(&mut out, &[], name, reply, b"", payload).unwrap();
    let before = out[..out.len() - payload.len()].to_vec();
    (out, before)
}

#[test]
fn a_frame_is_like_another_one_that_differs_in_its_payload_alone() {
    let (frame, before) = unnumbered(b"a.b", b"", b"payload");
    let (longer, _) = unnumbered(b"a.b", b"", &[7; 300]);
    for (bytes, payload) in [(&frame, &b"payload"[..]), (&longer, &[7; 300])] {
        assert_eq!(like_unnumbered(bytes, &before), Some(payload));
        let more = [bytes, &frame[..]].concat();
        assert_eq!(like_unnumbered(&more, &before), Some(payload), "what follows is another one");
        (0..bytes.len()).for_each(|len| assert_eq!(like_unnumbered(&bytes[..len], &before), None, "{len}"));
    }
    // The same bytes, cut into names in another way.
    for (name, reply) in [(&b"a.c"[..], &b""[..]), (b"a.", b"b"), (b"a.bp", b"")] {
        assert_eq!(like_unnumbered(&unnumbered(name, reply, b"payload").0, &before), None);
    }
    let numbered = publish();
    assert_eq!(like_unnumbered(&numbered, &numbered[..numbered.len() - 7]), None);
    // No head at all is no reason to panic.
    assert_eq!(like_unnumbered(&frame, &before[..5]), None);
}

proptest! {
    /// Whatever is taken for like another frame is decoded as that frame with this payload.
    #[test]
    fn what_is_like_a_frame_is_decoded_as_that_frame(
        name in "[a-z.]{1,9}", payload in proptest::collection::vec(any::<u8>(), 0..40), bytes in 0..40usize,
        changes in proptest::collection::vec((0..80usize, any::<u8>()), 0..3),
    ) {
        let (_, before) = unnumbered(name.as_bytes(), b"", b"");
        let (mut frame, _) = unnumbered(name.as_bytes(), b"", &payload);
        for (at, byte) in changes {
            if let Some(slot) = frame.get_mut(at) {
                *slot = byte;
            }
        }
        frame.extend_from_slice(&vec![0; bytes]);
        if let Some(found) = like_unnumbered(&frame, &before) {
            let end = before.len() + found.len();
            let view = DataFrame::decode(&frame[..end]).unwrap();
            prop_assert_eq!((view.name, view.payload), (name.as_bytes(), found));
            prop_assert_eq!(view.head(), DataHead::new(DataKind::Publish, Some(Class::Live)));
            prop_assert!(view.reply.is_empty() && view.headers.is_empty());
        }
    }
}
