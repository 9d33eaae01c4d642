//! The bytes of every frame, body and slice, held against `golden/v1.txt`: `name hex` lines.
//!
//! A difference means that this release and the last cannot be neighbours: a changed body is a new kind. Lines are only
//! ever added; run the test with `GLOCAL_GOLDEN_WRITE=1` to write the file after adding one.

use bytes::{Bytes, BytesMut};
use glocal_core::name::Class;

use crate::control::{
    Ack, AllowedApplied, AllowedSet, AllowedUpdate, AnnounceBroker, AnnounceSender, BridgeError, BridgeHello,
    BundleGet, BundleNews, BundlePart, Control, Delivered, Denied, EdgeCut, Error, FEATURE_DEDICATED, ForgetHandles,
    Goodbye, Hello, Interest, InterestChange, InterestNews, InterestPull, InterestSum, InterestSync, LinkAgree,
    LinkDigest, LinkDown, LinkKey, LinkObserver, LinkPropose, LinkUp, Memberless, NoMember, NoResponders, Overflowed,
    PathProbeAck, Ping, Pong, Presence, PresenceEnd, PresenceRoot, PresenceSum, Probe, ProbeAck, Ready, Routed,
    SectionOffer, Subscribe, Subscribed, Tallied, Tally, TenantAttach, TenantAttached, Unserved, Unsubscribe, Welcome,
};
use crate::data::{DataFrame, DataHead, DataKind};
use crate::ext::ExtBuilder;
use crate::frame::{FrameLimits, Next, next_frame};
use crate::slice::{OpenHeader, SliceEvent, SliceHeader, SliceKind, SliceReader, probe_slice};

const FILE: &str = include_str!("golden/v1.txt");
const LIMITS: FrameLimits = FrameLimits::open(1024 * 1024);

fn text(text: &str) -> String {
    text.to_owned()
}

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

/// One or two of every native body.
fn native_controls() -> Vec<(&'static str, Control)> {
    let welcome = Welcome {
        version: 1,
        features: 0,
        node: text("region-a/broker"),
        session: 7,
        tenant: text("tenantA"),
        role: text("TENANT"),
        region: some("region-a"),
        agent: some("agent-1"),
        uid: text("0123456789abcdef"),
        max_payload: 1_048_576,
        inbox: text("_INBOX.x1."),
    };
    let nameless = Welcome { region: None, agent: None, ..welcome.clone() };
    let denied = Denied {
        access: 1,
        id: 42,
        subject: text("T.tenantB.ctrl.x"),
        code: text("cross-tenant"),
        text: text("cross-tenant"),
        retry_after_ms: Some(250),
    };
    vec![
        (
            "hello",
            Hello { versions: vec![1, 2], features: 5, client: text("cli"), default_class: 1, echo: true }.into(),
        ),
        ("welcome", welcome.into()),
        ("welcome-nameless", nameless.into()),
        ("subscribe", Subscribe { sid: 1, filter: text("a.*.>"), queue: some("workers"), local_only: false }.into()),
        ("subscribe-inbox", Subscribe { sid: 2, filter: text("_INBOX.x1.t.*"), queue: None, local_only: true }.into()),
        ("subscribed", Subscribed { sid: 1 }.into()),
        ("unsubscribe", Unsubscribe { sid: 1, max: None }.into()),
        ("unsubscribe-max", Unsubscribe { sid: 300, max: Some(70_000) }.into()),
        ("denied", denied.clone().into()),
        ("denied-read", Denied { access: 0, id: 0, retry_after_ms: None, ..denied }.into()),
        ("ack", Ack { seq: 9, targets: 3 }.into()),
        ("no-responders", NoResponders { seq: 0, subject: text("svc.x"), reply: text("_INBOX.x1.t.1") }.into()),
        ("ping", Ping { token: u64::MAX }.into()),
        ("pong", Pong { token: 1 }.into()),
        ("goodbye", Goodbye { code: text("shutting-down"), text: text("bye"), grace_ms: 2_000 }.into()),
        ("error", Error { code: text("protocol"), text: text("unknown kind") }.into()),
    ]
}

