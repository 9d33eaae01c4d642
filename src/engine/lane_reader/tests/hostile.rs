//! Peers that lie (attacks 12, 28, 30; RB-19).

use super::*;

/// Repeats one event until the bridge closes; how many it took.
fn until_closed(node: &mut Node, reader: &mut LaneReader, mut event: impl FnMut(u32) -> BytesMut) -> u64 {
    for n in 0..10_000u32 {
        match arrive(node, reader, &event(n)) {
            Ok(_) => {}
            Err(BridgeFault::Refusals) => return u64::from(n) + 1,
            Err(other) => panic!("{other}"),
        }
    }
    panic!("never closed")
}

#[test]
fn lanes_are_opened_in_order_and_once() {
    let (mut node, _, mut reader) = region_a();
    let fault = |node: &mut Node, reader: &mut LaneReader, bytes: &[u8]| arrive(node, reader, bytes).unwrap_err();
    assert_eq!(fault(&mut node, &mut reader, &slice(7, None, b"x")), BridgeFault::Lane(7), "never opened");
    let (mut node, _, mut reader) = region_a();
    let again = slice(1, Some((Class::Live, "tenantA")), b"");
    assert_eq!(fault(&mut node, &mut reader, &again), BridgeFault::Lane(1), "opened twice");
    let (mut node, _, mut reader) = region_a();
    arrive(&mut node, &mut reader, &reset(1)).unwrap();
    assert_eq!(fault(&mut node, &mut reader, &again), BridgeFault::Lane(1), "reused");
    let (mut node, _, mut reader) = region_a();
    arrive(&mut node, &mut reader, &reset(1)).unwrap();
    assert_eq!(fault(&mut node, &mut reader, &reset(1)), BridgeFault::Lane(1), "reset twice");
    let (mut node, _, mut reader) = region_a();
    arrive(&mut node, &mut reader, &slice(9, Some((Class::Live, "tenantA")), b"")).unwrap();
    let older = slice(5, Some((Class::Live, "tenantA")), b"");
    assert_eq!(fault(&mut node, &mut reader, &older), BridgeFault::Lane(5), "an older number");
}

#[test]
fn what_the_edge_forbids_is_skipped_counted_and_in_the_end_closes() {
    for tenant in ["tenantB", "nobody", "tn-abc"] {
        let (mut node, mut a, mut reader) = region_a();
        let mut b = node.client("tenantB", "bob");
        b.say(&mut node, subscribe(1, ">"));
        let mut lane = announce();
        lane.unsplit(relayed(1, OWN).encode());
        let mut arrivals = Arrivals::default();
        let open = slice(2, Some((Class::Live, tenant)), &lane);
        reader.on_chunk(open.freeze(), NOW, &mut arrivals).unwrap();
        assert_eq!(arrivals.refused, [tenant]);
        assert!(arrivals.batch.is_empty() && arrivals.commands.is_empty());
        assert_eq!(refused(&node), 2, "the opening and its bytes");
        // An allowed lane goes on beside it.
        arrive(&mut node, &mut reader, &slice(1, None, &relayed(1, OWN).encode())).unwrap();
        assert_eq!(messages(&a.read()), ["x.y=p"]);
        let slices = until_closed(&mut node, &mut reader, |n| {
            let mut data = relayed(u64::from(n) + 2, OWN).encode();
            data.extend_from_slice(&[0xff; 8]);
            slice(2, None, &data)
        });
        assert_eq!(slices, BRIDGE_REFUSALS_MAX - 1);
        assert!(b.read().is_empty() && a.read().is_empty(), "nothing was routed");
        assert_eq!(node.tenant("tenantB").counters().class(Class::Live).relayed_in.value(), 0);
    }
}

#[test]
fn refusals_are_counted_by_slice_whatever_the_chunks() {
    let (mut node, _, mut reader) = region_a();
    let stream = slice(2, Some((Class::Live, "tenantB")), &[0; 8 * 1024]);
    for byte in stream.chunks(3) {
        arrive(&mut node, &mut reader, byte).unwrap();
    }
    assert_eq!(refused(&node), 2);
}

