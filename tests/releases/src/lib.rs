//! A mirror of releases: the files that the projects of OpenTofu, Terraform and Terragrunt publish, signed by a key of tests, in a
//! directory and behind a web server that counts requests. What a server may do wrong beyond a status is played, byte by byte, by the
//! tests of `tool-versions`.
//!
//! | module | holds |
//! |---|---|
//! | [`Key`] | what signs |
//! | [`Release`] | a program, real or [scripted](scripted_tool), as a version of a tool |
//! | [`Tree`] | archives, sums, signatures and lists in a directory |
//! | [`Mirror`] | the server |
//! | [`mirror_settings`] | what an operator says about it |
//! | [`versions`] | the versions that tests and benchmarks ask for |

mod key;
mod lists;
mod mirror;
mod pack;
mod release;
#[cfg(test)]
mod tests;
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

/// What an operator says about a mirror, in the words of the chart's `runner.tools.mirrors`: where the tool is, its list, the authority of
/// the server, and the key that signs.
pub fn mirror_settings(tool: Tool, mirror: &Mirror, key: &Key) -> Value {
    json!({"tool": tool.title(), "url": mirror.base(), "listUrl": format!("{}/{}", mirror.base(), lists::path(tool)),
        "ca": mirror.authority(), "keys": key.armored(), "fingerprints": [key.fingerprint().to_string()]})
}

/// The names in a directory, in order, without what is hidden.
fn names(directory: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.with_context(|| format!("cannot read {}", directory.display()))?,
    };
    let mut names: Vec<_> = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| !name.starts_with('.'));
    names.sort();
    Ok(names)
}
