//! The world as a test.

use crate::run::{STEPS_DEFAULT, run};

/// Seeds that every run of the tests tries.
const SEEDS: u64 = 150;

#[test]
fn promises_hold_for_many_seeds() {
    for seed in 0..SEEDS {
        if let Err(violation) = run(seed, STEPS_DEFAULT) {
            panic!("seed {seed}: {violation}\nreplay: glocal-sim --seed {seed}");
        }
    }
}
