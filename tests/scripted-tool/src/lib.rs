//! A tool that behaves like OpenTofu (or Terraform) on the command line and does what a script says.
//!
//! Tests use it where the real tools cannot be made to stop, fail or die at an exact point. It speaks the `-json` stream,
//! the plan format and the `http` backend's protocol of OpenTofu 1.10 and Terraform 1.11, and writes everything it really
//! does to a [`ledger`], waiting for each entry to be kept before it goes on.
//!
//! Commands: `version`, `init`, `workspace show|list|select|new`, `plan`, `show` of a plan, `apply`, `state pull`, `force-unlock`, with the flags a
//! runner uses (`-chdir`, `-json`, `-out`, `-destroy`, `-refresh-only`, `-detailed-exitcode`, `-lock`, `-lock-timeout`,
//! `-backend-config`, `-auto-approve`); others are accepted and have no effect. A copy with a [`trailer`]
//! plays the tool and version that it names; any other, called as `terraform`, plays Terraform, else OpenTofu.
//!
//! # The script
//!
//! `pawl-script.json` in the work directory; without it the defaults hold. Unknown keys are an error. Everything is optional:
//!
//! ```json
//! {
//!   "name": "run-a",            "ledger": "http://10.88.0.1:4000/ledger",
//!   "state": "http://10.88.0.1:4000/state/a",
//!   "resources": 3,             "apply_ms": 200,           "progress_ms": 10000,
//!   "persist": "end",
//!   "commands": {"plan": [{"sleep_ms": 500}, {"only": [1], "kill_self": 9}, "default", {"print": "after"}]}
//! }
//! ```
//!
//! - `resources`: a number N (`terraform_data.r[0]` to `r[N-1]`), or a list of addresses and of `{"address", "apply_ms", "steps": […]}`.
//!   What a plan does follows from this list and the state: new ones are created, missing ones deleted.
//! - `persist`: `end` writes the state once (a kill before loses it, as with the real tools), `each` after each resource.
//! - `state` stands for a backend block; one in a `*.tf.json` of the work directory wins, and among those an override file.
//!   Without any, the state is `terraform.tfstate` in the work directory, and `init` writes no backend.
//! - `commands`: steps by command, in order. `"default"` is what the command does by itself; if it is not in the list, it
//!   comes last. A step with `"only": [n, …]` counts for the n-th execution of this command only (counted from 1 in the
//!   ledger, by `name`, across pods).
//! - `steps` of a resource come between its `apply_start` and its creation.
//!
//! | step | what it does |
//! |---|---|
//! | `"default"` | what the command does by itself |
//! | `{"sleep_ms": 100}` | waits; in a resource an interrupt does not shorten it |
//! | `{"print": "…"}`, `{"print_err": "…"}` | prints a raw line |
//! | `{"diagnostic": {"summary", "detail", "address", "file", "line"}}` | an error ends the command (1) or fails the resource |
//! | `{"spawn": {"seconds", "daemon", "hold_stdout", "ignore_signals", "beat_ms"}}` | leaves a process in the background |
//! | `{"provider": {…as spawn…}}` | waits for a child, in a resource with a heartbeat every `progress_ms`; if that is killed: `Plugin did not respond` |
//! | `{"ask": "…"}` | asks on stdout, waits for a line on stdin, fails without one; marks `terminal` or `no terminal` in the ledger |
//! | `{"exec": ["sh", "-c", "…"]}` | runs a program |
//! | `{"allocate_mb": 100}`, `{"flood_mb": 10}`, `{"line_mb": 10}` | takes memory; prints lines; prints one line |
//! | `{"hold_lock": true}` | takes the state's lock and never ends |
//! | `"hang"` | never ends, whatever the first interrupt says |
//! | `{"mark": "…"}` | a line in the ledger |
//! | `{"kill_self": 9}` | dies of a signal |
//!
//! # Signals
//!
//! The first SIGINT or SIGTERM: the resource under way is finished, state written, lock released, exit 1. The second: exit 1
//! at once, nothing written, [`FORCED_EXIT`](ledger::what::FORCED_EXIT) in the ledger.
//!
//! # Differences from the real tools
//!
//! Resources are applied one by one in the order of their addresses (deletions of resources no longer wanted last); requests
//! to a backend are not retried; the plan file is JSON (with random bytes in it, never the same twice); configuration in HCL
//! is not read.

