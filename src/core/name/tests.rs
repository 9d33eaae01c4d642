//! Tests of names, and the isolation properties that rest on names alone.

use proptest::prelude::*;

use super::*;

fn tenant(text: &str) -> TenantId {
    TenantId::parse(text).unwrap()
}

fn qualify(text: &str) -> Result<String, NameError> {
    let own = tenant("acme");
    Destination::qualify(&own, Class::Live, text.as_bytes()).map(|d| d.to_string())
}

fn filter(text: &str) -> Result<String, NameError> {
    Filter::qualify(&tenant("acme"), text.as_bytes()).map(|f| f.to_string())
}

#[test]
fn raw_names_are_qualified_with_the_callers_tenant() {
    assert_eq!(qualify("orders.new"), Ok("T.acme.live.orders.new".into()));
    assert_eq!(qualify("t.beta.x"), Ok("T.acme.live.t.beta.x".into()), "another case is another name");
    assert_eq!(qualify("Tx.y"), Ok("T.acme.live.Tx.y".into()));
    assert_eq!(qualify("a,b"), Ok("T.acme.live.a,b".into()), "a comma is literal in a raw name");
    assert_eq!(qualify("a.*.>"), Ok("T.acme.live.a.*.>".into()), "wildcards are literal in a published name");
    assert_eq!(qualify("größe.x"), Ok("T.acme.live.größe.x".into()));
}

#[test]
fn qualified_names_yield_the_tenant_they_name() {
    assert_eq!(qualify("T.acme.ctrl.x"), Ok("T.acme.ctrl.x".into()));
    assert_eq!(qualify("T.beta.bulk.x.y"), Ok("T.beta.bulk.x.y".into()), "policy, not parsing, refuses");
}

#[test]
fn malformed_names_are_refused_and_never_repaired() {
    use NameError::*;
    for (text, error) in [
        ("", Empty),
        ("T", Incomplete),
        ("T.acme", Incomplete),
        ("T.acme.live", Incomplete),
        ("T.acme.live.", Empty),
        ("T..ctrl.x", BadTenant),
        ("T.*.live.x", BadTenant),
        ("T.acme .live.x", BadTenant),
        ("T.tn-abc.live.x", ReservedTenant),
        ("T.acme.fast.x", UnknownClass),
        ("T.acme.*.x", UnknownClass),
        ("T.tenantA.x,T.tenantB.y", Composite),
        ("T.acme.live.a,b", Composite),
        ("T.acme.ctrl.T.beta.x", Nested),
        ("T.acme.ctrl.T", Nested),
        ("a..b", EmptyToken),
        (".a", EmptyToken),
        ("a.", EmptyToken),
        ("a b", BadCharacter),
        ("a\nb", BadCharacter),
        ("a\u{85}b", BadCharacter),
        ("a\u{2003}b", BadCharacter),
    ] {
        assert_eq!(qualify(text), Err(error), "{text:?}");
    }
    let own = tenant("acme");
    assert_eq!(Destination::qualify(&own, Class::Live, b"a\xffb"), Err(BadCharacter));
    let long = "x".repeat(crate::limits::RAW_BYTES_MAX);
    assert!(qualify(&long).is_ok());
    assert_eq!(qualify(&format!("{long}x")), Err(TooLong));
    let deep = vec!["x"; crate::limits::NAME_TOKENS_MAX].join(".");
    assert!(qualify(&deep).is_ok());
    assert_eq!(qualify(&format!("{deep}.x")), Err(TooManyTokens));
}

