//! A raw load for one broker, or for two with a link between them: plain blocking sockets under mutual TLS and the
//! bytes of the protocol, so that it costs less than what it measures. `run/bench/peers.sh` compares brokers with it.
//!
//! Every mode prints one line of JSON: what was measured, the CPU of each broker named with `--broker`, the load's own,
//! and how busy the load kept its core. Messages a second say something about a broker only while that is below 0.9;
//! otherwise the CPU a message costs decides. No mode asks a broker to drop: what is on its way is bounded by a window.

#![allow(
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a load program is a test, and prints figures"
)]

mod beside;
mod client;
mod connect;
mod counter;
#[path = "../../../src/cli/bench/cpu.rs"]
mod cpu;
mod fanout;
#[path = "../flood.rs"]
mod flood;
#[path = "../../../src/cli/bench/head.rs"]
#[allow(dead_code, reason = "what only 'glocal bench' counts")]
mod head;
#[path = "../../../src/cli/bench/latency.rs"]
#[allow(dead_code, reason = "only 'glocal bench' draws")]
mod latency;
mod options;
#[path = "../../../src/cli/bench/pace.rs"]
mod pace;
mod pair;
mod relay;
mod report;
mod request;
mod tls;
#[path = "../victim.rs"]
mod victim;
#[path = "../../../src/cli/bench/watch.rs"]
mod watch;
mod wire;

use std::process::ExitCode;

use clap::Parser;
use options::{Mode, Options};

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> anyhow::Result<()> {
    match &options.mode {
        Mode::Pair(pair) => pair::run(pair),
        Mode::Request(request) => request::run(request),
        Mode::Connect(connect) => connect::run(connect),
        Mode::Idle(idle) => connect::idle(idle),
        Mode::Fanout(fanout) => fanout::run(fanout),
        Mode::Relay(relay) => relay::run(relay),
        Mode::FloodAndVictim(options) => beside::run(options),
        Mode::Flood(flood) => beside::run_flood(flood),
    }
}
