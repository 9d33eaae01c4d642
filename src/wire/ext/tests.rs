use proptest::prelude::*;

use super::*;

fn entry(ext: u8, value: &[u8]) -> Vec<u8> {
    let len = u16::try_from(value.len()).unwrap().to_le_bytes();
    [&[ext, len[0], len[1]], value].concat()
}

fn relay(bytes: &[u8]) -> Result<ExtBlock<'_>, FrameError> {
    ExtBlock::parse(DataKind::Relay, bytes)
}

fn target(handle: u32, groups: &[&[u8]]) -> Vec<u8> {
    let mut bytes = handle.to_le_bytes().to_vec();
    bytes.push(u8::try_from(groups.len()).unwrap());
    for group in groups {
        bytes.push(u8::try_from(group.len()).unwrap());
        bytes.extend_from_slice(group);
    }
    bytes
}

#[test]
fn each_kind_of_frame_has_its_own_extensions() {
    let values: [(u8, Vec<u8>); 10] = [
        (TARGETS, target(1, &[])),
        (ORIGIN, vec![0; 4]),
        (INCARNATION, vec![0; 8]),
        (STEPS, vec![0; 4]),
        (SENDER, vec![0; 4]),
        (REPLY_TOKEN, vec![0; 8]),
        (REDELIVERED, vec![1]),
        (SEAL, vec![9]),
        (SUBS, vec![0; 4]),
        (SENDER_TEXT, b"a/b".to_vec()),
    ];
    let targets = entry(TARGETS, &target(1, &[]));
    for (ext, value) in values {
        for kind in [DataKind::Publish, DataKind::Deliver, DataKind::Relay] {
            let good = match kind {
                DataKind::Publish => ext == SEAL,
                DataKind::Deliver => matches!(ext, REDELIVERED | SEAL | SUBS | SENDER_TEXT),
                DataKind::Relay => ext < SUBS,
            };
            let mut bytes = entry(ext, &value);
            if ext == STEPS && good {
                bytes.extend_from_slice(&targets);
            }
            let parsed = ExtBlock::parse(kind, &bytes).map(|_| ());
            assert_eq!(parsed, if good { Ok(()) } else { Err(FrameError::MisplacedExt(ext)) }, "{kind:?} {ext}");
        }
    }
}

#[test]
fn unknown_types_are_refused_or_skipped() {
    for ext in 0..=u8::MAX {
        if (1..=SENDER_TEXT).contains(&ext) || ext == LIVES {
            continue;
        }
        let expected = if ext >= SKIPPABLE_MIN { Ok(()) } else { Err(FrameError::UnknownExt(ext)) };
        assert_eq!(relay(&entry(ext, b"v")).map(|_| ()), expected);
    }
    let bytes = [entry(200, b"later"), entry(ORIGIN, &[1, 0, 0, 0]), entry(64, b"")].concat();
    let block = relay(&bytes).unwrap();
    assert_eq!(block.fields().origin, Some(1));
    assert_eq!(block.iter().collect::<Vec<_>>(), [(200, &b"later"[..]), (ORIGIN, &[1, 0, 0, 0]), (64, b"")]);
}

#[test]
fn repeats_are_refused_known_or_not() {
    for ext in [ORIGIN, 64, 127, 128, 191, 192, 255] {
        let one = entry(ext, &[0; 4]);
        assert_eq!(relay(&[one.clone(), one].concat()), Err(FrameError::DuplicateExt(ext)));
    }
}