/// One or two of every bridge body.
fn bridge_controls() -> Vec<(&'static str, Control)> {
    let interest = Interest {
        origin: 1,
        seq: 5,
        add: true,
        filter: text("a.>"),
        classes: 0b1111,
        queue: some("workers"),
        observer: false,
    };
    let link_key = LinkKey {
        node: text("global/g1"),
        incarnation: 8,
        key: [2; 32],
        chain: vec![vec![0x30, 1], vec![0x30, 2]],
        signature: vec![9; 70],
    };
    let link_up = LinkUp {
        edge: text("e1"),
        epoch: 9,
        revision: 1,
        cost: 3,
        incarnations: [7, 8],
        signatures: [[4; 64], [5; 64]],
    };
    let sender = AnnounceSender {
        handle: 9,
        session: 7,
        tenant: text("tenantA"),
        region: some("region-a"),
        agent: some("agent-1"),
        uid: text("0123456789abcdef"),
    };
    let attach = TenantAttach {
        edge: text("a-global"),
        incarnation: 1_700_000_000_000,
        dial: 3,
        number: 4,
        tenant: [7; 16],
        proof: [9; 32],
    };
    let hello = BridgeHello {
        versions: vec![1],
        features: 0,
        fabric: text("demo"),
        node: text("region-a/broker"),
        incarnation: 1_700_000_000_000,
        edge: text("a-global"),
        dial: 3,
        max_payload: 1_048_576,
        tenant_id_form: 0,
        bundle_epoch: 1,
        bundle_version: 1,
    };
    vec![
        ("bridge-hello", hello.clone().into()),
        ("bridge-hello-dedicated", BridgeHello { features: FEATURE_DEDICATED, ..hello }.into()),
        ("allowed-set", AllowedSet { macs: vec![[1; 16], [0xfe; 16]], last: true }.into()),
        ("allowed-set-empty", AllowedSet { macs: vec![], last: false }.into()),
        ("ready", Ready { tenants: 2 }.into()),
        ("probe", Probe { id: 17 }.into()),
        ("probe-ack", ProbeAck { id: 17 }.into()),
        ("bridge-error", BridgeError { code: text("edge-tenant"), text: text("refused") }.into()),
        ("tenant-attach", attach.into()),
        ("tenant-attached", TenantAttached { number: 4 }.into()),
        ("announce-broker", AnnounceBroker { handle: 1, node: text("global/g1"), incarnation: 8 }.into()),
        ("announce-sender", sender.clone().into()),
        ("announce-sender-nameless", AnnounceSender { region: None, agent: None, ..sender }.into()),
        ("interest", interest.clone().into()),
        ("interest-remove", Interest { add: false, classes: 1, queue: None, observer: true, ..interest }.into()),
        ("interest-sync", InterestSync { origin: 1, seq: 5, reset: true, last: false }.into()),
        ("no-member", NoMember { target: 2, origin: 1, seq: 11, group: some("workers") }.into()),
        ("no-member-plain", NoMember { target: 2, origin: 1, seq: 11, group: None }.into()),
        ("forget-handles", ForgetHandles { count: 65_536 }.into()),
        ("routed", Routed { target: 2, origin: 1, hops: 3, kind: 0x1c, body: vec![1, 2, 3] }.into()),
        ("link-propose", LinkPropose { epoch: 1_700_000_000_000, metric: 5 }.into()),
        ("link-agree", LinkAgree { epoch: 9, incarnation: 8, signature: [3; 64] }.into()),
        ("link-key", link_key.into()),
        ("link-up", link_up.into()),
        ("link-down", LinkDown { edge: text("e1"), epoch: 9, by: 1, incarnation: 8, signature: [6; 64] }.into()),
        ("link-digest", LinkDigest { root: 7, buckets: (0..64).collect(), answer: true }.into()),
        ("link-digest-root", LinkDigest { root: 7, buckets: vec![], answer: false }.into()),
        (
            "link-observer",
            LinkObserver { node: text("global/g1"), incarnation: 8, seq: 2, present: true, signature: [6; 64] }.into(),
        ),
        ("presence-root", PresenceRoot { root: 1 << 63 }.into()),
        ("delivered", Delivered { class: 1, incarnation: 8, through: 1 << 40, gap: true }.into()),
        ("overflowed", Overflowed { class: 3, incarnation: 8, seq: 300 }.into()),
        ("memberless", Memberless { class: 3, incarnation: 8, seq: 11, group: text("workers") }.into()),
        ("tally", Tally { class: 2, incarnation: 1_700_000_000_000, copies: 300 }.into()),
        ("tallied", Tallied { class: 0, incarnation: 8, copies: 300, received: 299 }.into()),
        (
            "unserved",
            Unserved { class: 0, incarnation: 8, session: 5, seq: 300, groups: vec![text("workers")], plain: false }
                .into(),
        ),
    ]
}

