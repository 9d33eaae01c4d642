//! Tests of the receiving half of a bridge: what an honest peer sends, and what a hostile one tries.

use bytes::BytesMut;
use glocal_core::control::RecordError;
use glocal_core::count::Drop as DropReason;
use glocal_core::limits::HOPS_MAX;
use glocal_wire::control::{
    AnnounceBroker, AnnounceSender, ForgetHandles, NoMember, Ping, Presence, PresenceEnd, Probe, Routed,
};

use super::*;
use crate::driver::Outcome;
use crate::testing::{
    Client, NODES, NOW, Node, Relayed, arrive, encode, in_group, messages, publish, reset, slice, subscribe,
};

mod again;
mod chunks;
mod hostile;

/// Handles as [`announce`] gives them: the brokers' numbers in [`NODES`], and two senders.
const GLOBAL: u32 = 0;
const REGION_A: u32 = 1;
const REGION_B: u32 = 2;
const SENDER: u32 = 40;
const OTHER_SENDER: u32 = 41;

fn broker(handle: u32, node: &str) -> BytesMut {
    encode(&AnnounceBroker { handle, node: node.into(), incarnation: 7 }.into())
}

fn sender(handle: u32, tenant: &str) -> BytesMut {
    let agent = Some(format!("agent{handle}"));
    let region = Some("region-b".into());
    encode(
        &AnnounceSender { handle, session: u64::from(handle), tenant: tenant.into(), region, agent, uid: "0".into() }
            .into(),
    )
}

fn announce() -> BytesMut {
    let mut out = BytesMut::new();
    for (handle, node) in (0..).zip(NODES) {
        out.unsplit(broker(handle, node));
    }
    out.unsplit(sender(SENDER, "tenantA"));
    out.unsplit(sender(OTHER_SENDER, "tenantA"));
    out
}

/// A message of region-b for `targets`, number `seq`.
fn relayed<'r>(seq: u64, targets: &'r [(u32, &'r [&'r str])]) -> Relayed<'r> {
    let (origin, sender, name, reply, payload) = (REGION_B, SENDER, "x.y", "", &b"p"[..]);
    Relayed { class: Class::Live, hops: 1, seq, origin, sender, targets, name, reply, payload, steps: &[] }
}

/// Region-a with its bridge to the global up, a subscriber to everything, and a lane of tenantA open in class live.
fn region_a() -> (Node, Client, LaneReader) {
    let mut node = Node::new(1);
    node.up(0, 0);
    let mut client = node.client("tenantA", "alice");
    client.say(&mut node, subscribe(1, ">"));
    let mut reader = node.reader(0);
    arrive(&mut node, &mut reader, &slice(1, Some((Class::Live, "tenantA")), &announce())).unwrap();
    (node, client, reader)
}

fn drops(node: &Node, tenant: &str, reason: DropReason) -> u64 {
    let tenant = node.tenant(tenant);
    Class::ALL.iter().map(|class| tenant.counters().class(*class).drops(reason)).sum()
}

fn refused(node: &Node) -> u64 {
    node.link(0).edge().refused.value()
}

const OWN: &[(u32, &[&str])] = &[(REGION_A, &[])];

#[test]
fn a_message_for_this_broker_is_delivered_once_with_its_true_sender() {
    let (mut node, mut client, mut reader) = region_a();
    for seq in [1, 2, 2, 1, 5, 4] {
        arrive(&mut node, &mut reader, &slice(1, None, &relayed(seq, OWN).encode())).unwrap();
    }
    let got = client.read();
    assert_eq!(messages(&got).len(), 3, "1, 2 and 5");
    assert!(format!("{got:?}").contains("region-b/agent40"));
    assert_eq!(drops(&node, "tenantA", DropReason::Late), 3);
    assert_eq!(refused(&node), 0, "late is no lie");
    let other = Relayed { sender: OTHER_SENDER, ..relayed(1, OWN) };
    arrive(&mut node, &mut reader, &slice(1, None, &other.encode())).unwrap();
    assert_eq!(messages(&client.read()).len(), 1, "numbers are per sender");
}

#[test]
fn targets_over_several_frames_of_one_message_are_all_served() {
    let mut node = Node::new(0);
    node.up(0, 0);
    node.up(1, 0);
    let mut client = node.client("tenantA", "alice");
    client.say(&mut node, subscribe(1, ">"));
    let mut reader = node.reader(1);
    let mut lane = announce();
    lane.unsplit(relayed(1, &[(REGION_A, &[])]).encode());
    lane.unsplit(relayed(1, &[(GLOBAL, &[])]).encode());
    lane.unsplit(relayed(1, &[(GLOBAL, &[])]).encode());
    arrive(&mut node, &mut reader, &slice(1, Some((Class::Live, "tenantA")), &lane)).unwrap();
    assert_eq!(messages(&client.read()), ["x.y=p"]);
    let counters = node.tenant("tenantA");
    assert_eq!(counters.counters().class(Class::Live).relayed_out.value(), 1);
    assert_eq!(drops(&node, "tenantA", DropReason::Late), 1);
}

