//! The cache of tools: `TOOL/VERSION/OS_ARCH/SHA256/BINARY` below one directory, which any number of processes, pods and nodes may
//! share.
//!
//! A version is there as soon as its directory has its name, and has it only when all of it is on the disk: whoever dies in
//! between leaves something that nobody takes for a version. The trust in what is there is the trust in who may write there: an agent
//! keeps the code of its stack from that (`design/0016-tokens-and-accounts.md`), and a volume is for one trust domain.
//!
//! | module | holds |
//! |---|---|
//! | [`install`] | one installer at a time, and how a version comes to be there |
//! | [`verify`] | that it still is what was installed |
//! | [`prune`] | what goes when there is too much |

pub mod install;
pub mod prune;
pub mod verify;

use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use crate::{
    Error, Platform, Result, Tool, Version,
    cache::shared_dir::{SharedDir, USED, at, names, replace},
};
use verify::InUse;

/// Beside the binary: what proved it, and what it was when it was last looked at.
const PROOF: &str = "proof.json";
const SEEN: &str = "seen.json";

/// A cache of tools.
#[derive(Clone, Debug)]
pub struct Store {
    dir: SharedDir,
    platform: Platform,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    pub tool: Tool,
    pub version: Version,
    /// SHA-256 of the executable when it was installed, in hexadecimal digits.
    pub digest: String,
    pub binary: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// When it was used last, or installed.
    pub used: SystemTime,
}

impl Installed {
    /// The directory that is this version.
    fn dir(&self) -> &Path {
        self.binary.parent().unwrap_or(&self.binary)
    }

    pub(crate) fn set_proof(&self, proof: &install::Proof) -> Result<()> {
        let path = self.dir().join(PROOF);
        let bytes = serde_json::to_vec_pretty(proof).map_err(|error| Error::storage(path.display(), &error.into()))?;
        replace(&path, &bytes)
    }
}

impl Store {
    /// A cache in a directory, which is made when something is installed.
    pub fn at(root: impl Into<PathBuf>, platform: Platform) -> Self {
        Self { dir: SharedDir::at(root), platform }
    }

    /// All versions of this platform that are there. What is none of ours, or was left half done, is passed over.
    ///
    /// # Errors
    /// When a directory is there and cannot be read.
    pub fn list(&self) -> Result<Vec<Installed>> {
        let mut found = Vec::new();
        for tool in Tool::ALL {
            for name in names(&self.dir.root().join(tool.directory()))? {
                // A version has one directory, under the text that it is printed as.
                if let Some(version) = name.parse::<Version>().ok().filter(|version| version.to_string() == name) {
                    found.extend(self.of(tool, &version)?);
                }
            }
        }
        Ok(found)
    }

    /// A version, when it is there. Of several with different digests, which only different sources can bring about, the one
    /// that was used last.
    ///
    /// # Errors
    /// When a directory is there and cannot be read.
    pub fn find(&self, tool: Tool, version: &Version) -> Result<Option<Installed>> {
        Ok(self.all(tool, version)?.into_iter().next())
    }

    /// All that are there of a version, the one that was used last coming first.
    ///
    /// # Errors
    /// When a directory is there and cannot be read.
    pub fn all(&self, tool: Tool, version: &Version) -> Result<Vec<Installed>> {
        let mut all = self.of(tool, version)?;
        all.sort_by_key(|installed| std::cmp::Reverse(installed.used));
        Ok(all)
    }

    /// What proved a version when it was installed.
    ///
    /// # Errors
    /// When that cannot be read.
    pub fn proof(&self, installed: &Installed) -> Result<install::Proof> {
        let path = installed.dir().join(PROOF);
        let bytes = fs::read(&path).map_err(at(&path))?;
        serde_json::from_slice(&bytes).map_err(|error| Error::storage(path.display(), &error.into()))
    }

    /// Takes a version away that nobody is to use again.
    pub(crate) fn discard(&self, in_use: InUse) -> Result<()> {
        let installed = in_use.installed.clone();
        drop(in_use);
        self.dir.discard(installed.dir())
    }

    fn of(&self, tool: Tool, version: &Version) -> Result<Vec<Installed>> {
        let place = self.place(tool, version);
        let mut found = Vec::new();
        for digest in names(&place)? {
            if digest.len() != 64 || !digest.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
                continue;
            }
            let dir = place.join(&digest);
            let binary = dir.join(tool.binary());
            // Not through a link: what is ours is a file.
            let Ok(meta) = fs::symlink_metadata(&binary) else { continue };
            if !meta.is_file() || !dir.join(PROOF).is_file() {
                continue;
            }
            let used = fs::metadata(dir.join(USED)).and_then(|meta| meta.modified()).or_else(|_| meta.modified());
            let used = used.unwrap_or(SystemTime::UNIX_EPOCH);
            found.push(Installed { tool, version: version.clone(), digest, binary, size: meta.len(), used });
        }
        Ok(found)
    }

    fn place(&self, tool: Tool, version: &Version) -> PathBuf {
        self.dir.root().join(tool.directory()).join(version.to_string()).join(self.platform.to_string())
    }

    /// The name of a version's lock and of what is unfinished of it.
    fn key(&self, tool: Tool, version: &Version) -> String {
        format!("{}-{version}-{}", tool.directory(), self.platform)
    }
}
