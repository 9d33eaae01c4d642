//! The signed bundle file.

use glocal_core::bundle::BundleError;

use super::*;

fn load(fabric: &Fabric, envelope: &glocal_wire::bundle::Envelope) -> Result<Bundle, BundleFileError> {
    load_bundle(&envelope.encode().unwrap(), &fabric.roots(), 0, unix_now())
}

#[test]
fn a_signed_bundle_is_read() {
    let fabric = Fabric::new();
    let bundle = load(&fabric, &fabric.envelope(|_, _| ())).unwrap();
    assert_eq!(bundle.head().fabric.as_str(), "demo");
    assert_eq!(bundle.sections().len(), 4);
    let mut partial = fabric.envelope(|_, _| ());
    partial.sections.truncate(1);
    assert_eq!(load(&fabric, &partial).unwrap().sections().len(), 1, "a broker holds what concerns it");
}

#[test]
fn every_change_breaks_it() {
    let fabric = Fabric::new();
    let good = fabric.envelope(|_, _| ());
    for at in 0..good.head.len() {
        let mut bad = good.clone();
        bad.head[at] ^= 1;
        assert!(matches!(load(&fabric, &bad), Err(BundleFileError::Signature)));
    }
    let mut bad = good.clone();
    bad.signature[3] ^= 1;
    assert!(matches!(load(&fabric, &bad), Err(BundleFileError::Signature)));
    for at in 0..good.sections[1].len() {
        let mut bad = good.clone();
        bad.sections[1][at] ^= 1;
        assert!(matches!(load(&fabric, &bad), Err(BundleFileError::SectionDigest { index: 1 })));
    }
    let mut twice = good.clone();
    twice.sections.push(good.sections[0].clone());
    assert!(matches!(load(&fabric, &twice), Err(BundleFileError::Contents(BundleError::RepeatedDigest(_)))));
    let mut file = good.encode().unwrap();
    file.push(0);
    let trailing = load_bundle(&file, &fabric.roots(), 0, unix_now());
    assert!(matches!(trailing, Err(BundleFileError::Codec(_))));
}

#[test]
fn only_a_root_makes_a_bundle_key() {
    let fabric = Fabric::new();
    let name = "glocal://bundle-key/demo/1";
    let with = |certificate: Vec<u8>| {
        let envelope = glocal_wire::bundle::Envelope { bundle_key_cert: certificate, ..fabric.envelope(|_, _| ()) };
        load(&fabric, &envelope).map(|_| ())
    };
    assert!(with(fabric.bundle_key_certificate(&[name], &fabric.root)).is_ok());
    let by_region = with(fabric.bundle_key_certificate(&[name], &fabric.region_a));
    assert!(matches!(by_region, Err(BundleFileError::Key(Deny::CertUntrusted))));
    let foreign = Fabric::new();
    let by_stranger = with(fabric.bundle_key_certificate(&[name], &foreign.root));
    assert!(matches!(by_stranger, Err(BundleFileError::Key(Deny::CertUntrusted))));
    let other_key = with(foreign.bundle_key_certificate(&[name], &fabric.root));
    assert!(matches!(other_key, Err(BundleFileError::Signature)));
    assert!(matches!(with(vec![1, 2, 3]), Err(BundleFileError::Key(Deny::CertMalformed))));
    let as_leaf = with(fabric.broker("region-a/a1").chain[0].to_vec());
    assert!(matches!(as_leaf, Err(BundleFileError::Key(Deny::CertUntrusted))));
    let by_root = with(issue(&broker("region-a/a1"), &fabric.root).chain[0].to_vec());
    assert!(matches!(by_root, Err(BundleFileError::KeyName)), "a root's own leaf signs nothing");
}

#[test]
fn a_bundle_key_has_one_name_and_one_scope() {
    let fabric = Fabric::new();
    let with = |uris: &[&str]| {
        let certificate = fabric.bundle_key_certificate(uris, &fabric.root);
        let envelope = glocal_wire::bundle::Envelope { bundle_key_cert: certificate, ..fabric.envelope(|_, _| ()) };
        load(&fabric, &envelope).map(|_| ())
    };
    let good = "glocal://bundle-key/demo/1";
    for uris in [
        vec![],
        vec![good, good],
        vec![good, "https://x"],
        vec!["glocal://bundle-key/demo"],
        vec!["glocal://bundle-key/demo/01"],
        vec!["glocal://bundle-key/demo/+1"],
        vec!["glocal://bundle-key/demo/1/"],
        vec!["glocal://bundle-key/a b/1"],
        vec!["glocal://node/demo/1"],
    ] {
        assert!(matches!(with(&uris), Err(BundleFileError::KeyName)), "{uris:?}");
    }
    for uris in [["glocal://bundle-key/other/1"], ["glocal://bundle-key/demo/2"]] {
        assert!(matches!(with(&uris), Err(BundleFileError::KeyScope { .. })), "a retired or foreign key: {uris:?}");
    }
}

#[test]
fn dates_versions_and_roots_of_the_bundle_count() {
    let fabric = Fabric::new();
    let file = fabric.envelope(|head, _| head.version = 7).encode().unwrap();
    let with = |minimum, now| load_bundle(&file, &fabric.roots(), minimum, now).map(|_| ());
    assert!(with(7, unix_now()).is_ok());
    let below = with(8, unix_now());
    assert!(matches!(below, Err(BundleFileError::BelowMinimum { version: 7, minimum: 8 })), "a wiped disk");
    assert!(matches!(with(0, UnixTime(unix_now().0 + 90_000)), Err(BundleFileError::Expired(_))));
    let other_root = fabric.envelope(|head, _| head.roots = vec![authority_key(&fabric.global)]);
    assert!(matches!(load(&fabric, &other_root), Err(BundleFileError::Root(_))));
    let broken = fabric.envelope(|_, sections| sections[0].weight = 0);
    assert!(matches!(load(&fabric, &broken), Err(BundleFileError::Contents(BundleError::Weight { .. }))));
}

#[test]
fn files_are_named() {
    let fabric = Fabric::new();
    let read = |file: &std::path::Path| load_bundle_file(file, &fabric.roots(), 0, unix_now());
    let error = read(std::path::Path::new("/nowhere/bundle.glocal")).unwrap_err();
    assert_eq!(error.to_string(), "/nowhere/bundle.glocal: bundle refused");
    assert!(matches!(error.source, BundleFileError::Unreadable(_)));
}

proptest::proptest! {
    #[test]
    fn damaged_files_never_panic(at in proptest::prelude::any::<proptest::sample::Index>(), byte: u8, cut: bool) {
        let fabric = FABRIC.get_or_init(|| {
            let fabric = Fabric::new();
            let file = fabric.envelope(|_, _| ()).encode().unwrap();
            (file, fabric.roots())
        });
        let (mut file, roots) = fabric.clone();
        let at = at.index(file.len());
        if cut {
            file.truncate(at);
        } else if file[at] == byte {
            return Ok(());
        } else {
            file[at] = byte;
        }
        proptest::prop_assert!(load_bundle(&file, &roots, 0, unix_now()).is_err());
    }
}

static FABRIC: std::sync::OnceLock<(Vec<u8>, Roots)> = std::sync::OnceLock::new();
