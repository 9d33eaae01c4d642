//! Tests of the policy: every line of DESIGN section 4, and the isolation property.

use proptest::prelude::*;

use super::*;
use crate::bundle::{AgentRule, Grant};
use crate::edge::{EdgeKey, TenantSet};
use crate::identity::{Fingerprint, KeyId, LeafName};
use crate::name::NodeId;
use crate::time::UnixTime;

fn label(text: &str) -> Label {
    Label::parse(text).unwrap()
}

fn filter(text: &str) -> RawFilter {
    RawFilter::parse(text.as_bytes()).unwrap()
}

fn principal(tenant: &str, region: &str, agent: &str, role: Role) -> Arc<Principal> {
    let leaf = LeafName {
        tenant: TenantId::parse(tenant).unwrap(),
        region: Label::parse(region).ok(),
        agent: Label::parse(agent).ok(),
        node: (role == Role::Node).then(|| NodeId::new(label(region), label(agent))),
        serial: vec![1],
        not_before: UnixTime(0),
        not_after: UnixTime(1),
    };
    Arc::new(Principal::from_leaf(leaf, role, KeyId([0; 32]), Fingerprint([7; 32])))
}

fn policy_with(change: impl FnOnce(&mut Section)) -> Policy {
    let mut acme = Section::new(TenantId::parse("acme").unwrap(), [0; 16]);
    change(&mut acme);
    let others = ["beta", "cresco-system"].map(|t| Section::new(TenantId::parse(t).unwrap(), [0; 16]));
    Policy::new(1, Arc::new(Tenants::new(std::iter::once(acme).chain(others).map(Arc::new))))
}

fn policy() -> Policy {
    policy_with(|_| {})
}

fn write(policy: &Policy, who: &Arc<Principal>, text: &str) -> Result<(String, Rule), Deny> {
    let own = who.tenant().clone();
    let destination = Destination::qualify(&own, Class::Live, text.as_bytes())?;
    let permit = policy.authorize(who, Write(destination))?;
    Ok((permit.tenant().unwrap().id().to_string(), permit.rule().clone()))
}

fn read(policy: &Policy, who: &Arc<Principal>, text: &str) -> Result<(Option<String>, Rule), Deny> {
    let filter = Filter::qualify(who.tenant(), text.as_bytes())?;
    let permit = policy.authorize(who, Read(filter))?;
    Ok((permit.tenant().map(|t| t.id().to_string()), permit.rule().clone()))
}

#[test]
fn a_tenant_has_its_own_subtree_and_no_other() {
    let (policy, alice) = (policy(), principal("acme", "r", "alice", Role::Tenant));
    assert_eq!(write(&policy, &alice, "orders.new"), Ok(("acme".into(), Rule::Own)));
    assert_eq!(write(&policy, &alice, "T.acme.bulk.x"), Ok(("acme".into(), Rule::Own)));
    assert_eq!(write(&policy, &alice, "T.beta.live.x"), Err(Deny::CrossTenant));
    assert_eq!(write(&policy, &alice, "T.nobody.live.x"), Err(Deny::CrossTenant), "foreign and missing look alike");
    assert_eq!(read(&policy, &alice, ">"), Ok((Some("acme".into()), Rule::Own)));
    assert_eq!(read(&policy, &alice, "T.beta.>"), Err(Deny::CrossTenant));
    assert_eq!(read(&policy, &alice, "T.nobody.>"), Err(Deny::CrossTenant));
    assert_eq!(read(&policy, &alice, "T.*.>"), Err(Deny::AllTenants));
    assert_eq!(Deny::AllTenants.text("acme"), Deny::CrossTenant.text("acme"));
}

#[test]
fn a_superuser_reaches_every_tenant_but_writes_no_advisory() {
    let (policy, root) = (policy(), principal("cresco-system", "r", "root", Role::Superuser));
    assert_eq!(write(&policy, &root, "T.beta.live.x"), Ok(("beta".into(), Rule::Superuser)));
    assert_eq!(read(&policy, &root, "T.acme.>"), Ok((Some("acme".into()), Rule::Superuser)));
    assert_eq!(read(&policy, &root, "T.*.>"), Ok((None, Rule::Superuser)));
    assert_eq!(read(&policy, &root, "svc"), Ok((Some("cresco-system".into()), Rule::Own)), "at home it is no observer");
    assert_eq!(write(&policy, &root, "svc"), Ok(("cresco-system".into(), Rule::Own)));
    assert_eq!(write(&policy, &root, "T.nobody.live.x"), Err(Deny::UnknownTenant));
    assert_eq!(write(&policy, &root, "T.acme.ctrl.advisory.x"), Err(Deny::CrossTenant));
    assert!(Rule::Superuser.is_observer());
}

