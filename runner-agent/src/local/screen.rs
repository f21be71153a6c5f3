//! What a person sees of a local run: lines as they come, and a bar below them where there is a terminal.

use std::{
    fs::File,
    io::{self, IsTerminal as _, Write},
    time::Duration,
};

use crds::{Phase, TerraformRunStatus};
use indicatif::{ProgressBar, ProgressStyle};

/// How things are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// On a terminal: lines, and a bar.
    Terminal {
        /// With colour.
        colour: bool,
    },
    /// Lines.
    Plain,
    /// The status as JSON, a line for each change.
    Json,
}

/// The screen. Cloned freely.
#[derive(Clone, Debug)]
pub struct Screen {
    mode: Mode,
    bar: Option<ProgressBar>,
}

impl Screen {
    /// What this process writes to.
    pub fn new(json: bool, no_color: bool) -> Self {
        let terminal = io::stdout().is_terminal();
        let colour = !no_color && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let mode = match (json, terminal) {
            (true, _) => Mode::Json,
            (false, true) => Mode::Terminal { colour },
            (false, false) => Mode::Plain,
        };
        let bar = matches!(mode, Mode::Terminal { .. }).then(|| {
            let bar = ProgressBar::no_length();
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        let screen = Self { mode, bar };
        screen.spin("starts");
        screen
    }

    /// Whether the tool may print in colour.
    pub const fn has_colour(&self) -> bool {
        matches!(self.mode, Mode::Terminal { colour: true })
    }

    /// Whether a person is there to be asked.
    pub fn can_ask(&self) -> bool {
        self.mode != Mode::Json && io::stdin().is_terminal() && io::stdout().is_terminal()
    }

    /// A line for people.
    pub fn line(&self, text: &str) {
        match (&self.bar, self.mode) {
            (_, Mode::Json) => {}
            (Some(bar), _) => bar.println(text),
            (None, _) => println!("{text}"),
        }
    }

    /// A line that counts: an end, a question's head.
    pub fn strong(&self, text: &str, good: bool) {
        if self.has_colour() {
            self.line(&format!("\x1b[1;{}m{text}\x1b[0m", if good { 32 } else { 31 }));
        } else {
            self.line(text);
        }
    }

    fn spin(&self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.unset_length();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
                bar.set_style(style);
            }
            bar.set_message(text.to_owned());
        }
    }

    /// Shows a status: history from `shown` on, and how far the tool is. How much of the history is shown now.
    pub fn show(&self, status: &TerraformRunStatus, shown: usize) -> usize {
        if self.mode == Mode::Json {
            if let Ok(text) = serde_json::to_string(status) {
                println!("{text}");
            }
            return status.history.len();
        }
        for line in status.history.iter().skip(shown.min(status.history.len())) {
            let text = line.split_once("  ").map_or(line.as_str(), |(_, rest)| rest);
            self.line(&if self.has_colour() { format!("\x1b[2m{text}\x1b[0m") } else { text.to_owned() });
        }
        let progress = status.progress.as_ref().filter(|p| p.total > 0 && status.phase == Some(Phase::Apply));
        match (progress, &self.bar) {
            (Some(progress), Some(bar)) => {
                if let Ok(style) = ProgressStyle::with_template("{spinner} Apply [{bar:30}] {pos}/{len} {msg} {elapsed}") {
                    bar.set_style(style.progress_chars("=> "));
                }
                bar.set_length(progress.total.into());
                bar.set_position(progress.done.into());
                bar.set_message(progress.current.clone().unwrap_or_default());
            }
            (None, Some(_)) => self.spin(status.message.as_deref().unwrap_or("works")),
            (_, None) => {}
        }
        status.history.len()
    }

    /// Puts the bar away, so that a question or the shell has the last line.
    pub fn rest(&self) {
        if let Some(bar) = &self.bar {
            bar.disable_steady_tick();
            bar.finish_and_clear();
        }
    }
}

/// The log of a run: kept in a file, and shown line by line.
#[derive(Debug)]
pub struct Tee {
    file: File,
    screen: Screen,
    partial: Vec<u8>,
}

impl crate::process::LogSink for Tee {}

impl Tee {
    /// Writes to both.
    pub const fn new(file: File, screen: Screen) -> Self {
        Self { file, screen, partial: Vec::new() }
    }
}

impl Write for Tee {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write_all(bytes)?;
        self.partial.extend_from_slice(bytes);
        while let Some(end) = self.partial.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.partial.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line[..end]);
            // The last word of a run is shown with its result.
            if !line.starts_with("pawl: ") {
                self.screen.line(&line);
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
