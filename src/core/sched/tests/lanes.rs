//! The rules of one tenant's lanes, and of a session's stream.

use super::*;
use crate::limits::{LIVE_AGE_MS_MAX, QUEUED_FRAME_OVERHEAD_BYTES, SESSION_CONTROL_QUEUE_BYTES_MAX};

const OVERHEAD: usize = QUEUED_FRAME_OVERHEAD_BYTES;

fn three_frames_of_100() -> ClassLanes {
    ClassLanes::new(ClassConfig::new(3 * (100 + OVERHEAD)))
}

fn text(parts: &[Bytes]) -> Vec<u8> {
    parts.concat()
}

fn named(name: u8, len: usize) -> QueuedFrame {
    QueuedFrame::new(Bytes::from(vec![name; len]))
}

fn drain(lanes: &mut ClassLanes, now: Time) -> (Vec<u8>, Drops) {
    let (mut out, mut drops) = (Vec::new(), Drops::new());
    while lanes.pop_slice(1_000_000, now, &mut out, &mut drops).is_some() {}
    (text(&out), drops)
}

#[test]
fn full_live_drops_its_oldest_but_never_what_is_partly_sent() {
    let mut lanes = three_frames_of_100();
    for name in 0..3 {
        assert_eq!(lanes.push(Class::Live, named(name, 100), ZERO), Pushed::Queued);
    }
    let slice = lanes.pop_slice(1, ZERO, &mut Vec::new(), &mut Drops::new()).unwrap();
    assert_eq!((slice.bytes, slice.starts_frame, slice.ends_frame), (1, true, false));
    assert_eq!(lanes.push(Class::Live, named(3, 101), ZERO), Pushed::DroppedOldest { frames: 1, bytes: 100 });
    let (bytes, drops) = drain(&mut lanes, ZERO);
    assert_eq!(bytes, [vec![0; 99], vec![2; 100], vec![3; 101]].concat());
    assert!(drops.is_empty());
}

#[test]
fn the_other_classes_refuse_the_newest() {
    for class in [Class::Ctrl, Class::Tele, Class::Bulk] {
        let mut lanes = three_frames_of_100();
        for name in 0..3 {
            assert_eq!(lanes.push(class, named(name, 100), ZERO), Pushed::Queued);
        }
        assert!(!lanes.has_room(class, 1));
        assert_eq!(lanes.push(class, named(3, 1), ZERO), Pushed::DroppedNewest);
        assert_eq!(drain(&mut lanes, ZERO).0, [vec![0; 100], vec![1; 100], vec![2; 100]].concat());
        assert!(lanes.has_room(class, 100));
    }
}

#[test]
fn an_empty_lane_takes_any_one_frame_and_an_empty_frame_is_nothing() {
    let mut lanes = three_frames_of_100();
    assert_eq!(lanes.push(Class::Bulk, named(0, 10_000), ZERO), Pushed::Queued);
    assert_eq!(lanes.push(Class::Bulk, named(0, 1), ZERO), Pushed::DroppedNewest);
    assert_eq!(lanes.push(Class::Live, named(0, 10_000), ZERO), Pushed::Queued);
    assert_eq!(lanes.push(Class::Live, named(0, 9_000), ZERO), Pushed::DroppedOldest { frames: 1, bytes: 10_000 });
    assert_eq!(lanes.push(Class::Tele, QueuedFrame::new(Bytes::new()), ZERO), Pushed::Queued);
    assert_eq!((lanes.backlog_bytes(), lanes.lane_backlog(Class::Tele)), (19_000, 0));
}

#[test]
fn live_ages_by_its_limit_or_its_own_ttl_and_nothing_else_does() {
    let mut lanes = ClassLanes::new(ClassConfig::new(100_000));
    for class in Class::ALL {
        assert_eq!(lanes.push(class, named(class.code(), 10).with_ttl_ms(Some(5)), ZERO), Pushed::Queued);
        assert_eq!(lanes.push(class, named(class.code() + 4, 10), ZERO), Pushed::Queued);
    }
    let mut drops = Drops::new();
    let mut out = Vec::new();
    let slice = lanes.pop_slice(1000, Time::from_millis(6), &mut out, &mut drops).unwrap();
    assert_eq!((slice.class, slice.bytes, text(&out)), (Class::Live, 10, vec![4; 10]));
    let record = DropRecord { tenant: None, class: Class::Live, reason: DropReason::Aged, frames: 1, bytes: 10 };
    assert_eq!(drops.drain().collect::<Vec<_>>(), [record]);

    assert_eq!(lanes.push(Class::Live, named(9, 7), ZERO), Pushed::Queued);
    let (bytes, drops) = drain(&mut lanes, Time::from_millis(LIVE_AGE_MS_MAX + 1));
    assert_eq!(bytes.len(), 60);
    assert_eq!((drops.frames(), drops.bytes()), (1, 7));
    assert!(lanes.is_empty());
}

