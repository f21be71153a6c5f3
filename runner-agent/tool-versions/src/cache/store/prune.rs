//! Pruning: removes the least recently used versions, never one in use.

use std::time::SystemTime;

use super::{Installed, Store};
use crate::{Result, cache::shared_dir::Piece};

impl Store {
    /// Removes the least recently used versions until at most `most` bytes are left, and the leftovers of killed processes.
    /// Versions in use, and versions used after `spared`, stay. Returns the removed ones.
    ///
    /// # Errors
    /// Storage: the cache is not readable or writable. Earlier removals stay.
    pub fn prune(&self, most: u64, spared: SystemTime) -> Result<Vec<Installed>> {
        self.dir.tidy()?;
        self.dir.make_room(
            self.list()?,
            |one| Piece {
                dir: one.dir(),
                size: one.size,
                used: one.used,
            },
            most,
            spared,
        )
    }
}
