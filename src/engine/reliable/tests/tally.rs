//! What nobody acknowledges: known to have arrived, or counted as lost, whoever lost it.

use glocal_core::limits::{TALLY_AGAIN_MS, TALLY_GIVE_UP_MS, TALLY_MS};
use glocal_wire::control::Tallied;

use super::*;

impl Line {
    /// Lets time pass and every broker ask what has arrived.
    fn ask(&mut self, millis: u64) {
        self.now = self.now.plus_millis(millis);
        self.nodes.iter().for_each(|node| crate::tally::tick(&node.shared, self.now));
        self.carry();
    }

    fn lost(&self, class: Class) -> u64 {
        self.nodes[A].tenant("tenantA").counters().class(class).lost.value()
    }

    fn is_settled(&self) -> bool {
        self.nodes[A].tenant("tenantA").tallies().is_settled()
    }

    /// A publisher in region-a of which `cut` messages of every class get no further than the bridge of `edge`.
    fn losing(edge: usize, cut: u64) -> Self {
        let mut line = Self::new();
        let (mut alice, mut far) = (line.publisher("alice"), line.client(B, "far"));
        line.say(B, &mut far, subscribe(1, "x.>"));
        for class in [Class::Live, Class::Tele] {
            line.publish(&mut alice, class, 1, b"arrives");
            line.carry();
            for number in 0..cut {
                line.publish(&mut alice, class, number, b"is lost");
            }
            let way = line.ways.iter_mut().find(|way| way.edge == edge && way.from == [A, G][edge]).unwrap();
            if edge == 1 {
                // As far as the global, whose lane holds it when its bridge ends.
                let at = line.ways.iter().position(|way| way.edge == 0 && way.from == A).unwrap();
                line.carry_one(at);
            } else {
                let (link, shared) = (line.nodes[way.from].link(way.edge), Arc::clone(&line.nodes[way.from].shared));
                let now = line.now;
                let _lost = link.inbox().with(|lanes| way.writer.fill(&link, lanes, &shared, now, 1 << 24));
            }
            line.reconnect(edge, [7, 7]);
        }
        assert_eq!(messages(&far.read()), ["x.y=arrives", "x.y=arrives"]);
        line
    }

    /// Carries what is queued for one bridge now.
    fn carry_one(&mut self, at: usize) {
        let way = &mut self.ways[at];
        let (link, shared) = (self.nodes[way.from].link(way.edge), Arc::clone(&self.nodes[way.from].shared));
        let now = self.now;
        let writes = link.inbox().with(|lanes| way.writer.fill(&link, lanes, &shared, now, 1 << 24));
        let mut arrivals = Arrivals::default();
        for write in writes {
            for part in write.parts {
                way.readers[write.stream].on_chunk(part, now, &mut arrivals).unwrap();
            }
        }
        arrivals.batch.flush(&self.nodes[way.to].shared, now);
    }
}

#[test]
fn what_arrives_is_not_lost_and_asked_about_no_more() {
    let mut line = Line::new();
    let (mut alice, mut far) = (line.publisher("alice"), line.client(B, "far"));
    line.say(B, &mut far, subscribe(1, "x.>"));
    for class in [Class::Live, Class::Tele] {
        (0..100).for_each(|number| drop(line.publish(&mut alice, class, number, b"m")));
    }
    line.carry();
    assert!(!line.is_settled(), "nobody has said so yet");
    line.ask(TALLY_MS);
    assert!(line.is_settled() && line.lost(Class::Live) == 0 && line.lost(Class::Tele) == 0);
    let sent = line.nodes[A].link(0).inbox().with(|lanes| lanes.sched().backlog_bytes());
    line.ask(TALLY_MS);
    assert_eq!(sent, 0, "nothing is asked where nothing is open");
}

#[test]
fn what_a_bridge_on_the_way_took_along_is_counted_where_it_entered() {
    for edge in 0..2 {
        let mut line = Line::losing(edge, 3);
        line.ask(TALLY_MS);
        assert_eq!((line.lost(Class::Live), line.is_settled()), (0, false), "it may still come by another way");
        line.ask(TALLY_AGAIN_MS);
        assert_eq!([line.lost(Class::Live), line.lost(Class::Tele)], [3, 3], "edge {edge}");
        assert!(line.is_settled());
        line.ask(TALLY_MS);
        assert_eq!([line.lost(Class::Live), line.lost(Class::Tele)], [3, 3], "once");
    }
}

