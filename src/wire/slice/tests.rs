use proptest::prelude::*;

use super::*;
use crate::control::{Control, Probe};
use crate::golden::{control_bytes, data_frames};

fn header(lane: u32, len: u32, flags: u8) -> Vec<u8> {
    [&lane.to_le_bytes()[..], &len.to_le_bytes(), &[flags, 0, 0, 0]].concat()
}

fn open_slice(lane: u32, class: u8, tenant: &[u8], data: &[u8]) -> Vec<u8> {
    let len = u32::try_from(2 + tenant.len() + data.len()).unwrap();
    [&header(lane, len, FLAG_OPEN)[..], &[class, u8::try_from(tenant.len()).unwrap()], tenant, data].concat()
}

/// Reads to the end of `bytes`, as owned text, or to the first error.
fn read(bytes: &[u8]) -> Result<Vec<String>, FrameError> {
    let mut reader = SliceReader::new();
    let mut chunk = Bytes::copy_from_slice(bytes);
    let mut events = Vec::new();
    while let Some(event) = reader.next_event(&mut chunk)? {
        events.push(format!("{event:?}"));
    }
    Ok(events)
}

#[test]
fn slice_headers_are_checked() {
    let max = u32::try_from(SLICE_BYTES_MAX).unwrap();
    assert_eq!(read(&header(0, 1, 0)), Err(FrameError::LaneZero));
    for flags in (3..=u8::MAX).filter(|flags| *flags != FLAG_PROBE) {
        assert_eq!(read(&header(1, 1, flags)), Err(FrameError::BadSliceFlags(flags)));
    }
    for at in 9..12 {
        let mut bytes = header(1, 1, 0);
        bytes[at] = 1;
        assert_eq!(read(&bytes), Err(FrameError::Reserved));
    }
    for (flags, len) in [(0, 0), (0, max + 1), (0, u32::MAX), (1, 0), (1, 2), (1, max + 1), (2, 1)] {
        assert_eq!(read(&header(1, len, flags)), Err(FrameError::BadSliceLength(len)), "{flags} {len}");
    }
    for (flags, len) in [(0, 1), (0, max), (1, 3), (1, max), (2, 0)] {
        let decoded = SliceHeader::decode(header(1, len, flags).first_chunk().unwrap()).unwrap();
        let mut out = BytesMut::new();
        decoded.encode_into(&mut out).unwrap();
        assert_eq!(out, header(1, len, flags));
    }
    let mut out = BytesMut::new();
    for (lane, len, kind) in
        [(0, 1, SliceKind::Data), (1, 0, SliceKind::Data), (1, max + 1, SliceKind::Open), (1, 1, SliceKind::Reset)]
    {
        assert_eq!(SliceHeader { lane, len, kind }.encode_into(&mut out), Err(EncodeError::BadSlice));
    }
    assert!(out.is_empty());
}

fn probe(id: u64) -> Vec<u8> {
    let mut out = BytesMut::new();
    probe_slice(id, &mut out);
    out.to_vec()
}

#[test]
fn probes_are_of_no_lane_and_of_one_length() {
    let decoded = SliceHeader::decode(probe(7).first_chunk().unwrap()).unwrap();
    assert_eq!(decoded, SliceHeader { lane: 0, len: 8, kind: SliceKind::Probe });
    assert_eq!(read(&header(1, 8, FLAG_PROBE)), Err(FrameError::LaneZero));
    for len in [0, 7, 9, u32::MAX] {
        assert_eq!(read(&header(0, len, FLAG_PROBE)), Err(FrameError::BadSliceLength(len)));
    }
    for flags in [0, 1, 2] {
        assert_eq!(read(&header(0, 1, flags)), Err(FrameError::LaneZero), "and nothing else is of none");
    }
}

#[test]
fn open_headers_are_checked() {
    for class in 4..=u8::MAX {
        assert_eq!(read(&open_slice(1, class, b"t", b"")), Err(FrameError::BadClass(class)));
    }
    let long = [b'a'; LABEL_BYTES_MAX + 1];
    for tenant in [&b""[..], b"a.b", b" a", b"a ", b"*", b">", b"a\0", b"-a", "é".as_bytes(), b"\xff", &long] {
        // A slice with room for the tenant even where it has none.
        let bytes = open_slice(1, 0, tenant, b"data");
        assert_eq!(read(&bytes), Err(FrameError::BadLaneTenant), "{tenant:?}");
        if let Ok(tenant) = std::str::from_utf8(tenant) {
            let open = OpenHeader { class: Class::Live, tenant };
            assert_eq!(open.encode_into(&mut BytesMut::new()), Err(EncodeError::BadSlice));
        }
    }
    // A tenant longer than its slice.
    let mut bytes = open_slice(1, 0, b"tenant", b"");
    bytes[4] -= 1;
    assert_eq!(read(&bytes), Err(FrameError::Truncated));
    for tenant in ["a", "tn-aaaabbbbccccddddeeeeffff22", "A_b-9"] {
        let open = OpenHeader { class: Class::Bulk, tenant };
        let mut out = BytesMut::new();
        open.encode_into(&mut out).unwrap();
        assert_eq!(out.len(), open.encoded_bytes());
        out.extend_from_slice(b"rest");
        assert_eq!(OpenHeader::decode(&out), Ok((open, &b"rest"[..])));
        for cut in 0..open.encoded_bytes() {
            assert_eq!(OpenHeader::decode(&out[..cut]), Err(FrameError::Truncated));
        }
    }
}

