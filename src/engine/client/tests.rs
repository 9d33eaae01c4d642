//! Tests of publishing: one message more like the last one is written as any other.

use glocal_core::data::ReplyRoute;
use glocal_core::identity::{Principal, Role};
use glocal_core::limits::CROWD_SESSIONS_MIN;
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
    Publish {
        name: usize,
        class: Class,
        bytes: usize,
        times: usize,
        ttl: bool,
    },
    Subscribe {
        reader: usize,
        filter: usize,
        group: bool,
    },
    Limit {
        reader: usize,
        filter: usize,
        max: u64,
    },
    /// All of the crowd subscribe, those of one protocol under one number.
    Gather {
        filter: usize,
    },
    /// One of the crowd does what the others do not.
    Stray {
        member: usize,
        filter: usize,
        what: Stray,
    },
    Asked,
    Flush,
}

#[derive(Clone, Copy, Debug)]
enum Stray {
    Subscribes,
    Unsubscribes,
    Limits(u64),
}

/// Sessions of each protocol in the crowd.
const CROWD: usize = CROWD_SESSIONS_MIN + 1;

fn step() -> impl Strategy<Value = Step> {
    let class = prop_oneof![3 => Just(Class::Live), 1 => Just(Class::Tele), 1 => Just(Class::Ctrl)];
    let bytes = prop_oneof![4 => 0..40_usize, 1 => 4_000..4_200_usize];
    let publish = (0..NAMES.len(), class, bytes, 1..6_usize, prop::bool::weighted(0.1))
        .prop_map(|(name, class, bytes, times, ttl)| Step::Publish { name, class, bytes, times, ttl });
    let subscribe = (0..3_usize, 0..FILTERS.len(), prop::bool::weighted(0.2))
        .prop_map(|(reader, filter, group)| Step::Subscribe { reader, filter, group });
    let limit =
        (0..3_usize, 0..FILTERS.len(), 0..20_u64).prop_map(|(reader, filter, max)| Step::Limit { reader, filter, max });
    let gather = (0..FILTERS.len()).prop_map(|filter| Step::Gather { filter });
    let what = prop_oneof![Just(Stray::Subscribes), Just(Stray::Unsubscribes), (0..20_u64).prop_map(Stray::Limits)];
    let stray =
        (0..2 * CROWD, 0..FILTERS.len(), what).prop_map(|(member, filter, what)| Step::Stray { member, filter, what });
    let others = prop_oneof![Just(Step::Asked), Just(Step::Flush)];
    prop_oneof![12 => publish, 4 => subscribe, 1 => limit, 2 => gather, 2 => stray, 2 => others]
}

/// What waits in a session's lanes.
fn take(port: &SessionPort) -> Vec<u8> {
    let (mut parts, mut drops) = (Vec::new(), Drops::new());
    port.inbox().with(|lanes| lanes.fill(usize::MAX, NOW, &mut parts, &mut drops));
    parts.concat()
}

/// Carries out what sessions have asked for.
fn settle(node: &mut Node, effects: &mut Effects) {
    for command in effects.commands.drain(..) {
        node.driver.apply(command);
    }
    node.driver.commit(NOW);
}

