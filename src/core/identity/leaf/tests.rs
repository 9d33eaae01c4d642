use super::*;
use proptest::prelude::*;

const UTF8: u8 = 0x0c;
const PRINTABLE: u8 = 0x13;
const BMP: u8 = 0x1e;
const CN: u8 = 3;
const O: u8 = 10;
const OU: u8 = 11;

/// One DER element.
fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let [.., high, low] = content.len().to_be_bytes();
    let length = match content.len() {
        0..=127 => vec![low],
        128..=255 => vec![0x81, low],
        _ => vec![0x82, high, low],
    };
    [vec![tag], length, content.to_vec()].concat()
}

fn attribute(kind: u8, tag: u8, value: &[u8]) -> Vec<u8> {
    der(0x30, &[der(0x06, &[0x55, 0x04, kind]), der(tag, value)].concat())
}

fn rdn(attributes: &[Vec<u8>]) -> Vec<u8> {
    der(0x31, &attributes.concat())
}

/// An RDN with one UTF8String attribute.
fn text(kind: u8, value: &str) -> Vec<u8> {
    rdn(&[attribute(kind, UTF8, value.as_bytes())])
}

fn extension(oid: &[u8], value: &[u8]) -> Vec<u8> {
    der(0x30, &[der(0x06, oid), der(0x04, value)].concat())
}

fn alternative_names(names: &[Vec<u8>]) -> Vec<u8> {
    extension(&[0x55, 0x1d, 0x11], &der(0x30, &names.concat()))
}

fn uri(text: &str) -> Vec<u8> {
    der(0x86, text.as_bytes())
}

fn basic_constraints(ca: bool) -> Vec<u8> {
    extension(&[0x55, 0x1d, 0x13], &der(0x30, if ca { &[1, 1, 0xff] } else { &[] }))
}

/// A certificate with the given content of its subject; its signature is nonsense, which is not this module's concern.
fn certificate_with(serial: &[u8], subject: &[u8], extensions: &[Vec<u8>]) -> Vec<u8> {
    let algorithm = der(0x30, &der(0x06, &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02]));
    let key = der(0x30, &[algorithm.clone(), der(0x03, &[0, 4, 1, 2])].concat());
    let dates = [der(0x17, b"240101000000Z"), der(0x17, b"250101000000Z")].concat();
    let mut tbs = vec![
        der(0xa0, &der(0x02, &[2])),
        der(0x02, serial),
        algorithm.clone(),
        der(0x30, &text(CN, "ra CA")),
        der(0x30, &dates),
        der(0x30, subject),
        key,
    ];
    if !extensions.is_empty() {
        tbs.push(der(0xa3, &der(0x30, &extensions.concat())));
    }
    der(0x30, &[der(0x30, &tbs.concat()), algorithm, der(0x03, &[0, 9, 9])].concat())
}

fn certificate(rdns: &[Vec<u8>], extensions: &[Vec<u8>]) -> Vec<u8> {
    certificate_with(&[0, 0x99, 1], &rdns.concat(), extensions)
}

fn name_of(rdns: &[Vec<u8>]) -> Result<LeafName, IdentityError> {
    leaf_name(&certificate(rdns, &[]))
}

fn tenant_of(rdns: &[Vec<u8>]) -> Result<String, IdentityError> {
    name_of(rdns).map(|leaf| leaf.tenant.to_string())
}

fn o_of(tag: u8, value: &[u8]) -> Result<String, IdentityError> {
    tenant_of(&[rdn(&[attribute(O, tag, value)])])
}

/// A broker's leaf of `ra/n` with the given alternative names.
fn node_of(names: &[Vec<u8>]) -> Result<Option<String>, IdentityError> {
    let rdns = [text(CN, "n"), text(OU, "ra"), text(O, "acme")];
    leaf_name(&certificate(&rdns, &[alternative_names(names)])).map(|leaf| leaf.node.map(|node| node.to_string()))
}

#[test]
fn a_plain_leaf_is_read() {
    let leaf = name_of(&[text(CN, "n1"), text(OU, "ra"), text(O, "acme")]).unwrap();
    assert_eq!(leaf.tenant.as_str(), "acme");
    assert_eq!(leaf.region.unwrap().as_str(), "ra");
    assert_eq!(leaf.agent.unwrap().as_str(), "n1");
    assert_eq!(leaf.node, None);
    assert_eq!(leaf.serial, [0x99, 1], "the sign byte is gone");
    assert_eq!(leaf.not_before, UnixTime(1_704_067_200));
    assert_eq!(leaf.not_after, UnixTime(1_735_689_600));
}

#[test]
fn order_and_grouping_do_not_matter() {
    let (cn, ou, o) = (attribute(CN, UTF8, b"x"), attribute(OU, UTF8, b"r"), attribute(O, UTF8, b"acme"));
    let (cn, ou, o) = (|| cn.clone(), || ou.clone(), || o.clone());
    let groupings = [
        vec![rdn(&[cn()]), rdn(&[ou()]), rdn(&[o()])],
        vec![rdn(&[o()]), rdn(&[ou()]), rdn(&[cn()])],
        vec![rdn(&[ou()]), rdn(&[o(), cn()])],
        vec![rdn(&[o(), ou(), cn()])],
        vec![rdn(&[cn()]), rdn(&[ou(), o()])],
    ];
    let first = name_of(&groupings[0]);
    assert!(first.is_ok());
    for grouping in &groupings {
        assert_eq!(name_of(grouping), first);
    }
}

