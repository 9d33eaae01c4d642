//! Which crate may use which, and what the crates without I/O may not name.

use std::collections::BTreeSet;
use std::process::Command;

use toml::{Table, Value};

use super::{report, root, scan, text};

/// Each crate, and the crates of this workspace it may depend on. Tests may depend on any crate that does not depend on
/// theirs.
const LAYERS: &[(&str, &str, &[&str])] = &[
    ("src/core/", "glocal-core", &[]),
    ("src/wire/", "glocal-wire", &["glocal-core"]),
    ("src/engine/", "glocal-engine", &["glocal-core", "glocal-wire"]),
    ("src/client/", "glocal-client", &["glocal-core", "glocal-wire"]),
    ("src/fabric/", "glocal-fabric", &["glocal-core", "glocal-wire"]),
    ("src/node/", "glocal-node", &["glocal-core", "glocal-wire", "glocal-engine"]),
    ("src/sim/", "glocal-sim", &["glocal-core", "glocal-wire", "glocal-engine"]),
    ("", "glocal", &["glocal-core", "glocal-wire", "glocal-engine", "glocal-client", "glocal-fabric", "glocal-node"]),
];

/// Crates of other people that only some of ours may use.
const RESERVED: &[(&str, &[&str], &str)] = &[
    ("tokio", &["glocal-client", "glocal-node", "glocal"], "core, wire, engine and sim know no runtime"),
    ("quinn", &["glocal-client", "glocal-node", "glocal"], "sockets belong to node and client"),
    ("rustls", &["glocal-client", "glocal-node", "glocal"], "TLS belongs to node and client"),
    ("rand", &[], "seeds are arguments"),
    ("rcgen", &["glocal-fabric"], "only the fabric tool makes certificates"),
    ("bincode", &["glocal-wire"], "one codec, in one place, under a limit"),
    ("anyhow", &["glocal"], "libraries have one error enum per operation"),
    ("clap", &["glocal"], "the command line belongs to the binary"),
];

/// What the crates without I/O never name, outside tests.
const WITHOUT_IO: &[&str] = &["src/core/", "src/wire/", "src/engine/", "src/sim/"];
const IO_WORDS: &[&str] =
    &["tokio", "quinn", "rustls", "Instant", "SystemTime", "rand", "getrandom", "RandomState", "println", "eprintln"];
const IO_MODULES: &[&str] = &["fs", "net", "env", "thread", "process"];

/// Files, or `file: word`, to which this does not apply, and why.
const IO_ALLOWED: &[(&str, &str)] = &[
    ("src/core/build.rs", "runs when the crate is compiled"),
    ("src/sim/build.rs", "runs when the crate is compiled"),
    ("src/sim/measure.rs", "the command's clock and gauge of memory: what the world is given as arguments"),
    ("src/sim/main.rs", "the command: reads arguments, prints verdicts, and times how fast seeds are tried"),
];

