//! The tool that runs: which one, which version, and where it is. What is asked for, and how a version is got, is of the crate
//! `tool-versions`.
//!
//! | module | holds |
//! |---|---|
//! | [`outfit`] | where tools are from, as the operator says |
//! | [`find`] | the tool for a stack |
//! | [`path`] | the tools on PATH, and what is remembered of them |

pub mod find;
pub mod outfit;
pub mod path;

pub use find::{AtHand, Found, Search, evidence};
pub use outfit::Outfit;
pub use tool_versions::{
    Version,
    store::verify::{Stamp, digest},
};
