//! What a change does to lanes, sessions and peers of one broker.

use bytes::{Bytes, BytesMut};
use glocal_core::bundle::{Bundle, Section};
use glocal_core::count::Drop as DropReason;
use glocal_core::identity::KeyId;
use glocal_core::limits::{BRIDGE_REFUSALS_MAX, NARROWING_MS_MAX};
use glocal_core::name::Class;
use glocal_core::sched::{EdgeTerms, QueuedFrame};
use glocal_wire::slice::{SliceEvent, SliceReader};

use super::*;
use crate::driver::Command;
use crate::lane_reader::{Arrivals, BridgeFault};
use crate::lane_writer::{Due, LaneWriter, StreamWrite};
use crate::link::Handles;
use crate::machine::Machine as _;
use crate::testing::{NOW, Node, denied, label, messages, publish, slice, subscribe};

/// The broker takes a bundle in which the sections are changed.
fn renew(node: &mut Node, version: u64, change: impl Fn(&mut Section)) {
    let shared = Arc::clone(&node.shared);
    let mut sections: Vec<Section> = shared.tenants().iter().map(|t| Section::clone(&t.section())).collect();
    sections.iter_mut().for_each(change);
    sections.retain(|section| section.weight > 0);
    let digest = |n: usize| [u8::try_from(n).unwrap(); 32];
    let mut head = crate::testing::head();
    head.version = version;
    head.roots = vec![KeyId([1; 32])];
    head.nodes.iter_mut().for_each(|entry| entry.issuers = vec![KeyId([1; 32])]);
    head.sections = (0..sections.len()).map(digest).collect();
    let listed: Vec<_> = sections.iter().cloned().enumerate().map(|(n, section)| (digest(n), section)).collect();
    let tenants = Arc::new(shared.tenants().renew(sections.into_iter().map(Arc::new)).unwrap());
    let brokers = shared.brokers().renew(head.nodes.iter().map(|entry| entry.node.clone())).unwrap();
    let renewal = Renewal {
        bundle: Arc::new(Bundle::assemble(head, listed).unwrap()),
        policy: Arc::new(Policy::new(version, tenants)),
        brokers: Arc::new(brokers),
        links: shared.links().iter().cloned().collect(),
        now: NOW,
    };
    node.driver.apply(Command::Change(Change::Renewal(Box::new(renewal))));
    node.driver.commit(NOW);
}

fn without_edges(tenant: &'static str) -> impl Fn(&mut Section) {
    move |section| {
        if section.tenant.as_str() == tenant {
            section.edges.clear();
        }
    }
}

fn queue(node: &Node, tenant: &str, bytes: &'static [u8]) {
    let key = node.tenant(tenant).key();
    let (frame, brokers) = (QueuedFrame::new(Bytes::from_static(bytes)), node.shared.brokers());
    let link = node.link(0);
    let pushed =
        link.inbox().push_batch(|lanes| lanes.push(key, Class::Bulk, frame, &Handles::default(), &brokers, NOW));
    assert!(pushed.is_some());
}

/// The lanes that were opened, with their tenants, those that were reset, and the bytes of each tenant.
fn written(writes: Vec<StreamWrite>) -> Vec<String> {
    let mut events = Vec::new();
    for write in writes {
        let mut bytes = write.parts.concat().into();
        let mut reader = SliceReader::new();
        while let Some(event) = reader.next_event(&mut bytes).unwrap() {
            events.push(match event {
                SliceEvent::Open { lane, tenant, .. } => format!("open {lane} {tenant}"),
                SliceEvent::Reset { lane } => format!("reset {lane}"),
                SliceEvent::Probe { id } => format!("probe {id}"),
                SliceEvent::Data { lane, bytes } => format!("{lane}: {}", String::from_utf8_lossy(&bytes)),
            });
        }
    }
    events
}

