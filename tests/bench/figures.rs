//! Goals with their bounds.

pub(crate) use crate::spread::{median, spread};

/// Goals, printed last.
#[derive(Debug, Default)]
pub(crate) struct Goals {
    lines: Vec<String>,
    short: bool,
}

impl Goals {
    /// Notes a goal that is met when `measured` is at most `bound`.
    pub(crate) fn at_most(&mut self, name: &str, measured: i64, bound: i64) {
        self.note(name, measured, bound, measured <= bound);
    }

    /// Notes a goal that is met when `measured` is at least `bound`.
    pub(crate) fn at_least(&mut self, name: &str, measured: i64, bound: i64) {
        self.note(name, measured, bound, measured >= bound);
    }

    fn note(&mut self, name: &str, measured: i64, bound: i64, met: bool) {
        self.short |= !met;
        let word = if met { "ok" } else { "short" };
        self.lines.push(format!("goal {name} {measured} {bound} {word}"));
    }

    /// Prints every goal.
    pub(crate) fn print(&self) {
        self.lines.iter().for_each(|line| println!("{line}"));
    }

    /// Whether none is short.
    pub(crate) const fn are_met(&self) -> bool {
        !self.short
    }
}
