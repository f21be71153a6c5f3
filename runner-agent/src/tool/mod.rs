//! The tool that runs: which one, which version, and where it is. What is asked for is decided by the crate `tool-versions`.

pub mod cli;
mod find;

pub use find::{AtHand, Found, Stamp, digest, evidence, find};
pub use tool_versions::Version;
