//! Releases in a directory, laid out like a mirror on a web server.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tool_versions::{Digest, Tool};

use super::{Key, Release, lists, names, pack};
use harness::cluster::cache::{self, Cache};

/// A directory of releases, signed by one key.
#[derive(Clone, Debug)]
pub struct Tree {
    root: PathBuf,
    key: Key,
    packed: PathBuf,
}

impl Tree {
    /// A directory, created if missing. Archives are stored in the build cache.
    pub fn create(root: &Path, key: Key) -> Result<Self> {
        cache::create_dir(root)?;
        Ok(Self {
            root: root.to_owned(),
            key,
            packed: Cache::open()?.path("releases"),
        })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The signing key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Publishes a release: its archive, checksums, signatures and lists. Replaces another of that version and platform.
    pub fn add(&self, release: &Release) -> Result<()> {
        let archive = pack::packed(release, &self.packed)?;
        let target = self.root.join(release.path());
        // A copy and not a link: a test may damage it.
        Cache::install(&target, |temporary| {
            let copied = fs::copy(&archive, temporary);
            copied
                .map(drop)
                .with_context(|| format!("cannot copy {}", archive.display()))
        })?;
        self.sign(release)?;
        self.list(release.tool)
    }

    /// Writes the checksums of all archives of a version, and signatures over them.
    fn sign(&self, release: &Release) -> Result<()> {
        let directory = self.root.join(release.directory());
        let mut sums = String::new();
        for name in names(&directory)? {
            if !name.contains("SHA256SUMS") {
                let path = directory.join(&name);
                let digest = File::open(&path)
                    .and_then(Digest::read)
                    .with_context(|| format!("cannot read {}", path.display()))?;
                writeln!(sums, "{digest}  {name}")?;
            }
        }
        replace(&directory.join(release.sums()), sums.as_bytes())?;
        let signature = self.key.sign(sums.as_bytes())?;
        release
            .signatures()
            .iter()
            .try_for_each(|name| replace(&directory.join(name), &signature))
    }

    /// Writes the list of a tool's versions at its project's path.
    fn list(&self, tool: Tool) -> Result<()> {
        let list = match tool {
            Tool::Terraform => lists::hashicorp(&self.root)?,
            Tool::OpenTofu => lists::opentofu(&self.root)?,
            Tool::Terragrunt => lists::github(&self.root, "gruntwork-io/terragrunt")?,
        };
        replace(
            &self.root.join(lists::path(tool)),
            list.to_string().as_bytes(),
        )
    }
}

/// Replaces a file atomically, because a server may be reading the old one.
fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    Cache::install(path, |temporary| cache::write(temporary, bytes))
}
