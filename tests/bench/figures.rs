//! Medians, and goals with their bounds.

/// The median; zero of nothing.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        len if len % 2 == 1 => sorted[len / 2],
        len => f64::midpoint(sorted[len / 2 - 1], sorted[len / 2]),
    }
}

/// Median, least and greatest, for a line of text.
pub(crate) fn spread(values: &[f64], digits: usize) -> String {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let greatest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    format!("{:.digits$} ({least:.digits$}–{greatest:.digits$})", median(values))
}

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
