use proptest::prelude::*;

use super::*;
use crate::golden::{control_bytes, controls};

fn body_of(control: &Control) -> Vec<u8> {
    let mut out = BytesMut::new();
    control.write(&mut Writer(&mut out)).unwrap();
    out.to_vec()
}

fn decode(kind: u8, body: &[u8]) -> Result<Option<Control>, FrameError> {
    Control::decode(kind, body, CONTROL_BYTES_MAX)
}

fn long(bytes: usize) -> String {
    "x".repeat(bytes)
}

#[test]
fn frames_have_length_kind_and_zeros() {
    for (name, control) in controls() {
        let frame = control_bytes(&control);
        let (head, body) = frame.split_at(CONTROL_HEAD_BYTES);
        assert_eq!(u32::from_le_bytes(head[..4].try_into().unwrap()) as usize, frame.len() - 4, "{name}");
        assert_eq!(head[4..], [control.kind(), 0, 0, 0], "{name}");
        assert_eq!(body, body_of(&control), "{name}");
    }
}

#[test]
fn every_truncation_and_every_extension_of_a_body_is_refused() {
    for (name, control) in controls() {
        let mut body = body_of(&control);
        for cut in 0..body.len() {
            assert!(decode(control.kind(), &body[..cut]).is_err(), "{name} cut at {cut}");
        }
        body.push(0);
        assert_eq!(decode(control.kind(), &body), Err(FrameError::Trailing), "{name}");
    }
}

/// Case RB-66.
#[test]
fn unknown_kinds_are_skipped_in_their_range_only() {
    for kind in 0..=u8::MAX {
        if Control::KINDS.contains(&kind) {
            continue;
        }
        let expected = if (0x20..0x40).contains(&kind) { Ok(None) } else { Err(FrameError::UnknownKind(kind)) };
        assert_eq!(decode(kind, b"anything"), expected, "{kind:#x}");
    }
}

#[test]
fn a_body_over_the_limit_is_refused_unread() {
    let body = vec![0; CONTROL_BYTES_MAX_BEFORE_HELLO + 1];
    let max = CONTROL_BYTES_MAX_BEFORE_HELLO;
    let refused = Err(FrameError::ControlTooLarge { bytes: max + 1, max });
    assert_eq!(Control::decode(0x01, &body, CONTROL_BYTES_MAX_BEFORE_HELLO), refused);
    let body = vec![0; CONTROL_BYTES_MAX + 1];
    let refused = Err(FrameError::ControlTooLarge { bytes: CONTROL_BYTES_MAX + 1, max: CONTROL_BYTES_MAX });
    assert_eq!(Control::decode(0x25, &body, usize::MAX), refused);
}

#[test]
fn hostile_lengths_fail_before_they_are_allocated() {
    for length in [1u64 << 63, u64::MAX, 1 << 40, 1 << 20, CONTROL_BYTES_MAX as u64 + 1] {
        let mut varint = vec![253];
        varint.extend_from_slice(&length.to_le_bytes());
        // The string of Error, Hello's list of numbers, AllowedSet's list of arrays, Subscribe's string after a number.
        for (kind, before) in [(0x0c, &[][..]), (0x01, &[]), (0x11, &[]), (0x03, &[1])] {
            for limit in [CONTROL_BYTES_MAX_BEFORE_HELLO, CONTROL_BYTES_MAX] {
                let body = [before, &varint].concat();
                assert_eq!(Control::decode(kind, &body, limit), Err(FrameError::BadBody { kind }), "{kind} {length}");
            }
        }
    }
}

#[test]
fn bad_text_and_bad_booleans_are_refused() {
    assert_eq!(decode(0x0c, &[2, 0xff, 0xfe, 0]), Err(FrameError::BadBody { kind: 0x0c }));
    let mut body = body_of(&Control::from(AllowedSet { macs: vec![], last: true }));
    *body.last_mut().unwrap() = 2;
    assert_eq!(decode(0x11, &body), Err(FrameError::BadBody { kind: 0x11 }));
    let mut body = body_of(&Control::from(Unsubscribe { sid: 1, max: None }));
    *body.last_mut().unwrap() = 2;
    assert_eq!(decode(0x05, &body), Err(FrameError::BadBody { kind: 0x05 }));
}

/// Changes one field of the first sample of a body beyond its range.
macro_rules! spoiled {
    ($($body:ident.$field:ident = $value:expr;)*) => {
        vec![$({
            let body = controls().into_iter().find_map(|(_, control)| match control {
                Control::$body(body) => Some(body),
                _ => None,
            });
            let mut body = body.expect("a sample of every body");
            body.$field = $value;
            (stringify!($field), Control::from(body))
        },)*]
    };
}

