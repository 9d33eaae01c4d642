//! Medians and spreads of a few rounds.

/// The median; zero of nothing.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |index: usize| sorted.get(index).copied().unwrap_or_default();
    match sorted.len() {
        0 => 0.0,
        len if len % 2 == 1 => at(len / 2),
        len => f64::midpoint(at(len / 2 - 1), at(len / 2)),
    }
}

/// The least and the greatest; zeros of nothing.
pub(crate) fn ends(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().reduce(f64::min).unwrap_or_default();
    let greatest = values.iter().copied().reduce(f64::max).unwrap_or_default();
    (least, greatest)
}

/// Median, least and greatest, for a line of text.
pub(crate) fn spread(values: &[f64], digits: usize) -> String {
    let (least, greatest) = ends(values);
    format!("{:.digits$} ({least:.digits$}–{greatest:.digits$})", median(values))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle_or_between_the_two_middle_ones() {
        assert_eq!((median(&[]), median(&[3.0]), median(&[9.0, 1.0, 2.0])), (0.0, 3.0, 2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 100.0]), 3.0);
        assert_eq!(spread(&[2.0, 1.25, 30.0], 1), "2.0 (1.2–30.0)");
        assert_eq!(spread(&[], 0), "0 (0–0)");
    }
}
