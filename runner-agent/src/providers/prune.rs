//! What goes when there is too much: packages that were used longest ago, and never one that is in use.

use std::{
    fs::{self, File, TryLockError},
    path::{Path, PathBuf},
    time::SystemTime,
};

use tool_versions::Result;

use super::{
    Cache,
    cache::{ASIDE, RECORD, USED, at, is_gone, remove},
    package::Record,
};

/// Directories above a package: host, namespace, name, version, platform, hash.
const DEPTH: usize = 6;

struct Package {
    place: PathBuf,
    size: u64,
    used: SystemTime,
}

impl Cache {
    /// Removes packages of all platforms, those that were used longest ago first, until at most so many bytes are left. Those in use, and
    /// those that were used after `spared`, stay. What the dead left unfinished goes as well. Returns what was removed.
    ///
    /// # Errors
    /// When the cache cannot be read or written; what was removed until then is removed.
    pub fn prune(&self, most: u64, spared: SystemTime) -> Result<Vec<PathBuf>> {
        self.sweep()?;
        let mut all = Vec::new();
        packages(&self.root, DEPTH, &mut all)?;
        all.sort_by_key(|package| package.used);
        let mut size: u64 = all.iter().map(|package| package.size).sum();
        let mut removed = Vec::new();
        for package in all {
            if size <= most || package.used >= spared {
                break;
            }
            let path = package.place.join(USED);
            let lock = match File::options().append(true).open(&path) {
                Err(error) if is_gone(&error) => continue,
                lock => lock.map_err(at(&path))?,
            };
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => continue,
                Err(TryLockError::Error(error)) => return Err(at(&path)(error)),
            }
            self.discard(&package.place)?;
            size -= package.size;
            removed.push(package.place);
        }
        Ok(removed)
    }

    /// Removes what is aside and nobody's any more.
    fn sweep(&self) -> Result<()> {
        for name in names(&self.root.join(ASIDE))? {
            let turn = if name.starts_with("gone-") { None } else { self.turn(&name)? };
            if name.starts_with("gone-") || turn.is_some() {
                // Whoever discarded it may be at it too.
                let _ = remove(&self.root.join(ASIDE).join(name));
            }
        }
        Ok(())
    }
}

fn packages(dir: &Path, depth: usize, all: &mut Vec<Package>) -> Result<()> {
    if depth == 0 {
        // What has no record is no package, and goes when one comes in its place.
        let record = fs::read(dir.join(RECORD)).ok().and_then(|text| serde_json::from_slice::<Record>(&text).ok());
        let used = fs::metadata(dir.join(USED)).and_then(|meta| meta.modified()).ok();
        if let (Some(record), Some(used)) = (record, used) {
            all.push(Package { place: dir.to_path_buf(), size: record.size, used });
        }
        return Ok(());
    }
    for name in names(dir)?.iter().filter(|name| !name.starts_with('.')) {
        packages(&dir.join(name), depth - 1, all)?;
    }
    Ok(())
}

/// The names in a directory; none when there is no directory.
fn names(dir: &Path) -> Result<Vec<String>> {
    match fs::read_dir(dir) {
        Err(error) if is_gone(&error) => Ok(Vec::new()),
        Err(error) => Err(at(dir)(error)),
        Ok(entries) => Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()),
    }
}
