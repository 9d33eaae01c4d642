//! Tests of interest: counting, streams over a channel that loses, repeats and reorders, and presence.

use proptest::prelude::*;

use super::presence::{Heard, Presence, View};
use super::pulled::Pulled;
use super::stream::{News, Pull, Start, Streams};
use super::*;
use crate::limits::{INTEREST_LEASE_MS, INTEREST_LOG_MAX, INTEREST_NEWS_WINDOW, INTEREST_RENEW_MS, INTEREST_RESEND_MS};
use crate::routes::BrokerIndex;
use crate::time::Time;

const PULLER: BrokerIndex = BrokerIndex(1);

fn interest(filter: &str) -> Interest {
    Interest {
        filter: RawFilter::parse(filter.as_bytes()).unwrap(),
        classes: ClassSet::ALL,
        queue: None,
        observer: false,
    }
}

#[test]
fn equal_subscriptions_are_one_change() {
    let mut local = Local::default();
    assert!(local.add(interest("a")).is_some());
    for _ in 0..10_000 {
        assert!(local.add(interest("a")).is_none());
    }
    assert_eq!(local.sum().count, 1);
    for _ in 0..10_000 {
        assert!(local.remove(interest("a")).is_none());
    }
    assert!(matches!(local.remove(interest("a")), Some(Change { add: false, .. })));
    assert!(local.remove(interest("a")).is_none(), "what was never added cannot go");
    assert_eq!(local.sum(), Sum::default());
}

#[test]
fn sums_tell_lists_apart() {
    let sum = |interests: &[Interest]| {
        let mut list = List::default();
        interests.iter().for_each(|i| assert!(list.insert(i.clone())));
        list.sum()
    };
    let (a, b) = (interest("a"), interest("b"));
    assert_eq!(sum(&[a.clone(), b.clone()]), sum(&[b.clone(), a.clone()]), "whatever the order");
    let queue = |name: &str| Interest { queue: Some(QueueGroup::parse(name).unwrap()), ..a.clone() };
    let observer = Interest { observer: true, ..a.clone() };
    let live = Interest { classes: ClassSet::one(crate::name::Class::Live), ..a.clone() };
    let all = [a.clone(), b, queue("q"), queue("r"), observer, live];
    for (i, one) in all.iter().enumerate() {
        for other in all.iter().skip(i + 1) {
            assert_ne!(sum(std::slice::from_ref(one)), sum(std::slice::from_ref(other)));
        }
    }
}

#[test]
fn the_newest_of_what_a_broker_said_wins() {
    let mut view = View::default();
    let at = |incarnation, seq, present| Presence { incarnation, seq, present };
    assert_eq!(view.hear(PULLER, at(2, 5, true)), Heard::News);
    assert_eq!(view.hear(PULLER, at(2, 5, true)), Heard::Repeat);
    assert_eq!(view.hear(PULLER, at(2, 4, false)), Heard::Stale(at(2, 5, true)));
    assert_eq!(view.hear(PULLER, at(1, 9, false)), Heard::Stale(at(2, 5, true)), "an older life");
    assert_eq!(view.present().count(), 1);
    assert_eq!(view.reborn(PULLER, 2), None, "the same life");
    assert_eq!(view.reborn(PULLER, 3), Some(at(3, 0, false)), "a new life has nobody until it says so");
    assert_eq!(view.hear(PULLER, at(2, 6, true)), Heard::Stale(at(3, 0, false)));
    assert_eq!(view.hear(PULLER, at(3, 1, true)), Heard::News);
    assert!(view.forget(PULLER) && !view.forget(PULLER));
}

/// One origin and one that asks, with what is on its way.
#[derive(Default)]
struct Pair {
    local: Local,
    streams: Streams,
    pulled: Pulled,
    next: u64,
    now: Time,
    pulls: Vec<Pull>,
    news: Vec<News>,
    /// What the table would hold.
    held: BTreeSet<Interest>,
    sent: usize,
}

