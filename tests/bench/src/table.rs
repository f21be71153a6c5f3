//! The table of figures.

use harness::cluster::report;

/// Figures in order, with their bounds.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    notes: Vec<String>,
    rows: Vec<[String; 4]>,
}

impl Table {
    /// Adds a line above the figures.
    pub(super) fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }

    /// Adds a figure without a bound, for comparison.
    pub(super) fn plain(&mut self, figure: &str, value: impl Into<String>) {
        self.add(figure, value.into(), String::new(), String::new());
    }

    /// Adds a figure with its bound, and whether it is met.
    pub(super) fn bound(&mut self, figure: &str, value: impl Into<String>, bound: &str, met: bool) {
        self.add(figure, value.into(), bound.to_owned(), if met { "met" } else { "MISSED" }.to_owned());
    }

    fn add(&mut self, figure: &str, value: String, bound: String, met: String) {
        report::note(
            "bench",
            &format!("{figure}: {value} {}", if bound.is_empty() { String::new() } else { format!("({bound}: {met})") }),
        );
        self.rows.push([figure.to_owned(), value, bound, met]);
    }

    /// The table, in columns.
    pub(super) fn text(&self) -> String {
        let head = ["figure", "value (min / median / max)", "bound", ""].map(str::to_owned);
        let width = |column: usize| {
            std::iter::once(&head).chain(&self.rows).map(|row| row[column].chars().count()).max().unwrap_or_default()
        };
        let widths = [width(0), width(1), width(2)];
        let mut text = self.notes.join("\n") + "\n";
        for row in std::iter::once(&head).chain(&self.rows) {
            let [figure, value, bound, met] = row;
            let line = format!("{figure:0$}  {value:1$}  {bound:2$}  {met}", widths[0], widths[1], widths[2]);
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest() {
        let mut table = Table::default();
        table.plain("a", "1");
        table.bound("a longer one", "2", "at most 1", false);
        let text = table.text();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[2], "a             1");
        assert!(lines[3].ends_with("at most 1  MISSED"), "{text}");
    }
}
