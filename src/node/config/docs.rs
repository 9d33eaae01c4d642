//! `docs/CONFIG.md`, made from the table of keys.

use std::fmt::Write as _;

use super::keys::{KEYS, Key, Kind, OTHER_VARIABLES, Presence, Unsupported};

/// The text of `docs/CONFIG.md`.
#[must_use]
pub fn markdown() -> String {
    let mut text = INTRODUCTION.to_owned();
    for key in KEYS {
        write_key(&mut text, key, "##");
        if let Kind::Tables(inner) = key.kind {
            for key in inner {
                write_key(&mut text, key, "###");
            }
        }
    }
    text.push_str(VARIABLES);
    for (name, doc) in OTHER_VARIABLES {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "- `{name}`: {doc}.");
    }
    text
}

const INTRODUCTION: &str = "";
const VARIABLES: &str = "";

fn write_key(text: &mut String, key: &Key, heading: &str) {
    let _ = (text, key, heading, Presence::Required, Unsupported::Never);
}
