//! The caps of one tenant on one edge: what it has left of them, and until when it rests.
//!
//! A cap is a bucket of bytes that is charged with what has left. Whoever has used it up rests until it holds a packet
//! again, so that the edge is not woken for every byte. What was saved up or is owed outlives the tenant's queue: neither
//! emptying it nor a change of the cap makes it greater.

use super::EdgeTerms;
use super::classes::ClassQueue;
use crate::limits::{EDGE_CAP_BURST_MS, PACKET_BYTES_DEFAULT};
use crate::name::Class;
use crate::rate::TokenBucket;
use crate::time::Time;

/// What a tenant's terms have come to on one edge.
#[derive(Debug)]
pub(super) struct Pace {
    terms: EdgeTerms,
    all: Option<Cap>,
    classes: [Option<Cap>; 4],
}

impl Pace {
    pub(super) fn new(terms: EdgeTerms, now: Time) -> Self {
        let mut pace = Self { terms: EdgeTerms::DEFAULT, all: None, classes: [const { None }; 4] };
        pace.set(terms, now);
        pace
    }

    /// Takes over other terms; what is saved up or owed stays, up to the new burst.
    pub(super) fn set(&mut self, terms: EdgeTerms, now: Time) {
        Cap::adapt(&mut self.all, terms.bytes_per_s, now);
        for (cap, rate) in self.classes.iter_mut().zip(terms.class_bytes_per_s) {
            Cap::adapt(cap, rate, now);
        }
        self.terms = terms;
    }

    pub(super) const fn terms(&self) -> &EdgeTerms {
        &self.terms
    }

    /// Charges what has left.
    pub(super) fn charge(&mut self, class: Class, bytes: usize, now: Time) {
        let of_class = self.classes.get_mut(class.index()).and_then(Option::as_mut);
        for cap in self.all.iter_mut().chain(of_class) {
            cap.charge(bytes, now);
        }
    }

    /// Tells the lanes which classes rest, and says until when the whole tenant does; `None` where it has something that
    /// may go now.
    pub(super) fn settle(&self, lanes: &mut ClassQueue, now: Time) -> Option<Time> {
        let over = |cap: &Option<Cap>| cap.as_ref().map_or(Time(0), |cap| cap.rests_until);
        let of_classes = self.classes.each_ref().map(over);
        lanes.set_resting(of_classes.map(|until| until > now));
        let soonest = Class::ALL.iter().zip(of_classes).filter(|(class, _)| !lanes.lane(**class).is_empty());
        let until = over(&self.all).max(soonest.map(|(_, until)| until).min().unwrap_or_default());
        (until > now).then_some(until)
    }
}

#[derive(Debug)]
struct Cap {
    bucket: TokenBucket,
    rests_until: Time,
}

impl Cap {
    fn adapt(cap: &mut Option<Self>, rate: Option<u64>, now: Time) {
        let Some(rate) = rate else {
            *cap = None;
            return;
        };
        let burst = (rate.saturating_mul(EDGE_CAP_BURST_MS) / 1000).max(2 * PACKET_BYTES_DEFAULT as u64);
        match cap {
            Some(cap) => {
                cap.bucket.set(rate, burst, now);
                cap.rest(now);
            }
            None => *cap = Some(Self { bucket: TokenBucket::new(rate, burst, now), rests_until: Time(0) }),
        }
    }

    fn charge(&mut self, bytes: usize, now: Time) {
        self.bucket.charge(bytes as u64, now);
        self.rest(now);
    }

    fn rest(&mut self, now: Time) {
        let is_over = self.bucket.wait_micros(1, now) > 0;
        let wait = if is_over { self.bucket.wait_micros(PACKET_BYTES_DEFAULT as u64, now) } else { 0 };
        self.rests_until = now.plus_micros(wait);
    }
}
