//! A directory shared by processes, pods and nodes. An entry gets its name by rename once it is complete on disk. Locks are
//! `flock`, which the kernel releases with the process. A removal first renames, so it is visible at once.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant, SystemTime},
};

use crate::{Error, Result};

/// Unfinished and discarded entries.
const ASIDE: &str = ".aside";
const LOCKS: &str = ".locks";
/// The prefix of discarded entries.
const GONE: &str = "gone-";
/// A file in each piece: locked by its users, with the time of the last use as mtime.
pub const USED: &str = "used";
/// The interval between two tries to get a held lock.
const LOOK: Duration = Duration::from_millis(25);
/// The wait for a lock that no process should hold: a forked child holds its parent's locks until exec.
const MOMENT: Duration = Duration::from_millis(500);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedDir {
    root: PathBuf,
}

/// An entry, which is removed as a whole.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    pub dir: &'a Path,
    /// The size in bytes.
    pub size: u64,
    /// The time of the last use.
    pub used: SystemTime,
}

impl SharedDir {
    /// Makes a handle. The directory is created with the first entry.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Waits for the exclusive lock to write an entry, at most for `patience`; `None` when another process still holds it. Blocks
    /// the thread.
    ///
    /// # Errors
    /// Storage: the directory is not writable.
    pub fn turn(&self, key: &str, patience: Duration) -> Result<Option<File>> {
        let path = self.root.join(LOCKS).join(key);
        make(path.parent().unwrap_or(&path))?;
        let mut options = OpenOptions::new();
        let lock = options
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o644)
            .open(&path)
            .map_err(at(&path))?;
        Ok(is_ours(|| lock.try_lock(), patience)
            .map_err(at(&path))?
            .then_some(lock))
    }

    /// The path where the holder of the lock prepares an entry.
    pub fn aside(&self, key: &str) -> PathBuf {
        self.root.join(ASIDE).join(key)
    }

    /// The same, created and empty. Removes the leftovers of a killed process. Requires the lock.
    ///
    /// # Errors
    /// Storage: the directory is not writable.
    pub fn begin(&self, key: &str) -> Result<PathBuf> {
        let dir = self.aside(key);
        remove(&dir)?;
        make(&dir)?;
        Ok(dir)
    }

    /// A file on this disk without a name. It disappears with its last handle.
    ///
    /// # Errors
    /// Storage: the directory is not writable.
    pub fn nameless(&self) -> Result<File> {
        let dir = self.root.join(ASIDE);
        make(&dir)?;
        tempfile::tempfile_in(&dir).map_err(at(&dir))
    }

    /// Syncs the directories above a piece.
    ///
    /// # Errors
    /// Storage: a sync failed.
    pub fn sync_above(&self, piece: &Path) -> Result<()> {
        piece
            .ancestors()
            .skip(1)
            .take_while(|dir| dir.starts_with(&self.root))
            .try_for_each(sync)
    }

    /// Discards a piece: invisible at once, then deleted.
    ///
    /// # Errors
    /// Storage: the directory is not writable.
    pub fn discard(&self, piece: &Path) -> Result<()> {
        let aside = self.root.join(ASIDE);
        make(&aside)?;
        let away = aside.join(format!("{GONE}{}", own()));
        match fs::rename(piece, &away) {
            // Another process discarded it.
            Err(error) if is_gone(&error) => return Ok(()),
            renamed => renamed.map_err(at(piece))?,
        }
        remove(&away)
    }

    /// Discards the least recently used pieces until at most `most` bytes are left. Pieces in use, and pieces used after
    /// `spared`, stay. Returns the discarded ones.
    ///
    /// # Errors
    /// Storage: the directory is not writable. Earlier removals stay.
    pub fn make_room<T>(
        &self,
        mut all: Vec<T>,
        piece: impl Fn(&T) -> Piece<'_>,
        most: u64,
        spared: SystemTime,
    ) -> Result<Vec<T>> {
        all.sort_by_key(|one| piece(one).used);
        let mut size: u64 = all.iter().map(|one| piece(one).size).sum();
        let mut discarded = Vec::new();
        for one in all {
            let Piece {
                dir,
                size: bytes,
                used,
            } = piece(&one);
            if size <= most || used >= spared {
                break;
            }
            let path = dir.join(USED);
            let lock = match File::options().create(true).append(true).open(&path) {
                Err(error) if is_gone(&error) => continue,
                lock => lock.map_err(at(&path))?,
            };
            if !is_ours(|| lock.try_lock(), Duration::ZERO).map_err(at(&path))? {
                continue;
            }
            self.discard(dir)?;
            size -= bytes;
            discarded.push(one);
        }
        Ok(discarded)
    }

    /// Removes the leftovers of killed processes: unfinished and half-deleted entries.
    ///
    /// # Errors
    /// Storage: the directory exists and is not readable.
    pub fn tidy(&self) -> Result<()> {
        let aside = self.root.join(ASIDE);
        for name in names(&aside)? {
            // A process that prepares an entry holds its lock. A name without a lock file is a temporary file that is about to lose its
            // name.
            let turn = File::open(self.root.join(LOCKS).join(&name))
                .ok()
                .filter(|lock| lock.try_lock().is_ok());
            if turn.is_some() || name.starts_with(GONE) {
                // Another process may be deleting it as well.
                let _ = remove(&aside.join(name));
            }
        }
        Ok(())
    }
}

