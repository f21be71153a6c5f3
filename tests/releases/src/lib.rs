//! A mirror of releases: the files that the projects OpenTofu, Terraform and Terragrunt publish, signed by a test key, in a directory and
//! on a web server that counts requests. The tests of `tool-versions` simulate server faults beyond a status code, byte by byte.
//!
//! | module | holds |
//! |---|---|
//! | [`Key`] | the signing key |
//! | [`Release`] | a program, real or [scripted](scripted_tool), as a version of a tool |
//! | [`Tree`] | archives, checksums, signatures and lists in a directory |
//! | [`Mirror`] | the server |
//! | [`mirror_settings`] | an operator's settings for it |
//! | [`versions`] | the versions that tests and benchmarks use |

mod key;
mod lists;
mod mirror;
mod pack;
mod release;
mod tree;
pub mod versions;

pub use key::Key;
pub use mirror::Mirror;
pub use release::Release;
pub use tree::Tree;

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tool_versions::Tool;

/// An operator's settings for a mirror, in the format of the chart's `runner.tools.mirrors`: URL of the tool, its list, the server's
/// authority, and the signing key.
pub fn mirror_settings(tool: Tool, mirror: &Mirror, key: &Key) -> Value {
    json!({"tool": tool.title(), "url": mirror.base(), "listUrl": format!("{}/{}", mirror.base(), lists::path(tool)),
        "ca": mirror.authority(), "keys": key.armored(), "fingerprints": [key.fingerprint().to_string()]})
}

/// The sorted names in a directory, without hidden ones.
fn names(directory: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.with_context(|| format!("cannot read {}", directory.display()))?,
    };
    let mut names: Vec<_> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.retain(|name| !name.starts_with('.'));
    names.sort();
    Ok(names)
}
