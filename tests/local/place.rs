//! A simulated user's machine: a home, tools in PATH, and the folder of a stack.

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use anyhow::{Context, Result, ensure};
use compare::cases::copy;
use crds::{Failure, Phase, RunResult, TerraformRun, TerraformRunStatus};
use harness::cluster::{
    cache,
    gobuild::{TERRAGRUNT, Toolset},
};
use serde_json::Value;
use tempfile::TempDir;

use crate::terminal::{Terminal, spawning};

type Body = Box<dyn FnOnce(&Lab) -> Result<()> + Send>;

/// The result of a program: its exit code and its output.
pub(crate) trait End {
    /// The output, if the exit code is `code`.
    fn with(self, code: i32) -> Result<String>;
}

impl End for (i32, String) {
    fn with(self, code: i32) -> Result<String> {
        let (ended, text) = self;
        ensure!(
            ended == code,
            "it ended with {ended} in place of {code}: {text}"
        );
        Ok(text)
    }
}

pub(crate) struct Test {
    pub(crate) name: String,
    pub(crate) body: Body,
}

impl Test {
    pub(crate) fn new(
        name: impl Into<String>,
        body: impl FnOnce(&Lab) -> Result<()> + Send + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            body: Box::new(body),
        }
    }
}

/// Shared by all tests: the tools, the agent, and a provider mirror.
pub(crate) struct Lab {
    tools: Toolset,
    terragrunt: Option<Toolset>,
    agent: PathBuf,
    shared: TempDir,
    terraform: bool,
}

impl Lab {
    /// The tools, or the reason why they are missing. With `CI=true` nothing is skipped: missing tools are built.
    pub(crate) fn open() -> Result<Result<Self, &'static str>> {
        let (needed, all) = (
            ["tofu", "terraform-provider-time"],
            ["tofu", "terraform-provider-time", "terraform"],
        );
        let tools = Toolset::of_suite(&all)?;
        let terraform = tools.is_some();
        let Some(tools) =
            tools.map_or_else(|| Toolset::cached(&needed), |tools| Ok(Some(tools)))?
        else {
            return Ok(Err(
                "OpenTofu is not built yet; `cargo run --release --bin cluster -- tools` builds it",
            ));
        };
        let terragrunt = Toolset::of_suite(TERRAGRUNT)?;
        // Next to the directory of test programs.
        let agent = env::current_exe()?
            .ancestors()
            .nth(2)
            .context("no target directory")?
            .join("runner-agent");
        ensure!(
            agent.is_file(),
            "{} is not there; run `cargo build --release --workspace`",
            agent.display()
        );
        let shared = tempfile::tempdir()?;
        compare::lab::mirror(Some(&tools), shared.path(), &shared.path().join("tofurc"))?;
        Ok(Ok(Self {
            tools,
            terragrunt,
            agent,
            shared,
            terraform,
        }))
    }

    /// The available tools.
    pub(crate) fn tools(&self) -> Vec<&'static str> {
        if self.terraform {
            vec!["tofu", "terraform"]
        } else {
            vec!["tofu"]
        }
    }

    /// A machine with a tool in its PATH, and a folder with files.
    pub(crate) fn place(&self, tool: &str, files: &[(&str, &str)]) -> Result<Place> {
        let dir = tempfile::tempdir()?;
        for below in ["home", "bin", "stack"] {
            fs::create_dir(dir.path().join(below))?;
        }
        symlink(self.tools.path(tool)?, dir.path().join("bin").join(tool))?;
        symlink(&self.agent, dir.path().join("bin/runner-agent"))?;
        if tool == "terraform" {
            // A tool in PATH does not tell for which tool the code is.
            cache::write(
                &dir.path().join("stack/.terraform-version"),
                self.tools.version(tool)?,
            )?;
        }
        for (name, text) in files {
            cache::write(&dir.path().join("stack").join(name), text)?;
        }
        let (folder, config) = (dir.path().join("stack"), self.shared.path().join("tofurc"));
        Ok(Place {
            dir: Arc::new(dir),
            folder,
            config,
        })
    }

    pub(crate) fn version(&self, tool: &str) -> Result<String> {
        Ok(self.tools.version(tool)?.trim().to_owned())
    }

    /// Adds another tool to the PATH of a machine.
    pub(crate) fn put_on_path(&self, place: &Place, tool: &str) -> Result<()> {
        Ok(symlink(
            self.tools.path(tool)?,
            place.dir.path().join("bin").join(tool),
        )?)
    }

    /// A machine with a tool, and a stack of the fixtures in its folder.
    pub(crate) fn fixture(&self, tool: &str, stack: &str) -> Result<Place> {
        let place = self.place(tool, &[])?;
        copy(&fixtures().join(stack), &place.stack())?;
        // Pawl builds Terraform only up to the last version with a permissive licence.
        let main = place.stack().join("main.tf");
        let text = fs::read_to_string(&main)?.replace(
            "required_version = \">= 1.6\"",
            "required_version = \">= 1.5\"",
        );
        fs::write(&main, text)?;
        Ok(place)
    }

    pub(crate) fn has_terragrunt(&self) -> bool {
        self.terragrunt.is_some()
    }

    /// A machine with Terragrunt and OpenTofu, and a folder with files.
    pub(crate) fn with_terragrunt(&self, files: &[(&str, &str)]) -> Result<Place> {
        let place = self.place("tofu", files)?;
        let terragrunt = self
            .terragrunt
            .as_ref()
            .context("Terragrunt is not built")?;
        symlink(
            terragrunt.path("terragrunt")?,
            place.dir.path().join("bin/terragrunt"),
        )?;
        Ok(place)
    }

    /// The same, with units of the fixtures in its folder.
    pub(crate) fn units(&self, name: &str) -> Result<Place> {
        let place = self.with_terragrunt(&[])?;
        copy(
            &fixtures().with_file_name("terragrunt").join(name),
            &place.stack(),
        )?;
        Ok(place)
    }

    /// Version and program of the provider that is built for the tests.
    pub(crate) fn provider(&self) -> Result<(&str, &Path)> {
        let name = "terraform-provider-time";
        Ok((self.tools.version(name)?, self.tools.path(name)?))
    }

    pub(crate) fn agent(&self) -> &Path {
        &self.agent
    }
}

