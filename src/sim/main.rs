//! `glocal-sim`: tries seeds until a promise breaks, and replays one.
//!
//! Usage: `glocal-sim [--seed S] [--seeds N] [--steps M] [--keep-going] [--json] [--story]`; a story tells in words what
//! one seed did. Exit codes: 0 all held, 1 one broke,
//! 2 usage.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "printing is what a command does")]

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use glocal_sim::bundles;
use glocal_sim::run::{STEPS_DEFAULT, run, tell};
use glocal_sim::world::Stats;

const USAGE: &str = "usage: glocal-sim [--seed S] [--seeds N] [--steps M] [--keep-going] [--json] [--story]";

#[derive(Debug)]
struct Options {
    seed: u64,
    seeds: u64,
    steps: usize,
    keep_going: bool,
    json: bool,
    story: bool,
}

fn main() -> ExitCode {
    #[cfg(glocal_guards)]
    if let Ok(names) = std::env::var("GLOCAL_GUARDS_OFF") {
        let unknown = glocal_core::guard::switch_off(&names);
        assert!(unknown.is_empty(), "no such guards: {unknown:?}");
    }
    match options(std::env::args().skip(1)) {
        Ok(Some(options)) if options.story => story(&options),
        Ok(Some(options)) => tour(&options),
        Ok(None) => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("glocal-sim: {error}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn story(options: &Options) -> ExitCode {
    let (lines, result) = tell(options.seed, options.steps);
    lines.iter().for_each(|line| println!("{line}"));
    match result {
        Ok(_) => {
            println!("all promises held");
            ExitCode::SUCCESS
        }
        Err(violation) => {
            println!("broken: {violation}");
            ExitCode::FAILURE
        }
    }
}

fn options(mut args: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let mut options = Options { seed: 0, seeds: 0, steps: STEPS_DEFAULT, keep_going: false, json: false, story: false };
    let mut one = false;
    while let Some(name) = args.next() {
        let mut number = || -> Result<u64, String> {
            let value = args.next().ok_or_else(|| format!("{name} needs a number"))?;
            value.parse().map_err(|_| format!("{name} needs a number, not '{value}'"))
        };
        match name.as_str() {
            "--seed" => {
                options.seed = number()?;
                one = true;
            }
            "--seeds" => options.seeds = number()?,
            "--steps" => options.steps = usize::try_from(number()?).map_err(|_| "--steps is too large".to_owned())?,
            "--keep-going" => options.keep_going = true,
            "--story" => options.story = true,
            "--json" => options.json = true,
            "--help" | "-h" => return Ok(None),
            other => return Err(format!("unknown argument '{other}'")),
        }
    }
    if options.seeds == 0 {
        options.seeds = if one { 1 } else { 100 };
    }
    Ok(Some(options))
}

fn tour(options: &Options) -> ExitCode {
    let begun = Instant::now();
    let mut shown = Instant::now();
    let terminal = std::io::stderr().is_terminal();
    let mut total = Stats::default();
    let (mut done, mut broken) = (0u64, 0u64);
    let mut last = 0;
    for seed in (options.seed..=u64::MAX).take(usize::try_from(options.seeds).unwrap_or(usize::MAX)) {
        done += 1;
        let result = run(seed, options.steps).and_then(|report| bundles::run(seed).map(|_| report));
        match result {
            Ok(report) => {
                total.published += report.stats.published;
                total.received += report.stats.received;
                total.wire_bytes += report.stats.wire_bytes;
                total.cuts += report.stats.cuts;
                total.crashes += report.stats.crashes;
                total.lies += report.stats.lies;
                total.kept += report.stats.kept;
                last = report.trace;
            }
            Err(violation) => {
                broken += 1;
                failure(options, seed, &violation.to_string(), terminal);
                if !options.keep_going {
                    break;
                }
            }
        }
        if terminal && shown.elapsed() > Duration::from_millis(200) {
            shown = Instant::now();
            eprint!("\r{done} of {} seeds, {broken} broken ", options.seeds);
        }
    }
    if terminal {
        eprint!("\r\x1b[K");
    }
    verdict(options, &total, done, broken, last, begun.elapsed());
    if broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn failure(options: &Options, seed: u64, violation: &str, terminal: bool) {
    if terminal {
        eprint!("\r\x1b[K");
    }
    let steps = if options.steps == STEPS_DEFAULT { String::new() } else { format!(" --steps {}", options.steps) };
    if options.json {
        let text: String = violation.chars().flat_map(char::escape_default).collect();
        println!("{{\"seed\":{seed},\"violation\":\"{}\"}}", text.replace("\\'", "'").replace("\\u{", "u{"));
    } else {
        println!("seed {seed}: {violation}\nreplay: glocal-sim --seed {seed}{steps}");
    }
}

fn verdict(options: &Options, total: &Stats, done: u64, broken: u64, trace: u64, took: Duration) {
    let rate = done as f64 / took.as_secs_f64().max(0.001);
    let Stats { published, received, wire_bytes, cuts, crashes, lies, kept } = *total;
    if options.json {
        println!(
            "{{\"seeds\":{done},\"broken\":{broken},\"published\":{published},\"received\":{received},\
             \"wire_bytes\":{wire_bytes},\"cuts\":{cuts},\"crashes\":{crashes},\"lies\":{lies},\"kept\":{kept},\
             \"last_trace\":\"{trace:016x}\",\"seconds\":{:.3},\"seeds_per_second\":{rate:.1}}}",
            took.as_secs_f64()
        );
    } else {
        let word = if broken == 0 { "all promises held" } else { "PROMISES BROKEN" };
        println!(
            "{word}: {done} seeds, {broken} broken; {published} published, {received} received, {wire_bytes} bytes \
             between brokers, {cuts} cuts, {crashes} crashes, {lies} lies, {kept} deliveries that had to be; last trace {trace:016x}; {rate:.1} seeds/s"
        );
    }
}
