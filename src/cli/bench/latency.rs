//! Latencies: an HDR histogram in nanoseconds, as text, as JSON and as a plot.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Map, Value};

/// Significant digits of a histogram: a value is known to a thousandth of itself.
const DIGITS: u8 = 3;
/// The greatest latency that is told apart, in nanoseconds: an hour.
const GREATEST_NS: u64 = 3_600_000_000_000;
/// Characters of the longest bar of a plot.
const BAR: u64 = 40;
/// Eighths of a character, from one to seven.
const EIGHTHS: [char; 7] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉'];

/// How long things took. Recording never fails: what takes longer than an hour counts as an hour.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latency(Option<Histogram<u64>>);

impl Latency {
    /// Notes one duration in nanoseconds.
    pub(crate) fn record(&mut self, ns: u64) {
        if self.0.is_none() {
            self.0 = Histogram::new_with_bounds(1, GREATEST_NS, DIGITS).ok();
        }
        if let Some(histogram) = &mut self.0 {
            histogram.saturating_record(ns.clamp(1, GREATEST_NS));
        }
    }

    /// Notes one duration.
    pub(crate) fn record_duration(&mut self, duration: Duration) {
        self.record(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Takes in what another one holds.
    pub(crate) fn merge(&mut self, other: &Self) {
        match (&mut self.0, &other.0) {
            // Both have the same bounds.
            (Some(mine), Some(theirs)) => drop(mine.add(theirs)),
            (None, Some(_)) => self.clone_from(other),
            (_, None) => {}
        }
    }

    /// How many durations were noted.
    pub(crate) fn count(&self) -> u64 {
        self.0.as_ref().map_or(0, Histogram::len)
    }

    /// The duration that a share of all do not exceed, in nanoseconds; zero of none.
    pub(crate) fn quantile_ns(&self, share: f64) -> u64 {
        // A histogram answers with the end of a bucket, which may be above all that was noted.
        self.0.as_ref().map_or(0, |histogram| histogram.value_at_quantile(share).min(histogram.max()))
    }

    /// The longest duration, in nanoseconds.
    pub(crate) fn max_ns(&self) -> u64 {
        self.0.as_ref().map_or(0, Histogram::max)
    }

    /// The quantiles that are reported: name for people, key in JSON, nanoseconds.
    pub(crate) fn quantiles(&self) -> [(&'static str, &'static str, u64); 6] {
        let at = |share| self.quantile_ns(share);
        [
            ("min", "min_us", self.0.as_ref().map_or(0, Histogram::min)),
            ("p50", "p50_us", at(0.5)),
            ("p90", "p90_us", at(0.9)),
            ("p99", "p99_us", at(0.99)),
            ("p99.9", "p999_us", at(0.999)),
            ("max", "max_us", self.max_ns()),
        ]
    }

    /// Adds `min_us`, `p50_us` and so on to an object, `null` where nothing was noted.
    pub(crate) fn put(&self, object: &mut Map<String, Value>) {
        for (_, key, ns) in self.quantiles() {
            let value = if self.count() == 0 { Value::Null } else { micros(ns).into() };
            object.insert(key.to_owned(), value);
        }
    }

    /// One line: every quantile with its unit.
    pub(crate) fn line(&self) -> String {
        if self.count() == 0 {
            return "nothing arrived".to_owned();
        }
        self.quantiles().map(|(name, _, ns)| format!("{name} {}", shown(ns))).join("  ")
    }

    /// The distribution, a line for each octave of durations: its lower end, a bar, the count.
    pub(crate) fn plot(&self) -> Vec<String> {
        let Some(histogram) = &self.0 else { return Vec::new() };
        let mut octaves: Vec<(u32, u64)> = Vec::new();
        for step in histogram.iter_recorded() {
            let octave = step.value_iterated_to().max(1).ilog2();
            match octaves.last_mut() {
                Some((last, count)) if *last == octave => *count += step.count_since_last_iteration(),
                _ => octaves.push((octave, step.count_since_last_iteration())),
            }
        }
        let (Some((first, _)), Some((last, _))) = (octaves.first(), octaves.last()) else { return Vec::new() };
        let most = octaves.iter().map(|(_, count)| *count).max().unwrap_or(1);
        let line = |octave| {
            let count = octaves.iter().find(|(o, _)| *o == octave).map_or(0, |(_, count)| *count);
            let from = shown(1u64.checked_shl(octave).unwrap_or(u64::MAX));
            format!("{from:>9} {} {count}", bar(count, most)).trim_end().to_owned()
        };
        (*first..=*last).map(line).collect()
    }
}

/// A bar whose length is to the longest as `count` to `most`; what is there at all is seen.
fn bar(count: u64, most: u64) -> String {
    let eighths = u128::from(count) * u128::from(BAR) * 8 / u128::from(most.max(1));
    let eighths = usize::try_from(eighths).unwrap_or(0).max(usize::from(count > 0));
    let mut text = "█".repeat(eighths / 8);
    text.extend((eighths % 8).checked_sub(1).and_then(|part| EIGHTHS.get(part)));
    text
}

/// Nanoseconds as microseconds.
pub(crate) fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}

/// Nanoseconds with three digits and the unit that fits.
pub(crate) fn shown(ns: u64) -> String {
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "µs"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: impl IntoIterator<Item = u64>) -> Latency {
        let mut latency = Latency::default();
        values.into_iter().for_each(|ns| latency.record(ns));
        latency
    }

