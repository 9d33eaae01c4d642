//! `glocal bench` against running brokers: what it counts is what was sent, and what it cannot measure it refuses.

use std::path::PathBuf;
use std::process::{Command, Output};

use glocal_node::Listening;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::fabric::Fabric;
use crate::support::node::{GLOBAL, Local, Mesh, REGION_A, REGION_B};

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
        let (certificate, key) = fabric.agent_files(agent);
        let server = format!("127.0.0.1:{}", at.native_tcp.port());
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
    assert!(found["flood"]["published"].as_u64().unwrap() > 1_000, "{found}");
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
    for (line, code, words) in [
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
    let (code, text) = desk.fail(&format!("flood-and-victim --context admin --server {free} --flood admin")).await;
    assert!(code == 1 && text.contains("cannot reach") && text.contains("hint:"), "{code}: {text}");
}