/// One of every body by which neighbours follow changes of the bundle.
fn bundle_controls() -> Vec<(&'static str, Control)> {
    let update = AllowedUpdate { generation: 2, epoch: 1, version: 7, macs: vec![[1; 16], [2; 16]], last: true };
    vec![
        ("allowed-update", update.into()),
        ("allowed-applied", AllowedApplied { generation: 2 }.into()),
        ("bundle-news", BundleNews { epoch: 1, version: 7, digest: [3; 32] }.into()),
        ("section-offer", SectionOffer { digests: vec![[4; 32], [5; 32]] }.into()),
        ("bundle-get", BundleGet { digests: vec![[4; 32]] }.into()),
        ("bundle-part", BundlePart { digest: [4; 32], total: 9, offset: 6, bytes: vec![1, 2, 3] }.into()),
        ("path-probe-ack", PathProbeAck { id: 1 << 40 }.into()),
    ]
}

/// One or two of every body of presence and interest.
fn interest_controls() -> Vec<(&'static str, Control)> {
    let sum = InterestSum { digest: u64::MAX, count: 2 };
    let change =
        InterestChange { add: true, filter: text("a.>"), classes: 0b1111, queue: some("workers"), observer: false };
    let gone = InterestChange { add: false, classes: 1, queue: None, observer: true, ..change.clone() };
    let news = InterestNews { stream: 9, number: 0, start: 1, changes: vec![change, gone], complete: Some(sum) };
    vec![
        ("presence", Presence { origin: 1, incarnation: 1_700_000_000_000, seq: 5, present: true }.into()),
        ("presence-gone", Presence { origin: 1, incarnation: 8, seq: 6, present: false }.into()),
        ("presence-end", PresenceEnd { told: 3 }.into()),
        ("interest-pull", InterestPull { stream: 9, taken: 0, have: sum, end: false }.into()),
        ("interest-pull-end", InterestPull { stream: 300, taken: 7, have: sum, end: true }.into()),
        ("interest-news", news.into()),
        ("interest-news-kept", InterestNews { stream: 9, number: 1, start: 2, changes: vec![], complete: None }.into()),
        (
            "edge-cut",
            EdgeCut { origin: 2, incarnation: 1_700_000_000_000, seq: 4, edge: "a-b".to_owned(), cut: true }.into(),
        ),
        ("presence-sum", PresenceSum { digest: u64::MAX }.into()),
    ]
}

/// A value of every control body.
pub(crate) fn controls() -> Vec<(&'static str, Control)> {
    let mut all = native_controls();
    all.extend(bridge_controls());
    all.extend(bundle_controls());
    all.extend(interest_controls());
    all
}

/// A frame of a control body.
pub(crate) fn control_bytes(control: &Control) -> Vec<u8> {
    let mut out = BytesMut::new();
    control.encode_into(&mut out).expect("samples are in range");
    out.to_vec()
}

fn data_bytes(head: &DataHead, ext: &ExtBuilder, parts: [&[u8]; 4]) -> Vec<u8> {
    let [name, reply, headers, payload] = parts;
    let mut out = BytesMut::new();
    head.encode_into(&mut out, ext.bytes().expect("good ext"), name, reply, headers, payload).expect("samples fit");
    out.to_vec()
}