#[test]
fn a_narrowing_ends_open_lanes() {
    let (mut node, mut a, mut reader) = region_a();
    let whole = relayed(1, OWN).encode();
    arrive(&mut node, &mut reader, &slice(1, None, &whole[..10])).unwrap();
    let edge = node.key(0);
    let effective = glocal_core::edge::TenantSet::default();
    node.driver.apply(Command::EdgeUp { edge, effective, peer_incarnation: 7 });
    node.driver.commit(NOW);
    arrive(&mut node, &mut reader, &slice(1, None, &whole[10..])).unwrap();
    arrive(&mut node, &mut reader, &slice(1, None, b"anything")).unwrap();
    assert!(a.read().is_empty());
    assert_eq!(refused(&node), 2);
    arrive(&mut node, &mut reader, &reset(1)).unwrap();
}

#[test]
fn handles_nobody_announced_are_refused() {
    let cases: [(&str, Relayed<'_>); 4] = [
        ("origin", Relayed { origin: 99, ..relayed(1, OWN) }),
        ("sender", Relayed { sender: 99, ..relayed(1, OWN) }),
        ("origin that is this broker", Relayed { origin: REGION_A, ..relayed(1, OWN) }),
        ("target", relayed(1, &[(99, &[])])),
    ];
    for (what, message) in cases {
        let (mut node, mut a, mut reader) = region_a();
        arrive(&mut node, &mut reader, &slice(1, None, &message.encode())).unwrap();
        assert!(a.read().is_empty(), "{what}");
        assert_eq!((drops(&node, "tenantA", DropReason::BadTarget), refused(&node)), (1, 1), "{what}");
    }
    // A sender whose name no subscriber could be told.
    for name in ["a b", "ü", "", "a/b"] {
        let (mut node, mut a, mut reader) = region_a();
        let info = AnnounceSender {
            handle: 77,
            session: 1,
            tenant: "tenantA".into(),
            region: Some(name.into()),
            agent: Some("x".into()),
            uid: "0".into(),
        };
        let mut lane = encode(&info.into());
        lane.unsplit(Relayed { sender: 77, ..relayed(1, OWN) }.encode());
        arrive(&mut node, &mut reader, &slice(1, None, &lane)).unwrap();
        assert!(a.read().is_empty(), "{name}");
        assert_eq!(refused(&node), 2, "{name}");
    }
    // A broker that is in no bundle has no handle.
    let (mut node, _, mut reader) = region_a();
    arrive(&mut node, &mut reader, &slice(1, None, &broker(5, "nowhere/n"))).unwrap();
    assert_eq!(refused(&node), 1);
    let record = Presence { origin: 5, incarnation: 7, seq: 0, present: true };
    let outcomes = arrive(&mut node, &mut reader, &slice(1, None, &encode(&record.into()))).unwrap();
    assert!(outcomes.is_empty());
    assert_eq!(refused(&node), 2);
}

#[test]
fn an_origin_that_is_not_behind_the_edge_is_refused() {
    let mut node = Node::new(0);
    node.up(0, 0);
    node.up(1, 0);
    let mut client = node.client("tenantA", "alice");
    client.say(&mut node, subscribe(1, ">"));
    let mut reader = node.reader(0);
    let mut lane = announce();
    // Region-a speaks for region-b.
    lane.unsplit(relayed(1, &[(GLOBAL, &[])]).encode());
    arrive(&mut node, &mut reader, &slice(1, Some((Class::Live, "tenantA")), &lane)).unwrap();
    assert!(client.read().is_empty());
    assert_eq!(drops(&node, "tenantA", DropReason::BadTarget), 1);
    // And one sender cannot change its broker.
    let own = Relayed { origin: REGION_A, seq: 2, ..relayed(2, &[(GLOBAL, &[])]) };
    arrive(&mut node, &mut reader, &slice(1, None, &own.encode())).unwrap();
    assert_eq!(messages(&client.read()), ["x.y=p"]);
}

#[test]
fn hostile_target_lists_cost_the_peer_its_bridge() {
    for (what, handles) in [
        ("unknown", (1000..2000).collect::<Vec<u32>>()),
        ("repeats", vec![REGION_A; 1000]),
        ("back", vec![REGION_B; 1000]),
    ] {
        let (mut node, mut a, mut reader) = region_a();
        let targets: Vec<(u32, &[&str])> = handles.iter().map(|h| (*h, &[][..])).collect();
        let mut result = Ok(Vec::new());
        for frame in 1..=10 {
            result = arrive(&mut node, &mut reader, &slice(1, None, &relayed(frame, &targets).encode()));
            if result.is_err() {
                break;
            }
        }
        assert_eq!(result, Err(BridgeFault::Refusals), "{what}: ten thousand entries are never worked through");
        assert!(messages(&a.read()).len() <= 1, "{what}");
        assert_eq!(drops(&node, "tenantA", DropReason::BadTarget), BRIDGE_REFUSALS_MAX + 1, "{what}");
    }
}

#[test]
fn the_hop_limit_ends_loops() {
    let (mut node, mut a, mut reader) = region_a();
    for (seq, hops) in [(1, HOPS_MAX - 1), (2, HOPS_MAX), (3, u8::MAX)] {
        let message = Relayed { hops, ..relayed(seq, OWN) };
        arrive(&mut node, &mut reader, &slice(1, None, &message.encode())).unwrap();
    }
    assert_eq!(messages(&a.read()).len(), 1);
    assert_eq!(drops(&node, "tenantA", DropReason::HopLimit), 2);
    assert_eq!(refused(&node), 0);
}

#[test]
fn names_and_classes_that_do_not_fit_the_lane_are_refused() {
    let cases = [
        Relayed { class: Class::Bulk, ..relayed(1, OWN) },
        Relayed { name: "a..b", ..relayed(1, OWN) },
        Relayed { name: "a b", ..relayed(1, OWN) },
    ];
    for message in cases {
        let (mut node, mut a, mut reader) = region_a();
        arrive(&mut node, &mut reader, &slice(1, None, &message.encode())).unwrap();
        assert!(a.read().is_empty());
        assert_eq!((drops(&node, "tenantA", DropReason::Malformed), refused(&node)), (1, 1));
    }
}

#[test]
fn frames_of_other_streams_end_the_bridge() {
    let frames = [
        publish(None, None, "x", "", b"p"),
        encode(&subscribe(1, "x")),
        encode(&Ping { token: 1 }.into()),
        encode(&Probe { id: 1 }.into()),
        BytesMut::from(&[4u8, 0, 0, 0, 0x0d, 0, 0, 0][..]),
    ];
    for frame in frames {
        let (mut node, _, mut reader) = region_a();
        let fault = arrive(&mut node, &mut reader, &slice(1, None, &frame)).unwrap_err();
        assert!(matches!(fault, BridgeFault::Unexpected(_) | BridgeFault::Frame(_)), "{fault}");
    }
    let (mut node, _, mut reader) = region_a();
    arrive(&mut node, &mut reader, &slice(1, None, &[4, 0, 0, 0, 0x3e, 0, 0, 0])).unwrap();
    let mut liar = Node::new(1);
    liar.up(0, 0);
    let edge = Arc::clone(liar.link(0).edge());
    let peer = crate::testing::principal("tenantA", "alice", glocal_core::identity::Role::Tenant);
    let mut reader = LaneReader::new(Arc::new(Incoming::new(Arc::clone(&liar.shared), edge, peer, Carries::Everybody)));
    let mut lane = announce();
    lane.unsplit(relayed(1, OWN).encode());
    arrive(&mut liar, &mut reader, &slice(1, Some((Class::Live, "tenantA")), &lane)).unwrap();
    assert_eq!(drops(&liar, "tenantA", DropReason::EdgeTenant), 1, "a client's principal relays nothing");
}

#[test]
fn a_reset_discards_a_partial_frame() {
    let (mut node, mut a, mut reader) = region_a();
    let whole = relayed(1, OWN).encode();
    arrive(&mut node, &mut reader, &slice(1, None, &whole[..whole.len() - 1])).unwrap();
    assert!(reader.incoming.partial_bytes.load(Ordering::Relaxed) > 0);
    arrive(&mut node, &mut reader, &reset(1)).unwrap();
    assert_eq!(reader.incoming.partial_bytes.load(Ordering::Relaxed), 0);
    let mut lane = announce();
    lane.unsplit(whole);
    arrive(&mut node, &mut reader, &slice(2, Some((Class::Live, "tenantA")), &lane)).unwrap();
    assert_eq!(messages(&a.read()), ["x.y=p"]);
    let incoming = Arc::clone(&reader.incoming);
    arrive(&mut node, &mut reader, &slice(2, None, &[9, 0])).unwrap();
    drop(reader);
    let held = (incoming.lanes.load(Ordering::Relaxed), incoming.partial_bytes.load(Ordering::Relaxed));
    assert_eq!(held, (0, 0), "a stream that ends gives everything back");
}

#[test]
fn partial_frames_of_all_lanes_are_bounded_together() {
    let mut node = Node::new(1);
    node.up(0, 0);
    let incoming = node.incoming(0);
    let mut reader = LaneReader::new(Arc::clone(&incoming));
    let mut head = relayed(1, OWN).encode();
    head.truncate(4);
    head[..4].copy_from_slice(&60_000u32.to_le_bytes());
    let mut data = head.to_vec();
    data.extend_from_slice(&relayed(1, OWN).encode()[4..]);
    data.resize(16_000, 1);
    let mut lanes = 0;
    let fault = loop {
        lanes += 1;
        match arrive(&mut node, &mut reader, &slice(lanes, Some((Class::Live, "tenantA")), &data)) {
            Ok(_) => assert!(lanes < 10_000),
            Err(fault) => break fault,
        }
    };
    assert_eq!(fault, BridgeFault::Reassembly);
    assert_eq!(lanes as usize, BRIDGE_REASSEMBLY_BYTES_MAX / data.len() + 1);
}

#[test]
fn lanes_and_handles_are_bounded() {
    let (mut node, _, mut reader) = region_a();
    let mut stream = BytesMut::new();
    for lane in 2..=u32::try_from(BRIDGE_LANES_MAX).unwrap() {
        stream.unsplit(slice(lane, Some((Class::Live, "tenantA")), b""));
    }
    arrive(&mut node, &mut reader, &stream).unwrap();
    let one_more = slice(u32::MAX, Some((Class::Live, "tenantA")), b"");
    assert_eq!(arrive(&mut node, &mut reader, &one_more), Err(BridgeFault::TooMany("lanes")));

    let (mut node, _, mut reader) = region_a();
    let many = u32::try_from(LANE_HANDLES_MAX).unwrap();
    let mut send = |frame: &BytesMut| arrive(&mut node, &mut reader, &slice(1, None, frame)).map(|_| ());
    for handle in 2..many {
        send(&sender(1000 + handle, "tenantA")).unwrap();
    }
    assert_eq!(send(&sender(7, "tenantA")), Err(BridgeFault::TooMany("handles")));
    send(&encode(&ForgetHandles { count: many }.into())).unwrap();
    send(&sender(7, "tenantA")).unwrap();
    send(&relayed(9, OWN).encode()).unwrap();
    assert_eq!(refused(&node), 1, "handles of before mean nothing now");
}

#[test]
fn routed_frames_reach_their_target_or_are_counted() {
    let (node, _client, mut reader) = region_a();
    let inner = Control::from(NoMember { target: REGION_A, origin: REGION_B, seq: 4, group: None });
    let (kind, body) = inner.to_body().unwrap();
    let routed = |target, origin, hops| {
        let mut lane = announce();
        lane.unsplit(encode(&Routed { target, origin, hops, kind, body: body.clone() }.into()));
        lane
    };
    let mut lane = 2;
    let mut send = |bytes: &[u8]| {
        let mut arrivals = Arrivals::default();
        let got = reader.on_chunk(slice(lane, Some((Class::Ctrl, "tenantA")), bytes).freeze(), NOW, &mut arrivals);
        lane += 1;
        (got, arrivals.commands)
    };
    let (got, commands) = send(&routed(REGION_A, REGION_B, 1));
    assert!(got.is_ok());
    let [Command::Letter(letter)] = commands.as_slice() else { panic!("one letter: {commands:?}") };
    assert_eq!(letter.control, inner);
    assert_eq!((letter.origin.0, letter.incarnation), (REGION_B, 7));
    // Back where it came from, from this broker itself, and for nobody known.
    for (target, origin, reason) in [
        (REGION_B, GLOBAL, DropReason::NoRoute),
        (GLOBAL, REGION_A, DropReason::BadTarget),
        (77, REGION_B, DropReason::BadTarget),
    ] {
        let before = node.tenant("tenantA").counters().class(Class::Ctrl).drops(reason);
        let (got, commands) = send(&routed(target, origin, 1));
        assert!(got.is_ok() && commands.is_empty(), "{target} {origin}");
        assert_eq!(node.tenant("tenantA").counters().class(Class::Ctrl).drops(reason), before + 1);
    }
    // One inside another, and what cannot be decoded.
    let nested = Control::from(Routed { target: REGION_A, origin: REGION_B, hops: 0, kind, body: body.clone() });
    let (nested, inside) = nested.to_body().unwrap();
    for (kind, body) in [(nested, inside), (0x1c, vec![9])] {
        let mut lane = announce();
        lane.unsplit(encode(&Routed { target: REGION_A, origin: REGION_B, hops: 1, kind, body }.into()));
        let (got, commands) = send(&lane);
        assert!(got.is_ok() && commands.is_empty());
    }
    assert_eq!(node.tenant("tenantA").counters().class(Class::Ctrl).drops(DropReason::Malformed), 2);
}

#[test]
fn a_broker_on_the_way_passes_routed_frames_on() {
    let mut node = Node::new(0);
    node.up(0, 0);
    node.up(1, 0);
    let mut reader = node.reader(0);
    let inner = Control::from(NoMember { target: 9, origin: 9, seq: 4, group: None });
    let (kind, body) = inner.to_body().unwrap();
    let routed = Routed { target: REGION_B, origin: REGION_A, hops: 1, kind, body };
    let mut lane = announce();
    lane.unsplit(encode(&routed.clone().into()));
    let far = Routed { hops: HOPS_MAX, ..routed.clone() };
    lane.unsplit(encode(&far.into()));
    assert_eq!(arrive(&mut node, &mut reader, &slice(1, Some((Class::Ctrl, "tenantA")), &lane)).unwrap(), []);
    let queued =
        node.link(1).inbox().with(|lanes| lanes.sched().lane_backlog(node.tenant("tenantA").key(), Class::Ctrl));
    assert!(queued > 0, "it goes on to region-b");
    assert_eq!(node.tenant("tenantA").counters().class(Class::Ctrl).drops(DropReason::HopLimit), 1);
    // The edge to region-a does not carry tenantB.
    let foreign = node.tenant("tenantB");
    assert!(!crate::routed::send(&node.shared, &foreign, BrokerIndex(REGION_A), &inner, NOW));
    assert_eq!(foreign.counters().class(Class::Ctrl).drops(DropReason::NoRoute), 1);
}

#[test]
fn what_comes_back_in_a_circle_is_dropped_and_is_no_lie() {
    let mut node = Node::new(0);
    node.up(0, 0);
    node.up(1, 0);
    let mut reader = node.reader(0);
    let inner = Control::from(NoMember { target: 9, origin: 9, seq: 4, group: None });
    let (kind, body) = inner.to_body().unwrap();
    for (id, hops, refused) in [(1, 1, 1), (2, 3, 1)] {
        let mut lane = announce();
        lane.unsplit(encode(&Routed { target: REGION_B, origin: GLOBAL, hops, kind, body: body.clone() }.into()));
        assert_eq!(arrive(&mut node, &mut reader, &slice(id, Some((Class::Ctrl, "tenantA")), &lane)).unwrap(), []);
        assert_eq!(node.link(0).edge().refused.value(), refused, "after {hops} hops");
        let dropped = node.tenant("tenantA").counters().class(Class::Ctrl).drops(DropReason::BadTarget);
        assert_eq!(dropped, u64::from(id));
    }
}

#[test]
fn a_tenants_connection_carries_that_tenant_and_the_bridge_beside_it_nobody() {
    for (of, carries) in [("another tenant", true), ("nobody", false)] {
        let mut node = Node::new(0);
        node.up(1, 0);
        let (one, two) = (node.tenant("tenantA"), node.tenant("tenantB"));
        assert!(node.allowed(1).contains(one.key()) && node.allowed(1).contains(two.key()), "the edge allows both");
        let carries = if carries { Carries::One(two.key()) } else { Carries::Nobody };
        let edge = Arc::clone(node.link(1).edge());
        let peer = crate::testing::node_principal(&edge.peer().to_string());
        let incoming = Incoming::new(Arc::clone(&node.shared), edge, peer, carries);
        let mut reader = LaneReader::new(Arc::new(incoming));
        let mut client = node.client("tenantA", "alice");
        client.say(&mut node, subscribe(1, ">"));
        let mut lane = announce();
        lane.unsplit(relayed(1, &[(GLOBAL, &[])]).encode());
        arrive(&mut node, &mut reader, &slice(1, Some((Class::Live, "tenantA")), &lane)).unwrap();
        let refused = || node.link(1).edge().refused.value();
        assert_eq!(refused(), 2, "{of}: the lane and its slice");
        assert_eq!(messages(&client.read()), [""; 0], "{of}");
        assert_eq!(one.counters().class(Class::Live).relayed_in.value(), 0, "{of}");
        arrive(&mut node, &mut reader, &slice(2, Some((Class::Live, "tenantB")), b"")).unwrap();
        let own = if carries == Carries::Nobody { 3 } else { 2 };
        assert_eq!(node.link(1).edge().refused.value(), own, "{of}");
        let taken = until_closed(&mut node, &mut reader, |_| slice(1, None, b"x"));
        assert!(taken <= glocal_core::limits::BRIDGE_REFUSALS_MAX, "repeats close it");
    }
}
