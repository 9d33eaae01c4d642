//! The deny catalogue against its document, and the limits against their place.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use glocal_core::deny::Deny;

use super::{report, root, scan};

const DOCUMENT: &str = "docs/DENY-REASONS.md";
const LIMITS: &str = "src/core/limits.rs";

/// Numeric constants that look like limits and live elsewhere, as `file: NAME`, and why.
const LIMITS_ELSEWHERE: &[(&str, &str)] = &[
    ("src/wire/data.rs: HEAD_BYTES_MAX", "follows from the frame's layout"),
    ("src/wire/slice.rs: OPEN_HEADER_BYTES_MAX", "follows from the slice's layout"),
    ("src/core/rate.rs: TOKENS_MAX", "keeps arithmetic from overflow, above every configurable rate"),
    ("src/node/config/raw.rs: SHOWN_CHARS_MAX", "width of a message, refuses nothing"),
    ("src/node/config/walk.rs: SUGGEST_CHARS_MAX", "effort spent on a hint, refuses nothing"),
];

fn document() -> String {
    let mut text = String::from(
        "# Deny reasons\n\n\
         Every refusal of an operation or a connection has one of these reasons. The code is the `reason` label of\n\
         `glocal_denied_total` and the code in protocol errors; the text ends the log line\n\n\
         ```text\n\
         DENY <READ|WRITE> '<dest>' for CrescoIdentity{tenant=…, region=…, agent=…, uid=…} : <text>\n\
         ```\n\n\
         where `uid` is the first 16 hexadecimal digits of the certificate's SHA-256 fingerprint, fields are escaped and cut\n\
         to a limit, and `{own}` is the caller's own tenant. Refusals are always counted; their log lines are limited per\n\
         principal. Where Cresco has a text for a reason, the text is Cresco's.\n\n\
         This file is written by a test from `src/core/deny.rs`: `UPDATE_DOCS=1 cargo test --test it tidy`.\n\n\
         | code | text | meaning |\n| --- | --- | --- |\n",
    );
    for reason in Deny::ALL {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| `{}` | {} | {} |", reason.code(), cell(reason.template()), cell(reason.doc()));
    }
    text
}

fn cell(text: &str) -> String {
    text.trim().replace('|', "\\|")
}

#[test]
fn the_document_is_the_catalogue() {
    let (path, wanted) = (root().join(DOCUMENT), document());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &wanted).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == wanted, "{DOCUMENT} is not the catalogue; write it with: UPDATE_DOCS=1 cargo test --test it tidy");
}

#[test]
fn codes_are_unique_and_of_one_form() {
    let codes: BTreeSet<&str> = Deny::ALL.iter().map(|d| d.code()).collect();
    assert_eq!(codes.len(), Deny::ALL.len());
    for code in codes {
        assert!(code.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'), "{code}");
    }
}

#[test]
fn every_limit_says_its_unit_and_reason() {
    let text = super::text(LIMITS).unwrap();
    let mut breaches = Vec::new();
    let mut previous = "";
    for (number, line) in text.lines().enumerate() {
        if line.starts_with("pub const ") && !previous.starts_with("///") {
            breaches.push(format!("{LIMITS}:{}: {line}", number + 1));
        }
        previous = line;
    }
    report("a limit has a line above it that says what it bounds and why", &breaches);
}

#[test]
fn limits_live_in_one_place() {
    let mut breaches = Vec::new();
    for source in scan::sources() {
        // The second is what compiles a crate, not what runs.
        if source.file == LIMITS || source.file.ends_with("build.rs") {
            continue;
        }
        for at in scan::places(&source.production, "const") {
            let rest = source.production[at + 5..].trim_start();
            let Some((name, value)) = rest.split_once(':') else { continue };
            let kind: String = value.trim_start().chars().take_while(|c| c.is_ascii_alphanumeric()).collect();
            let numeric =
                ["u8", "u16", "u32", "u64", "u128", "usize", "i32", "i64", "f64", "Duration"].contains(&kind.as_str());
            let named_so = name.ends_with("_MAX")
                || name.contains("_MAX_")
                || name.ends_with("_LIMIT")
                || name.ends_with("_CEILING");
            let known = LIMITS_ELSEWHERE.iter().any(|(entry, _)| *entry == format!("{}: {name}", source.file));
            // A name for a limit of `limits.rs` is no limit of its own.
            let borrowed = value.split(';').next().is_some_and(|v| v.contains("limits::"));
            if numeric && named_so && !known && !borrowed {
                breaches.push(format!("{}:{}: {name}", source.file, source.line(at)));
            }
        }
    }
    report(&format!("limits live in {LIMITS}"), &breaches);
}
