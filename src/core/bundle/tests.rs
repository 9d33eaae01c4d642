use super::*;
use crate::deny::Deny;
use crate::identity::{LeafName, Role};
use crate::limits::{BUNDLE_GRACE_SECONDS, MAX_PAYLOAD_BYTES_CEILING, TENANT_WEIGHT_MAX};
use crate::name::RawFilter;

const ISSUED: UnixTime = UnixTime(1_000_000);
const EXPIRES: UnixTime = UnixTime(3_000_000);
const NOW: UnixTime = UnixTime(1_500_000);
const CA_A: KeyId = KeyId([0xa; 32]);
const CA_B: KeyId = KeyId([0xb; 32]);
const DIGEST: SectionDigest = [1; 32];
const DIGEST_2: SectionDigest = [2; 32];

pub(super) fn label(text: &str) -> Label {
    Label::parse(text).unwrap()
}

fn node(text: &str) -> NodeId {
    NodeId::parse(text).unwrap()
}

fn tenant(text: &str) -> TenantId {
    TenantId::parse(text).unwrap()
}

fn node_entry(id: &str, issuer: KeyId) -> NodeEntry {
    NodeEntry { node: node(id), tenant: tenant("operator"), issuers: vec![issuer] }
}

fn edge(name: &str, a: &str, b: &str) -> EdgeEntry {
    EdgeEntry { name: label(name), a: node(a), b: node(b) }
}

fn head() -> Head {
    Head {
        roots: vec![KeyId([1; 32])],
        nodes: vec![node_entry("g/n", CA_A), node_entry("ra/n", CA_A), node_entry("rb/n", CA_B)],
        superusers: vec![tenant("root-org")],
        edges: vec![edge("g-ra", "g/n", "ra/n"), edge("g-rb", "g/n", "rb/n")],
        sections: vec![DIGEST, DIGEST_2],
        ..Head::empty(label("demo"), ISSUED, EXPIRES)
    }
}

/// A head of the same brokers with these edges.
pub(super) fn head_for(edges: &[&str]) -> Head {
    let edges = edges.iter().map(|name| edge(name, "g/n", "ra/n")).collect();
    Head { edges, sections: Vec::new(), ..head() }
}

/// A tenant's section with these edges.
pub(super) fn section_of(id: &str, edges: &[&str]) -> Section {
    Section { edges: edges.iter().map(|name| label(name)).collect(), ..Section::new(tenant(id), [0; 16]) }
}

fn acme() -> Section {
    Section {
        issuers: vec![
            IssuerEntry { key: CA_A, regions: vec![label("ra")] },
            IssuerEntry { key: CA_B, regions: vec![label("rb")] },
        ],
        edges: vec![label("g-ra")],
        ..Section::new(tenant("acme"), [0; 16])
    }
}

fn root_org() -> Section {
    Section {
        issuers: vec![IssuerEntry { key: CA_A, regions: vec![label("ra")] }],
        ..Section::new(tenant("root-org"), [0; 16])
    }
}

fn bundle_of(head: Head, section: Section) -> Result<Bundle, BundleError> {
    Bundle::assemble(head, vec![(DIGEST, section)])
}

fn bundle() -> Bundle {
    Bundle::assemble(head(), vec![(DIGEST, acme()), (DIGEST_2, root_org())]).unwrap()
}

fn leaf(tenant_id: &str, region: Option<&str>, agent: Option<&str>) -> LeafName {
    LeafName {
        tenant: tenant(tenant_id),
        region: region.map(label),
        agent: agent.map(label),
        node: None,
        serial: vec![0x42],
        not_before: UnixTime(1_400_000),
        not_after: UnixTime(5_000_000),
    }
}

fn node_leaf(id: &str) -> LeafName {
    let id = node(id);
    LeafName { node: Some(id.clone()), ..leaf("operator", Some(id.region().as_str()), Some(id.agent().as_str())) }
}

