use super::*;
use glocal_core::bundle::{AgentRule, Bundle, EdgeEntry, Grant, IssuerEntry, NodeEntry, Revocation};
use glocal_core::identity::KeyId;
use glocal_core::name::{Label, NodeId, RawFilter, TenantId};
use glocal_core::time::UnixTime;
use proptest::prelude::*;

fn label(text: &str) -> Label {
    Label::parse(text).unwrap()
}

fn node(text: &str) -> NodeId {
    NodeId::parse(text).unwrap()
}

fn tenant(text: &str) -> TenantId {
    TenantId::parse(text).unwrap()
}

fn full_section() -> Section {
    Section {
        issuers: vec![IssuerEntry { key: KeyId([7; 32]), regions: vec![label("ra"), label("rb")] }],
        edges: vec![label("g-a")],
        grants: vec![Grant {
            name: label("reports"),
            tenant: tenant("beta"),
            write: true,
            filter: RawFilter::parse(b"reports.>").unwrap(),
        }],
        weight: 3,
        sessions_max: 1000,
        revocations: vec![
            Revocation::Serial { issuer: KeyId([7; 32]), serial: vec![1, 2, 3] },
            Revocation::IssuedBefore { region: label("ra"), agent: Some(label("x")), before: UnixTime(1_700_000_000) },
            Revocation::IssuedBefore { region: label("rb"), agent: None, before: UnixTime(-1) },
        ],
        rules: vec![AgentRule {
            region: None,
            agent: Some(label("x")),
            deny: true,
            write: false,
            filter: RawFilter::parse(b"*.secret").unwrap(),
        }],
        owner_only_replies: true,
        ..Section::new(tenant("acme"), [9; 16])
    }
}

fn full_head() -> Head {
    let entry = |id: &str| NodeEntry { node: node(id), tenant: tenant("operator"), issuers: vec![KeyId([7; 32])] };
    Head {
        epoch: 2,
        version: 300,
        roots: vec![KeyId([1; 32])],
        nodes: vec![entry("g/n1"), entry("ra/n1")],
        superusers: vec![tenant("cresco-system")],
        edges: vec![EdgeEntry { name: label("g-a"), a: node("g/n1"), b: node("ra/n1") }],
        resigner: Some(node("g/n1")),
        revocations: vec![Revocation::Serial { issuer: KeyId([7; 32]), serial: vec![5] }],
        sections: vec![[3; 32], [4; 32]],
        ..Head::empty(label("demo"), UnixTime(1_700_000_000), UnixTime(1_702_592_000))
    }
}

