//! `glocal bench` against running brokers: what it counts is what was sent, and what it cannot measure it refuses.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use glocal_node::Listening;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::eventually;
use crate::support::fabric::Fabric;
use crate::support::node::{GLOBAL, Local, Mesh, Process, REGION_A, REGION_B};

/// A folder of saved contexts, and the command that reads them.
struct Desk {
    dir: TempDir,
    root: PathBuf,
}

impl Desk {
    fn new(fabric: &Fabric) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root.pem");
        std::fs::write(&root, fabric.root_pem()).unwrap();
        Self { dir, root }
    }

    /// Saves a context of this agent at this broker.
    fn add(&self, name: &str, fabric: &Fabric, at: &Listening, agent: &str) {
        self.add_at(name, fabric, at.native_tcp, agent);
    }

    /// Saves a context of this agent at this port.
    fn add_at(&self, name: &str, fabric: &Fabric, at: SocketAddr, agent: &str) {
        let (certificate, key) = fabric.agent_files(agent);
        let server = format!("127.0.0.1:{}", at.port());
        let mut command = self.command();
        command.args(["context", "add", name, "--server", &server, "--root"]).arg(&self.root);
        command.arg("--cert").arg(certificate).arg("--key").arg(key);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_glocal"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("GLOCAL_")) {
            command.env_remove(name);
        }
        command.env("GLOCAL_CONFIG_DIR", self.dir.path()).env("NO_COLOR", "1");
        command
    }

    /// Runs `glocal bench` beside the brokers of this process.
    async fn run(&self, line: &str) -> Output {
        let mut command = self.command();
        command.arg("bench").args(line.split_whitespace());
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    }

    /// What it measured.
    async fn measure(&self, line: &str) -> Value {
        let output = self.run(&format!("{line} --json")).await;
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// How it failed: its exit code and what it said.
    async fn fail(&self, line: &str) -> (i32, String) {
        let output = self.run(line).await;
        assert!(output.stdout.is_empty(), "{line}: {}", String::from_utf8_lossy(&output.stdout));
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_victim_is_measured_alone_and_beside_floods_of_every_class_and_size() {
    let fabric = Fabric::new();
    let mesh = Mesh::start(&fabric).await;
    let desk = Desk::new(&fabric);
    desk.add("here", &fabric, mesh.a.at(), "alice");
    desk.add("there", &fabric, mesh.b.at(), "anna");
    desk.add("flood-here", &fabric, mesh.a.at(), "bob");
    desk.add("flood-there", &fabric, mesh.b.at(), "berta");
    let common = "--context here --to there --flood flood-here:flood-there --duration 0.5 --warm-up 0.2";
    for flood in ["--flood-class bulk --flood-size 1MiB", "--flood-class ctrl --victim-class tele"] {
        let found = desk.measure(&format!("flood-and-victim {common} {flood}")).await;
        assert_eq!(found["victim"]["from"], REGION_A);
        assert_eq!(found["victim"]["to"], REGION_B);
        check_phases(&found);
        assert_eq!(found["flood"]["each"][0]["tenant"], "tenantB", "{found}");
        for key in ["published_bytes_per_s", "delivered_bytes_per_s"] {
            assert!(found["flood"][key].as_f64().unwrap() > 1_000.0, "{found}");
        }
    }
    // Sixteen bytes as fast as they go are more than a broker that is not optimised carries: what it drops is accounted for.
    let flood = "--flood flood-here --flood-size 16 --grace 0.5";
    let found = desk.measure(&format!("flood-and-victim --context here {flood} --duration 0.5 --warm-up 0.2")).await;
    check_phases(&found);
    // Where the tool did not get the processor, all that is counted may have been published before the count began; it says so.
    let flood = |key: &str| found["flood"][key].as_u64().unwrap();
    assert!(flood("published") > 1_000 || found["tool_starved"] == true && flood("delivered") > 1_000, "{found}");
}

/// Both phases account for every message, and the unloaded one loses none.
fn check_phases(found: &Value) {
    for name in ["alone", "beside"] {
        let phase = &found[name];
        let count = |key: &str| phase[key].as_u64().unwrap();
        assert_eq!((count("published"), count("arrived") + count("lost")), (50, 50), "{found}");
        assert_eq!((count("doubled"), count("misordered"), count("refused")), (0, 0, 0), "{found}");
        if name == "alone" {
            assert_eq!(count("lost"), 0, "{found}");
            let [p50, p99, max] = ["p50_us", "p99_us", "max_us"].map(|key| phase[key].as_f64().unwrap());
            assert!(0.0 < p50 && p50 <= p99 && p99 <= max, "{found}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_measured_is_refused_with_its_reason() {
    let fabric = Fabric::new();
    let node = Local::start(&fabric, GLOBAL).await;
    let desk = Desk::new(&fabric);
    desk.add("admin", &fabric, node.at(), "admin");
    desk.add("bob", &fabric, node.at(), "bob");
    for (line, code, words) in [
        ("pub --context nobody", 1, "there is no context 'nobody'"),
        ("pub --context admin --size 15", 2, "at least 16 bytes"),
        ("pub --context admin --rate 0", 2, "messages per second"),
        ("pub --context admin --duration 0", 2, "--duration 0"),
        ("pub T.tenantA.live.x --context bob --count 3", 1, "all 3 messages were refused"),
        ("pub --context admin --size 2MiB", 2, "larger than the fabric's"),
        ("sub --context admin --count 0", 2, "invalid value '0'"),
        ("sub T.tenantA.> --context bob", 1, "cross-tenant"),
        ("pair --context admin --to bob", 2, "of tenant cresco-system and its subscriber of tenant tenantB"),
        ("pair --context admin --broker-pid broker=4194305", 2, "there is no process 4194305"),
        ("pair --context admin --broker-pid 1", 2, "NAME=PID"),
        ("request --context admin --rate 5 --in-flight 2", 2, "cannot be used with"),
        ("request --context admin --rate 0", 2, "messages per second"),
        ("connect --context admin --concurrency 0", 2, "invalid value '0'"),
        ("connect --context admin --protocol nats", 1, "NATS at 127.0.0.1"),
        ("idle --context admin --pid 4194305", 2, "there is no process 4194305"),
        ("idle --context admin --hold 0", 2, "--hold 0"),
        ("idle --context admin --sessions 0", 2, "invalid value '0'"),
        ("flood-and-victim --context nobody --flood admin", 1, "there is no context 'nobody'"),
        ("flood-and-victim --context admin --flood nobody", 1, "there is no context 'nobody'"),
        ("flood-and-victim --context admin --flood admin --size 15", 2, "at least 16 bytes"),
        ("flood-and-victim --context admin --flood admin --rate 0", 2, "messages per second"),
        ("flood-and-victim --context admin --flood admin --duration 0", 2, "--duration 0"),
        ("flood-and-victim --context admin --flood admin --flood-size 2MiB", 2, "larger than the fabric's"),
        ("flood-and-victim --context admin", 2, "--flood"),
    ] {
        let (found, text) = desk.fail(line).await;
        assert_eq!(found, code, "{line}: {text}");
        assert!(text.contains(words), "{line}: {text}");
    }
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let modes = "pub sub pair request connect idle";
    for line in modes.split(' ').map(str::to_owned).chain(["flood-and-victim --flood admin".to_owned()]) {
        let (code, text) = desk.fail(&format!("{line} --context admin --server {free}")).await;
        assert!(code == 1 && text.contains("cannot reach") && text.contains("hint:"), "{line}: {code}: {text}");
    }
    let (code, text) = desk.fail(&format!("pair --context admin --protocol nats --server {free}")).await;
    assert!(code == 1 && text.contains("cannot reach") && text.contains("hint:"), "{code}: {text}");
}

/// A broker as a process of its own, whose memory and CPU can be looked at, with contexts of tenantB for both protocols.
fn process_and_desk(fabric: &Fabric) -> (Process, Desk) {
    let node = Process::start_with(fabric, REGION_A, &[("nats_port", "0")], &[]);
    let desk = Desk::new(fabric);
    desk.add("native", fabric, &node.at, "bob");
    desk.add_at("nats", fabric, node.at.nats.unwrap(), "bob");
    (node, desk)
}

const PROTOCOLS: [&str; 2] = ["--context native", "--context nats --protocol nats"];

#[tokio::test(flavor = "multi_thread")]
async fn publishers_and_subscribers_count_the_same() {
    let fabric = Fabric::new();
    let (_node, desk) = process_and_desk(&fabric);
    for (number, protocol) in PROTOCOLS.into_iter().enumerate() {
        for (class, rate) in [("live", "--rate 2000/s"), ("bulk", "")] {
            let (subject, ready) =
                (format!("bench.x{number}.{class}"), desk.dir.path().join(format!("{number}-{class}")));
            let line = format!("sub {subject} {protocol} --count 500 --duration 20 --ready-file {}", ready.display());
            let publishing = async {
                eventually("the subscription", || ready.exists().then_some(())).await;
                let line = format!("pub {subject} {protocol} --count 500 --publishers 2 --class {class} {rate}");
                desk.measure(&line).await
            };
            let (heard, said) = tokio::join!(desk.measure(&line), publishing);
            assert_eq!((&said["published"], &said["refused"]), (&500.into(), &0.into()), "{said}");
            for (key, value) in [("messages", 500), ("bytes", 500 * 256), ("publishers", 2), ("gaps", 0)] {
                assert_eq!(heard[key], value, "{heard}");
            }
            for key in ["doubled", "misordered", "unnumbered", "dropped_by_client"] {
                assert_eq!(heard[key], 0, "{heard}");
            }
            assert!(heard["latency"]["p50_us"].as_f64().unwrap() > 0.0, "{heard}");
            let seconds = said["seconds"].as_f64().unwrap();
            assert!(rate.is_empty() || seconds >= 0.249, "500 messages at 2000/s in {seconds} s");
        }
    }
    // Fewer than were wanted: the figures are told all the same.
    let output = desk.run("sub bench.silent --context native --count 1 --duration 0.2 --json").await;
    let heard: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &heard["messages"]), (Some(1), &0.into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn pairs_and_requests_are_measured_in_both_protocols() {
    let fabric = Fabric::new();
    let (node, desk) = process_and_desk(&fabric);
    let pid = node.child.id();
    for protocol in PROTOCOLS {
        let line = format!("pair {protocol} --messages 1000 --rounds 3 --size 16 --size 64KiB --broker-pid node={pid}");
        let found = desk.measure(&line).await;
        for (index, size) in [16, 65_536].into_iter().enumerate() {
            let figures = &found["sizes"][index];
            assert_eq!(figures["size_bytes"], size, "{found}");
            assert_eq!(figures["messages_per_s"]["rounds"].as_array().unwrap().len(), 3, "{found}");
            let at = |key: &str| figures["messages_per_s"][key].as_f64().unwrap();
            assert!(0.0 < at("min") && at("min") <= at("median") && at("median") <= at("max"), "{found}");
            assert!(figures["cpu_s_per_million"]["node"]["median"].as_f64().unwrap() > 0.0, "{found}");
        }
        let open = desk.measure(&format!("request {protocol} --rate 500/s -n 100 --size 0")).await;
        assert_eq!(
            (&open["requests"], &open["answered"], &open["failed"]),
            (&100.into(), &100.into(), &0.into()),
            "{open}"
        );
        assert!(open["seconds"].as_f64().unwrap() >= 0.198, "the last is due after 198 ms: {open}");
        let closed = desk.measure(&format!("request {protocol} --in-flight 8 -n 203 --class ctrl")).await;
        assert_eq!((&closed["requests"], &closed["answered"]), (&203.into(), &203.into()), "{closed}");
        let timed = desk.measure(&format!("request {protocol} --duration 0.2")).await;
        assert_eq!((&timed["requests"], &timed["failed"]), (&timed["answered"], &0.into()), "{timed}");
        assert!(timed["latency"]["p99_us"].as_f64().unwrap() > 0.0, "{timed}");
    }
    let (code, text) = desk.fail("request --context native --subject nobody.answers --timeout 0.1").await;
    assert!(code == 1 && text.contains("nobody answers 'nobody.answers'"), "{text}");
}

/// A loop that waits for replies would count the one request that was under way; one that counts from when requests are sent
/// would miss how long those waited that were due meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_stands_still_delays_every_request_that_was_due_meanwhile() {
    let fabric = Fabric::new();
    let (node, desk) = process_and_desk(&fabric);
    for protocol in PROTOCOLS {
        let mut command = desk.command();
        command.args(["bench", "request", "--rate", "100/s", "-n", "200", "--json", "--progress"]);
        command.args(protocol.split(' ')).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let first = BufReader::new(child.stderr.take().unwrap()).lines().next().unwrap().unwrap();
        assert!(first.starts_with("asking: "), "{first}");
        node.signal("STOP");
        std::thread::sleep(Duration::from_secs(1));
        node.signal("CONT");
        let output = child.wait_with_output().unwrap();
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&found["requests"], &found["answered"]), (&200.into(), &200.into()), "{found}");
        let at = |key: &str| found["latency"][key].as_f64().unwrap();
        assert!(at("max_us") >= 900_000.0, "the first that was due waited for all of it: {found}");
        assert!(at("p90_us") >= 500_000.0, "so did half of all, for half of it on average: {found}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_and_idle_sessions_are_counted_and_weighed() {
    let fabric = Fabric::new();
    let (node, desk) = process_and_desk(&fabric);
    let pid = node.child.id();
    for protocol in PROTOCOLS {
        let found = desk.measure(&format!("connect {protocol} -n 20 --concurrency 4 --broker-pid node={pid}")).await;
        assert_eq!((&found["connections"], &found["failed"]), (&20.into(), &0.into()), "{found}");
        assert!(found["handshake"]["p99_us"].as_f64().unwrap() > 0.0, "{found}");
        assert!(found["cpu_s_per_million"]["node"]["median"].as_f64().unwrap() > 0.0, "{found}");
        let found = desk.measure(&format!("idle {protocol} -n 30 --hold 0.3 --pid {pid}")).await;
        assert_eq!((&found["sessions"], &found["lost"]), (&30.into(), &0.into()), "{found}");
        assert!(found["resident_after_bytes"].as_u64().unwrap() > 1024 * 1024, "{found}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_victim_and_its_flood_may_speak_nats() {
    let fabric = Fabric::new();
    let (node, desk) = process_and_desk(&fabric);
    desk.add_at("victim", &fabric, node.at.nats.unwrap(), "alice");
    let line = "flood-and-victim --protocol nats --context victim --flood nats --flood-size 16KiB --duration 0.5 --warm-up 0.2";
    let found = desk.measure(&format!("{line} --grace 2")).await;
    check_phases(&found);
    assert!(found["flood"]["published"].as_u64().unwrap() > 10, "{found}");
}

#[tokio::test(flavor = "multi_thread")]
async fn people_get_lines_and_a_plot_and_progress_where_they_ask() {
    let fabric = Fabric::new();
    let (_node, desk) = process_and_desk(&fabric);
    let output = desk.run("request --context native --rate 200/s -n 60 --progress").await;
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{err}");
    assert!(out.starts_with("60 requests of 256 B in "), "{out}");
    assert!(out.contains("p99.9") && out.contains('█'), "{out}");
    assert!(err.lines().any(|line| line.starts_with("asking: ") && line.ends_with(" of 60")), "{err}");
    let output = desk.run("request --context native -n 5").await;
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}
