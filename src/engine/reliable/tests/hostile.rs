//! What a peer may say of this broker's messages, and of others': nothing happens that should not.

use glocal_wire::control::Delivered;

use super::*;

/// A letter of `from` in its life `life` to region-a.
fn letter(line: &Line, (from, life): (usize, u64), control: Control) {
    let node = &line.nodes[A];
    let (tenant, from) = (node.tenant("tenantA"), line.nodes[from].shared.own);
    let mut batch = Batch::default();
    assert!(on_letter(&node.shared, &tenant, (from, life), control, line.now, &mut batch).is_none());
    batch.flush(&node.shared, line.now);
}

fn delivered(class: Class, incarnation: u64, through: u64) -> Control {
    Delivered { class: class.code(), incarnation, through, gap: true }.into()
}

#[test]
fn forged_acknowledgements_free_nothing() {
    let mut line = Line::new();
    let (mut alice, mut far) = (line.publisher("alice"), line.client(B, "far"));
    line.say(B, &mut far, subscribe(1, "x.>"));
    line.cut = true;
    line.publish(&mut alice, Class::Ctrl, 1, b"m");
    let kept = line.nodes[A].shared.reliable().kept_bytes();
    // Of a broker that is no target, of what was never sent, of another life of this broker, of the other class.
    letter(&line, (G, 7), delivered(Class::Ctrl, 7, 1));
    letter(&line, (B, 7), delivered(Class::Ctrl, 7, 2));
    letter(&line, (B, 7), delivered(Class::Ctrl, 7, u64::MAX));
    assert_eq!(line.drops(A, Class::Ctrl, DropReason::BadTarget), 3, "each is counted");
    letter(&line, (B, 7), delivered(Class::Ctrl, 6, 1));
    letter(&line, (B, 7), delivered(Class::Bulk, 7, 1));
    letter(&line, (B, 3), delivered(Class::Ctrl, 7, 1));
    let none = |seq, group: &str| Memberless { class: 1, incarnation: 7, seq, group: group.into() }.into();
    letter(&line, (B, 7), none(1, "w"));
    letter(&line, (G, 7), none(1, "w"));
    letter(&line, (B, 7), none(u64::MAX, "no name at all \u{7f}"));
    letter(&line, (G, 7), Overflowed { class: 1, incarnation: 7, seq: u64::MAX }.into());
    // Of a life that region-b has not signed: else nothing would reach it any more.
    letter(&line, (B, u64::MAX), delivered(Class::Ctrl, 7, 1));
    assert_eq!(line.drops(A, Class::Ctrl, DropReason::TargetGone), 0);
    assert_eq!(line.nodes[A].shared.reliable().kept_bytes(), kept);
    assert!(acks(&alice.read()).is_empty());
    letter(&line, (B, 7), delivered(Class::Ctrl, 7, 1));
    assert_eq!(acks(&alice.read()), [(1, 1)], "the true one");
}

#[test]
fn letters_make_no_flows() {
    let line = Line::new();
    for seq in 0..100 {
        letter(&line, (B, 7), delivered(Class::Ctrl, 7, seq));
    }
    let known = line.nodes[A].shared.reliable().tenants.read().len();
    assert!(known <= 1 && line.is_idle());
}
