//! Executes the steps of a script.

use std::io::{BufRead as _, Write as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::Tool;
use super::resource::Act;
use super::script::{Action, Diagnostic, Spawn};
use super::signals::Signals;
use super::view::{error_line, line};
use ledger::what;

/// First argument of a background process of a script.
pub(super) const BACKGROUND: &str = "__background";

/// The list that contains a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope<'a> {
    /// The list of a command. An interrupt ends it between and during steps.
    Command,
    /// The list of a resource. It is completed despite an interrupt.
    Resource(&'a str, Act),
}

impl Tool {
    /// Executes one step; an error ends its scope.
    pub(super) fn step(&self, action: &Action, scope: Scope<'_>) -> Result<(), Diagnostic> {
        match action {
            // The caller handles it, because it knows what its command does.
            Action::Default => {}
            Action::SleepMs(ms) => match scope {
                Scope::Command => self.signals.sleep(Duration::from_millis(*ms)),
                Scope::Resource(..) => std::thread::sleep(Duration::from_millis(*ms)),
            },
            Action::Print(text) => line(text),
            Action::PrintErr(text) => error_line(text),
            Action::Diagnostic(diagnostic) => return Err(diagnostic.clone()),
            Action::Spawn(spawn) => drop(
                self.spawn(spawn)?
                    .spawn()
                    .context("failed to start a background process")?,
            ),
            Action::Provider(spawn) => self.wait_for_provider(spawn, scope)?,
            Action::Ask(question) => self.ask(question)?,
            Action::Exec(words) => exec(words)?,
            Action::AllocateMb(size) => drop(vec![1_u8; size << 20].leak()),
            Action::FloodMb(size) => {
                let text = "flood ".repeat(17);
                (0..(size << 20) / (text.len() as u64 + 1)).for_each(|_| line(&text));
            }
            Action::LineMb(size) => {
                let (mut out, part) = (std::io::stdout().lock(), vec![b'y'; 1 << 16]);
                // Ignore a reader that has gone.
                let _ = (0..size << 4)
                    .try_for_each(|_| out.write_all(&part))
                    .and_then(|()| out.write_all(b"\n"));
            }
            Action::HoldLock(_) => {
                self.lock(&self.backend()?, "OperationTypePlan")?;
                hang();
            }
            Action::Hang => hang(),
            Action::KillSelf(number) => {
                let signal = Signal::try_from(*number).context("no such signal")?;
                kill(Pid::this(), signal).context("failed to send a signal")?;
                // Its handler runs in another thread.
                std::thread::sleep(Duration::from_millis(200));
            }
        }
        Ok(())
    }

    fn spawn(&self, spawn: &Spawn) -> anyhow::Result<Command> {
        let detail =
            json!({"spawn": spawn, "ledger": self.script.ledger, "script": self.script.name});
        let mut command = Command::new(
            std::env::current_exe().context("this program does not know where it is")?,
        );
        command
            .args([BACKGROUND, &detail.to_string()])
            .stdin(Stdio::null());
        if !spawn.hold_stdout {
            command.stdout(Stdio::null()).stderr(Stdio::null());
        }
        Ok(command)
    }

    fn wait_for_provider(&self, spawn: &Spawn, scope: Scope<'_>) -> Result<(), Diagnostic> {
        let mut child = self
            .spawn(spawn)?
            .spawn()
            .context("failed to start a provider")?;
        let (begun, beat) = (
            Instant::now(),
            Duration::from_millis(self.script.progress_ms.max(1)),
        );
        let mut next = begun + beat;
        let status = loop {
            if let Some(status) = child.try_wait().context("failed to wait for a provider")? {
                break status;
            }
            if let (Scope::Resource(address, act), true) = (scope, Instant::now() >= next) {
                self.view
                    .apply_progress(address, act, begun.elapsed().as_secs());
                next += beat;
            }
            std::thread::sleep(Duration::from_millis(20).min(beat));
        };
        if status.success() {
            return Ok(());
        }
        let detail = "The plugin encountered an error, and failed to respond to the plugin.(*GRPCProvider).ApplyResourceChange call. The plugin logs may contain more details.";
        Err(Diagnostic::error("Plugin did not respond", detail))
    }

    fn ask(&self, question: &str) -> Result<(), Diagnostic> {
        // Real programs ask at the terminal first and ignore stdin.
        let terminal = if std::fs::File::open("/dev/tty").is_ok() {
            "terminal"
        } else {
            "no terminal"
        };
        self.recorder.note(what::MARK, json!({"text": terminal}))?;
        let mut out = std::io::stdout().lock();
        let _ = out
            .write_all(format!("{question}\n  Enter a value: ").as_bytes())
            .and_then(|()| out.flush());
        drop(out);
        let mut answer = String::new();
        let read = std::io::stdin()
            .lock()
            .read_line(&mut answer)
            .context("failed to read the answer")?;
        if read == 0 {
            line("");
            return Err(Diagnostic::error(
                "Error asking for input to configure the provider",
                &format!("{question}: EOF"),
            ));
        }
        Ok(())
    }
}

fn hang() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

fn exec(words: &[String]) -> anyhow::Result<()> {
    let (program, arguments) = words.split_first().context("`exec` without a program")?;
    let status = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("failed to start `{program}`"))?;
    anyhow::ensure!(status.success(), "`{program}` ended with {status}");
    Ok(())
}

pub(super) fn live_in_background(detail: &str) -> anyhow::Result<()> {
    let detail: Value = serde_json::from_str(detail)?;
    let spawn: Spawn = serde_json::from_value(detail["spawn"].clone())?;
    if spawn.daemon {
        nix::unistd::setsid().context("failed to start a session")?;
    }
    let text = |key: &str| detail[key].as_str();
    let recorder = super::record::Recorder::new(
        text("ledger"),
        text("script").unwrap_or_default(),
        "background",
    );
    let view = super::view::View {
        command: "tofu",
        version: String::new(),
        json: false,
        dir: ".".into(),
    };
    let signals = if spawn.ignore_signals {
        Some(Signals::catch(recorder.clone(), view)?)
    } else {
        None
    };
    signals.iter().for_each(Signals::ignore);
    let end = std::time::Instant::now() + Duration::from_secs(spawn.seconds);
    recorder.note(what::BACKGROUND, json!({"daemon": spawn.daemon}))?;
    while std::time::Instant::now() < end {
        let beat = if spawn.beat_ms == 0 {
            3_600_000
        } else {
            spawn.beat_ms
        };
        let left = end.saturating_duration_since(std::time::Instant::now());
        std::thread::sleep(Duration::from_millis(beat).min(left));
        if spawn.beat_ms > 0 {
            recorder.note(what::BACKGROUND, json!({"daemon": spawn.daemon}))?;
        }
    }
    Ok(())
}
