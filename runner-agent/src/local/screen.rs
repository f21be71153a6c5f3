//! The output of a local run: lines, and a progress bar below them on a terminal.

use std::{
    fs::File,
    io::{self, IsTerminal as _, Write},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crds::{Phase, TerraformRunStatus};
use indicatif::{ProgressBar, ProgressStyle};

use crate::process::Log;

const SPINNER: &str = "{spinner} {msg} {elapsed}";
const BAR: &str = "{spinner} apply [{bar:30}] {pos}/{len} {elapsed} {wide_msg}";

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Lines with a bar.
    Terminal {
        colour: bool,
    },
    Plain,
    /// The status as JSON, one line per change.
    Json,
}

/// The output. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Screen {
    mode: Mode,
    bar: Option<ProgressBar>,
}

impl Screen {
    pub fn new(json: bool, no_color: bool) -> Self {
        let terminal = io::stdout().is_terminal();
        let colour = !no_color && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let mode = match (json, terminal) {
            (true, _) => Mode::Json,
            (false, true) => Mode::Terminal { colour },
            (false, false) => Mode::Plain,
        };
        let bar = matches!(mode, Mode::Terminal { .. }).then(ProgressBar::no_length);
        let screen = Self { mode, bar };
        // Set before the bar is drawn for the first time.
        screen.spin("starts");
        screen.wake();
        screen
    }

    pub const fn has_colour(&self) -> bool {
        matches!(self.mode, Mode::Terminal { colour: true })
    }

    pub fn can_ask(&self) -> bool {
        self.mode != Mode::Json && io::stdin().is_terminal() && io::stdout().is_terminal()
    }

    /// Prints lines for people.
    pub fn line(&self, text: &str) {
        match (&self.bar, self.mode) {
            (_, Mode::Json) => {}
            // The bar's own method pads lines to the terminal's width, and prints nothing without a bar.
            (Some(bar), _) => bar.suspend(|| put(text)),
            (None, _) => put(text),
        }
    }

    /// Prints an emphasised line: a result, or the head of a question.
    pub fn strong(&self, text: &str, good: bool) {
        if self.has_colour() {
            self.line(&format!(
                "\x1b[1;{}m{text}\x1b[0m",
                if good { 32 } else { 31 }
            ));
        } else {
            self.line(text);
        }
    }

    fn spin(&self, text: &str) {
        self.bar(SPINNER, text);
    }

    fn bar(&self, template: &str, text: &str) {
        let Some(bar) = &self.bar else { return };
        // The prefix is not shown; it stores the current template. The time counts from the start of the current activity.
        if bar.prefix() != template {
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.set_prefix(template.to_owned());
            bar.reset_elapsed();
        } else if template == SPINNER && bar.message() != text {
            bar.reset_elapsed();
        }
        bar.set_message(text.to_owned());
    }

    /// Shows a status: the history from `shown` on, and the tool's progress. Returns the length of the shown history.
    pub fn show(&self, status: &TerraformRunStatus, shown: usize) -> usize {
        if self.mode == Mode::Json {
            if let Ok(text) = serde_json::to_string(status) {
                put(&text);
            }
            return status.history.len();
        }
        for line in status.history.iter().skip(shown.min(status.history.len())) {
            // The final message repeats this failure in full.
            if status
                .failure
                .as_ref()
                .is_some_and(|failure| is_said_by(line, &failure.reason, &failure.message))
            {
                continue;
            }
            let text = line
                .split_once("  ")
                .map_or(line.as_str(), |(_, rest)| rest);
            self.line(&if self.has_colour() {
                format!("\x1b[2m{text}\x1b[0m")
            } else {
                text.to_owned()
            });
        }
        let progress = status
            .progress
            .as_ref()
            .filter(|p| p.total > 0 && status.phase == Some(Phase::Apply));
        if let (Some(progress), Some(bar)) = (progress, &self.bar) {
            bar.set_length(progress.total.into());
            bar.set_position(progress.done.into());
            let silent = progress.quiet_since.as_ref().and(status.message.as_deref());
            self.bar(
                BAR,
                silent.or(progress.current.as_deref()).unwrap_or_default(),
            );
        } else if status.phase == Some(Phase::AwaitingApproval) && status.approval.is_some() {
            self.spin("the plan is compared with the files on disk");
        } else {
            self.spin(status.message.as_deref().unwrap_or("starts"));
        }
        status.history.len()
    }

