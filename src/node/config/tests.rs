//! Tests of the compilation of configurations.

mod files;
mod kinds;
mod sources;

use std::path::Path;

use glocal_core::limits::{EDGE_BYTES_DEFAULT, EDGE_LANE_BYTES_MAX};

use super::*;

/// A file that compiles, to which tests add lines.
pub(super) const BASE: &str = "regionname = \"region-a\"\nagentname = \"broker\"\nis_region = true\n";

pub(super) fn compile_with(
    text: &str,
    overrides: &[(&str, &str)],
    env: &[(&str, &str)],
) -> Result<Loaded, ConfigErrors> {
    let own =
        |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<Vec<_>>();
    compile(text, Path::new("/etc/glocal/node.toml"), &own(overrides), own(env))
}

/// Compiles the base and some lines.
pub(super) fn with(lines: &str) -> Result<Loaded, ConfigErrors> {
    compile_with(&format!("{BASE}{lines}"), &[], &[])
}

pub(super) fn errors(result: Result<Loaded, ConfigErrors>) -> Vec<String> {
    let errors = result.expect_err("it compiled");
    errors.to_string().lines().map(|line| line.replace("/etc/glocal/", "")).collect()
}

#[test]
fn defaults_are_secure() {
    let Loaded { config, notes } = with("").unwrap();
    assert!(config.tenant_namespacing && config.broker_security_enabled && config.security_regional_ca);
    assert_eq!(config.clients, ClientAuth::Required);
    assert_eq!(config.tenant_id.as_str(), "default");
    assert_eq!(config.role, NodeRole::Region);
    assert_eq!(config.node.to_string(), "region-a/broker");
    assert_eq!(config.native_tcp.to_string(), "0.0.0.0:32010");
    assert_eq!(config.native_quic.to_string(), "0.0.0.0:32011");
    assert_eq!(config.bridge.to_string(), "0.0.0.0:32010");
    assert_eq!(config.ops_listen.map(|a| a.to_string()).as_deref(), Some("127.0.0.1:32080"));
    assert_eq!(config.state_dir, Path::new("/etc/glocal/state"));
    assert_eq!(config.node_key, SecretSource::File("/etc/glocal/node.key".into()));
    assert_eq!(config.broker_superuser_tenants, None);
    assert_eq!((config.nats_tcp, config.uplink, config.ready_file), (None, None, None));
    assert!(config.unsupported.is_empty() && notes.is_empty() && config.edges.is_empty());
}

#[test]
fn the_document_equals_the_table() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/CONFIG.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&file, markdown()).unwrap();
    }
    let document = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(document == markdown(), "docs/CONFIG.md is not up to date: UPDATE_DOCS=1 cargo test -p glocal-node config");
}

#[test]
fn an_edge_is_typed() {
    let text = "[[edges]]\nname = \"up\"\npeer = \"global/broker-g\"\naddresses = [\"127.0.0.1:32010\", \"[::1]:7\"]\n\
                tenants = [\"acme-*\", \"beta\"]\nrate = \"100 Mbit/s\"\nmetric = 5\n";
    let config = with(text).unwrap().config;
    let edge = &config.edges[0];
    assert_eq!((edge.name.as_str(), edge.peer.to_string().as_str()), ("up", "global/broker-g"));
    assert_eq!(edge.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(), ["127.0.0.1:32010", "[::1]:7"]);
    assert!(edge.tenants.matches(&TenantId::parse("acme-eu").unwrap()));
    assert!(!edge.tenants.matches(&TenantId::parse("gamma").unwrap()));
    assert_eq!((edge.rate_bits_per_second, edge.metric, edge.mode), (Some(100_000_000), 5, EdgeMode::Shared));
    assert_eq!(edge.line, 4);
}