#[test]
fn a_frame_that_is_partly_sent_does_not_age() {
    let mut lanes = ClassLanes::new(ClassConfig::new(100_000));
    assert_eq!(lanes.push(Class::Live, named(1, 10), ZERO), Pushed::Queued);
    let mut out = Vec::new();
    let first = lanes.pop_slice(4, ZERO, &mut out, &mut Drops::new()).unwrap();
    let rest = lanes.pop_slice(40, Time::from_millis(LIVE_AGE_MS_MAX * 2), &mut out, &mut Drops::new()).unwrap();
    assert_eq!((first.bytes, rest.bytes), (4, 6));
    assert_eq!((rest.starts_frame, rest.ends_frame), (false, true));
}

#[test]
fn pinned_frames_survive_fullness_and_age_in_their_order() {
    let mut lanes = three_frames_of_100();
    for (name, pinned) in [(0, true), (1, false), (2, true)] {
        let frame = named(name, 100);
        assert_eq!(lanes.push(Class::Live, if pinned { frame.pinned() } else { frame }, ZERO), Pushed::Queued);
    }
    assert_eq!(lanes.push(Class::Live, named(3, 100), ZERO), Pushed::DroppedOldest { frames: 1, bytes: 100 });
    assert_eq!(lanes.push(Class::Live, named(4, 100), ZERO), Pushed::DroppedOldest { frames: 1, bytes: 100 });
    // Two pinned frames and this one do not fit, so nothing is dropped for it.
    assert_eq!(lanes.push(Class::Live, named(5, 101), ZERO), Pushed::DroppedNewest);
    let (bytes, drops) = drain(&mut lanes, Time::from_millis(LIVE_AGE_MS_MAX + 1));
    assert_eq!(bytes, [vec![0; 100], vec![2; 100]].concat());
    assert_eq!((drops.frames(), drops.bytes()), (1, 100));
}

#[test]
fn a_slice_holds_several_frames_and_ends_inside_one_without_copying() {
    let mut lanes = ClassLanes::new(ClassConfig::new(100_000));
    let shared = Bytes::from(vec![7; 50]);
    for _ in 0..3 {
        assert_eq!(lanes.push(Class::Tele, named(1, 10).with_tail(shared.clone()), ZERO), Pushed::Queued);
    }
    let mut out = Vec::new();
    let slice = lanes.pop_slice(100, ZERO, &mut out, &mut Drops::new()).unwrap();
    assert_eq!((slice.bytes, slice.starts_frame, slice.ends_frame), (100, true, false));
    assert_eq!(out.iter().map(Bytes::len).collect::<Vec<_>>(), [10, 50, 10, 30]);
    assert_eq!(out[1].as_ptr(), shared.as_ptr());
    let slice = lanes.pop_slice(20, ZERO, &mut out, &mut Drops::new()).unwrap();
    assert_eq!((slice.bytes, slice.starts_frame, slice.ends_frame), (20, false, true));
    assert_eq!(out[4].as_ptr(), shared[30..].as_ptr());
}

#[test]
fn a_session_never_interleaves_frames_and_sends_control_at_the_next_boundary() {
    let mut lanes = SessionLanes::default();
    let (mut out, mut drops) = (Vec::new(), Drops::new());
    assert_eq!(lanes.push(Class::Bulk, named(b'b', 5000), ZERO), Pushed::Queued);
    assert_eq!(lanes.fill(100, ZERO, &mut out, &mut drops), 100);
    assert_eq!(lanes.push(Class::Live, named(b'l', 10), ZERO), Pushed::Queued);
    assert_eq!(lanes.push(Class::Bulk, named(b'B', 10), ZERO), Pushed::Queued);
    lanes.push_control(Bytes::from_static(b"pong")).unwrap();
    lanes.push_control(Bytes::from_static(b"ack")).unwrap();
    while lanes.fill(700, ZERO, &mut out, &mut drops) > 0 {}
    let mut expected = vec![b'b'; 5000];
    expected.extend(b"pongack");
    expected.extend([b'l'; 10]);
    expected.extend([b'B'; 10]);
    assert_eq!(text(&out), expected);
    assert!(lanes.is_empty());
}

