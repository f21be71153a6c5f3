//! The cache of tools: `TOOL/VERSION/OS_ARCH/SHA256/BINARY` below one directory, shared by processes, pods and nodes.
//!
//! A version exists once its directory has its name, which it gets when it is complete on disk. A killed process leaves nothing
//! that counts as a version. The cache is as trustworthy as its writers: the agent denies write access to the code of the stack
//! (`design/0016-tokens-and-accounts.md`), and a volume belongs to one trust domain.
//!
//! | module | holds |
//! |---|---|
//! | [`install`] | one installer at a time, atomic installation |
//! | [`verify`] | the digest check at every use |
//! | [`prune`] | removal of the least recently used |

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

/// Beside the executable: its proof, and its stamp with the digest.
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
    /// SHA-256 of the executable at installation, in hex.
    pub digest: String,
    pub binary: PathBuf,
    /// The size of the executable in bytes.
    pub size: u64,
    /// The time of the last use, or of the installation.
    pub used: SystemTime,
}

impl Installed {
    /// The directory of this version.
    fn dir(&self) -> &Path {
        self.binary.parent().unwrap_or(&self.binary)
    }

    pub(crate) fn set_proof(&self, proof: &install::Proof) -> Result<()> {
        let path = self.dir().join(PROOF);
        let bytes = serde_json::to_vec_pretty(proof)
            .map_err(|error| Error::storage(path.display(), &error.into()))?;
        replace(&path, &bytes)
    }
}

impl Store {
    /// Makes a handle. The directory is created with the first installation.
    pub fn at(root: impl Into<PathBuf>, platform: Platform) -> Self {
        Self {
            dir: SharedDir::at(root),
            platform,
        }
    }

    /// All versions of this platform. Other directories and leftovers are skipped.
    ///
    /// # Errors
    /// Storage: a directory exists and is not readable.
    pub fn list(&self) -> Result<Vec<Installed>> {
        let mut found = Vec::new();
        for tool in Tool::ALL {
            for name in names(&self.dir.root().join(tool.directory()))? {
                // A version has one directory, named by its canonical text.
                if let Some(version) = name
                    .parse::<Version>()
                    .ok()
                    .filter(|version| version.to_string() == name)
                {
                    found.extend(self.of(tool, &version)?);
                }
            }
        }
        Ok(found)
    }

    /// Finds a version. Of several digests, which only different mirrors can produce, returns the most recently used.
    ///
    /// # Errors
    /// Storage: a directory exists and is not readable.
    pub fn find(&self, tool: Tool, version: &Version) -> Result<Option<Installed>> {
        Ok(self.all(tool, version)?.into_iter().next())
    }

    /// All copies of a version, the most recently used first.
    ///
    /// # Errors
    /// Storage: a directory exists and is not readable.
    pub fn all(&self, tool: Tool, version: &Version) -> Result<Vec<Installed>> {
        let mut all = self.of(tool, version)?;
        all.sort_by_key(|installed| std::cmp::Reverse(installed.used));
        Ok(all)
    }

    /// Reads the proof of a version.
    ///
    /// # Errors
    /// Storage: it cannot be read.
    pub fn proof(&self, installed: &Installed) -> Result<install::Proof> {
        let path = installed.dir().join(PROOF);
        let bytes = fs::read(&path).map_err(at(&path))?;
        serde_json::from_slice(&bytes)
            .map_err(|error| Error::storage(path.display(), &error.into()))
    }

    /// Removes a version.
    pub(crate) fn discard(&self, in_use: InUse) -> Result<()> {
        let installed = in_use.installed.clone();
        drop(in_use);
        self.dir.discard(installed.dir())
    }

    fn of(&self, tool: Tool, version: &Version) -> Result<Vec<Installed>> {
        let place = self.place(tool, version);
        let mut found = Vec::new();
        for digest in names(&place)? {
            if digest.len() != 64
                || !digest
                    .bytes()
                    .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
            {
                continue;
            }
            let dir = place.join(&digest);
            let binary = dir.join(tool.binary());
            // Does not follow a link: installed executables are files.
            let Ok(meta) = fs::symlink_metadata(&binary) else {
                continue;
            };
            if !meta.is_file() || !dir.join(PROOF).is_file() {
                continue;
            }
            let used = fs::metadata(dir.join(USED))
                .and_then(|meta| meta.modified())
                .or_else(|_| meta.modified());
            let used = used.unwrap_or(SystemTime::UNIX_EPOCH);
            found.push(Installed {
                tool,
                version: version.clone(),
                digest,
                binary,
                size: meta.len(),
                used,
            });
        }
        Ok(found)
    }

    fn place(&self, tool: Tool, version: &Version) -> PathBuf {
        self.dir
            .root()
            .join(tool.directory())
            .join(version.to_string())
            .join(self.platform.to_string())
    }

    /// The name of a version's lock and of its staging directory.
    fn key(&self, tool: Tool, version: &Version) -> String {
        format!("{}-{version}-{}", tool.directory(), self.platform)
    }
}
