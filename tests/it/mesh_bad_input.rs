//! Brokers that must not start: one line on standard error that names the key and the file, an exit code, and nothing
//! left behind.

use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use glocal_core::name::{Label, TenantId};
use glocal_fabric::pki::LeafKind;
use glocal_fabric::testing::{Forge, Oddity};

use crate::support::fabric::{Credential, Fabric};
use crate::support::node::{GLOBAL, Process, REGION_A, REGION_B, run_command};

/// How long a broker may take to find out that it cannot start: for a state directory that another one holds it waits two
/// seconds by itself.
const AT_ONCE: Duration = Duration::from_secs(5);

struct Refused {
    line: String,
    code: i32,
}

/// Runs a broker that must refuse to start, and checks what holds for all of them.
fn refused(fabric: &Fabric, node: &str, define: &[&str]) -> Refused {
    let mut command = run_command(&fabric.config(node));
    let ready = fabric.node_dir(node).join("ready.json");
    if !define.iter().any(|d| d.starts_with("ready_file")) {
        command.arg("-D").arg(format!("ready_file={}", ready.display()));
    }
    for value in define {
        command.arg("-D").arg(value);
    }
    let began = Instant::now();
    let output = command.stdin(Stdio::null()).output().unwrap();
    let took = began.elapsed();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(took < AT_ONCE, "took {took:?}: {text}");
    assert!(output.stdout.is_empty());
    let lines: Vec<_> = text.lines().collect();
    let [line] = lines.as_slice() else { panic!("one line is expected:\n{text}") };
    assert!(!ready.exists(), "nobody is told that it is ready");
    Refused { line: (*line).to_owned(), code: output.status.code().expect("an exit code") }
}

/// The line is `error: <key>: <file>: <rest>`, and the exit code 1.
#[track_caller]
fn names(fabric: &Fabric, define: &[&str], key: &str, file: &Path, rest: &str) {
    let refused = refused(fabric, REGION_A, define);
    assert_eq!(refused.line, format!("error: {key}: {}: {rest}", file.display()));
    assert_eq!(refused.code, 1);
    assert!(!fabric.node_dir(REGION_A).join("state").exists(), "nothing is made before everything was read");
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let fabric = Fabric::new();
    let dir = fabric.node_dir(REGION_A);
    let missing = "cannot be read: No such file or directory (os error 2)";
    for (file, key) in [
        ("root.pem", "fabric_root"),
        ("node.key", "node_key"),
        ("node.pem", "node_certificate"),
        ("bundle.glocal", "bundle"),
    ] {
        let (path, aside) = (dir.join(file), dir.join("aside"));
        std::fs::rename(&path, &aside).unwrap();
        names(&fabric, &[], key, &path, missing);
        // A directory in its place opens, but cannot be read.
        std::fs::create_dir(&path).unwrap();
        names(&fabric, &[], key, &path, "cannot be read: Is a directory (os error 21)");
        std::fs::remove_dir(&path).unwrap();
        std::fs::rename(&aside, &path).unwrap();
        // Nobody is root where that does not stop a reader.
        let mode = std::fs::metadata(&path).unwrap().permissions();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();
        if std::fs::File::open(&path).is_err() {
            names(&fabric, &[], key, &path, "cannot be read: Permission denied (os error 13)");
        }
        std::fs::set_permissions(&path, mode).unwrap();
    }
}