#[test]
fn questions_are_answered_from_indexes() {
    let bundle = bundle();
    assert_eq!(bundle.section("acme"), Some(&acme()));
    assert_eq!(bundle.section("beta"), None);
    assert_eq!(bundle.section_digest("acme"), Some(DIGEST));
    let tenants: Vec<_> = bundle.sections().map(|s| s.tenant.as_str()).collect();
    assert_eq!(tenants, ["acme", "root-org"]);
    assert_eq!(bundle.node(&node("ra/n")).map(|n| &n.issuers), Some(&vec![CA_A]));
    assert_eq!(bundle.node(&node("ra/x")), None);
    assert_eq!(bundle.edge(&label("g-rb")), Some(&edge("g-rb", "g/n", "rb/n")));
    let names = |id: &str| bundle.edges_of(&node(id)).map(|e| e.name.to_string()).collect::<Vec<_>>();
    assert_eq!(names("g/n"), ["g-ra", "g-rb"]);
    assert_eq!(names("rb/n"), ["g-rb"]);
    assert!(names("x/n").is_empty());
    assert!(bundle.edge_allows(&label("g-ra"), "acme"));
    assert!(!bundle.edge_allows(&label("g-rb"), "acme"));
    assert!(!bundle.edge_allows(&label("g-ra"), "beta"), "unknown means no");
    assert!(bundle.is_superuser("root-org") && !bundle.is_superuser("acme"));
}

#[test]
fn bundles_age() {
    let bundle = bundle();
    let state = |seconds| bundle.state(UnixTime(seconds));
    assert_eq!(state(0), BundleState::Fresh, "a clock behind the signer's is not an expiry");
    assert_eq!(state(1_999_999), BundleState::Fresh);
    assert_eq!(state(2_000_000), BundleState::Ageing);
    assert_eq!(state(3_000_000), BundleState::Grace);
    assert_eq!(state(3_000_000 + BUNDLE_GRACE_SECONDS - 1), BundleState::Grace);
    assert_eq!(state(3_000_000 + BUNDLE_GRACE_SECONDS), BundleState::Dead);
}

#[test]
fn every_broken_head_names_its_entry() {
    type Case = (fn(&mut Head), BundleError);
    let cases: Vec<Case> = vec![
        (|h| h.epoch = 0, BundleError::ZeroVersion),
        (|h| h.version = 0, BundleError::ZeroVersion),
        (|h| h.expires = h.issued, BundleError::Dates),
        (|h| h.max_payload_bytes = 0, BundleError::MaxPayload(0)),
        (
            |h| h.max_payload_bytes = MAX_PAYLOAD_BYTES_CEILING + 1,
            BundleError::MaxPayload(MAX_PAYLOAD_BYTES_CEILING + 1),
        ),
        (|h| h.tenant_id_form = TenantIdForm::Opaque, BundleError::OpaqueTenantIds),
        (|h| h.roots.clear(), BundleError::NoRoot),
        (|h| h.roots = vec![CA_A, CA_B, CA_A], BundleError::RepeatedRoot(CA_A)),
        (|h| h.roots = vec![CA_A; 17], BundleError::TooMany { entries: Entries::Roots, count: 17 }),
        (|h| h.superusers = vec![tenant("x"); 65], BundleError::TooMany { entries: Entries::Superusers, count: 65 }),
        (|h| h.superusers = vec![tenant("x"); 2], BundleError::RepeatedSuperuser(tenant("x"))),
        (|h| h.nodes.push(node_entry("g/n", CA_B)), BundleError::RepeatedNode(node("g/n"))),
        (|h| h.nodes[0].issuers.clear(), BundleError::NodeWithoutIssuer(node("g/n"))),
        (|h| h.nodes[0].issuers.push(CA_A), BundleError::RepeatedNodeIssuer { node: node("g/n"), issuer: CA_A }),
        (|h| h.resigner = Some(node("x/n")), BundleError::UnknownResigner(node("x/n"))),
        (|h| h.edges.push(edge("g-ra", "g/n", "rb/n")), BundleError::RepeatedEdge(label("g-ra"))),
        (|h| h.edges.push(edge("e", "ra/n", "g/n")), BundleError::EdgeOrder(label("e"))),
        (|h| h.edges.push(edge("e", "g/n", "g/n")), BundleError::EdgeOrder(label("e"))),
        (
            |h| h.edges.push(edge("e", "g/n", "x/n")),
            BundleError::UnknownEdgeEnd { edge: label("e"), node: node("x/n") },
        ),
        (|h| h.sections.reverse(), BundleError::DigestOrder),
        (|h| h.sections = vec![DIGEST, DIGEST], BundleError::DigestOrder),
        (
            |h| h.revocations = vec![Revocation::Serial { issuer: CA_A, serial: vec![0, 1] }],
            BundleError::Serial { owner: "nodes".to_owned() },
        ),
    ];
    for (breaks, expected) in cases {
        let mut head = head();
        breaks(&mut head);
        assert_eq!(bundle_of(head, acme()).err(), Some(expected));
    }
}

