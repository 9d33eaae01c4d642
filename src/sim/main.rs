//! `glocal-sim`: tries seeds until a promise breaks, and replays one.
//!
//! Usage: `glocal-sim [--seed S] [--seeds N] [--steps M] [--keep-going] [--json] [--story]`; a story tells in words what
//! one seed did. `glocal-sim --converge BROKERS [--tenants T] [--seed S] [--json]` tells what it takes a large fabric to
//! learn of an edge and of a death; `glocal-sim --filters FILTERS [--tenants T] [--beside | --brokers B]` what many filters
//! take, on one broker, of a tenant beside others, or in a mesh of `B`. Exit codes: 0 all held, 1 one broke, 2 usage.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "printing is what a command does")]

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use glocal_sim::oracle::Violation;
use glocal_sim::random::Random;
use glocal_sim::run::{STEPS_DEFAULT, run, tell};
use glocal_sim::world::Stats;
use glocal_sim::{bundles, converge, graph};

const USAGE: &str = "usage: glocal-sim [--seed S] [--seeds N] [--steps M] [--keep-going] [--json] [--story]
       glocal-sim --converge BROKERS [--tenants T] [--seed S] [--json]
       glocal-sim --filters FILTERS [--tenants T] [--beside | --brokers B [--publishing T] [--seed S]]";
/// Tenants of a large fabric by default.
const TENANTS_DEFAULT: usize = 100;
/// Tenants that get publishers in a mesh full of filters by default.
const PUBLISHING_DEFAULT: usize = 100;
/// Brokers of one of the rings of a ring of rings, and edges of a broker in a random graph.
const RING: usize = 20;
const DEGREE: usize = 4;

#[derive(Debug)]
struct Options {
    seed: u64,
    seeds: u64,
    steps: usize,
    keep_going: bool,
    json: bool,
    story: bool,
    converge: usize,
    tenants: usize,
    filters: u64,
    brokers: usize,
    publishing: usize,
    beside: bool,
}

mod measure;