#[test]
fn files_that_hold_something_else_are_named() {
    let fabric = Fabric::new();
    let dir = fabric.node_dir(REGION_A);
    let (root, pem, key) = (dir.join("root.pem"), dir.join("node.pem"), dir.join("node.key"));
    let good: Vec<_> = [&root, &pem, &key].map(|file| std::fs::read(file).unwrap()).into();
    let no_certificate = "holds no certificate in PEM form";
    let broken = "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
    for (file, text, name, rest) in [
        (&root, "", "fabric_root", no_certificate),
        (&pem, "", "node_certificate", no_certificate),
        (&key, "", "node_key", "holds no private key in PEM form"),
        (&pem, std::str::from_utf8(&good[2]).unwrap(), "node_certificate", no_certificate),
        (&root, broken, "fabric_root", "not a PEM file: base64 decode error: InvalidCharacter"),
        (&root, std::str::from_utf8(&good[1]).unwrap(), "fabric_root", "not a certificate authority"),
        (&pem, std::str::from_utf8(&good[0]).unwrap(), "node_certificate", "certificate is not for this use"),
    ] {
        std::fs::write(file, text).unwrap();
        let refused = refused(&fabric, REGION_A, &[]);
        assert!(refused.line.starts_with(&format!("error: {name}: {}: {rest}", file.display())), "{}", refused.line);
        assert_eq!(refused.code, 1);
        for (file, bytes) in [&root, &pem, &key].into_iter().zip(&good) {
            std::fs::write(file, bytes).unwrap();
        }
    }
}

#[test]
fn certificates_and_keys_that_do_not_fit_are_named() {
    let fabric = Fabric::new();
    let dir = fabric.node_dir(REGION_A);
    let (pem, key) = (dir.join("node.pem"), dir.join("node.key"));
    // The key of another broker.
    let own = fabric.node_credential(REGION_A);
    std::fs::write(&key, &fabric.node_credential(REGION_B).key_pem).unwrap();
    names(&fabric, &[], "node_key", &key, &format!("key does not match certificate {}", pem.display()));
    // Certificate and key of another broker.
    fabric.node_credential(REGION_B).install(&fabric, REGION_A);
    let line = refused(&fabric, REGION_A, &[]).line;
    let text = "the configuration is of region-a/broker-a, but the certificate is of region-b/broker-b";
    assert_eq!(line, format!("error: node_certificate: {}: {text}", pem.display()));
    // An agent's.
    fabric.agent("alice").install(&fabric, REGION_A);
    let text = "not a node certificate (no URI name glocal://node/<region>/<agent>)";
    names(&fabric, &[], "node_certificate", &pem, text);
    // Over since a minute, and not begun.
    let node = || LeafKind::Node { hosts: vec!["localhost".to_owned()] };
    for (seconds, text) in [(-60, "certificate expired at 20"), (86_400 + 1000, "certificate is not valid before 20")] {
        fabric.short_lived("region-a", "operator", "broker-a", node(), seconds).install(&fabric, REGION_A);
        let line = refused(&fabric, REGION_A, &[]).line;
        assert!(line.starts_with(&format!("error: node_certificate: {}: {text}", pem.display())), "{line}");
        assert!(line.contains('Z'), "a date is for people: {line}");
    }
    // Issued by another region's CA: trusted, but not allowed to.
    let tenant = TenantId::parse("operator").unwrap();
    let agent = Label::parse("broker-a").unwrap();
    let region = Label::parse("region-a").unwrap();
    let forged = fabric.forge("region-b").leaf_in(&tenant, &region, &agent, Oddity::NodeName).unwrap();
    Credential::from(forged).install(&fabric, REGION_A);
    let text =
        "the bundle does not admit it as node region-a/broker-a: issuer may not issue this tenant, region or role";
    names(&fabric, &[], "node_certificate", &pem, text);
    // Issued by a CA of the same names in another fabric.
    let foreign = Forge::foreign(&Label::parse("trial").unwrap(), &region).unwrap();
    let forged = foreign.leaf(&tenant, &agent, Oddity::NodeName).unwrap();
    Credential::from(forged).install(&fabric, REGION_A);
    let text = "the bundle does not admit it as node region-a/broker-a: certificate is not issued by this fabric";
    names(&fabric, &[], "node_certificate", &pem, text);
    own.install(&fabric, REGION_A);
    let process = Process::start(&fabric, REGION_A);
    assert_eq!(process.at.node, "region-a/broker-a", "and with its own files it starts");
}