#[test]
fn every_broken_section_names_its_tenant_and_entry() {
    type Case = (fn(&mut Section), BundleError);
    let grant = |to: &str| Grant {
        name: label("g1"),
        tenant: tenant(to),
        write: false,
        filter: RawFilter::parse(b"a.>").unwrap(),
    };
    let serial = |serial: Vec<u8>| vec![Revocation::Serial { issuer: CA_A, serial }];
    let mut grants = [acme(), acme()];
    grants[0].grants = vec![grant("beta"), grant("gamma")];
    grants[1].grants = vec![grant("acme")];
    let [twice, to_self] = grants;
    let (acme_id, owner) = (tenant("acme"), "'acme'".to_owned());
    assert_eq!(
        bundle_of(head(), twice).err(),
        Some(BundleError::RepeatedGrant { tenant: acme_id.clone(), grant: label("g1") })
    );
    assert_eq!(
        bundle_of(head(), to_self).err(),
        Some(BundleError::GrantToSelf { tenant: acme_id.clone(), grant: label("g1") })
    );
    for bad in [vec![], vec![0], vec![0, 1], vec![1; 21]] {
        let section = Section { revocations: serial(bad), ..acme() };
        assert_eq!(bundle_of(head(), section).err(), Some(BundleError::Serial { owner: owner.clone() }));
    }
    let cases: Vec<Case> = vec![
        (|s| s.limits.messages_per_s = Some(0), BundleError::Limits { tenant: acme_id.clone() }),
        (|s| s.limits.live_percent = 101, BundleError::Limits { tenant: acme_id.clone() }),
        (|s| s.terms.class_weights[2] = 0, BundleError::Terms { tenant: acme_id.clone() }),
        (|s| s.terms.bytes_per_s = Some(1), BundleError::Terms { tenant: acme_id.clone() }),
        (|s| s.memory_bytes = Some(1), BundleError::Memory { tenant: acme_id.clone(), bytes: 1 }),
        (|s| s.weight = 0, BundleError::Weight { tenant: acme_id.clone(), weight: 0 }),
        (
            |s| s.weight = TENANT_WEIGHT_MAX + 1,
            BundleError::Weight { tenant: acme_id.clone(), weight: TENANT_WEIGHT_MAX + 1 },
        ),
        (|s| s.edges.push(label("x")), BundleError::UnknownEdge { tenant: acme_id.clone(), edge: label("x") }),
        (
            |s| s.edges.push(label("g-ra")),
            BundleError::RepeatedSectionEdge { tenant: acme_id.clone(), edge: label("g-ra") },
        ),
        (|s| s.issuers[1].key = CA_A, BundleError::RepeatedIssuer { tenant: acme_id.clone(), issuer: CA_A }),
        (|s| s.issuers[1].regions.clear(), BundleError::IssuerWithoutRegion { tenant: acme_id, issuer: CA_B }),
    ];
    for (breaks, expected) in cases {
        let mut section = acme();
        breaks(&mut section);
        assert_eq!(bundle_of(head(), section).err(), Some(expected));
    }
}

#[test]
fn sections_are_those_the_head_lists() {
    let assemble = |sections| Bundle::assemble(head(), sections).err();
    assert_eq!(assemble(vec![([9; 32], acme())]), Some(BundleError::UnlistedSection(tenant("acme"))));
    assert_eq!(
        assemble(vec![(DIGEST, acme()), (DIGEST_2, acme())]),
        Some(BundleError::RepeatedSection(tenant("acme")))
    );
    assert_eq!(
        assemble(vec![(DIGEST, acme()), (DIGEST, root_org())]),
        Some(BundleError::RepeatedDigest(tenant("root-org")))
    );
    assert_eq!(assemble(vec![]), None, "a partial bundle is a bundle");
}