#[test]
fn a_write_that_ends_inside_a_control_frame_continues_with_it() {
    let mut lanes = SessionLanes::default();
    let (mut out, mut drops) = (Vec::new(), Drops::new());
    lanes.push_control(Bytes::from_static(b"control")).unwrap();
    assert_eq!(lanes.push(Class::Live, named(b'l', 3), ZERO), Pushed::Queued);
    while lanes.fill(2, ZERO, &mut out, &mut drops) > 0 {}
    assert_eq!(text(&out), b"controllll");
}

#[test]
fn a_session_that_ends_can_finish_the_frame_it_is_in() {
    let mut lanes = SessionLanes::default();
    let (mut out, mut drops) = (Vec::new(), Drops::new());
    lanes.push_control(Bytes::from_static(b"control")).unwrap();
    assert_eq!(lanes.push(Class::Live, named(b'l', 3), ZERO), Pushed::Queued);
    assert_eq!(lanes.push(Class::Live, named(b'm', 3), ZERO), Pushed::Queued);
    for (write, whole) in [(3, "control"), (1, "controllll"), (0, "controllll")] {
        lanes.fill(write, ZERO, &mut out, &mut drops);
        lanes.fill(lanes.unfinished_bytes(), ZERO, &mut out, &mut drops);
        assert_eq!((text(&out), lanes.unfinished_bytes()), (whole.as_bytes().to_vec(), 0));
    }
}

#[test]
fn too_many_control_frames_are_an_overflow_for_good() {
    let mut lanes = SessionLanes::default();
    let frame = Bytes::from_static(&ZEROS[..1000]);
    let fits = SESSION_CONTROL_QUEUE_BYTES_MAX / (1000 + OVERHEAD);
    for _ in 0..fits {
        lanes.push_control(frame.clone()).unwrap();
    }
    assert!(!lanes.has_overflowed());
    lanes.push_control(frame.clone()).unwrap_err();
    while lanes.fill(1 << 20, ZERO, &mut Vec::new(), &mut Drops::new()) > 0 {}
    lanes.push_control(frame).unwrap_err();
    assert!(lanes.has_overflowed());
}

#[test]
fn clearing_reports_everything_as_gone() {
    let mut lanes = ClassLanes::new(ClassConfig::new(100_000));
    for class in Class::ALL {
        assert_eq!(lanes.push(class, named(0, 10), ZERO), Pushed::Queued);
    }
    let mut drops = Drops::new();
    lanes.clear(&mut drops);
    assert_eq!((drops.frames(), drops.bytes()), (4, 40));
    assert!(drops.iter().all(|record| record.reason == DropReason::Gone));
    assert!(lanes.is_empty() && lanes.pop_slice(10, ZERO, &mut Vec::new(), &mut drops).is_none());
}

#[test]
fn a_lane_that_is_half_full_keeps_no_more_memory_than_its_frames() {
    // What came together is one piece of memory, of which a lane that is full takes a frame now and then.
    let chunk = Bytes::from(vec![0; 64 * 1024]);
    let is_part = |out: &[Bytes]| out.iter().any(|part| !part.is_unique());
    for class in [Class::Tele, Class::Ctrl, Class::Bulk] {
        let mut lanes = ClassLanes::new(ClassConfig::new(10_000));
        let mut taken = Vec::new();
        let mut take = |lanes: &mut ClassLanes| {
            taken.clear();
            lanes.pop_slice(1_000, ZERO, &mut taken, &mut Drops::default()).unwrap();
            is_part(&taken)
        };
        while lanes.push(class, QueuedFrame::new(chunk.slice(..1_000)), ZERO) == Pushed::Queued {}
        assert!(take(&mut lanes), "at first, frames share what they came in");
        for _ in 0..7 {
            assert_eq!(lanes.push(class, QueuedFrame::new(chunk.slice(..1_000)), ZERO), Pushed::Queued);
            take(&mut lanes);
        }
        assert!(!take(&mut lanes), "{class:?}: a frame that was taken when the lane was full stands alone");
    }
}
