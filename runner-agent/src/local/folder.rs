//! `.pawl` in a stack's folder: one directory per run, and a lock against concurrent runs.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use crds::{Phase, TerraformRun};
use jiff::Timestamp;
use nix::fcntl::{Flock, FlockArg};

use super::api;

/// Number of ended runs to retain. Waiting runs and those with an unknown end are always retained.
const KEPT: usize = 20;

/// The records of a folder, locked by this process.
#[derive(Debug)]
pub struct Folder {
    runs: PathBuf,
    _lock: Flock<File>,
}

impl Folder {
    /// Opens the records below `dir` and creates them if needed. Fails while another run works there.
    pub fn open(dir: &Path) -> Result<Self> {
        let pawl = dir.join(".pawl");
        let runs = pawl.join("runs");
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&runs)
            .with_context(|| format!("{} cannot be made; nothing was changed", runs.display()))?;
        let pawl = pawl
            .canonicalize()
            .with_context(|| format!("{} cannot be reached", pawl.display()))?;
        let runs = pawl.join("runs");
        fs::write(pawl.join(".gitignore"), "*\n")
            .with_context(|| format!("{} cannot be written", pawl.display()))?;
        let path = pawl.join("lock");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| format!("{} cannot be opened", path.display()))?;
        // The kernel releases the lock when the process ends, for any reason.
        let Ok(lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else {
            bail!(
                "another run works on {}; wait for its end; nothing was changed",
                dir.display()
            );
        };
        Ok(Self { runs, _lock: lock })
    }

    /// Creates the directory of a new run. Its name is the current time.
    pub fn begin(&self) -> Result<(String, PathBuf)> {
        let stem = Timestamp::now().strftime("%Y%m%d-%H%M%S").to_string();
        for n in 1..100 {
            let name = if n == 1 {
                stem.clone()
            } else {
                format!("{stem}-{n}")
            };
            let dir = self.runs.join(&name);
            match DirBuilder::new().mode(0o700).create(&dir) {
                Ok(()) => return Ok((name, dir)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("{} cannot be made", dir.display()));
                }
            }
        }
        bail!(
            "{} has a hundred runs of this very second",
            self.runs.display()
        )
    }

    /// All readable runs, newest first.
    pub fn all(&self) -> Vec<(PathBuf, TerraformRun)> {
        let mut dirs: Vec<_> = fs::read_dir(&self.runs)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect();
        dirs.sort();
        dirs.into_iter()
            .rev()
            .filter_map(|dir| api::read(&dir.join("run.json")).ok().map(|run| (dir, run)))
            .collect()
    }

    /// Removes the oldest ended runs.
    pub fn prune(&self) {
        let ended = |run: &TerraformRun| {
            run.status.as_ref().is_some_and(|s| {
                s.is_terminal() && s.result != Some(crds::RunResult::Indeterminate)
            })
        };
        for (dir, _) in self
            .all()
            .into_iter()
            .filter(|(_, run)| ended(run))
            .skip(KEPT)
        {
            if let Err(error) = fs::remove_dir_all(&dir) {
                tracing::warn!(dir = %dir.display(), %error, "an old run cannot be removed");
            }
        }
    }

    /// The runs with a waiting plan.
    pub fn waiting(&self) -> Vec<(PathBuf, TerraformRun)> {
        let waits = |run: &TerraformRun| {
            run.status
                .as_ref()
                .is_some_and(|s| s.phase == Some(Phase::AwaitingApproval) && s.claim.is_none())
        };
        self.all()
            .into_iter()
            .filter(|(_, run)| waits(run))
            .collect()
    }
}
