//! Versions of OpenTofu, Terraform and Terragrunt: decides from a stack's code which one is needed, as tenv does, downloads it,
//! verifies it and caches it.
//!
//! | module | holds |
//! |---|---|
//! | [`request`] | the decision for a tool and version: grammar, version files, `required_version` |
//! | [`releases`] | mirrors, lists of versions, the HTTP client |
//! | [`verify`] | digests, sums, keys, signatures |
//! | [`archive`] | unpacking with bounds |
//! | [`cache`] | the directory of tools that processes share |
//! | [`install`] | the whole path from a decision to a verified executable |
//! | [`error`], [`tool`] | errors; tools and platforms |

pub mod archive;
pub mod cache;
pub mod error;
pub mod install;
pub mod releases;
pub mod request;
pub mod tool;
pub mod verify;

pub use archive::{Limits, Taken};
pub use cache::store::Store;
pub use error::{Error, Kind, Result};
pub use install::{Channel, Installer, Verification};
pub use releases::{mirror::Mirror, read_mirror::Source};
pub use request::{
    Request,
    constraint::Constraints,
    decide::{Decision, Defaults, Requested, ToolReason, VersionReason, decide, tool_of},
    version::Version,
};
pub use tool::{Platform, Tool};
pub use verify::{
    digest::Digest,
    keys::{Fingerprint, Keyring},
    signature::Signed,
    sums::Sums,
};