#[test]
fn a_narrowing_takes_what_is_queued_resets_the_lane_and_leaves_others_as_they_are() {
    let mut node = Node::new(1);
    node.up(0, 0);
    let link = node.link(0);
    let mut writer = LaneWriter::default();
    let mut fill = |node: &Node| link.inbox().with(|lanes| writer.fill(&link, lanes, &node.shared, NOW, usize::MAX));
    queue(&node, "private", b"one");
    queue(&node, "tenantA", b"two");
    let first = written(fill(&node));
    assert!(first.contains(&"open 1 private".to_owned()) || first.contains(&"open 2 private".to_owned()), "{first:?}");
    let lane = first.iter().find_map(|event| event.strip_suffix(": one")).unwrap().to_owned();
    queue(&node, "private", b"never");
    queue(&node, "tenantA", b"three");
    renew(&mut node, 2, without_edges("private"));
    let counters = Arc::clone(node.shared.tenants().by_id("private").unwrap());
    assert_eq!(counters.counters().class(Class::Bulk).drops(DropReason::EdgeTenant), 1);
    let second = written(fill(&node));
    assert!(second.contains(&format!("reset {lane}")), "{second:?}");
    assert!(second.iter().any(|event| event.ends_with(": three")), "{second:?}");
    assert!(!second.iter().any(|event| event.contains("never")), "{second:?}");
    // It comes back: a lane of its own, never the old one.
    renew(&mut node, 3, |section| {
        if section.tenant.as_str() == "private" {
            section.edges = vec![label("a-global")];
        }
    });
    let set = node.allowed(0);
    let edge = node.key(0);
    node.driver.apply(Command::Change(Change::Edge { edge, sends: set.clone(), accepts: set, now: NOW }));
    node.driver.commit(NOW);
    queue(&node, "private", b"again");
    let third = written(fill(&node));
    assert!(third.iter().any(|event| event.starts_with("open ") && event.ends_with(" private")), "{third:?}");
    assert!(third.iter().any(|event| event.ends_with("again")), "{third:?}");
}

#[test]
fn what_a_peer_sends_before_it_knows_is_skipped_and_only_later_held_against_it() {
    let mut node = Node::new(1);
    node.up(0, 0);
    let mut reader = node.reader(0);
    let mut arrivals = Arrivals::default();
    let open = slice(1, Some((Class::Live, "private")), b"");
    reader.on_chunk(open.freeze(), NOW, &mut arrivals).unwrap();
    renew(&mut node, 2, without_edges("private"));
    let piece = || slice(1, None, &[9, 0, 0, 0, 0x40, 0, 0, 0, 0]).freeze();
    for _ in 0..2 * BRIDGE_REFUSALS_MAX {
        reader.on_chunk(piece(), NOW, &mut arrivals).unwrap();
    }
    assert!(node.link(0).edge().refused.value() >= 2 * BRIDGE_REFUSALS_MAX, "all of it is counted");
    let later = NOW.plus_millis(NARROWING_MS_MAX);
    let end = (0..=BRIDGE_REFUSALS_MAX).find_map(|_| reader.on_chunk(piece(), later, &mut arrivals).err());
    assert_eq!(end, Some(BridgeFault::Refusals), "by then it has heard");
    assert!(arrivals.batch.finished.is_empty() && arrivals.commands.is_empty());
}

#[test]
fn cached_decisions_and_standing_subscriptions_do_not_outlive_a_bundle() {
    let mut node = Node::new(1);
    let mut sender = node.client("tenantB", "bob");
    let mut reader = node.client("private", "carol");
    reader.say(&mut node, subscribe(1, "intake.>"));
    let to = "T.private.live.intake.x";
    assert_eq!(denied(&sender.publish(&mut node, to, b"1")), []);
    assert_eq!(messages(&reader.read()).len(), 1);
    // The grant goes: the decision that was cached goes with it.
    renew(&mut node, 2, |section| section.grants.clear());
    let refused = sender.publish(&mut node, to, b"2");
    assert_eq!(denied(&refused)[0].2, "cross-tenant");
    assert_eq!(messages(&reader.read()), [""; 0]);
    // The tenant goes: its subscription ends, and its client is told.
    renew(&mut node, 3, |section| {
        if section.tenant.as_str() == "private" {
            section.weight = 0;
        }
    });
    assert_eq!(denied(&reader.read()), [(0, 1, "unknown-tenant".to_owned())]);
    assert_eq!(node.driver.take_denials().len(), 1, "and it is logged");
    assert!(node.shared.tenant("private").is_none());
    let mut bytes = BytesMut::new();
    bytes.unsplit(publish(None, None, "intake.x", "", b"3"));
    assert_eq!(denied(&reader.send(&mut node, &bytes))[0].2, "unknown-tenant");
}

