//! Figures, with their spread and bounds, and their table.

use std::{fmt::Display, time::Duration};

use harness::cluster::report;

/// The unit of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
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

    const fn name(self) -> &'static str {
        match self {
            Self::Seconds => " s",
            Self::Millis => " ms",
            Self::Percent => " %",
            Self::Ratio | Self::Count => "",
        }
    }
}

/// The value that must not exceed a bound, in the samples' unit.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    None,
    Median(f64),
    Max(f64),
}

/// The median; 0 without samples.
pub(crate) fn median(samples: &[f64]) -> f64 {
    let sorted = sorted(samples);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Formats KiB.
pub(crate) fn mib(kib: u64) -> String {
    format!("{:.1} MiB", number(kib) / 1024.0)
}

/// Converts a count.
#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
pub(crate) const fn number(count: u64) -> f64 {
    count as f64
}

/// A figure whose samples are not complete.
#[derive(Clone, Debug)]
struct Open {
    name: String,
    unit: Unit,
    limit: Limit,
    samples: Vec<f64>,
}

/// A figure: its name, its bound, and a value for each heading.
#[derive(Clone, Debug)]
struct Row {
    name: String,
    bound: String,
    cells: Vec<String>,
}

/// Figures in order, under one heading or several.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    area: &'static str,
    heads: Vec<String>,
    open: Vec<Open>,
    rows: Vec<Row>,
}

