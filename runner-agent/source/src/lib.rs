//! Where code comes from: fetches one revision of a git repository, writes files that are given, and checks what a tree may hold.
//!
//! This crate knows no runs, pods or settings of the agent, so that a controller of repositories can use it as well. It does not start
//! processes itself either: whoever uses it says how `git` is run ([`Git`]), with his deadlines, log, redaction and confinement.
//!
//! | module | holds |
//! |---|---|
//! | [`git`] | one revision of a repository, fetched with the `git` binary |
//! | [`url`] | what git is given to fetch |
//! | [`credentials`] | who asks a host |
//! | [`identity`] | private keys |
//! | [`ssh`] | the files that `ssh` is told of |
//! | `forges` | keys of the hosts of public forges |
//! | [`words`] | what git and ssh say when a revision is not there |
//! | [`lfs`] | files that git holds only pointers to, and their contents |
//! | [`bundle`] | the tree of one commit as an archive, and the proof that it is that commit's |
//! | [`tree`] | files that are given one by one, the stack's directory, links that lead out |

// Agent and sources share this API.
#![warn(missing_docs)]

pub mod authorities;
pub mod bundle;
pub mod credentials;
mod forges;
pub mod git;
pub mod identity;
pub mod lfs;
pub mod ssh;
pub mod tree;
pub mod url;
pub mod git_errors;

pub use credentials::{Credentials, Login};
pub use git::{Git, Repository};
pub use identity::{Identity, IdentityError};
pub use ssh::SshFiles;
pub use tree::{TreeError, check_links, stack, write_files};
pub use url::{Transport, Url};
pub use git_errors::{Ended, FetchError, Refusal};
