//! Starting a command and seeing it to its end.

use std::{
    collections::HashSet,
    ffi::OsString,
    os::unix::process::ExitStatusExt,
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
    interrupt::{Children, Role, Tracked},
    output::Lines,
    tree::Executable,
};

/// How long output is read after its command ended: a daemon that inherited the pipe does not hold a run up.
pub(super) const DRAIN: Duration = Duration::from_secs(5);
/// The same for a command that was told to end, and has said all it had to say.
const DRAIN_TOLD: Duration = Duration::from_millis(500);
/// Between two looks at what a command that was told to end has started since.
const LOOK: Duration = Duration::from_millis(200);

/// What to run. The environment is exactly what is given.
#[derive(Clone, Debug, Default)]
pub struct Command {
    pub program: PathBuf,
    pub args: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
    pub dir: PathBuf,
    /// Which process of it is the tool.
    pub role: Role,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Exit code; 128 and the signal's number when a signal ended it.
    pub code: i32,
    pub signal: Option<i32>,
    /// Whether we told it to end.
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

/// Where a line comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Out,
    Err,
}

/// What a command is started in spite of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InSpite {
    None,
    /// The attempt is being stopped.
    Stop,
    /// It is being stopped, and what ran was killed.
    Kill,
}

impl Children {
    /// From now on all commands are kept within these bounds. Once for all.
    ///
    /// # Errors
    /// When the kernel cannot do that, or what is to be read-only is not there; then commands are started as before.
    pub fn confine(&self, bounds: &Bounds) -> std::io::Result<()> {
        if self.confined.get().is_none() {
            let _ = self.confined.set(Confined::start(bounds)?);
        }
        Ok(())
    }

    /// Whether commands are started with less than the agent's own rights.
    pub fn is_confined(&self) -> bool {
        self.confined.get().is_some()
    }

    /// Whether tokio waits for this process.
    pub fn is_tracked(&self, pid: i32) -> bool {
        self.table().tracked.contains_key(&pid)
    }

    pub(super) fn running(&self) -> Vec<(i32, Role)> {
        self.table().tracked.iter().map(|(pid, tracked)| (*pid, tracked.role.clone())).collect()
    }

    fn spawn(&self, command: &Command, out: Stdio, spite: InSpite) -> Result<(Child, i32), RunError> {
        let mut tokio_command = tokio::process::Command::new(&command.program);
        tokio_command
            .args(&command.args)
            .env_clear()
            .envs(command.env.iter().map(|(k, v)| (k, v)))
            .current_dir(&command.dir)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(Stdio::piped())
            .process_group(0);
        // Under one lock with the reaper's look, so that a command that ends at once is not taken for a stranger.
        let mut table = self.table();
        if table.killed && spite != InSpite::Kill || table.stopped && spite == InSpite::None {
            return Err(RunError::Stopped);
        }
        let child = match self.confined.get() {
            Some(confined) => confined.spawn(tokio_command),
            None => tokio_command.spawn(),
        };
        let child = child.map_err(RunError::Spawn)?;
        let pid = child.id().and_then(|id| i32::try_from(id).ok()).unwrap_or_default();
        let beneath = match &command.role {
            Role::Above(tool) => Executable::of(tool).ok(),
            Role::Tool | Role::Other => None,
        };
        table.tracked.insert(pid, Tracked { role: command.role.clone(), beneath, told: HashSet::new() });
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

    /// Runs a command to its end, giving its output chunk by chunk and line by line to `sink`, which is awaited after each
    /// chunk. Output is read until 5 s after the end, whoever still holds the pipe.
    pub async fn run(&self, command: &Command, sink: &mut impl Sink) -> Result<Exit, RunError> {
        let (mut child, pid) = self.spawn(command, Stdio::piped(), InSpite::None)?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        self.watch(&mut child, (pid, matches!(command.role, Role::Above(_))), out, err, sink).await
    }

    /// Like [`Self::run`] with standard output going into a pipe of the caller's.
    pub async fn run_into(&self, command: &Command, out: std::io::PipeWriter, sink: &mut impl Sink) -> Result<Exit, RunError> {
        let (mut child, pid) = self.spawn(command, Stdio::from(out), InSpite::None)?;
        let err = child.stderr.take();
        self.watch(&mut child, (pid, matches!(command.role, Role::Above(_))), None, err, sink).await
    }

    /// Like [`Self::run_into`] for what only reads: it is started also when the attempt is being stopped, unless it was killed.
    pub async fn run_into_last(
        &self,
        command: &Command,
        out: std::io::PipeWriter,
        sink: &mut impl Sink,
    ) -> Result<Exit, RunError> {
        let (mut child, pid) = self.spawn(command, Stdio::from(out), InSpite::Stop)?;
        let err = child.stderr.take();
        // Nor is what it starts told to end.
        self.watch(&mut child, (pid, false), None, err, sink).await
    }

    /// Like [`Self::run`] for what comes when all else has ended: it is started also when what ran was killed.
    pub async fn run_at_the_end(&self, command: &Command, sink: &mut impl Sink) -> Result<Exit, RunError> {
        let (mut child, pid) = self.spawn(command, Stdio::piped(), InSpite::Kill)?;
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

/// Takes the output of a command.
pub trait Sink: Send {
    /// A line, without its end. What is longer than a line may be is cut off; `cut` says how many bytes.
    fn line(&mut self, source: Source, line: &str, cut: u64);
    /// After some lines: the place to wait for whoever takes them further.
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
    Exit { code: status.code().unwrap_or_else(|| 128 + signal.unwrap_or_default()), signal, told }
}

#[cfg(test)]
mod tests;
