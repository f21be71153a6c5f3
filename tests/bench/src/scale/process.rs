//! A process of Pawl started here, and its resource usage.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

use harness::cluster::command::tail;

/// Time limit for a process to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(30);
/// Length of the kernel's clock tick for user space, in milliseconds.
const TICK: u64 = 10;

/// A process; drop kills it.
#[derive(Debug)]
pub(super) struct Process {
    name: &'static str,
    child: Child,
    pid: i32,
    log: PathBuf,
}

/// Memory of a process in KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Memory {
    /// Resident pages.
    pub(super) resident: u64,
    /// Peak of the resident pages.
    pub(super) peak: u64,
    /// Resident pages without a file.
    pub(super) own: u64,
}

/// The kernel's accounting of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Work {
    /// Whether it is running or runnable.
    pub(super) runs: bool,
    /// Processor time, including that of its ended children.
    pub(super) cpu: Duration,
}

impl Process {
    /// Starts a program with only these variables and `PATH`; its output is appended to `log`.
    pub(super) fn start(
        name: &'static str,
        program: &Path,
        arguments: &[String],
        variables: &[(&str, String)],
        log: &Path,
    ) -> Result<Self> {
        let file =
            File::options().create(true).append(true).open(log).with_context(|| format!("cannot open {}", log.display()))?;
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
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).with_context(|| format!("{name} ended at once"))?;
        Ok(Self { name, child, pid, log: log.to_owned() })
    }

    /// Fails with the end of its log if it has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        let Some(status) = self.child.try_wait().with_context(|| format!("cannot look at {}", self.name))? else { return Ok(()) };
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        bail!("{} ended with {status}; the last it said:\n{}", self.name, tail(&log, 12));
    }

    /// Ends it with SIGTERM, like the kubelet.
    pub(super) async fn stop(mut self) -> Result<()> {
        kill(Pid::from_raw(self.pid), Signal::SIGTERM).with_context(|| format!("cannot end {}", self.name))?;
        let ended = tokio::time::timeout(GRACE, self.child.wait()).await;
        ended.with_context(|| format!("{} does not end within {} s", self.name, GRACE.as_secs()))?.map(drop).map_err(Into::into)
    }

    pub(super) fn memory(&self) -> Result<Memory> {
        memory(&self.read("status")?).with_context(|| format!("no memory of {} in /proc", self.name))
    }

    pub(super) fn work(&self) -> Result<Work> {
        work(&self.read("stat")?).with_context(|| format!("no times of {} in /proc", self.name))
    }

    fn read(&self, file: &str) -> Result<String> {
        let path = format!("/proc/{}/{file}", self.pid);
        fs::read_to_string(&path).with_context(|| format!("cannot read {path}: {} has ended", self.name))
    }
}

/// Parses `/proc/PID/status`.
fn memory(text: &str) -> Option<Memory> {
    let of = |name: &str| -> Option<u64> {
        let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        rest.split_whitespace().next()?.parse().ok()
    };
    Some(Memory { resident: of("VmRSS")?, peak: of("VmHWM")?, own: of("RssAnon")? })
}

/// Parses `/proc/PID/stat`. The name is in parentheses and may contain any character; the fields after it may not.
fn work(text: &str) -> Option<Work> {
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(11..15)?.iter().map(|ticks| ticks.parse::<u64>().ok()).sum::<Option<u64>>()?;
    Some(Work { runs: *fields.first()? == "R", cpu: Duration::from_millis(ticks * TICK) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_off_the_kernels_words() {
        let text =
            "Name:\tcontroller\nVmPeak:\t  900 kB\nVmHWM:\t  300 kB\nVmRSS:\t  200 kB\nRssAnon:\t  150 kB\nRssFile:\t   50 kB\n";
        assert_eq!(memory(text), Some(Memory { resident: 200, peak: 300, own: 150 }));
        assert_eq!(memory("Name:\tzombie\n"), None);
    }

    #[test]
    fn time_counts_children_that_have_ended_and_a_name_may_hold_anything() {
        let text = "7 (a) R (b) S 1 7 7 0 -1 4194560 500 0 3 0 100 20 3 4 20 0 3 0 12345 1000 200";
        assert_eq!(work(text), Some(Work { runs: false, cpu: Duration::from_millis(1270) }));
        assert!(work(&text.replace(") S", ") R")).unwrap().runs);
        assert_eq!(work("7 (a) S 1"), None);
    }
}