#[test]
fn only_the_node_writes_advisories_and_only_for_the_tenant_it_names() {
    let policy = policy();
    let alice = principal("acme", "r", "alice", Role::Tenant);
    let node = Arc::new(Principal::internal(TenantId::parse("acme").unwrap()));
    assert_eq!(write(&policy, &alice, "T.acme.ctrl.advisory.x"), Err(Deny::AdvisoryWrite));
    assert_eq!(write(&policy, &alice, "advisory.x"), Ok(("acme".into(), Rule::Own)), "class live");
    assert_eq!(write(&policy, &node, "T.acme.ctrl.advisory.x"), Ok(("acme".into(), Rule::Internal)));
    assert_eq!(write(&policy, &node, "T.beta.ctrl.advisory.x"), Err(Deny::CrossTenant));
}

#[test]
fn an_inbox_is_named_by_its_owner_only() {
    let policy = policy();
    let alice = principal("acme", "r", "alice", Role::Tenant);
    let bob = principal("acme", "r", "bob", Role::Tenant);
    let nameless = principal("acme", "r", "*", Role::Tenant);
    let beta = principal("beta", "r", "alice", Role::Tenant);
    assert!(read(&policy, &alice, "inbox.r.alice.>").is_ok());
    for (who, text) in [(&bob, "inbox.r.alice.>"), (&bob, "inbox.r.alice"), (&nameless, "inbox.r.alice.>")] {
        assert_eq!(read(&policy, who, text), Err(Deny::InboxOwner));
    }
    assert!(read(&policy, &bob, "inbox.*.alice").is_ok(), "a wider filter is accepted");
    assert!(write(&policy, &bob, "inbox.r.alice.x").is_ok(), "anyone of the tenant writes to an inbox");
    let acme = policy.tenants().by_id("acme").unwrap();
    let raw = RawName::parse(b"inbox.r.alice.x").unwrap();
    assert!(may_deliver(&acme.section(), &alice, raw));
    for who in [&bob, &nameless, &beta] {
        assert!(!may_deliver(&acme.section(), who, raw), "delivery skips the inboxes of others");
    }
}

#[test]
fn reply_subjects_belong_to_their_owner_where_the_tenant_says_so() {
    let policy = policy_with(|s| s.owner_only_replies = true);
    let alice = principal("acme", "r", "alice", Role::Tenant);
    let bob = principal("acme", "r", "bob", Role::Tenant);
    assert!(read(&policy, &alice, "_INBOX.r.alice.>").is_ok());
    for text in ["_INBOX.r.alice.>", "_INBOX.>", "_INBOX.*.bob.>", "_INBOX.xyz"] {
        assert_eq!(read(&policy, &bob, text), Err(Deny::ReplyOwner), "{text}");
    }
    assert!(read(&policy, &bob, ">").is_ok());
    let acme = policy.tenants().by_id("acme").unwrap();
    assert!(!may_deliver(&acme.section(), &bob, RawName::parse(b"_INBOX.r.alice.1").unwrap()));
    assert!(write(&policy, &bob, "_INBOX.r.alice.1").is_ok(), "responders answer");
}

#[test]
fn deny_lines_win_over_allow_lines_at_subscription_and_delivery() {
    let rule = |agent: Option<&str>, deny, write, f: &str| AgentRule {
        region: None,
        agent: agent.map(label),
        deny,
        write,
        filter: filter(f),
    };
    let policy = policy_with(|s| {
        s.rules = vec![
            rule(Some("bob"), false, true, "orders.>"),
            rule(Some("bob"), true, true, "orders.secret.>"),
            rule(None, true, false, "secret.>"),
        ];
    });
    let alice = principal("acme", "r", "alice", Role::Tenant);
    let bob = principal("acme", "r", "bob", Role::Tenant);
    let nameless = principal("acme", "r", ">", Role::Tenant);
    assert!(write(&policy, &bob, "orders.new").is_ok());
    assert_eq!(write(&policy, &bob, "orders.secret.x"), Err(Deny::DenyList));
    assert_eq!(write(&policy, &bob, "other"), Err(Deny::NotInAllowList));
    assert!(write(&policy, &alice, "other").is_ok());
    assert_eq!(write(&policy, &nameless, "orders.secret.x"), Err(Deny::DenyList), "a deny covers the nameless");
    assert_eq!(read(&policy, &alice, "secret.x"), Err(Deny::DenyList));
    assert_eq!(read(&policy, &alice, "secret.>"), Err(Deny::DenyList));
    assert!(read(&policy, &alice, ">").is_ok());
    let acme = policy.tenants().by_id("acme").unwrap();
    assert!(!may_deliver(&acme.section(), &alice, RawName::parse(b"secret.x").unwrap()));
    assert!(may_deliver(&acme.section(), &alice, RawName::parse(b"open.x").unwrap()));
}