#[test]
fn a_stream_may_be_cut_anywhere() {
    let stream =
        [open_slice(1, 0, b"tenantA", b"abc"), probe(9), header(1, 2, 0), b"de".to_vec(), header(1, 0, FLAG_RESET)]
            .concat();
    for cut in 0..=stream.len() {
        let mut reader = SliceReader::new();
        let (mut log, mut data) = (Vec::new(), Vec::new());
        for part in [&stream[..cut], &stream[cut..]] {
            let mut chunk = Bytes::copy_from_slice(part);
            while let Some(event) = reader.next_event(&mut chunk).unwrap() {
                match event {
                    SliceEvent::Open { lane, class, tenant } => log.push(format!("{lane} {class:?} {tenant}")),
                    SliceEvent::Data { lane: 1, bytes } => data.extend_from_slice(&bytes),
                    SliceEvent::Reset { lane } => log.push(format!("reset {lane}")),
                    SliceEvent::Data { .. } => panic!("another lane"),
                    SliceEvent::Probe { id } => log.push(format!("probe {id}")),
                }
            }
            assert!(chunk.is_empty());
        }
        assert_eq!(
            (log, &data[..]),
            (vec!["1 Live tenantA".into(), "probe 9".into(), "reset 1".into()], &b"abcde"[..])
        );
        assert!(reader.is_between_slices());
    }
}

#[test]
fn payload_is_shared_with_its_chunk() {
    let stream = Bytes::from([header(5, 4, 0), b"data".to_vec()].concat());
    let mut chunk = stream.clone();
    let mut reader = SliceReader::new();
    match reader.next_event(&mut chunk) {
        Ok(Some(SliceEvent::Data { lane: 5, bytes })) => assert_eq!(bytes.as_ptr(), stream[12..].as_ptr()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_frame_in_one_chunk_is_not_copied() {
    let frame = control_bytes(&Control::from(Probe { id: 1 }));
    let whole = Bytes::from([&frame[..], &frame].concat());
    let mut chunk = whole.clone();
    let mut lane = LaneBuffer::new(FrameLimits::open(1024));
    for at in [0, frame.len()] {
        let taken = lane.next_frame(&mut chunk).unwrap().unwrap();
        assert_eq!(taken.as_ptr(), whole[at..].as_ptr());
        assert_eq!(taken, frame);
    }
    assert_eq!(lane.next_frame(&mut chunk), Ok(None));
    assert_eq!(lane.buffered_bytes(), 0);
}

#[test]
fn a_partial_frame_is_held_and_can_be_discarded() {
    let frame = control_bytes(&Control::from(Probe { id: 1 }));
    let mut lane = LaneBuffer::new(FrameLimits::open(1024));
    assert_eq!(lane.next_frame(&mut Bytes::copy_from_slice(&frame[..5])), Ok(None));
    assert_eq!(lane.buffered_bytes(), 5);
    assert_eq!(lane.discard(), 5);
    assert_eq!(lane.next_frame(&mut Bytes::from(frame.clone())), Ok(Some(Bytes::from(frame))));
}

#[test]
fn a_lane_refuses_a_large_frame_by_its_head_and_grows_by_what_arrives() {
    let mut lane = LaneBuffer::new(FrameLimits::open(8 * 1024 * 1024));
    let mut head = Bytes::from_static(&[255, 255, 255, 255, 0x42, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert!(matches!(lane.next_frame(&mut head), Err(FrameError::PayloadTooLarge { .. })));
    let mut lane = LaneBuffer::new(FrameLimits::open(8 * 1024 * 1024));
    let mut head = Bytes::from_static(&[0, 0, 0x7f, 0, 0x42, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(lane.next_frame(&mut head), Ok(None));
    assert!(lane.partial.capacity() < 1024, "8 MiB announced, 16 bytes arrived");
}

proptest! {
    #[test]
    fn frames_survive_any_cutting(cuts in proptest::collection::vec(1usize..60, 1..200)) {
        let frames: Vec<Vec<u8>> = data_frames().into_iter().map(|(_, bytes)| bytes).collect();
        let mut stream = Bytes::from(frames.concat());
        let mut lane = LaneBuffer::new(FrameLimits::open(1024));
        let mut got = Vec::new();
        let mut cuts = cuts.into_iter().cycle();
        while !stream.is_empty() {
            let mut chunk = stream.split_to(cuts.next().unwrap().min(stream.len()));
            while let Some(frame) = lane.next_frame(&mut chunk).unwrap() {
                got.push(frame.to_vec());
            }
        }
        prop_assert_eq!(got, frames);
        prop_assert_eq!(lane.buffered_bytes(), 0);
    }

    #[test]
    fn random_streams_never_panic_and_give_no_more_than_came(
        parts in proptest::collection::vec(
            proptest::collection::vec(prop_oneof![4 => 0u8..4, 1 => any::<u8>()], 0..40), 0..6,
        ),
    ) {
        let mut reader = SliceReader::new();
        let mut lane = LaneBuffer::new(FrameLimits::open(64));
        let (came, mut gave) = (parts.iter().map(Vec::len).sum::<usize>(), 0);
        'parts: for part in parts {
            let mut chunk = Bytes::from(part);
            loop {
                match reader.next_event(&mut chunk) {
                    Ok(Some(SliceEvent::Data { mut bytes, .. })) => {
                        gave += bytes.len();
                        while let Ok(Some(_)) = lane.next_frame(&mut bytes) {}
                    }
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(_) => break 'parts,
                }
            }
        }
        prop_assert!(gave <= came);
    }
}
