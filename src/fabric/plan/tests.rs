use super::*;

/// A plan with every kind of entry and nothing wrong.
const GOOD: &str = r#"fabric = "demo"
operator = "fabric-ops"
superusers = ["cresco-system"]
max_payload = "2 MiB"
region = [{ name = "global" }, { name = "region-a" }]

[[node]]
name = "global/broker-g"
role = "global"

[[node]]
name = "region-a/broker-a"
role = "region"
listen = "0.0.0.0"
hosts = ["broker-a.example", "10.0.0.7"]
bridge_port = 0

[[tenant]]
id = "tenantA"
weight = 3
regions = ["region-a"]
owner_only_replies = true

[[tenant]]
id = "team-one"
regions = ["region-a", "global"]

[[tenant]]
id = "cresco-system"
regions = ["global"]

[[agent]]
name = "alice"
region = "region-a"
tenant = "tenantA"

[[edge]]
name = "a-global"
dial = "region-a/broker-a"
accept = "global/broker-g"
tenants = ["team-*", "tenantA"]

[[grant]]
name = "weather"
from = "tenantA"
to = "team-one"
access = "read"
filter = "weather.>"

[[revocation]]
tenant = "tenantA"
region = "region-a"
agent = "mallory"
before = "2026-05-01T00:00:00Z"

[[revocation]]
tenant = "fabric-ops"
region = "global"
serial = "00:ab:cd"
"#;

#[test]
fn a_plan_may_be_as_large_as_its_tenants_are_many_and_no_larger() {
    let comment = "# A tenant of a large fabric takes some lines of a plan.\n";
    let large = GOOD.to_owned() + &comment.repeat(2 * glocal_core::limits::CONFIG_BYTES_MAX / comment.len());
    assert!(Plan::parse(&large, "fabric.toml").is_ok());
    let too_large = "#".repeat(glocal_core::limits::PLAN_BYTES_MAX + 1);
    let error = Plan::parse(&too_large, "fabric.toml").unwrap_err().to_string();
    assert_eq!(error, "fabric.toml:1: the file is larger than 67108864 bytes");
}

#[test]
fn a_good_plan_is_read_whole() {
    let plan = Plan::parse(GOOD, "fabric.toml").unwrap();
    assert_eq!(plan.fabric.as_str(), "demo");
    assert_eq!((plan.max_payload_bytes, plan.leaf_days, plan.bundle_days), (2 << 20, 90, 30));
    let [global, region] = plan.nodes.as_slice() else { panic!("two nodes") };
    assert_eq!(global.hosts, ["localhost", "127.0.0.1"], "loopback brokers need no hosts");
    assert_eq!((global.broker_port, global.quic_port, global.bridge_port), (32010, 32011, 32010));
    assert_eq!((region.hosts.len(), region.directory().as_str()), (2, "region-a-broker-a"));
    let [edge] = plan.edges.as_slice() else { panic!("one edge") };
    assert_eq!(edge.address, "127.0.0.1:32010");
    let carried: Vec<&str> = edge.tenants.iter().map(TenantId::as_str).collect();
    assert_eq!(carried, ["tenantA", "team-one"], "globs are spread over the declared tenants");
    assert_eq!(plan.tenants[0].weight, 3);
    assert!(matches!(&plan.revocations[1].what, Revoked::Serial(serial) if serial == &[0xab, 0xcd]));
}

#[test]
fn nats_listeners_are_only_where_the_plan_gives_a_port() {
    let text = GOOD.replacen("role = \"global\"\n", "role = \"global\"\nnats_port = 4222\nnats_ws_port = 0\n", 1);
    let plan = Plan::parse(&text, "fabric.toml").unwrap();
    let [global, region] = plan.nodes.as_slice() else { panic!("two nodes") };
    assert_eq!((global.nats_port, global.nats_ws_port), (Some(4222), Some(0)));
    assert_eq!((region.nats_port, region.nats_ws_port), (None, None));
    let rendered = crate::node_config::render(&plan, global);
    assert!(rendered.contains("\nnats_port = 4222\nnats_ws_port = 0\nops_listen"), "{rendered}");
    assert!(!crate::node_config::render(&plan, region).contains("nats"));
}

