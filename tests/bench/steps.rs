//! What a message costs, for a tool that counts instructions: carries messages through sessions and lanes, in one thread.
//!
//! Usage: `steps CASE…`. A case is a list of words separated by commas: `native` or `nats`, `far` for subscribers at another
//! broker, and `bytes=`, `tenants=`, `subscriptions=`, `pairs=`, `names=`, `messages=` and `changes=` with a number; with the
//! last one, a session of the tenant subscribes and unsubscribes once in so many messages, and with `all` that is counted as well.
//! Only what is done in functions named `counted` is to be counted; after each case `finished` is called. See `run/bench/smoke.sh`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "printing is what a command does")]

use std::process::ExitCode;

use glocal_sim::load::{BATCH, Protocol, Shape, World};
use glocal_sim::oracle::Violation;

/// Messages that a case carries unless it says something else.
const MESSAGES_DEFAULT: u64 = 6_400;

struct Case {
    shape: Shape,
    messages: u64,
    /// A subscription comes and goes once in so many messages; never where it is zero.
    changes: u64,
    /// Whether that is counted.
    all: bool,
}

fn main() -> ExitCode {
    for text in std::env::args().skip(1) {
        let ran = parse(&text).and_then(|case| run(&case).map_err(|violation| violation.to_string()));
        match ran {
            Ok(messages) => finished(&text, messages),
            Err(error) => {
                eprintln!("steps: {text}: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

fn parse(text: &str) -> Result<Case, String> {
    let mut case = Case { shape: Shape::default(), messages: MESSAGES_DEFAULT, changes: 0, all: false };
    for word in text.split(',') {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        let number = || value.parse::<u64>().map_err(|_| format!("{key} needs a number, not '{value}'"));
        let small = || number().and_then(|n| usize::try_from(n).map_err(|_| format!("{key} is too large")));
        match key {
            "native" => case.shape.protocol = Protocol::Native,
            "nats" => case.shape.protocol = Protocol::Nats,
            "far" => case.shape.far = true,
            "all" => case.all = true,
            "bytes" => case.shape.payload_bytes = small()?,
            "tenants" => case.shape.tenants = small()?.max(1),
            "subscriptions" => case.shape.subscriptions = number()?,
            "pairs" => case.shape.pairs = small()?.max(1),
            "names" => case.shape.names = small()?.max(1),
            "messages" => case.messages = number()?,
            "changes" => case.changes = number()?,
            _ => return Err(format!("unknown word '{word}'")),
        }
    }
    Ok(case)
}

/// Carries the messages of a case; how many were carried.
fn run(case: &Case) -> Result<u64, Violation> {
    let mut world = World::new(case.shape)?;
    let batch = BATCH as u64;
    let (mut carried, mut changes) = (0, 0);
    while carried < case.messages {
        counted(&mut world, World::carry)?;
        carried += batch;
        while case.changes > 0 && changes < carried / case.changes {
            changes += 1;
            if case.all {
                counted(&mut world, World::change)?;
            } else {
                world.change()?;
            }
        }
    }
    Ok(carried)
}

/// What is to be counted.
#[inline(never)]
fn counted(world: &mut World, act: fn(&mut World) -> Result<(), Violation>) -> Result<(), Violation> {
    std::hint::black_box(act(std::hint::black_box(world)))
}

/// The end of a case.
#[inline(never)]
fn finished(case: &str, messages: u64) {
    println!("case {case} {messages}");
}
