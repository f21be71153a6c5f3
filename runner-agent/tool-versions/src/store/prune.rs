//! What goes when there is too much: versions that were used longest ago, and never one that is in use.

use std::{
    fs::{self, File, TryLockError},
    io,
    sync::atomic::{AtomicU32, Ordering},
    time::SystemTime,
};

use super::{ASIDE, Installed, LOCKS, Store, USED, at, remove};
use crate::{Error, Result};

impl Store {
    /// Removes versions, those that were used longest ago first, until at most so many bytes are left. Those in use, and those that were
    /// used after `spared`, stay. Returns what was removed.
    ///
    /// # Errors
    /// When the cache cannot be read or written; what was removed until then is removed.
    pub fn prune(&self, most: u64, spared: SystemTime) -> Result<Vec<Installed>> {
        self.tidy()?;
        let mut all = self.list()?;
        all.sort_by_key(|installed| installed.used);
        let mut size: u64 = all.iter().map(|installed| installed.size).sum();
        let mut removed = Vec::new();
        for installed in all {
            if size <= most || installed.used >= spared {
                break;
            }
            let path = installed.dir().join(USED);
            let lock = File::options().create(true).append(true).open(&path).map_err(at(&path))?;
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => continue,
                Err(TryLockError::Error(error)) => return Err(Error::storage(path.display(), &error)),
            }
            discard(self, &installed)?;
            size -= installed.size;
            removed.push(installed);
        }
        Ok(removed)
    }

    /// Removes what those who were killed left: versions half done, and versions half removed.
    fn tidy(&self) -> Result<()> {
        let aside = self.root.join(ASIDE);
        for name in super::names(&aside)? {
            let path = aside.join(&name);
            if name.starts_with("gone-") {
                remove(&path)?;
                continue;
            }
            // Whoever installs a version has its lock, under the same name.
            let lock = self.root.join(LOCKS).join(&name);
            let Ok(lock) = File::open(&lock) else { continue };
            if lock.try_lock().is_ok() {
                remove(&path)?;
            }
        }
        Ok(())
    }
}

/// Takes a version away: at once for everybody who looks, then its bytes.
pub(super) fn discard(store: &Store, installed: &Installed) -> Result<()> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let aside = store.root.join(ASIDE);
    fs::create_dir_all(&aside).map_err(at(&aside))?;
    let name = format!("gone-{}-{}-{}", installed.digest, std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let away = aside.join(name);
    match fs::rename(installed.dir(), &away) {
        // Somebody else took it away.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        renamed => renamed.map_err(at(installed.dir()))?,
    }
    remove(&away)
}