#[test]
fn clients_are_admitted_by_issuer_and_region() {
    let bundle = bundle();
    let admit = |leaf: &LeafName, issuer| bundle.admit_client(leaf, issuer, NOW);
    assert_eq!(admit(&leaf("acme", Some("ra"), Some("x")), CA_A), Ok(Role::Tenant));
    assert_eq!(admit(&leaf("root-org", Some("ra"), Some("x")), CA_A), Ok(Role::Superuser));
    assert_eq!(admit(&leaf("acme", Some("ra"), Some("x")), CA_B), Err(Deny::IssuerBinding), "another region's CA");
    assert_eq!(admit(&leaf("root-org", Some("rb"), Some("x")), CA_B), Err(Deny::IssuerBinding), "a forged superuser");
    assert_eq!(admit(&leaf("acme", Some("rx"), Some("x")), CA_A), Err(Deny::IssuerBinding), "an unknown region");
    assert_eq!(admit(&leaf("acme", Some("ra"), None), CA_A), Ok(Role::Tenant));
    assert_eq!(admit(&leaf("acme", None, None), CA_B), Ok(Role::Tenant), "nameless, by any bound key");
    assert_eq!(admit(&leaf("root-org", None, None), CA_B), Err(Deny::IssuerBinding), "nameless, by an unbound key");
    assert_eq!(admit(&leaf("beta", Some("ra"), Some("x")), CA_A), Err(Deny::UnknownTenant));
    assert_eq!(admit(&node_leaf("ra/n"), CA_A), Err(Deny::NodeOnClientPort));
}

#[test]
fn nodes_are_admitted_by_the_head() {
    let bundle = bundle();
    let admit = |leaf: &LeafName, issuer| bundle.admit_node(leaf, issuer, NOW);
    assert_eq!(admit(&node_leaf("ra/n"), CA_A), Ok(node("ra/n")));
    assert_eq!(admit(&node_leaf("ra/n"), CA_B), Err(Deny::IssuerBinding), "another region's CA");
    assert_eq!(admit(&node_leaf("ra/other"), CA_A), Err(Deny::UnknownNode));
    assert_eq!(admit(&leaf("operator", Some("ra"), Some("n")), CA_A), Err(Deny::ClientOnBridgePort));
    let stranger = LeafName { tenant: tenant("acme"), ..node_leaf("ra/n") };
    assert_eq!(admit(&stranger, CA_A), Err(Deny::IssuerBinding), "another tenant's node");
}

#[test]
fn dates_of_leaf_and_bundle_count() {
    let bundle = bundle();
    let (client, broker) = (leaf("acme", Some("ra"), Some("x")), node_leaf("ra/n"));
    let early = UnixTime(1_399_999);
    assert_eq!(bundle.admit_client(&client, CA_A, early), Err(Deny::CertNotYetValid));
    assert_eq!(bundle.admit_node(&broker, CA_A, early), Err(Deny::CertNotYetValid));
    let short = |leaf: &LeafName| LeafName { not_after: UnixTime(1_499_999), ..leaf.clone() };
    assert_eq!(bundle.admit_client(&short(&client), CA_A, NOW), Err(Deny::CertExpired));
    assert_eq!(bundle.admit_node(&short(&broker), CA_A, NOW), Err(Deny::CertExpired));
    let (grace, dead) = (EXPIRES, UnixTime(EXPIRES.0 + BUNDLE_GRACE_SECONDS));
    assert_eq!(bundle.admit_client(&client, CA_A, grace), Err(Deny::BundleExpired));
    assert_eq!(bundle.admit_node(&broker, CA_A, grace), Err(Deny::BundleExpired));
    assert_eq!(bundle.retain_client(&client, CA_A, grace), Ok(Role::Tenant));
    assert_eq!(bundle.retain_node(&broker, CA_A, grace), Ok(node("ra/n")));
    assert_eq!(bundle.retain_client(&client, CA_A, dead), Err(Deny::BundleExpired));
    assert_eq!(bundle.retain_node(&broker, CA_A, dead), Err(Deny::BundleExpired));
}

