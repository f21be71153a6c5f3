//! A mirror of releases: the files that the projects of OpenTofu, Terraform and Terragrunt publish, signed by a key of tests, in a
//! directory and behind a web server that counts requests and can be told to misbehave.
//!
//! | module | holds |
//! |---|---|
//! | [`Key`] | what signs |
//! | [`Release`] | a program, real or [scripted](crate::scripted_tool), as a version of a tool |
//! | [`Tree`] | archives, sums, signatures and lists in a directory |
//! | [`Mirror`], [`Trouble`] | the server, and what it does on bad days |
//! | [`mirror_settings`] | what an operator says about it |
//! | [`versions`] | the versions that tests and benchmarks ask for |
//!
//! ```no_run
//! # async fn f(program: &std::path::Path, directory: &std::path::Path) -> anyhow::Result<()> {
//! use tests::releases::{Key, Mirror, Release, Tree, Trouble};
//! use tool_versions::Tool;
//!
//! let release = Release::scripted(Tool::OpenTofu, "1.9.4", program)?;
//! Tree::create(directory, Key::test()?)?.add(&release)?;
//! let mirror = Mirror::start("127.0.0.1:0".parse()?, directory).await?;
//! mirror.trouble_times("/opentofu/", 1, Trouble::too_many(1));
//! println!("TOFUENV_REMOTE={}", mirror.base());
//! assert_eq!(mirror.downloads(&release), 0);
//! # Ok(())
//! # }
//! ```

mod content;
mod key;
mod lists;
mod mirror;
mod pack;
mod release;
mod settings;

#[cfg(test)]
mod tests;
mod tree;
mod trouble;
pub mod versions;

pub use key::Key;
pub use mirror::{Mirror, Served};
pub use release::Release;
pub use settings::mirror_settings;
pub use tree::Tree;
pub use trouble::Trouble;

use std::{fs, path::Path};

use anyhow::{Context as _, Result};

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
