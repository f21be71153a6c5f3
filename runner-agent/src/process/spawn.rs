//! Starting a command and seeing it to its end.

use std::{
    collections::HashMap,
    ffi::OsString,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use nix::sys::signal::Signal;
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::{Child, ChildStderr, ChildStdout},
    time::{Instant, sleep_until},
};

use super::{
    confine::{Bounds, Confined},
    output::Lines,
    signal::{kill_below, send},
};

/// How long output is read after its command ended: a daemon that inherited the pipe does not hold a run up.
pub(super) const DRAIN: Duration = Duration::from_secs(5);
/// The same for a command that was told to end, and has said all it had to say.
const DRAIN_TOLD: Duration = Duration::from_millis(500);

/// What to run. The environment is exactly what is given.
#[derive(Clone, Debug, Default)]
pub struct Command {
    /// The executable.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Its environment.
    pub env: Vec<(OsString, OsString)>,
    /// Its working directory.
    pub dir: PathBuf,
    /// Whether it is the tool.
    pub role: Role,
}

/// Which process of a command is the tool, if any is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// None is.
    #[default]
    Other,
    /// The command itself.
    Tool,
    /// The child of the command that runs this executable.
    Above(PathBuf),
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Exit code; 128 and the signal's number when a signal ended it.
    pub code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Whether we told it to end.
    pub told: bool,
}

/// Why a command has no end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It was not started, because the attempt is being stopped.
    #[error("not started: the attempt is being stopped")]
    Stopped,
    /// It could not be started.
    #[error("could not be started: {0}")]
    Spawn(std::io::Error),
    /// Its end could not be learned.
    #[error("could not be waited for: {0}")]
    Wait(std::io::Error),
}

/// Where a line comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

#[derive(Debug, Default)]
struct Table {
    /// Children that tokio waits for.
    tracked: HashMap<i32, Role>,
    /// Whether the attempt is being stopped: nothing is started any more, and what runs has had its signal.
    stopped: bool,
    killed: bool,
}

/// The commands that run now. Cloned freely.
#[derive(Clone, Debug, Default)]
pub struct Children {
    table: Arc<Mutex<Table>>,
    confined: Arc<OnceLock<Confined>>,
}

impl Children {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

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

    /// The commands that run now.
    pub(super) fn running(&self) -> Vec<(i32, Role)> {
        self.table().tracked.iter().map(|(pid, role)| (*pid, role.clone())).collect()
    }

    /// Whether the attempt is being stopped.
    pub fn is_stopped(&self) -> bool {
        self.table().stopped
    }

    /// Sends the one SIGINT to each running command, to its own pid and never to its group, and starts nothing any more.
    pub fn interrupt(&self) {
        let mut table = self.table();
        if !std::mem::replace(&mut table.stopped, true) {
            table.tracked.keys().for_each(|pid| send(*pid, Signal::SIGINT));
        }
    }

    /// Kills what runs below the commands, never the commands themselves.
    pub fn kill_providers(&self) {
        self.table().tracked.keys().for_each(|pid| kill_below(*pid));
    }

    /// Kills the commands and everything below them.
    pub fn kill(&self) {
        let mut table = self.table();
        table.stopped = true;
        table.killed = true;
        for pid in table.tracked.keys() {
            kill_below(*pid);
            send(*pid, Signal::SIGKILL);
        }
    }

    fn spawn(&self, command: &Command, out: Stdio, last: bool) -> Result<(Child, i32), RunError> {
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
        if table.killed || table.stopped && !last {
            return Err(RunError::Stopped);
        }
        let child = match self.confined.get() {
            Some(confined) => confined.spawn(tokio_command),
            None => tokio_command.spawn(),
        };
        let child = child.map_err(RunError::Spawn)?;
        let pid = child.id().and_then(|id| i32::try_from(id).ok()).unwrap_or_default();
        table.tracked.insert(pid, command.role.clone());
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
        let (mut child, pid) = self.spawn(command, Stdio::piped(), false)?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        self.watch(&mut child, pid, out, err, sink).await
    }

    /// Like [`Self::run`] with standard output going into a pipe of the caller's.
    pub async fn run_into(&self, command: &Command, out: std::io::PipeWriter, sink: &mut impl Sink) -> Result<Exit, RunError> {
        let (mut child, pid) = self.spawn(command, Stdio::from(out), false)?;
        let err = child.stderr.take();
        self.watch(&mut child, pid, None, err, sink).await
    }

    /// Like [`Self::run_into`] for what only reads: it is started also when the attempt is being stopped, unless it was killed.
    pub async fn run_into_last(
        &self,
        command: &Command,
        out: std::io::PipeWriter,
        sink: &mut impl Sink,
    ) -> Result<Exit, RunError> {
        let (mut child, pid) = self.spawn(command, Stdio::from(out), true)?;
        let err = child.stderr.take();
        self.watch(&mut child, pid, None, err, sink).await
    }