#[test]
fn values_of_wrong_length_are_refused() {
    for (ext, good) in [(ORIGIN, 4), (INCARNATION, 8), (SENDER, 4), (REPLY_TOKEN, 8), (REDELIVERED, 1)] {
        for len in (0..20).filter(|len| *len != good) {
            assert_eq!(relay(&entry(ext, &vec![0; len])), Err(FrameError::BadExt(ext)));
        }
    }
    for len in [0, 1, 3, 5, 7] {
        assert_eq!(relay(&entry(STEPS, &vec![0; len])), Err(FrameError::BadExt(STEPS)));
        let parsed = ExtBlock::parse(DataKind::Deliver, &entry(SUBS, &vec![0; len])).map(|_| ());
        assert_eq!(parsed, Err(FrameError::BadExt(SUBS)));
    }
    assert_eq!(relay(&entry(SEAL, b"")), Err(FrameError::BadExt(SEAL)));
    assert_eq!(relay(&entry(REDELIVERED, &[2])), Err(FrameError::BadExt(REDELIVERED)));
}

#[test]
fn steps_belong_to_targets() {
    assert_eq!(relay(&entry(STEPS, &[0; 4])), Err(FrameError::BadExt(STEPS)));
    let targets = [target(1, &[]), target(2, &[])].concat();
    for steps in [1, 3] {
        let bytes = [entry(TARGETS, &targets), entry(STEPS, &vec![0; steps * 4])].concat();
        assert_eq!(relay(&bytes), Err(FrameError::BadExt(STEPS)));
    }
    assert_eq!(relay(&entry(LIVES, &[0; 8])), Err(FrameError::BadExt(LIVES)));
    for bytes in [0, 8, 15, 24] {
        let bytes = [entry(TARGETS, &targets), entry(LIVES, &vec![0; bytes])].concat();
        assert_eq!(relay(&bytes), Err(FrameError::BadExt(LIVES)));
    }
}

#[test]
fn sender_texts_are_short_and_graphic() {
    let long = [b'x'; NODE_ID_BYTES_MAX + 1];
    for (text, good) in [
        (&b"region/agent"[..], true),
        (&long[1..], true),
        (&long, false),
        (b"", false),
        (b"a b", false),
        (b"a\n", false),
        (b"\xff", false),
    ] {
        assert_eq!(ExtBlock::parse(DataKind::Deliver, &entry(SENDER_TEXT, text)).is_ok(), good, "{text:?}");
    }
}

#[test]
fn malformed_targets_are_refused() {
    let long = [b'g'; QUEUE_GROUP_BYTES_MAX + 1];
    let whole = target(7, &[b"one", b"two"]);
    for cut in 0..whole.len() {
        assert_eq!(relay(&entry(TARGETS, &whole[..cut])), Err(FrameError::BadExt(TARGETS)), "cut at {cut}");
    }
    for group in [&long[..], b"", b"\xff"] {
        assert_eq!(relay(&entry(TARGETS, &target(7, &[group]))), Err(FrameError::BadExt(TARGETS)));
    }
    assert!(relay(&entry(TARGETS, &target(7, &[&long[1..]]))).is_ok());
    let trailing = [whole, vec![0]].concat();
    assert_eq!(relay(&entry(TARGETS, &trailing)), Err(FrameError::BadExt(TARGETS)));
}

#[test]
fn the_number_of_targets_is_bounded_both_ways() {
    for (count, good) in [(TARGETS_MAX, true), (TARGETS_MAX + 1, false)] {
        let value: Vec<u8> = (0..count).flat_map(|handle| target(u32::try_from(handle).unwrap(), &[])).collect();
        let bytes = entry(TARGETS, &value);
        let parsed = relay(&bytes).map(|block| block.fields().targets.unwrap().len());
        assert_eq!(parsed, if good { Ok(count) } else { Err(FrameError::TooManyTargets) });
        let mut ext = ExtBuilder::new();
        let mut targets = ext.targets();
        for handle in 0..count {
            targets.target(u32::try_from(handle).unwrap());
        }
        drop(targets);
        assert_eq!(ext.bytes(), if good { Ok(&bytes[..]) } else { Err(EncodeError::TooManyTargets) });
    }
}

