//! Verification of the digest at every use.
//!
//! Reading 90 MB takes 0.1 s, so the digest is stored with the stamp of the file: inode, size, ctime and mtime. A write changes
//! the ctime, and no system call sets it, so an equal stamp means equal bytes. A file with another stamp, such as one of a copied
//! cache, is read again.

use std::{
    fs::{self, File},
    io::{self, BufReader},
    os::unix::fs::MetadataExt as _,
    path::Path,
    time::SystemTime,
};

use serde::{Deserialize, Serialize};

use super::{Installed, SEEN, Store};
use crate::{
    Digest, Error, Result,
    cache::shared_dir::{at, hold, replace},
};

/// The stamp of a file. It lacks the device, whose number differs on each node that mounts a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    inode: u64,
    size: u64,
    changed: (i64, i64),
    modified: (i64, i64),
}

impl Stamp {
    /// Reads the stamp of a file.
    ///
    /// # Errors
    /// Those of stat(2).
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

/// SHA-256 of a file in hex, read as a stream.
///
/// # Errors
/// Those of reading.
pub fn digest(path: &Path) -> io::Result<String> {
    Ok(Digest::read(BufReader::with_capacity(256 * 1024, File::open(path)?))?.to_string())
}

#[derive(Serialize, Deserialize)]
struct Seen {
    stamp: Stamp,
    digest: String,
}

/// Stores the stamp and digest of a file.
pub(super) fn remember(dir: &Path, stamp: &Stamp, digest: &str) -> Result<()> {
    let path = dir.join(SEEN);
    let bytes = serde_json::to_vec(&Seen {
        stamp: *stamp,
        digest: digest.to_owned(),
    });
    replace(&path, &bytes.map_err(|error| at(&path)(error.into()))?)
}

/// A verified version in use. It is not pruned while this lives.
#[derive(Debug)]
pub struct InUse {
    pub installed: Installed,
    _shared: File,
}

impl Store {
    /// Takes a version into use. Removes it when its bytes have changed.
    ///
    /// # Errors
    /// Integrity when its bytes have changed, unavailable when it is being removed, storage when the disk failed.
    pub fn take(&self, installed: Installed) -> Result<InUse> {
        let gone = || {
            Error::unavailable(format!(
                "{} {} is being removed from the cache",
                installed.tool, installed.version
            ))
        };
        let used = hold(installed.dir())?.ok_or_else(gone)?;
        let stamp = match Stamp::of(&installed.binary) {
            // Removed in between.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(gone()),
            stamp => stamp.map_err(at(&installed.binary))?,
        };
        let seen = fs::read(installed.dir().join(SEEN))
            .ok()
            .and_then(|bytes| serde_json::from_slice::<Seen>(&bytes).ok());
        if seen.is_none_or(|seen| seen.stamp != stamp || seen.digest != installed.digest) {
            let found = digest(&installed.binary).map_err(at(&installed.binary))?;
            if found != installed.digest {
                drop(used);
                self.dir.discard(installed.dir())?;
                return Err(Error::integrity(format!(
                    "{} {} in the cache is not what was installed: sha256:{} was, sha256:{found} is there; it was removed",
                    installed.tool, installed.version, installed.digest
                )));
            }
            // A read-only cache is read again the next time.
            let _ = remember(installed.dir(), &stamp, &found);
        }
        let _ = used.set_modified(SystemTime::now());
        Ok(InUse {
            installed,
            _shared: used,
        })
    }
}
