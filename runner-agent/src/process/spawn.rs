//! Starts a command and runs it to its end.

use std::{
    collections::HashSet,
    ffi::OsString,
    os::{fd::OwnedFd, unix::process::ExitStatusExt},
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::{Child, ChildStderr, ChildStdout},
    time::{Instant, interval, sleep_until},
};

use super::{
    confine::{Bounds, Confined},
    dispositions,
    interrupt::{Children, Role, Tracked},
    output::Lines,
    session,
    stream::stream,
    tree::Executable,
};

/// Time to read output after a command's end. A daemon that inherited the pipe does not delay the run longer.
pub(super) const DRAIN: Duration = Duration::from_secs(5);
/// The same after a command was asked to stop, since the rest of its output does not matter.
const DRAIN_TOLD: Duration = Duration::from_millis(500);
/// Interval at which new children of an interrupted command are looked for.
const LOOK: Duration = Duration::from_millis(200);

/// A command to run. Its environment is exactly `env`.
#[derive(Clone, Debug, Default)]
pub struct Command {
    pub program: PathBuf,
    pub args: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
    pub dir: PathBuf,
    /// The process that is the tool.
    pub role: Role,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Exit code; 128 plus the signal's number if a signal ended it.
    pub code: i32,
    pub signal: Option<i32>,
    /// Whether the attempt was being stopped.
    pub told: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("not started: the attempt is being stopped")]
    Stopped,
    #[error("could not be started: {0}")]
    Spawn(std::io::Error),
    #[error("could not be waited for: {0}")]
    Wait(std::io::Error),
}

/// The stream of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Out,
    Err,
}

/// The stop level at which a command still starts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InSpite {
    None,
    /// Starts although the attempt is being stopped.
    Stop,
    /// Starts even after running commands were killed.
    Kill,
}

impl Children {
    /// Confines all later commands. Only the first call has an effect.
    ///
    /// # Errors
    /// The kernel does not support it, or a read-only directory does not exist. Commands then start unconfined, but under the filter of
    /// system calls if the kernel has filters.
    pub fn confine(&self, bounds: &Bounds) -> std::io::Result<()> {
        if self.is_confined() {
            return Ok(());
        }
        let (confined, result) = match Confined::start(bounds) {
            Ok(confined) => (Ok(confined), Ok(())),
            Err(error) => (Confined::filtered(), Err(error)),
        };
        if let Ok(confined) = confined {
            let _ = self.confined.set(confined);
        }
        result
    }

    /// Whether commands start with fewer rights to files than the agent.
    pub fn is_confined(&self) -> bool {
        self.confined
            .get()
            .is_some_and(|confined| confined.by_landlock)
    }

    /// Whether tokio waits for this process.
    pub fn is_tracked(&self, pid: i32) -> bool {
        self.table().tracked.contains_key(&pid)
    }

    pub(super) fn running(&self) -> Vec<(i32, Role)> {
        self.table()
            .tracked
            .iter()
            .map(|(pid, tracked)| (*pid, tracked.role.clone()))
            .collect()
    }

    /// Starts a command. Its output goes to `out`, or to the child's streams.
    fn spawn(
        &self,
        command: &Command,
        out: Option<OwnedFd>,
        spite: InSpite,
    ) -> Result<(Child, i32), RunError> {
        dispositions::restore();
        let own = || stream(&command.role).map_err(RunError::Spawn);
        let (out, out_end) = match out {
            Some(end) => (None, end),
            None => own().map(|(out, end)| (Some(std::process::ChildStdout::from(out)), end))?,
        };
        let out = out.map(ChildStdout::from_std).transpose();
        let (err, err_end) = own()?;
        let err = ChildStderr::from_std(std::process::ChildStderr::from(err));
        let (out, err) = (out.map_err(RunError::Spawn)?, err.map_err(RunError::Spawn)?);
        let mut tokio_command;
        if self.apart {
            tokio_command = session::command();
            tokio_command.arg(&command.program);
        } else {
            tokio_command = tokio::process::Command::new(&command.program);
            tokio_command.process_group(0);
        }
        tokio_command
            .args(&command.args)
            .env_clear()
            .envs(command.env.iter().map(|(k, v)| (k, v)))
            .current_dir(&command.dir)
            .stdin(Stdio::null())
            .stdout(out_end)
            .stderr(err_end);
        // Under one lock with the reaper's check, so that it does not reap a command that ends at once.
        let mut table = self.table();
        if table.killed && spite != InSpite::Kill || table.stopped && spite == InSpite::None {
            return Err(RunError::Stopped);
        }
        let child = match self.confined.get() {
            Some(confined) => confined.spawn(tokio_command),
            None => tokio_command.spawn(),
        };
        let mut child = child.map_err(RunError::Spawn)?;
        let pid = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .unwrap_or_default();
        let beneath = match &command.role {
            Role::Above(tool) => Executable::of(tool).ok(),
            Role::Tool | Role::Other => None,
        };
        table.tracked.insert(
            pid,
            Tracked {
                role: command.role.clone(),
                beneath,
                told: HashSet::new(),
            },
        );
        (child.stdout, child.stderr) = (out, Some(err));
        Ok((child, pid))
    }