    /// Removes the bar, so that a question or the shell has the last line.
    pub fn rest(&self) {
        if let Some(bar) = &self.bar {
            bar.disable_steady_tick();
            bar.finish_and_clear();
        }
    }

    /// Shows the bar again.
    pub fn wake(&self) {
        if let Some(bar) = &self.bar {
            bar.reset();
            bar.enable_steady_tick(Duration::from_millis(120));
        }
    }
}

/// Whether a history line reports this failure. The line may be truncated.
fn is_said_by(line: &str, reason: &str, message: &str) -> bool {
    let told = line
        .split_once(&format!("{reason}: "))
        .map(|(_, told)| told.trim_end_matches('…'));
    told.is_some_and(|told| !told.is_empty() && message.starts_with(told))
}

/// Writes to standard output. Ignores a closed pipe or terminal, which must not end a running apply.
fn put(text: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// Maximum wait for the tool's earlier output before a history line is printed.
const FLUSH: Duration = Duration::from_secs(2);

/// Prints a run's history as it is written: each line after the tool's output so far, and before its later output.
#[derive(Clone, Debug)]
pub struct Teller {
    screen: Screen,
    log: Log,
    told: Arc<AtomicUsize>,
}

impl Teller {
    /// Prints on the screen that also shows this log.
    pub fn new(screen: Screen, log: Log) -> Self {
        Self {
            screen,
            log,
            told: Arc::default(),
        }
    }

    /// Prints the new lines. In JSON mode each status contains the history.
    pub async fn tell(&self, status: &TerraformRunStatus) {
        if self.screen.mode == Mode::Json
            || self.told.load(Ordering::Relaxed) >= status.history.len()
        {
            return;
        }
        self.log.flush(FLUSH).await;
        let told = self.told.load(Ordering::Relaxed);
        self.told
            .store(self.screen.show(status, told), Ordering::Relaxed);
    }
}

/// The log of a run: written to a file without colours, and shown.
#[derive(Debug)]
pub struct Tee {
    file: File,
    screen: Screen,
    partial: Vec<u8>,
}

impl crate::process::LogSink for Tee {}

impl Tee {
    pub const fn new(file: File, screen: Screen) -> Self {
        Self {
            file,
            screen,
            partial: Vec::new(),
        }
    }
}

impl Write for Tee {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.partial.extend_from_slice(bytes);
        let Some(end) = self.partial.iter().rposition(|byte| *byte == b'\n') else {
            return Ok(bytes.len());
        };
        let whole: Vec<u8> = self.partial.drain(..=end).collect();
        let text = String::from_utf8_lossy(&whole[..end]);
        // The result shows the run's final message.
        let shown: Vec<&str> = text
            .split('\n')
            .filter(|line| !line.starts_with("pawl: "))
            .collect();
        if !shown.is_empty() {
            self.screen.line(&shown.join("\n"));
        }
        self.file.write_all(plain(&text).as_bytes())?;
        self.file.write_all(b"\n")?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Removes colour sequences from a text.
fn plain(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part
            .find(|c: char| !c.is_ascii_digit() && c != ';')
            .unwrap_or(part.len());
        plain.push_str(if part[end..].starts_with('m') {
            &part[end + 1..]
        } else {
            part
        });
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_file_has_no_colours() {
        assert_eq!(
            plain("\x1b[1m\x1b[32;1mok\x1b[0m and [0m\x1b[m"),
            "ok and [0m"
        );
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut tee = Tee::new(
            File::create(&path).unwrap(),
            Screen {
                mode: Mode::Json,
                bar: None,
            },
        );
        tee.write_all(b"\x1b[1mone").unwrap();
        tee.write_all(b"\x1b[0m\ntwo\npawl: three\n").unwrap();
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            "one\ntwo\npawl: three\n"
        );
    }
}
