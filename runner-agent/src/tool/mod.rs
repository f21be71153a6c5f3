//! The tool to run: name, version and path. The crate `tool-versions` decides versions and installs them.
//!
//! | module | holds |
//! |---|---|
//! | [`sources`] | sources of tools, as the operator configures them |
//! | [`find`] | the tool for a stack |
//! | [`image`] | statements of an image about its tools |
//! | [`path`] | the tools on PATH, with a cache of their versions |
//! | [`wrapped`] | the program that Terragrunt calls in the tool's place |

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