    #[test]
    fn quantiles_are_those_of_the_values() {
        let latency = of((1..=1000).map(|n| n * 1_000));
        for (share, expected) in [(0.5, 500_000), (0.9, 900_000), (0.99, 990_000), (0.999, 999_000), (1.0, 1_000_000)] {
            let found = latency.quantile_ns(share);
            assert!(found.abs_diff(expected) <= expected / 1_000, "{share}: {found}");
        }
        assert!(latency.max_ns().abs_diff(1_000_000) <= 1_000 && latency.count() == 1000);
        assert_eq!((Latency::default().quantile_ns(0.99), Latency::default().max_ns()), (0, 0));
    }

    #[test]
    fn what_takes_longer_than_an_hour_is_still_counted() {
        let latency = of([u64::MAX, 0]);
        assert_eq!(latency.count(), 2);
        assert!(latency.max_ns() >= GREATEST_NS);
    }

    #[test]
    fn merging_is_recording_both() {
        let (mut one, two) = (of([5, 10]), of([1_000]));
        one.merge(&two);
        one.merge(&Latency::default());
        let mut none = Latency::default();
        none.merge(&one);
        assert_eq!((none.count(), none.max_ns(), none.quantile_ns(0.5)), (3, 1_000, 10));
    }

    #[test]
    fn json_has_units_in_its_keys() {
        let mut object = Map::new();
        of([2_000]).put(&mut object);
        let keys: Vec<&str> = object.keys().map(String::as_str).collect();
        assert_eq!(keys.len(), 6);
        assert!(keys.iter().all(|key| key.ends_with("_us")), "{keys:?}");
        assert_eq!(object["p999_us"], 2.0);
        Latency::default().put(&mut object);
        assert_eq!((&object["p50_us"], Latency::default().line().as_str()), (&Value::Null, "nothing arrived"));
    }

    #[test]
    fn a_plot_has_a_line_for_every_octave_between_the_least_and_the_greatest() {
        let latency = of([1_100, 1_200, 1_300, 1_400, 5_000]);
        let bars = "█".repeat(40);
        assert_eq!(
            latency.plot(),
            [format!("  1.02 µs {bars} 4"), "  2.05 µs  0".into(), "  4.10 µs ██████████ 1".into()]
        );
        assert_eq!(Latency::default().plot(), [""; 0]);
        assert_eq!((bar(1, 1_000_000), bar(0, 5), bar(1, 80)), ("▏".to_owned(), String::new(), "▌".to_owned()));
    }

    #[test]
    fn durations_are_shown_with_three_digits() {
        for (ns, text) in [(999, "999 ns"), (1_500, "1.50 µs"), (15_000, "15.0 µs"), (150_400, "150 µs")] {
            assert_eq!(shown(ns), text);
        }
        assert_eq!((shown(4_349_000_000), shown(12_340_000)), ("4.35 s".to_owned(), "12.3 ms".to_owned()));
    }
}
