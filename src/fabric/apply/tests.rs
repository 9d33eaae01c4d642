use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;

use glocal_core::bundle::Bundle;
use glocal_core::deny::Deny;
use glocal_core::identity::{Role, leaf_name};
use glocal_core::name::{Label, NodeId, TenantId};
use glocal_wire::bundle::Envelope;
use rustls_pki_types::CertificateDer;

use super::*;
use crate::chain::{self, Usage};
use crate::explain::explain;
use crate::testing::{Forge, Forged, Oddity};
use crate::{bundle, inspect, pki};

const PLAN: &str = include_str!("tests/two-region.toml");

struct Fabric {
    directory: tempfile::TempDir,
    plan: Plan,
}

impl Fabric {
    fn new() -> Self {
        let fabric = Self { directory: tempfile::tempdir().unwrap(), plan: Plan::parse(PLAN, "fabric.toml").unwrap() };
        fabric.apply(&fabric.plan).unwrap();
        fabric
    }

    fn out(&self) -> PathBuf {
        self.directory.path().join("out")
    }

    fn apply(&self, plan: &Plan) -> Result<(Applied, Vec<Event>), ApplyError> {
        let mut events = Vec::new();
        let applied = apply(plan, &self.out(), &mut |event| events.push(event))?;
        Ok((applied, events))
    }

    fn read(&self, path: &str) -> Vec<u8> {
        std::fs::read(self.out().join(path)).unwrap()
    }

    fn chain(&self, path: &str) -> Vec<CertificateDer<'static>> {
        pki::certificates(&self.read(path)).unwrap()
    }

    fn envelope(&self, path: &str) -> Envelope {
        Envelope::decode(&self.read(path)).unwrap()
    }

    fn bundle(&self, path: &str) -> Bundle {
        bundle::verify(&self.envelope(path), &self.chain("root/root.pem"), now()).unwrap()
    }

    fn conflicts(&self, plan: &Plan) -> Vec<String> {
        let before = self.snapshot();
        let Err(ApplyError::Conflicts(list)) = self.apply(plan) else { panic!("no conflict") };
        assert_eq!(before, self.snapshot(), "a conflict changes nothing");
        let out = self.out().display().to_string() + "/";
        list.iter().map(|c| c.to_string().replace(&out, "")).collect()
    }

    /// Every file below the output directory with its contents.
    fn snapshot(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = BTreeMap::new();
        let mut todo = vec![self.out()];
        while let Some(directory) = todo.pop() {
            for entry in std::fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    todo.push(path);
                } else {
                    files.insert(path.clone(), std::fs::read(&path).unwrap());
                }
            }
        }
        files
    }
}

fn label(text: &str) -> Label {
    Label::parse(text).unwrap()
}

fn tenant(text: &str) -> TenantId {
    TenantId::parse(text).unwrap()
}

#[test]
fn a_second_apply_makes_nothing() {
    let fabric = Fabric::new();
    let before = fabric.snapshot();
    let (applied, events) = fabric.apply(&fabric.plan).unwrap();
    assert!(applied.is_unchanged(), "{events:?}");
    assert!(events.iter().all(|e| e.action == Action::Kept));
    assert_eq!((applied.bundle_epoch, applied.bundle_version), (1, 1));
    assert_eq!(before, fabric.snapshot());
    let (preview, shown) = preview(&fabric.plan, &fabric.out(), 0).unwrap();
    assert_eq!((preview, shown), (applied, events), "a preview says what an apply does");
}

#[test]
fn the_order_of_a_plan_changes_nothing() {
    let fabric = Fabric::new();
    let mut plan = fabric.plan.clone();
    plan.nodes.reverse();
    plan.tenants.reverse();
    plan.superusers.reverse();
    plan.tenants.iter_mut().for_each(|t| t.regions.reverse());
    assert!(fabric.apply(&plan).unwrap().0.is_unchanged());
}

