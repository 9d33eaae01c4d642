//! Tests of advisories: who hears of what.

use glocal_core::identity::Role;

use super::*;
use crate::testing::{NOW, Node, messages, principal, subscribe};

fn events(got: &[String]) -> Vec<String> {
    got.iter().map(|line| line.split('=').next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn a_tenant_hears_of_its_own_sessions_and_of_no_others() {
    let mut node = Node::new(1);
    let advisor = Advisor::new(Arc::clone(&node.shared));
    let mut a = node.client("tenantA", "alice");
    let mut b = node.client("tenantB", "bob");
    a.say(&mut node, subscribe(1, "T.tenantA.ctrl.advisory.>"));
    b.say(&mut node, subscribe(1, ">"));
    let bob = principal("tenantB", "bob", Role::Tenant);
    let carol = principal("tenantA", "carol", Role::Tenant);
    let denied = Event::Denied { access: "write", subject: "T.tenantB.live.x".to_owned(), code: "cross-tenant" };
    let _ = advisor.tell(&carol, 7, &Event::Connect, NOW);
    let _ = advisor.tell(&bob, 8, &Event::Disconnect { reason: "closed".to_owned() }, NOW);
    let _ = advisor.tell(&carol, 7, &denied, NOW);
    let heard = messages(&a.read());
    assert_eq!(
        events(&heard),
        ["T.tenantA.ctrl.advisory.connect.region-a.carol", "T.tenantA.ctrl.advisory.denied.region-a.carol"]
    );
    assert!(heard[1].contains("\"code\":\"cross-tenant\"") && !heard[1].contains("bob"), "{heard:?}");
    assert_eq!(events(&messages(&b.read())), ["advisory.disconnect.region-a.bob"]);
}

#[test]
fn advisories_are_limited_per_tenant_and_say_what_was_left_out() {
    let mut node = Node::new(1);
    let advisor = Advisor::new(Arc::clone(&node.shared));
    let mut a = node.client("tenantA", "alice");
    a.say(&mut node, subscribe(1, "T.tenantA.ctrl.advisory.>"));
    let carol = principal("tenantA", "carol", Role::Tenant);
    for session in 0..u64::from(ADVISORIES_PER_SECOND) + 50 {
        let _ = advisor.tell(&carol, session, &Event::Connect, NOW);
    }
    assert_eq!(messages(&a.read()).len(), ADVISORIES_PER_SECOND as usize);
    let _ = advisor.tell(&carol, 999, &Event::Connect, NOW.plus_millis(2_000));
    let heard = messages(&a.read());
    assert!(heard.len() == 1 && heard[0].contains("\"left_out\":50"), "{heard:?}");
}

#[test]
fn a_subscription_that_an_advisory_fulfils_ends() {
    let mut node = Node::new(1);
    let advisor = Advisor::new(Arc::clone(&node.shared));
    let mut a = node.client("tenantA", "alice");
    a.say(&mut node, subscribe(1, "T.tenantA.ctrl.advisory.>"));
    a.say(&mut node, glocal_wire::control::Unsubscribe { sid: 1, max: Some(1) }.into());
    let carol = principal("tenantA", "carol", Role::Tenant);
    let told = advisor.tell(&carol, 1, &Event::Connect, NOW);
    assert!(matches!(&told[..], [Command::Unsubscribe { sid: 1, max: None, .. }]), "{told:?}");
}
