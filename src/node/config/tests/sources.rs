//! Precedence, unknown and duplicate keys, suggestions, secrets, lines.

use super::*;

fn port(overrides: &[(&str, &str)], env: &[(&str, &str)], file: &str) -> u16 {
    compile_with(&format!("{BASE}{file}"), overrides, env).unwrap().config.native_tcp.port()
}

#[test]
fn the_strongest_source_wins() {
    let (d, g, c, f) =
        (("broker_port", "1"), ("GLOCAL_BROKER_PORT", "2"), ("CRESCO_BROKER_PORT", "3"), "broker_port = 4\n");
    assert_eq!(port(&[d], &[g, c], f), 1);
    assert_eq!(port(&[], &[c, g], f), 2);
    assert_eq!(port(&[], &[c], f), 3);
    assert_eq!(port(&[], &[], f), 4);
    assert_eq!(port(&[], &[], ""), 32010);
    assert_eq!(port(&[], &[("CRESCO_broker_port", "5")], ""), 5, "Cresco writes keys as they are");
}

#[test]
fn texts_take_the_type_of_their_key() {
    let env = [
        ("CRESCO_BROKER_SECURITY_LOG_ALLOW", "True"),
        ("GLOCAL_BROKER_SUPERUSER_TENANTS", "ops, root-org"),
        ("GLOCAL_OPS_LISTEN", "off"),
        ("GLOCAL_LAME_DUCK_MS", "10"),
        ("GLOCAL_STATE_DIR", "var"),
    ];
    let config = compile_with(BASE, &[("log_format", "json"), ("is_region", "false"), ("is_agent", "true")], &env);
    let config = config.unwrap().config;
    assert!(config.broker_security_log_allow);
    assert_eq!(config.broker_superuser_tenants.unwrap().len(), 2);
    assert_eq!((config.ops_listen, config.lame_duck_ms, config.role), (None, 10, NodeRole::Agent));
    assert_eq!(config.log_format, LogFormat::Json);
    assert_eq!(config.state_dir, Path::new("/etc/glocal/var"), "paths belong to the file's directory");
}

#[test]
fn every_error_comes_at_once_in_order() {
    let text = "regionname = \"a b\"\nbroker_prot = 1\nquic_port = 70000\nstate_dir = 5\n\
                [[edges]]\nname = \"up\"\npear = \"g/g\"\nlog_level = \"info\"\n[[edges]]\nname = \"up\"\npeer = \"x\"\n";
    let env = [("GLOCAL_RUNTIME_THREADS", "many"), ("GLOCAL_STATE", "x"), ("GLOCAL_LOG", "debug")];
    assert_eq!(
        errors(compile_with(text, &[("bridge_port", "-1"), ("color", "red")], &env)),
        [
            "node.toml:1: agentname: is missing; expected a name",
            "node.toml:1: is_region: one of is_global, is_region and is_agent must be true; none is",
            "node.toml:1: regionname: the string \"a b\" will not do: label is not of the form [A-Za-z0-9][A-Za-z0-9_-]{0,62}",
            "node.toml:2: broker_prot: unknown key; did you mean broker_port?",
            "node.toml:3: quic_port: expected an integer from 0 to 65535, found the integer 70000",
            "node.toml:4: state_dir: expected a path, found the integer 5",
            "node.toml:5: edges[0].peer: is missing; expected a node id <region>/<agent>",
            "node.toml:7: edges[0].pear: unknown key; did you mean peer?",
            "node.toml:8: edges[0].log_level: unknown key here; it is a key of the file itself, to be given before the \
             first [[edges]]",
            "node.toml:10: edges[1].name: \"up\" is the name of the edge on line 5, too",
            "node.toml:11: edges[1].peer: the string \"x\" is not a node id <region>/<agent> of two names",
            "environment GLOCAL_RUNTIME_THREADS: runtime_threads: expected an integer from 0 to 1024, found \"many\"",
            "environment GLOCAL_STATE: state: unknown key",
            "-D bridge_port: expected an integer from 0 to 65535, found \"-1\"",
            "-D color: unknown key",
        ]
    );
}

#[test]
fn duplicates_are_refused_at_every_depth() {
    let text = "broker_port = 1\nbroker_port = 2\n[[edges]]\nname = \"a\"\npeer = \"g/g\"\npeer = \"h/h\"\n\
                [[edges]]\nname = \"b\"\npeer = \"g/g\"\nname = \"c\"\n";
    assert_eq!(
        errors(with(text)),
        [
            "node.toml:5: broker_port: duplicate key, first given on line 4",
            "node.toml:9: edges[0].peer: duplicate key, first given on line 8",
            "node.toml:13: edges[1].name: duplicate key, first given on line 11",
        ]
    );
    assert_eq!(
        errors(compile_with(BASE, &[("log_level", "warn"), ("log_level", "info")], &[])),
        ["-D log_level: is given twice"]
    );
    let twice = [("GLOCAL_LOG_LEVEL", "warn"), ("GLOCAL_log_level", "info")];
    assert_eq!(
        errors(compile_with(BASE, &[], &twice)),
        ["environment GLOCAL_log_level: log_level: is given twice, in different case"]
    );
}