#[test]
fn whoever_never_answers_has_got_nothing() {
    let mut line = Line::losing(0, 2);
    line.cut = true;
    line.ask(TALLY_MS);
    line.ask(TALLY_GIVE_UP_MS);
    assert_eq!([line.lost(Class::Live), line.lost(Class::Tele)], [3, 3], "also what had arrived: nobody says so");
    assert!(line.is_settled());
}

#[test]
fn what_a_question_displaces_is_counted_for_the_tenant_and_the_edge() {
    let mut line = Line::new();
    let (mut alice, mut far) = (line.publisher("alice"), line.client(B, "far"));
    line.say(B, &mut far, subscribe(1, "x.>"));
    let lost = |line: &Line| {
        let lane_full = DropReason::LaneFull;
        let of_edge = line.nodes[A].link(0).inbox().with(|lanes| {
            let reasons =
                lanes.lost().filter(|(_, class, reason, _)| (*class, *reason) == (Class::Live, lane_full.code()));
            reasons.map(|(.., frames)| frames).sum::<u64>()
        });
        (line.drops(A, Class::Live, lane_full), of_edge)
    };
    let mut number = 0;
    while lost(&line).0 == 0 {
        line.publish(&mut alice, Class::Live, number, b"");
        number += 1;
    }
    let before = lost(&line);
    assert_eq!(before.0, before.1);
    for _ in 0..4 {
        line.now = line.now.plus_millis(TALLY_MS);
        crate::tally::tick(&line.nodes[A].shared, line.now);
    }
    let after = lost(&line);
    assert!(after.0 > before.0, "a question found no room");
    assert_eq!(after.0, after.1);
}

#[test]
fn answers_to_what_was_never_asked_are_counted_and_change_nothing() {
    let line = Line::losing(0, 2);
    let bad = |line: &Line| line.drops(A, Class::Live, DropReason::BadTarget);
    let before = bad(&line);
    let tenant = line.nodes[A].tenant("tenantA");
    let say = |line: &Line, from, body: Tallied| {
        let shared = Arc::clone(&line.nodes[A].shared);
        crate::tally::on_letter(&shared, &tenant, (from, 7), body.into(), NOW)
    };
    let own = line.nodes[A].shared.incarnation();
    let far = line.nodes[B].shared.own;
    let forged = Tallied { class: 0, incarnation: own, copies: u64::MAX, received: 0 };
    assert_eq!(say(&line, far, forged.clone()), None);
    assert_eq!(say(&line, far, Tallied { copies: 0, received: u64::MAX, ..forged.clone() }), None);
    assert_eq!(say(&line, line.nodes[G].shared.own, Tallied { copies: 1, ..forged.clone() }), None, "nobody's target");
    assert_eq!(bad(&line) - before, 3);
    assert_eq!(say(&line, far, Tallied { incarnation: own - 1, copies: 1, ..forged }), None, "another life's");
    assert_eq!((bad(&line) - before, line.lost(Class::Live)), (3, 0));
}

#[test]
fn what_is_published_while_no_way_leads_there_is_counted_where_it_entered() {
    let mut line = Line::new();
    let (mut alice, mut far) = (line.publisher("alice"), line.client(B, "far"));
    line.say(B, &mut far, subscribe(1, "x.>"));
    line.publish(&mut alice, Class::Live, 1, b"arrives");
    line.carry();
    let before = Class::ALL.map(|class| line.nodes[A].tenant("tenantA").counters().class(class).unmatched.value());
    let key = line.nodes[A].key(0);
    line.nodes[A].driver.apply(Command::EdgeDown { edge: key });
    // The table does not know yet; the edge carries nobody, which is no fault of the tenant.
    for class in [Class::Live, Class::Tele] {
        (0..3).for_each(|number| drop(line.publish(&mut alice, class, number, b"has no way")));
        assert_eq!(line.drops(A, class, DropReason::NoRoute), 3);
        let unmatched = line.nodes[A].tenant("tenantA").counters().class(class).unmatched.value();
        assert_eq!(unmatched, before[class.index()], "they are wanted");
        assert_eq!(line.drops(A, class, DropReason::EdgeTenant), 0);
    }
    // In between, one more like the last of a name that has a way again.
    line.reconnect(0, [7, 7]);
    line.publish(&mut alice, Class::Live, 4, b"arrives");
    line.carry();
    assert_eq!(line.drops(A, Class::Live, DropReason::NoRoute), 3);
    assert_eq!(messages(&far.read()), ["x.y=arrives", "x.y=arrives"]);
}