impl Table {
    /// An empty table. `area` begins each line of progress; `head` is the heading of the names.
    pub(crate) fn new(area: &'static str, head: &str) -> Self {
        Self {
            area,
            heads: vec![head.to_owned()],
            open: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// Adds a heading, under which all further figures stand.
    pub(crate) fn head(&mut self, head: impl Display) {
        self.heads.push(head.to_string());
    }

    /// Adds a figure without a bound.
    pub(crate) fn plain(&mut self, name: &str, value: impl Display) {
        self.add(name, value.to_string(), String::new());
    }

    /// Adds a figure with its bound, and whether it is met.
    pub(crate) fn bound(&mut self, name: &str, value: impl Display, bound: &str, met: bool) {
        let mark = if met { "" } else { " MISSED" };
        self.add(name, format!("{value}{mark}"), bound.to_owned());
    }

    /// Adds a sample to a figure. [`Self::close`] makes its row.
    pub(crate) fn sample(&mut self, name: &str, unit: Unit, sample: f64) {
        match self.open.iter_mut().find(|open| open.name == name) {
            Some(open) => open.samples.push(sample),
            None => self.open.push(Open {
                name: name.to_owned(),
                unit,
                limit: Limit::None,
                samples: vec![sample],
            }),
        }
    }

    pub(crate) fn seconds(&mut self, name: &str, sample: Duration) {
        self.sample(name, Unit::Seconds, sample.as_secs_f64());
    }

    pub(crate) fn millis(&mut self, name: &str, sample: Duration) {
        self.sample(name, Unit::Millis, sample.as_secs_f64());
    }

    /// Adds the ratio of two durations as a sample.
    pub(crate) fn ratio(&mut self, name: &str, ours: Duration, theirs: Duration) {
        self.sample(name, Unit::Ratio, ours.as_secs_f64() / theirs.as_secs_f64());
    }

    /// Sets the bound of a figure that has samples.
    pub(crate) fn limit(&mut self, name: &str, limit: Limit) {
        self.open
            .iter_mut()
            .filter(|open| open.name == name)
            .for_each(|open| open.limit = limit);
    }

    /// The median of the samples so far.
    pub(crate) fn median(&self, name: &str) -> f64 {
        self.open
            .iter()
            .find(|open| open.name == name)
            .map_or(0.0, |open| median(&open.samples))
    }

    /// Makes rows of all samples: minimum, median and maximum.
    pub(crate) fn close(&mut self) {
        for Open {
            name,
            unit,
            limit,
            samples,
        } in std::mem::take(&mut self.open)
        {
            let (sorted, middle) = (sorted(&samples), median(&samples));
            let (least, most) = (
                sorted.first().copied().unwrap_or_default(),
                sorted.last().copied().unwrap_or_default(),
            );
            let spread = [least, middle, most]
                .map(|value| unit.number(value))
                .join(" / ")
                + unit.name();
            let at_most = |limit: f64| format!("at most {}{}", unit.number(limit), unit.name());
            match limit {
                Limit::None => self.plain(&name, spread),
                Limit::Median(limit) => self.bound(
                    &name,
                    spread,
                    &format!("{} (median)", at_most(limit)),
                    middle <= limit,
                ),
                Limit::Max(limit) => self.bound(&name, spread, &at_most(limit), most <= limit),
            }
        }
    }

    /// Prints a figure as soon as it is known, and adds it to the first row of that name that has none under this heading.
    fn add(&mut self, name: &str, value: String, bound: String) {
        let column = self.heads.len() - 2;
        let head = if column == 0 {
            String::new()
        } else {
            format!("{}: ", self.heads[column + 1])
        };
        let shown = if bound.is_empty() {
            String::new()
        } else {
            format!(" ({bound})")
        };
        report::note(self.area, &format!("{head}{name}: {value}{shown}"));
        let free = self
            .rows
            .iter()
            .position(|row| row.name == name && row.cells.len() <= column);
        let row = free.unwrap_or_else(|| {
            self.rows.push(Row {
                name: name.to_owned(),
                bound: String::new(),
                cells: Vec::new(),
            });
            self.rows.len() - 1
        });
        let row = &mut self.rows[row];
        row.cells.resize(column, String::new());
        row.cells.push(value);
        row.bound = bound;
    }

    /// The table, in columns.
    pub(crate) fn text(&self) -> String {
        let columns = self.heads.len() + 1;
        let head = self
            .heads
            .iter()
            .cloned()
            .chain(["bound".to_owned()])
            .collect();
        let rows = self.rows.iter().map(|row| {
            let mut line = vec![row.name.clone()];
            line.extend(row.cells.iter().cloned());
            line.resize(columns - 1, String::new());
            line.push(row.bound.clone());
            line
        });
        let lines: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
        let width = |column: usize| {
            lines
                .iter()
                .map(|line| line[column].chars().count())
                .max()
                .unwrap_or_default()
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let line = |cells: &Vec<String>| {
            let padded = cells
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell:width$}"));
            padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
        };
        lines.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(table: &Table) -> Vec<String> {
        table.text().lines().map(str::to_owned).collect()
    }

    #[test]
    fn figures_align_under_their_heads_and_missed_bounds_are_marked() {
        let mut table = Table::new("test", "layers");
        table.head(100);
        for value in ["7", "8"] {
            table.plain("rate", value);
        }
        table.bound("memory", "20 MiB", "at most 150 MiB", true);
        table.head(1000);
        table.bound("memory", "200 MiB", "at most 150 MiB", false);
        table.plain("late", "1");
        table.plain("rate", "9");
        let expected = [
            "layers  100     1000            bound",
            "rate    7       9",
            "rate    8",
            "memory  20 MiB  200 MiB MISSED  at most 150 MiB",
            "late            1",
        ];
        assert_eq!(lines(&table), expected);
    }

    #[test]
    fn samples_show_minimum_median_and_maximum_beside_their_limit() {
        let mut table = Table::new("test", "figure");
        table.head("value");
        let rows: [(&str, Unit, Limit, &[f64]); 5] = [
            ("a", Unit::Seconds, Limit::Max(9.0), &[3.0, 1.0, 2.0, 10.0]),
            ("b", Unit::Millis, Limit::Median(0.02), &[0.0123]),
            ("c", Unit::Percent, Limit::None, &[1.05, 0.99]),
            ("d", Unit::Count, Limit::Max(12.0), &[12.0]),
            ("e", Unit::Ratio, Limit::Median(1.5), &[1.0, 2.0, 2.0]),
        ];
        for (name, unit, limit, samples) in rows {
            for sample in samples {
                table.sample(name, unit, *sample);
            }
            table.limit(name, limit);
        }
        assert!((table.median("a") - 2.5).abs() < 1e-9);
        table.close();
        let expected = [
            "figure  value                         bound",
            "a       1.00 / 2.50 / 10.00 s MISSED  at most 9.00 s",
            "b       12 / 12 / 12 ms               at most 20 ms (median)",
            "c       -1.0 / +2.0 / +5.0 %",
            "d       12 / 12 / 12                  at most 12",
            "e       1.00 / 2.00 / 2.00 MISSED     at most 1.50 (median)",
        ];
        assert_eq!(lines(&table), expected);
    }
}
