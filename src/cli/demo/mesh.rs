//! The broker processes of the demo.
//!
//! Each is this program with `run`, in a process group of its own so that Ctrl-C reaches the demo alone, which then ends
//! them by their handles: dropping a [`Mesh`] kills what it has started, whatever the way out, unless it is told to leave
//! them running.

use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::plan::{Fabric, NODES};
use crate::cli::status::ask;

/// How long a broker may take to be ready, and both bridges to come up.
const START: Duration = Duration::from_secs(15);
/// How long a condition may take to come true once the mesh is up.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// What a broker says of itself in its ready file.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Ready {
    /// Clients over TLS/TCP.
    pub(super) native_tcp: SocketAddr,
    /// Clients over QUIC.
    pub(super) native_quic: SocketAddr,
    /// Brokers.
    pub(super) bridge: SocketAddr,
    /// Metrics.
    pub(super) ops: SocketAddr,
    /// Operators.
    pub(super) socket: PathBuf,
}

struct Process {
    node: &'static str,
    child: Child,
    log: PathBuf,
    ready_file: PathBuf,
}

/// The brokers' processes.
pub(super) struct Mesh {
    processes: Vec<Process>,
    ready: Vec<(&'static str, Ready)>,
    keep: bool,
}

impl Drop for Mesh {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        for process in &mut self.processes {
            // One that has ended by itself cannot be killed; it is reaped all the same.
            let _ = process.child.kill();
        }
        for process in &mut self.processes {
            let _ = process.child.wait();
        }
    }
}

impl Mesh {
    /// Starts every broker, with logs below `dir`; returns without waiting for them.
    pub(super) fn start(dir: &Path, fabric: &Fabric) -> anyhow::Result<Self> {
        let mut mesh = Self { processes: Vec::new(), ready: Vec::new(), keep: false };
        for node in NODES {
            let stem = node.replace('/', "-");
            let log = dir.join(format!("{stem}.log"));
            let ready_file = dir.join(format!("{stem}.ready"));
            let child =
                spawn(&fabric.config(node), &ready_file, &log).with_context(|| format!("cannot start {node}"))?;
            mesh.processes.push(Process { node, child, log, ready_file });
        }
        Ok(mesh)
    }

    /// Waits until a broker has written its ready file.
    pub(super) async fn await_ready(&mut self, node: &'static str) -> anyhow::Result<&Ready> {
        let process = self.processes.iter_mut().find(|p| p.node == node).context("no such broker")?;
        let deadline = Instant::now() + START;
        let ready = loop {
            if let Ok(text) = std::fs::read_to_string(&process.ready_file) {
                break serde_json::from_str::<Ready>(&text).context("its ready file is malformed")?;
            }
            if let Some(status) = process.child.try_wait()? {
                let log = std::fs::read_to_string(&process.log).unwrap_or_default();
                anyhow::bail!("it ended with {status}: {}", log.lines().last().unwrap_or("no word of why"));
            }
            anyhow::ensure!(Instant::now() < deadline, "it is not ready after {} s", START.as_secs());
            tokio::time::sleep(LOOK).await;
        };
        self.ready.push((node, ready));
        self.ready(node)
    }

    /// Where a broker listens.
    pub(super) fn ready(&self, node: &str) -> anyhow::Result<&Ready> {
        let found = self.ready.iter().find(|(name, _)| *name == node);
        found.map(|(_, ready)| ready).with_context(|| format!("{node} is not running"))
    }

    /// Waits until every edge of a broker is up; returns them.
    pub(super) async fn await_edges(&self, node: &str) -> anyhow::Result<Vec<Value>> {
        let deadline = Instant::now() + START;
        loop {
            let edges = list(&self.status(node).await?, "edges");
            if !edges.is_empty() && edges.iter().all(|edge| edge.get("up") == Some(&Value::Bool(true))) {
                return Ok(edges);
            }
            anyhow::ensure!(Instant::now() < deadline, "not every edge is up: {}", Value::from(edges));
            tokio::time::sleep(LOOK).await;
        }
    }

    /// A broker's report, from its operators' socket.
    pub(super) async fn status(&self, node: &str) -> anyhow::Result<Value> {
        let socket = self.ready(node)?.socket.clone();
        let answer = tokio::task::spawn_blocking(move || ask(&socket, None)).await?;
        answer.with_context(|| format!("{node} does not answer its operators"))
    }

    /// Waits for a line of a broker's log that has all of `words`.
    pub(super) async fn log_line(&self, node: &str, words: &[&str]) -> anyhow::Result<String> {
        let process = self.processes.iter().find(|p| p.node == node).context("no such broker")?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let log = std::fs::read(&process.log)?;
            let log = String::from_utf8_lossy(&log);
            if let Some(line) = log.lines().find(|line| words.iter().all(|word| line.contains(word))) {
                return Ok(line.to_owned());
            }
            anyhow::ensure!(Instant::now() < deadline, "{node} logged no line with {}", words.join(" and "));
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The sum of a broker's metric over the label sets that contain `label`.
    pub(super) async fn metric(&self, node: &str, name: &str, label: &str) -> anyhow::Result<u64> {
        let mut stream = TcpStream::connect(self.ready(node)?.ops).await?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        let lines = text.lines().filter(|line| line.starts_with(name) && line.contains(label));
        Ok(lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum())
    }

    /// Waits until a broker's metric has risen above `before`.
    pub(super) async fn metric_above(&self, node: &str, name: &str, label: &str, before: u64) -> anyhow::Result<u64> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let now = self.metric(node, name, label).await?;
            if now > before {
                return Ok(now);
            }
            anyhow::ensure!(Instant::now() < deadline, "{node} did not count it: {name}{{{label}}} is {now}");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Leaves the brokers running when this is dropped; returns their process ids.
    pub(super) fn keep(&mut self) -> Vec<u32> {
        self.keep = true;
        self.processes.iter().map(|process| process.child.id()).collect()
    }
}

/// This program's file, also when a build has replaced it meanwhile.
pub(super) fn program() -> std::io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    Ok(if program.exists() { program } else { PathBuf::from("/proc/self/exe") })
}

fn spawn(config: &Path, ready_file: &Path, log: &Path) -> anyhow::Result<Child> {
    let log = File::create(log).with_context(|| format!("cannot write '{}'", log.display()))?;
    let mut command = Command::new(program()?);
    command.arg("run").arg("-c").arg(config).arg("-D").arg(format!("ready_file={}", ready_file.display()));
    // The demo is the same whatever this shell is set up for; only test builds look at the guards.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let ours = text.starts_with("GLOCAL_") || text.starts_with("CRESCO_");
        if ours && text != "GLOCAL_GUARDS_OFF" {
            command.env_remove(&name);
        }
    }
    let log_too = log.try_clone()?;
    command.stdin(Stdio::null()).stdout(Stdio::from(log_too)).stderr(Stdio::from(log)).process_group(0);
    Ok(command.spawn()?)
}

/// A list in a report.
pub(super) fn list(value: &Value, key: &str) -> Vec<Value> {
    value.get(key).and_then(Value::as_array).cloned().unwrap_or_default()
}

/// Sums a number of every class of one tenant, or of all tenants, in a broker's report.
pub(super) fn class_sum(status: &Value, tenant: Option<&str>, key: &str) -> u64 {
    let tenants = list(status, "tenants")
        .into_iter()
        .filter(|t| tenant.is_none_or(|id| t.get("tenant").and_then(Value::as_str) == Some(id)));
    let classes = tenants.flat_map(|t| list(&t, "classes"));
    classes.filter_map(|class| class.get(key).and_then(Value::as_u64)).sum()
}