/// What three readers and a crowd got, what the publisher was told, and what was counted. The third reader is the publisher
/// itself.
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
    let crowd: Vec<_> = (0..2 * CROWD)
        .map(|n| open(if n < CROWD { Dialect::Native } else { Dialect::Nats { headers: true } }, true))
        .collect();
    let ports: Vec<_> = [&native, &nats, &publisher].into_iter().chain(&crowd).map(|c| Arc::clone(c.port())).collect();
    let subscribe = |client: &Client, filter: usize, sid: u32, group: bool, effects: &mut Effects| {
        let (filter, group) = (FILTERS[filter].as_bytes(), group.then_some("g"));
        client.subscribe(&identity, filter, group, sid, sid.to_string().as_bytes(), false, effects).unwrap();
    };
    let mut effects = Effects::default();
    let (mut told, mut got) = (Vec::new(), vec![Vec::new(); ports.len()]);
    let read = |got: &mut Vec<Vec<u8>>| {
        ports.iter().zip(got).for_each(|(port, got)| got.extend(take(port)));
    };
    let mut number = 0_u8;
    let mut last_class = None;
    for step in steps {
        match step {
            Step::Publish { name, class, bytes, times, ttl } => {
                // In which order classes leave follows from how much of each is there, not from when it came.
                if last_class.replace((*class, *name > 2)) != Some((*class, *name > 2)) {
                    effects.batch.flush(&node.shared, NOW);
                    read(&mut got);
                }
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
                subscribe(client, *filter, u32::try_from(*filter).unwrap(), *group, &mut effects);
            }
            Step::Gather { filter } => {
                let sid = u32::try_from(*filter).unwrap();
                crowd.iter().for_each(|client| subscribe(client, *filter, sid, false, &mut effects));
            }
            Step::Stray { member, filter, what } => {
                let (client, sid) = (&crowd[*member], u32::try_from(*filter).unwrap());
                let session = client.port().id();
                match what {
                    Stray::Subscribes => subscribe(client, *filter, sid + 100, false, &mut effects),
                    Stray::Unsubscribes => effects.commands.push(Command::Unsubscribe { session, sid, max: None }),
                    Stray::Limits(max) => {
                        // What was collected before counts, when it was collected or when it is given away.
                        effects.batch.flush(&node.shared, NOW);
                        effects.commands.push(Command::Unsubscribe { session, sid, max: Some(*max) });
                    }
                }
            }
            Step::Limit { reader, filter, max } => {
                let (session, sid) = (ports[*reader].id(), u32::try_from(*filter).unwrap());
                effects.batch.flush(&node.shared, NOW);
                effects.commands.push(Command::Unsubscribe { session, sid, max: Some(*max) });
            }
            // Somebody at another broker waits for a reply of this name.
            Step::Asked => {
                let route = ReplyRoute { origin: BrokerIndex(0), token: 7 };
                assert!(node.tenant("tenantA").replies().remember("a", route, NOW));
            }
            Step::Flush => effects.batch.flush(&node.shared, NOW),
        }
        settle(&mut node, &mut effects);
    }
    effects.batch.flush(&node.shared, NOW);
    publisher.settle();
    read(&mut got);
    (got, told, node.counted("tenantA"))
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

#[test]
fn a_message_for_a_crowd_is_written_once_and_a_maximum_takes_its_session_out_of_it() {
    let publish = |times| Step::Publish { name: 1, class: Class::Live, bytes: 8, times, ttl: false };
    let limits = Step::Stray { member: 3, filter: 1, what: Stray::Limits(3) };
    let steps = [Step::Gather { filter: 1 }, publish(1), limits, publish(4)];
    let before = taken_again();
    let shared = carry_out(&steps);
    assert_eq!(taken_again() - before, 5, "each of them once for both protocols");
    assert_eq!(shared, without_again(|| carry_out(&steps)));
    let targets = |told: &String| told.split("targets: ").nth(1).unwrap()[..2].to_owned();
    assert_eq!(shared.1.iter().map(targets).collect::<Vec<_>>(), ["18", "18", "18", "17", "17"]);
}

