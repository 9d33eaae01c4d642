use super::*;
use crate::name::Label;

const DAY: i64 = 86_400;
const ISSUED: i64 = 1_800_000_000;
const HALF: i64 = ISSUED + 15 * DAY;

fn own() -> NodeId {
    NodeId::parse("region-a/broker-a").unwrap()
}

/// Version 4 of epoch 2, valid for 30 days.
fn held() -> Head {
    Head {
        epoch: 2,
        version: 4,
        resigner: Some(own()),
        superusers: vec![crate::name::TenantId::parse("root-org").unwrap()],
        sections: vec![[1; 32], [2; 32]],
        ..Head::empty(Label::parse("demo").unwrap(), UnixTime(ISSUED), UnixTime(ISSUED + 30 * DAY))
    }
}

const STATE: SignerState = SignerState { key_epoch: 2, newest_seen: (2, 4), set_aside: (0, 0), up_for_seconds: 1000 };

fn at(now: i64) -> Resign {
    resign(&own(), &held(), &STATE, UnixTime(now))
}

fn held_up(head: &Head, state: SignerState, now: i64) -> ResignHold {
    match resign(&own(), head, &state, UnixTime(now)) {
        Resign::Hold(hold) => hold,
        other => panic!("{other:?}"),
    }
}

#[test]
fn half_of_the_life_is_the_time_and_nothing_but_version_and_dates_changes() {
    assert_eq!(at(ISSUED), Resign::Wait(UnixTime(HALF)));
    assert_eq!(at(HALF - 1), Resign::Wait(UnixTime(HALF)));
    let Resign::Sign(next) = at(HALF) else { panic!("not signed at half of its life") };
    let expected = Head { version: 5, issued: UnixTime(HALF), expires: UnixTime(HALF + 30 * DAY), ..held() };
    assert_eq!(*next, expected);
    assert!(matches!(at(ISSUED + 30 * DAY - 1), Resign::Sign(_)), "as long as it is valid");
}

#[test]
fn only_the_one_that_is_named_signs_and_only_with_a_key_of_the_epoch() {
    let stranger = NodeId::parse("region-b/broker-b").unwrap();
    assert_eq!(resign(&stranger, &held(), &STATE, UnixTime(HALF)), Resign::Hold(ResignHold::NotNamed));
    assert_eq!(held_up(&Head { resigner: None, ..held() }, STATE, HALF), ResignHold::NotNamed);
    for key_epoch in [1, 3] {
        assert_eq!(held_up(&held(), SignerState { key_epoch, ..STATE }, HALF), ResignHold::OtherEpoch);
    }
}

#[test]
fn a_clock_that_is_plainly_wrong_signs_nothing() {
    assert_eq!(held_up(&held(), STATE, ISSUED - 1), ResignHold::ClockBehind);
    assert_eq!(held_up(&held(), STATE, ISSUED + 30 * DAY), ResignHold::Expired);
    assert_eq!(held_up(&held(), STATE, i64::MAX), ResignHold::Expired);
}

#[test]
fn no_version_is_ever_signed_twice() {
    // It was set aside before a crash: whether it was signed is not known, so it is not signed again.
    let version = |set_aside| match resign(&own(), &held(), &SignerState { set_aside, ..STATE }, UnixTime(HALF)) {
        Resign::Sign(head) => head.version,
        other => panic!("{other:?}"),
    };
    assert_eq!(version((2, 5)), 6);
    assert_eq!(version((2, 9)), 10);
    assert_eq!(version((2, 2)), 5);
    assert_eq!(version((1, 900)), 5, "versions of an earlier epoch say nothing of this one");
    let last = SignerState { set_aside: (2, u64::MAX), ..STATE };
    assert_eq!(held_up(&held(), last, HALF), ResignHold::Exhausted);
}

#[test]
fn a_newer_bundle_that_could_not_be_taken_is_not_signed_over() {
    for newest_seen in [(2, 5), (3, 1)] {
        assert_eq!(held_up(&held(), SignerState { newest_seen, ..STATE }, HALF), ResignHold::Outrun);
    }
}

#[test]
fn after_a_start_it_listens_first() {
    let settled = |up_for_seconds, head: &Head, now| {
        resign(&own(), head, &SignerState { up_for_seconds, ..STATE }, UnixTime(now))
    };
    assert_eq!(settled(0, &held(), HALF), Resign::Wait(UnixTime(HALF + RESIGN_SETTLE_SECONDS_MAX)));
    assert_eq!(settled(59, &held(), HALF), Resign::Wait(UnixTime(HALF + 1)));
    assert!(matches!(settled(60, &held(), HALF), Resign::Sign(_)));
    // A short life leaves little time to listen.
    let short = Head { expires: UnixTime(ISSUED + 16), ..held() };
    assert_eq!(settled(0, &short, ISSUED + 8), Resign::Wait(UnixTime(ISSUED + 10)));
    assert!(matches!(settled(2, &short, ISSUED + 8), Resign::Sign(_)));
}

#[test]
fn tries_are_further_and_further_apart() {
    let pauses: Vec<_> = (1..=5).map(resign_pause_ms).collect();
    assert_eq!(pauses, [1_000, 2_000, 4_000, 8_000, 16_000]);
    assert_eq!(resign_pause_ms(u32::MAX), RESIGN_RETRY_MS_MAX);
    assert_eq!(resign_pause_ms(0), RESIGN_RETRY_MS_MIN);
}
