//! The table that the demo prints as it goes: a line per step, and at the end what came out otherwise than it must.

use std::time::{Duration, Instant};

use crate::cli::output::{Out, escape, stdout_is_terminal};

/// Width of the column that says what was done.
const WHAT_WIDTH: usize = 67;

/// The story told so far.
pub(super) struct Story {
    out: Out,
    json: bool,
    colour: bool,
    began: Instant,
    section: &'static str,
    lines: usize,
    failed: Vec<String>,
    attacks: usize,
    repelled: usize,
}

impl Story {
    /// An empty story; with `json`, each line is an object.
    pub(super) fn new(json: bool) -> Self {
        Self {
            out: Out::new(),
            json,
            colour: stdout_is_terminal() && std::env::var_os("NO_COLOR").is_none(),
            began: Instant::now(),
            section: "",
            lines: 0,
            failed: Vec::new(),
            attacks: 0,
            repelled: 0,
        }
    }

    /// Begins a part of the story.
    pub(super) fn section(&mut self, title: &'static str) -> anyhow::Result<()> {
        self.section = title;
        if self.json {
            return Ok(());
        }
        let (bold, plain) = if self.colour { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
        self.out.line(&format!("\n{bold}{title}{plain}"))?;
        self.out.flush()
    }

    /// One step and what became of it; an error is a line that came out otherwise than it must.
    pub(super) fn tell(&mut self, what: &str, result: &anyhow::Result<String>) -> anyhow::Result<()> {
        self.line(what, result, false)
    }

    /// One attack and how it was refused; an error means that it was not, or not for the right reason.
    pub(super) fn attack(&mut self, what: &str, result: &anyhow::Result<String>) -> anyhow::Result<()> {
        self.attacks += 1;
        self.repelled += usize::from(result.is_ok());
        self.line(what, result, true)
    }

    fn line(&mut self, what: &str, result: &anyhow::Result<String>, attack: bool) -> anyhow::Result<()> {
        self.lines += 1;
        let (ok, outcome) = match result {
            Ok(outcome) => (true, escape(outcome.as_bytes())),
            Err(error) => (false, escape(format!("{error:#}").as_bytes())),
        };
        if !ok {
            self.failed.push(format!("{}: {outcome}", what.trim_start()));
        }
        if self.json {
            let value = serde_json::json!({
                "line": self.lines, "section": self.section, "ok": ok, "attack": attack, "what": what, "outcome": outcome,
            });
            self.out.json(&value)?;
        } else {
            let (start, end) = match (self.colour, ok) {
                (false, _) => ("", ""),
                (true, true) => ("\x1b[32m", "\x1b[0m"),
                (true, false) => ("\x1b[1;31m", "\x1b[0m"),
            };
            let mark = if ok { '✓' } else { '✗' };
            self.out.line(&format!("  {start}{mark}{end} {what:<WHAT_WIDTH$}  {outcome}"))?;
        }
        self.out.flush()
    }

    /// Text for people only.
    pub(super) fn note(&mut self, text: &str) -> anyhow::Result<()> {
        if self.json {
            return Ok(());
        }
        self.out.line(text)?;
        self.out.flush()
    }

    /// The last words: text for people, an object for programs.
    pub(super) fn finale(&mut self, text: &str, value: &serde_json::Value) -> anyhow::Result<()> {
        if self.json {
            self.out.json(value)?;
        } else {
            self.out.line(text)?;
        }
        self.out.flush()
    }

    /// The totals, and again every line that failed; `true` when there is none.
    pub(super) fn finish(&mut self, totals: &[(&'static str, u64)]) -> anyhow::Result<bool> {
        let good = self.failed.is_empty();
        let seconds = self.began.elapsed().as_secs_f64();
        if self.json {
            let totals: serde_json::Map<_, _> =
                totals.iter().map(|(name, n)| ((*name).to_owned(), (*n).into())).collect();
            let value = serde_json::json!({
                "ok": good, "lines": self.lines, "failed": self.failed, "attacks": self.attacks,
                "attacks_refused": self.repelled, "seconds": seconds, "totals": totals,
            });
            self.out.json(&value)?;
        } else {
            let counts: Vec<String> =
                totals.iter().map(|(name, n)| format!("{n} {}", name.replace('_', " "))).collect();
            self.out.line(&format!("\n{}", counts.join(", ")))?;
            self.out.line(&format!("{} attacks tried, {} refused", self.attacks, self.repelled))?;
            let verdict = if good { "every one came out as it must" } else { "NOT every one came out as it must:" };
            self.out.line(&format!("{} lines in {seconds:.1} s: {verdict}", self.lines))?;
            for line in &self.failed {
                self.out.line(&format!("  ✗ {line}"))?;
            }
        }
        self.out.flush()?;
        Ok(good)
    }
}

/// A duration as people read it.
pub(super) fn short(time: Duration) -> String {
    match time.as_micros() {
        micros @ 0..1000 => format!("{micros} µs"),
        _ => format!("{:.1} ms", time.as_secs_f64() * 1000.0),
    }
}