/// Of 27 packets of what waits for a session in two classes, how many bytes are `bulk`.
fn of_bulk(reader: &crate::testing::Client) -> usize {
    let port = reader.session.port().unwrap();
    port.inbox().with(|lanes| {
        for (class, byte) in [(Class::Live, b'l'), (Class::Bulk, b'b')] {
            for _ in 0..64 {
                let frame = QueuedFrame::new(Bytes::from(vec![byte; 1024]));
                assert_eq!(lanes.push(class, frame, NOW), glocal_core::sched::Pushed::Queued);
            }
        }
        let (mut out, mut drops) = (Vec::new(), glocal_core::sched::Drops::new());
        assert_eq!(lanes.fill(27 * 1200, NOW, &mut out, &mut drops), 27 * 1200);
        lanes.clear_classes(&mut drops);
        out.iter().flat_map(|part| part.iter()).filter(|byte| **byte == b'b').count()
    })
}

#[test]
fn the_classes_of_a_session_weigh_what_its_tenant_says() {
    let mut node = Node::new(1);
    let session = |node: &mut Node, tenant: &str| {
        let mut client = node.client(tenant, "reader");
        client.say(node, subscribe(1, "news"));
        client
    };
    let (old, other) = (session(&mut node, "tenantA"), session(&mut node, "tenantB"));
    let is_near = |bytes: usize, share: (usize, usize)| (27 * 1200 * share.0 / share.1).abs_diff(bytes) <= 3 * 1200;
    let by_default = (1, 5);
    assert!(is_near(of_bulk(&old), by_default), "live 4, bulk 1");
    renew(&mut node, 2, |section| {
        if section.tenant.as_str() == "tenantA" {
            section.terms = EdgeTerms { class_weights: [1, 1, 1, 8], ..EdgeTerms::DEFAULT };
        }
    });
    let new = session(&mut node, "tenantA");
    assert!(is_near(of_bulk(&old), (8, 9)), "{} for a session that was there before", of_bulk(&old));
    assert!(is_near(of_bulk(&new), (8, 9)), "{} for one that came after", of_bulk(&new));
    assert!(is_near(of_bulk(&other), by_default), "another tenant's is none of its business");
    renew(&mut node, 3, |section| section.terms = EdgeTerms::DEFAULT);
    assert!([&old, &new].iter().all(|reader| is_near(of_bulk(reader), by_default)), "and back");
}

#[test]
fn weights_and_caps_follow_the_bundle_under_what_is_queued() {
    let mut node = Node::new(1);
    node.up(0, 0);
    let link = node.link(0);
    let (capped, other) = (node.tenant("tenantA").key(), node.tenant("tenantB").key());
    let terms = EdgeTerms { class_weights: [1, 2, 3, 4], bytes_per_s: Some(8_192), ..EdgeTerms::DEFAULT };
    renew(&mut node, 2, |section| {
        section.weight = 7;
        if section.tenant.as_str() == "tenantA" {
            section.terms = terms;
        }
    });
    link.inbox().with(|lanes| {
        assert_eq!((lanes.sched().weight(capped), lanes.sched().weight(other)), (7, 7));
        assert_eq!((lanes.sched().terms(capped), lanes.sched().terms(other)), (terms, EdgeTerms::DEFAULT));
    });
    let mut writer = LaneWriter::default();
    let mut next = |node: &Node| link.inbox().with(|lanes| writer.next(&link, lanes, &node.shared, NOW, usize::MAX));
    for _ in 0..8 {
        queue(&node, "tenantA", &[b'a'; 4096]);
    }
    let bytes = |due: Option<Due>| match due {
        Some(Due::Writes(writes)) => written(writes).iter().map(|event| event.matches('a').count()).sum::<usize>(),
        other => panic!("{other:?}"),
    };
    let first = bytes(next(&node));
    assert!(first < 8 * 4096, "{first}");
    assert!(next(&node).is_none(), "nothing is due, and pushes of others wake whoever writes");
    assert!(link.inbox().with(|lanes| lanes.sched().wakes_at()).is_some_and(|until| until > NOW));
    // The tenant's cap goes while it has something queued, all of which comes.
    renew(&mut node, 3, |section| section.terms = EdgeTerms::DEFAULT);
    let rest = bytes(next(&node));
    // The tenant's name on the wire has one, too.
    assert!((8 * 4096..8 * 4096 + 20).contains(&(first + rest)), "{first} and {rest}");
}
