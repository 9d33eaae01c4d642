use super::*;

fn section(id: &str) -> Section {
    Section::new(TenantId::parse(id).unwrap(), [0; 16])
}

fn tenants(ids: &[&str]) -> Tenants {
    Tenants::new(ids.iter().map(|id| Arc::new(section(id))))
}

#[test]
fn a_tenant_has_as_many_sessions_as_its_section_allows() {
    let mut section = section("acme");
    let free = Tenant::new(TenantKey(0), Arc::new(section.clone()), &Arc::default());
    assert!((0..1000).all(|_| free.enter()), "zero is no limit");
    section.sessions_max = 2;
    let tenant = Tenant::new(TenantKey(0), Arc::new(section), &Arc::default());
    assert_eq!([tenant.enter(), tenant.enter(), tenant.enter()], [true, true, false]);
    tenant.leave();
    assert_eq!([tenant.enter(), tenant.enter()], [true, false]);
}

#[test]
fn numbers_and_handles_outlive_changes_of_the_bundle() {
    let first = tenants(&["acme", "beta", "zeta"]);
    let beta = Arc::clone(first.by_id("beta").unwrap());
    let mut heavier = section("beta");
    heavier.weight = 9;
    heavier.memory_bytes = Some(1 << 20);
    let second = first.renew([section("alpha"), heavier].map(Arc::new)).unwrap();
    assert!(Arc::ptr_eq(&beta, second.by_id("beta").unwrap()), "the same handle, so sessions need not be told");
    assert_eq!((beta.section().weight, beta.memory().max()), (9, 1 << 20));
    assert_eq!(second.by_id("alpha").unwrap().key(), TenantKey(3), "never the number of one that has gone");
    assert!(second.by_id("acme").is_none() && second.by_id("zeta").is_none());
    assert_eq!((second.len(), second.iter().count()), (2, 2));
    assert_eq!(second.by_key(TenantKey(0)).unwrap().id().as_str(), "acme", "what is on its way can still be counted");
    let third = second.renew([section("zeta"), section("acme")].map(Arc::new)).unwrap();
    assert_eq!(third.by_id("acme").unwrap().key(), TenantKey(0), "a name that comes back has its number again");
    assert_eq!(third.ever("beta").unwrap().key(), TenantKey(1));
    assert!(third.ever("nobody").is_none());
}

#[test]
fn a_node_numbers_a_bounded_number_of_tenants() {
    let mut held = tenants(&["acme"]);
    let limit = TENANT_KEYS_MAX - 1;
    let many = (0..limit).map(|n| Arc::new(section(&format!("t{n}"))));
    held = held.renew(many).unwrap();
    let before = held.by_id("t0").unwrap().section().weight;
    let mut other = section("t0");
    other.weight = before + 1;
    let refused = held.renew([Arc::new(other), Arc::new(section("one-more"))]);
    assert_eq!(refused.unwrap_err(), TooManyTenants);
    assert_eq!(held.by_id("t0").unwrap().section().weight, before, "nothing has changed");
}

#[test]
fn what_a_tenant_holds_and_may_hold_outlives_changes_of_the_bundle() {
    let bounds = MemoryBounds { node_bytes: 1 << 30, tenant_bytes: 1 << 20 };
    let first = tenants(&["acme"]).holding(bounds);
    let mut charge = crate::memory::Charge::new(Arc::clone(first.by_id("acme").unwrap().memory()));
    charge.settle(1 << 20);
    let second = first.renew([section("acme"), section("beta")].map(Arc::new)).unwrap();
    assert_eq!((second.memory().bounds(), second.memory().used()), (bounds, 1 << 20));
    assert_eq!(second.by_id("acme").unwrap().memory().used(), 1 << 20);
    let mut new = crate::memory::Charge::new(Arc::clone(second.by_id("beta").unwrap().memory()));
    new.settle(1 << 20);
    assert_eq!(second.memory().used(), 2 << 20, "a tenant that is new has an account in the same pool");
}
