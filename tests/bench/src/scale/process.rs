//! A process of Pawl started here.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

use crate::usage::{self, Memory, Work};
use harness::cluster::command::tail;

/// Time limit for a process to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(30);
/// A process; drop kills it.
#[derive(Debug)]
pub(crate) struct Process {
    name: &'static str,
    child: Child,
    pid: i32,
    log: PathBuf,
}

impl Process {
    /// Starts a program with only these variables and `PATH`; its output is appended to `log`.
    pub(crate) fn start(
        name: &'static str,
        program: &Path,
        arguments: &[String],
        variables: &[(&str, String)],
        log: &Path,
    ) -> Result<Self> {
        let file = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("cannot open {}", log.display()))?;
        let child = Command::new(program)
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {name} ({})", program.display()))?;
        let pid = child
            .id()
            .and_then(|pid| i32::try_from(pid).ok())
            .with_context(|| format!("{name} ended at once"))?;
        Ok(Self {
            name,
            child,
            pid,
            log: log.to_owned(),
        })
    }

    /// Fails with the end of its log if it has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        let Some(status) = self
            .child
            .try_wait()
            .with_context(|| format!("cannot look at {}", self.name))?
        else {
            return Ok(());
        };
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        bail!(
            "{} ended with {status}; the last it said:\n{}",
            self.name,
            tail(&log, 12)
        );
    }

    /// Ends it with SIGTERM, like the kubelet.
    pub(super) async fn stop(mut self) -> Result<()> {
        kill(Pid::from_raw(self.pid), Signal::SIGTERM)
            .with_context(|| format!("cannot end {}", self.name))?;
        let ended = tokio::time::timeout(GRACE, self.child.wait()).await;
        ended
            .with_context(|| format!("{} does not end within {} s", self.name, GRACE.as_secs()))?
            .map(drop)
            .map_err(Into::into)
    }

    pub(crate) fn memory(&self) -> Result<Memory> {
        usage::memory(self.pid)
    }

    pub(crate) fn work(&self) -> Result<Work> {
        usage::work(self.pid)
    }
}
