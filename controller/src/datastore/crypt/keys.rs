//! The master keys: a directory (a mounted Secret) with one file per key id, each the base64 of 32 bytes, and the file `active`
//! that names the key to write with.

use std::{
    collections::BTreeMap,
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};

use super::CryptError;

/// How long keys are used before their directory is read again.
const FRESH: Duration = Duration::from_secs(60);
/// How soon the directory is read again for a key that is missing.
const AGAIN: Duration = Duration::from_secs(1);
/// The file that names the key to write with.
const ACTIVE: &str = "active";

/// A master key.
pub struct MasterKey {
    id: String,
    bytes: [u8; 32],
}

impl MasterKey {
    /// The longest id, in bytes.
    pub const MAX_ID: usize = 63;

    /// A key of that id; none when that is no id.
    pub fn new(id: &str, bytes: [u8; 32]) -> Option<Self> {
        Self::is_id(id).then(|| Self { id: id.to_owned(), bytes })
    }

    /// Letters, digits and `-_.`, at most 63, as the keys of a Secret; not `active`, and no dot first.
    pub fn is_id(id: &str) -> bool {
        (1..=Self::MAX_ID).contains(&id.len())
            && id.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
            && !id.starts_with('.')
            && id != ACTIVE
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.bytes
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MasterKey").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Why the keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The directory or one of its files cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file does not hold the base64 of 32 bytes.
    #[error("the key `{0}` is not the base64 of 32 bytes")]
    NoKey(String),
    /// `active` names a key that is not there.
    #[error("`active` names the key `{0}`, which is not there")]
    NotActive(String),
}

struct Ring {
    keys: BTreeMap<String, Arc<MasterKey>>,
    active: Arc<MasterKey>,
    read_at: Instant,
}

/// The keys of a directory, read again once a minute and when one is missing.
pub struct Keys {
    directory: PathBuf,
    ring: Mutex<Ring>,
}

impl Keys {
    /// Reads the keys.
    ///
    /// # Errors
    /// When there is no usable key to write with.
    pub fn open(directory: &Path) -> Result<Self, KeysError> {
        Ok(Self { directory: directory.to_owned(), ring: Mutex::new(read(directory)?) })
    }

    /// The key to write with.
    pub fn active(&self) -> Arc<MasterKey> {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        self.refresh(&mut ring, FRESH);
        ring.active.clone()
    }

    /// The key of that id.
    ///
    /// # Errors
    /// [`CryptError::KeyMissing`] when it is not there, after another look.
    pub fn find(&self, id: &str) -> Result<Arc<MasterKey>, CryptError> {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = if ring.keys.contains_key(id) { FRESH } else { AGAIN };
        self.refresh(&mut ring, fresh);
        ring.keys.get(id).cloned().ok_or_else(|| CryptError::KeyMissing(id.to_owned()))
    }

    /// A directory that cannot be used leaves the keys as they were: a Secret that is half written must not stop what works.
    fn refresh(&self, ring: &mut Ring, fresh: Duration) {
        if ring.read_at.elapsed() < fresh {
            return;
        }
        match read(&self.directory) {
            Ok(new) => {
                if new.active.id != ring.active.id {
                    tracing::info!(key = new.active.id, "another key is written with");
                }
                *ring = new;
            }
            Err(error) => {
                tracing::warn!(%error, "the keys cannot be read again");
                ring.read_at = Instant::now();
            }
        }
    }
}

fn read(directory: &Path) -> Result<Ring, KeysError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| KeysError::Read { path, source }
    };
    let mut keys = BTreeMap::new();
    for entry in std::fs::read_dir(directory).map_err(failed(directory))? {
        let path = entry.map_err(failed(directory))?.path();
        let Some(id) = path.file_name().and_then(|name| name.to_str()).filter(|id| MasterKey::is_id(id)) else { continue };
        let text = std::fs::read_to_string(&path).map_err(failed(&path))?;
        let bytes = BASE64_STANDARD.decode(text.trim()).ok().and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
        let key = bytes.and_then(|bytes| MasterKey::new(id, bytes)).ok_or_else(|| KeysError::NoKey(id.to_owned()))?;
        keys.insert(id.to_owned(), Arc::new(key));
    }
    let path = directory.join(ACTIVE);
    let active = std::fs::read_to_string(&path).map_err(failed(&path))?;
    let active = keys.get(active.trim()).cloned().ok_or_else(|| KeysError::NotActive(active.trim().to_owned()))?;
    Ok(Ring { keys, active, read_at: Instant::now() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(directory: &Path, id: &str, byte: u8) {
        std::fs::write(directory.join(id), format!("{}\n", BASE64_STANDARD.encode([byte; 32]))).unwrap();
    }

    #[test]
    fn a_missing_key_is_named_and_a_new_one_is_found() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "k1", 1);
        std::fs::write(directory.path().join("active"), "k1\n").unwrap();
        let keys = Keys::open(directory.path()).unwrap();
        assert_eq!(keys.active().id(), "k1");
        assert_eq!(keys.find("k2").err(), Some(CryptError::KeyMissing("k2".into())));
        write(directory.path(), "k2", 2);
        keys.ring.lock().unwrap().read_at = Instant::now().checked_sub(AGAIN).unwrap();
        assert_eq!(keys.find("k2").unwrap().bytes(), &[2; 32]);
    }

    #[test]
    fn a_directory_that_is_half_written_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "k1", 1);
        assert!(matches!(Keys::open(directory.path()), Err(KeysError::Read { .. })), "no `active`");
        std::fs::write(directory.path().join("active"), "k1").unwrap();
        let keys = Keys::open(directory.path()).unwrap();
        std::fs::write(directory.path().join("active"), "k9").unwrap();
        keys.ring.lock().unwrap().read_at = Instant::now().checked_sub(FRESH).unwrap();
        assert_eq!(keys.active().id(), "k1");
        assert!(matches!(Keys::open(directory.path()), Err(KeysError::NotActive(id)) if id == "k9"));
        std::fs::write(directory.path().join("k2"), "AAAA").unwrap();
        assert!(matches!(Keys::open(directory.path()), Err(KeysError::NoKey(id)) if id == "k2"));
    }

    #[test]
    fn a_key_does_not_show_itself() {
        assert!(!format!("{:?}", MasterKey::new("k", [77; 32])).contains("77"));
    }
}
