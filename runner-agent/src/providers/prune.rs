//! Pruning: removes the least recently used packages, never one in use.

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
    /// Removes the least recently used packages of all platforms until at most `most` bytes are left, and the leftovers of killed
    /// processes. Packages in use, and packages used after `spared`, stay. Returns the removed ones.
    ///
    /// # Errors
    /// The cache is not readable or writable. Earlier removals stay.
    pub fn prune(&self, most: u64, spared: SystemTime) -> Result<Vec<PathBuf>> {
        self.dir.tidy()?;
        let mut all = Vec::new();
        packages(self.dir.root(), DEPTH, &mut all)?;
        let removed = self.dir.make_room(
            all,
            |one| Piece {
                dir: &one.place,
                size: one.size,
                used: one.used,
            },
            most,
            spared,
        )?;
        Ok(removed.into_iter().map(|package| package.place).collect())
    }
}

fn packages(dir: &Path, depth: usize, all: &mut Vec<Package>) -> Result<()> {
    if depth == 0 {
        // Without a record it is no package; storing one of its name replaces it.
        let record = fs::read(dir.join(RECORD))
            .ok()
            .and_then(|text| serde_json::from_slice::<Record>(&text).ok());
        let used = fs::metadata(dir.join(USED))
            .and_then(|meta| meta.modified())
            .ok();
        if let (Some(record), Some(used)) = (record, used) {
            all.push(Package {
                place: dir.to_path_buf(),
                size: record.size,
                used,
            });
        }
        return Ok(());
    }
    for name in names(dir)?.iter().filter(|name| !name.starts_with('.')) {
        packages(&dir.join(name), depth - 1, all)?;
    }
    Ok(())
}
