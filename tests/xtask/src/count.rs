//! Counts tests from the summary lines of test programs.

use std::ops::AddAssign;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

impl Count {
    /// Adds up `test result: ok. 20 passed; 0 failed; …` of every test program, and `# pass 20` and `# fail 0` of Node's. Our own
    /// harnesses print the first line too.
    pub(crate) fn read(output: &str) -> Self {
        let mut count = Self::default();
        let of = |start: &str| -> u64 {
            let numbers = output
                .lines()
                .filter_map(|line| line.strip_prefix(start)?.trim().parse::<u64>().ok());
            numbers.sum()
        };
        count += Self {
            passed: of("# pass "),
            failed: of("# fail "),
        };
        for line in output
            .lines()
            .filter(|line| line.starts_with("test result: "))
        {
            count += Self {
                passed: before(line, " passed"),
                failed: before(line, " failed"),
            };
        }
        count
    }
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

/// The number before a word.
fn before(line: &str, word: &str) -> u64 {
    line.split_once(word)
        .and_then(|(head, _)| head.rsplit([' ', '.']).next())
        .and_then(|n| n.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_lines_are_added_up() {
        let output = "running 2 tests\ntest result: ok. 20 passed; 0 failed; 0 ignored; 0 measured\n\
                      x\ntest result: FAILED. 3 passed; 1 failed; 0 ignored\nthe test result: ok. 9 passed\n\
                      # tests 5\n# pass 4\n# fail 1";
        assert_eq!(
            Count::read(output),
            Count {
                passed: 27,
                failed: 2
            }
        );
    }
}
