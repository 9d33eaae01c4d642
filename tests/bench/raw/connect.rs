//! New connections, and connections that do nothing.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use crate::client::{Client, Dialer, keep_alive};
use crate::options::{Connect, Idle};
use crate::report::Measured;

/// Idle connections that are opened at once.
const AT_ONCE: usize = 32;
/// Time for a broker to give back what it needed only while it connected.
const SETTLE: Duration = Duration::from_secs(2);

pub(crate) fn run(connect: &Connect) -> Result<()> {
    let dialer = Dialer::new(&connect.target)?;
    drop(dialer.connect(&connect.target.server)?);
    let left = AtomicU64::new(connect.count);
    let (done, finished) = mpsc::channel::<Result<()>>();
    let (release, holds): (Vec<_>, Vec<_>) = (0..connect.threads).map(|_| mpsc::channel::<()>()).unzip();
    let measured = Measured::begin(&connect.target);
    let report = std::thread::scope(|scope| {
        for hold in holds {
            let (done, left, dialer) = (done.clone(), &left, &dialer);
            scope.spawn(move || {
                let _ = done.send(open_all(dialer, &connect.target.server, left));
                // The CPU of a thread that has ended is not counted.
                let _ = hold.recv();
            });
        }
        let mut outcome = Ok(());
        for _ in 0..connect.threads {
            outcome = outcome.and(finished.recv().map_err(|_| anyhow!("a thread has failed"))?);
        }
        let report = measured.end(connect.count);
        drop(release);
        outcome.map(|()| report)
    })?;
    report.print()
}

fn open_all(dialer: &Dialer, server: &str, left: &AtomicU64) -> Result<()> {
    while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
        drop(dialer.connect(server)?);
    }
    Ok(())
}

pub(crate) fn idle(idle: &Idle) -> Result<()> {
    // A quiet connection holds no large buffer here.
    let dialer = Dialer::new(&idle.target)?.reading(4096);
    let (_, pid) = idle.target.brokers.first().ok_or_else(|| anyhow!("whose memory? name it with --broker"))?;
    let mut connections = open_and_keep(&dialer, &idle.target.server, idle.before)?;
    std::thread::sleep(SETTLE);
    let before = resident_kib(*pid)?;
    let measured = Measured::begin(&idle.target);
    connections.extend(open_and_keep(&dialer, &idle.target.server, idle.count)?);
    let report = measured.end(idle.count as u64);
    std::thread::sleep(SETTLE);
    let after = resident_kib(*pid)?;
    // One that the broker has closed would take no memory.
    connections.iter_mut().try_for_each(Client::take_arrived)?;
    report.with("kib_per_connection", after.saturating_sub(before) as f64 / idle.count as f64).print()
}

/// Opens connections, many at once: some brokers let each wait a little before they greet it.
fn open_and_keep(dialer: &Dialer, server: &str, count: usize) -> Result<Vec<Client>> {
    let open_share = |share: usize| -> Result<Vec<Client>> {
        let mut clients = Vec::with_capacity(share);
        for number in 0..share {
            clients.push(dialer.connect(server).with_context(|| format!("after {number} connections of {share}"))?);
            keep_alive(&mut clients)?;
        }
        Ok(clients)
    };
    std::thread::scope(|scope| {
        let shares = (0..AT_ONCE).map(|index| count / AT_ONCE + usize::from(index < count % AT_ONCE));
        let opening: Vec<_> = shares.map(|share| scope.spawn(move || open_share(share))).collect();
        let mut all = Vec::with_capacity(count);
        for thread in opening {
            all.extend(thread.join().map_err(|_| anyhow!("a thread has failed"))??);
        }
        Ok(all)
    })
}

fn resident_kib(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse()?)
}
