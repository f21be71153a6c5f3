//! From what is asked for to an executable that may be run: chooses the version, gets it, proves it, keeps it.
//!
//! | module | holds |
//! |---|---|
//! | [`choose`] | the version, of those that are published or at hand |
//! | [`get`] | the executable: from the cache, or installed |

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

use crate::{Error, Fingerprint, Keyring, Mirror, Platform, Result, Source, Store, Tool, archive::Limits, releases::http::Rules};

/// Whose signatures count.
#[derive(Clone, Debug)]
pub enum Keys {
    /// The project's own.
    BuiltIn,
    /// An operator's, for a mirror that packs releases itself.
    Own {
        /// The keys.
        armored: String,
        /// Which of them may sign.
        fingerprints: Vec<Fingerprint>,
    },
}

impl Keys {
    /// The keys of a tool.
    ///
    /// # Errors
    /// Configuration: they are none, or not those of the fingerprints.
    pub fn ring(&self, tool: Tool) -> Result<Keyring> {
        match self {
            Self::BuiltIn => Keyring::built_in(tool),
            Self::Own { armored, fingerprints } => Keyring::from_armored(armored, fingerprints),
        }
    }
}

/// How long a child that another thread was starting may hold an executable open that was just written: from its fork to its exec.
const INHERITED: Duration = Duration::from_secs(5);

/// Runs an executable that was just written. While anybody has it open for writing the kernel runs it for nobody (`ETXTBSY`, execve(2)).
///
/// # Errors
/// When it cannot be run within five seconds.
pub fn output_of(command: &mut Command) -> io::Result<Output> {
    let until = Instant::now() + INHERITED;
    loop {
        match command.output() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && Instant::now() < until => {
                thread::sleep(Duration::from_millis(5));
            }
            output => return output,
        }
    }
}

type Asking = dyn Fn(&Path) -> io::Result<String> + Send + Sync;

/// How an executable is started with `--version`; its standard output. Whoever keeps code within bounds runs it within them: an operator
/// may have chosen that nothing proves it.
#[derive(Clone)]
pub struct Ask(Arc<Asking>);

impl Ask {
    /// In a way of one's own. It may block the thread.
    pub fn by(ask: impl Fn(&Path) -> io::Result<String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(ask))
    }

    pub(crate) fn version_of(&self, binary: &Path) -> io::Result<String> {
        (self.0)(binary)
    }
}

impl Default for Ask {
    /// As a child of this process, with its rights.
    fn default() -> Self {
        Self::by(|binary| {
            let output = output_of(Command::new(binary).arg("--version").stdin(Stdio::null()).stderr(Stdio::null()))?;
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        })
    }
}

impl fmt::Debug for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ask")
    }
}

/// What proves an archive.
#[derive(Clone, Debug)]
pub enum Verification {
    /// A signature over the sums, by one of these keys, and the sum.
    Signature(Keys),
    /// The sum alone: whoever may write to the mirror decides what is run. The operator's choice, and said at every use.
    Sums,
    /// Nothing but the connection. The operator's choice, and said at every use.
    Nothing,
}

impl Verification {
    /// What has to be said of it.
    pub const fn lowered(&self) -> Option<&'static str> {
        match self {
            Self::Signature(_) => None,
            Self::Sums => Some("no signature is checked, as the operator says"),
            Self::Nothing => Some("neither signature nor sum is checked, as the operator says"),
        }
    }
}

/// Where a tool comes from, and what proves it. Clients and keys are made when something has to be got, which is seldom.
#[derive(Clone, Debug)]
pub struct Channel {
    pub mirror: Mirror,
    /// Deadlines and tries.
    pub rules: Rules,
    pub verification: Verification,
    /// Why it cannot be used, credentials that are missing for one. It is said when it would be used, and not before.
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

/// Where tools come from and where they are kept.
#[derive(Clone, Debug)]
pub struct Installer {
    pub store: Store,
    /// Directory of the lists of versions that were got before.
    pub lists: PathBuf,
    /// A channel for each tool that can be got.
    pub channels: Vec<Channel>,
    pub platform: Platform,
    /// The network is never touched.
    pub offline: bool,
    pub limits: Limits,
    /// How an executable is asked for its version.
    pub ask: Ask,
    /// How long somebody else may take who installs the very version: 20 min, longer than the deadline of a download.
    pub patience: Duration,
}

/// See [`Installer::patience`].
pub const PATIENCE: Duration = Duration::from_secs(1200);

impl Installer {
    fn channel(&self, tool: Tool) -> Option<&Channel> {
        self.channels.iter().find(|channel| channel.mirror.tool == tool)
    }

    /// Whether a source may be read: one on disk always.
    fn may_read(&self, channel: &Channel) -> bool {
        !self.offline || channel.mirror.is_on_disk()
    }
}