fn envelope() -> Envelope {
    Envelope {
        bundle_key_cert: vec![0x30, 0],
        head: encode_head(&full_head()).unwrap(),
        signature: vec![8; SIGNATURE_BYTES],
        sections: vec![encode_section(&full_section()).unwrap()],
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[test]
fn everything_survives_encoding() {
    assert_eq!(decode_head(&encode_head(&full_head()).unwrap()).unwrap(), full_head());
    assert_eq!(decode_section(&encode_section(&full_section()).unwrap()).unwrap(), full_section());
    let limits = RateLimits {
        messages_per_s: Some(1),
        bytes_per_s: Some(u64::MAX),
        burst_ms: 3,
        live_percent: 4,
        ctrl_percent: 5,
        session_messages_per_s: Some(6),
        session_bytes_per_s: Some(7),
    };
    let limited = Section { limits, ..full_section() };
    assert_eq!(decode_section(&encode_section(&limited).unwrap()).unwrap(), limited);
    let percent = Section { limits: RateLimits { live_percent: 99, ..RateLimits::NONE }, ..full_section() };
    assert_eq!(decode_section(&encode_section(&percent).unwrap()).unwrap(), percent, "whatever of them is set");
    let terms = EdgeTerms {
        class_weights: [1, 2, 3, 4],
        bytes_per_s: Some(5),
        class_bytes_per_s: [None, Some(6), Some(u64::MAX), None],
    };
    let held = Section { memory_bytes: Some(u64::MAX), ..full_section() };
    for section in [held, Section { terms, ..full_section() }, Section { terms, ..limited }] {
        assert_eq!(decode_section(&encode_section(&section).unwrap()).unwrap(), section);
    }
    assert_eq!(Envelope::decode(&envelope().encode().unwrap()).unwrap(), envelope());
    let mut head = full_head();
    head.sections = vec![[3; 32]];
    assert!(Bundle::assemble(head, vec![([3; 32], full_section())]).is_ok(), "the example is a real bundle");
}

#[test]
fn golden_bytes_stay() {
    let mut head = Head::empty(label("demo"), UnixTime(100), UnixTime(200));
    head.roots = vec![KeyId([1; 32])];
    head.sections = vec![[3; 32]];
    let (root, digest) = ("01".repeat(32), "03".repeat(32));
    assert_eq!(
        hex(&encode_head(&head).unwrap()),
        // form, fabric, epoch, version, roots, nodes, superusers, edges, payload, form of ids, re-signer, revoked, sections, dates
        format!("01 04{} 01 01 01{root} 00 00 00 fc00001000 00 00 00 01{digest} c8 fb9001", hex(b"demo"))
            .replace(' ', "")
    );

    let section = Section::new(tenant("acme"), [9; 16]);
    assert_eq!(
        hex(&encode_section(&section).unwrap()),
        format!("0104{}{}00000001000000{}", hex(b"acme"), "09".repeat(16), "00")
    );
    // With limits: another form, and the limits after all that was before.
    let limits = RateLimits { messages_per_s: Some(200), session_bytes_per_s: Some(3), ..RateLimits::NONE };
    assert_eq!(
        hex(&encode_section(&Section { limits, ..section.clone() }).unwrap()),
        format!("0204{}{}00000001000000{} 01c8 00 fbe803 64 64 00 0103", hex(b"acme"), "09".repeat(16), "00")
            .replace(' ', "")
    );
    // With terms on edges: another one, and the terms after all that, which are the default for the limits.
    let mut terms = EdgeTerms { class_weights: [4, 4, 2, 3], bytes_per_s: Some(9), ..EdgeTerms::DEFAULT };
    terms.class_bytes_per_s[3] = Some(8);
    assert_eq!(
        hex(&encode_section(&Section { terms, memory_bytes: Some(4096), ..section }).unwrap()),
        format!(
            "0304{}{}00000001000000{} 0000 fbe803 64 64 0000 04040203 0109 00 00 00 0108 01fb0010",
            hex(b"acme"),
            "09".repeat(16),
            "00"
        )
        .replace(' ', "")
    );
    let file = Envelope { bundle_key_cert: vec![1], head: vec![2], signature: vec![8; 64], sections: vec![vec![3]] };
    assert_eq!(hex(&file.encode().unwrap()), format!("{}0101010240{}010103", hex(b"GLOCALB1"), "08".repeat(64)));
}

#[test]
fn bad_files_have_their_own_errors() {
    assert!(matches!(Envelope::decode(b""), Err(BundleCodecError::Magic)));
    assert!(matches!(Envelope::decode(b"GLOCALB2\0\0\0\0"), Err(BundleCodecError::Magic)));
    let mut file = envelope().encode().unwrap();
    file.push(0);
    assert!(matches!(Envelope::decode(&file), Err(BundleCodecError::Trailing { bytes: 1, .. })));
    let bad = Envelope { signature: vec![8; 63], ..envelope() };
    assert!(matches!(bad.encode(), Err(BundleCodecError::SignatureLength(63))));
    let bad = Envelope { bundle_key_cert: vec![0; CERTIFICATE_BYTES_MAX + 1], ..envelope() };
    assert!(matches!(bad.encode(), Err(BundleCodecError::TooLarge { part: "bundle key certificate", .. })));
    // A hostile length: a head of 2^63 bytes.
    let mut hostile = b"GLOCALB1\x00".to_vec();
    hostile.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0x80]);
    assert!(matches!(Envelope::decode(&hostile), Err(BundleCodecError::Malformed { .. })));
}

#[test]
fn bad_heads_and_sections_have_their_own_errors() {
    let mut head = encode_head(&full_head()).unwrap();
    head[0] = 2;
    assert!(matches!(decode_head(&head), Err(BundleCodecError::UnknownForm { part: "head", form: 2 })));
    let mut head = encode_head(&full_head()).unwrap();
    head[2] = b' ';
    assert!(matches!(decode_head(&head), Err(BundleCodecError::Name { part: "head", source: NameError::BadLabel })));
    let mut section = encode_section(&full_section()).unwrap();
    section[2] = b'*';
    assert!(matches!(
        decode_section(&section),
        Err(BundleCodecError::Name { part: "section", source: NameError::BadTenant })
    ));
    section.truncate(20);
    assert!(matches!(decode_section(&section), Err(BundleCodecError::Malformed { .. })));
}

#[test]
fn every_truncation_is_refused() {
    let (head, section, file) =
        (encode_head(&full_head()).unwrap(), encode_section(&full_section()).unwrap(), envelope().encode().unwrap());
    assert!((0..head.len()).all(|n| decode_head(&head[..n]).is_err()));
    assert!((0..section.len()).all(|n| decode_section(&section[..n]).is_err()));
    assert!((0..file.len()).all(|n| Envelope::decode(&file[..n]).is_err()));
}

proptest! {
    #[test]
    fn mutations_never_panic(index in any::<prop::sample::Index>(), byte in any::<u8>(), tail in any::<Vec<u8>>()) {
        for mut bytes in [
            encode_head(&full_head()).unwrap(),
            encode_section(&full_section()).unwrap(),
            envelope().encode().unwrap(),
        ] {
            let at = index.index(bytes.len());
            bytes[at] = byte;
            let _ = (decode_head(&bytes), decode_section(&bytes), Envelope::decode(&bytes));
            bytes.truncate(at);
            bytes.extend(&tail);
            let _ = (decode_head(&bytes), decode_section(&bytes), Envelope::decode(&bytes));
        }
    }
}
