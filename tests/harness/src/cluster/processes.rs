//! Background processes of a cluster: started, recorded, and ended by that record only.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::cache;
use super::command::tail;

/// Possible names of our processes. A process is matched by name *and* state directory, so that an editor or a pager with an open file of
/// the cluster is never ended.
const PROGRAMS: &[&str] = &[
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "coredns",
    "containerd",
    "containerd-shim-runc-v2",
    "nsenter",
];

/// A started process. The start time distinguishes it from a later process with the same id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Component name, such as `kubelet`.
    pub name: String,
    pub pid: i32,
    /// Start time, in kernel ticks since boot.
    pub started: u64,
}

/// The processes of the cluster in one state directory.
#[derive(Clone, Debug)]
pub struct Processes {
    state: PathBuf,
    netns: Option<PathBuf>,
}

impl Processes {
    /// The processes below `state`. New ones start in the network namespace `netns`, if given.
    pub fn new(state: &Path, netns: Option<PathBuf>) -> Self {
        Self {
            state: state.to_owned(),
            netns,
        }
    }

    /// Starts a background process with its output in `log/NAME.log`. An argument must contain the state directory, by which
    /// [`Self::living`] finds the process.
    pub fn spawn(&self, name: &str, program: &Path, args: &[String]) -> Result<Record> {
        let log_path = self.log(name);
        cache::write(&log_path, "")?;
        let log = File::options()
            .append(true)
            .open(&log_path)
            .context("cannot open a log file")?;
        let mut command = match &self.netns {
            // `nsenter` enters the network namespace and then executes the program: same process id, same mounts.
            Some(netns) => {
                let mut command = Command::new("nsenter");
                command
                    .arg(format!("--net={}", netns.display()))
                    .arg("--")
                    .arg(program);
                command
            }
            None => Command::new(program),
        };
        let child = command
            .args(args)
            .current_dir(&self.state)
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("cannot share a log file")?)
            .stderr(log)
            // Keeps Ctrl-C of the terminal from the cluster's processes.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {name} ({})", program.display()))?;
        let pid = i32::try_from(child.id()).context("a process id is out of range")?;
        let stat = Stat::read(pid)
            .with_context(|| format!("{name} ended at once; see {}", log_path.display()))?;
        let record = Record {
            name: name.to_owned(),
            pid,
            started: stat.started,
        };
        cache::write(
            &self.state.join(format!("run/{name}.json")),
            serde_json::to_vec(&record)?,
        )?;
        Ok(record)
    }

    pub fn log(&self, name: &str) -> PathBuf {
        self.state.join(format!("log/{name}.log"))
    }

    /// Fails with the end of the log if the process has ended.
    pub fn check(&self, record: &Record) -> Result<()> {
        if record.is_alive() {
            return Ok(());
        }
        let log = fs::read_to_string(self.log(&record.name)).unwrap_or_default();
        bail!(
            "{} has ended; the last lines of {}:\n{}",
            record.name,
            self.log(&record.name).display(),
            tail(&log, 12)
        );
    }

    /// All recorded processes, living or not.
    pub fn recorded(&self) -> Vec<Record> {
        let Ok(entries) = fs::read_dir(self.state.join("run")) else {
            return Vec::new();
        };
        let mut records: Vec<Record> = entries
            .flatten()
            .filter_map(|entry| serde_json::from_slice(&fs::read(entry.path()).ok()?).ok())
            .collect();
        records.sort_by_key(|record| record.started);
        records
    }

    /// All living processes of this state directory, including the shims of containerd, and processes whose record was never written
    /// because their starter was killed.
    pub fn living(&self) -> Vec<Record> {
        let Ok(entries) = fs::read_dir("/proc") else {
            return Vec::new();
        };
        entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter_map(|pid| self.identify(pid))
            .filter(Record::is_alive)
            .collect()
    }

    fn identify(&self, pid: i32) -> Option<Record> {
        let stat = Stat::read(pid)?;
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let mut args = line.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        let program = args.next()?;
        let name = Path::new(program.as_ref())
            .file_name()?
            .to_str()?
            .to_owned();
        let below = format!("{}/", self.state.display());
        let ours = PROGRAMS.contains(&name.as_str()) && args.any(|arg| arg.contains(&below));
        ours.then_some(Record {
            name,
            pid,
            started: stat.started,
        })
    }

    /// Ends all living processes of that name: SIGTERM, wait, SIGKILL.
    pub fn end(&self, name: &str, grace: Duration) -> Result<()> {
        let records: Vec<Record> = self
            .living()
            .into_iter()
            .filter(|record| record.name == name)
            .collect();
        for record in &records {
            record.signal(Signal::SIGTERM)?;
        }
        for record in &records {
            if !record.wait_end(grace) {
                record.signal(Signal::SIGKILL)?;
                if !record.wait_end(Duration::from_secs(10)) {
                    bail!(
                        "{name} (process {}) does not end; end it by hand and try again",
                        record.pid
                    );
                }
            }
        }
        cache::remove(&self.state.join(format!("run/{name}.json")))
    }
}

impl Record {
    /// Whether this process still runs.
    pub fn is_alive(&self) -> bool {
        // A child stays a zombie until it is reaped. Fails for processes that are not children.
        let _ = waitpid(Pid::from_raw(self.pid), Some(WaitPidFlag::WNOHANG));
        Stat::read(self.pid).is_some_and(|stat| stat.started == self.started && !stat.ended)
    }

    /// Sends a signal, if the recorded process still runs.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        if !self.is_alive() {
            return Ok(());
        }
        match kill(Pid::from_raw(self.pid), signal) {
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(error) => Err(error)
                .with_context(|| format!("cannot end {} (process {})", self.name, self.pid)),
        }
    }

    /// Waits until the process has ended. Returns false after `limit`.
    pub fn wait_end(&self, limit: Duration) -> bool {
        let started = Instant::now();
        while self.is_alive() {
            if started.elapsed() > limit {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    }
}

/// Fields of `/proc/PID/stat`.
struct Stat {
    started: u64,
    ended: bool,
}

impl Stat {
    fn read(pid: i32) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name is in parentheses and may contain any character; the fields after it may not.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        Some(Self {
            started: fields.get(19)?.parse().ok()?,
            ended: matches!(*fields.first()?, "Z" | "X"),
        })
    }
}

/// Whether the process that wrote this record is still alive.
pub fn owner_alive(text: &str) -> bool {
    serde_json::from_str::<Record>(text).is_ok_and(|record| record.is_alive())
}

/// This process, as a record for [`owner_alive`].
pub fn this_process() -> Result<Record> {
    let pid = i32::try_from(std::process::id()).context("a process id is out of range")?;
    let stat = Stat::read(pid).context("cannot read this process's own entry in /proc")?;
    Ok(Record {
        name: "owner".to_owned(),
        pid,
        started: stat.started,
    })
}
