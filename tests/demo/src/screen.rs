//! Prints the demo's output: numbered steps with their times, and lines in between.

use std::time::Instant;

use harness::cluster::report;

const STEPS: u8 = 9;

/// Prints a paragraph.
pub(super) fn say(text: &str) {
    println!("{text}");
}

/// Prints a line within a step.
pub(super) fn line(text: &str) {
    println!("      {text}");
}

/// Prints a long text, such as a plan, set apart.
pub(super) fn block(text: &str) {
    println!();
    for line in text.trim_end().lines() {
        println!("  {line}");
    }
    println!();
}

/// A numbered step, printed with its time when done.
#[derive(Debug)]
pub(super) struct Step {
    number: u8,
    name: &'static str,
    begun: Instant,
}

impl Step {
    pub(super) fn begin(number: u8, name: &'static str) -> Self {
        Self {
            number,
            name,
            begun: Instant::now(),
        }
    }

    pub(super) fn done(self, text: &str) {
        println!(
            "[{}/{STEPS}] {:9} {text} ({})",
            self.number,
            self.name,
            report::duration(self.begun.elapsed())
        );
    }
}
