//! The tool that runs: which one, which version, and where it is. What is asked for, and how a version is got, is of the crate
//! `tool-versions`.
//!
//! | module | holds |
//! |---|---|
//! | [`sources`] | where tools are from, as the operator says |
//! | [`find`] | the tool for a stack |
//! | [`image`] | what an image states of the tools in it |
//! | [`path`] | the tools on PATH, and what is remembered of them |
//! | [`wrapped`] | what Terragrunt calls in the tool's place |

pub mod find;
pub mod image;
pub mod path;
pub mod sources;
pub mod wrapped;

pub use find::{Found, Search, evidence};
pub use sources::{LocalTool, ToolSources};
pub use tool_versions::{
    Version,
    cache::store::verify::{Stamp, digest},
};
