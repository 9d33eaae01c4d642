//! Every key refuses every wrong type, and every kind its wrong values.

use super::super::keys::EDGE_KEYS;
use super::*;

/// TOML values of every type.
const TYPES: [&str; 7] = ["true", "7", "\"?\"", "1.5", "2020-01-01", "[7]", "{ x = 1 }"];

/// Which of `TYPES` may be accepted by a kind.
fn may_be_good(kind: &Kind, value: &str) -> bool {
    match kind {
        Kind::Bool => value == "true",
        Kind::Integer { .. } => value == "7",
        Kind::Path | Kind::SecretPem | Kind::Filters => value == "\"?\"",
        _ => false,
    }
}

#[test]
fn every_key_refuses_every_wrong_type() {
    for (keys, parent) in [(KEYS, ""), (EDGE_KEYS, "edges[0].")] {
        for key in keys {
            for value in TYPES {
                let skeleton = if parent.is_empty() { "" } else { "[[edges]]\n" };
                let text = format!("{skeleton}{} = {value}\n", key.name);
                let lines = errors_or_none(compile_with(&text, &[], &[]));
                let path = format!(": {parent}{}", key.name);
                let said = lines
                    .iter()
                    .any(|line| line.contains(&path) && !line.contains("is missing") && !line.contains("must be true"));
                let known = key.name == "global_controller_port" && value == "7";
                assert!(
                    said || known || may_be_good(&key.kind, value),
                    "{}: {value} was not refused: {lines:?}",
                    key.name
                );
            }
        }
    }
}

fn errors_or_none(result: Result<Loaded, ConfigErrors>) -> Vec<String> {
    if result.is_ok() { Vec::new() } else { errors(result) }
}

fn refused(lines: &str) -> String {
    let lines = errors(with(lines));
    assert_eq!(lines.len(), 1, "{lines:?}");
    lines[0].split_once(": ").unwrap().1.to_owned()
}

#[test]
fn types_are_named_as_found() {
    assert_eq!(refused("is_agent = \"false\"\n"), "is_agent: expected true or false, found the string \"false\"");
    assert_eq!(refused("broker_port = 1.5\n"), "broker_port: expected an integer from 0 to 65535, found a float");
    assert_eq!(refused("log_format = 2020-01-01\n"), "log_format: expected \"text\" or \"json\", found a date");
    assert_eq!(
        refused("broker_superuser_tenants = true\n"),
        "broker_superuser_tenants: expected a list of tenant ids, found true"
    );
    assert_eq!(
        refused("broker_superuser_tenants = [\"a\", 1]\n"),
        "broker_superuser_tenants[1]: expected a string, found the integer 1"
    );
    assert_eq!(
        refused("lame_duck_ms = -1\n"),
        "lame_duck_ms: expected an integer from 0 to 600000, found the integer -1"
    );
    let huge = "9".repeat(60);
    assert_eq!(
        refused(&format!("lame_duck_ms = {huge}\n")),
        "lame_duck_ms: expected an integer from 0 to 600000, found an integer"
    );
}

#[test]
fn values_are_checked() {
    assert_eq!(
        refused("log_level = \"debgu\"\n"),
        "log_level: the string \"debgu\" is not \"error\", \"warn\", \"info\", \"debug\" or \"trace\"; did you mean \"debug\"?"
    );
    assert_eq!(
        refused("listen_address = \"localhost\"\n"),
        "listen_address: expected an IP address, found the string \"localhost\""
    );
    assert_eq!(
        refused("ops_listen = \"127.0.0.1\"\n"),
        "ops_listen: expected an IP address and port, or \"off\", found the string \"127.0.0.1\""
    );
    assert_eq!(
        refused("broker_superuser_tenants = \"a,,b\"\n"),
        "broker_superuser_tenants: \"\" will not do: tenant id is not of the form [A-Za-z0-9][A-Za-z0-9_-]{0,62}"
    );
    assert_eq!(
        refused("broker_superuser_tenants = [\"a\", \"a\"]\n"),
        "broker_superuser_tenants[1]: \"a\" is in the list twice"
    );
    assert_eq!(
        refused("broker_cross_tenant_sinks = \"a=>b\"\n"),
        "broker_cross_tenant_sinks: \"a=>b\" is not of the form src->dst[:write|read|any]"
    );
    assert_eq!(
        refused("broker_cross_tenant_sinks = \"a->a\"\n"),
        "broker_cross_tenant_sinks: \"a->a\" names the same tenant twice"
    );
}

#[test]
fn rates_have_units() {
    let rate = |value: &str| {
        with(&format!("[[edges]]\nname = \"e\"\npeer = \"a/b\"\nrate = {value}\n")).ok()?.config.edges[0]
            .rate_bits_per_second
    };
    for (text, bits) in [
        ("\"100 Mbit/s\"", 100_000_000),
        ("\"1Gbit/s\"", 1_000_000_000),
        ("\"64 kbit/s\"", 64_000),
        ("\"64000\"", 64_000),
        ("1000000", 1_000_000),
    ] {
        assert_eq!(rate(text), Some(bits), "{text}");
    }
    for bad in
        ["\"100 MB/s\"", "\"fast\"", "63999", "\"2000 Gbit/s\"", "\"99999999999999999999 Gbit/s\"", "\"-1\"", "0"]
    {
        assert_eq!(rate(bad), None, "{bad}");
    }
}

#[test]
fn addresses_have_hosts_and_ports() {
    for good in ["g:1", "g.example:32010", "10.0.0.1:1", "[::1]:65535"] {
        assert_eq!(HostPort::parse(good).map(|a| a.to_string()), Ok(good.to_owned()));
    }
    for bad in ["", "g", "g:", ":1", "g:0", "g:65536", "::1:5", "[g]:1", "g h:1", "http://g:1", "-g:1", "g:+1"] {
        assert!(HostPort::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn every_default_is_a_good_value() {
    // The walk converts defaults as it converts texts; a bad one would be reported as an error of the file.
    assert!(with("[[edges]]\nname = \"e\"\npeer = \"a/b\"\n").is_ok());
    for key in KEYS.iter().chain(EDGE_KEYS) {
        assert!(key.doc.ends_with('.'), "{} is documented in whole sentences", key.name);
    }
}