#[test]
fn a_grant_opens_what_it_names_and_nothing_more() {
    let grant =
        |write, f: &str| Grant { name: label("g"), tenant: TenantId::parse("beta").unwrap(), write, filter: filter(f) };
    let policy = policy_with(|s| s.grants = vec![grant(true, "in.>"), grant(false, "out.*")]);
    let beta = principal("beta", "r", "b", Role::Tenant);
    let other = principal("cresco-system", "r", "c", Role::Tenant);
    assert_eq!(write(&policy, &beta, "T.acme.live.in.x"), Ok(("acme".into(), Rule::Grant(label("g")))));
    assert_eq!(write(&policy, &beta, "T.acme.live.out.x"), Err(Deny::CrossTenant));
    assert_eq!(write(&policy, &beta, "T.acme.ctrl.advisory.in"), Err(Deny::CrossTenant));
    assert!(read(&policy, &beta, "T.acme.live.out.x").is_ok());
    assert!(read(&policy, &beta, "T.acme.live.out.*").is_ok());
    for text in ["T.acme.live.out.>", "T.acme.>", "T.acme.live.in.x", "T.acme.live.*.x"] {
        assert_eq!(read(&policy, &beta, text), Err(Deny::CrossTenant), "{text}");
    }
    assert_eq!(write(&policy, &other, "T.acme.live.in.x"), Err(Deny::CrossTenant));
    assert!(Rule::Grant(label("g")).is_observer());
}

#[test]
fn nobody_has_others_write_where_it_may_not_itself() {
    let grant =
        Grant { name: label("g"), tenant: TenantId::parse("beta").unwrap(), write: true, filter: filter("in.>") };
    let deny = AgentRule { region: None, agent: None, deny: true, write: true, filter: filter("secret.>") };
    let policy = policy_with(|s| {
        s.grants = vec![grant.clone()];
        s.rules = vec![deny.clone()];
        s.owner_only_replies = true;
    });
    let acme = policy.tenants().by_id("acme").unwrap();
    let check = |principal: &Arc<Principal>, rule: &Rule, reply: &str| {
        Policy::check_reply(principal, acme, rule, RawName::parse(reply.as_bytes()).unwrap())
    };
    let (own, granted) = (principal("acme", "r", "a", Role::Tenant), principal("beta", "r", "b", Role::Tenant));
    assert_eq!(check(&own, &Rule::Own, "answers.x"), Ok(()));
    assert_eq!(check(&own, &Rule::Own, "_INBOX.r.a.1"), Ok(()));
    assert_eq!(check(&own, &Rule::Own, "_INBOX.r.b.1"), Err(Deny::ReplyOwner));
    assert_eq!(check(&own, &Rule::Own, "secret.x"), Err(Deny::DenyList));
    let rule = Rule::Grant(label("g"));
    assert_eq!(check(&granted, &rule, "in.answers"), Ok(()));
    for reply in ["orders.delete", "_INBOX.r.a.1", "inbox.r.a"] {
        assert_eq!(check(&granted, &rule, reply), Err(Deny::CrossTenant), "{reply}");
    }
}

#[test]
fn a_node_carries_its_lanes_tenant_while_the_edge_allows_it_and_nothing_else() {
    let policy = policy();
    let peer = NodeId::parse("r/broker").unwrap();
    let edge = Edge::new(EdgeKey(0), label("e"), peer);
    let acme = policy.tenants().by_id("acme").unwrap();
    let beta = policy.tenants().by_id("beta").unwrap();
    edge.set_effective(TenantSet::from_iter([acme.key()]), true);
    let relay = |who: &Arc<Principal>, tenant: &Arc<Tenant>| {
        let raw = RawName::parse(b"x").unwrap();
        policy.authorize(who, Relay { tenant, edge: &edge, class: Class::Live, raw }).map(|p| p.rule().clone())
    };
    let node = principal("ops", "r", "broker", Role::Node);
    assert_eq!(relay(&node, acme), Ok(Rule::Node));
    assert_eq!(relay(&node, beta), Err(Deny::EdgeTenant));
    assert_eq!(relay(&principal("ops", "r", "other", Role::Node), acme), Err(Deny::Role), "another broker's edge");
    assert_eq!(relay(&principal("acme", "r", "broker", Role::Tenant), acme), Err(Deny::Role));
    assert_eq!(relay(&principal("cresco-system", "r", "broker", Role::Superuser), acme), Err(Deny::Role));
    assert_eq!(write(&policy, &node, "T.acme.live.x"), Err(Deny::Role), "a node is no client");
    assert_eq!(read(&policy, &node, "T.acme.>"), Err(Deny::Role));
    edge.set_effective(TenantSet::default(), false);
    assert_eq!(relay(&node, acme), Err(Deny::EdgeTenant), "nothing while the edge is down");
}

