//! The command's clock and gauge of memory, and what it says of filters: figures first, then one line per goal.

use std::fs;
use std::process::ExitCode;
use std::time::Instant;

use glocal_sim::filters::mesh::{self, Figures};
use glocal_sim::filters::node::{self, Load};
use glocal_sim::filters::{Gauge, Hits};
use glocal_sim::oracle::Violation;

use crate::Options;

/// Filters of a tenant that is looked at beside others.
const OWN_FILTERS: u64 = 1_000;
/// Most memory of a filter on the broker where it is wanted, its sessions' share included, and on one that has pulled it, in
/// bytes.
const ORIGIN_BYTES: u64 = 450;
const PULLER_BYTES: u64 = 250;
/// Longest median of a match, in nanoseconds.
const MATCH_NANOS: u64 = 1_000;
/// Least subscriptions a second of CPU, on a core that shares its memory with a busy one.
const SUBSCRIBED_PER_SECOND: u64 = 50_000;
/// How much longer than the first half the second half of the subscriptions may take, in percent: more would grow with
/// their number.
const HALF_PERCENT: u64 = 200;
/// How much more a match and a filter may cost beside other tenants than alone, in percent.
const BESIDE_PERCENT: u64 = 130;
/// How much more memory the same filters may take the second time, in percent.
const AGAIN_PERCENT: u64 = 115;
/// Most bytes of one filter in a list that is pulled, where it arrives: its text and 32.
const PULL_BYTES: u64 = 72;
/// Most bytes of telling a follower of one more filter and of its answer, where it arrives.
const ADDED_BYTES: u64 = 256;

struct Process(Instant);

impl Gauge for Process {
    fn nanos(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn cpu_nanos(&self) -> u64 {
        let text = fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
        text.split_whitespace().next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0)
    }

    fn resident_bytes(&self) -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or(0) * 1024
    }
}

/// Goals as lines, and whether all were met.
#[derive(Default)]
struct Goals {
    lines: Vec<String>,
    short: bool,
}

impl Goals {
    fn judge(&mut self, name: &str, measured: u64, bound: u64, met: bool) {
        self.short |= !met;
        self.lines.push(format!("goal {name} {measured} {bound} {}", if met { "ok" } else { "short" }));
    }

    fn at_most(&mut self, name: &str, measured: u64, bound: u64) {
        self.judge(name, measured, bound, measured <= bound);
    }

    fn at_least(&mut self, name: &str, measured: u64, bound: u64) {
        self.judge(name, measured, bound, measured >= bound);
    }
}

/// Measures filters on one broker, or in a mesh where more are asked for.
pub(crate) fn filters(options: &Options) -> ExitCode {
    let gauge = Process(Instant::now());
    let mut goals = Goals::default();
    let measured = if options.brokers > 1 {
        in_mesh(&gauge, options, &mut goals)
    } else if options.beside {
        beside(&gauge, options, &mut goals)
    } else {
        on_one(&gauge, options, &mut goals)
    };
    goals.lines.iter().for_each(|line| println!("{line}"));
    match measured {
        Err(violation) => {
            println!("broken: {violation}");
            ExitCode::FAILURE
        }
        Ok(()) if goals.short => ExitCode::FAILURE,
        Ok(()) => ExitCode::SUCCESS,
    }
}