impl Pair {
    fn change(&mut self, add: bool, filter: &str) {
        let change = if add { self.local.add(interest(filter)) } else { self.local.remove(interest(filter)) };
        change.into_iter().for_each(|change| self.streams.changed(change));
        self.send();
    }

    fn send(&mut self) {
        let news = self.streams.send(&self.local, self.now);
        self.sent += news.len();
        self.news.extend(news.into_iter().map(|(_, news)| news));
    }

    fn pass(&mut self, millis: u64) {
        self.now = self.now.plus_millis(millis);
        self.streams.tick(self.now);
        self.send();
        if self.pulled.is_due(self.now) {
            self.next += 1;
            self.pulls.push(self.pulled.ask(self.next, self.now));
        } else {
            self.pulls.extend(self.pulled.tick(self.now));
        }
    }

    fn ask(&mut self, pull: Pull) {
        assert!(self.streams.pull(PULLER, pull, &self.local, self.now, 10));
        self.send();
    }

    fn tell(&mut self, news: News) {
        let taken = self.pulled.take(news, self.now, 1_000);
        for Change { add, interest } in taken.changes {
            let changed = if add { self.held.insert(interest) } else { self.held.remove(&interest) };
            assert!(changed, "every change is one");
        }
        self.pulls.extend(taken.answer);
    }

    fn deliver(&mut self) {
        while !(self.pulls.is_empty() && self.news.is_empty()) {
            for pull in std::mem::take(&mut self.pulls) {
                self.ask(pull);
            }
            for news in std::mem::take(&mut self.news) {
                self.tell(news);
            }
        }
    }

    /// Lets everything arrive from now on, and checks that the truth is known soon.
    fn settle(&mut self) {
        for _ in 0..400 {
            self.pass(100);
            self.deliver();
            if self.pulled.is_quiet() && self.streams.is_quiet() {
                break;
            }
        }
        self.check();
    }

    fn check(&self) {
        assert!(self.pulled.is_complete(), "the list is complete");
        let truth: BTreeSet<Interest> = self.local.after(None).cloned().collect();
        assert_eq!(self.pulled.list().iter().cloned().collect::<BTreeSet<_>>(), truth);
        assert_eq!(self.held, truth, "and the table holds it");
    }
}

#[test]
fn a_list_is_pulled_and_then_followed() {
    let mut pair = Pair::default();
    ["a", "b.*", "c.>"].iter().for_each(|filter| pair.change(true, filter));
    assert!(pair.news.is_empty(), "nobody has asked");
    pair.settle();
    let before = pair.sent;
    assert_eq!(before, 1, "one message holds the list");
    pair.change(false, "a");
    pair.change(true, "d");
    pair.deliver();
    pair.check();
    assert_eq!(pair.sent, before + 2, "a change is one message");
}

#[test]
fn whoever_holds_the_right_list_is_told_so_and_no_more() {
    let mut pair = Pair::default();
    (0..100).for_each(|n| pair.change(true, &format!("f{n}")));
    pair.settle();
    pair.pulled.doubt();
    pair.pass(10_000);
    assert_eq!(pair.pulls.len(), 1);
    for pull in std::mem::take(&mut pair.pulls) {
        pair.ask(pull);
    }
    let news = pair.news.last().unwrap();
    assert!(news.start == Some(Start::Kept) && news.changes.is_empty() && news.complete.is_some(), "{news:?}");
    pair.deliver();
    pair.check();
}

#[test]
fn a_long_list_comes_in_parts_within_a_window() {
    let mut pair = Pair::default();
    let long = |n: usize| format!("{}.n{n}", "x".repeat(900));
    (0..900).for_each(|n| pair.change(true, &long(n)));
    pair.pass(0);
    let pull = pair.pulls.pop().unwrap();
    pair.ask(pull);
    assert_eq!(pair.news.len() as u64, INTEREST_NEWS_WINDOW, "no more before it was taken");
    assert!(pair.news.iter().all(|news| news.changes.len() < 60 && news.complete.is_none()));
    // What changes meanwhile is told between, whether its place in the list was told or not.
    pair.change(false, &long(0));
    pair.change(false, &long(899));
    pair.change(true, "a");
    pair.change(true, "z");
    pair.settle();
    assert_eq!(pair.held.len(), 900);
}