#[test]
fn serials_are_revoked_per_issuer() {
    let revocations = vec![Revocation::Serial { issuer: CA_A, serial: vec![0x42] }];
    let bundle = bundle_of(head(), Section { revocations, ..acme() }).unwrap();
    let admit = |leaf: &LeafName, issuer| bundle.admit_client(leaf, issuer, NOW);
    assert_eq!(admit(&leaf("acme", Some("ra"), Some("x")), CA_A), Err(Deny::CertRevoked));
    assert_eq!(admit(&leaf("acme", Some("rb"), Some("x")), CA_B), Ok(Role::Tenant), "same serial, other issuer");
    let other = LeafName { serial: vec![0x42, 0], ..leaf("acme", Some("ra"), Some("x")) };
    assert_eq!(admit(&other, CA_A), Ok(Role::Tenant));
}

#[test]
fn a_thief_who_renewed_is_revoked_by_date() {
    let before = |region: &str, agent: Option<&str>, at| Revocation::IssuedBefore {
        region: label(region),
        agent: agent.map(label),
        before: UnixTime(at),
    };
    let revocations =
        vec![before("ra", Some("x"), 1_400_001), before("ra", Some("x"), 5), before("rb", None, 1_400_001)];
    let bundle = bundle_of(head(), Section { revocations, ..acme() }).unwrap();
    let admit = |leaf: LeafName, issuer| bundle.admit_client(&leaf, issuer, NOW);
    let renewed = LeafName { serial: vec![9], ..leaf("acme", Some("ra"), Some("x")) };
    assert_eq!(admit(renewed.clone(), CA_A), Err(Deny::CertRevoked), "whatever its serial; the later date counts");
    let replaced = LeafName { not_before: UnixTime(1_400_001), ..renewed };
    assert_eq!(admit(replaced, CA_A), Ok(Role::Tenant));
    assert_eq!(admit(leaf("acme", Some("ra"), Some("y")), CA_A), Ok(Role::Tenant));
    assert_eq!(admit(leaf("acme", Some("rb"), Some("y")), CA_B), Err(Deny::CertRevoked), "the whole region");
    assert_eq!(admit(leaf("acme", Some("rb"), None), CA_B), Err(Deny::CertRevoked));
    assert_eq!(admit(leaf("acme", None, None), CA_A), Err(Deny::CertRevoked), "a missing region is any region");
}

#[test]
fn brokers_are_revoked_by_head_or_section() {
    let revocation = Revocation::IssuedBefore { region: label("ra"), agent: Some(label("n")), before: NOW };
    let revoked = Head { revocations: vec![revocation.clone()], ..head() };
    let bundle = bundle_of(revoked, acme()).unwrap();
    assert_eq!(bundle.admit_node(&node_leaf("ra/n"), CA_A, NOW), Err(Deny::CertRevoked));
    assert_eq!(bundle.admit_node(&node_leaf("rb/n"), CA_B, NOW), Ok(node("rb/n")));
    let operator = Section { revocations: vec![revocation], ..Section::new(tenant("operator"), [0; 16]) };
    let bundle = bundle_of(head(), operator).unwrap();
    assert_eq!(bundle.admit_node(&node_leaf("ra/n"), CA_A, NOW), Err(Deny::CertRevoked));
}

#[test]
fn anonymous_tenants_are_ordinary_and_issued_by_nobody() {
    let public = Section { issuers: vec![], ..Section::new(tenant("public"), [0; 16]) };
    let bundle = Bundle::assemble(head(), vec![(DIGEST, acme()), (DIGEST_2, public)]).unwrap();
    assert_eq!(bundle.admit_anonymous("public", NOW), Ok(()));
    assert_eq!(bundle.admit_anonymous("acme", NOW), Err(Deny::Role));
    assert_eq!(bundle.admit_anonymous("beta", NOW), Err(Deny::UnknownTenant));
    assert_eq!(bundle.admit_anonymous("public", EXPIRES), Err(Deny::BundleExpired));
    assert_eq!(bundle.retain_anonymous("public", EXPIRES), Ok(()));
    assert_eq!(bundle.retain_anonymous("acme", EXPIRES), Err(Deny::Role));
    let head = Head { superusers: vec![tenant("public")], ..head() };
    let public = Section::new(tenant("public"), [0; 16]);
    assert_eq!(bundle_of(head, public).unwrap().admit_anonymous("public", NOW), Err(Deny::Role));
}