#[test]
fn a_maximum_holds_for_what_was_written_for_a_crowd_before_it() {
    let mut node = Node::new(1);
    let alice = principal("tenantA", "alice", Role::Tenant);
    let identity = Identity::new(Arc::clone(&node.shared), Arc::clone(&alice), NOW);
    let crowd: Vec<_> = (0..CROWD)
        .map(|_| {
            let identity = Identity::new(Arc::clone(&node.shared), Arc::clone(&alice), NOW);
            Client::open(&identity, Dialect::Native, Class::Live, true, NOW)
        })
        .collect();
    let mut publisher = Client::open(&identity, Dialect::Native, Class::Live, false, NOW);
    let mut effects = Effects::default();
    for client in &crowd {
        client.subscribe(&identity, b"b", None, 7, b"", false, &mut effects).unwrap();
    }
    settle(&mut node, &mut effects);
    for _ in 0..3 {
        let outgoing = Outgoing { name: b"b", payload: b"payload", ..Outgoing::default() };
        publisher.publish(&identity, &outgoing, NOW, &mut effects).unwrap();
    }
    let session = crowd[4].port().id();
    node.driver.apply(Command::Unsubscribe { session, sid: 7, max: Some(2) });
    node.driver.commit(NOW);
    effects.batch.flush(&node.shared, NOW);
    let got = |client: &Client| take(client.port()).windows(7).filter(|window| window == b"payload").count();
    let counts: Vec<_> = crowd.iter().map(got).collect();
    assert_eq!(counts, [3, 3, 3, 3, 2, 3, 3, 3, 3]);
    assert_eq!(effects.batch.finished, [(session, 7)]);
    assert_eq!(node.tenant("tenantA").counters().class(Class::Live).delivered.value(), 26);
}

#[test]
fn what_is_like_the_last_message_comes_after_what_a_crowd_was_given_since() {
    let mut node = Node::new(1);
    let alice = principal("tenantA", "alice", Role::Tenant);
    let identity = Identity::new(Arc::clone(&node.shared), Arc::clone(&alice), NOW);
    let open = || {
        let identity = Identity::new(Arc::clone(&node.shared), Arc::clone(&alice), NOW);
        Client::open(&identity, Dialect::Native, Class::Live, true, NOW)
    };
    let crowd: Vec<_> = (0..CROWD).map(|_| open()).collect();
    let (mut one, mut other) = (open(), open());
    let mut effects = Effects::default();
    for client in &crowd {
        client.subscribe(&identity, b"b", None, 7, b"", false, &mut effects).unwrap();
    }
    crowd[0].subscribe(&identity, b"a", None, 8, b"", false, &mut effects).unwrap();
    settle(&mut node, &mut effects);
    // Two publishers whose messages are collected in one batch, of which each goes on with a name of its own.
    let mut publish = |client: &mut Client, name: &'static str, payload: &'static str| {
        let outgoing = Outgoing { name: name.as_bytes(), payload: payload.as_bytes(), ..Outgoing::default() };
        client.publish(&identity, &outgoing, NOW, &mut effects).unwrap();
    };
    for payload in ["<1>", "<2>", "<3>"] {
        publish(&mut one, "a", payload);
    }
    publish(&mut other, "b", "<4>");
    publish(&mut one, "a", "<5>");
    effects.batch.flush(&node.shared, NOW);
    let got = take(crowd[0].port());
    let order: Vec<u8> = got.windows(3).filter(|w| w[0] == b'<' && w[2] == b'>').map(|w| w[1]).collect();
    assert_eq!(order, b"12345");
}

#[test]
fn observers_are_in_no_crowd_and_not_counted() {
    let mut node = Node::new(1);
    let open = |principal: &Arc<Principal>| {
        let identity = Identity::new(Arc::clone(&node.shared), Arc::clone(principal), NOW);
        let client = Client::open(&identity, Dialect::Native, Class::Live, true, NOW);
        (identity, client)
    };
    let (alice, root) = (principal("tenantA", "alice", Role::Tenant), principal("cresco-system", "r", Role::Superuser));
    let readers: Vec<_> = (0..CROWD).flat_map(|_| [open(&alice), open(&root)]).collect();
    let (identity, mut publisher) = open(&alice);
    let mut effects = Effects::default();
    for (identity, client) in &readers {
        client.subscribe(identity, b"T.tenantA.live.b", None, 7, b"", false, &mut effects).unwrap();
    }
    settle(&mut node, &mut effects);
    let before = taken_again();
    let outgoing = Outgoing { name: b"b", payload: b"<p>", ..Outgoing::default() };
    let published = publisher.publish(&identity, &outgoing, NOW, &mut effects).unwrap();
    assert_eq!((published.targets as usize, taken_again() - before), (CROWD, 1));
    effects.batch.flush(&node.shared, NOW);
    assert!(readers.iter().all(|(_, client)| take(client.port()).ends_with(b"<p>")));
}
