//! Where code comes from: fetches one revision of a git repository, writes files that are given, and checks what a tree may hold.
//!
//! This crate knows no runs, pods or settings of the agent, so that a controller of repositories can use it as well. It does not start
//! processes itself either: whoever uses it says how `git` is run ([`Git`]), with his deadlines, log, redaction and confinement.
//!
//! | module | holds |
//! |---|---|
//! | [`git`] | one revision of a repository, fetched with the `git` binary |
//! | [`tree`] | files that are given one by one, the stack's directory, links that lead out |

pub mod git;
pub mod tree;

pub use git::{Credentials, Ended, FetchError, Git, Refusal, Repository};
pub use tree::{TreeError, check_links, stack, write_files};
