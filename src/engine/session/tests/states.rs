//! Every control kind and every data kind, before and after hello (attacks 3, 18; RB-19, RB-58).

use glocal_wire::control::{EdgeCut, PresenceRoot, PresenceSum, Tallied, Tally, Unserved};

use super::*;

/// One body of every control kind.
fn every_control() -> Vec<Control> {
    let text = String::new;
    let sum = InterestSum { digest: 1, count: 0 };
    let all: Vec<Control> = vec![
        hello(true),
        Welcome {
            version: 1,
            features: 0,
            node: "r/n".into(),
            session: 1,
            tenant: "tenantA".into(),
            role: "SUPERUSER".into(),
            region: None,
            agent: None,
            uid: text(),
            max_payload: 1,
            inbox: "_INBOX.x.".into(),
        }
        .into(),
        subscribe(1, "a.b"),
        Subscribed { sid: 1 }.into(),
        Unsubscribe { sid: 1, max: None }.into(),
        Denied { access: 0, id: 0, subject: text(), code: "x".into(), text: text(), retry_after_ms: None }.into(),
        Ack { seq: 1, targets: 1 }.into(),
        NoResponders { seq: 1, subject: "a".into(), reply: "b".into() }.into(),
        Ping { token: 5 }.into(),
        Pong { token: 5 }.into(),
        Goodbye { code: "x".into(), text: text(), grace_ms: 0 }.into(),
        Error { code: "x".into(), text: text() }.into(),
        BridgeHello {
            versions: vec![1],
            features: 0,
            fabric: "demo".into(),
            node: "region-a/a".into(),
            incarnation: 1,
            edge: "a-global".into(),
            dial: 1,
            max_payload: 65_536,
            tenant_id_form: 0,
            bundle_epoch: 1,
            bundle_version: 1,
        }
        .into(),
        AllowedSet { macs: vec![[1; 16]], last: true }.into(),
        Ready { tenants: 1 }.into(),
        Probe { id: 1 }.into(),
        ProbeAck { id: 1 }.into(),
        BridgeError { code: "x".into(), text: text() }.into(),
        TenantAttach { edge: "e".into(), incarnation: 1, dial: 1, number: 1, tenant: [1; 16], proof: [1; 32] }.into(),
        TenantAttached { number: 1 }.into(),
        AnnounceBroker { handle: 1, node: "region-a/a".into(), incarnation: 1 }.into(),
        AnnounceSender { handle: 1, session: 1, tenant: "tenantB".into(), region: None, agent: None, uid: text() }
            .into(),
        Interest { origin: 1, seq: 1, add: true, filter: ">".into(), classes: 15, queue: None, observer: false }.into(),
        InterestSync { origin: 1, seq: 1, reset: true, last: false }.into(),
        NoMember { target: 1, origin: 1, seq: 1, group: None }.into(),
        ForgetHandles { count: 1 }.into(),
        Routed { target: 1, origin: 1, hops: 1, kind: 0x1c, body: vec![1, 1, 1, 0] }.into(),
        LinkPropose { epoch: 1, metric: 0 }.into(),
        LinkAgree { epoch: 1, incarnation: 1, signature: [0; 64] }.into(),
        LinkKey { node: "r/n".into(), incarnation: 1, key: [0; 32], chain: vec![vec![0]], signature: vec![0] }.into(),
        LinkUp { edge: "e".into(), epoch: 1, revision: 0, cost: 1, incarnations: [1, 1], signatures: [[0; 64]; 2] }
            .into(),
        LinkDown { edge: "e".into(), epoch: 1, by: 0, incarnation: 1, signature: [0; 64] }.into(),
        LinkDigest { root: 1, buckets: vec![], answer: false }.into(),
        LinkObserver { node: "r/n".into(), incarnation: 1, seq: 1, present: true, signature: [0; 64] }.into(),
        PresenceRoot { root: 1 }.into(),
        Delivered { class: 1, incarnation: 1, through: 1, gap: false }.into(),
        Overflowed { class: 1, incarnation: 1, seq: 1 }.into(),
        Memberless { class: 1, incarnation: 1, seq: 1, group: "g".into() }.into(),
        Tally { class: 0, incarnation: 1, copies: 1 }.into(),
        Tallied { class: 0, incarnation: 1, copies: 1, received: 1 }.into(),
        Unserved { class: 0, incarnation: 1, session: 1, seq: 1, groups: vec!["g".into()], plain: false }.into(),
        AllowedUpdate { generation: 1, epoch: 1, version: 2, macs: vec![[1; 16]], last: true }.into(),
        AllowedApplied { generation: 1 }.into(),
        BundleNews { epoch: 1, version: 2, digest: [1; 32] }.into(),
        SectionOffer { digests: vec![[1; 32]] }.into(),
        BundleGet { digests: vec![[1; 32]] }.into(),
        BundlePart { digest: [1; 32], total: 1, offset: 0, bytes: vec![1] }.into(),
        PathProbeAck { id: 1 }.into(),
        Presence { origin: 1, incarnation: 1, seq: 1, present: true }.into(),
        PresenceEnd { told: 0 }.into(),
        InterestPull { stream: 1, taken: 0, have: sum, end: false }.into(),
        InterestNews { stream: 1, number: 0, start: 1, changes: vec![], complete: Some(sum) }.into(),
        EdgeCut { origin: 1, incarnation: 1, seq: 1, edge: "e".into(), cut: true }.into(),
        PresenceSum { digest: 1 }.into(),
    ];
    let kinds: Vec<u8> = all.iter().map(Control::kind).collect();
    assert_eq!(kinds, Control::KINDS, "every kind, in order");
    all
}

