//! Tests of NATS sessions, beside native ones on the same broker.

use glocal_core::identity::Role;
use glocal_core::sched::Drops;

use super::*;
use crate::testing::{Got, NOW, Node, messages, principal, subscribe};

mod again;
mod rates;

struct Nats {
    session: NatsSession,
    effects: Effects,
    buffer: BytesMut,
}

impl Nats {
    fn new(node: &Node, tenant: &str, agent: &str, tls_first: bool) -> Self {
        let role = if tenant == "cresco-system" { Role::Superuser } else { Role::Tenant };
        let listening = Listening { host: "127.0.0.1".to_owned(), port: 4222 };
        let info = info(&node.shared, &listening, 5, "127.0.0.1");
        let session = NatsSession::new(Arc::clone(&node.shared), principal(tenant, agent, role), info, tls_first, NOW);
        Self { session, effects: Effects::default(), buffer: BytesMut::new() }
    }

    /// A client that has connected with these options.
    fn connected(node: &mut Node, tenant: &str, agent: &str, options: &str) -> Self {
        let mut client = Self::new(node, tenant, agent, false);
        assert_eq!(client.say(node, &format!("CONNECT {options}\r\nPING\r\n")), "PONG\r\n");
        client
    }

    fn quiet(node: &mut Node, tenant: &str, agent: &str) -> Self {
        Self::connected(
            node,
            tenant,
            agent,
            r#"{"verbose":false,"pedantic":false,"headers":true,"no_responders":true}"#,
        )
    }

    fn feed(&mut self, node: &mut Node, text: &str) -> Result<(), NatsEnd> {
        self.buffer.extend_from_slice(text.as_bytes());
        loop {
            let used = self.session.on_bytes(&self.buffer, NOW, &mut self.effects)?;
            let waiting = !self.effects.commands.is_empty();
            let _ = self.buffer.split_to(used);
            self.effects.batch.flush(&node.shared, NOW);
            for command in self.effects.commands.drain(..) {
                node.driver.apply(command);
            }
            node.driver.commit(NOW);
            if !waiting || self.buffer.is_empty() {
                return Ok(());
            }
        }
    }

    fn say(&mut self, node: &mut Node, text: &str) -> String {
        self.feed(node, text).unwrap();
        self.read()
    }

    fn read(&mut self) -> String {
        let mut bytes = self.effects.replies.split().to_vec();
        if let Some(port) = self.session.port() {
            let mut parts = Vec::new();
            port.inbox().with(|lanes| lanes.fill(usize::MAX, NOW, &mut parts, &mut Drops::new()));
            parts.iter().for_each(|part| bytes.extend_from_slice(part));
        }
        String::from_utf8(bytes).unwrap()
    }
}

#[test]
fn info_is_said_inside_tls_only_where_it_was_not_said_before() {
    let node = Node::new(1);
    let mut out = BytesMut::new();
    Nats::new(&node, "tenantA", "alice", false).session.greet(&mut out);
    assert!(out.is_empty());
    Nats::new(&node, "tenantA", "alice", true).session.greet(&mut out);
    assert!(out.starts_with(b"INFO {") && out.ends_with(b"}\r\n"));
}

#[test]
fn how_much_an_incomplete_operation_needs_is_known_from_its_line_on() {
    let mut node = Node::new(1);
    let mut a = Nats::quiet(&mut node, "tenantA", "alice");
    a.say(&mut node, "SUB orders 7\r\n");
    assert!(a.effects.needs < 100, "nothing is known of what comes next");
    let operation = format!("HPUB orders 12 60012\r\nNATS/1.0\r\n\r\n{}\r\n", "x".repeat(60_000));
    a.say(&mut node, &operation[..30_000]);
    assert_eq!(a.effects.needs, operation.len());
    assert_eq!(a.say(&mut node, &operation[30_000..]).matches('x').count(), 60_000);
    assert!(a.effects.needs < 100);
}

