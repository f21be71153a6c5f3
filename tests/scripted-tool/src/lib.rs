//! A tool that behaves like OpenTofu (or Terraform) on the command line and follows a script.
//!
//! Tests use it where the real tools cannot be stopped, made to fail or killed at an exact point. It implements the `-json` stream, the
//! plan format and the `http` backend's protocol of OpenTofu 1.10 and Terraform 1.11. It records all its effects in a [`ledger`] and waits
//! until each entry is stored before it continues.
//!
//! Commands: `version`, `init`, `plan`, `show` of a plan, `apply` of a plan, `state pull`, `force-unlock`. Supported flags: `-json`,
//! `-out=`, `-destroy`, `-detailed-exitcode`, `-lock-timeout=`; others are accepted without an effect. Tests without exact timing use the
//! real tools. A copy with a [`trailer`] plays the tool and version in it; any other plays Terraform if it is called as `terraform`, else
//! OpenTofu.
//!
//! # The script
//!
//! `pawl-script.json` in the work directory; without it the defaults apply. Unknown keys are an error. All keys are optional:
//!
//! ```json
//! {
//!   "name": "run-a",            "ledger": "http://10.88.0.1:4000/ledger",
//!   "resources": 3,             "apply_ms": 200,           "progress_ms": 10000,
//!   "persist": "end",
//!   "commands": {"plan": [{"sleep_ms": 500}, {"only": [1], "kill_self": 9}, "default", {"print": "after"}]}
//! }
//! ```
//!
//! - `resources`: a number N (`terraform_data.r[0]` to `r[N-1]`), or a list of addresses and of `{"address", "apply_ms", "steps": […]}`.
//!   The plan is the difference of this list and the state: it creates new ones and deletes missing ones.
//! - `lie`: `printed` shows another plan than the plan file has; `format` writes a plan file that the agent cannot read.
//! - `persist`: `end` writes the state once (a kill before loses it, as with the real tools), `each` after each resource.
//! - The state is in the `http` backend of the agent's backend file; without that file, in `terraform.tfstate` of the work directory.
//! - `commands`: steps by command, in order. `"default"` is the command's own behaviour; if it is not in the list, it
//!   comes last. A step with `"only": [n, …]` runs only in the n-th execution of this command (counted from 1 in the
//!   ledger, by `name`, across pods).
//! - `steps` of a resource come between its `apply_start` and its creation.
//!
//! | step | what it does |
//! |---|---|
//! | `"default"` | the command's own behaviour |
//! | `{"sleep_ms": 100}` | waits; in a resource an interrupt does not shorten it |
//! | `{"print": "…"}`, `{"print_err": "…"}` | prints a raw line |
//! | `{"diagnostic": {"summary", "detail", "address", "file", "line"}}` | an error ends the command (1) or fails the resource |
//! | `{"spawn": {"seconds", "daemon", "hold_stdout", "ignore_signals", "beat_ms"}}` | leaves a process in the background |
//! | `{"provider": {…as spawn…}}` | waits for a child, in a resource with a heartbeat every `progress_ms`; if that is killed: `Plugin did not respond` |
//! | `{"ask": "…"}` | asks on stdout, waits for a line on stdin, fails without one; marks `terminal` or `no terminal` in the ledger |
//! | `{"exec": ["sh", "-c", "…"]}` | runs a program |
//! | `{"allocate_mb": 100}`, `{"flood_mb": 10}`, `{"line_mb": 10}` | allocates memory; prints lines; prints one line |
//! | `{"hold_lock": true}` | takes the state's lock and never ends |
//! | `"hang"` | never ends; ignores the first interrupt |
//! | `{"kill_self": 9}` | sends itself a signal |
//!
//! # Signals
//!
//! The first SIGINT or SIGTERM: the present resource is completed, the state written, the lock released, exit 1. The second: exit 1
//! at once, nothing written, [`FORCED_EXIT`](ledger::what::FORCED_EXIT) in the ledger.
//!
//! # Differences from the real tools
//!
//! Resources are applied one by one in the order of their addresses (deletions of resources no longer wanted last); requests
//! to a backend are not retried; the plan file has a member of its own beside the tools' `tfplan`; configuration in HCL is not read.