#[test]
fn every_truncation_of_a_block_is_refused_or_ends_between_entries() {
    let mut ext = ExtBuilder::new();
    ext.targets().target(1).group("g");
    ext.origin(1).incarnation(2).sender(3).reply_token(4).redelivered(true).seal(b"s").raw(77, b"x");
    let bytes = ext.bytes().unwrap();
    let mut ends = vec![0];
    let mut end = 0;
    for (_, value) in &relay(bytes).unwrap() {
        end += ENTRY_BYTES + value.len();
        ends.push(end);
    }
    for cut in 0..=bytes.len() {
        assert_eq!(relay(&bytes[..cut]).is_ok(), ends.contains(&cut), "cut at {cut}");
    }
}

#[test]
fn a_builder_keeps_its_first_error_until_cleared() {
    let mut ext = ExtBuilder::new();
    ext.targets().group("no target yet");
    ext.origin(1);
    assert_eq!(ext.bytes(), Err(EncodeError::BadExt));
    ext.clear();
    ext.targets().target(1).group("");
    assert_eq!(ext.bytes(), Err(EncodeError::BadExt));
    ext.clear();
    drop(ext.targets());
    assert_eq!(ext.bytes(), Err(EncodeError::BadExt));
    ext.clear();
    ext.seal(&vec![0; EXT_BYTES_MAX]);
    assert_eq!(ext.bytes(), Err(EncodeError::PartTooLong { part: "ext", bytes: EXT_BYTES_MAX + 3 }));
    ext.clear();
    ext.redelivered(false);
    assert_eq!(ext.bytes(), Ok(&[][..]));
    let mut targets = ext.targets();
    targets.target(1);
    for _ in 0..256 {
        targets.group("g");
    }
    drop(targets);
    assert_eq!(ext.bytes(), Err(EncodeError::BadExt));
}

proptest! {
    #[test]
    fn blocks_come_back_as_they_were(
        targets in proptest::collection::vec((any::<u32>(), proptest::collection::vec("\\PC{1,20}", 0..4)), 1..20),
        origin in any::<u32>(), incarnation in any::<u64>(), token in any::<u64>(), redelivered in any::<bool>(),
    ) {
        let mut ext = ExtBuilder::new();
        let mut writer = ext.targets();
        for (handle, groups) in &targets {
            writer.target(*handle);
            for group in groups {
                writer.group(group);
            }
        }
        drop(writer);
        let steps: Vec<u32> = targets.iter().map(|(handle, _)| *handle).collect();
        let lives: Vec<u64> = steps.iter().map(|step| u64::from(*step) << 20).collect();
        ext.origin(origin).incarnation(incarnation).reply_token(token).redelivered(redelivered);
        ext.steps(steps.clone()).lives(lives.clone());
        let block = relay(ext.bytes().unwrap()).unwrap();
        let fields = block.fields();
        let read: Vec<(u32, Vec<String>)> = fields.targets.unwrap().iter()
            .map(|target| (target.handle, target.groups.iter().map(str::to_owned).collect())).collect();
        prop_assert_eq!(read, targets);
        prop_assert_eq!(fields.steps.unwrap().iter().collect::<Vec<_>>(), steps);
        prop_assert_eq!(fields.lives.unwrap().iter().collect::<Vec<_>>(), lives);
        prop_assert_eq!((fields.origin, fields.incarnation), (Some(origin), Some(incarnation)));
        prop_assert_eq!((fields.reply_token, fields.redelivered), (Some(token), redelivered));
    }

    #[test]
    fn random_blocks_never_panic(kind in 0x40u8..0x43, bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        if let Ok(block) = ExtBlock::parse(DataKind::from_code(kind).unwrap(), &bytes) {
            let read: usize = block.iter().map(|(_, value)| ENTRY_BYTES + value.len()).sum();
            prop_assert_eq!(read, bytes.len());
        }
    }

    #[test]
    fn random_targets_never_panic_and_are_all_seen(bytes in proptest::collection::vec(0u8..4, 0..60)) {
        if let Ok(targets) = Targets::parse(&bytes) {
            prop_assert_eq!(targets.iter().count(), targets.len());
        }
    }
}
