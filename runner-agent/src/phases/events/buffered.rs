//! Buffers the output of a hook that may hand over secrets. The secrets are known only when the hook has ended, and the hook may
//! have printed them before.

use std::collections::VecDeque;

use crate::process::Source;

/// Maximum buffer size in bytes. The oldest lines are dropped first.
const MOST: usize = 1 << 20;
/// Overhead of a line in bytes, besides its text.
const LINE: usize = size_of::<Kept>();

type Kept = (Source, String, u64);

/// Lines in their order, none shown yet.
#[derive(Debug, Default)]
pub(super) struct Buffered {
    lines: VecDeque<Kept>,
    bytes: usize,
    /// Number of dropped lines.
    gone: u64,
}

impl Buffered {
    pub(super) fn keep(&mut self, source: Source, line: &str, cut: u64) {
        self.bytes += line.len() + LINE;
        self.lines.push_back((source, line.to_owned(), cut));
        // The last line always remains, whatever its length.
        while self.bytes > MOST && self.lines.len() > 1 {
            let Some((_, line, _)) = self.lines.pop_front() else {
                break;
            };
            self.bytes -= line.len() + LINE;
            self.gone += 1;
        }
    }

    /// The lines, preceded by a note about dropped lines.
    pub(super) fn lines(self) -> impl Iterator<Item = Kept> {
        let gone = self.gone;
        let word = (gone > 0).then(|| {
            (
                Source::Err,
                format!("[{gone} lines before this were left out]"),
                0,
            )
        });
        word.into_iter().chain(self.lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flood_retains_the_last_lines() {
        let mut held = Buffered::default();
        for n in 0..100_000 {
            held.keep(Source::Out, &format!("line {n}"), 0);
        }
        assert!(held.bytes <= MOST && held.lines.capacity() * LINE < 4 * MOST);
        let lines: Vec<_> = held.lines().map(|(_, line, _)| line).collect();
        assert_eq!(
            lines[0],
            format!(
                "[{} lines before this were left out]",
                100_001 - lines.len()
            )
        );
        assert_eq!(lines.last().unwrap(), "line 99999");
        let mut held = Buffered::default();
        held.keep(Source::Out, "short", 0);
        held.keep(Source::Err, &"x".repeat(MOST), 7);
        let lines: Vec<_> = held.lines().collect();
        assert_eq!((lines.len(), lines[1].1.len(), lines[1].2), (2, MOST, 7));
    }
}