fn manifest(directory: &str) -> Table {
    let file = format!("{directory}Cargo.toml");
    text(&file).unwrap().parse().unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn dependencies(manifest: &Table, section: &str) -> Vec<String> {
    manifest.get(section).and_then(Value::as_table).into_iter().flat_map(|t| t.keys().cloned()).collect()
}

#[test]
fn every_crate_has_a_layer() {
    let declared: BTreeSet<String> = LAYERS.iter().map(|(directory, ..)| format!("{directory}Cargo.toml")).collect();
    let found: BTreeSet<String> = super::files()
        .into_iter()
        .filter(|f| f == "Cargo.toml" || (f.starts_with("src/") && f.ends_with("/Cargo.toml")))
        .collect();
    assert_eq!(found, declared, "a new crate needs a row in LAYERS");
}

#[test]
fn dependencies_point_one_way() {
    let mut breaches = Vec::new();
    for (directory, name, allowed) in LAYERS {
        let manifest = manifest(directory);
        for section in ["dependencies", "build-dependencies"] {
            for dependency in dependencies(&manifest, section) {
                if dependency.starts_with("glocal") && !allowed.contains(&dependency.as_str()) {
                    breaches.push(format!("{directory}Cargo.toml: {name} may not depend on {dependency}"));
                }
                let reserved = RESERVED.iter().find(|(crate_name, ..)| *crate_name == dependency);
                if let Some((_, users, why)) = reserved
                    && !users.contains(name)
                {
                    breaches.push(format!("{directory}Cargo.toml: {name} may not depend on {dependency}: {why}"));
                }
            }
        }
    }
    report("dependencies point one way", &breaches);
}

#[test]
fn core_wire_engine_and_sim_do_no_io() {
    let mut breaches = Vec::new();
    for source in scan::sources() {
        let allowed = |word: &str| {
            IO_ALLOWED.iter().any(|(entry, _)| *entry == source.file || *entry == format!("{}: {word}", source.file))
        };
        if !WITHOUT_IO.iter().any(|d| source.file.starts_with(d)) {
            continue;
        }
        let mut breach = |word: &str, at: usize| {
            if !allowed(word) {
                breaches.push(format!("{}:{}: {word}", source.file, source.line(at)));
            }
        };
        for word in IO_WORDS {
            scan::places(&source.production, word).into_iter().for_each(|at| breach(word, at));
        }
        for at in scan::places(&source.production, "std") {
            for module in modules_of_std(&source.production[at + 3..]) {
                breach(&format!("std::{module}"), at);
            }
        }
    }
    report("core, wire, engine and sim know no sockets, files, clocks, threads or randomness", &breaches);
}

/// Which of the forbidden modules the path or group after `std` names.
fn modules_of_std(rest: &str) -> Vec<&'static str> {
    let Some(path) = rest.strip_prefix("::") else { return Vec::new() };
    // A group ends at its statement's semicolon; a path at the first character that is not of a word.
    let named = match path.strip_prefix('{') {
        Some(group) => group.split(';').next().unwrap_or_default(),
        None => path.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default(),
    };
    IO_MODULES.iter().filter(|m| !scan::places(named, m).is_empty()).copied().collect()
}

#[test]
fn the_scanner_sees_what_it_must() {
    assert_eq!(modules_of_std("::fs::read"), ["fs"]);
    assert_eq!(modules_of_std("::{collections::BTreeMap, net::{IpAddr}};"), ["net"]);
    assert!(modules_of_std("::sync::Arc").is_empty());
    let imports = |text: &str| scan::places(text, "bridge").into_iter().any(|at| names_module(text, at, "bridge"));
    assert!(imports("use crate::{a, bridge};") && imports("fn f() { crate::bridge() }") && imports("bridge::open()"));
    assert!(!imports("fn f() { let bridge = 1; }"));
}

#[test]
fn sessions_and_bridges_never_import_each_other() {
    let sources = scan::sources();
    let modules = |prefix: &str| -> BTreeSet<String> {
        sources
            .iter()
            .filter_map(|s| s.file.strip_prefix("src/node/"))
            .filter(|f| f.starts_with(prefix))
            .filter_map(|f| f.split(['/', '.']).next().map(str::to_owned))
            .collect()
    };
    let mut breaches = Vec::new();
    for (mine, theirs) in [("session", "bridge"), ("bridge", "session")] {
        let foreign = modules(theirs);
        for source in sources.iter().filter(|s| s.file.starts_with(&format!("src/node/{mine}"))) {
            for module in &foreign {
                for at in scan::places(&source.production, module) {
                    if names_module(&source.production, at, module) {
                        breaches.push(format!("{}:{}: {module}", source.file, source.line(at)));
                    }
                }
            }
        }
    }
    report("sessions and bridges meet in core and engine only", &breaches);
}

/// Whether the word at `at` is a module: part of a path, or in a `use`.
fn names_module(text: &str, at: usize, module: &str) -> bool {
    let statement = &text[text[..at].rfind([';', '}']).map_or(0, |p| p + 1)..at];
    text[at + module.len()..].starts_with("::")
        || ["crate::", "super::", "self::"].iter().any(|p| text[..at].ends_with(p))
        || statement.trim_start().starts_with("use ")
}

#[test]
fn every_crate_has_the_lints_of_the_workspace() {
    for (directory, ..) in LAYERS {
        let lints = manifest(directory).get("lints").and_then(|l| l.get("workspace")).and_then(Value::as_bool);
        assert_eq!(lints, Some(true), "{directory}Cargo.toml: [lints] workspace = true");
    }
    let unsafe_code = manifest("")["workspace"]["lints"]["rust"]["unsafe_code"].as_str().map(str::to_owned);
    assert_eq!(unsafe_code.as_deref(), Some("forbid"));
}

