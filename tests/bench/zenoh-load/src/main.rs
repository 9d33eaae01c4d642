//! What `raw-load` does, by zenoh's own crate, for `run/bench/peers.sh`: the same options where they mean something here,
//! and the same line of figures.

mod beside;
#[path = "../../../../src/cli/bench/cpu.rs"]
mod cpu;
#[path = "../../flood.rs"]
mod flood;
#[path = "../../../../src/cli/bench/head.rs"]
#[allow(dead_code, reason = "what only 'glocal bench' counts")]
mod head;
#[path = "../../../../src/cli/bench/latency.rs"]
#[allow(dead_code, reason = "only 'glocal bench' draws")]
mod latency;
#[path = "../../../../src/cli/bench/pace.rs"]
mod pace;
#[path = "../../victim.rs"]
mod victim;
#[path = "../../../../src/cli/bench/watch.rs"]
mod watch;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::{Parser, ValueEnum};
use cpu::Cpu;
use serde_json::json;
use victim::Trickle;
use zenoh::bytes::ZBytes;
use zenoh::qos::CongestionControl;
use zenoh::{Config, Session, Wait};

const KEY: &str = "bench/subject/one";
const REQUEST: &str = "bench/request";
/// As in `raw-load`: what the publisher may be ahead of the subscriber.
const WINDOW_BYTES: u64 = 4 * 1024 * 1024;
const WINDOW_MESSAGES: u64 = 20_000;
/// Messages between two looks at the window.
const BURST: u64 = 64;
/// Requests before counting begins.
const WARM_UP: u64 = 500;
/// Silence after which a run is given up.
const SILENCE: Duration = Duration::from_secs(20);
/// Time for a broker to give back what it needed only while it connected.
const SETTLE: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Mode {
    Pair,
    Request,
    Connect,
    Idle,
    FloodAndVictim,
    /// The flood of the mode above, which runs it in a process of its own.
    #[value(hide = true)]
    Flood,
}

/// Load for zenohd.
#[derive(Debug, Parser)]
struct Options {
    mode: Mode,
    /// Where the publisher connects, `<host>:<port>`.
    #[arg(long)]
    server: String,
    /// Where the subscriber connects, when that is another router.
    #[arg(long)]
    subscribe_at: Option<String>,
    /// The client's certificate chain, PEM; the root lies beside it, in root.pem.
    #[arg(long)]
    cert: PathBuf,
    /// Its key, PEM.
    #[arg(long)]
    key: PathBuf,
    /// A router whose CPU is read, `<name>=<pid>`; may be repeated.
    #[arg(long = "broker", value_parser = broker)]
    brokers: Vec<(String, u32)>,
    /// The certificate chain of the session that floods, PEM.
    #[arg(long)]
    flood_cert: Option<PathBuf>,
    /// Its key, PEM.
    #[arg(long)]
    flood_key: Option<PathBuf>,
    #[command(flatten)]
    trickle: Trickle,
    /// Messages, requests or connections.
    #[arg(long, default_value_t = 100_000)]
    count: u64,
    /// Connections that are opened at once.
    #[arg(long, default_value_t = 4)]
    threads: u64,
}

fn broker(text: &str) -> Result<(String, u32), String> {
    let (name, pid) = text.split_once('=').ok_or("not <name>=<pid>")?;
    Ok((name.to_owned(), pid.parse().map_err(|_| format!("'{pid}' is no process"))?))
}

fn main() -> Result<()> {
    let options = Options::parse();
    match options.mode {
        Mode::Pair => pair(&options),
        Mode::Request => request(&options),
        Mode::Connect => connect(&options),
        Mode::Idle => idle(&options),
        Mode::FloodAndVictim => beside::run(&options),
        Mode::Flood => beside::run_flood(&options),
    }
}

fn open(options: &Options, server: &str) -> Result<Session> {
    let root = options.cert.with_file_name("root.pem");
    let config = json!({
        "mode": "client",
        "connect": { "endpoints": [format!("tls/{server}")] },
        "scouting": { "multicast": { "enabled": false }, "gossip": { "enabled": false } },
        "transport": { "link": { "tls": {
            "root_ca_certificate": root,
            "enable_mtls": true,
            "connect_certificate": options.cert,
            "connect_private_key": options.key,
        } } },
    });
    let config = Config::from_json5(&config.to_string()).map_err(|error| anyhow!("{error}"))?;
    zenoh::open(config).wait().map_err(|error| anyhow!("{error}"))
}

fn report(options: &Options, cpu: &Cpu, began: Instant, more: &[(&str, f64)]) {
    let seconds = began.elapsed().as_secs_f64();
    let count = options.count as f64;
    let mut line = json!({ "protocol": "zenoh", "count": options.count, "seconds": seconds, "per_s": count / seconds });
    for (name, used) in cpu.since() {
        line[format!("{name}_cpu_s_per_million")] = json!(used / count * 1e6);
        line[format!("{name}_busy")] = json!(used / seconds);
    }
    for (name, value) in more {
        line[*name] = json!(value);
    }
    println!("{line}");
}

