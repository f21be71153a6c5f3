//! Which version of OpenTofu, Terraform or Terragrunt a stack asks for: decided from its code, as tenv does, got from where the
//! releases are, proven to be genuine, and kept so that it is never got twice.
//!
//! | module | holds |
//! |---|---|
//! | [`request`] | which tool and version are asked for: the grammar, version files, `required_version` |
//! | [`releases`] | where releases are, lists of versions, HTTP with our rules |
//! | [`verify`] | what proves that a file is the one which was published |
//! | [`archive`] | takes the executable out of what it is packed in |
//! | [`cache`] | the directory of tools that many processes share |
//! | [`install`] | all of it together: from what is asked for to an executable that may be run |
//! | [`error`], [`tool`] | what went wrong; tools and platforms |

pub mod archive;
pub mod cache;
pub mod error;
pub mod install;
pub mod releases;
pub mod request;
pub mod tool;
pub mod verify;

pub use archive::{Limits, Packing, Taken};
pub use cache::store::Store;
pub use error::{Error, Kind, Result};
pub use install::{Channel, Installer, Verification};
pub use releases::{mirror::Mirror, source::Source};
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
