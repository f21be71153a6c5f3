//! Which version of OpenTofu, Terraform or Terragrunt a stack asks for: decided from its code, as tenv does, got from where the
//! releases are, proven to be genuine, and kept so that it is never got twice.
//!
//! | module | holds |
//! |---|---|
//! | [`version`], [`constraint`], [`request`] | the grammar |
//! | [`files`] | version files, nearest directory first |
//! | [`required`] | `required_version` of the code |
//! | [`mod@decide`] | which tool, and what of its versions is asked for |
//! | [`mirror`], [`source`] | where the releases of a tool are; reading them from there |
//! | [`lists`], [`list_cache`] | lists of versions; those that were got before |
//! | [`http`] | HTTP with our rules |
//! | [`digest`], [`sums`], [`keys`], [`signature`] | what proves that a file is the one which was published |
//! | [`archive`] | takes the executable out of what it is packed in |
//! | [`store`] | the cache: installs, verifies, prunes |
//! | [`shared_dir`] | a directory that many processes share, which the cache is |
//! | [`supply`] | all of it together: from what is asked for to an executable that may be run |
//! | [`hcl`] | reading HCL within bounds |
//! | [`place`], [`error`], [`tool`] | where something was read; what went wrong; tools and platforms |

pub mod archive;
pub mod constraint;
pub mod decide;
pub mod digest;
pub mod error;
pub mod files;
pub mod hcl;
pub mod http;
pub mod keys;
pub mod list_cache;
pub mod lists;
pub mod mirror;
pub mod place;
pub mod request;
pub mod required;
pub mod shared_dir;
pub mod signature;
pub mod source;
pub mod store;
pub mod sums;
pub mod supply;
pub mod tool;
pub mod version;

pub use archive::{Limits, Packing, Taken};
pub use constraint::Constraints;
pub use decide::{Decision, Defaults, ToolWhy, Why, Wish, decide, tool_of};
pub use digest::Digest;
pub use error::{Error, Kind, Result};
pub use keys::{Fingerprint, Keyring};
pub use mirror::Mirror;
pub use request::Request;
pub use signature::Signed;
pub use source::Source;
pub use store::Store;
pub use sums::Sums;
pub use supply::{Channel, Supply, Verification};
pub use tool::{Platform, Tool};
pub use version::Version;