    async fn watch(
        &self,
        child: &mut Child,
        pid: i32,
        mut out: Option<ChildStdout>,
        mut err: Option<ChildStderr>,
        sink: &mut impl Sink,
    ) -> Result<Exit, RunError> {
        let (mut out_lines, mut err_lines) = (Lines::default(), Lines::default());
        let (mut out_buffer, mut err_buffer) = (vec![0; 32 * 1024], vec![0; 4 * 1024]);
        let mut ended = None;
        let mut until = Instant::now();
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
mod tests {
    use super::*;

    #[derive(Default)]
    struct Kept(Vec<(Source, String)>);
    impl Sink for Kept {
        fn line(&mut self, source: Source, line: &str, _cut: u64) {
            self.0.push((source, line.to_owned()));
        }
        async fn chunk(&mut self) {}
    }

    /// Passes each line on to whoever waits for it.
    struct Heard(Kept, tokio::sync::mpsc::UnboundedSender<String>);
    impl Sink for Heard {
        fn line(&mut self, source: Source, line: &str, cut: u64) {
            self.0.line(source, line, cut);
            let _ = self.1.send(line.to_owned());
        }
        async fn chunk(&mut self) {}
    }

    fn heard() -> (Heard, tokio::sync::mpsc::UnboundedReceiver<String>) {
        let (said, lines) = tokio::sync::mpsc::unbounded_channel();
        (Heard(Kept::default(), said), lines)
    }

    fn sh(script: &str) -> Command {
        Command {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), script.into()],
            env: vec![("PATH".into(), "/usr/bin:/bin".into())],
            dir: "/".into(),
            role: Role::Other,
        }
    }

    #[tokio::test]
    async fn output_exit_code_and_environment_are_as_given() {
        let mut kept = Kept::default();
        let exit =
            Children::default().run(&sh("echo out; echo err >&2; env | grep -c HOME; cat; exit 3"), &mut kept).await.unwrap();
        assert_eq!((exit.code, exit.signal, exit.told), (3, None, false));
        kept.0.sort_by_key(|(source, _)| *source == Source::Err);
        assert_eq!(kept.0, [(Source::Out, "out".into()), (Source::Out, "0".into()), (Source::Err, "err".into())]);
    }

    #[tokio::test]
    async fn one_sigint_reaches_the_tool_and_not_its_children() {
        // The provider is in the tool's own group: a signal to the group would end it. It works until there is a file.
        let dir = tempfile::tempdir().unwrap();
        let open = dir.path().join("open");
        let script = format!(
            "trap 'n=$((n+1)); echo got $n' INT; \
             sh -c 'trap \"echo provider hit\" INT; until [ -e {} ]; do sleep 0.02; done; echo provider done' & \
             echo ready; wait; wait; echo end $n",
            open.display()
        );
        let children = Children::default();
        let other = children.clone();
        let (mut heard, mut lines) = heard();
        let told = tokio::spawn(async move {
            // `ready`, and `got 1`.
            lines.recv().await;
            other.interrupt();
            lines.recv().await;
            other.interrupt();
            tokio::time::sleep(Duration::from_millis(200)).await;
            std::fs::write(open, "").unwrap();
        });
        let exit = children.run(&sh(&script), &mut heard).await.unwrap();
        told.await.unwrap();
        let lines: Vec<_> = heard.0.0.iter().map(|(_, l)| l.as_str()).collect();
        assert_eq!(lines, ["ready", "got 1", "provider done", "end 1"]);
        assert!(exit.told);
        assert!(matches!(children.run(&sh("true"), &mut Kept::default()).await, Err(RunError::Stopped)));
    }

    #[tokio::test]
    async fn a_daemon_that_keeps_the_pipe_does_not_keep_us() {
        let start = std::time::Instant::now();
        let mut kept = Kept::default();
        let exit = Children::default().run(&sh("setsid sleep 60 & echo $!"), &mut kept).await.unwrap();
        let took = start.elapsed();
        // It lives on, and would have been waited for.
        let pid = kept.0[0].1.parse().unwrap();
        assert!(nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None::<Signal>).is_ok());
        send(pid, Signal::SIGKILL);
        assert_eq!(exit.code, 0);
        assert!(took >= DRAIN, "{took:?}");
    }

    #[tokio::test]
    async fn providers_are_killed_before_the_tool() {
        let children = Children::default();
        let other = children.clone();
        let (mut heard, mut lines) = heard();
        tokio::spawn(async move {
            lines.recv().await;
            other.kill_providers();
        });
        let script = "sh -c 'echo ready; exec sleep 600'; echo provider ended with $?";
        let exit = children.run(&sh(script), &mut heard).await.unwrap();
        assert_eq!(exit.code, 0);
        assert!(heard.0.0.contains(&(Source::Out, "provider ended with 137".into())), "{:?}", heard.0.0);
    }

    #[tokio::test]
    async fn a_killed_tool_says_so() {
        let children = Children::default();
        let other = children.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(100)).await;
            other.kill();
        });
        let exit = children.run(&sh("trap '' INT TERM; while :; do sleep 5; done"), &mut Kept::default()).await.unwrap();
        assert_eq!((exit.code, exit.signal), (137, Some(9)));
    }
}
