//! Brokers: in this process, or as processes of their own.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use glocal_core::name::NodeId;
use glocal_node::config::Config;
use glocal_node::context::Inspection;
use glocal_node::edge_status::EdgeStatus;
use glocal_node::{Listening, Node};
use serde_json::Value;

use super::fabric::Fabric;
use super::{PATIENCE, eventually, eventually_blocking};

pub(crate) const GLOBAL: &str = "global/broker-g";
pub(crate) const REGION_A: &str = "region-a/broker-a";
pub(crate) const REGION_B: &str = "region-b/broker-b";

/// A broker in this process.
pub(crate) struct Local(pub(crate) Node);

impl Local {
    pub(crate) async fn start(fabric: &Fabric, node: &str) -> Self {
        Self::start_with(fabric, node, &[]).await
    }

    pub(crate) async fn start_with(fabric: &Fabric, node: &str, define: &[(&str, &str)]) -> Self {
        let define: Vec<_> = define.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let loaded = Config::load(&fabric.config(node), &define, []).unwrap_or_else(|error| panic!("{error}"));
        let prepared = glocal_node::prepare(loaded.config).unwrap_or_else(|error| panic!("{error}"));
        Self(Node::start(prepared).await.unwrap_or_else(|error| panic!("{error}")))
    }

    pub(crate) fn at(&self) -> &Listening {
        self.0.listening()
    }

    pub(crate) fn edge(&self, name: &str) -> std::sync::Arc<EdgeStatus> {
        self.0.context().edges.list().into_iter().find(|s| s.edge().name().as_str() == name).unwrap()
    }

    pub(crate) async fn up(&self, edge: &str) {
        eventually(&format!("{}: bridge {edge}", self.at().node), || self.edge(edge).edge().is_up().then_some(()))
            .await;
    }

    /// The edge that the way of a tenant to another broker begins with, and the life that broker is known in.
    pub(crate) fn way_to(&self, other: &NodeId, tenant: &str) -> Option<(String, u64)> {
        let shared = &self.0.context().shared;
        let target = shared.brokers().index(other)?;
        let routes = Arc::clone(shared.tenant(tenant)?.table().routes());
        routes.hop(target).map(|hop| (hop.edge.name().to_string(), routes.life(target)))
    }

    /// Waits until this broker knows a way to another one in the life it is in: an edge that is up says nothing yet of what
    /// is told over it.
    pub(crate) async fn knows_way_to(&self, other: &Self, tenant: &str) {
        let what = format!("{}: a way to {} for {tenant}", self.at().node, other.at().node);
        let there = &other.0.context().shared;
        eventually(&what, || self.way_to(&there.node, tenant).filter(|(_, life)| *life == there.incarnation())).await;
    }

    /// Waits until this broker, as one where somebody publishes, knows what brokers elsewhere want of a tenant.
    pub(crate) async fn knows_filters(&self, tenant: &str, count: usize) {
        let publishes = self.0.context().shared.tenant(tenant).map(|held| held.key());
        let publishes =
            publishes.map(|tenant| glocal_engine::driver::Command::PublishFrom { session: u64::MAX, tenant });
        self.0.context().control.apply(publishes.into_iter().collect()).await;
        self.comes_to(tenant, count, "remote filters", |inspection| &inspection.remote_filters).await;
    }

    /// Waits until this broker knows how many others have subscribers of a tenant.
    pub(crate) async fn knows_present(&self, tenant: &str, count: usize) {
        self.comes_to(tenant, count, "brokers with subscribers", |inspection| &inspection.present).await;
    }