#[test]
fn what_came_and_went_within_one_message_is_gone() {
    let mut pair = Pair::default();
    pair.settle();
    // Nothing is sent meanwhile, so that both changes travel together.
    for add in [true, false] {
        let change = if add { pair.local.add(interest("a")) } else { pair.local.remove(interest("a")) };
        pair.streams.changed(change.unwrap());
    }
    pair.send();
    pair.deliver();
    pair.check();
}

#[test]
fn what_is_lost_is_told_again() {
    let mut pair = Pair::default();
    pair.change(true, "a");
    pair.settle();
    pair.change(true, "b");
    pair.news.clear();
    pair.settle();
    pair.change(true, "c");
    pair.news.clear();
    pair.change(true, "d");
    pair.settle();
}

#[test]
fn nothing_is_said_of_a_stream_that_is_over() {
    // A message was taken and not yet answered when a gap, or a wrong sum, ended the stream.
    let now = Time::default();
    let news = |number, complete| News { stream: 1, number, start: None, changes: Vec::new(), complete };
    for (number, complete) in [(5, None), (1, Some(Sum { digest: 7, count: 1 }))] {
        let mut pulled = Pulled::default();
        assert_eq!(pulled.ask(1, now).stream, 1);
        assert!(!pulled.take(news(0, None), now, 10).broken);
        assert!(pulled.take(news(number, complete), now, 10).broken);
        for millis in 0..1_000 {
            assert_eq!(pulled.tick(now.plus_millis(millis)), None, "after {millis} ms");
        }
        assert!(pulled.is_due(now.plus_millis(1_000)), "it is asked anew");
    }
}

#[test]
fn nobody_is_told_for_ever() {
    let mut pair = Pair::default();
    pair.change(true, "a");
    pair.settle();
    assert_eq!(pair.streams.len(), 1);
    pair.now = pair.now.plus_millis(INTEREST_LEASE_MS);
    pair.streams.tick(pair.now);
    assert!(pair.streams.is_empty(), "the lease has ended");
    pair.change(true, "b");
    assert!(pair.news.is_empty());
    pair.settle();
    pair.ask(pair.pulled.end().unwrap());
    assert!(pair.streams.is_empty(), "who wants no more says so");
}

#[test]
fn an_origin_that_has_forgotten_is_found_out() {
    let mut pair = Pair::default();
    pair.change(true, "a");
    pair.settle();
    pair.streams = Streams::default();
    pair.change(true, "b");
    pair.pass(INTEREST_RENEW_MS);
    pair.deliver();
    pair.check();
    pair.settle();
    // And one that does not answer at all is not believed any more.
    pair.pass(INTEREST_RENEW_MS);
    pair.pulls.clear();
    pair.pass(INTEREST_RESEND_MS);
    assert!(!pair.pulled.is_complete());
    pair.settle();
}

#[test]
fn who_is_there_goes_on_at_little_cost() {
    let mut pair = Pair::default();
    (0..1_000).for_each(|n| pair.change(true, &format!("f{n}")));
    pair.settle();
    let before = pair.sent;
    for _ in 0..600 {
        pair.pass(100);
        pair.deliver();
        assert!(pair.pulled.is_complete());
    }
    let told = pair.sent - before;
    assert!((4..=7).contains(&told), "{told} messages in a minute");
}

#[test]
fn too_many_pullers_are_turned_away_and_the_old_ones_stay() {
    let (mut streams, local) = (Streams::default(), Local::default());
    let pull = Pull { stream: 1, taken: 0, have: Sum::default(), end: false };
    let mut ask =
        |puller: u32, stream| streams.pull(BrokerIndex(puller), Pull { stream, ..pull }, &local, Time::default(), 2);
    assert_eq!([ask(1, 1), ask(2, 1), ask(3, 1)], [true, true, false]);
    assert!(ask(2, 2), "one that is there may begin anew");
}