/// quinn names ring for WebAssembly, so the lock file lists it; what counts is what is built here.
#[test]
fn one_crypto_provider_and_one_bincode() {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--workspace", "--prefix", "none", "--format", "{p}"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).unwrap();
    let packages: BTreeSet<(&str, &str)> = tree
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(name, rest)| (name, rest.split(' ').next().unwrap_or_default()))
        .collect();
    let versions = |name: &str| packages.iter().filter(|(n, _)| *n == name).map(|(_, v)| *v).collect::<Vec<_>>();
    for foreign in ["ring", "openssl", "openssl-sys", "native-tls", "boring", "rustls-native-certs"] {
        assert!(versions(foreign).is_empty(), "{foreign} is in the build; aws-lc-rs is the one crypto provider");
    }
    assert_eq!(versions("aws-lc-rs").len(), 1);
    assert_eq!(versions("rustls").len(), 1);
    assert_eq!(versions("bincode"), ["v2.0.1"]);
}

/// Case RB-63: whoever can take or send early data, or a ticket, says on the spot that it does not.
#[test]
fn early_data_and_tickets_are_off_wherever_tls_is_set_up() {
    let mut breaches = Vec::new();
    let (mut servers, mut clients) = (Vec::new(), Vec::new());
    for source in scan::sources() {
        let code = &source.production;
        for word in ["into_0rtt", "accept_0rtt", "with_single_cert", "session_ticketer", "set_early_data"] {
            breaches.extend(
                scan::places(code, word).iter().map(|at| format!("{}:{}: {word}", source.file, source.line(*at))),
            );
        }
        let mut needs = |what: &str, wanted: &[&str], found: &mut Vec<String>| {
            if code.contains(what) {
                found.push(source.file.clone());
                let missing = wanted.iter().filter(|line| !code.contains(**line));
                breaches.extend(missing.map(|line| format!("{}: {what} without {line}", source.file)));
            }
        };
        let server = ["max_early_data_size = 0", "send_tls13_tickets = 0", "NoServerSessionStorage"];
        needs("ServerConfig::builder", &server, &mut servers);
        // What the demo attacks with is no client of the mesh.
        if !source.file.starts_with("src/cli/demo/") {
            needs("ClientConfig::builder", &["Resumption::disabled()", "enable_early_data = false"], &mut clients);
        }
    }
    report("early data and tickets are off", &breaches);
    assert_eq!(servers, ["src/node/trust/tls.rs"]);
    assert_eq!(clients, ["src/client/tls.rs", "src/node/trust/tls.rs"]);
}

/// Case RB-61: quinn takes any number of bytes on one connection unless it is told how many.
#[test]
fn every_quic_connection_has_windows_of_its_own() {
    let (mut breaches, mut found) = (Vec::new(), Vec::new());
    // What the demo attacks with is no client of the mesh.
    for source in scan::sources().iter().filter(|source| !source.file.starts_with("src/cli/demo/")) {
        let code = &source.production;
        let makes = ["TransportConfig::default()", "quinn::ClientConfig::new", "quinn::ServerConfig::with_crypto"];
        if !makes.iter().any(|word| code.contains(word)) {
            continue;
        }
        found.push(source.file.clone());
        for line in [".transport_config(", ".receive_window(", ".stream_receive_window(", ".max_idle_timeout("] {
            breaches.extend((!code.contains(line)).then(|| format!("{}: no {line}…)", source.file)));
        }
    }
    report("windows of QUIC connections are set", &breaches);
    assert_eq!(found, ["src/client/transport.rs", "src/node/trust/tls.rs"]);
}

/// Case RB-66: no kind of frame, no bundle and no configuration of a peer can name what is run, loaded or fetched, since
/// nothing in a broker runs, loads or fetches anything.
#[test]
fn nothing_in_a_broker_runs_or_loads_what_has_a_name() {
    let mut breaches = Vec::new();
    for source in scan::sources().iter().filter(|source| !source.file.starts_with("src/cli/")) {
        for word in ["Command::new", "process::Command", "libloading", "dlopen", "reqwest", "typetag", "dyn Any"] {
            // quinn gives a connection's own congestion controller back in no other form.
            let is_known = word == "dyn Any" && source.file == "src/node/congestion.rs";
            let is_there = source.production.contains(word) && !is_known;
            breaches.extend(is_there.then(|| format!("{}: {word}", source.file)));
        }
    }
    report("brokers run no programs and choose no types by name", &breaches);
}
