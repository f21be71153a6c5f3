//! The tree of one commit as an archive, and its verification against the commit id.
//!
//! The format is `.tar.gz`. The first entry, [`HEADER`], has what a tree lacks: the commit, the submodules, the Git LFS pointers.
//! The others are the files of the tree with the bytes of git's objects; no attribute excludes, converts or substitutes anything.
//! Submodules are in their places if the mirror has their commits, and large files replace their pointers if the mirror has them.
//!
//! The reader trusts nothing in it: it computes the commit id from the files as git does.

pub mod object;
mod pack;
mod unpack;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use crate::listing::LIMITS;
use serde::{Deserialize, Serialize};

pub use pack::{PackError, Packed, pack};
pub use unpack::{UnpackError, Unpacked, unpack};

/// The name of the first entry.
pub const HEADER: &str = ".pawl-snapshot.json";
/// The largest header, in bytes: 16 MiB.
const MAX_HEADER: u64 = 16 << 20;
/// The format version that this program writes.
const VERSION: u32 = 1;

/// The content of the first entry. Paths are relative to the root.
#[derive(Serialize, Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase")]
struct Header {
    /// The format version.
    version: u32,
    /// The commit id.
    revision: String,
    /// Commit objects in base64: of the root, whose path is empty, and of each included submodule.
    commits: BTreeMap<String, String>,
    /// The submodule commits that the tree names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    gitlinks: BTreeMap<String, String>,
    /// The Git LFS pointers whose contents the snapshot has.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    lfs: BTreeMap<String, String>,
}