#[test]
fn a_new_agent_adds_only_itself_and_a_new_tenant_a_bundle() {
    let fabric = Fabric::new();
    let more = format!("{PLAN}\n[[agent]]\nname = \"carol\"\nregion = \"region-b\"\ntenant = \"tenantA\"\n");
    let (applied, events) = fabric.apply(&Plan::parse(&more, "p").unwrap()).unwrap();
    let made: Vec<String> = events
        .iter()
        .filter(|e| e.action != Action::Kept)
        .map(|e| format!("{} {}", e.action.as_str(), e.path.display()))
        .collect();
    let expected = ["made agents/tenantA/carol@region-b.key", "made agents/tenantA/carol@region-b.pem"];
    assert_eq!(made, expected);
    assert_eq!(applied.bundle_version, 1, "agents are not in the bundle");

    let more = format!("{more}\n[[tenant]]\nid = \"guest\"\nregions = [\"region-b\"]\n");
    let (applied, events) = fabric.apply(&Plan::parse(&more, "p").unwrap()).unwrap();
    assert_eq!((applied.bundle_version, applied.made), (2, 0));
    let updated: Vec<String> =
        events.iter().filter(|e| e.action == Action::Updated).map(|e| e.path.display().to_string()).collect();
    let expected = [
        "bundle/bundle.glocal",
        "nodes/global-broker-g/bundle.glocal",
        "nodes/region-a-broker-a/bundle.glocal",
        "nodes/region-b-broker-b/bundle.glocal",
    ];
    assert_eq!(updated, expected);
    assert!(fabric.bundle("nodes/region-b-broker-b/bundle.glocal").section("guest").is_some());
    assert!(fabric.bundle("nodes/region-a-broker-a/bundle.glocal").section("guest").is_none());
    assert!(fabric.apply(&Plan::parse(&more, "p").unwrap()).unwrap().0.is_unchanged());
}

#[test]
fn keys_are_private_and_directories_of_keys_too() {
    let fabric = Fabric::new();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for (path, bytes) in fabric.snapshot() {
        let secret = path.extension().is_some_and(|e| e == "key") || path.ends_with("bundle/salt");
        assert_eq!(bytes.windows(11).any(|w| w == b"PRIVATE KEY"), path.extension().is_some_and(|e| e == "key"));
        if secret {
            assert_eq!(mode(&path), 0o600, "{}", path.display());
            assert_eq!(mode(path.parent().unwrap()), 0o700, "{}", path.display());
        }
    }
    let leftover =
        fabric.snapshot().into_keys().find(|p| p.file_name().unwrap().to_string_lossy().starts_with(".root"));
    assert_eq!(leftover, None, "no temporary file is left");
}

#[test]
fn certificates_say_what_the_design_wants() {
    let fabric = Fabric::new();
    let root = inspect::inspect(&fabric.chain("root/root.pem")[0]).unwrap();
    assert_eq!((root.subject[0].value.as_str(), root.ca), ("two-region root", Some(Some(1))));
    let region = inspect::inspect(&fabric.chain("regions/region-a/ca.pem")[0]).unwrap();
    assert_eq!((region.subject[0].value.as_str(), region.ca), ("region-a CA", Some(Some(0))));
    assert_eq!(region.usages, ["digitalSignature", "keyCertSign", "cRLSign"]);

    let chain = fabric.chain("agents/tenantA/alice@region-a.pem");
    assert_eq!(chain.len(), 2, "leaf and region CA");
    let agent = inspect::inspect(&chain[0]).unwrap();
    assert_eq!(agent.usages, ["digitalSignature", "clientAuth"]);
    assert!(agent.names.is_empty(), "agents have no names to serve under");
    assert_eq!(agent.serial.len(), 32, "128 bits");
    assert_eq!(agent.not_after.0 - agent.not_before.0, 90 * 86_400 + 300);
    assert!(agent.not_before.0 + 300 - now().0 <= 0);

    let node = inspect::inspect(&fabric.chain("nodes/region-a-broker-a/node.pem")[0]).unwrap();
    assert_eq!(node.names, ["URI:glocal://node/region-a/broker-a", "DNS:localhost", "IP:127.0.0.1"]);
    assert_eq!(node.usages, ["digitalSignature", "clientAuth", "serverAuth"]);
    let subject: Vec<String> = node.subject.iter().map(|a| format!("{}={}", a.name, a.value)).collect();
    assert_eq!(subject, ["CN=broker-a", "OU=region-a", "O=fabric-ops"]);
    assert_ne!(root.serial, region.serial);
}