#[test]
fn filters_cover_what_they_say() {
    assert_eq!(filter("orders.*"), Ok("T.acme.*.orders.*".into()));
    assert_eq!(filter(">"), Ok("T.acme.*.>".into()));
    assert_eq!(filter("T.acme.>"), Ok("T.acme.*.>".into()));
    assert_eq!(filter("T.acme.live.a.>"), Ok("T.acme.live.a.>".into()));
    assert_eq!(filter("T.*.>"), Ok("T.*.*.>".into()));
    assert_eq!(filter("T.>"), Ok("T.*.*.>".into()));
    assert_eq!(
        filter("*.beta.live.x"),
        Ok("T.acme.*.*.beta.live.x".into()),
        "a leading wildcard stays inside the tenant"
    );
    use NameError::*;
    for (text, error) in [
        ("T.tenantA.live.x,T.tenantB.live.y", Composite),
        ("T.acme.fast.>", UnknownClass),
        ("T.acme", Incomplete),
        ("T.>.live.x", BadTenant),
        ("a.>.b", MisplacedTail),
        ("T.acme.live.T.beta.>", Nested),
        ("a..b", EmptyToken),
    ] {
        assert_eq!(filter(text), Err(error), "{text:?}");
    }
}

#[test]
fn filters_match_token_by_token() {
    let matches =
        |f: &str, n: &str| RawFilter::parse(f.as_bytes()).unwrap().matches(RawName::parse(n.as_bytes()).unwrap());
    assert!(matches("a.*", "a.b") && matches("a.>", "a.b.c") && matches(">", "a") && matches("a", "a"));
    assert!(!matches("a.*", "a") && !matches("a.>", "a") && !matches("a.*", "a.b.c") && !matches("a", "a.b"));
}

#[test]
fn inbox_owners_are_read_from_names_and_literal_filters() {
    let name = |n: &'static str| RawName::parse(n.as_bytes()).unwrap().inbox_owner();
    assert_eq!(name("inbox.r.a"), Some(("r", "a")));
    assert_eq!(name("inbox.r.a.x.y"), Some(("r", "a")));
    assert_eq!(name("inbox.r"), None);
    assert_eq!(name("inboxes.r.a"), None);
    let owner = |f: &str| {
        let f = RawFilter::parse(f.as_bytes()).unwrap();
        f.inbox_owner().map(|(r, a)| format!("{r}/{a}"))
    };
    assert_eq!(owner("inbox.r.a.>"), Some("r/a".into()));
    assert_eq!(owner("inbox.*.a"), None);
    assert_eq!(owner("inbox.r.>"), None);
}

proptest! {
    /// DESIGN section 2: a raw name never leaves the caller's tenant, whatever the bytes.
    #[test]
    fn qualify_never_leaves_the_callers_tenant(text in prop::collection::vec(any::<u8>(), 0..64)) {
        let own = tenant("acme");
        if let Ok(destination) = Destination::qualify(&own, Class::Live, &text) {
            if !destination.is_qualified() {
                prop_assert_eq!(destination.tenant(), "acme");
                prop_assert!(!text.starts_with(b"T."));
            }
            let printed = destination.to_string();
            // A comma is literal in a raw name and refused in a qualified one: the only names without a qualified form.
            let again = Destination::parse(printed.as_bytes()).map(|d| d.to_string());
            let expected = if printed.contains(',') { Err(NameError::Composite) } else { Ok(printed.clone()) };
            prop_assert_eq!(again, expected);
            let prefix = format!("T.{}.", destination.tenant());
            prop_assert!(printed.starts_with(&prefix));
        }
    }

    /// The same over texts made of the tokens that matter.
    #[test]
    fn qualify_of_nasty_tokens_stays_inside(tokens in prop::collection::vec(
        prop::sample::select(vec!["T", "t", "acme", "beta", "*", ">", "live", "ctrl", "", "a,b", "x", ",T", "tn-x"]), 0..7)) {
        let own = tenant("acme");
        let text = tokens.join(".");
        if let Ok(destination) = Destination::qualify(&own, Class::Tele, text.as_bytes()) {
            let first = tokens.first().copied().unwrap_or_default();
            prop_assert_eq!(destination.is_qualified(), first == "T");
            if first != "T" { prop_assert_eq!(destination.tenant(), "acme"); }
        }
        if let Ok(filter) = Filter::qualify(&own, text.as_bytes()) {
            prop_assert!(filter.is_qualified() || *filter.tenant() == TenantPattern::One(own));
        }
    }
}