#[test]
fn bundles_that_are_not_this_fabrics_are_named() {
    let fabric = Fabric::new();
    let file = fabric.node_dir(REGION_A).join("bundle.glocal");
    let good = std::fs::read(&file).unwrap();
    let line = |bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        let refused = refused(&fabric, REGION_A, &[]);
        assert_eq!(refused.code, 1);
        let prefix = format!("error: bundle: {}: ", file.display());
        refused.line.strip_prefix(&prefix).unwrap_or_else(|| panic!("{}", refused.line)).to_owned()
    };
    line(b"");
    line(b"not a bundle");
    line(&good[..good.len() - 1]);
    // Every part of the file is covered: a changed byte anywhere is found.
    for place in (8..good.len()).step_by(good.len() / 12) {
        let mut tampered = good.clone();
        tampered[place] ^= 1;
        line(&tampered);
    }
    let mut tampered = good.clone();
    *tampered.last_mut().unwrap() ^= 1;
    line(&tampered);
    let foreign = Fabric::new();
    let other = std::fs::read(foreign.node_dir(REGION_A).join("bundle.glocal")).unwrap();
    assert_eq!(line(&other), "bundle key: certificate is not issued by this fabric");
    std::fs::write(&file, &good).unwrap();
    let refused = refused(&fabric, REGION_A, &["bundle_min_version=2"]);
    assert!(refused.line.ends_with("bundle version 1 is below the configured minimum 2"), "{}", refused.line);
    // A root that the bundle does not know, with everything else in place.
    std::fs::copy(foreign.node_dir(REGION_A).join("root.pem"), fabric.node_dir(REGION_A).join("root.pem")).unwrap();
    assert_eq!(line(&good), "bundle key: certificate is not issued by this fabric");
}

