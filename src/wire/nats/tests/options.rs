//! CONNECT, INFO and header blocks.

use crate::nats::{ConnectOptions, NatsError, ServerInfo, header_value};

use super::BytesMut;

fn parse(json: &str) -> Result<ConnectOptions, NatsError> {
    ConnectOptions::parse(json.as_bytes())
}

/// Checklist 6: nulls, unknown keys, defaults.
#[test]
fn absent_and_null_keys_have_their_defaults() {
    let default = ConnectOptions::default();
    assert!(default.verbose && default.pedantic && default.echo);
    assert!(!default.headers && !default.no_responders && default.protocol == 0);
    for json in [
        "{}",
        r#" { "verbose" : null, "pedantic":null, "echo":null, "headers":null, "no_responders":null } "#,
        r#"{"protocol":null,"name":null,"lang":null,"version":null,"tls_required":null}"#,
        r#"{"jwt":null,"nkey":null,"sig":null,"user":null,"pass":null,"auth_token":null}"#,
        r#"{"unknown":[{"deep":[1,-2.5e3,"x",true,null]}],"":{}}"#,
    ] {
        assert_eq!(parse(json), Ok(default.clone()), "{json}");
    }
}

#[test]
fn known_keys_are_read_and_the_last_of_equal_ones_counts() {
    let options = parse(
        r#"{"verbose":false,"pedantic":false,"echo":false,"headers":true,"no_responders":true,"tls_required":true,
            "protocol":1,"name":"a \u00e9","lang":"rust","version":"0.51.0","verbose":true,"verbose":null}"#,
    );
    let wanted = ConnectOptions {
        verbose: true,
        pedantic: false,
        echo: false,
        headers: true,
        no_responders: true,
        tls_required: true,
        protocol: 1,
        name: "a é".to_owned(),
        lang: "rust".to_owned(),
        version: "0.51.0".to_owned(),
    };
    assert_eq!(options, Ok(wanted.clone()));
    assert_eq!(ConnectOptions::parse(&wanted.to_json()), Ok(wanted));
}

#[test]
fn credentials_are_not_kept() {
    let json = r#"{"user":"hunter2","pass":"hunter2","auth_token":"hunter2","jwt":"hunter2","nkey":"hunter2","sig":"hunter2"}"#;
    let options = parse(json).unwrap();
    assert_eq!(options, ConnectOptions::default());
    assert!(!format!("{options:?}").contains("hunter2"));
}

