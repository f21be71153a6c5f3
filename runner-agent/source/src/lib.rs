//! Sources of code: fetches one revision of a git repository, writes inline files, and checks the content of a tree.
//!
//! This crate knows no runs, pods or settings, so that agent and repository server share it. It starts no processes: its user
//! implements [`Git`], with deadlines, log, redaction and sandbox.
//!
//! | module | holds |
//! |---|---|
//! | [`git`] | one revision of a repository, fetched with the `git` binary |
//! | [`url`] | URLs and revisions that git may get |
//! | [`credentials`] | credentials for hosts |
//! | [`identity`] | private keys |
//! | [`ssh`] | the files of `ssh` |
//! | `forges` | host keys of public forges |
//! | [`git_errors`] | classification of the errors of git and ssh |
//! | [`lfs`] | Git LFS pointers and contents |
//! | [`snapshot`] | the tree of one commit as an archive, verified against the commit id |
//! | [`tree`] | inline files, the stack's directory, escaping links |

// Agent and sources share this API.
#![warn(missing_docs)]

pub mod authorities;
pub mod credentials;
mod forges;
pub mod git;
pub mod git_errors;
pub mod identity;
pub mod lfs;
pub mod listing;
pub mod snapshot;
pub mod ssh;
pub mod tree;
pub mod url;

pub use credentials::{Credentials, Login};
pub use git::{Git, Repository};
pub use git_errors::{Ended, FetchError, Refusal};
pub use identity::{Identity, IdentityError};
pub use ssh::SshFiles;
pub use tree::{TreeError, check_links, stack, write_files};
pub use url::{Transport, Url};