#[test]
fn what_a_tenant_may_publish_reaches_its_section() {
    let keys = "weight = 3\nmessages_per_s = 500000000\n".to_owned()
        + "bytes_per_s = \"10 GiB\"\nburst_ms = 250\nlive_percent = 60\nctrl_percent = 20\n\
           session_messages_per_s = 100\nsession_bytes_per_s = 65536\n";
    let plan = Plan::parse(&GOOD.replacen("weight = 3\n", &keys, 1), "fabric.toml").unwrap();
    let limits = RateLimits {
        messages_per_s: Some(500_000_000),
        bytes_per_s: Some(10 << 30),
        burst_ms: 250,
        live_percent: 60,
        ctrl_percent: 20,
        session_messages_per_s: Some(100),
        session_bytes_per_s: Some(65_536),
    };
    assert_eq!((plan.tenants[0].limits, plan.tenants[1].limits), (limits, RateLimits::NONE));
}

#[test]
fn what_a_tenant_gets_of_edges_and_memory_reaches_its_section() {
    let keys = "weight = 3\nclass_weights = { live = 8, bulk = 2 }\nedge_bytes_per_s = \"10 MiB\"\n\
                edge_class_bytes_per_s = { bulk = \"1 MiB\", tele = 8192 }\nmemory_bytes = \"64 MiB\"\n";
    let plan = Plan::parse(&GOOD.replacen("weight = 3\n", keys, 1), "fabric.toml").unwrap();
    let terms = EdgeTerms {
        class_weights: [8, 4, 2, 2],
        bytes_per_s: Some(10 << 20),
        class_bytes_per_s: [None, None, Some(8_192), Some(1 << 20)],
    };
    assert_eq!((plan.tenants[0].terms, plan.tenants[1].terms), (terms, EdgeTerms::DEFAULT));
    assert_eq!((plan.tenants[0].memory_bytes, plan.tenants[1].memory_bytes), (Some(64 << 20), None));
}

#[test]
fn the_smallest_plan_is_enough() {
    let plan = Plan::parse("fabric = \"x\"\noperator = \"ops\"\n", "p").unwrap();
    assert!(plan.nodes.is_empty() && plan.tenants.is_empty());
}

/// Applies `replace` to the good plan and returns the exact error text.
fn error_of(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from}");
    Plan::parse(&GOOD.replacen(from, to, 1), "fabric.toml").unwrap_err().to_string()
}

