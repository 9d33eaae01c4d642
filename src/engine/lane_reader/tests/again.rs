//! One message more like the last one, where something has changed in between.

use glocal_core::limits::CROWD_SESSIONS_MIN;
use glocal_wire::data::{DataHead, DataKind};
use glocal_wire::ext::ExtBuilder;

use super::*;
use crate::batch::testing::taken_again;

/// A message of region-b for this broker, as brokers send those that nobody waits for.
fn plain(class: Class, seq: u64, name: &str, payload: &[u8]) -> BytesMut {
    let mut ext = ExtBuilder::new();
    ext.origin(REGION_B).incarnation(7).sender(SENDER);
    ext.targets().target(REGION_A);
    let head = DataHead { hops: 1, seq: Some(seq), ..DataHead::new(DataKind::Relay, Some(class)) };
    let mut out = BytesMut::new();
    head.encode_into(&mut out, ext.bytes().unwrap(), name.as_bytes(), &[], &[], payload).unwrap();
    out
}

/// Frames in a slice of a lane, read without anything being given to its target.
fn read(reader: &mut LaneReader, lane: u32, frames: &[BytesMut], arrivals: &mut Arrivals) -> usize {
    let before = taken_again();
    reader.on_chunk(slice(lane, None, &frames.concat()).freeze(), NOW, arrivals).unwrap();
    taken_again() - before
}

fn live(seqs: std::ops::RangeInclusive<u64>) -> Vec<BytesMut> {
    seqs.map(|seq| plain(Class::Live, seq, "x.y", &[b'0' + u8::try_from(seq).unwrap()])).collect()
}

#[test]
fn it_is_delivered_as_the_others_are() {
    let (mut node, mut client, mut reader) = region_a();
    let mut arrivals = Arrivals::default();
    assert_eq!(read(&mut reader, 1, &live(1..=5), &mut arrivals), 4);
    // Cut anywhere, even within a frame.
    let more = live(6..=9).concat();
    for piece in more.chunks(33) {
        reader.on_chunk(slice(1, None, piece).freeze(), NOW, &mut arrivals).unwrap();
    }
    node.carry_out(&mut arrivals);
    let wanted: Vec<String> = (1..=9).map(|n| format!("x.y={n}")).collect();
    assert_eq!(messages(&client.read()), wanted);
    assert_eq!(node.tenant("tenantA").counters().class(Class::Live).relayed_in.value(), 9);
}

#[test]
fn who_wants_it_is_asked_again_when_that_has_changed() {
    let (mut node, mut client, mut reader) = region_a();
    let mut arrivals = Arrivals::default();
    assert_eq!(read(&mut reader, 1, &live(1..=2), &mut arrivals), 1);
    let mut bob = node.client("tenantA", "bob");
    bob.say(&mut node, subscribe(7, "x.y"));
    assert_eq!(read(&mut reader, 1, &live(3..=4), &mut arrivals), 0, "two want it now");
    node.carry_out(&mut arrivals);
    assert_eq!(messages(&client.read()), ["x.y=1", "x.y=2", "x.y=3", "x.y=4"]);
    assert_eq!(messages(&bob.read()), ["x.y=3", "x.y=4"]);
}

#[test]
fn an_edge_that_was_narrowed_carries_nothing_more() {
    let (mut node, mut client, mut reader) = region_a();
    let mut arrivals = Arrivals::default();
    assert_eq!(read(&mut reader, 1, &live(1..=2), &mut arrivals), 1);
    let edge = node.key(0);
    node.driver.apply(Command::EdgeDown { edge });
    assert_eq!(read(&mut reader, 1, &live(3..=4), &mut arrivals), 0);
    node.carry_out(&mut arrivals);
    assert_eq!(messages(&client.read()), ["x.y=1", "x.y=2"]);
}

#[test]
fn lanes_that_take_turns_do_not_write_into_each_other() {
    let (mut node, mut client, mut reader) = region_a();
    arrive(&mut node, &mut reader, &slice(2, Some((Class::Tele, "tenantA")), &announce())).unwrap();
    let mut arrivals = Arrivals::default();
    let tele = |seq| plain(Class::Tele, seq, "t", b"t");
    for seq in 1..=4 {
        read(&mut reader, 1, &live(2 * seq - 1..=2 * seq), &mut arrivals);
        read(&mut reader, 2, &[tele(2 * seq - 1), tele(2 * seq)], &mut arrivals);
    }
    node.carry_out(&mut arrivals);
    let got = messages(&client.read());
    let of = |name: &str| got.iter().filter(|text| text.starts_with(name)).count();
    assert_eq!((of("x.y="), of("t=t")), (8, 8), "{got:?}");
    let counters = node.tenant("tenantA");
    assert_eq!(counters.counters().class(Class::Live).delivered.value(), 8);
    assert_eq!(counters.counters().class(Class::Tele).delivered.value(), 8);
}