#[test]
fn groups_are_served_by_one_member_each_and_members_take_turns() {
    let (mut node, mut plain, mut reader) = region_a();
    let mut workers: Vec<_> = (0..3).map(|i| node.client("tenantA", &format!("w{i}"))).collect();
    for worker in &mut workers {
        worker.say(&mut node, in_group(1, "x.*", "w"));
    }
    let mut lane = BytesMut::new();
    for seq in 1..=9 {
        lane.unsplit(relayed(seq, &[(REGION_A, &["w", "nobody"])]).encode());
    }
    arrive(&mut node, &mut reader, &slice(1, None, &lane)).unwrap();
    let served: Vec<usize> = workers.iter_mut().map(|w| messages(&w.read()).len()).collect();
    assert_eq!(served, [3, 3, 3], "within one chunk, too");
    assert_eq!(messages(&plain.read()).len(), 9);
    assert_eq!(drops(&node, "tenantA", DropReason::NoMember), 9);
}

#[test]
fn transit_splits_the_list_and_never_sends_back() {
    let mut node = Node::new(0);
    node.up(0, 0);
    node.up(1, 0);
    let mut reader = node.reader(1);
    let mut lane = announce();
    lane.unsplit(relayed(1, &[(REGION_A, &["g"]), (REGION_B, &[])]).encode());
    arrive(&mut node, &mut reader, &slice(1, Some((Class::Live, "tenantA")), &lane)).unwrap();
    assert_eq!(drops(&node, "tenantA", DropReason::BadTarget), 1);
    assert_eq!(node.link(1).edge().refused.value(), 1);
    node.link(0).inbox().with(|lanes| assert!(lanes.sched().backlog_bytes() > 0));
    node.link(1).inbox().with(|lanes| assert_eq!(lanes.sched().backlog_bytes(), 0));
    // TenantB may not go on to region-a, whatever the target list says.
    let mut lane = announce();
    lane.unsplit(relayed(1, &[(REGION_A, &[])]).encode());
    node.link(0).inbox().with(|lanes| lanes.clear(&node.shared.tenants()));
    arrive(&mut node, &mut reader, &slice(2, Some((Class::Live, "tenantB")), &lane)).unwrap();
    node.link(0).inbox().with(|lanes| assert_eq!(lanes.sched().backlog_bytes(), 0));
    assert_eq!(drops(&node, "tenantB", DropReason::NoRoute), 1);
}

#[test]
fn replies_find_their_way_back_without_interest() {
    let (mut node, mut worker, mut reader) = region_a();
    let request = Relayed { reply: "_INBOX.1.r", ..relayed(1, OWN) };
    arrive(&mut node, &mut reader, &slice(1, None, &request.encode())).unwrap();
    assert_eq!(messages(&worker.read()), ["x.y=p"]);
    worker.send(&mut node, &publish(None, None, "_INBOX.1.r", "", b"answer"));
    let link = node.link(0);
    link.inbox().with(|lanes| assert!(lanes.sched().backlog_bytes() > 0, "towards region-b"));
    assert_eq!(node.tenant("tenantA").counters().class(Class::Live).relayed_out.value(), 1);
}

#[test]
fn a_maximum_reached_by_far_messages_ends_the_subscription() {
    use glocal_wire::control::Unsubscribe;
    let (mut node, mut client, mut reader) = region_a();
    client.say(&mut node, Unsubscribe { sid: 1, max: Some(2) }.into());
    for seq in 1..=4 {
        arrive(&mut node, &mut reader, &slice(1, None, &relayed(seq, OWN).encode())).unwrap();
    }
    assert_eq!(messages(&client.read()).len(), 2);
    assert_eq!(node.driver.control().subscriptions(), 0);
    assert_eq!(node.tenant("tenantA").table().filters(), 0);
}

#[test]
fn records_go_to_the_control_half_in_the_lanes_tenant() {
    let (mut node, _client, mut reader) = region_a();
    let presence = |origin| encode(&Presence { origin, incarnation: 7, seq: 1, present: true }.into());
    let mut lane = announce();
    lane.unsplit(presence(REGION_B));
    lane.unsplit(presence(REGION_A));
    lane.unsplit(encode(&PresenceEnd { told: 1 }.into()));
    lane.unsplit(encode(&NoMember { target: 1, origin: 1, seq: 1, group: None }.into()));
    let outcomes = arrive(&mut node, &mut reader, &slice(2, Some((Class::Ctrl, "tenantA")), &lane)).unwrap();
    let own = Outcome::RecordRefused(RecordError::Origin);
    assert_eq!(outcomes, [Outcome::Done, own, Outcome::Done], "this broker speaks for itself");
    let present = |tenant| node.driver.control().present(node.tenant(tenant).key());
    assert_eq!(present("tenantA"), [BrokerIndex(REGION_B)]);
    assert!(present("tenantB").is_empty());
}

#[test]
fn what_comes_later_over_another_way_is_not_delivered_after_what_came_before() {
    let (mut node, mut client, mut old) = region_a();
    let mut new = node.reader(0);
    arrive(&mut node, &mut new, &slice(1, Some((Class::Live, "tenantA")), &announce())).unwrap();
    let mut say = |node: &mut Node, reader: &mut LaneReader, seq: u64| {
        arrive(node, reader, &slice(1, None, &relayed(seq, &[(REGION_A, &[])]).encode())).unwrap();
        messages(&client.read()).len()
    };
    assert_eq!(say(&mut node, &mut old, 1), 1);
    assert_eq!(say(&mut node, &mut new, 3), 1);
    assert_eq!(say(&mut node, &mut old, 2), 0, "the old way was slower");
    assert_eq!(drops(&node, "tenantA", DropReason::Late), 1);
    assert_eq!(say(&mut node, &mut old, 4), 1);
    assert_eq!(say(&mut node, &mut new, 4), 0, "a repeat");
}
