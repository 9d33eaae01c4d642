use glocal_core::bundle::{IssuerEntry, Revocation, Section};
use glocal_core::identity::leaf_name;
use rcgen::{CertifiedIssuer, DnType, KeyPair};

use super::testing::*;
use super::*;

mod bundles;
mod credentials;
mod fabric;
mod handshakes;

fn plain() -> TrustOptions {
    TrustOptions::default()
}

/// What `region-a/a1` says of a client with this chain.
fn client(fabric: &Fabric, chain: &[CertificateDer<'_>]) -> Result<Principal, Deny> {
    fabric.trust("region-a/a1", plain()).identify_client(chain, unix_now())
}

fn refused(result: Result<Principal, Deny>) -> Deny {
    result.expect_err("should be refused")
}

#[test]
fn clients_are_who_their_certificates_say() {
    let fabric = Fabric::new();
    let trust = fabric.trust("region-a/a1", plain());
    let leaf = fabric.agent("acme", "region-a", "x1");
    let principal = trust.identify_client(&leaf.chain, unix_now()).unwrap();
    assert_eq!(principal.tenant().as_str(), "acme");
    assert_eq!(principal.role(), Role::Tenant);
    assert_eq!(principal.named(), Some((&label("region-a"), &label("x1"))));
    assert_eq!(principal.issuer(), Some(authority_key(&fabric.region_a)));
    assert_eq!(principal.not_after(), Some(leaf_name(&leaf.chain[0]).unwrap().not_after));

    let visitor = fabric.agent("acme", "region-b", "x2");
    assert!(trust.identify_client(&visitor.chain, unix_now()).is_ok(), "from another region, by that region's CA");
    let leaf = fabric.agent("cresco-system", "global", "admin");
    assert_eq!(trust.identify_client(&leaf.chain, unix_now()).unwrap().role(), Role::Superuser);
}

#[test]
fn local_configuration_narrows_superusers_only() {
    let fabric = Fabric::new();
    let leaf = fabric.agent("cresco-system", "global", "admin");
    let role = |superusers: Vec<TenantId>| {
        let options = TrustOptions { superusers: Some(superusers), anonymous: None };
        fabric.trust("region-a/a1", options).identify_client(&leaf.chain, unix_now()).unwrap().role()
    };
    assert_eq!(role(vec![tenant("cresco-system")]), Role::Superuser);
    assert_eq!(role(vec![]), Role::Tenant);
    let options = TrustOptions { superusers: Some(vec![tenant("acme")]), anonymous: None };
    let acme = fabric.agent("acme", "region-a", "x");
    let trust = fabric.trust("region-a/a1", options);
    assert_eq!(trust.identify_client(&acme.chain, unix_now()).unwrap().role(), Role::Tenant, "it adds nobody");
}

#[test]
fn a_foreign_region_authority_is_refused() {
    // Attack 11: a trusted CA signs another region's agent, a superuser, or a node.
    let fabric = Fabric::new();
    let forged = issue(&agent("acme", "region-a", "x"), &fabric.region_b);
    assert_eq!(refused(client(&fabric, &forged.chain)), Deny::IssuerBinding);
    let superuser = issue(&agent("cresco-system", "global", "x"), &fabric.region_b);
    assert_eq!(refused(client(&fabric, &superuser.chain)), Deny::IssuerBinding);
    let broker = issue(&broker("global/g1"), &fabric.region_b);
    let trust = fabric.trust("region-a/a1", plain());
    let result = trust.identify_node(&broker.chain, Usage::Client, unix_now());
    assert_eq!(refused(result), Deny::IssuerBinding);
    let by_root = issue(&agent("acme", "region-a", "x"), &fabric.root);
    assert_eq!(refused(client(&fabric, &by_root.chain)), Deny::IssuerBinding, "the root is bound to no tenant");
}

#[test]
fn a_decoy_in_the_chain_is_not_the_issuer() {
    // Attack 19: signed by region-b's CA, presented with region-a's CA beside it.
    let fabric = Fabric::new();
    let forged = issue(&agent("acme", "region-a", "x"), &fabric.region_b);
    let (leaf, ca_a, ca_b) = (&forged.chain[0], fabric.region_a.der(), fabric.region_b.der());
    for chain in [vec![leaf, ca_a, ca_b], vec![leaf, ca_b, ca_a], vec![leaf, ca_a, ca_b, fabric.root.der()]] {
        let chain: Vec<_> = chain.into_iter().cloned().collect();
        assert_eq!(refused(client(&fabric, &chain)), Deny::IssuerBinding);
    }
    assert_eq!(refused(client(&fabric, &[leaf.clone(), ca_a.clone()])), Deny::CertUntrusted);

    let honest = fabric.agent("acme", "region-a", "x");
    let chain = [honest.chain[0].clone(), ca_b.clone(), ca_a.clone()];
    let principal = client(&fabric, &chain).unwrap();
    assert_eq!(principal.issuer(), Some(authority_key(&fabric.region_a)), "a decoy harms nobody, either");
}

#[test]
fn a_leaf_cannot_issue() {
    let fabric = Fabric::new();
    let key = || KeyPair::generate().unwrap();
    let mut params = agent("acme", "region-a", "x");
    let middle = CertifiedIssuer::signed_by(params.clone(), key(), &fabric.region_a).unwrap();
    params.distinguished_name.push(DnType::OrganizationName, "beta");
    let forged = issue(&params, &middle);
    let chain = [forged.chain, vec![fabric.region_a.der().clone()]].concat();
    assert!(matches!(refused(client(&fabric, &chain)), Deny::CertUsage | Deny::CertUntrusted));
}

#[test]
fn dates_and_usages_are_checked() {
    let fabric = Fabric::new();
    let with = |params| refused(client(&fabric, &issue(&params, &fabric.region_a).chain));
    assert_eq!(with(valid(agent("acme", "region-a", "x"), -7_200, -1)), Deny::CertExpired);
    assert_eq!(with(valid(agent("acme", "region-a", "x"), 60, 7_200)), Deny::CertNotYetValid);
    let mut server_only = agent("acme", "region-a", "x");
    server_only.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    assert_eq!(with(server_only), Deny::CertUsage);
    assert_eq!(refused(client(&fabric, &[fabric.region_a.der().clone()])), Deny::CertUsage, "a CA as a leaf");
    assert_eq!(refused(client(&fabric, &[CertificateDer::from(vec![1, 2, 3])])), Deny::CertMalformed);
    let stranger = CertifiedIssuer::self_signed(authority_params("demo root"), KeyPair::generate().unwrap()).unwrap();
    let forged = issue(&agent("acme", "region-a", "x"), &stranger);
    assert_eq!(refused(client(&fabric, &forged.chain)), Deny::CertUntrusted);
}

#[test]
fn an_authority_that_expires_first_ends_its_leaves() {
    let fabric = Fabric::new();
    let key = KeyPair::generate().unwrap();
    let params = valid(authority_params("region-a CA"), -3_600, 600);
    let short = CertifiedIssuer::signed_by(params, key, &fabric.root).unwrap();
    let bundle = fabric.bundle(|_, sections| sections[0].issuers[0].key = authority_key(&short));
    let trust = Trust::new(fabric.roots(), bundle, fabric.identity("region-a/a1"), plain(), unix_now()).unwrap();
    let leaf = issue(&agent("acme", "region-a", "x"), &short);
    let now = unix_now();
    let principal = trust.identify_client(&leaf.chain, now).unwrap();
    assert!(principal.not_after().unwrap() <= UnixTime(now.0 + 601));
    let later = UnixTime(now.0 + 700);
    assert_eq!(trust.retain_client(&leaf.chain, later), Err(Deny::CertExpired), "remembered or not");
    assert_eq!(trust.verify(&leaf.chain, Usage::Client, later), Err(Deny::CertExpired));
    let earlier = UnixTime(now.0 - 3_700);
    assert_eq!(trust.verify(&leaf.chain, Usage::Client, earlier), Err(Deny::CertNotYetValid));
}

#[test]
fn a_root_that_expires_ends_everything() {
    let fabric = Fabric::with_root(&valid(authority_params("demo root"), -60, 600));
    let trust = fabric.trust("region-a/a1", plain());
    let leaf = fabric.agent("acme", "region-a", "x");
    let over = UnixTime(unix_now().0 + 700);
    assert_eq!(trust.identify_client(&leaf.chain, over), Err(Deny::CertExpired));
    assert!(trust.identify_client(&leaf.chain, unix_now()).is_ok());
    assert_eq!(trust.retain_client(&leaf.chain, over), Err(Deny::CertExpired));
}

#[test]
fn odd_subjects_are_refused_by_name() {
    // Attack 9.
    let fabric = Fabric::new();
    let with = |change: fn(&mut rcgen::CertificateParams)| {
        let mut params = agent("acme", "region-a", "x");
        change(&mut params);
        client(&fabric, &issue(&params, &fabric.region_a).chain)
    };
    let second_o = DnType::CustomDnType(vec![2, 5, 4, 10]);
    let mut two = agent("acme", "region-a", "x");
    two.distinguished_name.push(second_o, "cresco-system");
    let two = client(&fabric, &issue(&two, &fabric.region_a).chain);
    assert_eq!(refused(two), Deny::CertAmbiguousTenant);
    let none = with(|p| assert!(p.distinguished_name.remove(DnType::OrganizationName)));
    assert_eq!(refused(none), Deny::CertNoTenant);
    let bmp = with(|p| {
        let text = rcgen::string::BmpString::try_from("acme").unwrap();
        p.distinguished_name.push(DnType::OrganizationName, rcgen::DnValue::BmpString(text));
    });
    assert_eq!(refused(bmp), Deny::CertStringType);
    let comma = with(|p| p.distinguished_name.push(DnType::OrganizationName, "acme,O=beta"));
    assert_eq!(refused(comma), Deny::CertBadTenant);
    let printed = with(|p| p.distinguished_name.push(DnType::CommonName, "x,O=cresco-system")).unwrap();
    assert_eq!((printed.tenant().as_str(), printed.agent()), ("acme", None), "the true O; a nameless principal");
    let unknown = with(|p| p.distinguished_name.push(DnType::OrganizationName, "gamma"));
    assert_eq!(refused(unknown), Deny::UnknownTenant);
    let wrong_node = with(|p| p.subject_alt_names = vec![uri("glocal://node/region-a/a1")]);
    assert_eq!(refused(wrong_node), Deny::CertNodeName);
}

#[test]
fn ports_decide_what_a_certificate_may_be() {
    // Attacks 3 and 20.
    let fabric = Fabric::new();
    let trust = fabric.trust("region-a/a1", plain());
    let (broker, agent) = (fabric.broker("global/g1"), fabric.agent("acme", "region-a", "x"));
    assert_eq!(refused(trust.identify_client(&broker.chain, unix_now())), Deny::NodeOnClientPort);
    let as_node = |leaf: &Leaf, usage| trust.identify_node(&leaf.chain, usage, unix_now());
    assert_eq!(refused(as_node(&agent, Usage::Client)), Deny::ClientOnBridgePort);
    assert_eq!(refused(as_node(&agent, Usage::Server)), Deny::CertUsage, "agents are clientAuth only");
    let principal = as_node(&broker, Usage::Server).unwrap();
    assert_eq!((principal.role(), principal.node()), (Role::Node, Some(&node("global/g1"))));
    assert_eq!(refused(as_node(&fabric.broker("region-b/b1"), Usage::Client)), Deny::UnknownNode, "no edge to it");
    assert_eq!(refused(as_node(&fabric.broker("region-a/a1"), Usage::Client)), Deny::UnknownNode, "itself");
    assert_eq!(refused(as_node(&fabric.broker("region-b/other"), Usage::Client)), Deny::UnknownNode);
}

#[test]
fn sizes_are_checked_before_anything_is_parsed() {
    let fabric = Fabric::new();
    let leaf = fabric.agent("acme", "region-a", "x");
    let mut chain = vec![leaf.chain[0].clone()];
    chain.extend(std::iter::repeat_n(leaf.chain[1].clone(), 99));
    assert_eq!(refused(client(&fabric, &chain)), Deny::Limit, "a chain of 100");
    let large = CertificateDer::from(vec![0x30; glocal_core::limits::CERTIFICATE_BYTES_MAX + 1]);
    assert_eq!(refused(client(&fabric, &[leaf.chain[0].clone(), large])), Deny::Limit);
}

#[test]
fn a_new_bundle_acts_on_chains_already_verified() {
    // Attack 23 and RB-52: whoever is remembered is still asked for.
    let fabric = Fabric::new();
    let trust = fabric.trust("region-a/a1", plain());
    let (leaf, other) = (fabric.agent("acme", "region-a", "x"), fabric.agent("acme", "region-a", "y"));
    let before = trust.identify_client(&leaf.chain, unix_now()).unwrap();
    assert!(trust.identify_client(&other.chain, unix_now()).is_ok());
    let remembered = trust.cache.len();
    assert_eq!(trust.retain_client(&leaf.chain, unix_now()), Ok(before));
    assert_eq!(trust.cache.len(), remembered, "one chain is verified once");

    let serial = leaf_name(&leaf.chain[0]).unwrap().serial;
    let issuer = authority_key(&fabric.region_a);
    let by_serial = Revocation::Serial { issuer, serial };
    let by_date = Revocation::IssuedBefore { region: label("region-a"), agent: Some(label("x")), before: unix_now() };
    for revocation in [by_serial, by_date] {
        let next = fabric.bundle(|head, sections: &mut Vec<Section>| {
            head.version = 2;
            sections[0].revocations.push(revocation);
        });
        let next = trust.renew(next, unix_now()).unwrap();
        assert_eq!(next.retain_client(&leaf.chain, unix_now()), Err(Deny::CertRevoked));
        assert_eq!(next.identify_client(&leaf.chain, unix_now()), Err(Deny::CertRevoked));
        assert!(next.retain_client(&other.chain, unix_now()).is_ok());
        assert_eq!(next.cache.len(), remembered, "without verifying anything again");
    }
}

#[test]
fn a_removed_root_ends_what_it_vouched_for() {
    // RB-49: trust shrinks on reload. Two roots whose region CAs may both issue acme; then one is removed.
    let (kept, removed) = (Fabric::new(), Fabric::new());
    let both = kept.root.pem() + &removed.root.pem();
    let roots = Roots::from_pem("roots.pem", both.as_bytes(), unix_now()).unwrap();
    let issuer = IssuerEntry { key: authority_key(&removed.region_a), regions: vec![label("region-a")] };
    let first = kept.bundle(|head, sections| {
        head.roots.push(authority_key(&removed.root));
        sections[0].issuers.push(issuer.clone());
    });
    let second = kept.bundle(|head, sections| {
        head.version = 2;
        sections[0].issuers.push(issuer.clone());
    });
    let trust = Trust::new(roots, first, kept.identity("region-a/a1"), plain(), unix_now()).unwrap();
    let (stays, goes) = (kept.agent("acme", "region-a", "x"), removed.agent("acme", "region-a", "x"));
    assert!(trust.identify_client(&stays.chain, unix_now()).is_ok());
    assert!(trust.identify_client(&goes.chain, unix_now()).is_ok());
    let next = trust.renew(second, unix_now()).unwrap();
    assert!(next.retain_client(&stays.chain, unix_now()).is_ok());
    assert_eq!(next.retain_client(&goes.chain, unix_now()), Err(Deny::CertUntrusted));
    assert_eq!(next.identify_client(&goes.chain, unix_now()), Err(Deny::CertUntrusted));

    let foreign = removed.bundle(|head, _| head.version = 3);
    assert!(matches!(
        Trust::new(removed.roots(), foreign, kept.identity("region-a/a1"), plain(), unix_now()),
        Err(TrustError::OwnCertificate { reason: Deny::CertUntrusted, .. })
    ));
}

#[test]
fn bundles_only_move_forward() {
    // Attack 22.
    let fabric = Fabric::new();
    let options = plain();
    let second = fabric.bundle(|head, _| head.version = 2);
    let trust =
        Trust::new(fabric.roots(), second.clone(), fabric.identity("region-a/a1"), options, unix_now()).unwrap();
    assert!(trust.renew(second, unix_now()).is_ok(), "the same bundle again");
    let renewed = |change: fn(&mut glocal_core::bundle::Head, &mut Vec<Section>)| {
        trust.renew(fabric.bundle(change), unix_now()).map(|_| ())
    };
    assert!(matches!(renewed(|_, _| ()), Err(TrustError::OlderBundle { epoch: 1, version: 1 })));
    let twin = renewed(|head, sections| {
        head.version = 2;
        sections[0].weight = 9;
    });
    assert!(matches!(twin, Err(TrustError::Equivocation { epoch: 1, version: 2 })));
    assert!(renewed(|head, _| head.version = u64::MAX).is_ok());
    let next_epoch = renewed(|head, _| {
        head.epoch = 2;
        head.version = 1;
    });
    assert!(next_epoch.is_ok(), "an epoch overtakes every version");
}

#[test]
fn a_node_the_bundle_does_not_admit_cannot_start() {
    let fabric = Fabric::new();
    let start = |identity: NodeIdentity, options| {
        Trust::new(fabric.roots(), fabric.bundle(|_, _| ()), identity, options, unix_now()).map(|_| ())
    };
    let unknown = start(fabric.identity("region-a/other"), plain());
    assert!(matches!(unknown, Err(TrustError::OwnCertificate { reason: Deny::UnknownNode, .. })));
    let stranger = Fabric::new();
    let foreign = start(stranger.identity("region-a/a1"), plain());
    assert!(matches!(foreign, Err(TrustError::OwnCertificate { reason: Deny::CertUntrusted, .. })));
    let no_root =
        Trust::new(stranger.roots(), fabric.bundle(|_, _| ()), fabric.identity("region-a/a1"), plain(), unix_now());
    assert!(matches!(no_root, Err(TrustError::NoCommonRoot)));
    for (id, reason) in [("acme", Deny::Role), ("cresco-system", Deny::Role), ("gamma", Deny::UnknownTenant)] {
        let options = TrustOptions { anonymous: Some(tenant(id)), ..plain() };
        let result = start(fabric.identity("region-a/a1"), options);
        assert!(matches!(result, Err(TrustError::Anonymous { reason: r, .. }) if r == reason), "{id}");
    }
}

#[test]
fn no_certificate_is_only_ever_the_anonymous_tenant() {
    let fabric = Fabric::new();
    let closed = fabric.trust("region-a/a1", plain());
    assert_eq!(closed.identify_client(&[], unix_now()), Err(Deny::NoCertificate));
    assert_eq!(closed.retain_client(&[], unix_now()), Err(Deny::NoCertificate));
    let open = fabric.trust("region-a/a1", TrustOptions { anonymous: Some(tenant("public")), ..plain() });
    let anonymous = Principal::anonymous(tenant("public"));
    assert_eq!(open.identify_client(&[], unix_now()), Ok(anonymous.clone()));
    assert_eq!(open.retain_client(&[], unix_now()), Ok(anonymous));
    assert_eq!(open.identify_node(&[], Usage::Client, unix_now()), Err(Deny::NoCertificate));
    let bad = issue(&valid(agent("acme", "region-a", "x"), -7_200, -1), &fabric.region_a);
    assert_eq!(open.identify_client(&bad.chain, unix_now()), Err(Deny::CertExpired), "attack 25");
}