#[test]
fn subjects_are_the_tenants_own() {
    let mut node = Node::new(1);
    let mut a = Nats::quiet(&mut node, "tenantA", "alice");
    let mut b = Nats::quiet(&mut node, "tenantB", "bob");
    let mut native = node.client("tenantA", "carol");
    assert_eq!(a.say(&mut node, "SUB orders.* 7\r\n"), "");
    b.say(&mut node, "SUB orders.* 7\r\n");
    native.say(&mut node, subscribe(1, "orders.>"));
    assert_eq!(a.say(&mut node, "PUB orders.new 5\r\nhello\r\n"), "MSG orders.new 7 5\r\nhello\r\n");
    assert_eq!(messages(&native.read()), ["orders.new=hello"]);
    native.publish(&mut node, "orders.old", b"x");
    assert_eq!(a.read(), "MSG orders.old 7 1\r\nx\r\n");
    assert_eq!(b.read(), "", "another tenant's same subject is another subject");
    assert_eq!(
        a.say(&mut node, "SUB T.tenantA.> q\r\nPUB T.tenantA.bulk.x 0\r\n\r\n"),
        "MSG T.tenantA.bulk.x q 0\r\n\r\n"
    );
}

#[test]
fn other_tenants_are_refused_and_the_session_stays_open() {
    let mut node = Node::new(1);
    let mut a = Nats::quiet(&mut node, "tenantA", "alice");
    let text = "cross-tenant namespaced dest (own tenant \\'tenantA\\')";
    assert_eq!(
        a.say(&mut node, "PUB T.tenantB.live.x 1\r\nx\r\n"),
        format!("-ERR 'Permissions Violation for Publish to \"T.tenantB.live.x\": {text}'\r\n")
    );
    assert_eq!(
        a.say(&mut node, "SUB T.tenantB.> g 1\r\n"),
        format!("-ERR 'Permissions Violation for Subscription to \"T.tenantB.>\" using queue \"g\": {text}'\r\n")
    );
    assert!(a.say(&mut node, "SUB T.*.> 2\r\n").starts_with("-ERR 'Permissions Violation"));
    assert!(
        a.say(&mut node, "PUB a T.tenantB.live.r 0\r\n\r\n").starts_with("-ERR 'Permissions Violation for Publish")
    );
    assert!(a.say(&mut node, "PUB a..b 0\r\n\r\n").contains("malformed destination"));
    assert_eq!(a.effects.denials.len(), 5);
    assert_eq!(a.say(&mut node, "PING\r\n"), "PONG\r\n");
}

#[test]
fn what_connect_claims_grants_nothing() {
    let mut node = Node::new(1);
    let claims = r#"{"verbose":false,"user":"cresco-system","pass":"x","auth_token":"t","jwt":"j","nkey":"k","sig":"s","tenant":"tenantB","role":"SUPERUSER"}"#;
    let mut a = Nats::connected(&mut node, "tenantA", "alice", claims);
    assert!(a.say(&mut node, "SUB T.tenantB.> 1\r\n").starts_with("-ERR 'Permissions Violation"));
    let mut early = Nats::new(&node, "tenantA", "alice", false);
    assert!(early.feed(&mut node, "SUB a 1\r\n").is_err(), "nothing before CONNECT");
    let mut twice = Nats::quiet(&mut node, "tenantA", "alice");
    assert!(twice.feed(&mut node, "CONNECT {}\r\n").is_err());
}

#[test]
fn pong_comes_after_the_messages_before_it() {
    let mut node = Node::new(1);
    let mut a = Nats::quiet(&mut node, "tenantA", "alice");
    let got = a.say(&mut node, "SUB x 1\r\nPUB x 1\r\n1\r\nPUB x 1\r\n2\r\nPING\r\n");
    assert_eq!(got, "MSG x 1 1\r\n1\r\nMSG x 1 1\r\n2\r\nPONG\r\n");
}

#[test]
fn verbose_clients_are_told_ok() {
    let mut node = Node::new(1);
    let mut a = Nats::new(&node, "tenantA", "alice", false);
    assert_eq!(a.say(&mut node, "CONNECT {}\r\nSUB x 1\r\nPUB y 0\r\n\r\nUNSUB 1\r\n"), "+OK\r\n+OK\r\n+OK\r\n+OK\r\n");
    assert_eq!(a.say(&mut node, "PUB a.* 0\r\n\r\n"), "-ERR 'Invalid Publish Subject'\r\n", "pedantic by default");
}