fn pair(options: &Options) -> Result<()> {
    let at = options.subscribe_at.as_deref().unwrap_or(&options.server);
    let (far, near) = (open(options, at)?, open(options, &options.server)?);
    let received = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&received);
    let _subscriber = far
        .declare_subscriber(KEY)
        .callback(move |_| {
            counted.fetch_add(1, Ordering::Release);
        })
        .wait()
        .map_err(|error| anyhow!("{error}"))?;
    let publisher = near
        .declare_publisher(KEY)
        .congestion_control(CongestionControl::Block)
        .wait()
        .map_err(|error| anyhow!("{error}"))?;
    let payload = ZBytes::from(vec![b'x'; options.trickle.size]);
    let put = || publisher.put(payload.clone()).wait().map_err(|error| anyhow!("{error}"));
    let began = Instant::now();
    while received.load(Ordering::Acquire) == 0 {
        ensure!(began.elapsed() < SILENCE, "nothing arrives");
        put()?;
        std::thread::sleep(Duration::from_millis(200));
    }
    received.store(0, Ordering::Release);
    let window = (WINDOW_BYTES / (options.trickle.size as u64 + 32)).clamp(BURST, WINDOW_MESSAGES);
    let (cpu, began) = (Cpu::read(&options.brokers), Instant::now());
    let (mut sent, mut seen, mut moved) = (0, 0, Instant::now());
    loop {
        let now = received.load(Ordering::Acquire);
        if now >= options.count {
            break;
        }
        if now != seen {
            (seen, moved) = (now, Instant::now());
        }
        ensure!(moved.elapsed() < SILENCE, "nothing has arrived for {SILENCE:?}: {now} of {sent}");
        if sent == options.count || sent + BURST > now + window {
            std::thread::sleep(Duration::from_micros(50));
            continue;
        }
        for _ in 0..BURST.min(options.count - sent) {
            put()?;
            sent += 1;
        }
    }
    report(options, &cpu, began, &[("size", options.trickle.size as f64)]);
    Ok(())
}

fn request(options: &Options) -> Result<()> {
    let at = options.subscribe_at.as_deref().unwrap_or(&options.server);
    let (far, near) = (open(options, at)?, open(options, &options.server)?);
    let payload = ZBytes::from(vec![b'x'; options.trickle.size]);
    let answer = payload.clone();
    let _queryable = far
        .declare_queryable(REQUEST)
        .callback(move |query| {
            // One that was not answered shows as a request without an answer.
            let _ = query.reply(REQUEST, answer.clone()).wait();
        })
        .wait()
        .map_err(|error| anyhow!("{error}"))?;
    std::thread::sleep(Duration::from_millis(500));
    let ask = || -> Result<()> {
        let replies = near.get(REQUEST).payload(payload.clone()).wait().map_err(|error| anyhow!("{error}"))?;
        replies.recv().map_err(|error| anyhow!("no answer: {error}"))?;
        Ok(())
    };
    for _ in 0..WARM_UP {
        ask()?;
    }
    let mut times = Vec::new();
    let (cpu, began) = (Cpu::read(&options.brokers), Instant::now());
    for _ in 0..options.count {
        let asked = Instant::now();
        ask()?;
        times.push(asked.elapsed().as_nanos() as f64 / 1e3);
    }
    times.sort_by(f64::total_cmp);
    let at = |quantile: f64| times.get((times.len() as f64 * quantile) as usize).copied().unwrap_or_default();
    report(options, &cpu, began, &[("p50_us", at(0.5)), ("p99_us", at(0.99))]);
    Ok(())
}

fn connect(options: &Options) -> Result<()> {
    let once = || -> Result<()> {
        let session = open(options, &options.server)?;
        session.close().wait().map_err(|error| anyhow!("{error}"))
    };
    once()?;
    let left = AtomicU64::new(options.count);
    let (cpu, began) = (Cpu::read(&options.brokers), Instant::now());
    // What these threads use is not counted once they have ended; nearly all is done by the threads of zenoh's runtime.
    std::thread::scope(|scope| {
        let opening: Vec<_> = (0..options.threads)
            .map(|_| {
                scope.spawn(|| {
                    while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
                        once()?;
                    }
                    anyhow::Ok(())
                })
            })
            .collect();
        opening.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread has failed"))?)
    })?;
    report(options, &cpu, began, &[]);
    Ok(())
}

fn idle(options: &Options) -> Result<()> {
    let (_, pid) = options.brokers.first().context("whose memory? name it with --broker")?;
    let mut sessions = Vec::new();
    for _ in 0..100 {
        sessions.push(open(options, &options.server)?);
    }
    std::thread::sleep(SETTLE);
    let before = resident_kib(*pid)?;
    let (cpu, began) = (Cpu::read(&options.brokers), Instant::now());
    for _ in 0..options.count {
        sessions.push(open(options, &options.server)?);
    }
    std::thread::sleep(SETTLE);
    let kib = (resident_kib(*pid)? as f64 - before as f64) / options.count as f64;
    ensure!(sessions.iter().all(|session| !session.is_closed()), "the router has closed some");
    report(options, &cpu, began, &[("kib_per_connection", kib)]);
    // Closing thousands one after the other would take longer than all else.
    std::process::exit(0)
}

fn resident_kib(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse()?)
}
