//! What the fabric tool writes is what a broker reads.

use std::path::{Path, PathBuf};

use glocal_fabric::Plan;

use super::*;

const PLAN: &str = include_str!("../../../../mesh-configs/two-region/fabric.toml");

struct Applied(tempfile::TempDir);

impl Applied {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let plan = Plan::parse(PLAN, "fabric.toml").unwrap();
        glocal_fabric::apply(&plan, directory.path(), &mut |_| ()).unwrap();
        Self(directory)
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    /// The trust of a broker, from the files of its directory alone.
    fn trust(&self, directory: &str) -> Trust {
        let file = |name: &str| self.path("nodes").join(directory).join(name);
        let now = unix_now();
        let roots = Roots::load(&file("root.pem"), now).unwrap();
        let bundle = load_bundle_file(&file("bundle.glocal"), &roots, 1, now).unwrap();
        let identity = NodeIdentity::load(&file("node.pem"), &file("node.key"), now).unwrap();
        Trust::new(roots, Arc::new(bundle), identity, plain(), now).unwrap()
    }
}

fn chain(file: &Path) -> Vec<CertificateDer<'static>> {
    super::super::credential::certificates("chain", &std::fs::read(file).unwrap()).unwrap()
}

#[test]
fn an_applied_plan_makes_brokers_that_know_each_other() {
    let applied = Applied::new();
    let (global, region_a) = (applied.trust("global-broker-g"), applied.trust("region-a-broker-a"));
    let region_b = applied.trust("region-b-broker-b");
    for (here, there) in [(&global, &region_a), (&region_a, &global), (&global, &region_b), (&region_b, &global)] {
        for usage in [Usage::Client, Usage::Server] {
            let peer = here.identify_node(there.identity().chain(), usage, unix_now()).unwrap();
            assert_eq!(peer.node(), Some(there.node()));
        }
    }
    let strangers = region_a.identify_node(region_b.identity().chain(), Usage::Client, unix_now());
    assert_eq!(strangers, Err(Deny::UnknownNode));
}

#[test]
fn an_applied_plan_makes_agents_that_get_in() {
    let applied = Applied::new();
    let brokers = ["global-broker-g", "region-a-broker-a", "region-b-broker-b"].map(|name| applied.trust(name));
    let agents = [
        ("tenantA/alice@region-a.pem", Role::Tenant),
        ("tenantB/berta@region-b.pem", Role::Tenant),
        ("cresco-system/admin@global.pem", Role::Superuser),
    ];
    for (file, role) in agents {
        let chain = chain(&applied.path("agents").join(file));
        for broker in &brokers {
            let principal = broker.identify_client(&chain, unix_now()).unwrap();
            assert_eq!((principal.tenant().as_str(), principal.role()), (file.split('/').next().unwrap(), role));
            assert_eq!(broker.identify_node(&chain, Usage::Client, unix_now()), Err(Deny::ClientOnBridgePort));
        }
    }
}