/// Checklist 7.
#[test]
fn each_fault_of_connect_has_its_error() {
    for json in
        ["", "[]", "null", "1", "{", "{}x", r#"{"verbose":"yes"}"#, r#"{"protocol":"1"}"#, r#"{"protocol":1.5}"#]
    {
        assert_eq!(parse(json), Err(NatsError::BadConnect), "{json}");
    }
    assert_eq!(ConnectOptions::parse(b"{\"name\":\"\xff\"}"), Err(NatsError::BadConnect));
    for protocol in [2, -1, 256, 1 << 40] {
        let error = NatsError::ClientProtocol(protocol);
        assert_eq!(parse(&format!(r#"{{"protocol":{protocol}}}"#)), Err(error.clone()));
        assert_eq!(error.refusal().text(), "invalid client protocol");
        assert!(error.refusal().closes());
    }
    for headers in ["", r#","headers":false"#, r#","headers":null"#] {
        let error = parse(&format!(r#"{{"no_responders":true{headers}}}"#)).unwrap_err();
        assert_eq!(error, NatsError::NoRespondersWithoutHeaders);
        assert_eq!(error.refusal().text(), "no responders requires headers support");
    }
}

#[test]
fn nesting_as_deep_as_a_line_allows_is_read_over_or_refused() {
    let deep = format!(r#"{{"x":{}{}}}"#, "[".repeat(2_000), "]".repeat(2_000));
    assert!(matches!(parse(&deep), Ok(_) | Err(NatsError::BadConnect)));
}

#[test]
fn labels_are_cut_at_a_character() {
    let options = parse(&format!(r#"{{"name":"x{}"}}"#, "é".repeat(100))).unwrap();
    assert_eq!(options.name, format!("x{}", "é".repeat(63)));
}

#[test]
fn info_says_only_what_there_is() {
    let info = ServerInfo {
        server_id: "ID".to_owned(),
        server_name: "region-a/\"broker\"".to_owned(),
        version: "2.10.26".to_owned(),
        go: "rust".to_owned(),
        host: "127.0.0.1".to_owned(),
        port: 4222,
        headers: true,
        max_payload: 1_048_576,
        proto: 1,
        tls_required: true,
        tls_verify: true,
        client_id: u64::MAX,
        client_ip: String::new(),
        jetstream: false,
        connect_urls: Vec::new(),
        ldm: false,
    };
    let json = |info: &ServerInfo| {
        let mut out = BytesMut::new();
        info.encode_into(&mut out).unwrap();
        assert_eq!(out.iter().filter(|byte| **byte == b'\n').count(), 1);
        let json = out.strip_prefix(b"INFO ").unwrap().strip_suffix(b"\r\n").unwrap();
        serde_json::from_slice::<serde_json::Value>(json).unwrap()
    };
    let first = json(&info);
    assert_eq!(first["client_id"].as_u64(), Some((1 << 53) - 1));
    assert_eq!(first["server_name"], "region-a/\"broker\"");
    for absent in ["nonce", "auth_required", "jetstream", "connect_urls", "ldm", "client_ip"] {
        assert!(first.get(absent).is_none(), "{absent}");
    }
    let more = json(&ServerInfo {
        connect_urls: vec!["h:4222".to_owned()],
        ldm: true,
        jetstream: true,
        client_ip: "::1".to_owned(),
        ..info
    });
    assert_eq!(more["connect_urls"][0], "h:4222");
    assert!(more["ldm"] == true && more["jetstream"] == true && more["client_ip"] == "::1");
}

#[test]
fn header_values_are_found_as_nats_finds_them() {
    let class =
        |block: &'static str| header_value(block.as_bytes(), b"Glocal-Class").map(|v| str::from_utf8(v).unwrap());
    for (block, value) in [
        ("NATS/1.0\r\nGlocal-Class: bulk\r\n\r\n", Some("bulk")),
        ("NATS/1.0\r\nGlocal-Class:bulk\r\n\r\n", Some("bulk")),
        ("NATS/1.0\r\nGlocal-Class:   bulk \r\n\r\n", Some("bulk ")),
        ("NATS/1.0\r\nGlocal-Class:\r\n\r\n", Some("")),
        ("NATS/1.0\r\na: b\r\nGlocal-Class: ctrl\r\nGlocal-Class: bulk\r\n\r\n", Some("ctrl")),
        ("NATS/1.0 503 text\r\nGlocal-Class: tele\r\n\r\n", Some("tele")),
        ("NATS/1.0\r\nGlocal-Class: a\rb\r\n\r\n", Some("a\rb")),
        ("NATS/1.0\r\nGlocal-Class: cut", Some("cut")),
        ("NATS/1.0\r\nglocal-class: bulk\r\n\r\n", None),
        ("NATS/1.0\r\nGlocal-Class : bulk\r\n\r\n", None),
        ("NATS/1.0\r\n Glocal-Class: bulk\r\n\r\n", None),
        ("NATS/1.0\r\nX-Glocal-Class: bulk\r\n\r\n", None),
        ("NATS/1.0\r\na: Glocal-Class: bulk\r\n\r\n", None),
        ("NATS/1.0\nGlocal-Class: bulk\n\n", None),
        ("Glocal-Class: bulk\r\n\r\n", None),
        ("NATS/1.0\r\n\r\n", None),
        ("\r\n", None),
        ("", None),
    ] {
        assert_eq!(class(block), value, "{block:?}");
    }
}