#[test]
fn a_bundle_that_is_over_is_not_started_with() {
    let dir = tempfile::tempdir().unwrap();
    let text = "fabric = \"old\"\noperator = \"operator\"\nbundle_days = 1\n[[region]]\nname = \"r\"\n[[node]]\nname = \"r/n\"\n\
                role = \"region\"\nhosts = [\"localhost\"]\nlisten = \"127.0.0.1\"\nbroker_port = 0\nquic_port = 0\nbridge_port = 0\n";
    let plan = glocal_fabric::Plan::parse(text, "fabric.toml").unwrap_or_else(|error| panic!("{error}"));
    let then = glocal_core::time::UnixTime(glocal_fabric::apply::now().0 - 86_400 - 3600);
    glocal_fabric::apply::apply_at(&plan, dir.path(), then, &mut |_| {}).unwrap();
    let node = dir.path().join("nodes/r-n");
    let output = run_command(&node.join("node.toml")).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    let expected = format!("error: bundle: {}: the bundle expired at 20", node.join("bundle.glocal").display());
    assert!(text.starts_with(&expected) && text.lines().count() == 1, "{text}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn ports_in_use_are_named_by_key_and_address() {
    let fabric = Fabric::new();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (tcp, udp) = (tcp.local_addr().map(|a| (a, tcp)).unwrap(), udp.local_addr().map(|a| (a, udp)).unwrap());
    for (key, address) in [("broker_port", tcp.0), ("quic_port", udp.0), ("bridge_port", udp.0), ("ops_listen", tcp.0)]
    {
        let value = if key == "ops_listen" { address.to_string() } else { address.port().to_string() };
        let refused = refused(&fabric, REGION_A, &[&format!("{key}={value}")]);
        let text = format!("error: {key}: cannot listen on {address}: Address already in use (os error 98)");
        assert_eq!((refused.line, refused.code), (text, 1));
        assert!(!fabric.node_dir(REGION_A).join("state/glocal.sock").exists());
    }
}

#[test]
fn state_and_ready_file_that_cannot_be_used_are_named() {
    let fabric = Fabric::new();
    let dir = fabric.node_dir(REGION_A);
    let file = dir.join("node.toml");
    let text = |define: &str| refused(&fabric, REGION_A, &[define]).line;
    let below = file.join("state");
    let line = text(&format!("state_dir={}", below.display()));
    assert_eq!(line, format!("error: state_dir: {}: cannot be made: Not a directory (os error 20)", below.display()));
    let line = text("ready_file=nowhere/ready.json");
    let ready = dir.join("nowhere/ready.json");
    let missing = "cannot be written: No such file or directory (os error 2)";
    assert_eq!(line, format!("error: ready_file: {}: {missing}", ready.display()));
    let state = dir.join("state");
    assert!(!state.join("glocal.sock").exists(), "the socket goes with the broker");
    std::fs::write(state.join("incarnation"), "yesterday\n").unwrap();
    let line = refused(&fabric, REGION_A, &[]).line;
    let reason = "cannot be read: not a number; remove it to start afresh";
    assert_eq!(line, format!("error: state_dir: {}: {reason}", state.join("incarnation").display()));
    std::fs::remove_file(state.join("incarnation")).unwrap();
    // Another broker's, while that runs; neither its socket nor its incarnation is touched.
    let running = Process::start(&fabric, GLOBAL);
    let taken = fabric.node_dir(GLOBAL).join("state");
    let before = std::fs::read(taken.join("incarnation")).unwrap();
    let line = text(&format!("state_dir={}", taken.display()));
    assert_eq!(line, format!("error: state_dir: {}: another broker runs on it", taken.display()));
    assert_eq!(std::fs::read(taken.join("incarnation")).unwrap(), before);
    assert!(running.status().is_some());
}

#[test]
fn edges_that_the_bundle_does_not_have_are_named() {
    let fabric = Fabric::new();
    let file = fabric.config(REGION_A);
    let good = std::fs::read_to_string(&file).unwrap();
    for (from, to, rest) in [
        ("name = \"global-region-a\"", "name = \"shortcut\"", "'shortcut' with peer global/broker-g"),
        ("peer = \"global/broker-g\"", "peer = \"region-b/broker-b\"", "'global-region-a' with peer region-b/broker-b"),
        // Another broker's edge.
        ("name = \"global-region-a\"", "name = \"global-region-b\"", "'global-region-b' with peer global/broker-g"),
    ] {
        std::fs::write(&file, good.replace(from, to)).unwrap();
        let line = refused(&fabric, REGION_A, &[]).line;
        let number = good.lines().position(|l| l == "[[edges]]").unwrap() + 1;
        let expected =
            format!("error: {}:{number}: edges: {rest} is not an edge of this node in the bundle", file.display());
        assert_eq!(line, expected);
    }
}

#[test]
fn a_tenant_of_certificates_is_no_anonymous_tenant() {
    let fabric = Fabric::new();
    for (tenant, reason) in [("tenantA", "role may not do this"), ("nobody", "tenant is not in the fabric")] {
        let define = ["broker_require_client_auth=false".to_owned(), format!("anonymous_tenant={tenant}")];
        let mut command = run_command(&fabric.config(REGION_A));
        for value in &define {
            command.arg("-D").arg(value);
        }
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        // Warnings about what is asked for may stand before it.
        let last = text.lines().last().unwrap();
        let expected = format!("error: anonymous_tenant: '{tenant}' may not be used without a certificate: {reason}");
        assert_eq!(last, expected);
        assert_eq!(output.status.code(), Some(1));
    }
}

#[test]
fn settings_that_are_not_yet_supported_are_refused_by_key() {
    let file = crate::tidy::root().join("mesh-configs/cresco-compat.toml");
    let output = run_command(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    for key in ["tenant_namespacing", "broker_security_enabled", "broker_shared_destinations"] {
        let found = text.lines().any(|l| l.contains(&format!(": {key}: ")) && l.contains("not yet supported"));
        assert!(found, "{key}:\n{text}");
    }
    assert!(text.lines().all(|l| l.contains("cresco-compat.toml:")), "{text}");
}

#[test]
fn wrong_usage_is_another_exit_code() {
    let run = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_glocal"));
        command.args(arguments).stdout(Stdio::null()).output().unwrap()
    };
    for arguments in [&["run"][..], &["run", "-c", "x", "-D", "nothing"], &["run", "--no-such-flag"], &["nonsense"]] {
        assert_eq!(run(arguments).status.code(), Some(2), "{arguments:?}");
    }
    let output = run(&["run", "-c", "/nowhere/node.toml"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        text.lines().next(),
        Some("error: /nowhere/node.toml: cannot be read: No such file or directory (os error 2)")
    );
}
