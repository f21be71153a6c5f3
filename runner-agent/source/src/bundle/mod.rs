//! The tree of one commit as an archive, and back, with the proof that it is that commit's.
//!
//! `.tar.gz`. Its first entry, [`HEADER`], has what a tree does not say of itself: the commit, the submodules, the pointers of Git LFS. The
//! others are the files of the tree, byte for byte as git has them: no attribute leaves one out, converts it or substitutes in it.
//! Submodules lie where they belong, where the mirror has their commits, and large files in place of their pointers, where it has those.
//!
//! Whoever unpacks one believes nothing of it: the id of the commit is computed from the files, as git computes it.

pub mod object;
mod pack;
mod unpack;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tool_versions::Limits;

pub use pack::{PackError, Packed, pack};
pub use unpack::{UnpackError, Unpacked, unpack};

/// The name of the first entry.
pub const HEADER: &str = ".pawl-bundle.json";
/// What a bundle may hold: 4 GiB, 200000 files and directories. How tightly they are packed is not judged: a tree is what its commit says.
pub const LIMITS: Limits = Limits { size: 4 << 30, ratio: u64::MAX, entries: 200_000 };
/// The largest header, in bytes: 16 MiB.
const MAX_HEADER: u64 = 16 << 20;
/// The form of what is written here.
const VERSION: u32 = 1;

/// What the first entry says. Paths are relative to the top.
#[derive(Serialize, Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase")]
struct Header {
    /// Its form.
    version: u32,
    /// Id of the commit.
    revision: String,
    /// Commits as git has them, in base64: of the top, whose path is empty, and of each submodule that is in the bundle.
    commits: BTreeMap<String, String>,
    /// The commits that the tree names for its submodules.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    gitlinks: BTreeMap<String, String>,
    /// Pointers of Git LFS, in place of which the bundle has what they point to.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    lfs: BTreeMap<String, String>,
}
