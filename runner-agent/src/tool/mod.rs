//! The tool that runs: which one, which version, and where it is.

mod find;
mod version;

pub use find::{Found, Stamp, digest, evidence, find};
pub use version::{Constraints, Version, VersionError};