    async fn end(&self, child: &mut Child, pid: i32) -> Result<Exit, RunError> {
        let status = child.wait().await;
        let mut table = self.table();
        table.tracked.remove(&pid);
        let told = table.stopped;
        drop(table);
        Ok(exit(status.map_err(RunError::Wait)?, told))
    }

    /// Runs a command to its end. Passes its output line by line to `sink`, and awaits `sink` after each chunk. Reads output until
    /// 5 s after the end, even if another process still holds the pipe.
    pub async fn run(&self, command: &Command, sink: &mut impl Sink) -> Result<Exit, RunError> {
        let (mut child, pid) = self.spawn(command, None, InSpite::None)?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        self.watch(
            &mut child,
            (pid, matches!(command.role, Role::Above(_))),
            out,
            err,
            sink,
        )
        .await
    }

    /// Like [`Self::run`], with standard output to a [`stream`] of the caller.
    pub async fn run_into(
        &self,
        command: &Command,
        out: OwnedFd,
        sink: &mut impl Sink,
    ) -> Result<Exit, RunError> {
        let (mut child, pid) = self.spawn(command, Some(out), InSpite::None)?;
        let err = child.stderr.take();
        self.watch(
            &mut child,
            (pid, matches!(command.role, Role::Above(_))),
            None,
            err,
            sink,
        )
        .await
    }

    /// Like [`Self::run_into`] for a command that only reads: starts even if the attempt is being stopped, unless commands were
    /// killed.
    pub async fn run_into_last(
        &self,
        command: &Command,
        out: OwnedFd,
        sink: &mut impl Sink,
    ) -> Result<Exit, RunError> {
        let (mut child, pid) = self.spawn(command, Some(out), InSpite::Stop)?;
        let err = child.stderr.take();
        // `false`: its children are not interrupted either.
        self.watch(&mut child, (pid, false), None, err, sink).await
    }

    /// Like [`Self::run`] for the end of the attempt: starts even after running commands were killed.
    pub async fn run_at_the_end(
        &self,
        command: &Command,
        sink: &mut impl Sink,
    ) -> Result<Exit, RunError> {
        let (mut child, pid) = self.spawn(command, None, InSpite::Kill)?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        self.watch(&mut child, (pid, false), out, err, sink).await
    }

    async fn watch(
        &self,
        child: &mut Child,
        (pid, has_beneath): (i32, bool),
        mut out: Option<ChildStdout>,
        mut err: Option<ChildStderr>,
        sink: &mut impl Sink,
    ) -> Result<Exit, RunError> {
        let (mut out_lines, mut err_lines) = (Lines::default(), Lines::default());
        let (mut out_buffer, mut err_buffer) = (vec![0; 32 * 1024], vec![0; 4 * 1024]);
        let mut ended = None;
        let mut until = Instant::now();
        let mut look = interval(LOOK);
        while ended.is_none() || out.is_some() || err.is_some() {
            tokio::select! {
                exit = self.end(child, pid), if ended.is_none() => {
                    let told = exit.as_ref().is_ok_and(|exit| exit.told);
                    until = Instant::now() + if told { DRAIN_TOLD } else { DRAIN };
                    ended = Some(exit);
                }
                count = read(&mut out, &mut out_buffer), if out.is_some() => {
                    if count == 0 {
                        out = None;
                    }
                    out_lines.feed(&out_buffer[..count], |line, cut| sink.line(Source::Out, line, cut));
                    sink.chunk().await;
                }
                count = read(&mut err, &mut err_buffer), if err.is_some() => {
                    if count == 0 {
                        err = None;
                    }
                    err_lines.feed(&err_buffer[..count], |line, cut| sink.line(Source::Err, line, cut));
                    sink.chunk().await;
                }
                _ = look.tick(), if has_beneath && ended.is_none() => self.interrupt_later(pid),
                () = sleep_until(until), if ended.is_some() => break,
            }
        }
        out_lines.finish(|line, cut| sink.line(Source::Out, line, cut));
        err_lines.finish(|line, cut| sink.line(Source::Err, line, cut));
        sink.chunk().await;
        ended.unwrap_or(Err(RunError::Stopped))
    }
}

/// Receives a command's output.
pub trait Sink: Send {
    /// Receives a line without its end. `cut` is the number of bytes dropped from a line that is too long.
    fn line(&mut self, source: Source, line: &str, cut: u64);
    /// Called after some lines; the place to await slow consumers.
    fn chunk(&mut self) -> impl Future<Output = ()> + Send;
}

async fn read<R: AsyncRead + Unpin>(stream: &mut Option<R>, buffer: &mut [u8]) -> usize {
    match stream {
        Some(stream) => stream.read(buffer).await.unwrap_or(0),
        None => 0,
    }
}

fn exit(status: ExitStatus, told: bool) -> Exit {
    let signal = status.signal();
    Exit {
        code: status
            .code()
            .unwrap_or_else(|| 128 + signal.unwrap_or_default()),
        signal,
        told,
    }
}

#[cfg(test)]
pub(crate) mod tests;
