//! Filters on one broker and in a mesh, few enough for an ordinary test.

use std::time::Instant;

use super::mesh::{self, Mesh};
use super::node::{self, Crowd};
use super::*;

/// A clock; memory is not looked at here, since other tests of the process use it, too.
struct Clock(Instant);

impl Gauge for Clock {
    fn nanos(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap()
    }

    fn cpu_nanos(&self) -> u64 {
        self.nanos()
    }

    fn resident_bytes(&self) -> u64 {
        0
    }
}

fn clock() -> Clock {
    Clock(Instant::now())
}

#[test]
fn numbers_make_different_filters() {
    let all: std::collections::BTreeSet<String> = (0..20_000).map(|number| filter(number).0).collect();
    assert_eq!(all.len(), 20_000);
}

#[test]
fn many_filters_come_are_found_and_go() {
    let load = node::load(&clock(), 100, 20_000).unwrap();
    assert_eq!(load.filters, 20_000);
    assert!(load.matches.iter().all(|[median, p99]| *median > 0 && p99 >= median), "{load:?}");
}

#[test]
fn a_name_finds_the_filters_of_its_own_tenant_alone() {
    let mut crowd = Crowd::new(2).unwrap();
    crowd.join(0, 100);
    crowd.join(1, 200);
    crowd.subscribe(0, 200).unwrap();
    // What the second tenant wants is nothing to the first: its name finds nothing there.
    let (own, foreign) = (crowd.site.tenant(0).unwrap(), crowd.site.tenant(1).unwrap());
    let name = Hits::Several.name(350);
    let raw = glocal_core::name::RawName::parse(name.as_bytes()).unwrap();
    let found = |tenant: &glocal_core::tenant::Tenant| {
        tenant.table().find(glocal_core::name::Class::Live, raw, &tenant.section()).ports.len()
    };
    assert_eq!((found(&own), found(&foreign)), (0, 1));
}

#[test]
fn a_mesh_tells_of_presence_and_lists_go_to_publishers_alone() {
    let figures = mesh::figures(&clock(), (8, 20, 5), 20_000, 1).unwrap();
    assert_eq!((figures.filters, figures.pairs, figures.pulled), (19_920, 120, 4_980));
    let few = mesh::presence_of_few(8, 20, 1).unwrap();
    assert_eq!(few.bytes, figures.presence.bytes, "presence does not depend on the number of filters");
    assert!(figures.presence.bytes > 0 && figures.pull.arrived > 10 * figures.pulled, "{figures:?}");
    // One more filter takes one message and its acknowledgement, on the way to the one that follows.
    assert!(figures.added.bytes > 0 && figures.added.arrived < 256, "{figures:?}");
}

#[test]
fn a_broker_that_holds_more_than_presence_is_found_out() {
    let mut mesh = Mesh::new(4, 2, 1).unwrap();
    mesh.subscribe(10).unwrap();
    mesh.learn_presence().unwrap();
    mesh.check_presence_only().unwrap();
    mesh.publish_at_the_silent();
    assert!(mesh.check_presence_only().is_err());
}
