//! What goes when there is too much: packages that were used longest ago, and never one that is in use.

use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use tool_versions::{
    Result,
    cache::shared_dir::{Piece, USED, names},
};

use super::{Cache, cache::RECORD, package::Record};

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
        self.dir.tidy()?;
        let mut all = Vec::new();
        packages(self.dir.root(), DEPTH, &mut all)?;
        let removed = self.dir.make_room(all, |one| Piece { dir: &one.place, size: one.size, used: one.used }, most, spared)?;
        Ok(removed.into_iter().map(|package| package.place).collect())
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
