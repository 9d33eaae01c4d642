//! A load for measuring a mesh: request/reply on one node and over a bridge, streams at a fixed rate over two hops, and
//! what one broker carries at most. `run/bench/hop.sh` starts the mesh and calls it.
//!
//! Every mode prints figures for people and then lines `goal <name> <measured> <bound> ok|short`; it exits with 1 when a
//! goal is short. Latencies are in HDR histograms, medians are over rounds, and all CPU used is reported: that of this
//! program and that of each broker named with `--broker`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a load program is a test"
)]

#[path = "../../src/cli/bench/cpu.rs"]
mod cpu;
mod crowd;
mod figures;
mod latency;
mod options;
mod pair;
#[path = "../../src/cli/bench/spread.rs"]
mod spread;
mod stream;
mod witness;

use std::process::ExitCode;

use clap::Parser;
use figures::Goals;
use options::{Mode, Options};

fn main() -> ExitCode {
    let options = Options::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(options.threads)
        .enable_all()
        .build()
        .expect("a runtime starts");
    match runtime.block_on(run(&options)) {
        Ok(goals) if goals.are_met() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

async fn run(options: &Options) -> anyhow::Result<Goals> {
    let mut goals = Goals::default();
    match &options.mode {
        Mode::Latency(latency) => latency::run(options, latency, &mut goals).await?,
        Mode::Stream(stream) => stream::run(options, stream, &mut goals).await?,
        Mode::Crowd(crowd) => {
            crowd::run(options, crowd).await?;
            return Ok(goals);
        }
        Mode::Witness(witness) => {
            witness::run(options, witness).await?;
            return Ok(goals);
        }
        Mode::Pair(pair) => pair::run(options, pair).await?,
    }
    goals.print();
    Ok(goals)
}