#[test]
fn leaves_are_admitted_as_the_plan_says() {
    let fabric = Fabric::new();
    let bundle = fabric.bundle("bundle/bundle.glocal");
    let roots = fabric.chain("root/root.pem");
    let admit = |path: &str, usage| {
        let chain = fabric.chain(path);
        let issuer = chain::verify(&chain[0], &chain[1..], &roots, usage, now()).unwrap().issuer;
        let name = leaf_name(&chain[0]).unwrap();
        (bundle.admit_client(&name, issuer, now()), bundle.admit_node(&name, issuer, now()))
    };
    let (client, node) = admit("agents/tenantA/alice@region-a.pem", Usage::Client);
    assert_eq!((client, node), (Ok(Role::Tenant), Err(Deny::ClientOnBridgePort)));
    let (client, _) = admit("agents/cresco-system/admin@global.pem", Usage::Client);
    assert_eq!(client, Ok(Role::Superuser));
    for usage in [Usage::Client, Usage::Server] {
        let (client, node) = admit("nodes/region-b-broker-b/node.pem", usage);
        assert_eq!(client, Err(Deny::NodeOnClientPort));
        assert_eq!(node, Ok(NodeId::parse("region-b/broker-b").unwrap()));
    }
    let agent = fabric.chain("agents/tenantA/alice@region-a.pem");
    let served = chain::verify(&agent[0], &agent[1..], &roots, Usage::Server, now());
    assert_eq!(served.unwrap_err().deny, Deny::CertUsage, "an agent may not serve");
}