#[test]
fn the_uplink_serves_the_one_edge_without_addresses() {
    let uplink = "global_controller_host = \"g.example\"\nglobal_controller_port = 32010\n";
    let edge = |name: &str| format!("[[edges]]\nname = \"{name}\"\npeer = \"global/g\"\n");
    let config = with(&format!("{uplink}{}", edge("up"))).unwrap().config;
    assert_eq!(config.addresses_of(&config.edges[0])[0].to_string(), "g.example:32010");
    assert!(with(uplink).unwrap().config.uplink.is_some(), "the edge may be in the bundle only");

    let two = errors(with(&format!("{uplink}{}{}", edge("up"), edge("up2"))));
    assert_eq!(
        two,
        [
            "node.toml:4: global_controller_host: is for the one [[edges]] entry without addresses; there are 2 of them, so \
          give each its own"
        ]
    );
    assert_eq!(
        errors(with("global_controller_host = \"g\"\n")),
        ["node.toml:4: global_controller_host: needs global_controller_port, the global's bridge_port"]
    );
    assert_eq!(
        errors(compile_with(&format!("regionname = \"g\"\nagentname = \"g\"\nis_global = true\n{uplink}"), &[], &[])),
        ["node.toml:4: global_controller_host: has no use on a global; give the edge to another global its addresses"]
    );
}

#[test]
fn the_role_is_exactly_one() {
    let names = "regionname = \"a\"\nagentname = \"b\"\n";
    assert_eq!(
        errors(compile_with(names, &[], &[])),
        ["node.toml:1: is_region: one of is_global, is_region and is_agent must be true; none is"]
    );
    assert_eq!(
        errors(compile_with(&format!("{names}is_global = true\nis_region = true\n"), &[], &[])),
        [
            "node.toml:4: is_region: only one of is_global, is_region and is_agent may be true; is_global and is_region are"
        ]
    );
}

#[test]
fn anonymous_clients_need_their_own_tenant() {
    let open = "broker_require_client_auth = false\n";
    assert_eq!(
        errors(with(open)),
        [
            "node.toml:4: broker_require_client_auth: false needs anonymous_tenant, the tenant of clients without a certificate"
        ]
    );
    let loaded = with(&format!("{open}anonymous_tenant = \"guests\"\n")).unwrap();
    assert_eq!(loaded.config.clients, ClientAuth::AnonymousAs(TenantId::parse("guests").unwrap()));
    assert!(loaded.notes[0].warning);
    assert!(loaded.notes[0].to_string().contains("admitted as tenant \"guests\""), "{}", loaded.notes[0]);
    assert_eq!(
        errors(with(&format!("{open}anonymous_tenant = \"ops\"\nbroker_superuser_tenants = [\"ops\"]\n"))),
        [
            "node.toml:5: anonymous_tenant: \"ops\" is in broker_superuser_tenants; an anonymous client is never a superuser"
        ]
    );
    assert_eq!(errors(with("anonymous_tenant = \"guests\"\n")).len(), 1, "a tenant without its switch is a mistake");
}

#[test]
fn listeners_do_not_share_ports() {
    assert_eq!(
        errors(with("quic_port = 32010\n")),
        ["node.toml:4: quic_port: 32010 is bridge_port, too; both are UDP"]
    );
    assert_eq!(
        errors(with("ops_listen = \"127.0.0.1:32010\"\n")),
        ["node.toml:4: ops_listen: port 32010 is of both ops_listen and broker_port; both are TCP"]
    );
    assert!(with("broker_port = 0\nquic_port = 0\nbridge_port = 0\nops_listen = \"127.0.0.1:0\"\n").is_ok());
    assert_eq!(with("ops_listen = \"off\"\n").unwrap().config.ops_listen, None);
    assert!(with("ops_listen = \"0.0.0.0:9\"\n").unwrap().notes[0].warning, "metrics for everyone is worth a warning");
}

