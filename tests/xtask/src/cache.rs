//! Where built tools and images are kept between runs: always outside the checkout.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::fcntl::{Flock, FlockArg};
use sha2::{Digest, Sha256};

/// The directory of everything that can be made again: `$PAWL_CACHE`, or `~/.cache/pawl`.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

/// A lock that ends with its holder, however that ends.
#[derive(Debug)]
pub struct Lock {
    _file: Flock<File>,
}

impl Lock {
    /// Waits for the lock at `path`, which is created if it is missing.
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
    /// Opens the cache, and creates its directory.
    pub fn open() -> Result<Self> {
        let root = directory("PAWL_CACHE", ".cache/pawl")?;
        create_dir(&root)?;
        Ok(Self { root })
    }

    /// A path below the cache.
    pub fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.root.join(relative)
    }

    /// Waits until no other process builds `what` into the cache. Who waits for images does not wait for tools that they do not hold.
    pub fn lock(&self, what: &str) -> Result<Lock> {
        Lock::wait(&self.path(format!("{what}.lock")))
    }

    /// Runs `build` with a temporary path and moves what it wrote to `target` in one step, so that `target` is
    /// either whole or not there, whenever the process is killed.
    pub fn install(target: &Path, build: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        let parent = target.parent().context("a cache entry needs a directory")?;
        create_dir(parent)?;
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let temporary = parent.join(format!(".{name}.partial"));
        remove(&temporary)?;
        build(&temporary)?;
        fs::rename(&temporary, target).with_context(|| format!("cannot move a finished build to {}", target.display()))
    }
}

/// The directory that holds one directory per cluster: `$PAWL_STATE`, or `~/.local/state/pawl`.
pub fn state_root() -> Result<PathBuf> {
    directory("PAWL_STATE", ".local/state/pawl")
}

/// A short key for content: sixteen hexadecimal digits over all parts.
pub fn key<P: AsRef<[u8]>>(parts: impl IntoIterator<Item = P>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        let part = part.as_ref();
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let digest: [u8; 32] = hash.finalize().into();
    let first = digest.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
    format!("{first:016x}")
}

/// A key that changes when the file does. Size and time, since the files are large and are only ever replaced whole.
pub fn file_key(path: &Path) -> Result<String> {
    use std::os::unix::fs::MetadataExt as _;
    let meta = fs::metadata(path).with_context(|| format!("cannot look at {}", path.display()))?;
    Ok(key([format!("{} {} {}", meta.len(), meta.mtime(), meta.mtime_nsec())]))
}

/// Creates a directory and those above it.
pub fn create_dir(path: &Path) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("cannot create the directory {}", path.display()))
}

/// Writes a file whole, and its directory if that is missing.
pub fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    if let Some(parent) = path.parent() {
        create_dir(parent)?;
    }
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

/// Removes a file or a whole directory; it is no error if there is none.
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
        return std::path::absolute(&path).with_context(|| format!("${variable} is no usable path"));
    }
    let home = std::env::var_os("HOME")
        .with_context(|| format!("neither ${variable} nor $HOME is set; set ${variable} to a directory"))?;
    Ok(PathBuf::from(home).join(below_home))
}