fn relay_frame() -> BytesMut {
    let targets: &[(u32, &[&str])] = &[(0, &[])];
    let (name, reply, payload, steps) = ("x", "", &b"p"[..], &[]);
    Relayed { class: Class::Live, hops: 1, seq: 1, origin: 1, sender: 1, targets, name, reply, payload, steps }.encode()
}

fn deliver_frame() -> BytesMut {
    use glocal_wire::data::DataHead;
    let mut out = BytesMut::new();
    DataHead::new(DataKind::Deliver, Some(Class::Live)).encode_into(&mut out, &[], b"x", b"", b"", b"p").unwrap();
    out
}

/// Feeds one frame to a session and asserts that it ends without any effect.
fn refused(node: &Node, client: &mut Client, bytes: &[u8], what: &str) {
    let mut effects = Effects::default();
    let before = (counted(node, "tenantA"), counted(node, "tenantB"), node.driver.control().subscriptions());
    let end = client.session.on_bytes(bytes, NOW, &mut effects);
    assert!(end.is_err(), "{what}: {end:?}");
    assert!(effects.commands.is_empty() && effects.batch.is_empty() && effects.replies.is_empty(), "{what}");
    assert!(effects.denials.is_empty() && effects.allowances.is_empty(), "{what}");
    let after = (counted(node, "tenantA"), counted(node, "tenantB"), node.driver.control().subscriptions());
    assert_eq!(before, after, "{what}");
    let mut out = BytesMut::new();
    client.session.reproach(&end.unwrap_err(), &mut out);
    assert!(matches!(&parse(&out)[..], [Got::Control(Control::Error(_))]), "{what}");
}

#[test]
fn before_hello_everything_but_a_hello_ends_the_session() {
    let node = Node::new(1);
    for control in every_control() {
        let mut client = node.connect("tenantA", "a", Role::Tenant);
        if matches!(control, Control::Hello(_)) {
            continue;
        }
        refused(&node, &mut client, &encode(&control), control.name());
        assert!(client.session.port().is_none());
    }
    let frames = [publish(None, None, "x", "", b"p"), deliver_frame(), relay_frame()];
    for (frame, what) in frames.iter().zip(["publish", "deliver", "relay"]) {
        refused(&node, &mut node.connect("tenantA", "a", Role::Tenant), frame, what);
    }
    for kind in [0x00, 0x0d, 0x16, 0x1f, 0x20, 0x3f, 0x43, 0xff] {
        let frame = [4, 0, 0, 0, kind, 0, 0, 0];
        refused(&node, &mut node.connect("tenantA", "a", Role::Tenant), &frame, &format!("kind {kind:#x}"));
    }
}

