//! The table: a row for each figure, a column for each number of layers.

use harness::cluster::report;

/// A figure at one number of layers.
#[derive(Clone, Debug)]
pub(super) struct Figure {
    name: String,
    value: String,
    /// The goal, and whether it is met.
    goal: Option<(&'static str, bool)>,
}

impl Figure {
    /// A figure without a goal.
    pub(super) fn plain(name: &str, value: impl Into<String>) -> Self {
        Self { name: name.to_owned(), value: value.into(), goal: None }
    }

    pub(super) fn goal(name: &str, value: impl Into<String>, goal: &'static str, met: bool) -> Self {
        Self { name: name.to_owned(), value: value.into(), goal: Some((goal, met)) }
    }

    fn cell(&self) -> String {
        if self.goal.is_some_and(|(_, met)| !met) { format!("{} MISSED", self.value) } else { self.value.clone() }
    }
}

/// Figures by the number of layers.
#[derive(Clone, Debug, Default)]
pub(super) struct Growth {
    heads: Vec<String>,
    /// Name, goal, and a cell for each heading.
    rows: Vec<(String, &'static str, Vec<String>)>,
}

impl Growth {
    /// Adds a column. New figures begin with it.
    pub(super) fn add(&mut self, head: &str, figures: &[Figure]) {
        let before = self.heads.len();
        self.heads.push(head.to_owned());
        for figure in figures {
            let of = self.rows.iter().position(|(name, ..)| *name == figure.name).unwrap_or_else(|| {
                self.rows.push((figure.name.clone(), "", vec![String::new(); before]));
                self.rows.len() - 1
            });
            let (_, goal, cells) = &mut self.rows[of];
            *goal = figure.goal.map_or(*goal, |(goal, _)| goal);
            cells.push(figure.cell());
        }
        for (.., cells) in &mut self.rows {
            cells.resize(before + 1, String::new());
        }
    }

    /// The table, in columns.
    pub(super) fn text(&self) -> String {
        let head = std::iter::once("layers".to_owned()).chain(self.heads.iter().cloned()).chain([String::new()]);
        let rows = self.rows.iter().map(|(name, goal, cells)| {
            let goal = if goal.is_empty() { String::new() } else { format!("goal: {goal}") };
            std::iter::once(name.clone()).chain(cells.iter().cloned()).chain([goal]).collect::<Vec<_>>()
        });
        let lines: Vec<Vec<String>> = std::iter::once(head.collect()).chain(rows).collect();
        let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default();
        let widths: Vec<usize> = (0..self.heads.len() + 2).map(width).collect();
        let line = |cells: &Vec<String>| {
            let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
            padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
        };
        lines.iter().map(line).collect()
    }
}

/// Prints a figure as soon as it is known.
pub(super) fn say(layers: usize, figure: Figure) -> Figure {
    report::note("scale", &format!("{layers} layers: {}: {}", figure.name, figure.cell()));
    figure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_stands_under_its_number_of_layers_and_says_when_it_misses_its_goal() {
        let mut growth = Growth::default();
        growth.add("100", &[Figure::plain("rate", "7"), Figure::goal("memory", "20 MiB", "at most 150 MiB", true)]);
        growth.add("1000", &[Figure::goal("memory", "200 MiB", "at most 150 MiB", false), Figure::plain("late", "1")]);
        let text = growth.text();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "layers  100     1000");
        assert_eq!(lines[1], "rate    7");
        assert_eq!(lines[2], "memory  20 MiB  200 MiB MISSED  goal: at most 150 MiB");
        assert_eq!(lines[3], "late            1");
    }
}
