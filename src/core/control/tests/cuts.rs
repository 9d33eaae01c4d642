//! Edges that an end does not let a tenant over, although the bundle would.

use super::*;

/// region-a reaches region-b by region-c, which comes first by its edge's name, or by the global.
fn world() -> World {
    let mut world = World::of(&RING);
    (0..RING.len()).for_each(|edge| world.up(edge));
    let subscriber = world.session(2, "tenantA", Role::Tenant);
    world.subscribe(2, &subscriber, 1, "x", None);
    assert_eq!(world.first_edge(), ["a-c"]);
    world
}

impl World {
    /// The edges by which region-a sends to region-b.
    fn first_edge(&self) -> Vec<String> {
        self.remote_targets(1, "tenantA", "x").into_iter().map(|(edge, _)| edge).collect()
    }

    /// Both ends of an edge carry, or do not carry, tenantA.
    fn carry_a(&mut self, edge: usize, carries: bool) {
        let (_, a, b) = self.layout[edge];
        let tenant = self.key("tenantA");
        let set: TenantSet = std::iter::once(tenant).filter(|_| carries).collect();
        for node in [a, b] {
            self.nodes[node].edge_change(EdgeKey(u32::try_from(edge).unwrap()), set.clone(), set.clone(), self.now);
        }
        self.run();
    }
}

const B_C: usize = 4;

#[test]
fn routes_leave_out_what_an_end_far_away_does_not_carry() {
    let mut world = world();
    world.crossed.clear();
    world.carry_a(B_C, false);
    assert_eq!(world.first_edge(), ["a-global"], "the other way is free");
    assert!(world.crossed.iter().all(|(edge, tenant)| *edge != B_C && tenant == "tenantA"), "{:?}", world.crossed);
    world.carry_a(B_C, true);
    assert_eq!(world.first_edge(), ["a-c"]);
}

#[test]
fn who_comes_later_learns_of_it_with_the_lists() {
    let mut world = world();
    [0, 1, 3].into_iter().for_each(|edge| world.down(edge));
    world.carry_a(B_C, false);
    [3, 0, 1].into_iter().for_each(|edge| world.up(edge));
    assert_eq!(world.first_edge(), ["a-global"]);
}

#[test]
fn without_another_way_the_target_is_out_of_reach_and_nobody_waits_for_it() {
    let mut world = world();
    [0, 1].into_iter().for_each(|edge| world.down(edge));
    world.carry_a(B_C, false);
    assert!(world.first_edge().is_empty());
    world.nodes[1].settle();
    world.pass(40_000);
    assert!(world.find(1, "tenantA", "x").in_sync);
}

#[test]
fn what_an_end_said_in_an_earlier_life_is_void() {
    let mut world = world();
    world.carry_a(B_C, false);
    [2, B_C].into_iter().for_each(|edge| world.down(edge));
    world.restart(2, 9);
    let subscriber = world.session(2, "tenantA", Role::Tenant);
    world.subscribe(2, &subscriber, 1, "x", None);
    // region-c has cut the edge as well, and takes it back.
    [2, B_C].into_iter().for_each(|edge| world.up(edge));
    world.pass(1);
    assert_eq!(world.first_edge(), ["a-c"]);
}

#[test]
fn only_an_end_speaks_for_an_edge_and_of_its_own_a_broker_believes_nobody() {
    let mut world = world();
    let (tenant, other) = (world.key("tenantA"), world.key("tenantB"));
    let index = |world: &World, node: &str| world.nodes[1].brokers().index(&NodeId::parse(node).unwrap()).unwrap();
    let (global, far, near) = (index(&world, NODES[0]), index(&world, NODES[2]), index(&world, NODES[3]));
    let cut = |edge: &str| Record::Cut { edge: Label::parse(edge).unwrap(), seq: 1, cut: true };
    let at = &mut world.nodes[1];
    let over_ac = EdgeKey(3);
    assert_eq!(at.record(over_ac, tenant, global, 1, cut("b-c")), Err(RecordError::Origin), "no end of it");
    assert_eq!(at.record(over_ac, other, far, 1, cut("b-c")), Err(RecordError::Tenant));
    assert_eq!(at.record(over_ac, tenant, far, 1, cut("no-such-edge")), Ok(()), "another bundle may have it");
    assert_eq!(at.record(over_ac, tenant, near, 1, cut("a-c")), Ok(()), "heard");
    world.run();
    assert_eq!(world.first_edge(), ["a-c"], "and not believed of an edge of one's own");
    world.nodes[1].record(over_ac, tenant, far, 1, cut("b-c")).unwrap();
    world.run();
    assert_eq!(world.first_edge(), ["a-global"], "an end is believed");
}