#[test]
fn who_lags_too_far_behind_is_sent_the_list() {
    let mut pair = Pair::default();
    pair.settle();
    for n in 0..=INTEREST_LOG_MAX + 20 {
        pair.change(n % 2 == 0, "a");
        pair.news.clear();
    }
    assert!(pair.streams.untold() <= INTEREST_LOG_MAX);
    pair.settle();
}

#[test]
fn a_list_that_never_ends_is_cut_off() {
    let mut pulled = Pulled::default();
    pulled.ask(1, Time::default());
    let mut overfull = false;
    for number in 0..100u64 {
        let changes = (0..10).map(|n| Change { add: true, interest: interest(&format!("n{number}.{n}")) }).collect();
        let start = (number == 0).then_some(Start::Anew);
        let taken = pulled.take(News { stream: 1, number, start, changes, complete: None }, Time::default(), 100);
        overfull |= taken.overfull;
        assert!(pulled.list().len() <= 100);
    }
    assert!(overfull && !pulled.is_complete());
}

#[test]
fn what_was_not_asked_for_changes_nothing() {
    let mut pulled = Pulled::default();
    let complete = Some(Sum { digest: interest("a").digest(), count: 1 });
    let news = |stream, number| News {
        stream,
        number,
        start: Some(Start::Anew),
        changes: vec![Change { add: true, interest: interest("a") }],
        complete,
    };
    assert_eq!(pulled.take(news(0, 0), Time::default(), 10).changes.len(), 0, "before anything was asked");
    pulled.ask(7, Time::default());
    assert_eq!(pulled.take(news(6, 0), Time::default(), 10).changes.len(), 0);
    assert_eq!(pulled.take(news(7, 0), Time::default(), 10).changes.len(), 1);
    assert_eq!(pulled.take(news(7, 0), Time::default(), 10).changes.len(), 0, "a repeat");
    let lie = News { complete: Some(Sum::default()), ..news(7, 1) };
    assert!(pulled.take(lie, Time::default(), 10).broken, "a sum that is not the list's");
    assert!(!pulled.is_complete());
}

#[derive(Clone, Debug)]
enum Step {
    Change(bool, u8),
    Pass(u16),
    /// One message arrives, of those on their way; it may stay there, and come again.
    Arrive(u8, bool),
    Lose(u8),
    Doubt,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (any::<bool>(), 0..12u8).prop_map(|(add, n)| Step::Change(add, n)),
        2 => (0..2_500u16).prop_map(Step::Pass),
        6 => (any::<u8>(), any::<bool>()).prop_map(|(n, again)| Step::Arrive(n, again)),
        1 => any::<u8>().prop_map(Step::Lose),
        1 => Just(Step::Doubt),
    ]
}

proptest! {
    #[test]
    fn whatever_is_lost_doubled_or_late_the_truth_is_known_in_the_end(steps in prop::collection::vec(step(), 0..120)) {
        let mut pair = Pair::default();
        for step in steps {
            let on_their_way = pair.pulls.len() + pair.news.len();
            match step {
                Step::Change(add, n) => pair.change(add, &format!("f{n}")),
                Step::Pass(millis) => pair.pass(u64::from(millis)),
                Step::Doubt => pair.pulled.doubt(),
                Step::Arrive(n, again) if on_their_way > 0 => {
                    let n = usize::from(n) % on_their_way;
                    if let Some(pull) = pair.pulls.get(n).copied() {
                        if !again {
                            pair.pulls.remove(n);
                        }
                        pair.ask(pull);
                    } else {
                        let n = n - pair.pulls.len();
                        let news = pair.news[n].clone();
                        if !again {
                            pair.news.remove(n);
                        }
                        pair.tell(news);
                    }
                }
                Step::Lose(n) if on_their_way > 0 => {
                    let n = usize::from(n) % on_their_way;
                    match n.checked_sub(pair.pulls.len()) {
                        Some(n) => drop(pair.news.remove(n)),
                        None => _ = pair.pulls.remove(n),
                    }
                }
                Step::Arrive(..) | Step::Lose(_) => {}
            }
        }
        pair.settle();
    }
}