mod address;
mod apply;
mod args;
mod backend;
mod backend_config;
pub mod http;
mod init;
mod installed;
mod plan;
mod plan_command;
mod record;
pub mod script;
mod script_step;
mod show;
mod signals;
mod steps;
#[cfg(test)]
mod tests;
mod tool_state;
mod view;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::json;

use self::args::Args;
use self::backend::{Backend, LockFailure};
use self::backend_config::Config;
use self::installed::Installed;
pub use self::installed::trailer;
use self::record::Recorder;
use self::script::{Action, Diagnostic, SCRIPT_FILE, Script};
use self::signals::Signals;
use self::steps::Scope;
use self::view::{Flavor, View, error_line};
use ledger::what;

/// The version of a tool that nobody gave one.
const VERSION: &str = "1.10.6";

/// One execution of the tool.
#[derive(Debug)]
struct Tool {
    args: Args,
    script: Script,
    view: View,
    signals: Signals,
    recorder: Recorder,
    /// Which execution of this command of this script it is, from 1.
    nth: u64,
    /// The work directory.
    dir: PathBuf,
    /// Where `init` leaves things.
    data_dir: PathBuf,
}

/// Runs the tool with its program name and arguments; the result is the exit code.
pub fn run(arguments: impl IntoIterator<Item = String>) -> i32 {
    let mut arguments = arguments.into_iter();
    let program = arguments.next().unwrap_or_default();
    let arguments: Vec<String> = arguments.collect();
    let result = match arguments.as_slice() {
        [first, detail] if first == steps::BACKGROUND => steps::live_in_background(detail).map(|()| 0),
        _ => Tool::start(&program, Args::parse(arguments.iter().cloned()), &arguments).and_then(|tool| tool.command()),
    };
    result.unwrap_or_else(|error| {
        // Not a diagnostic: what fails here is the fake, not what it plays.
        error_line(&format!("scripted-tool: {error:#}"));
        70
    })
}

impl Tool {
    fn start(program: &str, args: Args, arguments: &[String]) -> anyhow::Result<Self> {
        if let Some(dir) = args.value("chdir") {
            std::env::set_current_dir(dir).with_context(|| format!("failed to change to `{dir}`"))?;
        }
        let dir = std::env::current_dir().context("no work directory")?;
        let (script, broken) = match Script::load(&dir) {
            Ok(script) => (script, None),
            Err(error) => (Script::default(), Some(error)),
        };
        let called = Path::new(program).file_name().unwrap_or_default().to_string_lossy();
        let installed = Installed::own();
        let flavor = match installed.as_ref().map(|installed| installed.tool.as_str()) {
            Some("terragrunt") => Flavor::Terragrunt,
            Some("terraform") => Flavor::Terraform,
            None if called.starts_with("terraform") => Flavor::Terraform,
            _ => Flavor::Tofu,
        };
        let version = installed.map(|installed| installed.version);
        let view =
            View { flavor, version: version.unwrap_or_else(|| VERSION.to_owned()), json: args.has("json"), dir: dir.clone() };
        if let Some(error) = broken {
            let file = Some(SCRIPT_FILE.to_owned());
            view.diagnostic(&Diagnostic { file, line: Some(1), ..Diagnostic::from(error) });
            std::process::exit(1);
        }
        let recorder = Recorder::new(script.ledger.as_deref(), &script.name, &args.command);
        let signals = Signals::catch(recorder.clone(), view.clone())?;
        let data_dir = std::env::var_os("TF_DATA_DIR").map_or_else(|| dir.join(".terraform"), PathBuf::from);
        let mut tool = Self { args, script, view, signals, recorder, nth: 1, dir, data_dir };
        tool.nth = tool.note_start(arguments)?;
        Ok(tool)
    }

    fn note_start(&self, arguments: &[String]) -> anyhow::Result<u64> {
        let detail = json!({"arguments": arguments, "directory": self.dir});
        Ok(self.recorder.note(what::COMMAND_START, detail)?.nth)
    }

    fn note_end(&self, code: i32) -> anyhow::Result<()> {
        let detail = json!({"exit": code, "signals": self.signals.received()});
        self.recorder.note(what::COMMAND_END, detail).map(drop)
    }

    /// Runs the command with the script's steps around it.
    fn command(&self) -> anyhow::Result<i32> {
        let streams = ["init", "plan", "apply"].contains(&self.args.command.as_str());
        if streams {
            self.view.hello();
        }
        let code = self.steps().unwrap_or_else(|failure| {
            self.view.diagnostic(&failure);
            1
        });
        self.note_end(code)?;
        Ok(code)
    }

