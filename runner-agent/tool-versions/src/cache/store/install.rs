//! How a version comes to be there: one process at a time prepares it beside, puts it on the disk, and gives it its name.

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

/// What proved a version when it was installed, for people and for the next one who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Proof {
    /// Where it came from, without credentials.
    pub source: String,
    /// SHA-256 of the archive, in hexadecimal digits.
    pub archive: String,
    /// The fingerprint of the key that signed the sums; none when the operator asks for less.
    pub signer: Option<String>,
    /// The version that the executable said it was, where what is signed does not say it; none when it was not asked yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<String>,
}

/// The right to install a version. The kernel takes it back when its process ends, however that comes.
#[derive(Debug)]
pub struct Turn {
    store: Store,
    tool: Tool,
    version: Version,
    _lock: File,
}

impl Store {
    /// Waits for one's turn to install a version, at most for so long. Blocks the thread. Whoever waited looks first whether it is
    /// there now.
    ///
    /// # Errors
    /// When it takes longer (somebody is at it, so a later try may find it there), or the cache cannot be written.
    pub fn turn(&self, tool: Tool, version: &Version, patience: Duration) -> Result<Turn> {
        let lock = self.dir.turn(&self.key(tool, version), patience)?.ok_or_else(|| {
            let patience = patience.as_secs();
            Error::unavailable(format!("{tool} {version} is being installed by another process for more than {patience} s"))
        })?;
        Ok(Turn { store: self.clone(), tool, version: version.clone(), _lock: lock })
    }
}

impl Turn {
    pub const fn tool(&self) -> Tool {
        self.tool
    }

    pub const fn version(&self) -> &Version {
        &self.version
    }

    /// A file on the cache's disk without a name, for what is got on the way: it goes with the last who has it open.
    ///
    /// # Errors
    /// When the cache cannot be written.
    pub fn nameless(&self) -> Result<File> {
        self.store.dir.nameless()
    }

    /// Begins anew: what somebody who was killed left of this version is removed. Nobody else touches it, since the turn is ours.
    ///
    /// # Errors
    /// When the cache cannot be written.
    pub fn begin(&self) -> Result<Staging<'_>> {
        let dir = self.store.dir.begin(&self.store.key(self.tool, &self.version))?;
        let binary = dir.join(self.tool.binary());
        let file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&binary).map_err(at(&binary))?;
        Ok(Staging { turn: self, dir, file: Hashing::new(file), done: false })
    }
}

/// A version that is being written. Dropped without [`Staging::commit`], nothing of it is left.
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
    /// Puts what was written on the disk and gives it its name.
    ///
    /// # Errors
    /// When it is empty, or the disk does not take it; then there is no such version.
    pub fn commit(mut self, proof: &Proof) -> Result<Installed> {
        let Turn { store, tool, version, .. } = self.turn;
        let (tool, staged) = (*tool, self.dir.join(self.turn.tool.binary()));
        let size = self.file.written();
        if size == 0 {
            return Err(Error::integrity(format!("the executable of {tool} {version} is empty")));
        }
        let digest = self.file.digest().to_string();
        let file = self.file.get_ref();
        file.set_permissions(fs::Permissions::from_mode(0o555)).map_err(at(&staged))?;
        file.sync_all().map_err(at(&staged))?;
        verify::remember(&self.dir, &verify::Stamp::of(&staged).map_err(at(&staged))?, &digest)?;
        let text = serde_json::to_vec_pretty(proof).map_err(|error| Error::storage("proof.json", &error.into()))?;
        for (name, bytes) in [(PROOF, text.as_slice()), (USED, b"")] {
            let path = self.dir.join(name);
            let written = File::create(&path).and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()));
            written.map_err(at(&path))?;
        }
        sync(&self.dir)?;
        let place = store.place(tool, version);
        make(&place)?;
        let target = place.join(&digest);
        match fs::rename(&self.dir, &target) {
            // The very same bytes are there: of somebody whose cache had no proof of them, or who was faster elsewhere.
            Err(error) if target.join(PROOF).is_file() => {
                tracing::debug!(%error, "{} is there already", target.display());
                if proof.signer.is_some() {
                    let path = target.join(PROOF);
                    fs::rename(self.dir.join(PROOF), &path).map_err(at(&path))?;
                }
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists) => {
                // A directory of that name that is no version: nobody uses it.
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
        Ok(Installed { tool, version: version.clone(), digest, binary, size, used: SystemTime::now() })
    }
}

impl Drop for Staging<'_> {
    fn drop(&mut self) {
        if !self.done {
            // The next one removes what is left.
            let _ = remove(&self.dir);
        }
    }
}