/// What is replaced in the good plan, by what, and the exact error.
const MISTAKES: &[(&str, &str, &str)] = &[
    ("fabric = \"demo\"\n", "", "fabric.toml:1: fabric: missing"),
    ("\"demo\"", "\"de mo\"", "fabric.toml:1: fabric: label is not of the form [A-Za-z0-9][A-Za-z0-9_-]{0,62}"),
    ("\"fabric-ops\"", "7", "fabric.toml:2: operator: expected a string, found integer"),
    (
        "\"fabric-ops\"",
        "\"a,b\"",
        "fabric.toml:2: operator: tenant id is not of the form [A-Za-z0-9][A-Za-z0-9_-]{0,62}",
    ),
    (
        "[\"cresco-system\"]",
        "[\"tn-x\"]",
        "fabric.toml:3: superusers[0]: tenant id begins with the reserved prefix 'tn-'",
    ),
    (
        "[\"cresco-system\"]",
        "[\"nobody\"]",
        "fabric.toml:3: superusers[0]: unknown tenant 'nobody'; declared: cresco-system, team-one, tenantA",
    ),
    (
        "\"2 MiB\"",
        "\"9 MiB\"",
        "fabric.toml:4: max_payload: '9 MiB' is not a size between 1024 and 8388608 bytes; write bytes, or a text \
             such as \"1 MiB\"",
    ),
    ("\"2 MiB\"", "12", "fabric.toml:4: max_payload: 12 is not between 1024 and 8388608"),
    (
        "max_payload",
        "max_paylod",
        "fabric.toml:4: max_paylod: unknown key; known here: agent, bundle_days, edge, fabric, grant, leaf_days, \
             max_payload, node, operator, region, resigner, revocation, superusers, tenant",
    ),
    (
        "operator = \"fabric-ops\"\n",
        "operator = \"fabric-ops\"\nfabric = \"two\"\n",
        "fabric.toml:3: fabric: duplicate key",
    ),
    ("weight = 3\n", "weight = 3\nweight = 4\n", "fabric.toml:21: weight: duplicate key"),
    ("weight = 3", "weight = 0", "fabric.toml:20: tenant[0].weight: 0 is not between 1 and 1000000"),
    (
        "weight = 3",
        "wieght = 3",
        "fabric.toml:20: tenant[0].wieght: unknown key; known here: burst_ms, bytes_per_s, class_weights, ctrl_percent, \
             edge_bytes_per_s, edge_class_bytes_per_s, id, live_percent, memory_bytes, messages_per_s, owner_only_replies, \
             regions, session_bytes_per_s, session_messages_per_s, sessions_max, weight",
    ),
    (
        "weight = 3",
        "memory_bytes = \"1 KiB\"",
        "fabric.toml:20: tenant[0].memory_bytes: '1 KiB' is not a size between 1048576 and 17592186044416 bytes; write bytes, \
             or a text such as \"1 MiB\"",
    ),
    ("weight = 3", "class_weights = 3", "fabric.toml:20: tenant[0].class_weights: expected a table, found integer"),
    (
        "weight = 3",
        "class_weights = { live = 0 }",
        "fabric.toml:20: tenant[0].class_weights.live: 0 is not between 1 and 100",
    ),
    (
        "weight = 3",
        "class_weights = { life = 1 }",
        "fabric.toml:20: tenant[0].class_weights.life: unknown key; known here: bulk, ctrl, live, tele",
    ),
    (
        "weight = 3",
        "edge_bytes_per_s = 8191",
        "fabric.toml:20: tenant[0].edge_bytes_per_s: 8191 is not between 8192 and 125000000000",
    ),
    (
        "weight = 3",
        "edge_class_bytes_per_s = { live = \"1 KiB\" }",
        "fabric.toml:20: tenant[0].edge_class_bytes_per_s.live: '1 KiB' is not a size between 8192 and 125000000000 bytes; \
             write bytes, or a text such as \"1 MiB\"",
    ),
    ("weight = 3", "messages_per_s = 0", "fabric.toml:20: tenant[0].messages_per_s: 0 is not between 1 and 1000000000"),
    (
        "weight = 3",
        "bytes_per_s = \"1 Mbit/s\"",
        "fabric.toml:20: tenant[0].bytes_per_s: '1 Mbit/s' is not a size between 1 and 125000000000 bytes; write bytes, or a \
             text such as \"1 MiB\"",
    ),
    ("weight = 3", "live_percent = 101", "fabric.toml:20: tenant[0].live_percent: 101 is not between 1 and 100"),
    ("weight = 3", "burst_ms = 60001", "fabric.toml:20: tenant[0].burst_ms: 60001 is not between 1 and 60000"),
    (
        "owner_only_replies = true",
        "owner_only_replies = 1",
        "fabric.toml:22: tenant[0].owner_only_replies: expected true or false, found integer",
    ),
    (
        "{ name = \"region-a\" }",
        "{ name = \"region-a\" }, { name = \"global\" }",
        "fabric.toml:5: region[2].name: region 'global' is declared twice",
    ),
    (
        "{ name = \"region-a\" }",
        "{ name = \"region-a\", ca = 1 }",
        "fabric.toml:5: region[1].ca: unknown key; known here: name",
    ),
    (
        "\"global/broker-g\"\nrole",
        "\"broker-g\"\nrole",
        "fabric.toml:8: node[0].name: 'broker-g' is not <region>/<agent>, each of the form \
             [A-Za-z0-9][A-Za-z0-9_-]{0,62}\n\
             fabric.toml:40: edge[0].accept: unknown node 'global/broker-g'; declared: region-a/broker-a",
    ),
    ("role = \"global\"", "role = \"boss\"", "fabric.toml:9: node[0].role: 'boss' is none of global, region, agent"),
    (
        "role = \"global\"\n",
        "role = \"global\"\nbridge_port = 32011\n",
        "fabric.toml:7: node[0].bridge_port: UDP port 32011 is also this node's quic_port",
    ),
    (
        "role = \"global\"\n",
        "role = \"global\"\nnats_port = 32010\n",
        "fabric.toml:7: node[0].nats_port: TCP port 32010 is also this node's broker_port",
    ),
    (
        "role = \"global\"\n",
        "role = \"global\"\nnats_port = 4222\nnats_ws_port = 4222\n",
        "fabric.toml:7: node[0].nats_ws_port: TCP port 4222 is also this node's nats_port",
    ),
    (
        "role = \"global\"\n",
        "role = \"global\"\nnats_port = -1\n",
        "fabric.toml:10: node[0].nats_port: -1 is not between 0 and 65535",
    ),
    (
        "role = \"global\"\n",
        "role = \"global\"\nbroker_port = 70000\n",
        "fabric.toml:10: node[0].broker_port: 70000 is not between 0 and 65535",
    ),
    (
        "role = \"global\"\n",
        "role = \"global\"\nops_listen = \"9000\"\n",
        "fabric.toml:10: node[0].ops_listen: is neither <address>:<port> nor \"off\"",
    ),
    ("\"0.0.0.0\"", "\"everywhere\"", "fabric.toml:14: node[1].listen: is not an IP address"),
    (
        "hosts = [\"broker-a.example\", \"10.0.0.7\"]\n",
        "",
        "fabric.toml:11: node[1].hosts: missing; list the host names and addresses that clients dial",
    ),
    (
        "\"10.0.0.7\"",
        "\"*.example\"",
        "fabric.toml:15: node[1].hosts[1]: '*.example' is neither a host name nor an IP address",
    ),
    (
        "\"team-one\"\nregions = [\"region-a\", \"global\"]",
        "\"team-one\"\nregions = [\"region-x\"]",
        "fabric.toml:26: tenant[1].regions[0]: unknown region 'region-x'; declared: global, region-a",
    ),
    (
        "\"team-one\"\nregions",
        "\"tenantA\"\nregions",
        "fabric.toml:25: tenant[1].id: tenant 'tenantA' is declared twice\n\
             fabric.toml:41: edge[0].tenants[0]: no tenant matches 'team-*'; declared: tenantA, cresco-system\n\
             fabric.toml:46: grant[0].to: unknown tenant 'team-one'; declared: cresco-system, tenantA",
    ),
    (
        "region = \"region-a\"\ntenant",
        "region = \"global\"\ntenant",
        "fabric.toml:34: agent[0].region: region 'global' is not among the regions of tenant 'tenantA'",
    ),
    (
        "accept = \"global/broker-g\"",
        "accept = \"region-a/broker-a\"",
        "fabric.toml:37: edge[0].accept: an edge joins two different nodes",
    ),
    (
        "accept = \"global/broker-g\"",
        "accept = \"region-a/broker-a\" # dialled",
        "fabric.toml:37: edge[0].accept: an edge joins two different nodes",
    ),
    (
        "dial = \"region-a/broker-a\"",
        "dial = \"region-a/broker-z\"",
        "fabric.toml:39: edge[0].dial: unknown node 'region-a/broker-z'; declared: global/broker-g, \
             region-a/broker-a",
    ),
    ("\"team-*\", ", "\"t*m\", ", "fabric.toml:41: edge[0].tenants[0]: 't*m' has '*' elsewhere than at its end"),
    (
        "\"team-*\", ",
        "\"nobody\", ",
        "fabric.toml:41: edge[0].tenants[0]: unknown tenant 'nobody'; declared: tenantA, team-one, cresco-system",
    ),
    (
        "tenants = [\"team-*\", \"tenantA\"]",
        "tenants = [\"*\"]\naddress = \"host\"",
        "fabric.toml:42: edge[0].address: is not <host>:<port> with a port from 1 to 65535",
    ),
    (
        "tenants = [\"team-*\", \"tenantA\"]\n",
        "",
        "fabric.toml:37: edge[0].tenants: missing; list tenants, or [\"*\"] for all",
    ),
    ("access = \"read\"", "access = \"all\"", "fabric.toml:47: grant[0].access: 'all' is neither read nor write"),
    ("to = \"team-one\"", "to = \"tenantA\"", "fabric.toml:46: grant[0].to: a tenant needs no grant for its own names"),
    (
        "\"weather.>\"",
        "\"T.tenantB.live.x\"",
        "fabric.toml:48: grant[0].filter: qualified name inside a qualified name",
    ),
    (
        "\"2026-05-01T00:00:00Z\"",
        "\"May\"",
        "fabric.toml:54: revocation[0].before: is not a date such as \"2026-05-01T00:00:00Z\"",
    ),
    (
        "serial = \"00:ab:cd\"",
        "agent = \"a\"",
        "fabric.toml:56: revocation[1].serial: give either serial, or before with or without agent",
    ),
    (
        "\"00:ab:cd\"",
        "\"xyz\"",
        "fabric.toml:59: revocation[1].serial: is not a serial number in hex digits, as 'glocal pki show' prints it",
    ),
];