    async fn comes_to(&self, tenant: &str, count: usize, what: &str, of: impl Fn(&Inspection) -> &[(String, usize)]) {
        let what = format!("{}: {count} {what} of {tenant}", self.at().node);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let inspection = self.0.context().control.inspect().await;
            let known = of(&inspection).iter().find(|(t, _)| t == tenant).map_or(0, |(_, n)| *n);
            if known == count {
                return;
            }
            assert!(Instant::now() < deadline, "waited in vain for: {what}, now {known}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The sum of the samples of a metric whose labels contain all of `labels`.
    pub(crate) async fn metric(&self, name: &str, labels: &[&str]) -> u64 {
        let at = self.at().ops.unwrap();
        let (name, labels) = (name.to_owned(), labels.iter().map(|l| (*l).to_owned()).collect::<Vec<_>>());
        let ask = move || {
            let labels: Vec<_> = labels.iter().map(String::as_str).collect();
            metric(at, &name, &labels)
        };
        tokio::task::spawn_blocking(ask).await.unwrap()
    }
}

/// A global and two regions in this process, bridged.
pub(crate) struct Mesh {
    pub(crate) global: Local,
    pub(crate) a: Local,
    pub(crate) b: Local,
}

impl Mesh {
    pub(crate) async fn start(fabric: &Fabric) -> Self {
        let global = Local::start(fabric, GLOBAL).await;
        for node in [REGION_A, REGION_B] {
            fabric.point(node, global.at().bridge);
        }
        let a = Local::start(fabric, REGION_A).await;
        let b = Local::start(fabric, REGION_B).await;
        let mesh = Self { global, a, b };
        mesh.up().await;
        mesh
    }

    pub(crate) async fn up(&self) {
        self.a.up("global-region-a").await;
        self.b.up("global-region-b").await;
        self.global.up("global-region-a").await;
        self.global.up("global-region-b").await;
    }
}

/// One HTTP request to an operators' listener: status and body.
pub(crate) fn http(at: SocketAddr, path: &str) -> Option<(u16, String)> {
    let mut stream = std::net::TcpStream::connect(at).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

/// The sum of the samples of a metric whose labels contain all of `labels`.
pub(crate) fn metric(at: SocketAddr, name: &str, labels: &[&str]) -> u64 {
    let (_, body) = http(at, "/metrics").unwrap();
    let samples = body.lines().filter(|line| {
        let (series, _) = line.rsplit_once(' ').unwrap_or_default();
        let (family, rest) = series.split_once('{').unwrap_or((series, ""));
        family == name && labels.iter().all(|label| rest.contains(label))
    });
    samples.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
}

/// A broker as a process. Killed when dropped.
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) at: Listening,
    log: PathBuf,
    state: PathBuf,
}

impl Process {
    pub(crate) fn start(fabric: &Fabric, node: &str) -> Self {
        Self::start_with(fabric, node, &[], &[])
    }

    pub(crate) fn start_with(fabric: &Fabric, node: &str, define: &[(&str, &str)], env: &[(&str, &str)]) -> Self {
        let dir = fabric.node_dir(node);
        let (ready, log) = (dir.join("ready.json"), dir.join("log"));
        // What a killed broker left behind.
        let _ = std::fs::remove_file(&ready);
        let mut command = run_command(&fabric.config(node));
        command.arg("-D").arg(format!("ready_file={}", ready.display()));
        for (key, value) in define {
            command.arg("-D").arg(format!("{key}={value}"));
        }
        let log_file = File::options().create(true).append(true).open(&log).unwrap();
        let mut child = command
            .envs(env.iter().copied())
            .stdout(Stdio::null())
            .stderr(log_file)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let at = eventually_blocking(&format!("{node} to be ready"), || {
            if let Some(status) = child.try_wait().unwrap() {
                panic!("{node} ended with {status}:\n{}", std::fs::read_to_string(&log).unwrap_or_default());
            }
            std::fs::read_to_string(&ready).ok().map(|text| serde_json::from_str(&text).unwrap())
        });
        Self { child, at, log, state: dir.join("state") }
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// What the operators' socket answers.
    pub(crate) fn status(&self) -> Option<Value> {
        ask(&self.state.join("glocal.sock"), "status")
    }

    /// `up`, or why an edge is not.
    pub(crate) fn edge_state(&self, edge: &str) -> String {
        let status = self.status().unwrap_or_default();
        let edges = status["edges"].as_array().cloned().unwrap_or_default();
        let found = edges.iter().find(|e| e["name"] == edge);
        found.map_or_else(String::new, |e| e["state"].as_str().unwrap_or_default().to_owned())
    }

    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status().unwrap();
        assert!(status.success());
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn ended(&mut self) -> ExitStatus {
        eventually_blocking("the broker to end", || self.child.try_wait().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            let last: Vec<_> = log.lines().rev().take(20).collect();
            eprintln!("--- end of the log of {}, newest first\n{}", self.at.node, last.join("\n"));
        }
    }
}

/// One request on an operators' socket.
pub(crate) fn ask(socket: &Path, request: &str) -> Option<Value> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(format!("{request}\n").as_bytes()).ok()?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).ok()?;
    serde_json::from_str(&line).ok()
}

/// `glocal run` with an environment of no settings.
pub(crate) fn run_command(config: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_glocal"));
    let ours = std::env::vars_os().map(|(name, _)| name);
    for name in ours.filter(|n| n.to_str().is_some_and(|n| n.starts_with("GLOCAL_") || n.starts_with("CRESCO_"))) {
        command.env_remove(name);
    }
    command.arg("run").arg("-c").arg(config);
    command
}
