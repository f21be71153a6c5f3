//! Stores built tools and images between runs, always outside the checkout.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::fcntl::{Flock, FlockArg};
use sha2::{Digest, Sha256};

/// The cache directory, safe to delete: `$PAWL_CACHE`, or `~/.cache/pawl`.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

/// An exclusive file lock. The kernel releases it when its holder ends or is killed.
#[derive(Debug)]
pub struct Lock {
    _file: Flock<File>,
}

impl Lock {
    /// Waits for the lock at `path`. Creates the file if missing.
    pub fn wait(path: &Path) -> Result<Self> {
        if let Some(parent) = path.parent() {
            create_dir(parent)?;
        }
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)
            .with_context(|| format!("cannot open the lock file {}", path.display()))?;
        let file = Flock::lock(file, FlockArg::LockExclusive)
            .map_err(|(_, errno)| errno)
            .with_context(|| format!("cannot lock {}", path.display()))?;
        Ok(Self { _file: file })
    }
}

impl Cache {
    /// Opens the cache and creates its directory.
    pub fn open() -> Result<Self> {
        let root = directory("PAWL_CACHE", ".cache/pawl")?;
        create_dir(&root)?;
        Ok(Self { root })
    }

    /// A path below the cache.
    pub fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.root.join(relative)
    }

    /// Waits until no other process builds `what` into the cache. Separate names avoid waits: images do not wait for tools that they do not
    /// contain.
    pub fn lock(&self, what: &str) -> Result<Lock> {
        Lock::wait(&self.path(format!("{what}.lock")))
    }

    /// Runs `build` with a temporary path and renames the result to `target`, so that `target` is complete or missing even after a kill.
    pub fn install(target: &Path, build: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        let parent = target.parent().context("a cache entry needs a directory")?;
        create_dir(parent)?;
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let temporary = parent.join(format!(".{name}.partial"));
        remove(&temporary)?;
        build(&temporary)?;
        fs::rename(&temporary, target)
            .with_context(|| format!("cannot move a finished build to {}", target.display()))
    }
}

/// The parent of the cluster directories: `$PAWL_STATE`, or `~/.local/state/pawl`.
pub fn state_root() -> Result<PathBuf> {
    directory("PAWL_STATE", ".local/state/pawl")
}

/// A short hash of all parts: 16 hexadecimal digits.
pub fn key<P: AsRef<[u8]>>(parts: impl IntoIterator<Item = P>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        let part = part.as_ref();
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let digest: [u8; 32] = hash.finalize().into();
    let first = digest
        .first_chunk()
        .map_or(0, |bytes| u64::from_be_bytes(*bytes));
    format!("{first:016x}")
}

/// A key that changes with the file. Uses size and modification time, because the files are large and are only replaced whole.
pub fn file_key(path: &Path) -> Result<String> {
    use std::os::unix::fs::MetadataExt as _;
    let meta = fs::metadata(path).with_context(|| format!("cannot look at {}", path.display()))?;
    Ok(key([format!(
        "{} {} {}",
        meta.len(),
        meta.mtime(),
        meta.mtime_nsec()
    )]))
}

/// Creates a directory and its parents.
pub fn create_dir(path: &Path) -> Result<()> {
    fs::create_dir_all(path)
        .with_context(|| format!("cannot create the directory {}", path.display()))
}

/// Reads a text file.
pub fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Writes a file, and creates its directory if missing.
pub fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    if let Some(parent) = path.parent() {
        create_dir(parent)?;
    }
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

/// Removes a file or a directory tree. It is no error if there is none.
pub fn remove(path: &Path) -> Result<()> {
    let result = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match result {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

fn directory(variable: &str, below_home: &str) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(variable).filter(|value| !value.is_empty()) {
        return std::path::absolute(&path)
            .with_context(|| format!("${variable} is no usable path"));
    }
    let home = std::env::var_os("HOME").with_context(|| {
        format!("neither ${variable} nor $HOME is set; set ${variable} to a directory")
    })?;
    Ok(PathBuf::from(home).join(below_home))
}