#[test]
fn every_mistake_has_its_line_key_and_text() {
    let wrong: Vec<String> = MISTAKES
        .iter()
        .map(|(from, to, expected)| (from, to, expected, error_of(from, to)))
        .filter(|(_, _, expected, found)| *expected != found)
        .map(|(from, to, expected, found)| format!("{from:?} -> {to:?}\n  wanted {expected}\n  found  {found}"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_re_signer_is_a_broker_of_the_plan() {
    assert_eq!(Plan::parse(GOOD, "p").unwrap().resigner, None);
    let named = |name: &str| Plan::parse(&format!("resigner = \"{name}\"\n{GOOD}"), "p");
    assert_eq!(named("region-a/broker-a").unwrap().resigner, NodeId::parse("region-a/broker-a").ok());
    let error = named("region-a/nobody").unwrap_err().to_string();
    let expected = "p:1: resigner: unknown node 'region-a/nobody'; declared: ";
    assert!(error.starts_with(expected), "{error}");
    assert!(named("broker-a").unwrap_err().to_string().starts_with("p:1: resigner: "));
}

#[test]
fn broken_toml_is_one_clear_line() {
    let text = Plan::parse("fabric = \n", "x.toml").unwrap_err().to_string();
    assert!(text.starts_with("x.toml:1: ") && !text.contains('\n'), "{text}");
}

#[test]
fn many_mistakes_come_at_once_in_order() {
    let text = "operator = 1\nleaf_days = 0\n[[tenant]]\nid = \"a b\"\n[[edge]]\nname = \"e\"\n";
    let error = Plan::parse(text, "p").unwrap_err();
    let lines: Vec<(usize, &str)> = error.problems.iter().map(|p| (p.line, p.key.as_str())).collect();
    let expected = [
        (1, "fabric"),
        (1, "operator"),
        (2, "leaf_days"),
        (3, "tenant[0].regions"),
        (4, "tenant[0].id"),
        (5, "edge[0].dial"),
        (5, "edge[0].accept"),
        (5, "edge[0].tenants"),
    ];
    assert_eq!(lines.len(), expected.len(), "{error}");
    for wanted in expected {
        assert!(lines.contains(&wanted), "{wanted:?} in {error}");
    }
}

#[test]
fn two_brokers_of_one_machine_need_different_ports() {
    let text = "fabric = \"f\"\noperator = \"o\"\n[[region]]\nname = \"r\"\n\
                [[node]]\nname = \"r/a\"\nrole = \"region\"\n[[node]]\nname = \"r/b\"\nrole = \"global\"\n";
    let error = Plan::parse(text, "p").unwrap_err().to_string();
    let expected = "p:8: node[1].broker_port: port 32010 on 127.0.0.1 is also broker_port of node 'r/a'\n\
                    p:8: node[1].quic_port: port 32011 on 127.0.0.1 is also quic_port of node 'r/a'\n\
                    p:8: node[1].bridge_port: port 32010 on 127.0.0.1 is also bridge_port of node 'r/a'";
    assert_eq!(error, expected);
    let free = text.replace("role = \"global\"", "role = \"global\"\nbroker_port = 0\nquic_port = 0\nbridge_port = 0");
    assert!(Plan::parse(&free, "p").is_ok());
}

#[test]
fn directories_of_nodes_are_unambiguous() {
    let text = "fabric = \"f\"\noperator = \"o\"\nregion = [{ name = \"a\" }, { name = \"a-b\" }]\n\
                [[node]]\nname = \"a/b-c\"\nrole = \"region\"\n\
                [[node]]\nname = \"a-b/c\"\nrole = \"region\"\nbroker_port = 0\nquic_port = 0\nbridge_port = 0\n";
    let error = Plan::parse(text, "p").unwrap_err().to_string();
    assert_eq!(error, "p:7: node[1].name: its directory 'nodes/a-b-c' is also that of node 'a/b-c'; rename one");
}

proptest::proptest! {
    /// Whatever is cut out of a plan or put into it, parsing answers, and a mistake has a line of the text.
    #[test]
    fn damaged_plans_never_panic(at in 0..GOOD.len(), cut in 0..40usize, put in "[\\PC\n]{0,12}") {
        let end = (at + cut).min(GOOD.len());
        let text = format!("{}{put}{}", &GOOD[..at], &GOOD[end..]);
        let lines = text.lines().count() + 1;
        if let Err(error) = Plan::parse(&text, "p") {
            proptest::prop_assert!(!error.problems.is_empty());
            proptest::prop_assert!(error.problems.iter().all(|p| (1..=lines).contains(&p.line)), "{}", error);
        }
    }
}