#[test]
fn exactly_one_o() {
    assert_eq!(tenant_of(&[]), Err(IdentityError::CertNoTenant), "an empty subject");
    assert_eq!(tenant_of(&[text(CN, "x,O=cresco-system")]), Err(IdentityError::CertNoTenant));
    for (a, b) in [("acme", "cresco-system"), ("cresco-system", "acme"), ("acme", "acme")] {
        assert_eq!(tenant_of(&[text(O, a), text(O, b)]), Err(IdentityError::CertAmbiguousTenant));
        let both = rdn(&[attribute(O, UTF8, a.as_bytes()), attribute(O, UTF8, b.as_bytes())]);
        assert_eq!(tenant_of(&[both]), Err(IdentityError::CertAmbiguousTenant), "within one RDN");
    }
    let with_bmp = [text(O, "acme"), rdn(&[attribute(O, BMP, b"\0x")])];
    assert_eq!(tenant_of(&with_bmp), Err(IdentityError::CertAmbiguousTenant));
    assert_eq!(tenant_of(&[text(O, "acme"), text(CN, "a,O=beta")]), Ok("acme".to_owned()));
}

#[test]
fn string_types_are_told_by_their_tag() {
    assert_eq!(o_of(UTF8, b"acme"), Ok("acme".to_owned()));
    assert_eq!(o_of(PRINTABLE, b"acme"), Ok("acme".to_owned()));
    let odd: [(u8, &[u8]); 9] = [
        (BMP, b"\0a\0c\0m\0e"),
        (BMP, b"acme"),
        (BMP, &[0xd8, 0, 0, 0x41]),
        (BMP, b"abc"),
        (0x14, b"acme"), // TeletexString
        (0x16, b"acme"), // IA5String
        (0x1c, b"\0\0\0a"),
        (0x04, b"acme"), // OCTET STRING
        (0x8c, b"acme"), // context-specific, same tag number as UTF8String
    ];
    for (tag, value) in odd {
        assert_eq!(o_of(tag, value), Err(IdentityError::CertStringType), "{tag:#x}");
    }
    // A constructed string, which DER forbids.
    assert!(o_of(0x2c, &der(UTF8, b"acme")).is_err());
}

#[test]
fn ids_outside_the_grammar_are_refused() {
    let bad: [&[u8]; 12] = [
        b"",
        b" acme",
        b"acme ",
        b"acme.eu",
        b"*",
        b">",
        b"a,b",
        b"a\0",
        b"acme\xff\xfe",
        b"\xef\xbb\xbfacme",
        b"tn-acme",
        &[b'x'; 64],
    ];
    for value in bad {
        assert_eq!(o_of(UTF8, value), Err(IdentityError::CertBadTenant), "{value:?}");
    }
    assert_eq!(o_of(PRINTABLE, b"a_b"), Err(IdentityError::CertBadTenant), "'_' is not in PrintableString");
    assert_eq!(o_of(PRINTABLE, b"a\xc3\xa9"), Err(IdentityError::CertBadTenant));
}

#[test]
fn absent_or_odd_names_make_a_nameless_principal() {
    let named = |ou: &[u8], cn: &[u8]| {
        let rdns = [rdn(&[attribute(OU, UTF8, ou)]), rdn(&[attribute(CN, UTF8, cn)]), text(O, "acme")];
        name_of(&rdns).map(|leaf| (leaf.region.is_some(), leaf.agent.is_some()))
    };
    assert_eq!(named(b"ra", b"x"), Ok((true, true)));
    assert_eq!(named(b"r.a", b"x"), Ok((false, true)));
    assert_eq!(named(b"ra", b">"), Ok((true, false)));
    assert_eq!(named(b"*", b"a.b"), Ok((false, false)));
    assert_eq!(named(b"ra", b"x\xff\xfe"), Ok((true, false)), "bad bytes elsewhere do not hurt a clean O");
    let leaf = name_of(&[text(O, "acme")]).unwrap();
    assert_eq!((leaf.region, leaf.agent), (None, None));
    let leaf = name_of(&[text(O, "acme"), rdn(&[attribute(CN, BMP, b"\0x")])]).unwrap();
    assert_eq!(leaf.agent, None);
}

#[test]
fn doubled_names_are_refused() {
    for kind in [OU, CN] {
        let rdns = [text(O, "acme"), text(kind, "a"), text(kind, "b")];
        assert_eq!(tenant_of(&rdns), Err(IdentityError::CertAmbiguousName));
    }
}