#[test]
fn nodes_hold_only_the_sections_they_may_need() {
    let fabric = Fabric::new();
    let held = |path: &str| {
        let bundle = fabric.bundle(path);
        bundle.sections().map(|s| s.tenant.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(held("bundle/bundle.glocal"), ["cresco-system", "only-b", "tenantA", "tenantB"]);
    assert_eq!(held("nodes/region-a-broker-a/bundle.glocal"), ["cresco-system", "tenantA", "tenantB"]);
    assert_eq!(held("nodes/region-b-broker-b/bundle.glocal"), ["cresco-system", "only-b", "tenantA", "tenantB"]);
    assert_eq!(held("nodes/global-broker-g/bundle.glocal"), ["cresco-system", "tenantA", "tenantB"]);
    let narrowed = fabric.read("nodes/region-a-broker-a/bundle.glocal");
    assert!(!narrowed.windows(6).any(|w| w == b"only-b"), "not even the name");
    let bundle = fabric.bundle("bundle/bundle.glocal");
    let edge = label("a-global");
    assert!(bundle.edge_allows(&edge, "tenantA") && bundle.edge_allows(&edge, "tenantB"));
    assert!(!bundle.edge_allows(&label("b-global"), "tenantB"), "the plan keeps tenantB off that edge");
    assert_eq!(bundle.section("tenantA").unwrap().grants.len(), 1);
}

#[test]
fn many_tenants_hold_what_the_plan_gives_each() {
    use std::fmt::Write as _;
    let mut text = PLAN.to_owned();
    for number in 0..2_000 {
        let name = if number % 2 == 0 { "tenant" } else { "many" };
        write!(text, "\n[[tenant]]\nid = \"{name}{number:04}\"\nregions = [\"region-b\"]\n").unwrap();
    }
    let fabric = Fabric { directory: tempfile::tempdir().unwrap(), plan: Plan::parse(&text, "fabric.toml").unwrap() };
    fabric.apply(&fabric.plan).unwrap();
    let held = |path: &str| fabric.bundle(path).sections().len();
    assert_eq!(held("bundle/bundle.glocal"), 2_004);
    // By an edge, by a region, and by an edge again.
    assert_eq!(held("nodes/region-a-broker-a/bundle.glocal"), 1_003);
    assert_eq!(held("nodes/region-b-broker-b/bundle.glocal"), 2_004);
    assert_eq!(held("nodes/global-broker-g/bundle.glocal"), 1_003);
    let bundle = fabric.bundle("bundle/bundle.glocal");
    let edges = |id: &str| bundle.section(id).unwrap().edges.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(edges("tenantA"), ["a-global", "b-global"]);
    assert_eq!(edges("tenant1998"), ["a-global"]);
    assert!(edges("many1999").is_empty());
}

#[test]
fn a_changed_bundle_is_not_believed() {
    let fabric = Fabric::new();
    let roots = fabric.chain("root/root.pem");
    let good = fabric.envelope("bundle/bundle.glocal");
    let verify = |envelope: &Envelope| bundle::verify(envelope, &roots, now());
    assert!(verify(&good).is_ok());
    let mut head = good.clone();
    *head.head.last_mut().unwrap() ^= 1;
    assert!(matches!(verify(&head), Err(bundle::BundleFileError::Signature)));
    let mut section = good.clone();
    let bytes = section.sections.first_mut().unwrap();
    let at = bytes.windows(4).position(|w| w == b"tena").unwrap();
    bytes[at + 3] = b'b';
    assert!(matches!(verify(&section), Err(bundle::BundleFileError::Contents(_))));
    let other = Fabric::new();
    assert!(matches!(
        bundle::verify(&good, &other.chain("root/root.pem"), now()),
        Err(bundle::BundleFileError::Certificate(_))
    ));
    let mut swapped = good;
    swapped.bundle_key_cert = fabric.chain("regions/region-a/ca.pem")[0].to_vec();
    assert!(verify(&swapped).is_err(), "a region CA is no bundle key");
}

#[test]
fn conflicts_name_the_file_and_change_nothing() {
    let fabric = Fabric::new();
    let other = Fabric::new();
    let put = |path: &str, bytes: &[u8]| std::fs::write(fabric.out().join(path), bytes).unwrap();
    let keep = |path: &str| fabric.read(path);

    let saved = keep("nodes/region-a-broker-a/node.toml");
    put("nodes/region-a-broker-a/node.toml", b"# mine\n");
    fabric.apply(&fabric.plan).unwrap();
    assert_eq!(keep("nodes/region-a-broker-a/node.toml"), b"# mine\n", "what was changed by hand is kept");
    put("nodes/region-a-broker-a/node.toml", &saved);

    let saved = keep("agents/tenantA/alice@region-a.pem");
    put("agents/tenantA/alice@region-a.pem", &keep("agents/tenantB/bob@region-a.pem"));
    let text = "agents/tenantA/alice@region-a.pem: is not of agent CN=alice, OU=region-a, O=tenantA; move it away to have \
                it issued anew";
    assert_eq!(fabric.conflicts(&fabric.plan), [text]);
    put("agents/tenantA/alice@region-a.pem", &other.read("agents/tenantA/alice@region-a.pem"));
    let text = "agents/tenantA/alice@region-a.pem: is not issued by the present CA of region 'region-a'; move it away to \
                have it issued anew";
    assert_eq!(fabric.conflicts(&fabric.plan), [text]);
    put("agents/tenantA/alice@region-a.pem", b"nothing");
    put("bundle/salt", b"short");
    let texts = ["agents/tenantA/alice@region-a.pem: holds no certificate in PEM form"];
    assert_eq!(fabric.conflicts(&fabric.plan), ["bundle/salt: has 5 bytes instead of 32"]);
    put("bundle/salt", &other.read("bundle/salt"));
    assert_eq!(fabric.conflicts(&fabric.plan), texts);
    put("agents/tenantA/alice@region-a.pem", &saved);

    let saved = keep("regions/region-b/ca.key");
    put("regions/region-b/ca.key", &keep("regions/region-a/ca.key"));
    let text = "regions/region-b/ca.key: the private key is not the one of the certificate";
    assert_eq!(fabric.conflicts(&fabric.plan), [text]);
    put("regions/region-b/ca.key", &saved);
    std::fs::set_permissions(fabric.out().join("regions/region-b/ca.key"), std::fs::Permissions::from_mode(0o644))
        .unwrap();
    let text = "regions/region-b/ca.key: is a private key that others can read (mode 0644); chmod 600 it";
    assert_eq!(fabric.conflicts(&fabric.plan), [text]);
}

#[test]
fn a_plan_of_another_fabric_is_refused() {
    let fabric = Fabric::new();
    let mut plan = fabric.plan.clone();
    plan.fabric = label("another");
    assert_eq!(fabric.conflicts(&plan), ["root/root.pem: is of 'two-region root', the plan needs 'another root'"]);
    let mut plan = fabric.plan.clone();
    plan.nodes[0].hosts.push("broker.example".to_owned());
    let text =
        "nodes/global-broker-g/node.pem: does not name host 'broker.example'; move it away to have it issued anew";
    assert_eq!(fabric.conflicts(&plan), [text]);
    plan.nodes[0].hosts = vec!["localhost".to_owned()];
    let text = "nodes/global-broker-g/node.pem: names other hosts than localhost; move it away to have it issued anew";
    assert_eq!(fabric.conflicts(&plan), [text]);
}

#[test]
fn keys_may_be_kept_elsewhere_until_they_are_needed() {
    let fabric = Fabric::new();
    for path in ["root/root.key", "regions/region-a/ca.key", "agents/tenantA/alice@region-a.key", "bundle/bundle.key"] {
        std::fs::remove_file(fabric.out().join(path)).unwrap();
    }
    assert!(fabric.apply(&fabric.plan).unwrap().0.is_unchanged());
    let more = format!("{PLAN}\n[[agent]]\nname = \"carol\"\nregion = \"region-a\"\ntenant = \"tenantA\"\n");
    let text = format!(
        "agents/tenantA/carol@region-a.pem: cannot be issued: the private key of the CA of region 'region-a' is needed ({})",
        fabric.out().join("regions/region-a/ca.key").display()
    )
    .replace(&(fabric.out().display().to_string() + "/"), "");
    assert_eq!(fabric.conflicts(&Plan::parse(&more, "p").unwrap()), [text]);
    let more = format!("{PLAN}\n[[region]]\nname = \"region-c\"\n");
    let text = "regions/region-c/ca.pem: cannot be made: the private key of the root of fabric 'two-region' is needed \
                (root/root.key)";
    assert_eq!(fabric.conflicts(&Plan::parse(&more, "p").unwrap()), [text]);
    let more = format!("{PLAN}\n[[tenant]]\nid = \"tenantC\"\nregions = []\n");
    let text = "bundle/bundle.glocal: a new version is needed, but bundle/bundle.key is not there to sign it";
    assert_eq!(fabric.conflicts(&Plan::parse(&more, "p").unwrap()), [text]);
}

#[test]
fn an_interrupted_apply_is_continued() {
    let fabric = Fabric::new();
    let key = fabric.read("agents/tenantA/alice@region-a.key");
    std::fs::remove_file(fabric.out().join("agents/tenantA/alice@region-a.pem")).unwrap();
    let (applied, _) = fabric.apply(&fabric.plan).unwrap();
    assert_eq!(applied.made, 1);
    assert_eq!(key, fabric.read("agents/tenantA/alice@region-a.key"), "the key that was there is used");
    let key = pki::key_from_pem(&String::from_utf8(key).unwrap()).unwrap();
    assert!(pki::key_fits(&key, &fabric.chain("agents/tenantA/alice@region-a.pem")[0]));
}

#[test]
fn an_ageing_bundle_is_signed_afresh_and_expired_leaves_are_named() {
    let fabric = Fabric::new();
    let later = UnixTime(now().0 + 16 * 86_400);
    let applied = apply_at(&fabric.plan, &fabric.out(), later, &mut |_| ()).unwrap();
    assert_eq!((applied.bundle_version, applied.made, applied.updated), (2, 0, 4));
    let much_later = UnixTime(now().0 + 91 * 86_400);
    let error = apply_at(&fabric.plan, &fabric.out(), much_later, &mut |_| ()).unwrap_err().to_string();
    assert!(error.contains("alice@region-a.pem: has expired; move it away to have it issued anew"), "{error}");
}

#[test]
fn two_applies_at_once_exclude_one_another() {
    let fabric = Fabric::new();
    let lock = Lock::take(&fabric.out()).unwrap().unwrap();
    assert!(matches!(fabric.apply(&fabric.plan), Err(ApplyError::Busy(_))));
    drop(lock);
    assert!(fabric.apply(&fabric.plan).is_ok());
}

#[test]
fn what_is_not_of_the_plan_is_left_alone() {
    let fabric = Fabric::new();
    std::fs::write(fabric.out().join("notes.txt"), "mine").unwrap();
    std::fs::write(fabric.out().join("nodes/region-a-broker-a/extra"), "mine too").unwrap();
    let before = fabric.snapshot();
    fabric.apply(&fabric.plan).unwrap();
    assert_eq!(before, fabric.snapshot());
    let file = fabric.out().join("notes.txt");
    assert!(matches!(apply(&fabric.plan, &file, &mut |_| ()), Err(ApplyError::Io { .. })), "a file is no directory");
}

#[test]
fn odd_certificates_are_refused_for_the_right_reason() {
    let fabric = Fabric::new();
    let roots = fabric.chain("root/root.pem");
    let envelope = fabric.envelope("bundle/bundle.glocal");
    let a = Forge::open(&fabric.out(), &label("region-a")).unwrap();
    let b = Forge::open(&fabric.out(), &label("region-b")).unwrap();
    let judge = |forged: &Forged| explain(&forged.chain, &roots, &envelope, now());
    for (oddity, expected) in [
        (Oddity::None, None),
        (Oddity::NoTenant, Some(Deny::CertNoTenant)),
        (Oddity::TwoTenants, Some(Deny::CertAmbiguousTenant)),
        (Oddity::TwoTenantsSwapped, Some(Deny::CertAmbiguousTenant)),
        (Oddity::BmpTenant, Some(Deny::CertStringType)),
        (Oddity::NulInTenant, Some(Deny::CertBadTenant)),
        (Oddity::TwoRegions, Some(Deny::CertAmbiguousName)),
        (Oddity::Expired, Some(Deny::CertExpired)),
        (Oddity::NotYetValid, Some(Deny::CertNotYetValid)),
        (Oddity::NodeName, Some(Deny::UnknownNode)),
        // These are who they are: the tenant, nameless where CN is no label.
        (Oddity::CommaInName, None),
        (Oddity::WildcardName, None),
        (Oddity::ServerAuth, None),
    ] {
        let answer = judge(&a.leaf(&tenant("tenantA"), &label("eve"), oddity).unwrap());
        assert_eq!(answer.deny(), expected, "{oddity:?}: {:?}", answer.steps.last());
        if let Some(principal) = answer.principal {
            assert_eq!((principal.tenant().as_str(), principal.role()), ("tenantA", Role::Tenant), "{oddity:?}");
            let nameless = matches!(oddity, Oddity::CommaInName | Oddity::WildcardName);
            assert_eq!(principal.named().is_none(), nameless, "{oddity:?}");
        }
    }
    let cases = [
        (a.leaf(&tenant("only-b"), &label("eve"), Oddity::None), Deny::IssuerBinding, "another region's tenant"),
        (a.leaf(&tenant("cresco-system"), &label("eve"), Oddity::None), Deny::IssuerBinding, "a superuser"),
        (a.leaf(&tenant("nobody"), &label("eve"), Oddity::None), Deny::UnknownTenant, "no tenant"),
        (b.leaf_in(&tenant("tenantA"), &label("region-a"), &label("eve"), Oddity::None), Deny::IssuerBinding, "region"),
        (b.decoy(&a, &tenant("tenantA"), &label("eve")), Deny::IssuerBinding, "a decoy"),
        (
            b.leaf_in(&tenant("fabric-ops"), &label("region-a"), &label("broker-a"), Oddity::NodeName),
            Deny::IssuerBinding,
            "a node",
        ),
        (
            Forge::foreign(&label("two-region"), &label("region-a"))
                .and_then(|f| f.leaf(&tenant("tenantA"), &label("eve"), Oddity::None)),
            Deny::CertUntrusted,
            "another fabric",
        ),
    ];
    for (forged, expected, what) in cases {
        let answer = judge(&forged.unwrap());
        assert_eq!(answer.deny(), Some(expected), "{what}: {:?}", answer.steps.last());
        assert!(!answer.is_admitted());
    }
}

#[test]
fn revocations_of_the_plan_are_obeyed() {
    let fabric = Fabric::new();
    let serial = inspect::inspect(&fabric.chain("agents/tenantB/bob@region-a.pem")[0]).unwrap().serial;
    let more = format!(
        "{PLAN}\n[[revocation]]\ntenant = \"tenantA\"\nregion = \"region-a\"\nagent = \"alice\"\nbefore = \
         \"2999-01-01T00:00:00Z\"\n[[revocation]]\ntenant = \"tenantB\"\nregion = \"region-a\"\nserial = \"{serial}\"\n\
         [[revocation]]\ntenant = \"fabric-ops\"\nregion = \"region-b\"\nbefore = \"2999-01-01T00:00:00Z\"\n"
    );
    fabric.apply(&Plan::parse(&more, "p").unwrap()).unwrap();
    let roots = fabric.chain("root/root.pem");
    let envelope = fabric.envelope("bundle/bundle.glocal");
    for (path, expected) in [
        ("agents/tenantA/alice@region-a.pem", Some(Deny::CertRevoked)),
        ("agents/tenantB/bob@region-a.pem", Some(Deny::CertRevoked)),
        ("nodes/region-b-broker-b/node.pem", Some(Deny::CertRevoked)),
        ("nodes/region-a-broker-a/node.pem", None),
        ("agents/tenantA/amy@region-b.pem", None),
    ] {
        assert_eq!(explain(&fabric.chain(path), &roots, &envelope, now()).deny(), expected, "{path}");
    }
}

#[test]
fn a_named_re_signer_gets_a_key_of_its_own_and_the_head_names_it() {
    let fabric = Fabric::new();
    let named = Plan::parse(&format!("resigner = \"region-a/broker-a\"\n{PLAN}"), "p").unwrap();
    let (applied, _) = fabric.apply(&named).unwrap();
    assert_eq!((applied.made, applied.bundle_version), (2, 2), "key and certificate");
    let head = fabric.bundle("bundle/bundle.glocal").head().clone();
    assert_eq!(head.resigner.map(|node| node.to_string()).as_deref(), Some("region-a/broker-a"));
    let key = fabric.out().join("nodes/region-a-broker-a/bundle-signing.key");
    assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    let chain = fabric.chain("nodes/region-a-broker-a/bundle-signing.pem");
    let pair = pki::key_from_pem(&std::fs::read_to_string(&key).unwrap()).unwrap();
    assert!(pki::key_fits(&pair, &chain[0]));
    assert_ne!(chain[0], fabric.chain("bundle/bundle-key.pem")[0], "not the operator's");
    let config = String::from_utf8(fabric.read("nodes/region-a-broker-a/node.toml")).unwrap();
    assert!(config.contains("bundle_signing_key_file = \"bundle-signing.key\""), "{config}");
    assert!(config.contains("bundle_signing_certificate = \"bundle-signing.pem\""), "{config}");
    for other in ["nodes/region-b-broker-b", "nodes/global-broker-g"] {
        assert!(!fabric.out().join(other).join("bundle-signing.key").exists());
        assert!(!String::from_utf8(fabric.read(&format!("{other}/node.toml"))).unwrap().contains("bundle_signing"));
    }
    assert!(fabric.apply(&named).unwrap().0.is_unchanged());
    // Without the root's key there is nobody to certify it, and nothing is written.
    let other = Fabric::new();
    std::fs::remove_file(other.out().join("root/root.key")).unwrap();
    let conflicts = other.conflicts(&named);
    assert!(conflicts[0].contains("bundle-signing.pem: cannot be made: the private key of the root"), "{conflicts:?}");
}

#[test]
fn a_version_above_the_one_in_force_is_signed_where_it_is_given() {
    let fabric = Fabric::new();
    let above = |version| apply_above(&fabric.plan, &fabric.out(), version, &mut |_| {}).unwrap().bundle_version;
    assert_eq!(above(0), 1);
    assert_eq!(above(7), 8, "though nothing else has changed");
    assert_eq!(above(7), 8, "it is above already");
    let signed = crate::sign::resign(&fabric.out(), None, 11, now()).unwrap();
    assert_eq!(signed.version, 12);
    assert_eq!(fabric.bundle("nodes/region-a-broker-a/bundle.glocal").head().version, 12);
}

#[test]
fn configurations_have_the_edges_of_their_side() {
    let fabric = Fabric::new();
    let text = String::from_utf8(fabric.read("nodes/region-a-broker-a/node.toml")).unwrap();
    let value: toml::Table = text.parse().unwrap();
    assert_eq!(value["regionname"].as_str(), Some("region-a"));
    assert_eq!(value["node_key_file"].as_str(), Some("node.key"));
    let edge = &value["edges"][0];
    assert_eq!(edge["peer"].as_str(), Some("global/broker-g"));
    assert_eq!(edge["addresses"][0].as_str(), Some("127.0.0.1:32010"));
    let text = String::from_utf8(fabric.read("nodes/global-broker-g/node.toml")).unwrap();
    let value: toml::Table = text.parse().unwrap();
    let edges = value["edges"].as_array().unwrap();
    assert_eq!(edges.len(), 2);
    assert!(edges.iter().all(|e| e.get("addresses").is_none()), "the global only accepts");
    assert_eq!(edges[1]["tenants"][0].as_str(), Some("tenantA"));
}

/// The ready configurations and the plans beside them say the same, paths apart.
#[test]
fn ready_configurations_agree_with_their_plans() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../mesh-configs");
    let cases = [
        ("single.fabric.toml", "single.toml", "region-a/broker"),
        ("two-region/fabric.toml", "two-region/global.toml", "global/broker-g"),
        ("two-region/fabric.toml", "two-region/region-a.toml", "region-a/broker-a"),
        ("two-region/fabric.toml", "two-region/region-b.toml", "region-b/broker-b"),
    ];
    let table = |text: &str| {
        let mut table: toml::Table = text.parse().unwrap();
        for path in ["fabric_root", "bundle", "node_certificate", "node_key_file", "state_dir"] {
            assert!(table.remove(path).is_some(), "{path}");
        }
        for flag in ["is_global", "is_region", "is_agent"] {
            table.entry(flag).or_insert(toml::Value::Boolean(false));
        }
        table
    };
    for (plan, config, node) in cases {
        let text = std::fs::read_to_string(folder.join(plan)).unwrap();
        let plan = Plan::parse(&text, plan).unwrap();
        let id = NodeId::parse(node).unwrap();
        let planned = crate::node_config::render(&plan, plan.nodes.iter().find(|n| n.id == id).unwrap());
        let ready = std::fs::read_to_string(folder.join(config)).unwrap();
        assert_eq!(table(&planned), table(&ready), "{config}");
    }
}
