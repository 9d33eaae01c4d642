//! Every byte accounted for, whatever is done in whatever order.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Push { tenant: u32, class: usize, len: usize, tail: usize, ttl_ms: Option<u32>, pinned: bool },
    Slices(usize),
    Wait { millis: u64 },
    Weight { tenant: u32, weight: u32 },
    Terms { tenant: u32, weights: [u32; 4], cap: Option<u64>, class: usize, class_cap: Option<u64> },
    Purge { tenant: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    let ttl = prop::option::weighted(0.3, 0u32..50);
    prop_oneof![
        12 => (0u32..6, 0usize..4, 8usize..3000, 0usize..3000, ttl, prop::bool::weighted(0.1)).prop_map(
            |(tenant, class, len, tail, ttl_ms, pinned)| Step::Push { tenant, class, len, tail, ttl_ms, pinned }
        ),
        6 => (1usize..8).prop_map(Step::Slices),
        2 => (0u64..40).prop_map(|millis| Step::Wait { millis }),
        1 => (0u32..6, 0u32..9).prop_map(|(tenant, weight)| Step::Weight { tenant, weight }),
        1 => (0u32..6).prop_map(|tenant| Step::Purge { tenant }),
        2 => (0u32..6, prop::array::uniform4(1u32..9), cap(), 0usize..4, cap()).prop_map(
            |(tenant, weights, cap, class, class_cap)| Step::Terms { tenant, weights, cap, class, class_cap }
        ),
    ]
}

fn cap() -> impl Strategy<Value = Option<u64>> {
    prop::option::weighted(0.7, 8_192u64..1_000_000)
}

#[derive(Default)]
struct World {
    hdwrr: Hdwrr,
    drops: Drops,
    now: Time,
    pushed: u64,
    refused: u64,
    dropped_oldest: u64,
    sent: u64,
    frames: u32,
    /// Per lane: bytes of the frame being received, and the number of the last whole one.
    lanes: BTreeMap<(TenantKey, Class), (Vec<u8>, Option<u32>)>,
}

impl World {
    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Push { tenant, class, len, tail, ttl_ms, pinned } => {
                let mut frame = self.numbered(len, tail).with_ttl_ms(ttl_ms);
                frame.pinned = pinned;
                let len = frame.len() as u64;
                self.pushed += len;
                match self.hdwrr.push(TenantKey(tenant), Class::ALL[class], frame, self.now, &mut self.drops) {
                    Pushed::Queued => {}
                    Pushed::DroppedNewest => self.refused += len,
                    Pushed::DroppedOldest { bytes, frames } => {
                        assert!(frames > 0 && Class::ALL[class] == Class::Live);
                        self.dropped_oldest += bytes;
                    }
                }
            }
            Step::Slices(slices) => (0..slices).for_each(|_| {
                self.slice();
            }),
            Step::Wait { millis } => self.now = self.now.plus_millis(millis),
            Step::Weight { tenant, weight } => self.hdwrr.set_weight(TenantKey(tenant), weight),
            Step::Terms { tenant, weights, cap, class, class_cap } => {
                let mut terms = EdgeTerms { class_weights: weights, bytes_per_s: cap, ..EdgeTerms::DEFAULT };
                terms.class_bytes_per_s[class] = class_cap;
                self.hdwrr.set_terms(TenantKey(tenant), terms, self.now);
                assert_eq!(self.hdwrr.terms(TenantKey(tenant)), terms);
            }
            Step::Purge { tenant } => {
                let tenant = TenantKey(tenant);
                let purged = self.hdwrr.purge(tenant, &mut self.drops);
                for class in Class::ALL {
                    let partial = self.lanes.get_mut(&(tenant, class)).map(|lane| std::mem::take(&mut lane.0));
                    assert_eq!(partial.is_some_and(|bytes| !bytes.is_empty()), purged.mid_frame[class.index()]);
                }
            }
        }
        self.check();
    }

    fn numbered(&mut self, len: usize, tail: usize) -> QueuedFrame {
        self.frames += 1;
        let total = u32::try_from(len + tail).unwrap();
        let mut bytes = [total.to_le_bytes(), self.frames.to_le_bytes()].concat();
        bytes.resize(len, self.frames.to_le_bytes()[0]);
        let frame = QueuedFrame::new(Bytes::from(bytes));
        if tail == 0 { frame } else { frame.with_tail(Bytes::from(vec![self.frames.to_le_bytes()[0]; tail])) }
    }

    fn slice(&mut self) -> Option<Slice> {
        let mut out = Vec::new();
        let slice = self.hdwrr.next_slice(self.now, &mut out, &mut self.drops)?;
        let bytes = out.concat();
        assert_eq!(bytes.len(), slice.bytes);
        assert!((1..=5000).contains(&slice.bytes));
        self.sent += slice.bytes as u64;
        let (partial, last) = self.lanes.entry((slice.tenant, slice.class)).or_default();
        assert_eq!(slice.starts_frame, partial.is_empty());
        partial.extend(bytes);
        while partial.len() >= 8 {
            let word = |at: usize| u32::from_le_bytes(partial[at..at + 4].try_into().unwrap());
            let (len, number) = (word(0) as usize, word(4));
            if partial.len() < len {
                break;
            }
            assert!(partial[8..len].iter().all(|byte| *byte == number.to_le_bytes()[0]));
            assert!(last.is_none_or(|last| last < number), "lane out of order");
            *last = Some(number);
            partial.drain(..len);
        }
        assert_eq!(slice.ends_frame, partial.is_empty());
        Some(slice)
    }

    fn check(&self) {
        let lost = self.refused + self.dropped_oldest + self.drops.bytes();
        assert_eq!(self.pushed, self.sent + lost + self.hdwrr.backlog_bytes() as u64);
        assert!(self.hdwrr.held_bytes() <= 60_000);
        assert!(self.hdwrr.entries() <= 6);
        let by_tenant: usize = (0..6).map(|key| self.hdwrr.tenant_backlog(TenantKey(key))).sum();
        assert_eq!(by_tenant, self.hdwrr.backlog_bytes());
        self.hdwrr.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn bytes_in_are_bytes_out_or_reported_or_queued(steps in prop::collection::vec(step(), 1..300)) {
        let config = HdwrrConfig {
            classes: ClassConfig::new(15_000),
            slice_bytes_max: 5000,
            held_bytes_max: 60_000,
        };
        let mut world = World { hdwrr: Hdwrr::new(config), ..World::default() };
        for step in &steps {
            world.apply(step);
        }
        loop {
            while world.slice().is_some() {
                world.check();
            }
            // Whoever is above a cap says when it goes on.
            let Some(until) = world.hdwrr.wakes_at() else { break };
            prop_assert!(until > world.now);
            world.now = until;
        }
        world.check();
        prop_assert!(world.hdwrr.is_empty());
        prop_assert!(world.lanes.values().all(|(partial, _)| partial.is_empty()));
        prop_assert_eq!((world.hdwrr.entries(), world.hdwrr.held_bytes()), (0, 0));
    }
}
