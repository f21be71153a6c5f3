//! That a version is what was installed: its digest, at every use.
//!
//! Reading 90 MB takes a tenth of a second, so the digest is remembered with the file's stamp: inode, size, and the times of its
//! last change. Nobody can write to a file without another change time, which no call can set; so the same stamp means
//! the same bytes. A file with another stamp, a cache that was copied for one, is read again.

use std::{
    fs::{self, File, TryLockError},
    io::{self, BufReader},
    os::unix::fs::MetadataExt as _,
    path::Path,
    thread,
    time::{Duration, Instant, SystemTime},
};

use serde::{Deserialize, Serialize};

use super::{Installed, SEEN, Store, USED, at, prune};
use crate::{Digest, Error, Result};

/// How long a lock that nobody should hold is waited for.
const MOMENT: Duration = Duration::from_millis(500);

/// What a file is as long as nobody writes to it. Without the device, whose number is another on each node that mounts a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    inode: u64,
    size: u64,
    changed: (i64, i64),
    modified: (i64, i64),
}

impl Stamp {
    /// The stamp of a file.
    ///
    /// # Errors
    /// When it cannot be looked at.
    pub fn of(path: &Path) -> io::Result<Self> {
        let meta = fs::metadata(path)?;
        Ok(Self {
            inode: meta.ino(),
            size: meta.size(),
            changed: (meta.ctime(), meta.ctime_nsec()),
            modified: (meta.mtime(), meta.mtime_nsec()),
        })
    }
}

/// SHA-256 of a file in hexadecimal digits, read as a stream.
///
/// # Errors
/// When it cannot be read.
pub fn digest(path: &Path) -> io::Result<String> {
    Ok(Digest::read(BufReader::with_capacity(256 * 1024, File::open(path)?))?.to_string())
}

#[derive(Serialize, Deserialize)]
struct Seen {
    stamp: Stamp,
    digest: String,
}

/// Keeps what a file was when it was read.
pub(super) fn remember(dir: &Path, stamp: &Stamp, digest: &str) -> Result<()> {
    let path = dir.join(SEEN);
    let bytes = serde_json::to_vec(&Seen { stamp: *stamp, digest: digest.to_owned() });
    let bytes = bytes.map_err(|error| Error::storage(path.display(), &error.into()))?;
    // Of its own name, so that whoever reads sees the old one or the new one. Processes of several pods may have one number.
    let moment = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    let fresh = dir.join(format!("{SEEN}.{}-{moment}", std::process::id()));
    fs::write(&fresh, bytes).and_then(|()| fs::rename(&fresh, &path)).map_err(at(&path))
}

/// A version that is in use, and was shown to be what was installed. It is not pruned as long as this lives.
#[derive(Debug)]
pub struct InUse {
    /// The version.
    pub installed: Installed,
    _shared: File,
}

impl Store {
    /// Takes a version into use. One whose bytes are others than were installed is removed.
    ///
    /// # Errors
    /// `Integrity` when its bytes are others; `Unavailable` when it is being removed this moment; when the disk does not answer.
    pub fn take(&self, installed: Installed) -> Result<InUse> {
        let path = installed.dir().join(USED);
        let gone = || Error::unavailable(format!("{} {} is being removed from the cache", installed.tool, installed.version));
        let used = File::options().create(true).append(true).open(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => gone(),
            _ => Error::storage(path.display(), &error),
        });
        // A cache that may only be read, an image's for one, is nobody's to prune either.
        let used = match used {
            Err(error) if is_read_only(&path) => File::open(&installed.binary).map_err(|_| error)?,
            used => used?,
        };
        let until = Instant::now() + MOMENT;
        loop {
            match used.try_lock_shared() {
                Ok(()) => break,
                // A process that is being started holds its parent's locks for a moment.
                Err(TryLockError::WouldBlock) if Instant::now() < until => thread::sleep(MOMENT / 20),
                Err(TryLockError::WouldBlock) => return Err(gone()),
                Err(TryLockError::Error(error)) => return Err(Error::storage(path.display(), &error)),
            }
        }
        let stamp = match Stamp::of(&installed.binary) {
            // It was taken away between the two.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(gone()),
            stamp => stamp.map_err(at(&installed.binary))?,
        };
        let seen = fs::read(installed.dir().join(SEEN)).ok().and_then(|bytes| serde_json::from_slice::<Seen>(&bytes).ok());
        if seen.is_none_or(|seen| seen.stamp != stamp || seen.digest != installed.digest) {
            let found = digest(&installed.binary).map_err(at(&installed.binary))?;
            if found != installed.digest {
                drop(used);
                prune::discard(self, &installed)?;
                return Err(Error::integrity(format!(
                    "{} {} in the cache is not what was installed: sha256:{} was, sha256:{found} is there; it was removed",
                    installed.tool, installed.version, installed.digest
                )));
            }
            // A cache that cannot be written is read again the next time.
            let _ = remember(installed.dir(), &stamp, &found);
        }
        let _ = used.set_modified(SystemTime::now());
        Ok(InUse { installed, _shared: used })
    }
}

fn is_read_only(path: &Path) -> bool {
    let error = File::options().append(true).create(true).open(path).err().map(|error| error.kind());
    matches!(error, Some(io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied))
}
