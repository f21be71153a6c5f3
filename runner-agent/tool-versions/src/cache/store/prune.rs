//! What goes when there is too much: versions that were used longest ago, and never one that is in use.

use std::time::SystemTime;

use super::{Installed, Store};
use crate::{Result, cache::shared_dir::Piece};

impl Store {
    /// Removes versions, those that were used longest ago first, until at most so many bytes are left. Those in use, and those that were
    /// used after `spared`, stay. What those who were killed left goes as well. Returns what was removed.
    ///
    /// # Errors
    /// When the cache cannot be read or written; what was removed until then is removed.
    pub fn prune(&self, most: u64, spared: SystemTime) -> Result<Vec<Installed>> {
        self.dir.tidy()?;
        self.dir.make_room(self.list()?, |one| Piece { dir: one.dir(), size: one.size, used: one.used }, most, spared)
    }
}
