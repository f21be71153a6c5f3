//! Measured values and their spread.

use std::fmt;
use std::time::Duration;

/// Samples of one figure.
#[derive(Clone, Debug, Default)]
pub(super) struct Samples(Vec<f64>);

impl Samples {
    pub(super) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    pub(super) fn seconds(&mut self, value: Duration) {
        self.push(value.as_secs_f64());
    }

    /// The median; 0 without samples.
    pub(super) fn median(&self) -> f64 {
        let sorted = self.sorted();
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => 0.0,
            n if n % 2 == 1 => sorted[middle],
            _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
        }
    }

    pub(super) fn max(&self) -> f64 {
        self.sorted().last().copied().unwrap_or_default()
    }

    /// The samples in the order of measurement.
    pub(super) fn values(&self) -> impl Iterator<Item = f64> {
        self.0.iter().copied()
    }

    /// Minimum, median and maximum with a unit: `1.20 / 1.25 / 1.41 s`.
    pub(super) fn spread(&self, unit: Unit) -> String {
        let sorted = self.sorted();
        let (least, most) = (sorted.first().copied().unwrap_or_default(), self.max());
        format!("{} / {} / {}{unit}", unit.number(least), unit.number(self.median()), unit.number(most))
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Seconds,
    /// Seconds, printed as milliseconds.
    Millis,
    Ratio,
    /// A ratio minus one, printed in percent.
    Percent,
    Count,
}

impl Unit {
    fn number(self, value: f64) -> String {
        match self {
            Self::Seconds | Self::Ratio => format!("{value:.2}"),
            Self::Millis => format!("{:.0}", value * 1000.0),
            Self::Percent => format!("{:+.1}", (value - 1.0) * 100.0),
            Self::Count => format!("{value:.0}"),
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Seconds => " s",
            Self::Millis => " ms",
            Self::Percent => " %",
            Self::Ratio | Self::Count => "",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_has_least_middle_and_greatest() {
        let samples = Samples::from_iter([3.0, 1.0, 2.0, 10.0]);
        assert_eq!(samples.spread(Unit::Seconds), "1.00 / 2.50 / 10.00 s");
        assert_eq!(Samples::from_iter([0.0123]).spread(Unit::Millis), "12 / 12 / 12 ms");
        assert_eq!(Samples::from_iter([1.05, 0.99]).spread(Unit::Percent), "-1.0 / +2.0 / +5.0 %");
        assert_eq!(Samples::default().spread(Unit::Count), "0 / 0 / 0");
    }
}
