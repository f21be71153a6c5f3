//! A directory that any number of processes, pods and nodes may share. What is in it has its name only when all of it is on the disk;
//! locks are the kernel's, and end with their holders; what is taken away is gone at once for everybody who looks.

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

/// Where unfinished and discarded things are.
const ASIDE: &str = ".aside";
const LOCKS: &str = ".locks";
/// What begins the names of discarded things.
const GONE: &str = "gone-";
/// In each piece: locked by those who use it, and changed when somebody begins to.
pub const USED: &str = "used";
/// Between two looks at a lock that somebody holds.
const LOOK: Duration = Duration::from_millis(25);
/// How long a lock that nobody should hold is waited for: a process that is being started has its parent's for a moment.
const MOMENT: Duration = Duration::from_millis(500);

/// A shared directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedDir {
    root: PathBuf,
}

/// A directory in it that is kept or goes as a whole.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    pub dir: &'a Path,
    /// Bytes.
    pub size: u64,
    /// When somebody began to use it last.
    pub used: SystemTime,
}

impl SharedDir {
    /// A directory, which is made when something is put there.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// One's turn to write what has this name; none when it is still another's after so long. Blocks the thread.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn turn(&self, key: &str, patience: Duration) -> Result<Option<File>> {
        let path = self.root.join(LOCKS).join(key);
        make(path.parent().unwrap_or(&path))?;
        let mut options = OpenOptions::new();
        let lock = options.create(true).truncate(false).write(true).mode(0o644).open(&path).map_err(at(&path))?;
        Ok(is_ours(|| lock.try_lock(), patience).map_err(at(&path))?.then_some(lock))
    }

    /// Where what has this name is prepared by whoever has the turn.
    pub fn aside(&self, key: &str) -> PathBuf {
        self.root.join(ASIDE).join(key)
    }

    /// The same, made and empty: what somebody who was killed left goes. Nobody else touches it, since the turn is the caller's.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn begin(&self, key: &str) -> Result<PathBuf> {
        let dir = self.aside(key);
        remove(&dir)?;
        make(&dir)?;
        Ok(dir)
    }

    /// A file on this disk without a name: it goes with the last who has it open.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn nameless(&self) -> Result<File> {
        let dir = self.root.join(ASIDE);
        make(&dir)?;
        tempfile::tempfile_in(&dir).map_err(at(&dir))
    }

    /// Puts the names above a piece on the disk.
    ///
    /// # Errors
    /// When the disk does not take them.
    pub fn sync_above(&self, piece: &Path) -> Result<()> {
        piece.ancestors().skip(1).take_while(|dir| dir.starts_with(&self.root)).try_for_each(sync)
    }

    /// Takes a piece away: at once for everybody who looks, then its bytes.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn discard(&self, piece: &Path) -> Result<()> {
        let aside = self.root.join(ASIDE);
        make(&aside)?;
        let away = aside.join(format!("{GONE}{}", own()));
        match fs::rename(piece, &away) {
            // Somebody else took it away.
            Err(error) if is_gone(&error) => return Ok(()),
            renamed => renamed.map_err(at(piece))?,
        }
        remove(&away)
    }

    /// Discards pieces, those that were used longest ago first, until at most so many bytes are left. Those in use, and those that
    /// were used after `spared`, stay. Returns what was discarded.
    ///
    /// # Errors
    /// When the directory cannot be written; what was discarded until then is.
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
            let Piece { dir, size: bytes, used } = piece(&one);
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

    /// Removes what those who were killed left: half done, and half removed.
    ///
    /// # Errors
    /// When the directory is there and cannot be read.
    pub fn tidy(&self) -> Result<()> {
        let aside = self.root.join(ASIDE);
        for name in names(&aside)? {
            // Whoever prepares something has the lock of its name. What has none is a file that loses its name this moment.
            let turn = File::open(self.root.join(LOCKS).join(&name)).ok().filter(|lock| lock.try_lock().is_ok());
            if turn.is_some() || name.starts_with(GONE) {
                // Whoever discarded it may be at it too.
                let _ = remove(&aside.join(name));
            }
        }
        Ok(())
    }
}

/// Takes a piece into use: it is not discarded as long as the file lives. None when it is gone, or going this moment.
///
/// # Errors
/// When the disk does not answer.
pub fn hold(piece: &Path) -> Result<Option<File>> {
    let path = piece.join(USED);
    // What may only be read is nobody's to discard either; a lock can be had on what is open for reading as well.
    let opened = File::options().create(true).append(true).open(&path).or_else(|error| File::open(&path).map_err(|_| error));
    let used = match opened {
        Err(error) if is_gone(&error) => return Ok(None),
        used => used.map_err(at(&path))?,
    };
    if !is_ours(|| used.try_lock_shared(), MOMENT).map_err(at(&path))? {
        return Ok(None);
    }
    // It may have been discarded between the two, and even be there anew; then the lock is on what nobody sees.
    let inode = |meta: fs::Metadata| meta.ino();
    let ours = used.metadata().map(inode).map_err(at(&path))?;
    Ok(fs::metadata(&path).is_ok_and(|meta| inode(meta) == ours).then_some(used))
}

/// Whether a lock can be had within so long. Blocks the thread.
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

/// Writes a file in one step for whoever reads it, as [`write_atomic`].
///
/// # Errors
/// Of the storage, with the path.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    write_atomic(path, bytes).map_err(at(path))
}

/// Writes a file in one step for whoever reads it: all of it or nothing, on the disk before it has its name. Of two that write at
/// once, each writes a whole file.
///
/// # Errors
/// When the disk does not take it; then what was there is there.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", own()));
    let fresh = PathBuf::from(name);
    let written = File::options().create_new(true).write(true).open(&fresh).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written.and_then(|()| fs::rename(&fresh, path)).inspect_err(|_| {
        let _ = fs::remove_file(&fresh);
    })
}

/// A name that nobody else has: processes of several pods may have one number.
fn own() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let moment = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    format!("{}-{moment}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// The names in a directory, in order; none when there is no directory.
///
/// # Errors
/// When it is there and cannot be read.
pub fn names(dir: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if is_gone(&error) => return Ok(Vec::new()),
        entries => entries.map_err(at(dir))?,
    };
    let mut names: Vec<_> = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    Ok(names)
}

/// Makes a directory and those above it.
///
/// # Errors
/// When the disk does not take it.
pub fn make(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).map_err(at(dir))
}

/// Removes a directory; that there is none is as good.
///
/// # Errors
/// When something of it stays.
pub fn remove(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(dir)(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Puts the names in a directory on the disk.
///
/// # Errors
/// When the disk does not take them.
pub fn sync(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(at(dir))
}

/// Whether there is nothing at a path.
pub fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// An error of the disk, on a path.
pub fn at(path: &Path) -> impl FnOnce(io::Error) -> Error + Copy + '_ {
    move |error| Error::storage(path.display(), &error)
}
