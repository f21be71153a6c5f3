//! A program at a pseudo-terminal: collects its output and presses keys.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    os::{fd::AsFd, unix::process::ExitStatusExt as _},
    process::{Child, Command, ExitStatus},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use harness::wait;
use nix::{
    fcntl::{FcntlArg, FdFlag, fcntl},
    pty::{Winsize, openpty},
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// A longer wait indicates a defect, not a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// The interrupt key.
pub(crate) const CTRL_C: &str = "\x03";

/// Locked while a terminal is created and not yet close-on-exec, so that no other program inherits it.
static SPAWN: Mutex<()> = Mutex::new(());

/// The lock to hold while a program is started.
pub(crate) fn spawning() -> MutexGuard<'static, ()> {
    SPAWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A program at its own terminal.
pub(crate) struct Terminal {
    child: Child,
    keys: Option<File>,
    seen: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Terminal {
    /// Starts a program as the leader of a session with a new terminal. `setsid` executes the program, so the process id is the program's
    /// own.
    pub(crate) fn start(program: &Command) -> Result<Self> {
        let guard = spawning();
        let size = Winsize {
            ws_row: 40,
            ws_col: 120,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let pty = openpty(Some(&size), None).context("no pseudo-terminal")?;
        for end in [pty.master.as_fd(), pty.slave.as_fd()] {
            fcntl(end, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
        }
        let mut command = Command::new("/usr/bin/setsid");
        command
            .arg("--ctty")
            .arg(program.get_program())
            .args(program.get_args())
            .env_clear();
        command.envs(
            program
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        if let Some(dir) = program.get_current_dir() {
            command.current_dir(dir);
        }
        command
            .stdin(pty.slave.try_clone()?)
            .stdout(pty.slave.try_clone()?)
            .stderr(pty.slave);
        let child = command.spawn().context("cannot start setsid")?;
        // The command holds ends of the terminal until it is dropped.
        drop(command);
        drop(guard);
        let seen = Arc::<Mutex<String>>::default();
        let mut master = File::from(pty.master);
        let (keys, kept) = (master.try_clone()?, seen.clone());
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 8192];
            // Reading fails once the last program at the terminal has ended.
            while let Ok(count @ 1..) = master.read(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..count]);
                kept.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push_str(&text);
            }
        });
        Ok(Self {
            child,
            keys: Some(keys),
            seen,
            reader: Some(reader),
        })
    }

    /// The output so far.
    pub(crate) fn text(&self) -> String {
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn until(&self, what: &str) -> Result<()> {
        self.until_is(what, |text| text.contains(what))
    }

    /// Waits until `is` holds for the output.
    pub(crate) fn until_is(&self, what: &str, is: impl Fn(&str) -> bool) -> Result<()> {
        let look = || {
            Ok(if is(&self.text()) {
                Ok(())
            } else {
                Err(self.text())
            })
        };
        wait::until_blocking(format!("`{what}` is printed"), PATIENCE, look)
    }

    pub(crate) fn press(&mut self, keys: &str) -> Result<()> {
        let terminal = self.keys.as_mut().context("the terminal is closed")?;
        terminal
            .write_all(keys.as_bytes())
            .context("nobody is at the terminal")
    }

    pub(crate) fn answer(&mut self, answer: &str) -> Result<()> {
        self.until("[y/N]")?;
        self.press(&format!("{answer}\n"))
    }

    /// Sends a signal to the program alone.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(
            Pid::from_raw(i32::try_from(self.child.id())?),
            signal,
        )?)
    }

    /// Waits for the end; returns exit code (or 128 plus the signal) and output.
    pub(crate) fn end(mut self) -> Result<(i32, String)> {
        let status = self.wait()?;
        if let Some(reader) = self.reader.take() {
            // Processes that the program left running may hold the terminal.
            let start = Instant::now();
            while !reader.is_finished() && start.elapsed() < Duration::from_secs(10) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Ok((
            status
                .code()
                .unwrap_or_else(|| 128 + status.signal().unwrap_or_default()),
            self.text(),
        ))
    }

    fn wait(&mut self) -> Result<ExitStatus> {
        let ended = wait::until_blocking("it ends", PATIENCE, || Ok(self.child.try_wait()?));
        ended.with_context(|| format!("it printed:\n{}", self.text()))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
