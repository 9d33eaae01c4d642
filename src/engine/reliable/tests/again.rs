//! One message more like the last one comes everywhere as if it had been looked at for itself.

use proptest::prelude::*;

use super::*;
use crate::batch::testing::{taken_again, without_again};

const NAMES: [&str; 3] = ["x.y", "x.z", "y"];
const FILTERS: [&str; 4] = ["x.y", "x.>", ">", "y"];

#[derive(Clone, Debug)]
enum Step {
    Publish { who: usize, name: usize, class: Class, bytes: usize, times: usize },
    Subscribe { reader: usize, filter: usize, group: bool },
    Unsubscribe { reader: usize, filter: usize, max: Option<u64> },
    Reconnect { edge: usize },
    Carry,
}

fn step() -> impl Strategy<Value = Step> {
    let class = prop_oneof![4 => Just(Class::Live), 1 => Just(Class::Tele), 1 => Just(Class::Ctrl)];
    let bytes = prop_oneof![6 => 0..40_usize, 1 => 4_000..4_200_usize];
    let publish = (0..2_usize, 0..NAMES.len(), class, bytes, 1..8_usize)
        .prop_map(|(who, name, class, bytes, times)| Step::Publish { who, name, class, bytes, times });
    let subscribe = (0..3_usize, 0..FILTERS.len(), prop::bool::weighted(0.2))
        .prop_map(|(reader, filter, group)| Step::Subscribe { reader, filter, group });
    let unsubscribe = (0..3_usize, 0..FILTERS.len(), prop::option::of(1..30_u64))
        .prop_map(|(reader, filter, max)| Step::Unsubscribe { reader, filter, max });
    let reconnect = (0..2_usize).prop_map(|edge| Step::Reconnect { edge });
    prop_oneof![12 => publish, 3 => subscribe, 1 => unsubscribe, 1 => reconnect, 2 => Just(Step::Carry)]
}

/// What three readers and two publishers got, and all that the brokers have counted.
fn carry_out(steps: &[Step]) -> (Vec<Vec<Got>>, Vec<u64>) {
    let mut line = Line::new();
    let mut publishers = [line.publisher("alice"), line.publisher("bob")];
    let mut readers = [(G, line.client(G, "near")), (B, line.client(B, "far")), (B, line.client(B, "other"))];
    let mut number = 0_u8;
    let mut lives = 7;
    for step in steps {
        match step {
            Step::Publish { who, name, class, bytes, times } => {
                let mut frames = BytesMut::new();
                for _ in 0..*times {
                    number = number.wrapping_add(1);
                    frames.unsplit(publish(Some(*class), None, NAMES[*name], "", &vec![number; *bytes]));
                }
                publishers[*who].feed(&mut line.nodes[A], &frames).unwrap();
            }
            Step::Subscribe { reader, filter, group } => {
                let (at, client) = &mut readers[*reader];
                let sid = u32::try_from(*filter).unwrap();
                let wish = if *group { in_group(sid, FILTERS[*filter], "g") } else { subscribe(sid, FILTERS[*filter]) };
                client.feed(&mut line.nodes[*at], &encode(&wish)).unwrap();
            }
            Step::Unsubscribe { reader, filter, max } => {
                let (at, client) = &mut readers[*reader];
                let wish = Unsubscribe { sid: u32::try_from(*filter).unwrap(), max: *max };
                client.feed(&mut line.nodes[*at], &encode(&wish.into())).unwrap();
            }
            Step::Reconnect { edge } => {
                lives += 1;
                line.reconnect(*edge, [lives, lives]);
            }
            Step::Carry => line.carry(),
        }
    }
    line.carry();
    let counted = line.nodes.iter().flat_map(|node| {
        let tenant = node.tenant("tenantA");
        let classes = Class::ALL.map(|class| {
            let c = tenant.counters().class(class);
            let passed = [&c.published, &c.delivered, &c.relayed_out, &c.relayed_in, &c.unmatched];
            let drops = DropReason::ALL.iter().map(|reason| c.drops(*reason));
            passed.iter().map(|counter| counter.value()).chain(drops).collect::<Vec<_>>()
        });
        classes.concat()
    });
    let counted = counted.collect();
    let got = readers.iter_mut().map(|(_, client)| client.read()).chain(publishers.iter_mut().map(Client::read));
    (got.collect(), counted)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn what_comes_and_what_is_counted_does_not_depend_on_it(steps in prop::collection::vec(step(), 1..50)) {
        let with = carry_out(&steps);
        let without = without_again(|| carry_out(&steps));
        prop_assert_eq!(with, without);
    }
}

#[test]
fn it_is_so_at_every_broker_on_the_way() {
    let before = taken_again();
    let publish = Step::Publish { who: 0, name: 0, class: Class::Live, bytes: 16, times: 100 };
    let subscribe = Step::Subscribe { reader: 1, filter: 0, group: false };
    let (got, _) = carry_out(&[subscribe, Step::Carry, publish]);
    assert_eq!(messages(&got[1]).len(), 100);
    // Two messages at the first broker, and one at each of the others, are looked at for themselves.
    assert!(taken_again() - before >= 3 * 97, "{}", taken_again() - before);
}
