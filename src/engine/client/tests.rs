//! Tests of publishing: one message more like the last one is written as any other.

use glocal_core::count::Drop as DropReason;
use glocal_core::data::ReplyRoute;
use glocal_core::identity::Role;
use glocal_core::routes::BrokerIndex;
use glocal_core::sched::Drops;
use proptest::prelude::*;

use super::*;
use crate::batch::testing::{taken_again, without_again};
use crate::testing::{NOW, Node, principal};

const NAMES: [&str; 5] = ["a", "b", "b.c", "T.tenantA.live.a", "T.tenantA.ctrl.a"];
const FILTERS: [&str; 5] = ["a", "b", ">", "b.*", "T.tenantA.*.a"];

#[derive(Clone, Debug)]
enum Step {
    Publish { name: usize, class: Class, bytes: usize, times: usize, ttl: bool },
    Subscribe { reader: usize, filter: usize, group: bool },
    Limit { reader: usize, filter: usize, max: u64 },
    Asked,
    Flush,
}

fn step() -> impl Strategy<Value = Step> {
    let class = prop_oneof![3 => Just(Class::Live), 1 => Just(Class::Tele), 1 => Just(Class::Ctrl)];
    let bytes = prop_oneof![4 => 0..40_usize, 1 => 4_000..4_200_usize];
    let publish = (0..NAMES.len(), class, bytes, 1..6_usize, prop::bool::weighted(0.1))
        .prop_map(|(name, class, bytes, times, ttl)| Step::Publish { name, class, bytes, times, ttl });
    let subscribe = (0..3_usize, 0..FILTERS.len(), prop::bool::weighted(0.2))
        .prop_map(|(reader, filter, group)| Step::Subscribe { reader, filter, group });
    let limit =
        (0..3_usize, 0..FILTERS.len(), 0..20_u64).prop_map(|(reader, filter, max)| Step::Limit { reader, filter, max });
    prop_oneof![12 => publish, 4 => subscribe, 1 => limit, 1 => Just(Step::Asked), 1 => Just(Step::Flush)]
}

/// What three readers got, what the publisher was told, and what was counted. The third reader is the publisher itself.
fn carry_out(steps: &[Step]) -> (Vec<Vec<u8>>, Vec<String>, Vec<u64>) {
    let mut node = Node::new(1);
    let alice = principal("tenantA", "alice", Role::Tenant);
    let identity = Identity::new(Arc::clone(&node.shared), Arc::clone(&alice), NOW);
    let open = |dialect, echo| {
        let identity = Identity::new(Arc::clone(&node.shared), Arc::clone(&alice), NOW);
        Client::open(&identity, dialect, Class::Live, echo, NOW)
    };
    let native = open(Dialect::Native, true);
    let nats = open(Dialect::Nats { headers: true }, true);
    let mut publisher = open(Dialect::Native, false);
    let ports = [native.port(), nats.port(), publisher.port()].map(Arc::clone);
    let mut effects = Effects::default();
    let mut told = Vec::new();
    let mut number = 0_u8;
    for step in steps {
        match step {
            Step::Publish { name, class, bytes, times, ttl } => {
                for _ in 0..*times {
                    number = number.wrapping_add(1);
                    let payload = vec![number; *bytes];
                    let (name, ttl_ms) = (NAMES[*name].as_bytes(), ttl.then_some(1_000));
                    let outgoing =
                        Outgoing { name, class: Some(*class), payload: &payload, ttl_ms, ..Outgoing::default() };
                    told.push(format!("{:?}", publisher.publish(&identity, &outgoing, NOW, &mut effects)));
                }
            }
            Step::Subscribe { reader, filter, group } => {
                let client = [&native, &nats, &publisher][*reader];
                let sid = u32::try_from(*filter).unwrap();
                let (filter, group) = (FILTERS[*filter].as_bytes(), group.then_some("g"));
                client
                    .subscribe(&identity, filter, group, sid, sid.to_string().as_bytes(), false, &mut effects)
                    .unwrap();
            }
            Step::Limit { reader, filter, max } => {
                let (session, sid) = (ports[*reader].id(), u32::try_from(*filter).unwrap());
                effects.commands.push(Command::Unsubscribe { session, sid, max: Some(*max) });
            }
            // Somebody at another broker waits for a reply of this name.
            Step::Asked => {
                let route = ReplyRoute { origin: BrokerIndex(0), token: 7 };
                assert!(node.tenant("tenantA").replies().remember("a", route, NOW));
            }
            Step::Flush => effects.batch.flush(&node.shared, NOW),
        }
        for command in effects.commands.drain(..) {
            node.driver.apply(command);
        }
        node.driver.commit(NOW);
    }
    effects.batch.flush(&node.shared, NOW);
    publisher.settle();
    let read = |port: &Arc<SessionPort>| {
        let (mut parts, mut drops) = (Vec::new(), Drops::new());
        port.inbox().with(|lanes| lanes.fill(usize::MAX, NOW, &mut parts, &mut drops));
        parts.concat()
    };
    let tenant = node.tenant("tenantA");
    let counters = Class::ALL.map(|class| tenant.counters().class(class));
    let counted = counters.iter().flat_map(|c| {
        let counted = [&c.published, &c.published_bytes, &c.delivered, &c.unmatched].map(|counter| counter.value());
        counted.into_iter().chain(DropReason::ALL.iter().map(|reason| c.drops(*reason)))
    });
    (ports.iter().map(read).collect(), told, counted.collect())
}

proptest! {
    #[test]
    fn a_message_like_the_last_one_is_written_as_any_other(steps in prop::collection::vec(step(), 1..60)) {
        prop_assert_eq!(carry_out(&steps), without_again(|| carry_out(&steps)));
    }
}

#[test]
fn messages_in_a_row_are_like_the_last_one() {
    for reader in [0, 1] {
        let publish = |bytes, times| Step::Publish { name: 0, class: Class::Live, bytes, times, ttl: false };
        let subscribe = Step::Subscribe { reader, filter: 0, group: false };
        let before = taken_again();
        let (_, _, counted) = carry_out(&[subscribe, publish(16, 100), publish(17, 100)]);
        let repeated = taken_again() - before;
        assert!((195..=198).contains(&repeated), "{repeated}");
        assert_eq!(counted[..3], [200, 3_300, 200]);
    }
}