/// Data frames of every kind, with every extension among them.
pub(crate) fn data_frames() -> Vec<(&'static str, Vec<u8>)> {
    let publish = DataHead::new(DataKind::Publish, None);
    let numbered = DataHead { class: Some(Class::Ctrl), seq: Some(9), ttl_ms: Some(1_500), ..publish };
    let deliver = DataHead::new(DataKind::Deliver, Some(Class::Live));
    let relay = DataHead { kind: DataKind::Relay, class: Some(Class::Bulk), hops: 2, seq: Some(1 << 40), ttl_ms: None };
    let none = ExtBuilder::new();
    let mut sealed = ExtBuilder::new();
    sealed.seal(&[1, 2, 3]).raw(64, b"later");
    let mut delivered = ExtBuilder::new();
    delivered.subs([1, 70_000]).sender_text("region-a/agent-1").redelivered(true);
    let mut routed = ExtBuilder::new();
    routed.targets().target(1).target(2).group("workers").group("audit");
    routed.origin(1).incarnation(8).steps([0, 1]).sender(9).reply_token(0xfeed).redelivered(true).seal(b"s");
    let mut paired = ExtBuilder::new();
    paired.targets().target(1).target(2).group("workers");
    paired.origin(1).incarnation(8).steps([0, 1]).lives([9, 0]).sender(9);
    vec![
        ("publish", data_bytes(&publish, &none, [b"a.b", b"", b"", b"hi"])),
        ("publish-empty", data_bytes(&publish, &none, [b"", b"", b"", b""])),
        (
            "publish-full",
            data_bytes(&numbered, &sealed, [b"T.tenantA.ctrl.a", b"_INBOX.x1.t.1", b"NATS/1.0\r\n\r\n", b"hi"]),
        ),
        ("deliver", data_bytes(&deliver, &delivered, [b"a.b", b"_INBOX.x1.t.1", b"", b"hi"])),
        ("relay-paired", data_bytes(&relay, &paired, [b"a.b", b"", b"", b"payload"])),
        ("relay", data_bytes(&relay, &routed, [b"a.b", b"r", b"NATS/1.0\r\n\r\n", b"payload"])),
    ]
}

fn slices() -> Vec<(&'static str, Vec<u8>)> {
    let open = OpenHeader { class: Class::Tele, tenant: "tenantA" };
    let header = |lane, len, kind| {
        let mut out = BytesMut::new();
        SliceHeader { lane, len, kind }.encode_into(&mut out).expect("samples fit");
        out
    };
    let mut opened = header(1, 9 + 2, SliceKind::Open);
    open.encode_into(&mut opened).expect("a tenant");
    opened.extend_from_slice(b"ab");
    let mut data = header(0x0102_0304, 3, SliceKind::Data);
    data.extend_from_slice(b"xyz");
    vec![
        ("slice-open", opened.to_vec()),
        ("slice-data", data.to_vec()),
        ("slice-reset", header(1, 0, SliceKind::Reset).to_vec()),
        ("slice-probe", {
            let mut probe = BytesMut::new();
            probe_slice(0x0102_0304_0506_0708, &mut probe);
            probe.to_vec()
        }),
    ]
}

/// Every golden line, made anew.
fn lines() -> Vec<(String, Vec<u8>)> {
    let controls = controls().into_iter().map(|(name, control)| (format!("control-{name}"), control_bytes(&control)));
    let data = data_frames().into_iter().map(|(name, bytes)| (format!("data-{name}"), bytes));
    let slices = slices().into_iter().map(|(name, bytes)| (name.to_owned(), bytes));
    controls.chain(data).chain(slices).collect()
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string grows");
        text
    })
}

fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("hex"), 16).expect("hex"))
        .collect()
}

fn stored() -> Vec<(&'static str, Vec<u8>)> {
    let lines = FILE.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(|line| line.split_once(' ').map(|(name, hex)| (name, unhex(hex))).expect("name hex")).collect()
}

#[test]
fn encoding_gives_the_golden_bytes() {
    let made: Vec<_> = lines().into_iter().map(|(name, bytes)| format!("{name} {}", hex(&bytes))).collect();
    if std::env::var_os("GLOCAL_GOLDEN_WRITE").is_some() {
        let file = format!("# Bytes of protocol version 1. Lines are only ever added.\n{}\n", made.join("\n"));
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/golden/v1.txt"), file).expect("the file is writable");
        return;
    }
    let stored: Vec<_> = FILE.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(made, stored);
}