#[test]
fn what_is_not_yet_supported_is_listed_by_key() {
    let text = "tenant_namespacing = false\nbroker_security_enabled = false\nsecurity_regional_ca = false\n\
                transition = true\ntenant_id_form = \"opaque\"\nnats_port = 4222\nnats_ws_port = 0\n\
                broker_shared_destinations = \"region.event\"\nbroker_cross_tenant_sinks = \"a->b:read; c->d\"\n\
                [[edges]]\nname = \"up\"\npeer = \"g/g\"\n";
    let config = with(text).unwrap().config;
    let listed: Vec<String> = config.unsupported.iter().map(|p| format!("{}: {}", p.path, p.message)).collect();
    assert_eq!(
        listed,
        [
            "tenant_namespacing: false is not yet supported",
            "broker_security_enabled: false is not yet supported",
            "security_regional_ca: false is not yet supported",
            "transition: true is not yet supported",
            "tenant_id_form: opaque is not yet supported",
            "broker_shared_destinations: is not yet supported",
            "broker_cross_tenant_sinks: is not yet supported",
        ]
    );
    assert_eq!(config.broker_cross_tenant_sinks[0].access, SinkAccess::Read);
    assert_eq!(config.broker_cross_tenant_sinks[1].access, SinkAccess::Write);
    let silent = with("tenant_namespacing = true\nbroker_shared_destinations = []\ntransition = false\n").unwrap();
    assert!(silent.config.check_supported().is_ok());
    let refused = config.check_supported().unwrap_err().to_string();
    assert_eq!(refused.lines().count(), 7);
    assert!(
        refused.starts_with("/etc/glocal/node.toml:4: tenant_namespacing: false is not yet supported"),
        "{refused}"
    );
}

#[test]
fn an_edge_has_limits_of_its_own() {
    let edge = |more: &str| with(&format!("[[edges]]\nname = \"up\"\npeer = \"g/g\"\n{more}"));
    let limits = |more: &str| edge(more).map(|l| (l.config.edges[0].lane_bytes_max, l.config.edges[0].queue_bytes_max));
    assert_eq!(limits("").unwrap(), (EDGE_LANE_BYTES_MAX, EDGE_BYTES_DEFAULT));
    assert_eq!(limits("lane_bytes = 65536\nqueue_bytes = 65536\n").unwrap(), (65_536, 65_536));
    assert_eq!(
        errors(edge("lane_bytes = 131072\nqueue_bytes = 65536\n")),
        ["node.toml:8: edges[0].queue_bytes: must be at least lane_bytes, which is 131072"]
    );
    assert_eq!(
        errors(edge("lane_bytes = 1\n")),
        ["node.toml:7: edges[0].lane_bytes: expected an integer from 65536 to 8388608, found the integer 1"]
    );
}

#[test]
fn tenants_of_a_dedicated_edge_may_have_certificates() {
    let edge = "[[edges]]\nname = \"up\"\npeer = \"g/g\"\ntenants = [\"acme*\"]\n";
    let certificate = |tenant: &str| {
        format!(
            "[[edges.certificates]]\ntenant = \"{tenant}\"\ncertificate = \"{tenant}.pem\"\nkey = \"{tenant}.key\"\n"
        )
    };
    let (one, other) = (certificate("acme"), certificate("acme-eu"));
    let config = with(&format!("{edge}mode = \"dedicated\"\n{one}{other}")).unwrap().config;
    assert!(config.check_supported().is_ok());
    let edge_config = &config.edges[0];
    assert_eq!(edge_config.mode, EdgeMode::Dedicated);
    let found = edge_config.certificate_of(&TenantId::parse("acme-eu").unwrap()).unwrap();
    assert_eq!(found.certificate, Path::new("/etc/glocal/acme-eu.pem"));
    assert_eq!(found.key, Path::new("/etc/glocal/acme-eu.key"));
    assert_eq!(edge_config.certificate_of(&TenantId::parse("acme-us").unwrap()), None);
    assert_eq!(config.files().len(), 4 + 4, "check says which are missing");
    assert_eq!(
        errors(with(&format!("{edge}{one}"))),
        ["node.toml:8: edges[0].certificates: has no use while mode is \"shared\": one connection carries all tenants"]
    );
    assert_eq!(
        errors(with(&format!("{edge}mode = \"dedicated\"\n{one}{one}{}", certificate("beta")))),
        [
            "node.toml:14: edges[0].certificates[1].tenant: \"acme\" has a certificate already",
            "node.toml:18: edges[0].certificates[2].tenant: \"beta\" is not among the edge's tenants",
        ]
    );
    assert_eq!(
        errors(with(&format!("{edge}mode = \"dedicated\"\n[[edges.certificates]]\ntenant = \"acme\"\nkey = \"k\"\n"))),
        ["node.toml:9: edges[0].certificates[0].certificate: is missing; expected a path"]
    );
}