#[test]
fn requests_find_responders_or_are_told_at_once() {
    let mut node = Node::new(1);
    node.up(0, 0);
    node.driver.apply(Command::Settle);
    node.driver.commit(NOW);
    let mut a = Nats::quiet(&mut node, "tenantA", "alice");
    let mut b = node.client("tenantA", "carol");
    a.say(&mut node, "SUB _INBOX.q.* 0\r\n");
    let head = "NATS/1.0 503\r\nNats-Subject: svc\r\n\r\n";
    assert_eq!(
        a.say(&mut node, "PUB svc _INBOX.q.1 0\r\n\r\n"),
        format!("HMSG _INBOX.q.1 0 {0} {0}\r\n{head}\r\n", head.len())
    );
    b.say(&mut node, subscribe(1, "svc"));
    assert_eq!(a.say(&mut node, "PUB svc _INBOX.q.2 2\r\nhi\r\n"), "");
    assert!(matches!(&b.read()[..], [Got::Message { reply, .. }] if reply == "_INBOX.q.2"));
    b.publish(&mut node, "_INBOX.q.2", b"re");
    assert_eq!(a.read(), "MSG _INBOX.q.2 0 2\r\nre\r\n");
}

#[test]
fn a_class_may_be_asked_for_by_header() {
    let mut node = Node::new(1);
    let mut a = Nats::quiet(&mut node, "tenantA", "alice");
    let mut native = node.client("tenantA", "carol");
    native.say(&mut node, subscribe(1, "T.tenantA.bulk.x"));
    let block = "NATS/1.0\r\nGlocal-Class: bulk\r\n\r\n";
    a.say(&mut node, &format!("HPUB x {} {}\r\n{block}p\r\n", block.len(), block.len() + 1));
    assert_eq!(messages(&native.read()), ["T.tenantA.bulk.x=p"]);
    let bad = block.replace("bulk", "fast");
    let answer = a.say(&mut node, &format!("HPUB x {} {}\r\n{bad}p\r\n", bad.len(), bad.len() + 1));
    assert!(answer.contains("unknown class"), "{answer}");
}

#[test]
fn headers_that_no_broker_could_carry_are_refused_at_once() {
    let mut node = Node::new(1);
    let mut a = Nats::quiet(&mut node, "tenantA", "alice");
    let block = format!("NATS/1.0\r\nX: {}\r\n\r\n", "x".repeat(HEADERS_BYTES_MAX));
    let answer = a.say(&mut node, &format!("HPUB x {} {}\r\n{block}\r\n", block.len(), block.len()));
    assert!(answer.contains("maximum payload exceeded"), "{answer}");
    assert_eq!(a.say(&mut node, "PING\r\n"), "PONG\r\n");
}

#[test]
fn subscriptions_end_when_told() {
    let mut node = Node::new(1);
    let mut a = Nats::quiet(&mut node, "tenantA", "alice");
    a.say(&mut node, "SUB x 1\r\nSUB x 1\r\nUNSUB 1 2\r\nUNSUB 99\r\n");
    let got = a.say(&mut node, "PUB x 1\r\n1\r\nPUB x 1\r\n2\r\nPUB x 1\r\n3\r\n");
    assert_eq!(got, "MSG x 1 1\r\n1\r\nMSG x 1 1\r\n2\r\n", "one subscription, two deliveries");
    let mut deaf = Nats::connected(&mut node, "tenantA", "dan", r#"{"verbose":false,"echo":false}"#);
    assert_eq!(deaf.say(&mut node, "SUB y 1\r\nPUB y 0\r\n\r\n"), "");
}

#[test]
fn the_caller_is_told_who_it_is_and_nothing_of_others() {
    let mut node = Node::new(1);
    let mut a = Nats::quiet(&mut node, "tenantA", "alice");
    let answer = a.say(&mut node, "SUB _INBOX.> 1\r\nPUB $SYS.REQ.USER.INFO _INBOX.u 0\r\n\r\n");
    assert!(answer.starts_with("MSG _INBOX.u 1 ") && answer.contains("\"tenant\":\"tenantA\""), "{answer}");
    assert!(answer.contains("\"role\":\"TENANT\"") && !answer.contains("tenantB"));
}

#[test]
fn advisories_are_read_under_their_alias() {
    let mut node = Node::new(1);
    let advisor = crate::advisory::Advisor::new(Arc::clone(&node.shared));
    let mut a = Nats::quiet(&mut node, "tenantA", "alice");
    a.say(&mut node, "SUB $ADV.> 1\r\n");
    let carol = principal("tenantA", "carol", Role::Tenant);
    let _ = advisor.tell(&carol, 1, &crate::advisory::Event::Connect, NOW);
    assert!(a.read().starts_with("MSG $ADV.connect.region-a.carol 1 "));
    assert!(
        a.say(&mut node, "PUB T.tenantA.ctrl.advisory.connect 0\r\n\r\n")
            .contains("advisories are written by the node")
    );
}