mod apply;
mod args;
mod backend;
pub mod http;
mod installed;
mod plan;
pub mod plan_file;
mod record;
mod resource;
pub mod script;
mod script_step;
mod signals;
mod steps;
mod tool_state;
mod view;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::json;
use tool_versions::Platform;

use self::args::Args;
pub use self::backend::BACKEND_FILE;
use self::backend::{Backend, Config, LockFailure};
use self::installed::Installed;
pub use self::installed::trailer;
use self::record::Recorder;
use self::script::{Action, Diagnostic, SCRIPT_FILE, Script};
use self::signals::Signals;
use self::steps::Scope;
use self::view::{View, error_line, line};
use ledger::what;

/// The version of a copy without a trailer.
const VERSION: &str = "1.10.6";

/// One execution of the tool.
#[derive(Debug)]
struct Tool {
    args: Args,
    script: Script,
    view: View,
    signals: Signals,
    recorder: Recorder,
    /// Number of this execution of this command of this script, from 1.
    nth: u64,
    /// The work directory.
    dir: PathBuf,
    /// The data directory, which `init` writes.
    data_dir: PathBuf,
}

/// Runs the tool with its program name and arguments; returns the exit code.
pub fn run(arguments: impl IntoIterator<Item = String>) -> i32 {
    let mut arguments = arguments.into_iter();
    let program = arguments.next().unwrap_or_default();
    let arguments: Vec<String> = arguments.collect();
    let result = match arguments.as_slice() {
        [first, detail] if first == steps::BACKGROUND => {
            steps::live_in_background(detail).map(|()| 0)
        }
        _ => Tool::start(&program, &arguments).and_then(|tool| tool.command()),
    };
    result.unwrap_or_else(|error| {
        // Not a diagnostic: this is a failure of the scripted tool itself.
        error_line(&format!("scripted-tool: {error:#}"));
        70
    })
}

impl Tool {
    fn start(program: &str, arguments: &[String]) -> anyhow::Result<Self> {
        let args = Args::parse(arguments.iter().cloned());
        let dir = std::env::current_dir().context("no work directory")?;
        let called = Path::new(program)
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let Installed { tool, version } = Installed::own().unwrap_or_else(|| Installed {
            tool: called,
            version: VERSION.to_owned(),
        });
        let command = if tool.starts_with("terraform") {
            "terraform"
        } else {
            "tofu"
        };
        let view = View {
            command,
            version,
            json: args.has("json"),
            dir: dir.clone(),
        };
        let script = Script::load(&dir).unwrap_or_else(|error| {
            let file = Some(SCRIPT_FILE.to_owned());
            view.diagnostic(&Diagnostic {
                file,
                line: Some(1),
                ..Diagnostic::from(error)
            });
            std::process::exit(1);
        });
        let recorder = Recorder::new(script.ledger.as_deref(), &script.name, &args.command);
        let signals = Signals::catch(recorder.clone(), view.clone())?;
        let data_dir =
            std::env::var_os("TF_DATA_DIR").map_or_else(|| dir.join(".terraform"), PathBuf::from);
        let detail = json!({"arguments": arguments, "directory": dir});
        let nth = recorder.note(what::COMMAND_START, detail)?.nth;
        Ok(Self {
            args,
            script,
            view,
            signals,
            recorder,
            nth,
            dir,
            data_dir,
        })
    }

    /// Runs the command with the script's steps around it.
    fn command(&self) -> anyhow::Result<i32> {
        if ["init", "plan", "apply"].contains(&self.args.command.as_str()) {
            self.view.hello();
        }
        let code = self.steps().unwrap_or_else(|failure| {
            self.view.diagnostic(&failure);
            1
        });
        let detail = json!({"exit": code, "signals": self.signals.received()});
        self.recorder.note(what::COMMAND_END, detail)?;
        Ok(code)
    }