#[test]
fn what_another_lane_has_written_in_between_is_not_continued() {
    let (mut node, mut client, mut reader) = region_a();
    arrive(&mut node, &mut reader, &slice(2, Some((Class::Tele, "tenantA")), &announce())).unwrap();
    let mut arrivals = Arrivals::default();
    assert_eq!(read(&mut reader, 1, &live(1..=2), &mut arrivals), 1);
    // A request is never one more like another.
    let request = Relayed { class: Class::Tele, reply: "r", ..relayed(1, OWN) }.encode();
    assert_eq!(read(&mut reader, 2, &[request], &mut arrivals), 0);
    read(&mut reader, 1, &live(3..=4), &mut arrivals);
    node.carry_out(&mut arrivals);
    let mut got = messages(&client.read());
    got.sort();
    assert_eq!(got, ["x.y=1", "x.y=2", "x.y=3", "x.y=4", "x.y=p"]);
    assert_eq!(drops(&node, "tenantA", DropReason::Late), 0);
}

#[test]
fn what_has_come_another_way_is_late() {
    let (mut node, mut client, mut reader) = region_a();
    let mut other = node.reader(0);
    arrive(&mut node, &mut other, &slice(1, Some((Class::Live, "tenantA")), &announce())).unwrap();
    let mut arrivals = Arrivals::default();
    assert_eq!(read(&mut reader, 1, &live(1..=2), &mut arrivals), 1);
    node.carry_out(&mut Arrivals::default());
    arrive(&mut node, &mut other, &slice(1, None, &live(3..=4).concat())).unwrap();
    assert_eq!(read(&mut reader, 1, &live(3..=5), &mut arrivals), 1);
    assert_eq!(drops(&node, "tenantA", DropReason::Late), 2);
    node.carry_out(&mut arrivals);
    let mut got = messages(&client.read());
    got.sort();
    assert_eq!(got, ["x.y=1", "x.y=2", "x.y=3", "x.y=4", "x.y=5"]);
}

#[test]
fn what_went_nowhere_shows_nothing_of_the_next() {
    let (mut node, mut client, mut reader) = region_a();
    let mut other = node.reader(0);
    arrive(&mut node, &mut other, &slice(1, Some((Class::Live, "tenantA")), &announce())).unwrap();
    arrive(&mut node, &mut other, &slice(1, None, &plain(Class::Live, 2, "a", b"2"))).unwrap();
    let mut arrivals = Arrivals::default();
    // Of the sender's messages the first is late, while what another one has sent is still in the batch.
    let theirs = Relayed { sender: OTHER_SENDER, name: "z", ..relayed(1, OWN) }.encode();
    let mut frames = vec![theirs];
    frames.extend((2..=4).map(|seq| plain(Class::Live, seq, "a", b"p")));
    read(&mut reader, 1, &frames, &mut arrivals);
    node.carry_out(&mut arrivals);
    assert_eq!(messages(&client.read()), ["a=2", "z=p", "a=p", "a=p"]);
    assert_eq!(drops(&node, "tenantA", DropReason::Late), 1);
}

#[test]
fn what_many_want_is_written_once_for_all_who_are_alike() {
    let (mut node, mut client, mut reader) = region_a();
    let mut others: Vec<_> =
        (0..CROWD_SESSIONS_MIN + 1).map(|n| node.client("tenantA", &format!("agent{n}"))).collect();
    for (n, other) in others.iter_mut().enumerate() {
        other.say(&mut node, subscribe(if n == 3 { 8 } else { 7 }, "x.y"));
    }
    let mut arrivals = Arrivals::default();
    assert_eq!(read(&mut reader, 1, &live(1..=3), &mut arrivals), 3);
    // A second choice is for a group alone: whoever has no group has had the first one.
    let mut ext = ExtBuilder::new();
    ext.origin(REGION_B).incarnation(7).sender(SENDER).redelivered(true);
    ext.targets().target(REGION_A);
    let head = DataHead { hops: 1, seq: Some(4), ..DataHead::new(DataKind::Relay, Some(Class::Live)) };
    let mut again = BytesMut::new();
    head.encode_into(&mut again, ext.bytes().unwrap(), b"x.y", &[], &[], b"again").unwrap();
    assert_eq!(read(&mut reader, 1, &[again], &mut arrivals), 0);
    node.carry_out(&mut arrivals);
    for got in others.iter_mut().chain([&mut client]).map(|other| messages(&other.read())) {
        assert_eq!(got, ["x.y=1", "x.y=2", "x.y=3"]);
    }
    let delivered = node.tenant("tenantA").counters().class(Class::Live).delivered.value();
    assert_eq!(delivered, 3 * (CROWD_SESSIONS_MIN as u64 + 2));
}
