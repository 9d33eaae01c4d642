//! With a guard switched off, the oracle must notice: an oracle that passes both ways proves nothing.
//!
//! Only the guarded build (`GLOCAL_GUARDS_BUILD=1`) has guards to switch off; elsewhere there is nothing to test.
#![cfg(glocal_guards)]

use std::process::Command;

/// The verdict of thirty seeds with guards off: whether all promises held, and what was said.
fn verdict(off: &str) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_glocal-sim"))
        .args(["--seeds", "30", "--keep-going"])
        .env("GLOCAL_GUARDS_OFF", off)
        .output()
        .unwrap();
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn with_all_guards_on_promises_hold() {
    let (held, text) = verdict("");
    assert!(held, "{text}");
}

#[test]
fn a_sender_that_does_not_check_is_seen_on_the_wire() {
    for off in ["edge-sender", "edge-sender,edge-receiver"] {
        let (held, text) = verdict(off);
        assert!(!held && text.contains("on an edge that forbids it"), "{off}: {text}");
    }
}

#[test]
fn a_receiver_that_does_not_check_is_still_told_by_nobody_behind_the_edge() {
    // Honest senders check, and what a liar says of a tenant that the edge forbids has no origin behind the edge.
    let (held, text) = verdict("edge-receiver");
    assert!(held, "{text}");
}

#[test]
fn a_policy_that_does_not_refuse_is_caught() {
    let (held, text) = verdict("cross-tenant");
    assert!(!held && (text.contains("not refused") || text.contains("must have refused")), "{text}");
}