#[test]
fn golden_control_frames_decode_to_their_values() {
    let stored = stored();
    for (name, control) in controls() {
        let (_, bytes) = stored.iter().find(|(stored, _)| *stored == format!("control-{name}")).expect(name);
        let Ok(Next::Control { kind, body, frame_bytes }) = next_frame(bytes, &LIMITS) else { panic!("{name}") };
        assert_eq!(frame_bytes, bytes.len());
        assert_eq!(Control::decode(kind, body, LIMITS.control_bytes_max), Ok(Some(control)), "{name}");
    }
}

#[test]
fn golden_data_frames_decode_and_encode_again() {
    for (name, bytes) in stored().iter().filter(|(name, _)| name.starts_with("data-")) {
        let Ok(Next::Data { frame, .. }) = next_frame(bytes, &LIMITS) else { panic!("{name}") };
        assert_eq!(DataFrame::decode(bytes), Ok(frame));
        let mut again = BytesMut::new();
        frame.head().reencode_into(&mut again, frame.ext.bytes(), &frame).expect("it was decoded");
        assert_eq!(again, bytes, "{name}");
        let mut split = BytesMut::new();
        let (head, lengths) = (frame.head(), frame.tail_lengths());
        head.encode_prefix_into(&mut split, frame.ext.bytes(), &lengths).expect("it was decoded");
        assert_eq!(head.frame_bytes(frame.ext.bytes().len(), &lengths), bytes.len());
        split.extend_from_slice(frame.tail());
        assert_eq!(split, bytes, "{name}");
    }
}

#[test]
fn the_golden_relay_has_every_extension() {
    let stored = stored();
    let (_, bytes) = stored.iter().find(|(name, _)| *name == "data-relay").expect("a relay");
    let frame = DataFrame::decode(bytes).expect("golden");
    let fields = frame.ext.fields();
    let targets: Vec<_> = fields
        .targets
        .expect("targets")
        .iter()
        .map(|target| (target.handle, target.groups.iter().collect::<Vec<_>>()))
        .collect();
    assert_eq!(targets, [(1, vec![]), (2, vec!["workers", "audit"])]);
    assert_eq!((fields.origin, fields.incarnation, fields.sender), (Some(1), Some(8), Some(9)));
    assert_eq!(fields.steps.map(|steps| steps.iter().collect::<Vec<_>>()), Some(vec![0, 1]));
    assert_eq!((fields.reply_token, fields.redelivered, fields.seal), (Some(0xfeed), true, Some(&b"s"[..])));
    assert_eq!((fields.subs, fields.sender_text), (None, None));
    assert_eq!((frame.hops, frame.seq, frame.class), (2, Some(1 << 40), Some(Class::Bulk)));
    assert_eq!((frame.name, frame.reply, frame.payload), (&b"a.b"[..], &b"r"[..], &b"payload"[..]));
}

#[test]
fn golden_slices_read_as_events() {
    let stored = stored().into_iter().filter(|(name, _)| name.starts_with("slice-"));
    let mut stream = Bytes::from(stored.flat_map(|(_, bytes)| bytes).collect::<Vec<_>>());
    let mut reader = SliceReader::new();
    let expected = [
        SliceEvent::Open { lane: 1, class: Class::Tele, tenant: "tenantA" },
        SliceEvent::Data { lane: 1, bytes: Bytes::from_static(b"ab") },
        SliceEvent::Data { lane: 0x0102_0304, bytes: Bytes::from_static(b"xyz") },
        SliceEvent::Reset { lane: 1 },
        SliceEvent::Probe { id: 0x0102_0304_0506_0708 },
    ];
    for event in expected {
        assert_eq!(reader.next_event(&mut stream), Ok(Some(event)));
    }
    assert_eq!(reader.next_event(&mut stream), Ok(None));
    assert!(reader.is_between_slices());
}

#[test]
fn every_control_kind_has_a_golden_line() {
    let mut kinds: Vec<u8> = controls().iter().map(|(_, control)| control.kind()).collect();
    kinds.dedup();
    assert_eq!(kinds, Control::KINDS);
}