#[test]
fn unknown_keys_are_refused_at_every_depth() {
    assert_eq!(errors(with("[broker]\nport = 1\n")), ["node.toml:4: broker: unknown key"]);
    assert_eq!(
        errors(with("broker_port.x = 1\n")),
        ["node.toml:4: broker_port: expected an integer from 0 to 65535, found a table"]
    );
    assert_eq!(errors(with("peer = \"a/b\"\n")), ["node.toml:4: peer: unknown key here; it is a key of [[edges]]"]);
    assert_eq!(
        errors(with("edges = [{name = \"a\", peer = \"b/c\", class = {x = 1}}]\n")),
        ["node.toml:4: edges[0].class: unknown key"]
    );
    let noted = compile_with(BASE, &[], &[("CRESCO_JAVA_HOME", "x")]).unwrap();
    assert_eq!(noted.notes[0].to_string(), "environment CRESCO_JAVA_HOME: is no key of this program; not used");
    assert!(compile_with(BASE, &[], &[("PATH", "x"), ("GLOCAL_CONTEXT", "y")]).unwrap().notes.is_empty());
}

#[test]
fn a_replaced_value_in_the_file_is_still_checked() {
    let result = compile_with(&format!("{BASE}broker_port = \"x\"\n"), &[("broker_port", "1")], &[]);
    assert_eq!(
        errors(result),
        ["node.toml:4: broker_port: expected an integer from 0 to 65535, found the string \"x\""]
    );
}

#[test]
fn broken_toml_gives_its_syntax_errors() {
    let lines = errors(with("broker_port = \nstate_dir = \"x\nlog_level = \"warn\"\n"));
    assert!(lines.len() >= 2, "{lines:?}");
    assert!(lines.iter().all(|line| line.contains(": not TOML: ")), "{lines:?}");
    assert!(lines[0].starts_with("node.toml:4: "), "{lines:?}");
}

#[test]
fn secrets_are_never_shown() {
    const PEM: &str = "-----BEGIN PRIVATE KEY-----\\nhush\\n-----END PRIVATE KEY-----";
    let config = with(&format!("node_key = \"{PEM}\"\n")).unwrap().config;
    assert!(!format!("{config:?}").contains("hush"));
    assert!(config.node_key.read().unwrap().reveal().contains("hush"));
    let config = with("node_key_file = \"secret/key.pem\"\n").unwrap().config;
    assert_eq!(config.node_key.path(), Some(Path::new("/etc/glocal/secret/key.pem")));
    for text in [
        "node_key = [\"hush\"]\n".to_owned(),
        format!("node_key_file = \"{PEM}\"\n"),
        format!("node_key = \"{PEM}\"\nnode_key = \"hush\"\n"),
        format!("node_key = \"{PEM}\nhush"),
    ] {
        let lines = errors(with(&text));
        assert!(!lines.is_empty() && lines.iter().all(|line| !line.contains("hush")), "{lines:?}");
    }
    assert_eq!(
        errors(with("node_key = \"a\"\nnode_key_file = \"b\"\n")),
        ["node.toml:5: node_key_file: is given together with node_key; keep one"]
    );
    let stronger = compile_with(&format!("{BASE}node_key = \"a\"\n"), &[], &[("GLOCAL_NODE_KEY_FILE", "b")]).unwrap();
    assert_eq!(stronger.config.node_key.path(), Some(Path::new("/etc/glocal/b")), "one source replaces another");
}

#[test]
fn what_was_found_is_escaped_and_cut() {
    let long = "x".repeat(200);
    let lines = errors(with(&format!("tenant_id = \"\\u001b[31m{long}\"\n")));
    assert!(lines[0].contains("\\u{1b}[31mxxx") && lines[0].contains('…') && lines[0].len() < 250, "{lines:?}");
}

#[test]
fn edges_belong_to_the_file() {
    assert_eq!(errors(compile_with(BASE, &[("edges", "x")], &[])), ["-D edges: can only be given in the file"]);
    assert_eq!(
        errors(with("[edges]\nname = \"a\"\n")),
        ["node.toml:4: edges: expected tables, [[edges]], found a table"]
    );
    assert_eq!(
        errors(with("[[edges]]\nname = \"up\"\npeer = \"region-a/broker\"\n")),
        ["node.toml:6: edges[0].peer: is this node itself"]
    );
}

#[test]
fn nesting_is_bounded() {
    for open in ["[", "{a=", "[{a=["] {
        assert!(!errors(with(&format!("x = {}", open.repeat(200_000)))).is_empty(), "no stack is deep enough for this");
    }
}

proptest::proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "(?s).{0,200}", key in "[a-z_]{1,20}") {
        let _ = compile_with(&text, &[(key.as_str(), text.as_str())], &[("GLOCAL_NODE_KEY", text.as_str())]);
    }

    #[test]
    fn no_mixture_of_lines_makes_it_panic(picks in proptest::collection::vec((0..KEYS.len(), 0usize..8), 0..12)) {
        let values = ["true", "7", "\"a\"", "[\"a\", 1]", "{ x = 1 }", "", "\"", "[["];
        let text: String = picks
            .iter()
            .map(|(key, value)| match value {
                0 => "[[edges]]\n".to_owned(),
                value => format!("{} = {}\n", KEYS[*key].name, values[*value]),
            })
            .collect();
        let result = compile_with(&text, &[], &[]);
        if let Err(errors) = result {
            proptest::prop_assert!(!errors.problems().is_empty());
        }
    }

    #[test]
    fn a_suggestion_is_a_known_key(word in "[a-z_]{0,40}") {
        if let Some(near) = super::super::walk::suggest(&word, KEYS.iter().map(|key| key.name)) {
            proptest::prop_assert!(KEYS.iter().any(|key| key.name == near));
        }
    }
}
