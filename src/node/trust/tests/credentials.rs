//! PEM files and their errors.

use std::path::Path;

use super::*;

fn error(certificate: &str, key: &str) -> String {
    NodeIdentity::from_pem(("n.pem", certificate.as_bytes()), ("n.key", key.as_bytes()), unix_now())
        .map(|_| ())
        .unwrap_err()
        .to_string()
}

#[test]
fn every_error_names_its_file() {
    let fabric = Fabric::new();
    let (good, other) = (fabric.broker("region-a/a1"), fabric.broker("global/g1"));
    assert_eq!(error("", &good.key_pem), "n.pem: holds no certificate in PEM form");
    assert_eq!(error(&good.key_pem, &good.key_pem), "n.pem: holds no certificate in PEM form");
    assert_eq!(error(&good.chain_pem, ""), "n.key: holds no private key in PEM form");
    assert_eq!(error(&good.chain_pem, &other.key_pem), "n.key: key does not match certificate n.pem");
    assert!(error("-----BEGIN CERTIFICATE-----\nAAAA", &good.key_pem).starts_with("n.pem: not a PEM file"));
    let agent = fabric.agent("acme", "region-a", "x");
    assert!(error(&agent.chain_pem, &agent.key_pem).starts_with("n.pem: not a node certificate"));
    let old = issue(&valid(broker("region-a/a1"), -7_200, -1), &fabric.region_a);
    assert!(error(&old.chain_pem, &old.key_pem).starts_with("n.pem: certificate expired at "));
    let early = issue(&valid(broker("region-a/a1"), 60, 7_200), &fabric.region_a);
    assert!(error(&early.chain_pem, &early.key_pem).contains("check the local clock"));
    let mut nameless = broker("region-a/a1");
    nameless.distinguished_name.remove(DnType::OrganizationName);
    let nameless = issue(&nameless, &fabric.region_a);
    assert_eq!(error(&nameless.chain_pem, &nameless.key_pem), "n.pem: certificate has no O");
    assert_eq!(error(&good.chain_pem.repeat(3), &good.key_pem), "n.pem: too many certificates");
    assert_eq!(error(&good.chain_pem.repeat(33), &good.key_pem), "n.pem: too many certificates");

    let missing = NodeIdentity::load(Path::new("/nowhere/n.pem"), Path::new("/nowhere/n.key"), unix_now());
    assert_eq!(missing.unwrap_err().to_string(), "/nowhere/n.key: cannot be read");
}

#[test]
fn roots_are_authorities_in_force() {
    let fabric = Fabric::new();
    let roots = |pem: &str| Roots::from_pem("root.pem", pem.as_bytes(), unix_now());
    let loaded = roots(&(fabric.root.pem() + &Fabric::new().root.pem())).unwrap();
    assert_eq!(loaded.keys().count(), 2);
    assert_eq!(loaded.keys().next(), Some(authority_key(&fabric.root)));
    let leaf = roots(&fabric.broker("region-a/a1").chain_pem).unwrap_err();
    assert_eq!(leaf.to_string(), "root.pem: not a certificate authority");
    let old = CertifiedIssuer::self_signed(valid(authority_params("r"), -9, -1), KeyPair::generate().unwrap());
    let old = old.unwrap().pem();
    assert!(roots(&old).unwrap_err().to_string().starts_with("root.pem: certificate expired"));
    assert!(roots(&(old + &fabric.root.pem())).is_ok(), "after a succession");
    assert_eq!(roots("").unwrap_err().to_string(), "root.pem: holds no certificate in PEM form");
    let missing = Roots::load(Path::new("/nowhere/root.pem"), unix_now()).unwrap_err();
    assert_eq!(missing.to_string(), "/nowhere/root.pem: cannot be read");
}

#[test]
fn secrets_do_not_show() {
    let identity = format!("{:?}", Fabric::new().identity("region-a/a1"));
    assert!(!identity.contains("PRIVATE"));
}
