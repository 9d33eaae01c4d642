use super::*;
use crate::bundle::tests::{head_for, label, section_of};

fn piece(tenant: &str, edges: &[&str], mark: u8) -> Piece {
    let mut digest = [mark; 32];
    digest.iter_mut().zip(tenant.bytes()).for_each(|(to, from)| *to = from);
    Piece { section: Arc::new(section_of(tenant, edges)), digest, bytes: Bytes::copy_from_slice(tenant.as_bytes()) }
}

fn signed(version: u64, pieces: &[Piece]) -> SignedHead {
    let mut head = head_for(&["e1", "e2"]);
    head.version = version;
    head.sections = pieces.iter().map(|piece| piece.digest).collect();
    head.sections.sort_unstable();
    let mut digest = [0; 32];
    digest[0] = version.to_le_bytes()[0];
    let bytes = Bytes::from(version.to_le_bytes().to_vec());
    SignedHead { head, digest, bytes, signature: Bytes::new(), certificate: Bytes::new() }
}

fn holding(version: u64, pieces: &[Piece]) -> Holding {
    Holding::new(signed(version, pieces), pieces.to_vec()).unwrap()
}

#[test]
fn heads_are_ordered_and_two_of_one_version_are_told_apart() {
    let held = holding(5, &[]);
    let of = |version: u64, digest: u8, epoch: u64, fabric: &str| {
        let mut head = signed(version, &[]).head;
        (head.epoch, head.fabric) = (epoch, label(fabric));
        held.standing(&head, &{
            let mut bytes = [0; 32];
            bytes[0] = digest;
            bytes
        })
    };
    let fabric = held.signed().head.fabric.to_string();
    assert_eq!(of(6, 6, 1, &fabric), Standing::Newer);
    assert_eq!(of(1, 1, 2, &fabric), Standing::Newer, "the epoch comes first");
    assert_eq!(of(4, 4, 1, &fabric), Standing::Older);
    assert_eq!(of(5, 5, 1, &fabric), Standing::Same);
    assert_eq!(of(5, 9, 1, &fabric), Standing::Equivocates);
    assert_eq!(of(6, 6, 1, "elsewhere"), Standing::Foreign);
    assert_eq!(of(u64::MAX, 1, 0, &fabric), Standing::Older, "a high version of an old epoch is old");
}

#[test]
fn an_outdated_section_holds_for_a_moment_and_then_the_tenant_is_nowhere() {
    let (old, new) = (piece("acme", &["e1"], 1), piece("acme", &["e2"], 2));
    let steady = piece("beta", &["e1"], 1);
    let held = holding(1, &[old, steady.clone()]);
    let next = held.renewed(signed(2, &[new.clone(), steady]), Vec::new(), false, Time(0)).unwrap();
    assert!(next.bundle().edge_allows(&label("e1"), "acme"), "until the new section has come");
    assert!(next.bundle().edge_allows(&label("e1"), "beta"), "what is listed still is held still");
    assert_eq!(next.stale(), 1);
    assert!(next.wants(&new.digest));
    assert!(next.expired(Time::from_millis(BUNDLE_STALE_MS_MAX - 1)).is_none());
    let late = next.expired(Time::from_millis(BUNDLE_STALE_MS_MAX)).unwrap().unwrap();
    assert!(late.bundle().section("acme").is_none() && late.stale() == 0);
    assert!(late.bundle().section("beta").is_some());
    let healed = late.with([new.clone()]).unwrap();
    assert!(healed.bundle().edge_allows(&label("e2"), "acme") && !healed.bundle().edge_allows(&label("e1"), "acme"));
    let in_time = next.with([new]).unwrap();
    assert!(!in_time.bundle().edge_allows(&label("e1"), "acme") && in_time.stale() == 0);
}

#[test]
fn time_given_by_one_head_is_not_given_again_by_the_next() {
    let held = holding(1, &[piece("acme", &["e1"], 1)]);
    let second = held.renewed(signed(2, &[piece("acme", &[], 2)]), Vec::new(), false, Time(0)).unwrap();
    let later = Time::from_millis(BUNDLE_STALE_MS_MAX - 1);
    let third = second.renewed(signed(3, &[piece("acme", &[], 3)]), Vec::new(), false, later).unwrap();
    assert!(third.expired(later.plus_millis(1)).is_some());
}

#[test]
fn a_complete_bundle_leaves_nothing_outdated() {
    let held = holding(1, &[piece("acme", &["e1"], 1), piece("beta", &["e1"], 1)]);
    let beta = piece("beta", &["e2"], 2);
    let next = held.renewed(signed(2, std::slice::from_ref(&beta)), vec![beta], true, Time(0)).unwrap();
    assert!(next.bundle().section("acme").is_none());
    assert_eq!(next.stale(), 0);
}

#[test]
fn sections_cross_the_edges_of_their_old_and_their_new_version_only() {
    let (old, new) = (piece("acme", &["e1"], 1), piece("acme", &["e2"], 2));
    let other = piece("beta", &["e2"], 1);
    let held = holding(1, &[old, other.clone()]);
    let next = held.renewed(signed(2, &[new.clone(), other]), vec![new.clone()], false, Time(0)).unwrap();
    let all = |_: &TenantId| true;
    assert_eq!(next.offers(&label("e1"), all), [new.digest], "whoever has it must hear that it is narrowed");
    assert_eq!(next.offers(&label("e2"), all).len(), 2);
    assert!(next.offers(&label("e2"), |tenant| tenant.as_str() == "beta").len() == 1, "configuration narrows");
    assert!(held.offers(&label("e2"), all).len() == 1);
    assert!(!held.may_cross(&section_of("gamma", &["e1"]), &label("e2")), "a tenant of another edge");
    assert!(held.may_cross(&section_of("acme", &[]), &label("e1")), "a narrowing reaches whoever has the old one");
    let waiting = held.renewed(signed(2, std::slice::from_ref(&new)), Vec::new(), false, Time(0)).unwrap();
    assert!(waiting.admits(&new, &label("e1"), true) && waiting.admits(&new, &label("e2"), true));
    assert!(!waiting.admits(&new, &label("e1"), false), "configuration narrows");
    assert!(!next.admits(&new, &label("e1"), true), "it is held already");
}

#[test]
fn what_the_head_does_not_list_is_not_taken() {
    let acme = piece("acme", &["e1"], 1);
    let held = holding(1, std::slice::from_ref(&acme));
    assert!(matches!(held.with([piece("beta", &["e1"], 1)]), Err(BundleError::UnlistedSection(_))));
    assert!(matches!(held.with([piece("acme", &["e1"], 7)]), Err(BundleError::RepeatedSection(_))));
    assert!(!held.wants(&acme.digest) && !held.wants(&[9; 32]));
    let bad = piece("beta", &["nowhere"], 1);
    let head = signed(2, &[acme, bad.clone()]);
    assert!(held.renewed(head, vec![bad], false, Time(0)).is_err(), "and nothing has changed");
}
