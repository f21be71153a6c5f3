//! Installation: the holder of a version's lock prepares it aside, syncs it, and renames it.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::PathBuf,
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};

use super::{Installed, PROOF, Store, verify};
use crate::{
    Error, Result, Tool, Version,
    cache::shared_dir::{USED, at, make, remove, sync},
    verify::digest::Hashing,
};

/// The verification of a version at its installation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Proof {
    /// The URL or path of the archive, without credentials.
    pub source: String,
    /// SHA-256 of the archive, in hex.
    pub archive: String,
    /// The fingerprint of the key that signed the sums; `None` when the channel requires no signature.
    pub signer: Option<String>,
    /// The version that the executable reported, for a tool whose sums do not name it; `None` before it was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<String>,
}

/// The lock to install a version. The kernel releases it with the process.
#[derive(Debug)]
pub struct Turn {
    store: Store,
    tool: Tool,
    version: Version,
    _lock: File,
}

impl Store {
    /// Waits for the lock to install a version, at most for `patience`. Blocks the thread. The caller must look for the version
    /// again.
    ///
    /// # Errors
    /// Unavailable after `patience` (another process installs it, so a later try may find it); storage when the cache is not
    /// writable.
    pub fn turn(&self, tool: Tool, version: &Version, patience: Duration) -> Result<Turn> {
        let lock = self.dir.turn(&self.key(tool, version), patience)?.ok_or_else(|| {
            let patience = patience.as_secs();
            Error::unavailable(format!("{tool} {version} is being installed by another process for more than {patience} s"))
        })?;
        Ok(Turn {
            store: self.clone(),
            tool,
            version: version.clone(),
            _lock: lock,
        })
    }
}

impl Turn {
    pub const fn tool(&self) -> Tool {
        self.tool
    }

    pub const fn version(&self) -> &Version {
        &self.version
    }

    /// A file on the cache's disk without a name, for the download. It disappears with its last handle.
    ///
    /// # Errors
    /// Storage: the cache is not writable.
    pub fn nameless(&self) -> Result<File> {
        self.store.dir.nameless()
    }

    /// Starts an installation. Removes the leftovers of a killed process; the lock excludes running ones.
    ///
    /// # Errors
    /// Storage: the cache is not writable.
    pub fn begin(&self) -> Result<Staging<'_>> {
        let dir = self
            .store
            .dir
            .begin(&self.store.key(self.tool, &self.version))?;
        let binary = dir.join(self.tool.binary());
        let file = OpenOptions::new()
            .create_new(true)
            .write(true)
            .mode(0o600)
            .open(&binary)
            .map_err(at(&binary))?;
        Ok(Staging {
            turn: self,
            dir,
            file: Hashing::new(file),
            done: false,
        })
    }
}

/// A version that is being written. Dropped without [`Staging::commit`], it is removed.
pub struct Staging<'a> {
    turn: &'a Turn,
    dir: PathBuf,
    file: Hashing<File>,
    done: bool,
}

impl Write for Staging<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Staging<'_> {
    /// Syncs the version and gives it its name.
    ///
    /// # Errors
    /// Integrity when it is empty, storage when the disk failed; the version then does not exist.
    pub fn commit(mut self, proof: &Proof) -> Result<Installed> {
        let Turn {
            store,
            tool,
            version,
            ..
        } = self.turn;
        let (tool, staged) = (*tool, self.dir.join(self.turn.tool.binary()));
        let size = self.file.written();
        if size == 0 {
            return Err(Error::integrity(format!(
                "the executable of {tool} {version} is empty"
            )));
        }
        let digest = self.file.digest().to_string();
        let file = self.file.get_ref();
        file.set_permissions(fs::Permissions::from_mode(0o555))
            .map_err(at(&staged))?;
        file.sync_all().map_err(at(&staged))?;
        verify::remember(
            &self.dir,
            &verify::Stamp::of(&staged).map_err(at(&staged))?,
            &digest,
        )?;
        let text = serde_json::to_vec_pretty(proof)
            .map_err(|error| Error::storage("proof.json", &error.into()))?;
        for (name, bytes) in [(PROOF, text.as_slice()), (USED, b"")] {
            let path = self.dir.join(name);
            let written = File::create(&path)
                .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()));
            written.map_err(at(&path))?;
        }
        sync(&self.dir)?;
        let place = store.place(tool, version);
        make(&place)?;
        let target = place.join(&digest);
        match fs::rename(&self.dir, &target) {
            // The same bytes are installed already, without a proof or by a process with another lock directory.
            Err(error) if target.join(PROOF).is_file() => {
                tracing::debug!(%error, "{} is there already", target.display());
                if proof.signer.is_some() {
                    let path = target.join(PROOF);
                    fs::rename(self.dir.join(PROOF), &path).map_err(at(&path))?;
                }
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists
                ) =>
            {
                // A directory of that name that is no version is not in use.
                remove(&target)?;
                fs::rename(&self.dir, &target).map_err(at(&target))?;
                self.done = true;
            }
            renamed => {
                renamed.map_err(at(&target))?;
                self.done = true;
            }
        }
        store.dir.sync_above(&target)?;
        let binary = target.join(tool.binary());
        Ok(Installed {
            tool,
            version: version.clone(),
            digest,
            binary,
            size,
            used: SystemTime::now(),
        })
    }
}

impl Drop for Staging<'_> {
    fn drop(&mut self) {
        if !self.done {
            // The next installation removes leftovers.
            let _ = remove(&self.dir);
        }
    }
}