fn out_of_range() -> Vec<(&'static str, Control)> {
    spoiled! {
        Hello.versions = vec![];
        Hello.versions = vec![1; 17];
        Hello.client = long(129);
        Hello.default_class = 4;
        Hello.default_class = 0xff;
        Welcome.node = long(128);
        Welcome.tenant = long(64);
        Welcome.role = long(17);
        Welcome.region = Some(long(64));
        Welcome.agent = Some(long(64));
        Welcome.uid = long(65);
        Welcome.max_payload = 8 * 1024 * 1024 + 1;
        Welcome.inbox = long(256) + ".";
        Welcome.inbox = long(8);
        Subscribe.filter = long(1096);
        Subscribe.queue = Some(long(129));
        Denied.access = 2;
        Denied.subject = long(1096);
        Denied.code = long(65);
        Denied.text = long(513);
        NoResponders.subject = long(1096);
        NoResponders.reply = long(1096);
        Goodbye.code = long(65);
        Goodbye.text = long(513);
        Error.code = long(65);
        Error.text = long(513);
        BridgeHello.versions = vec![];
        BridgeHello.fabric = long(64);
        BridgeHello.node = long(128);
        BridgeHello.edge = long(64);
        BridgeHello.max_payload = u32::MAX;
        BridgeHello.tenant_id_form = 2;
        AllowedSet.macs = vec![[0; 16]; 2049];
        BridgeError.code = long(65);
        BridgeError.text = long(513);
        AnnounceBroker.node = long(128);
        AnnounceSender.tenant = long(64);
        AnnounceSender.region = Some(long(64));
        AnnounceSender.agent = Some(long(64));
        AnnounceSender.uid = long(65);
        Interest.filter = long(1025);
        Interest.classes = 0;
        Interest.classes = 16;
        Interest.queue = Some(long(129));
        NoMember.group = Some(long(129));
        Routed.body = vec![0; 60 * 1024 + 1];
        LinkKey.node = long(128);
        LinkKey.chain = vec![];
        LinkKey.chain = vec![vec![0]; 5];
        LinkKey.chain = vec![vec![0; 48 * 1024 + 1]];
        LinkKey.signature = vec![0; 513];
        LinkUp.edge = long(64);
        LinkDown.edge = long(64);
        LinkDown.by = 2;
        LinkDigest.buckets = vec![0; 63];
        LinkObserver.node = long(128);
        AllowedUpdate.macs = vec![[0; 16]; 2049];
        SectionOffer.digests = vec![[0; 32]; 1025];
        BundlePart.bytes = vec![0; 32 * 1024 + 1];
        BundlePart.bytes = vec![0; 10];
        BundleGet.digests = vec![[0; 32]; 1025];
        BundlePart.total = u32::MAX;
        InterestPull.stream = 0;
        EdgeCut.edge = long(64);
        Tally.class = 1;
        Tallied.class = 3;
        Unserved.class = 1;
        Unserved.groups = vec![long(1); 257];
        Unserved.groups = vec![long(129)];
        InterestNews.start = 3;
    }
}

#[test]
fn a_field_out_of_range_is_refused_both_ways() {
    for (field, control) in out_of_range() {
        let kind = control.kind();
        let mut out = BytesMut::from(&b"before"[..]);
        assert_eq!(control.encode_into(&mut out), Err(EncodeError::BadField { kind, field }));
        assert_eq!(out, &b"before"[..]);
        assert_eq!(decode(kind, &body_of(&control)), Err(FrameError::BadField { kind, field }));
    }
}

#[test]
fn the_largest_bodies_fit() {
    let set = Control::from(AllowedSet { macs: vec![[7; 16]; 2048], last: true });
    let body = body_of(&set);
    assert_eq!(decode(set.kind(), &body), Ok(Some(set)));
    let hello = Control::from(Hello {
        versions: vec![u16::MAX; 16],
        features: u64::MAX,
        client: long(128),
        default_class: 3,
        echo: false,
    });
    assert_eq!(Control::decode(0x01, &body_of(&hello), CONTROL_BYTES_MAX_BEFORE_HELLO), Ok(Some(hello)));
}

#[test]
fn clipped_text_fits_and_is_cut_at_a_character() {
    assert_eq!(clip(b"abc", 3), "abc");
    assert_eq!(clip(b"abcd", 3), "abc");
    assert_eq!(clip("aé".as_bytes(), 2), "a");
    assert_eq!(clip("aé".as_bytes(), 3), "aé");
    assert_eq!(clip(b"\xff\xff\xff", 4), "\u{fffd}");
    assert_eq!(clip(b"", 0), "");
}

proptest! {
    #[test]
    fn any_text_clips_within_its_limit(bytes in proptest::collection::vec(any::<u8>(), 0..40), max in 0usize..30) {
        prop_assert!(clip(&bytes, max).len() <= max);
    }

    #[test]
    fn bodies_come_back_as_they_were(
        seq in any::<u64>(), origin in any::<u32>(), flags in any::<[bool; 2]>(), classes in 1u8..16,
        filter in "\\PC{0,200}", queue in proptest::option::of("\\PC{0,30}"), retry_after_ms in any::<Option<u32>>(),
        macs in proptest::collection::vec(any::<[u8; 16]>(), 0..50), max in any::<Option<u64>>(),
    ) {
        let [add, observer] = flags;
        let samples: [Control; 6] = [
            Interest { origin, seq, add, filter: filter.clone(), classes, queue: queue.clone(), observer }.into(),
            Subscribe { sid: origin, filter: filter.clone(), queue: queue.clone(), local_only: add }.into(),
            NoMember { target: origin, origin, seq, group: queue }.into(),
            AllowedSet { macs, last: add }.into(),
            Unsubscribe { sid: origin, max }.into(),
            Denied { access: 1, id: seq, subject: filter, code: long(9), text: long(9), retry_after_ms }.into(),
        ];
        for control in samples {
            prop_assert_eq!(decode(control.kind(), &body_of(&control)), Ok(Some(control)));
        }
    }

    #[test]
    fn random_bodies_never_panic_and_what_decodes_encodes(
        kind in any::<u8>(), body in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        if let Ok(Some(control)) = decode(kind, &body) {
            prop_assert_eq!(decode(kind, &body_of(&control)), Ok(Some(control)));
        }
    }

    #[test]
    fn mutated_bodies_never_panic(
        pick in any::<prop::sample::Index>(),
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
    ) {
        let samples = controls();
        let (_, control) = pick.get(&samples);
        let mut body = body_of(control);
        for (at, byte) in edits {
            let at = at.index(body.len());
            body[at] = byte;
        }
        if let Ok(Some(control)) = decode(control.kind(), &body) {
            prop_assert_eq!(decode(control.kind(), &body_of(&control)), Ok(Some(control)));
        }
    }
}