fn on_one(gauge: &Process, options: &Options, goals: &mut Goals) -> Result<(), Violation> {
    let load = node::load(gauge, options.tenants, options.filters)?;
    let Load { filters, per_second, bytes_each, second_half_percent, ended_per_second, .. } = load;
    println!("one broker: {filters} filters of {} tenants", options.tenants);
    println!(
        "  subscribed: {per_second}/s of CPU, the second half in {second_half_percent} % of the time of the first"
    );
    println!("  memory of a filter: {bytes_each} bytes");
    for ((hits, [median, p99]), [own, _]) in Hits::ALL.into_iter().zip(load.matches).zip(load.own_matches) {
        let name = hits.as_str();
        println!("  a name that hits {name}: {own} ns in one tenant; {median} ns, p99 {p99} ns in random ones");
    }
    println!("  unsubscribed: {ended_per_second}/s of CPU; {} bytes each are not given back", load.left_each);
    println!("  the same filters again: {} % of the memory", load.again_percent);
    goals.at_least("node.subscribed_per_s", per_second, SUBSCRIBED_PER_SECOND);
    goals.at_most("node.second_half_percent", second_half_percent, HALF_PERCENT);
    goals.at_most("node.bytes_per_filter", bytes_each, ORIGIN_BYTES);
    for (hits, [median, _]) in Hits::ALL.into_iter().zip(load.own_matches) {
        goals.at_most(&format!("node.match_{}_ns", hits.as_str()), median, MATCH_NANOS);
    }
    goals.at_most("node.memory_again_percent", load.again_percent, AGAIN_PERCENT);
    Ok(())
}

fn beside(gauge: &Process, options: &Options, goals: &mut Goals) -> Result<(), Violation> {
    let (others, filters) = (options.tenants - 1, options.filters);
    let beside = node::beside(gauge, others, OWN_FILTERS, filters)?;
    let [alone, many, large] = beside.matches;
    let [bytes_alone, bytes_many, bytes_large] = beside.bytes_each;
    println!("one tenant with {OWN_FILTERS} filters, alone / beside {others} like it / beside one with {filters}:");
    println!("  a match: {alone} / {many} / {large} ns");
    println!("  memory of a filter: {bytes_alone} / {bytes_many} / {bytes_large} bytes");
    let [match_percent, memory_percent] = beside.percents();
    goals.at_most("beside.match_percent", match_percent, BESIDE_PERCENT);
    goals.at_most("beside.memory_percent", memory_percent, BESIDE_PERCENT);
    Ok(())
}

fn in_mesh(gauge: &Process, options: &Options, goals: &mut Goals) -> Result<(), Violation> {
    let Options { brokers, tenants, publishing, filters, seed, .. } = *options;
    let figures = mesh::figures(gauge, (brokers, tenants, publishing), filters, seed)?;
    let held = gauge.resident_bytes();
    // After all that looks at memory, since it leaves some behind.
    let few = mesh::presence_of_few(brokers, tenants, seed)?;
    let Figures { filters, pairs, origin_bytes_each, puller_bytes_each, presence, pulled, pull, added, .. } = figures;
    println!(
        "{brokers} brokers: {filters} filters of {tenants} tenants, {} at each of {pairs} places",
        filters / pairs
    );
    println!(
        "  memory of a filter: {origin_bytes_each} bytes where it is wanted, {puller_bytes_each} where it was pulled"
    );
    println!(
        "  presence: {} bytes on all edges in {} ms, {} for each place and edge that carries it; the same with one filter at each place: {} bytes; memory: {} bytes for each place on each broker",
        presence.bytes,
        presence.millis,
        presence.bytes / pairs / presence.hops.max(1),
        few.bytes,
        figures.presence_bytes_each,
    );
    println!(
        "  a first pull: {pulled} filters of {publishing} tenants, {} bytes each where they arrive, {} on all edges; in sync after {} ms",
        pull.arrived / pulled.max(1),
        pull.bytes / pulled.max(1),
        figures.in_sync_millis,
    );
    println!(
        "  one more filter: {} bytes with its answers on {} directions of edges, {} of them where it arrives; all told after {} ms",
        added.bytes, added.hops, added.arrived, added.millis,
    );
    println!("  memory of the process: {} MiB", held >> 20);
    goals.at_most("mesh.origin_bytes_per_filter", origin_bytes_each, ORIGIN_BYTES);
    goals.at_most("mesh.puller_bytes_per_filter", puller_bytes_each, PULLER_BYTES);
    goals.judge("mesh.presence_bytes", presence.bytes, few.bytes, presence.bytes == few.bytes);
    goals.at_most("mesh.pulled_bytes_per_filter", pull.arrived / pulled.max(1), PULL_BYTES);
    goals.at_most("mesh.added_bytes", added.arrived, ADDED_BYTES);
    Ok(())
}