/// Takes a piece into use: it is not discarded while the file lives. `None` when it is gone or being discarded.
///
/// # Errors
/// Storage: the disk failed.
pub fn hold(piece: &Path) -> Result<Option<File>> {
    let path = piece.join(USED);
    // A read-only cache cannot be pruned either. A lock needs no write access.
    let opened = File::options()
        .create(true)
        .append(true)
        .open(&path)
        .or_else(|error| File::open(&path).map_err(|_| error));
    let used = match opened {
        Err(error) if is_gone(&error) => return Ok(None),
        used => used.map_err(at(&path))?,
    };
    if !is_ours(|| used.try_lock_shared(), MOMENT).map_err(at(&path))? {
        return Ok(None);
    }
    // Between open and lock the piece may have been discarded and even recreated: then the lock is on the old file.
    let inode = |meta: fs::Metadata| meta.ino();
    let ours = used.metadata().map(inode).map_err(at(&path))?;
    Ok(fs::metadata(&path)
        .is_ok_and(|meta| inode(meta) == ours)
        .then_some(used))
}

/// Tries to get a lock for `patience`. Blocks the thread.
fn is_ours(lock: impl Fn() -> Result<(), TryLockError>, patience: Duration) -> io::Result<bool> {
    let until = Instant::now() + patience;
    loop {
        match lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) if Instant::now() < until => thread::sleep(LOOK),
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// As [`write_atomic`], with the path in the error.
///
/// # Errors
/// Storage.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    write_atomic(path, bytes).map_err(at(path))
}

/// Writes a file atomically: synced under another name, then renamed. Of two concurrent writers, each writes a whole file.
///
/// # Errors
/// The disk failed; the old content stays.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", own()));
    let fresh = PathBuf::from(name);
    let written = File::options()
        .create_new(true)
        .write(true)
        .open(&fresh)
        .and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()
        });
    written
        .and_then(|()| fs::rename(&fresh, path))
        .inspect_err(|_| {
            let _ = fs::remove_file(&fresh);
        })
}

/// A unique name: processes of different pods may have the same id.
fn own() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let moment = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos();
    format!(
        "{}-{moment}-{}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    )
}

/// The names in a directory, sorted; none when there is no directory.
///
/// # Errors
/// Storage: it exists and is not readable.
pub fn names(dir: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if is_gone(&error) => return Ok(Vec::new()),
        entries => entries.map_err(at(dir))?,
    };
    let mut names: Vec<_> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    Ok(names)
}

/// Creates a directory and its parents.
///
/// # Errors
/// Storage: the disk failed.
pub fn make(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).map_err(at(dir))
}

/// Removes a directory, which may be missing.
///
/// # Errors
/// Storage: a part of it remains.
pub fn remove(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(dir)(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Syncs the names in a directory.
///
/// # Errors
/// Storage: the sync failed.
pub fn sync(dir: &Path) -> Result<()> {
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(at(dir))
}

/// Whether the error means that the path does not exist.
pub fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Makes a storage error for a path.
pub fn at(path: &Path) -> impl FnOnce(io::Error) -> Error + Copy + '_ {
    move |error| Error::storage(path.display(), &error)
}