    fn steps(&self) -> Result<i32, Diagnostic> {
        let steps = self.script.commands.get(&self.args.command).map(Vec::as_slice).unwrap_or_default();
        let mut code = None;
        for action in steps.iter().filter_map(|step| step.action(self.nth)) {
            if *action == Action::Default {
                code = Some(self.default_action()?);
            } else {
                self.step(action, Scope::Command)?;
            }
        }
        code.map_or_else(|| self.default_action(), Ok)
    }

    fn default_action(&self) -> Result<i32, Diagnostic> {
        if self.signals.interrupted() {
            return Err(Diagnostic::error("execution halted", ""));
        }
        match self.args.command.as_str() {
            "version" => init::version(self),
            "" if self.args.has("version") => init::version(self),
            "init" => init::init(self),
            "workspace" => init::workspace(self),
            "plan" => plan_command::plan(self),
            "show" => show::show(self),
            "state" => show::pull(self),
            "apply" => apply::apply(self),
            "force-unlock" => self.force_unlock(),
            other => Err(Diagnostic::error(&format!("the command \"{other}\" is not played by this tool"), "")),
        }
    }

    fn workspace(&self) -> String {
        let chosen = || std::fs::read_to_string(self.data_dir.join("environment")).ok();
        let name = std::env::var("TF_WORKSPACE").ok().or_else(chosen).unwrap_or_default();
        if name.trim().is_empty() { "default".to_owned() } else { name.trim().to_owned() }
    }

    /// The backend that `init` configured; an error if there should be one and `init` never ran.
    fn initialized(&self) -> Result<Option<Config>, Diagnostic> {
        match std::fs::read_to_string(self.data_dir.join("terraform.tfstate")) {
            Ok(text) => Ok(Some(Config::read_initialized(&text)?)),
            Err(_) if Config::find(&self.dir, self.script.state.as_deref(), &[])?.is_none() => Ok(None),
            Err(_) => {
                let command = self.view.command();
                let summary = format!("Backend initialization required, please run \"{command} init\"");
                Err(Diagnostic::error(&summary, "Reason: Initial configuration of the requested backend"))
            }
        }
    }

    fn backend(&self) -> Result<Backend, Diagnostic> {
        let config = self.initialized()?;
        Ok(Backend::open(config.as_ref(), &self.dir, &self.workspace())?)
    }

    /// Takes the lock, for as long as `-lock-timeout` says.
    fn lock(&self, backend: &Backend, operation: &str) -> Result<Option<String>, Diagnostic> {
        if self.args.value("lock") == Some("false") {
            return Ok(None);
        }
        let end = Instant::now() + self.args.value("lock-timeout").map_or(Duration::ZERO, duration);
        loop {
            match backend.lock(operation, &self.view) {
                Ok(id) => return Ok(id),
                Err(LockFailure::Held(..)) if Instant::now() < end && !self.signals.interrupted() => {
                    self.signals.sleep(Duration::from_millis(200));
                }
                Err(failure) => return Err(failure.diagnostic(self.view.name())),
            }
        }
    }

    /// `force-unlock -force ID`, as OpenTofu does it: that lock and no other.
    fn force_unlock(&self) -> Result<i32, Diagnostic> {
        let id = self.args.words.last().map(String::as_str);
        self.unlock(&self.backend()?, id)?;
        Ok(0)
    }

    fn unlock(&self, backend: &Backend, id: Option<&str>) -> Result<(), Diagnostic> {
        let Some(id) = id else { return Ok(()) };
        backend.unlock(id, &self.view.version).map_err(|error| {
            let detail = format!(
                "Error message: {error:#}\n\n{} acquires a lock when accessing your state to prevent others\nrunning it simultaneously.",
                self.view.name()
            );
            Diagnostic::error("Error releasing the state lock", &detail)
        })
    }
}

/// A duration in Go's words, with one unit.
fn duration(text: &str) -> Duration {
    let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
    let number = digits.parse().unwrap_or(0);
    match &text[digits.len()..] {
        "ms" => Duration::from_millis(number),
        "m" => Duration::from_secs(number * 60),
        "h" => Duration::from_secs(number * 3600),
        _ => Duration::from_secs(number),
    }
}