    fn steps(&self) -> Result<i32, Diagnostic> {
        let steps = self
            .script
            .commands
            .get(&self.args.command)
            .map(Vec::as_slice)
            .unwrap_or_default();
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
        let word = self.args.words.first().map_or("", String::as_str);
        match (self.args.command.as_str(), word) {
            ("version", _) => self.version(),
            ("", _) if self.args.has("version") => self.version(),
            ("init", _) => self.init()?,
            ("plan", _) => return plan::plan(self),
            ("show", _) => return plan::show(self),
            ("apply", _) => return apply::apply(self),
            ("state", "pull") => {
                let state = self.backend()?.read()?;
                Some(state)
                    .filter(|state| !state.is_null())
                    .iter()
                    .for_each(|state| line(&state.to_string()));
            }
            // Like OpenTofu: exactly that lock.
            ("force-unlock", _) => {
                self.unlock(&self.backend()?, self.args.words.last().map(String::as_str))?;
            }
            (command, word) => {
                return Err(Diagnostic::error(
                    &format!("the command \"{command} {word}\" is not played by this tool"),
                    "",
                ));
            }
        }
        Ok(0)
    }

    fn version(&self) {
        let version = &self.view.version;
        if self.args.has("json") {
            // OpenTofu uses the other tool's name for this field.
            line(
                &json!({"terraform_version": version, "platform": Platform::here().to_string()})
                    .to_string(),
            );
        } else {
            line(&format!(
                "{} v{version}\non {}",
                self.view.name(),
                Platform::here()
            ));
        }
    }

    fn init(&self) -> Result<(), Diagnostic> {
        self.view
            .event("Initializing the backend...", "output", json!({}));
        if let Some(config) = Config::find(&self.dir)? {
            config.initialize(&self.data_dir)?;
            let read = self.backend()?.read();
            read.map_err(|error| {
                Diagnostic::error(&format!("Error refreshing state: {error:#}"), "")
            })?;
        }
        self.view.event(
            &format!("{} has been successfully initialized!", self.view.name()),
            "output",
            json!({}),
        );
        Ok(())
    }

    /// The backend that `init` configured. Fails if a backend requires `init` and it never ran.
    fn initialized(&self) -> Result<Option<Config>, Diagnostic> {
        let config = Config::initialized(&self.data_dir)?;
        if config.is_none() && Config::find(&self.dir)?.is_some() {
            let summary = format!(
                "Backend initialization required, please run \"{} init\"",
                self.view.command
            );
            return Err(Diagnostic::error(
                &summary,
                "Reason: Initial configuration of the requested backend",
            ));
        }
        Ok(config)
    }

    fn backend(&self) -> Result<Backend, Diagnostic> {
        Ok(Backend::open(self.initialized()?, &self.dir))
    }

    /// Takes the lock; retries until `-lock-timeout` expires.
    fn lock(&self, backend: &Backend, operation: &str) -> Result<Option<String>, Diagnostic> {
        let end = Instant::now()
            + self
                .args
                .value("lock-timeout")
                .map_or(Duration::ZERO, duration);
        loop {
            match backend.lock(operation, &self.view) {
                Ok(id) => return Ok(id),
                Err(LockFailure::Held(..))
                    if Instant::now() < end && !self.signals.interrupted() =>
                {
                    self.signals.sleep(Duration::from_millis(200));
                }
                Err(failure) => return Err(failure.diagnostic(self.view.name())),
            }
        }
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

/// Parses a Go duration with one unit: milliseconds, seconds or minutes.
fn duration(text: &str) -> Duration {
    let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
    let number = digits.parse().unwrap_or(0);
    match &text[digits.len()..] {
        "ms" => Duration::from_millis(number),
        "m" => Duration::from_secs(number * 60),
        _ => Duration::from_secs(number),
    }
}
