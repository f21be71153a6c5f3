//! Progress output: a spinner with the time on a terminal, else one line per step.

use std::io::IsTerminal as _;
use std::process::{ExitCode, Termination};
use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

/// A step in progress. It prints its duration when it succeeds.
#[derive(Debug)]
pub struct Step {
    area: &'static str,
    what: String,
    started: Instant,
    bar: Option<ProgressBar>,
}

/// Begins a step, such as `tools  kube-apiserver`.
pub fn step(area: &'static str, what: impl Into<String>) -> Step {
    let what = what.into();
    let bar = std::io::stderr().is_terminal().then(|| {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{prefix:9} {msg} {elapsed} {spinner}") {
            bar.set_style(style);
        }
        bar.set_prefix(area);
        bar.set_message(what.clone());
        bar.enable_steady_tick(Duration::from_millis(200));
        bar
    });
    Step {
        area,
        what,
        started: Instant::now(),
        bar,
    }
}

/// Prints one line that is not a step.
pub fn note(area: &str, text: &str) {
    eprintln!("{area:9} {text}");
}

/// Converts the result to an exit code. Prints an error for users, without a backtrace.
pub fn exit(program: &str, ended: Result<impl Termination>) -> ExitCode {
    match ended {
        Ok(ended) => ended.report(),
        Err(error) => {
            eprintln!("{program}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

impl Step {
    /// Ends the step and prints its text and duration.
    pub fn done(self) {
        let took = self.started.elapsed();
        self.finish();
        note(self.area, &format!("{} {}", self.what, duration(took)));
    }

    /// Like [`Step::done`], with another text for the result.
    pub fn done_with(mut self, what: impl Into<String>) {
        self.what = what.into();
        self.done();
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Formats a duration for people: `340ms`, `4.6s`, `1m12s`.
pub fn duration(duration: Duration) -> String {
    match duration.as_secs() {
        0 => format!("{}ms", duration.as_millis()),
        1..=59 => format!("{:.1}s", duration.as_secs_f64()),
        seconds => format!("{}m{:02}s", seconds / 60, seconds % 60),
    }
}