/// The beginning of a `pawl.yaml`.
pub(crate) const HEAD: &str = "apiVersion: pawl.run/v1alpha1\nkind: TerraformRun\nspec:\n";
/// An OpenTofu that reads `required_version` only from its own files, has ephemeral variables, and ends a destroy that keeps objects with an
/// error. CI does not build it just for this, so its tests run only if it is built already (design 0019).
pub(crate) const NEWER: &str = "tofu-1.12.6";

/// The stacks that the tests run.
pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/stacks")
}

/// A simulated user's machine.
pub(crate) struct Place {
    dir: Arc<TempDir>,
    folder: PathBuf,
    config: PathBuf,
}

impl Place {
    pub(crate) fn stack(&self) -> PathBuf {
        self.folder.clone()
    }

    /// The same machine, with a folder below the stack's as its stack.
    pub(crate) fn unit(&self, name: &str) -> Self {
        Self {
            dir: self.dir.clone(),
            folder: self.folder.join(name),
            config: self.config.clone(),
        }
    }

    /// Writes a file in the stack's folder.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<()> {
        cache::write(&self.stack().join(name), text)
    }

    /// Replaces a part of `main.tf`.
    pub(crate) fn correct(&self, from: &str, to: &str) -> Result<()> {
        let main = fs::read_to_string(self.stack().join("main.tf"))?;
        self.write("main.tf", &main.replace(from, to))
    }

    /// Replaces a tool in PATH.
    pub(crate) fn replace(&self, tool: &str, program: &Path) -> Result<()> {
        let binary = self.dir.path().join("bin").join(tool);
        fs::remove_file(&binary)?;
        Ok(symlink(program, binary)?)
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    /// A program of this machine, in the stack's folder.
    pub(crate) fn program(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir(self.stack())
            .env_clear()
            .env("HOME", self.home())
            .env(
                "PATH",
                format!("{}:/usr/bin:/bin", self.dir.path().join("bin").display()),
            )
            .env("TF_CLI_CONFIG_FILE", &self.config)
            .env("CHECKPOINT_DISABLE", "1")
            .env("USER", "alice")
            .env("TERM", "xterm-256color")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// `runner-agent local` in the stack's folder.
    pub(crate) fn agent(&self, arguments: &[&str]) -> Command {
        let agent = self
            .dir
            .path()
            .join("bin/runner-agent")
            .display()
            .to_string();
        self.program(&agent, &[&["local"], arguments].concat())
    }

    /// Runs it at a terminal.
    pub(crate) fn at_terminal(&self, arguments: &[&str]) -> Result<Terminal> {
        Terminal::start(&self.agent(arguments))
    }

    /// Runs it without a terminal; returns exit code and output.
    pub(crate) fn run(&self, arguments: &[&str]) -> Result<(i32, String)> {
        ended(&mut self.agent(arguments))
    }

    /// Like [`Self::run`], with this exit code.
    pub(crate) fn ends(&self, code: i32, arguments: &[&str]) -> Result<String> {
        self.run(arguments)?.with(code)
    }

    /// Returns the output of an ended program. Fails unless exit code and record have this result.
    pub(crate) fn came_to(&self, result: RunResult, ended: (i32, String)) -> Result<String> {
        let text = ended.with(match result {
            RunResult::Failed => 1,
            RunResult::Rejected | RunResult::Canceled => 3,
            _ => 0,
        })?;
        let record = self.record()?;
        ensure!(
            record.result == Some(result),
            "{:?} in place of {result}: {text}",
            record.result
        );
        Ok(text)
    }

    /// Runs it; exit code and record must have this result.
    pub(crate) fn comes_to(&self, result: RunResult, arguments: &[&str]) -> Result<String> {
        self.came_to(result, self.run(arguments)?)
    }

    /// Approves the plan that waits by the printed command; it must be applied.
    pub(crate) fn approve(&self, printed: &str) -> Result<String> {
        self.came_to(RunResult::Applied, self.paste(&approval(printed)?)?)
    }

    /// Like [`Self::came_to`], for a program that left a waiting plan.
    pub(crate) fn waits(&self, ended: (i32, String)) -> Result<String> {
        let text = ended.with(2)?;
        ensure!(
            self.record()?.phase == Some(Phase::AwaitingApproval),
            "it does not wait: {text}"
        );
        Ok(text)
    }

    /// Runs a line in a shell, as a user who pastes it.
    pub(crate) fn paste(&self, line: &str) -> Result<(i32, String)> {
        ended(&mut self.program("/bin/sh", &["-c", line]))
    }

    /// Directories of runs, oldest first.
    fn runs(&self) -> Result<Vec<PathBuf>> {
        let mut dirs: Vec<_> = fs::read_dir(self.stack().join(".pawl/runs"))?
            .flatten()
            .map(|entry| entry.path())
            .collect();
        dirs.sort();
        Ok(dirs)
    }

    /// Records of runs, oldest first.
    pub(crate) fn records(&self) -> Result<Vec<TerraformRunStatus>> {
        let status = |dir: PathBuf| -> Result<TerraformRunStatus> {
            let run: TerraformRun = serde_json::from_slice(&fs::read(dir.join("run.json"))?)?;
            Ok(run.status.unwrap_or_default())
        };
        self.runs()?.into_iter().map(status).collect()
    }

    /// The newest record.
    pub(crate) fn record(&self) -> Result<TerraformRunStatus> {
        self.records()?.pop().context("no record")
    }

    /// The failure in the newest record.
    pub(crate) fn failure(&self) -> Result<Failure> {
        self.record()?.failure.context("no failure")
    }

    /// The log of the newest run.
    pub(crate) fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(
            self.runs()?.pop().context("no run")?.join("log"),
        )?)
    }

    /// Number of resources in the folder's state; `None` without a state.
    pub(crate) fn resources(&self) -> Result<Option<usize>> {
        let Ok(text) = fs::read(self.stack().join("terraform.tfstate")) else {
            return Ok(None);
        };
        let state: Value = serde_json::from_slice(&text)?;
        Ok(state["resources"].as_array().map(Vec::len))
    }
}

/// Runs a program; returns exit code and output.
pub(crate) fn ended(command: &mut Command) -> Result<(i32, String)> {
    let guard = spawning();
    let child = command.spawn()?;
    drop(guard);
    let output = child.wait_with_output()?;
    let text = [output.stdout, output.stderr]
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .concat();
    Ok((
        output
            .status
            .code()
            .with_context(|| format!("ended by a signal: {text}"))?,
        text,
    ))
}

/// A runtime for servers of the test's own process.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?)
}

/// Fails unless `text` contains `part`.
pub(crate) fn holds(text: &str, part: &str) -> Result<()> {
    ensure!(text.contains(part), "`{part}` is missing in:\n{text}");
    Ok(())
}

/// The command that approves the waiting plan.
pub(crate) fn approval(text: &str) -> Result<String> {
    let line = text
        .lines()
        .map(str::trim)
        .find(|line| line.starts_with("runner-agent ") && line.contains(" --approve sha256:"));
    line.map(str::to_owned)
        .with_context(|| format!("no line that approves in:\n{text}"))
}
