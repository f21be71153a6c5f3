//! The objects of one commit, with its submodules and the contents of its large files, in an archive. A tree is made of it by the same
//! function as from a server (`clone.rs`), so attributes, modes and odd names are git's own matter.
//!
//! The archive is a `.tar`: [`HEADER`], a pack of git, and the contents by their SHA-256. The reader trusts nothing in it: git computes
//! the id of each object, and the commit fixes all others; the contents are compared with their pointers.

mod pack;
mod unpack;

use serde::{Deserialize, Serialize};

pub use crate::listing::LIMITS;
pub use pack::{PackError, pack};
pub use unpack::{UnpackError, Unpacked, unpack};

/// The name of the first entry.
const HEADER: &str = "pawl-snapshot.json";
/// The name of the pack.
const PACK: &str = "objects.pack";
/// The directory of the contents of large files.
const LARGE: &str = "lfs";
/// The largest header, in bytes: 1 MiB.
const MAX_HEADER: u64 = 1 << 20;
/// The format version that this program writes.
const VERSION: u32 = 2;

/// The content of the first entry.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Header {
    /// The format version. [`pack`] sets it.
    pub version: u32,
    /// The branch that `HEAD` of the repository names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<String>,
    /// The tags of the commit, each with the id of its object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<(String, String)>,
    /// The repository, then the submodules: URL and commit.
    pub remotes: Vec<(String, String)>,
}