#[test]
fn node_names_equal_ou_and_cn() {
    let right = || uri("glocal://node/ra/n");
    assert_eq!(node_of(&[right()]), Ok(Some("ra/n".to_owned())));
    assert_eq!(node_of(&[der(0x82, b"host"), uri("https://x"), right()]), Ok(Some("ra/n".to_owned())));
    assert_eq!(node_of(&[der(0x82, b"glocal://node/ra/n")]), Ok(None), "a DNS name is no node name");
    let wrong = [
        vec![right(), right()],
        vec![right(), uri("glocal://node/rb/n")],
        vec![uri("glocal://node/rb/n")],
        vec![uri("glocal://node/ra/n/")],
        vec![uri("glocal://node/ra")],
        vec![uri("GLOCAL://node/ra/n")],
        vec![uri("glocal://bundle-key/demo/1")],
        vec![right(), uri("glocal:x")],
        vec![der(0x86, b"glocal://node/ra/n\xff")],
    ];
    for names in wrong {
        assert_eq!(node_of(&names), Err(IdentityError::CertNodeName), "{names:?}");
    }
    let nameless = certificate(&[text(O, "acme"), text(CN, "n")], &[alternative_names(&[right()])]);
    assert_eq!(leaf_name(&nameless), Err(IdentityError::CertNodeName));
}

#[test]
fn authorities_are_no_leaves() {
    let rdns = [text(O, "acme")];
    assert_eq!(leaf_name(&certificate(&rdns, &[basic_constraints(true)])), Err(IdentityError::CertUsage));
    assert!(leaf_name(&certificate(&rdns, &[basic_constraints(false)])).is_ok());
    let facts = |ca| certificate_facts(&certificate(&[], &[basic_constraints(ca)])).unwrap();
    assert!(facts(true).authority && !facts(false).authority);
    assert_eq!(facts(true).not_after, UnixTime(1_735_689_600));
}

#[test]
fn nothing_hides_behind_what_does_not_parse() {
    let malformed = |subject: Vec<u8>| {
        assert_eq!(leaf_name(&certificate_with(&[1], &subject, &[])), Err(IdentityError::CertMalformed));
    };
    malformed([text(O, "acme"), vec![0x05, 0], text(O, "beta")].concat());
    malformed([text(O, "acme"), vec![0x31, 0x7f]].concat());
    malformed(rdn(&[attribute(O, UTF8, b"acme"), vec![0x05, 0], attribute(O, UTF8, b"beta")]));
    let two_values = [der(0x06, &[0x55, 4, O]), der(UTF8, b"acme"), der(UTF8, b"beta")].concat();
    malformed(rdn(&[der(0x30, &two_values)]));

    let twice = certificate(&[text(O, "acme")], &[alternative_names(&[]), alternative_names(&[])]);
    assert_eq!(leaf_name(&twice), Err(IdentityError::CertMalformed), "two SAN extensions");
    let san = [der(0x30, &[]), der(0x30, &uri("glocal://node/ra/n"))].concat();
    let after = certificate(&[text(O, "acme")], &[extension(&[0x55, 0x1d, 0x11], &san)]);
    assert_eq!(leaf_name(&after), Err(IdentityError::CertMalformed), "bytes after the SAN sequence");
    let broken = certificate(&[text(O, "acme")], &[extension(&[0x55, 0x1d, 0x11], &[0x30, 0x05, 0x86])]);
    assert_eq!(leaf_name(&broken), Err(IdentityError::CertMalformed));
}

#[test]
fn sizes_and_trailing_bytes_are_checked() {
    let mut good = certificate(&[text(O, "acme")], &[]);
    assert!(leaf_name(&good).is_ok());
    good.push(0);
    assert_eq!(leaf_name(&good), Err(IdentityError::CertMalformed));
    assert_eq!(leaf_name(&[]), Err(IdentityError::CertMalformed));
    let long = certificate(&[text(O, "acme"), text(CN, &"x".repeat(CERTIFICATE_BYTES_MAX))], &[]);
    assert_eq!(leaf_name(&long), Err(IdentityError::CertMalformed));
    let serial = certificate_with(&[1; SERIAL_BYTES_MAX + 1], &text(O, "acme"), &[]);
    assert_eq!(leaf_name(&serial), Err(IdentityError::CertMalformed));
    let zero = certificate_with(&[0], &text(O, "acme"), &[]);
    assert_eq!(leaf_name(&zero).unwrap().serial, Vec::<u8>::new());
}

proptest! {
    #[test]
    fn every_valid_id_is_read_back(id in "[A-Za-z0-9][A-Za-z0-9_-]{0,62}") {
        prop_assume!(!id.starts_with("tn-"));
        prop_assert_eq!(o_of(UTF8, id.as_bytes()), Ok(id));
    }

    #[test]
    fn mutations_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let rdns = [text(CN, "n"), rdn(&[attribute(OU, UTF8, b"ra"), attribute(O, PRINTABLE, b"acme")])];
        let extensions = [basic_constraints(false), alternative_names(&[uri("glocal://node/ra/n")])];
        let mut bytes = certificate(&rdns, &extensions);
        for (index, byte) in edits {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = leaf_name(&bytes);
        bytes.truncate(cut.index(bytes.len()));
        prop_assert!(leaf_name(&bytes).is_err());
    }
}
