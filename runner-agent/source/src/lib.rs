//! Sources of code: fetches one revision of a git repository, writes inline files, and checks the content of a tree.
//!
//! This crate knows no runs, pods or settings, so that agent and repository server share it. It starts no processes: its user
//! implements [`Git`], with deadlines, log, redaction and sandbox.
//!
//! | module | holds |
//! |---|---|
//! | [`git`] | one revision of a repository, and the environment of the `git` binary |
//! | [`clone`] | the tree of `git clone --depth=1 --recurse-submodules` |
//! | [`submodules`] | which submodules are fetched |
//! | [`url`] | URLs and revisions that git may get |
//! | [`credentials`] | credentials for hosts |
//! | [`identity`] | private keys |
//! | [`ssh`] | the files of `ssh` |
//! | `forges` | host keys of public forges |
//! | [`git_errors`] | classification of the errors of git and ssh |
//! | [`lfs`] | Git LFS pointers and contents |
//! | [`snapshot`] | the objects of one commit in an archive, from which the same tree is made |
//! | [`tree`] | inline files, the stack's directory, escaping links |

// Agent and sources share this API.
#![warn(missing_docs)]

pub mod authorities;
pub mod clone;
pub mod credentials;
mod forges;
pub mod git;
pub mod git_errors;
pub mod identity;
pub mod lfs;
pub mod listing;
pub mod snapshot;
pub mod ssh;
pub mod submodules;
pub mod tree;
pub mod url;

pub use clone::Fetched;
pub use credentials::{Credentials, Login};
pub use git::{Git, Repository};
pub use git_errors::{Ended, FetchError, Refusal};
pub use identity::{Identity, IdentityError};
pub use ssh::SshFiles;
pub use tree::{TreeError, Used, stack, write_files};
pub use url::{Transport, Url};
