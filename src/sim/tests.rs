//! The world as a test.

use crate::fairness;
use crate::oracle::filter_matches;
use crate::run::{STEPS_DEFAULT, run};

/// Tries seeds; a broken promise tells which and how to see it again.
fn hold(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        if let Err(violation) = run(seed, STEPS_DEFAULT) {
            panic!("seed {seed}: {violation}\nreplay: glocal-sim --seed {seed}");
        }
    }
}

#[test]
fn one_seed_is_one_world() {
    for seed in [3, 1_000_003] {
        let (first, second) = (run(seed, 100).unwrap(), run(seed, 100).unwrap());
        assert_eq!(first.trace, second.trace);
        assert!(first.stats.received > 0 && first.stats.wire_bytes > 0);
    }
    assert_ne!(run(3, 100).unwrap().trace, run(4, 100).unwrap().trace);
}

#[test]
fn a_flood_does_not_hold_up_another_tenant() {
    for seed in 0..5 {
        let delays = fairness::flood(seed).unwrap();
        assert!(delays.flood_micros > 1_000_000, "the link is busy for over a second: {delays:?}");
        assert!(delays.worst_micros < 60_000, "seed {seed}: {delays:?}");
    }
}

#[test]
fn the_oracles_own_matcher_matches() {
    for (filter, name, expected) in [
        ("a.b", "a.b", true),
        ("a.*", "a.b", true),
        ("a.>", "a", false),
        ("a.>", "a.b.c", true),
        (">", "a", true),
        ("*", "a.b", false),
        ("a.b", "a.b.c", false),
        ("*.b", "a.c", false),
    ] {
        assert_eq!(filter_matches(filter, name), expected, "{filter} {name}");
    }
}

// In two halves, for two cores.
#[test]
fn promises_hold_for_many_seeds() {
    hold(0..60);
}

#[test]
fn promises_hold_for_as_many_more() {
    hold(60..120);
}

#[test]
fn bundles_change_under_delays_and_lies_for_many_seeds() {
    let mut total = crate::bundles::Tale::default();
    for seed in 0..200 {
        match crate::bundles::run(seed) {
            Ok(tale) => {
                total.signed += tale.signed;
                total.sections += tale.sections;
                total.tokens += tale.tokens;
                total.lies += tale.lies;
            }
            Err(violation) => panic!("seed {seed} of bundles: {violation}"),
        }
    }
    assert!(total.signed > 200 && total.sections > 200 && total.tokens > 1000 && total.lies > 200, "{total:?}");
}