fn main() -> ExitCode {
    #[cfg(glocal_guards)]
    if let Ok(names) = std::env::var("GLOCAL_GUARDS_OFF") {
        let unknown = glocal_core::guard::switch_off(&names);
        assert!(unknown.is_empty(), "no such guards: {unknown:?}");
    }
    match options(std::env::args().skip(1)) {
        Ok(Some(options)) if options.story => story(&options),
        Ok(Some(options)) if options.filters > 0 => measure::filters(&options),
        Ok(Some(options)) if options.converge > 0 => converge(&options),
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
    let mut options = Options {
        seed: 0,
        seeds: 0,
        steps: STEPS_DEFAULT,
        keep_going: false,
        json: false,
        story: false,
        converge: 0,
        tenants: TENANTS_DEFAULT,
        filters: 0,
        brokers: 1,
        publishing: PUBLISHING_DEFAULT,
        beside: false,
    };
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
            "--steps" => options.steps = small("--steps", number()?)?,
            "--converge" => options.converge = small("--converge", number()?)?.max(2 * RING),
            "--tenants" => options.tenants = small("--tenants", number()?)?.max(1),
            "--filters" => options.filters = number()?,
            "--brokers" => options.brokers = small("--brokers", number()?)?.max(1),
            "--publishing" => options.publishing = small("--publishing", number()?)?,
            "--beside" => options.beside = true,
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

fn small(name: &str, number: u64) -> Result<usize, String> {
    usize::try_from(number).ok().filter(|n| *n <= 1_000_000).ok_or_else(|| format!("{name} is too large"))
}

fn converge(options: &Options) -> ExitCode {
    let mut random = Random::new(options.seed);
    let rings = options.converge / RING;
    let shapes = [
        ("ring of rings", rings * RING, graph::ring_of_rings(rings, RING)),
        ("random regular graph", options.converge, graph::regular(&mut random, options.converge, DEGREE)),
    ];
    for (name, nodes, edges) in shapes {
        if let Err(violation) = scale(options, &mut random, (name, nodes), edges) {
            println!("{name}: {violation}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Brings one large fabric up, takes one edge and one broker from it, and tells what that took.
fn scale(
    options: &Options,
    random: &mut Random,
    (name, nodes): (&str, usize),
    edges: Vec<graph::Ends>,
) -> Result<(), Violation> {
    let count = edges.len() as u64;
    let mut mesh = converge::Mesh::build(random, nodes, edges, options.tenants)
        .ok_or_else(|| Violation("it cannot be built".to_owned()))?;
    if !options.json {
        println!("{name}: {nodes} brokers, {count} edges, {} tenants", options.tenants);
    }
    let (edge, node) = (random.below(mesh.edges()), random.below(nodes));
    let degree = mesh.degree(node) as u64;
    let events = [("all edges up", 2 * count * count), ("an edge fails", 2 * count), ("it comes back", 2 * count)];
    for (at, (event, bound)) in events.into_iter().chain([("a broker dies", degree * 2 * count)]).enumerate() {
        let begun = Instant::now();
        let cost = match at {
            0 => mesh.bring_up()?,
            1 => mesh.cut(edge)?,
            2 => mesh.mend(edge)?,
            _ => mesh.kill(node)?,
        };
        let converge::Cost { millis, records, commits } = cost;
        let (cpu, whole) = (begun.elapsed().as_secs_f64(), records <= bound);
        if options.json {
            println!(
                "{{\"graph\":\"{name}\",\"brokers\":{nodes},\"edges\":{count},\"tenants\":{},\"event\":\"{event}\",\
                 \"ms\":{millis},\"records\":{records},\"bound\":{bound},\"commits\":{commits},\"cpu_seconds\":{cpu:.3}}}",
                options.tenants
            );
        } else {
            println!(
                "  {event}: {millis} ms, {records} records of at most {bound}, {commits} commits, {cpu:.2} s of CPU"
            );
        }
        if !whole {
            return Err(Violation(format!("{event}: {records} records, more than {bound}")));
        }
    }
    Ok(())
}

fn tour(options: &Options) -> ExitCode {
    let begun = Instant::now();
    let mut shown = Instant::now();
    let terminal = std::io::stderr().is_terminal();
    let mut total = Stats::default();
    let mut failovers = Vec::new();
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
                total.silences += report.stats.silences;
                total.lies += report.stats.lies;
                total.kept += report.stats.kept;
                failovers.extend(report.failover);
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
    failovers.sort_unstable();
    verdict(options, &total, &failovers, (done, broken), last, begun.elapsed());
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

fn verdict(options: &Options, total: &Stats, failovers: &[u64], counts: (u64, u64), trace: u64, took: Duration) {
    let (done, broken) = counts;
    let (tries, [p99, most]) = (failovers.len(), slowest(failovers));
    let rate = done as f64 / took.as_secs_f64().max(0.001);
    let Stats { published, received, wire_bytes, cuts, crashes, silences, lies, kept } = *total;
    if options.json {
        println!(
            "{{\"seeds\":{done},\"broken\":{broken},\"published\":{published},\"received\":{received},\
             \"wire_bytes\":{wire_bytes},\"cuts\":{cuts},\"crashes\":{crashes},\"silences\":{silences},\"lies\":{lies},\
             \"kept\":{kept},\"failovers\":{tries},\"failover_p99_ms\":{p99:.1},\"failover_max_ms\":{most:.1},\
             \"last_trace\":\"{trace:016x}\",\"seconds\":{:.3},\"seeds_per_second\":{rate:.1}}}",
            took.as_secs_f64()
        );
    } else {
        let word = if broken == 0 { "all promises held" } else { "PROMISES BROKEN" };
        println!(
            "{word}: {done} seeds, {broken} broken; {published} published, {received} received, {wire_bytes} bytes \
             between brokers, {cuts} cuts, {crashes} crashes, {silences} silences, {lies} lies, {kept} deliveries that had to \
             be; {tries} failovers, p99 {p99:.1} ms, longest {most:.1} ms; last trace {trace:016x}; {rate:.1} seeds/s"
        );
    }
}

/// The 99th percentile and the greatest of sorted times, from microseconds in milliseconds.
fn slowest(failovers: &[u64]) -> [f64; 2] {
    let at = (failovers.len() * 99).div_ceil(100).saturating_sub(1);
    [failovers.get(at), failovers.last()].map(|micros| micros.map_or(0.0, |micros| *micros as f64 / 1000.0))
}
