//! Who gets how much, and how soon.

use proptest::prelude::*;

use super::*;
use crate::limits::PACKET_BYTES_DEFAULT;
use crate::rate::TokenBucket;

const ROUNDS: u64 = 10_000;
const PACKET: u64 = PACKET_BYTES_DEFAULT as u64;

fn assert_shares(sent: &[u64], weights: &[u32]) {
    let total: u64 = sent.iter().sum();
    let weight_sum: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
    for (sent, weight) in sent.iter().zip(weights) {
        // |sent / total - weight / sum| <= 1 % of weight / sum, in integers.
        let (got, due) = (u128::from(*sent) * u128::from(weight_sum), u128::from(total) * u128::from(*weight));
        assert!(got.abs_diff(due) * 100 <= due, "{sent} of {total} for weight {weight} of {weight_sum}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5, ..ProptestConfig::default() })]

    #[test]
    fn backlogged_tenants_share_by_weight(weights in prop::collection::vec(1u32..=16, 2..=20), seed: u64) {
        let mut random = Random(seed);
        let mut hdwrr = Hdwrr::default();
        let (mut out, mut drops) = (Vec::new(), Drops::new());
        let keys: Vec<_> = (0..).map(TenantKey).take(weights.len()).collect();
        for (key, weight) in keys.iter().zip(&weights) {
            hdwrr.set_weight(*key, *weight);
            push(&mut hdwrr, *key, Class::ALL[key.0 as usize % 4], 65_536);
        }
        let mut sent = vec![0u64; weights.len()];
        let round: u64 = weights.iter().map(|weight| u64::from(*weight) * PACKET).sum();
        let mut total = 0;
        while total < ROUNDS * round {
            let slice = hdwrr.next_slice(ZERO, &mut out, &mut drops).unwrap();
            out.clear();
            total += slice.bytes as u64;
            sent[slice.tenant.0 as usize] += slice.bytes as u64;
            while hdwrr.tenant_backlog(slice.tenant) < 65_536 {
                push(&mut hdwrr, slice.tenant, slice.class, random.frame_bytes());
            }
        }
        assert_shares(&sent, &weights);
    }

    #[test]
    fn backlogged_classes_share_by_weight(weights in prop::array::uniform4(1u32..=16), split_frames: bool, seed: u64) {
        let mut random = Random(seed);
        let config = ClassConfig { weights, split_frames, ..ClassConfig::new(1 << 20) };
        let mut lanes = ClassLanes::new(config);
        let (mut out, mut drops) = (Vec::new(), Drops::new());
        for class in Class::ALL {
            assert_eq!(lanes.push(class, frame(65_536), ZERO), Pushed::Queued);
        }
        let mut sent = [0u64; 4];
        let round: u64 = weights.iter().map(|weight| u64::from(*weight) * PACKET).sum();
        let mut total = 0;
        while total < ROUNDS * round {
            let slice = lanes.pop_slice(16_384, ZERO, &mut out, &mut drops).unwrap();
            out.clear();
            total += slice.bytes as u64;
            sent[slice.class.index()] += slice.bytes as u64;
            while lanes.lane_backlog(slice.class) < 65_536 {
                assert_eq!(lanes.push(slice.class, frame(random.frame_bytes()), ZERO), Pushed::Queued);
            }
        }
        assert_shares(&sent, &weights);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever the others do, also those that empty and come back to be new again, a backlogged tenant waits for at
    /// most two turns of each of them.
    #[test]
    fn never_starves(weights in prop::collection::vec(1u32..=16, 2..=12), seed: u64) {
        let mut random = Random(seed);
        let mut hdwrr = Hdwrr::default();
        for (key, weight) in (0..).map(TenantKey).zip(&weights) {
            hdwrr.set_weight(key, *weight);
        }
        let others: u64 = weights[1..].iter().map(|weight| 2 * (u64::from(*weight) + 1) * PACKET).sum();
        let bound = others + u64::from(weights[0]) * PACKET;
        let victim = TenantKey(0);
        let mut waited = 0;
        for _ in 0..5_000 {
            for key in (1..).map(TenantKey).take(weights.len() - 1) {
                if hdwrr.tenant_backlog(key) == 0 && random.next().is_multiple_of(2) {
                    let class = Class::ALL[usize::try_from(random.next() % 4).unwrap()];
                    push(&mut hdwrr, key, class, random.frame_bytes());
                }
            }
            if hdwrr.tenant_backlog(victim) == 0 {
                push(&mut hdwrr, victim, Class::Bulk, 65_536);
            }
            let slice = slice_of(&mut hdwrr).unwrap();
            waited = if slice.tenant == victim { 0 } else { waited + slice.bytes as u64 };
            prop_assert!(waited <= bound, "waited for {waited} bytes");
        }
    }
}

#[test]
fn a_flood_of_live_takes_nothing_from_another_tenant() {
    let mut hdwrr = Hdwrr::default();
    let mut sent = [0u64; 2];
    for _ in 0..20_000 {
        while hdwrr.tenant_backlog(A) < 100_000 {
            push(&mut hdwrr, A, Class::Live, 300);
        }
        while hdwrr.tenant_backlog(B) < 10_000 {
            push(&mut hdwrr, B, Class::Bulk, 5_000);
        }
        let slice = slice_of(&mut hdwrr).unwrap();
        sent[usize::from(slice.tenant == B)] += slice.bytes as u64;
    }
    assert_shares(&sent, &[1, 1]);
}

#[test]
fn coming_back_within_a_round_earns_nothing() {
    // A keeps exactly one frame queued, so that it empties at every turn and comes back at once.
    let mut hdwrr = Hdwrr::default();
    let mut sent = [0u64; 2];
    for size in [60, 1199, 1200, 1201, 2399] {
        for _ in 0..5_000 {
            if hdwrr.tenant_backlog(A) == 0 {
                push(&mut hdwrr, A, Class::Live, size);
            }
            while hdwrr.tenant_backlog(B) < 10_000 {
                push(&mut hdwrr, B, Class::Live, 5_000);
            }
            let slice = slice_of(&mut hdwrr).unwrap();
            sent[usize::from(slice.tenant == B)] += slice.bytes as u64;
        }
    }
    assert!(sent[0] <= sent[1] + 20 * PACKET, "{sent:?}");
}

#[test]
fn a_new_tenant_goes_first_for_one_quantum() {
    let mut hdwrr = Hdwrr::default();
    for key in 10..20 {
        push(&mut hdwrr, TenantKey(key), Class::Bulk, 60_000);
    }
    for _ in 0..25 {
        slice_of(&mut hdwrr).unwrap();
    }
    hdwrr.set_weight(A, 3);
    push(&mut hdwrr, A, Class::Live, 60_000);
    let first = slice_of(&mut hdwrr).unwrap();
    assert_eq!((first.tenant, first.bytes), (A, 3600));
    let mut before_next_turn = Vec::new();
    loop {
        let slice = slice_of(&mut hdwrr).unwrap();
        if slice.tenant == A {
            break;
        }
        before_next_turn.push(slice.tenant);
    }
    before_next_turn.sort();
    assert_eq!(before_next_turn, (10..20).map(TenantKey).collect::<Vec<_>>());
}

#[test]
fn idleness_leaves_neither_credit_nor_debt() {
    let mut hdwrr = Hdwrr::default();
    for size in [1, 1199, 65_536] {
        push(&mut hdwrr, B, Class::Bulk, 65_536);
        push(&mut hdwrr, A, Class::Bulk, size);
        while hdwrr.tenant_backlog(A) > 0 {
            slice_of(&mut hdwrr).unwrap();
        }
        // One round of the other, and A's place is gone.
        push(&mut hdwrr, B, Class::Bulk, 65_536);
        for _ in 0..3 {
            slice_of(&mut hdwrr).unwrap();
        }
        assert_eq!(hdwrr.entries(), 1);
        push(&mut hdwrr, A, Class::Bulk, 10_000);
        let slice = slice_of(&mut hdwrr).unwrap();
        assert_eq!((slice.tenant, slice.bytes), (A, 1200));
        assert_eq!(slice_of(&mut hdwrr).unwrap().tenant, B);
        while slice_of(&mut hdwrr).is_some() {}
        assert_eq!(hdwrr.entries(), 0);
    }
}

#[test]
fn one_large_frame_at_a_time_takes_no_more_than_its_class_may() {
    let mut lanes = ClassLanes::new(ClassConfig { split_frames: false, ..ClassConfig::new(1 << 20) });
    let mut sent = [0u64; 4];
    while sent.iter().sum::<u64>() < 100_000_000 {
        if lanes.lane_backlog(Class::Bulk) == 0 {
            assert_eq!(lanes.push(Class::Bulk, frame(65_536), ZERO), Pushed::Queued);
        }
        while lanes.lane_backlog(Class::Live) < 10_000 {
            assert_eq!(lanes.push(Class::Live, frame(500), ZERO), Pushed::Queued);
        }
        let slice = lanes.pop_slice(16_384, ZERO, &mut Vec::new(), &mut Drops::new()).unwrap();
        sent[slice.class.index()] += slice.bytes as u64;
    }
    assert_shares(&[sent[Class::Live.index()], sent[Class::Bulk.index()]], &[4, 1]);
}

#[test]
fn a_lone_tenant_gets_whole_slices_and_owes_nothing_for_them() {
    let mut hdwrr = Hdwrr::default();
    for _ in 0..4 {
        push(&mut hdwrr, A, Class::Bulk, 65_536);
    }
    let slice = slice_of(&mut hdwrr).unwrap();
    assert_eq!(slice.bytes, 16 * 1024 - 65);
    push(&mut hdwrr, B, Class::Bulk, 65_536);
    let next: Vec<_> = (0..4).map(|_| slice_of(&mut hdwrr).unwrap()).map(|slice| (slice.tenant, slice.bytes)).collect();
    assert_eq!(next, [(B, 1200), (A, 1200), (B, 1200), (A, 1200)]);
}

#[test]
fn slices_fit_the_rate() {
    let mut hdwrr = Hdwrr::default();
    for (rate, bytes) in [(10_000_000, 5000), (1_000_000, 1200), (10_000_000_000, 16 * 1024 - 65)] {
        hdwrr.set_rate(rate);
        push(&mut hdwrr, A, Class::Bulk, 65_536);
        assert_eq!(slice_of(&mut hdwrr).unwrap().bytes, bytes);
        hdwrr.purge(A, &mut Drops::new());
    }
}

/// Ten seconds of an edge of 25 Mbit/s on which everybody is backlogged: what each tenant has sent.
fn ten_seconds(tenants: &[(u32, usize)]) -> Vec<u64> {
    let rate = 3_125_000;
    let mut hdwrr = Hdwrr::default();
    hdwrr.set_shaper(Some(TokenBucket::new(rate, rate / 250, ZERO)));
    hdwrr.set_rate(rate);
    let largest = Bytes::from(vec![0; 1 << 20]);
    let (mut out, mut drops) = (Vec::new(), Drops::new());
    let fill = |hdwrr: &mut Hdwrr, key: TenantKey, bytes: usize| {
        while hdwrr.tenant_backlog(key) < 4_096 {
            let frame = QueuedFrame::new(largest.slice(..bytes));
            assert_eq!(hdwrr.push(key, Class::Bulk, frame, ZERO, &mut Drops::new()), Pushed::Queued);
        }
    };
    for (key, (weight, bytes)) in (0..).map(TenantKey).zip(tenants) {
        hdwrr.set_weight(key, *weight);
        fill(&mut hdwrr, key, *bytes);
    }
    let mut sent = vec![0; tenants.len()];
    let mut now = ZERO;
    while now < Time::from_millis(10_000) {
        let Some(slice) = hdwrr.next_slice(now, &mut out, &mut drops) else {
            now = hdwrr.ready_at(now).unwrap();
            continue;
        };
        out.clear();
        sent[slice.tenant.0 as usize] += slice.bytes as u64;
        fill(&mut hdwrr, slice.tenant, tenants[slice.tenant.0 as usize].1);
    }
    sent
}

#[test]
fn over_ten_seconds_shares_follow_the_weights_whatever_the_sizes_and_however_many_there_are() {
    let within = |tenants: &[(u32, usize)], percent: u64| {
        let sent = ten_seconds(tenants);
        let total: u64 = sent.iter().sum();
        assert!(total.abs_diff(31_250_000) < 312_500, "the edge's rate is used: {total}");
        let weights: u64 = tenants.iter().map(|(weight, _)| u64::from(*weight)).sum();
        for (sent, (weight, bytes)) in sent.iter().zip(tenants) {
            let share = total * u64::from(*weight) / weights;
            assert!(sent.abs_diff(share) * 100 <= share * percent, "weight {weight}, {bytes} B: {sent} of {share}");
        }
    };
    within(&[(1, 16), (2, 1_024), (4, 1 << 20)], 2);
    within(&[(4, 16), (2, 1_024), (1, 1 << 20)], 2);
    within(&[(1, 1 << 20), (2, 16), (4, 65_536)], 2);
    let many: Vec<_> = (0..300).map(|n| (1, [16, 256, 1_024, 65_536][n % 4])).collect();
    within(&many, 5);
}