#[test]
fn administration_shows_a_tenant_its_own_and_a_superuser_all() {
    let policy = policy();
    let alice = principal("acme", "r", "alice", Role::Tenant);
    let root = principal("cresco-system", "r", "root", Role::Superuser);
    let ask = |who, tenant| policy.authorize(who, Administer { tenant }).map(|_| ());
    assert_eq!(ask(&alice, Some("acme")), Ok(()));
    assert_eq!(ask(&alice, Some("beta")), Err(Deny::CrossTenant));
    assert_eq!(ask(&alice, Some("nobody")), Err(Deny::CrossTenant));
    assert_eq!(ask(&alice, None), Err(Deny::CrossTenant));
    assert_eq!(ask(&root, None), Ok(()));
}

fn nasty_text() -> impl Strategy<Value = String> {
    let token = prop::sample::select(vec![
        "T",
        "t",
        "acme",
        "beta",
        "cresco-system",
        "*",
        ">",
        "live",
        "ctrl",
        "",
        "a,b",
        "x",
        ",T",
        "tn-x",
        "inbox",
        "r",
        "advisory",
        "_INBOX",
        " ",
        "T.beta",
        "\n",
    ]);
    prop::collection::vec(token, 0..7).prop_map(|tokens| tokens.join("."))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    /// The invariant: whatever the text, no TENANT principal without a grant gets a permit for another tenant.
    #[test]
    fn no_tenant_is_permitted_outside_its_own(text in prop_oneof![nasty_text(), ".*"], qualify in any::<bool>()) {
        let policy = policy();
        let text = if qualify { format!("T.{text}") } else { text };
        for tenant in ["acme", "beta"] {
            let who = principal(tenant, "r", "alice", Role::Tenant);
            if let Ok((reached, rule)) = write(&policy, &who, &text) {
                prop_assert_eq!(&reached, tenant);
                prop_assert_eq!(rule, Rule::Own);
            }
            if let Ok((reached, rule)) = read(&policy, &who, &text) {
                prop_assert_eq!(reached.as_deref(), Some(tenant));
                prop_assert_eq!(rule, Rule::Own);
            }
        }
    }

    /// No filter of one tenant matches another's destination: what the two are permitted never meets in one table.
    #[test]
    fn no_filter_of_one_tenant_meets_a_destination_of_another(
        filter in prop_oneof![nasty_text(), ".*", Just(">".to_owned()), Just("T.acme.>".to_owned())],
        name in prop_oneof![nasty_text(), ".*", Just("x".to_owned()), Just("T.beta.live.x".to_owned())],
    ) {
        let policy = policy();
        let (alice, bob) = (principal("acme", "r", "alice", Role::Tenant), principal("beta", "r", "bob", Role::Tenant));
        let read = Filter::qualify(alice.tenant(), filter.as_bytes()).ok().and_then(|f| policy.authorize(&alice, Read(f)).ok());
        let own = bob.tenant().clone();
        let destination = Destination::qualify(&own, Class::Live, name.as_bytes()).ok();
        let write = destination.and_then(|d| policy.authorize(&bob, Write(d)).ok());
        if let (Some(read), Some(write)) = (read, write) {
            let (read, write) = (read.tenant().unwrap(), write.tenant().unwrap());
            prop_assert!(!Arc::ptr_eq(read, write) && read.key() != write.key());
            prop_assert_ne!(read.id(), write.id());
        }
    }

    /// A filter that covers another matches whatever it matches.
    #[test]
    fn covering_filters_match_what_they_cover(
        wide in "(a|b|\\*)(\\.(a|b|\\*)){0,3}(\\.>)?",
        narrow in "(a|b|\\*)(\\.(a|b|\\*)){0,3}(\\.>)?",
        name in "(a|b|c)(\\.(a|b|c)){0,4}",
    ) {
        let (wide, narrow) = (filter(&wide), filter(&narrow));
        let name = RawName::parse(name.as_bytes()).unwrap();
        if wide.covers(&narrow) && narrow.matches(name) { prop_assert!(wide.matches(name)); }
    }
}