#[test]
fn after_hello_only_a_clients_frames_are_taken() {
    let mut node = Node::new(1);
    for control in every_control() {
        let mut client = node.client("tenantA", "a");
        match control {
            Control::Subscribe(_) | Control::Unsubscribe(_) | Control::Ping(_) | Control::Pong(_) => {
                client.feed(&mut node, &encode(&control)).unwrap();
            }
            // A second hello changes nothing either.
            other => refused(&node, &mut client, &encode(&other), other.name()),
        }
    }
    for (frame, what) in [deliver_frame(), relay_frame()].iter().zip(["deliver", "relay"]) {
        let mut client = node.client("tenantA", "a");
        refused(&node, &mut client, frame, what);
    }
    let mut client = node.client("tenantA", "a");
    let skipped = client.send(&mut node, &[4, 0, 0, 0, 0x3e, 0, 0, 0]);
    assert!(skipped.is_empty(), "kinds of a later release are passed over");
    for kind in [0x00, 0x0d, 0x16, 0x1e, 0x43, 0xff] {
        let mut client = node.client("tenantA", "a");
        let frame = [16, 0, 0, 0, kind, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        refused(&node, &mut client, &frame, &format!("kind {kind:#x}"));
    }
}

#[test]
fn nothing_big_is_believed_before_hello() {
    let node = Node::new(1);
    for len in [u32::MAX, 1 << 31, 16 << 20, 5 << 10] {
        let mut frame = encode(&hello(true));
        frame[..4].copy_from_slice(&len.to_le_bytes());
        refused(&node, &mut node.connect("tenantA", "a", Role::Tenant), &frame, &format!("length {len}"));
    }
    let mut client = node.connect("tenantA", "a", Role::Tenant);
    let whole = encode(&hello(true));
    let mut effects = Effects::default();
    for end in 0..whole.len() {
        assert_eq!(client.session.on_bytes(&whole[..end], NOW, &mut effects), Ok(0), "{end} bytes are no frame yet");
    }
    assert_eq!(client.session.on_bytes(&whole, NOW, &mut effects), Ok(whole.len()));
}

#[test]
fn hellos_without_a_common_version_or_tenant_end_the_session() {
    let node = Node::new(1);
    let hello = Hello { versions: vec![99], features: 0, client: String::new(), default_class: 0, echo: true };
    let mut client = node.connect("tenantA", "a", Role::Tenant);
    let end = client.session.on_bytes(&encode(&hello.into()), NOW, &mut Effects::default());
    assert_eq!(end, Err(SessionEnd::Version));
    let mut client = node.connect("nobody", "a", Role::Tenant);
    let end = client.session.on_bytes(&encode(&super::hello(true)), NOW, &mut Effects::default());
    assert_eq!(end, Err(SessionEnd::UnknownTenant));
}

#[test]
fn a_welcome_tells_the_certificates_identity() {
    let mut node = Node::new(1);
    let mut client = node.connect("tenantA", "alice", Role::Tenant);
    let got = client.say(&mut node, hello(true));
    let [Got::Control(Control::Welcome(welcome))] = &got[..] else { panic!("{got:?}") };
    assert_eq!((welcome.tenant.as_str(), welcome.role.as_str()), ("tenantA", "TENANT"));
    assert_eq!(welcome.inbox, "_INBOX.000000000000abcd.");
    let mut owner = node.connect("private", "alice", Role::Tenant);
    let got = owner.say(&mut node, hello(true));
    let [Got::Control(Control::Welcome(welcome))] = &got[..] else { panic!("{got:?}") };
    assert_eq!(welcome.inbox, "_INBOX.region-a.alice.");
}
