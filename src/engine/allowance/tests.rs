use glocal_wire::control::AllowedSet;

use super::*;

const NOW: Time = Time(0);

fn own(tenants: &[u8]) -> Vec<(TenantKey, Mac)> {
    tenants.iter().map(|t| (TenantKey(u32::from(*t)), [*t; 16])).collect()
}

fn settled(mine: &[u8], theirs: &[u8]) -> Allowance {
    let mut peer = PeerSet::default();
    peer.add(AllowedSet { macs: theirs.iter().map(|t| [*t; 16]).collect(), last: true }).unwrap();
    Allowance::settled(own(mine), peer, 1, NOW)
}

fn keys(set: &TenantSet) -> Vec<u32> {
    set.iter().map(|key| key.0).collect()
}

/// Tells one end what the other has to say; returns what that end answers.
fn tell(to: &mut Allowance, frames: Vec<AllowedUpdate>) -> Option<AllowedApplied> {
    frames.into_iter().fold(None, |_, frame| {
        to.on_update(frame, NOW).unwrap().map(|arrived| AllowedApplied { generation: arrived.generation })
    })
}

#[test]
fn nothing_is_sent_before_the_other_end_accepts_it_in_whatever_order_they_learn() {
    let (mut a, mut b) = (settled(&[1], &[1]), settled(&[1], &[1]));
    let from_a = a.change(own(&[1, 2]), (1, 2), 2);
    assert_eq!((keys(&a.sends()), keys(&a.accepts())), (vec![1], vec![1]), "b is not known to allow it");
    let answer = tell(&mut b, from_a).unwrap();
    assert_eq!(keys(&b.accepts()), [1], "it does not know the tenant yet");
    assert!(a.on_applied(&answer));
    assert_eq!(keys(&a.sends()), [1]);
    let from_b = b.change(own(&[1, 2]), (1, 2), 2);
    assert_eq!((keys(&b.sends()), keys(&b.accepts())), (vec![1], vec![1, 2]), "it accepts before it says so");
    let answer = tell(&mut a, from_b).unwrap();
    assert_eq!((keys(&a.sends()), keys(&a.accepts())), (vec![1, 2], vec![1, 2]));
    assert!(b.on_applied(&answer));
    assert_eq!(keys(&b.sends()), [1, 2]);
}

#[test]
fn one_end_takes_away_at_once() {
    let mut a = settled(&[1, 2], &[1, 2]);
    let frames = a.change(own(&[1]), (1, 2), 2);
    assert_eq!((keys(&a.sends()), keys(&a.accepts())), (vec![1], vec![1]));
    let mut b = settled(&[1, 2], &[1, 2]);
    tell(&mut b, frames);
    assert_eq!((keys(&b.sends()), keys(&b.accepts())), (vec![1], vec![1]));
}

#[test]
fn sets_of_any_size_arrive_whole_and_nothing_is_told_twice() {
    let many: Vec<_> = (0..5000u32)
        .map(|n| {
            let mut mac = [0; 16];
            mac[..4].copy_from_slice(&n.to_le_bytes());
            (TenantKey(n), mac)
        })
        .collect();
    let mut a = settled(&[], &[]);
    let frames = a.change(many.clone(), (1, 2), 2);
    assert_eq!(frames.len(), 3);
    assert!(a.change(many.clone(), (1, 2), 2).is_empty(), "nothing has changed");
    assert_eq!(a.change(many.clone(), (1, 3), 3).len(), 3, "another bundle is told of");
    let mut b = Allowance::settled(many, PeerSet::default(), 1, NOW);
    let mut parts = frames.into_iter();
    assert_eq!(b.on_update(parts.next().unwrap(), NOW), Ok(None));
    assert_eq!(b.accepts().len(), 0, "half a set counts for nothing");
    tell(&mut b, parts.collect());
    assert_eq!(b.accepts().len(), 5000);
    assert_eq!(settled(&[1], &[1]).change(Vec::new(), (1, 1), 2).len(), 1, "an empty set is told, too");
}

#[test]
fn answers_to_sets_that_were_never_told_change_nothing() {
    let mut a = settled(&[1, 2], &[1, 2]);
    a.change(own(&[1, 2, 3]), (1, 2), 2);
    assert!(!a.on_applied(&AllowedApplied { generation: 0 }));
    assert!(!a.on_applied(&AllowedApplied { generation: 99 }));
    assert_eq!(keys(&a.sends()), [1, 2]);
}

#[test]
fn a_peer_that_changes_all_the_time_is_no_peer() {
    let mut a = settled(&[1], &[1]);
    let frame = |generation| AllowedUpdate { generation, epoch: 1, version: 1, macs: vec![[1; 16]], last: true };
    for n in 0..u64::from(ALLOWED_UPDATES_PER_MINUTE_MAX) {
        a.on_update(frame(n), NOW).unwrap();
    }
    assert_eq!(a.on_update(frame(9_999), NOW), Err(HandshakeError::TooManyUpdates));
    assert!(a.on_update(frame(9_999), NOW.plus_millis(MINUTE_MS)).is_ok());
    let mut silent = settled(&[1], &[1]);
    for n in 0..100u64 {
        silent.change(own(&[1]), (1, 2), n + 2);
    }
    assert_eq!(silent.told.len(), ALLOWED_UPDATES_MAX, "a peer that never answers costs no memory");
}
