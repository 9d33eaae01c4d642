use bytes::BytesMut;
use glocal_core::name::Class;
use proptest::prelude::*;

use super::*;
use crate::control::{Control, Ping};
use crate::data::{DataHead, DataKind};
use crate::golden::{control_bytes, controls, data_frames};

const OPEN: FrameLimits = FrameLimits::open(1024);

fn all_frames() -> Vec<Vec<u8>> {
    let controls = controls().into_iter().map(|(_, control)| control_bytes(&control));
    controls.chain(data_frames().into_iter().map(|(_, bytes)| bytes)).collect()
}

fn publish(seq: Option<u64>, payload_bytes: usize) -> BytesMut {
    let mut out = BytesMut::new();
    let head = DataHead { seq, ..DataHead::new(DataKind::Publish, Some(Class::Live)) };
    head.encode_into(&mut out, &[], b"a", b"", b"", &vec![0; payload_bytes]).unwrap();
    out
}

#[test]
fn every_prefix_of_a_frame_asks_for_more() {
    for frame in all_frames() {
        for cut in 0..frame.len() {
            match next_frame(&frame[..cut], &OPEN) {
                Ok(Next::Need(bytes)) => assert!(bytes > cut && bytes <= frame.len(), "{bytes} at {cut}"),
                other => panic!("{other:?} at {cut}"),
            }
            assert!(matches!(peek(&frame[..cut], &OPEN), Ok(Peek::Need(bytes)) if bytes > cut));
        }
        assert_eq!(peek(&frame, &OPEN), Ok(Peek::Frame(frame.len())));
    }
}

#[test]
fn frames_in_a_row_come_out_one_by_one() {
    let frames = all_frames();
    let stream = frames.concat();
    let mut rest = &stream[..];
    for frame in &frames {
        let used = match next_frame(rest, &OPEN).unwrap() {
            Next::Control { frame_bytes, body, .. } => {
                assert_eq!(body, &frame[CONTROL_HEAD_BYTES..]);
                frame_bytes
            }
            Next::Data { frame: view, frame_bytes } => {
                assert_eq!(DataFrame::decode(frame), Ok(view));
                frame_bytes
            }
            Next::Need(bytes) => panic!("{bytes} wanted"),
        };
        assert_eq!(used, frame.len());
        rest = &rest[used..];
    }
    assert_eq!(next_frame(rest, &OPEN), Ok(Next::Need(CONTROL_HEAD_BYTES)));
}

/// Case RB-66.
#[test]
fn unknown_kinds_are_refused_by_their_head() {
    for kind in 0..=u8::MAX {
        let head = [12, 0, 0, 0, kind, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let good = Control::KINDS.contains(&kind) || (0x20..=0x42).contains(&kind);
        let refused = next_frame(&head, &OPEN) == Err(FrameError::UnknownKind(kind));
        assert_eq!(refused, !good, "{kind:#x}");
    }
}

#[test]
fn reserved_bytes_of_a_control_frame_are_zero() {
    for at in 5..8 {
        let mut frame = control_bytes(&Ping { token: 1 }.into());
        frame[at] = 1;
        assert_eq!(next_frame(&frame, &OPEN), Err(FrameError::Reserved));
    }
}

#[test]
fn a_control_frame_shorter_than_its_head_is_refused() {
    for len in 0..4 {
        assert_eq!(next_frame(&[len, 0, 0, 0, 0x09, 0, 0, 0], &OPEN), Err(FrameError::Truncated));
    }
    let empty = Ok(Next::Control { kind: 0x20, body: &[], frame_bytes: 8 });
    assert_eq!(next_frame(&[4, 0, 0, 0, 0x20, 0, 0, 0], &OPEN), empty);
}

#[test]
fn sizes_are_refused_from_the_head_alone() {
    let head = |len: u32, kind: u8| [&len.to_le_bytes()[..], &[kind, 0, 0, 0]].concat();
    for (limits, max) in
        [(FrameLimits::BEFORE_HELLO, CONTROL_BYTES_MAX_BEFORE_HELLO), (FrameLimits::CONTROL_ONLY, CONTROL_BYTES_MAX)]
    {
        let len = u32::try_from(max).unwrap() + 4;
        assert_eq!(next_frame(&head(len, 0x01), &limits), Ok(Next::Need(max + 8)));
        let refused = Err(FrameError::ControlTooLarge { bytes: max + 1, max });
        assert_eq!(next_frame(&head(len + 1, 0x01), &limits), refused);
        assert!(next_frame(&head(u32::MAX, 0x25), &limits).is_err());
    }
}

#[test]
fn data_waits_for_the_hello() {
    for limits in [FrameLimits::BEFORE_HELLO, FrameLimits::CONTROL_ONLY] {
        let frame = publish(None, 1);
        assert_eq!(next_frame(&frame[..8], &limits), Err(FrameError::UnexpectedData));
        assert_eq!(peek(&frame, &limits), Err(FrameError::UnexpectedData));
        assert_eq!(next_frame(&[12, 0, 0, 0, 0x7f, 0, 0, 0], &limits), Err(FrameError::UnknownKind(0x7f)));
    }
}

#[test]
fn an_oversize_payload_is_refused_with_what_an_answer_needs() {
    assert!(matches!(next_frame(&publish(None, 1024), &OPEN), Ok(Next::Data { .. })));
    for seq in [None, Some(77)] {
        let frame = publish(seq, 1025);
        let head_bytes = if seq.is_some() { 24 } else { 16 };
        for cut in 0..head_bytes {
            assert!(matches!(next_frame(&frame[..cut], &OPEN), Ok(Next::Need(_))));
        }
        let refused = FrameError::PayloadTooLarge { bytes: 1025, max: 1024, seq, frame_bytes: frame.len() };
        assert_eq!(next_frame(&frame[..head_bytes], &OPEN), Err(refused.clone()));
        assert_eq!(next_frame(&frame, &OPEN), Err(refused));
    }
    let mut frame = publish(None, 0);
    frame[..4].fill(0xff);
    assert!(matches!(next_frame(&frame, &OPEN), Err(FrameError::PayloadTooLarge { .. })));
}

proptest! {
    #[test]
    fn random_buffers_never_panic(buffer in proptest::collection::vec(any::<u8>(), 0..80)) {
        let _ = next_frame(&buffer, &OPEN);
    }

    #[test]
    fn mutated_frames_never_panic_nor_ask_beyond_the_limits(
        pick in any::<prop::sample::Index>(),
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
    ) {
        let frames = all_frames();
        let mut frame = pick.get(&frames).clone();
        for (at, byte) in edits {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        match next_frame(&frame, &OPEN) {
            Ok(Next::Need(bytes)) => prop_assert!(bytes > frame.len() && bytes <= CONTROL_BYTES_MAX + 8 + 8 * 1024),
            Ok(Next::Control { kind, body, .. }) => drop(Control::decode(kind, body, OPEN.control_bytes_max)),
            Ok(Next::Data { frame: view, .. }) => prop_assert!(view.payload.len() <= 1024),
            Err(error) => prop_assert!(!error.code().is_empty()),
        }
    }
}
