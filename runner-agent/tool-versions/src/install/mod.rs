//! The path from a decision to a verified executable: choose, download, verify, cache.
//!
//! | module | holds |
//! |---|---|
//! | [`choose`] | the choice of a version |
//! | [`get`] | the executable, from the cache or installed |

pub mod choose;
pub mod get;

use std::{
    fmt, io,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

pub use choose::Chosen;
pub use get::{Got, Origin};

use crate::{
    Error, Fingerprint, Keyring, Mirror, Platform, Result, Source, Store, Tool, archive::Limits,
    releases::http::Rules,
};

/// The keys that releases are verified with.
#[derive(Clone, Debug)]
pub enum Keys {
    /// The project's keys.
    BuiltIn,
    /// An operator's keys, for a mirror that repackages releases.
    Own {
        /// The armored keys.
        armored: String,
        /// The fingerprints of the keys that count.
        fingerprints: Vec<Fingerprint>,
    },
}

impl Keys {
    /// Loads the keys for a tool.
    ///
    /// # Errors
    /// Configuration: no valid key, or no key with these fingerprints.
    pub fn ring(&self, tool: Tool) -> Result<Keyring> {
        match self {
            Self::BuiltIn => Keyring::built_in(tool),
            Self::Own {
                armored,
                fingerprints,
            } => Keyring::from_armored(armored, fingerprints),
        }
    }
}

/// The longest time that a forked child may hold a fresh executable open for writing before it calls exec: 5 s.
const INHERITED: Duration = Duration::from_secs(5);

/// Runs a fresh executable. While any process has it open for writing, execve(2) fails with `ETXTBSY`; this retries.
///
/// # Errors
/// Those of starting it; `ETXTBSY` after five seconds.
pub fn output_of(command: &mut Command) -> io::Result<Output> {
    let until = Instant::now() + INHERITED;
    loop {
        match command.output() {
            Err(error)
                if error.kind() == io::ErrorKind::ExecutableFileBusy && Instant::now() < until =>
            {
                thread::sleep(Duration::from_millis(5));
            }
            output => return output,
        }
    }
}

type Asking = dyn Fn(&Path) -> io::Result<String> + Send + Sync;

/// Runs an executable with `--version` and returns its standard output. The agent runs it in its sandbox: an operator may have
/// disabled verification.
#[derive(Clone)]
pub struct Ask(Arc<Asking>);

impl Ask {
    /// Uses the given function, which may block the thread.
    pub fn by(ask: impl Fn(&Path) -> io::Result<String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(ask))
    }

    pub(crate) fn version_of(&self, binary: &Path) -> io::Result<String> {
        (self.0)(binary)
    }
}

impl Default for Ask {
    /// Runs it as a child of this process, with its rights.
    fn default() -> Self {
        Self::by(|binary| {
            let output = output_of(
                Command::new(binary)
                    .arg("--version")
                    .stdin(Stdio::null())
                    .stderr(Stdio::null()),
            )?;
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        })
    }
}

impl fmt::Debug for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ask")
    }
}

/// The verification of an archive.
#[derive(Clone, Debug)]
pub enum Verification {
    /// A signature over the sums by one of these keys, and the sum.
    Signature(Keys),
    /// The sum alone: anyone with write access to the mirror decides which code runs. Opt-in, and reported at every use.
    Sums,
    /// Only TLS. Opt-in, and reported at every use.
    Nothing,
}

impl Verification {
    /// The caveat to report.
    pub const fn lowered(&self) -> Option<&'static str> {
        match self {
            Self::Signature(_) => None,
            Self::Sums => Some("no signature is checked, as the operator configured"),
            Self::Nothing => {
                Some("neither signature nor sum is checked, as the operator configured")
            }
        }
    }
}

/// The mirror of a tool and its verification. Clients and keys are made for a download only, which is rare.
#[derive(Clone, Debug)]
pub struct Channel {
    pub mirror: Mirror,
    /// Deadlines and retries.
    pub rules: Rules,
    pub verification: Verification,
    /// The reason why the channel is unusable, such as missing credentials. Returned on the first use.
    pub refusal: Option<Error>,
}

impl Channel {
    fn source(&self) -> Result<Source> {
        if let Some(refusal) = &self.refusal {
            return Err(refusal.clone());
        }
        Source::new(self.mirror.clone(), self.rules.clone())
    }
}

/// Mirrors and the cache.
#[derive(Clone, Debug)]
pub struct Installer {
    pub store: Store,
    /// The directory of cached lists of versions.
    pub lists: PathBuf,
    /// One channel for each tool that can be downloaded.
    pub channels: Vec<Channel>,
    pub platform: Platform,
    /// Whether the network is never used.
    pub offline: bool,
    pub limits: Limits,
    /// The way to ask an executable for its version.
    pub ask: Ask,
    /// The longest wait for another installer of the same version: 20 min, longer than the deadline of a download.
    pub patience: Duration,
}

/// See [`Installer::patience`].
pub const PATIENCE: Duration = Duration::from_secs(1200);

impl Installer {
    fn channel(&self, tool: Tool) -> Option<&Channel> {
        self.channels
            .iter()
            .find(|channel| channel.mirror.tool == tool)
    }

    /// Whether a mirror may be read. One on disk always may.
    fn may_read(&self, channel: &Channel) -> bool {
        !self.offline || channel.mirror.is_on_disk()
    }
}
