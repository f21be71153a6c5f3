//! The master keys: a directory (a mounted Secret) with one file per key id (base64 of 32 bytes) and the file `active`
//! with the id of the key for writing. The bytes of a key id never change while a process runs: a replacement under the
//! same id would make existing content unreadable.

use std::{
    collections::BTreeMap,
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};

use super::CryptError;

/// How long keys are cached before their directory is read again.
const FRESH: Duration = Duration::from_secs(60);
/// Minimum interval between reads of the directory for a missing key.
const AGAIN: Duration = Duration::from_secs(1);
/// The file with the id of the key for writing.
const ACTIVE: &str = "active";

pub struct MasterKey {
    id: String,
    bytes: [u8; 32],
}

impl MasterKey {
    /// Maximum length of an id, in bytes.
    pub const MAX_ID: usize = 63;

    /// A key with this id; `None` when the id is invalid.
    pub fn new(id: &str, bytes: [u8; 32]) -> Option<Self> {
        Self::is_id(id).then(|| Self {
            id: id.to_owned(),
            bytes,
        })
    }

    /// Whether an id is valid: 1 to 63 letters, digits and `-_.`, as for keys of a Secret, without a leading dot, and not `active`.
    pub fn is_id(id: &str) -> bool {
        (1..=Self::MAX_ID).contains(&id.len())
            && id
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
            && !id.starts_with('.')
            && id != ACTIVE
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.bytes
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MasterKey")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The directory or one of its files cannot be read.
    #[error("{path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    /// A file is not the base64 of 32 bytes.
    #[error("the key `{0}` is not the base64 of 32 bytes")]
    NoKey(String),
    #[error("nothing is called `active` and names the key to write with")]
    NoActive,
    #[error("`active` names the key `{0}`, which is not there")]
    NotActive(String),
}

struct Ring {
    keys: BTreeMap<String, Arc<MasterKey>>,
    active: Arc<MasterKey>,
    read_at: Instant,
}

/// The files of a directory, or the entries of the Secret mounted there.
pub type Entries = BTreeMap<String, Vec<u8>>;

/// The keys of a directory, reloaded once a minute and when one is missing.
pub struct Keys {
    directory: PathBuf,
    /// `None` until there is a key for writing.
    ring: Mutex<Option<Ring>>,
}

impl Keys {
    /// Loads the keys.
    ///
    /// # Errors
    /// When there is no usable key for writing.
    pub fn open(directory: &Path) -> Result<Self, KeysError> {
        let keys = Self::waiting(directory);
        keys.reload()?;
        Ok(keys)
    }

    /// Starts without keys: [`Self::take`] or [`Self::reload`] adds them.
    pub fn waiting(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            ring: Mutex::default(),
        }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Replaces the keys with those of the directory.
    ///
    /// # Errors
    /// When there is no usable key for writing.
    pub fn reload(&self) -> Result<(), KeysError> {
        self.set(read(&self.directory)?);
        Ok(())
    }

    /// Replaces the keys with these. The kubelet updates the directory from the Secret up to a minute later.
    ///
    /// # Errors
    /// When there is no usable key for writing among them.
    pub fn take(&self, entries: &Entries) -> Result<(), KeysError> {
        self.set(ring(entries)?);
        Ok(())
    }

    fn set(&self, ring: Ring) {
        *self.ring.lock().unwrap_or_else(PoisonError::into_inner) = Some(ring);
    }

    /// Whether these entries have a key for writing.
    pub fn are_in(entries: &Entries) -> bool {
        entries.contains_key(ACTIVE)
    }

    /// Creates a key, as the entries of a Secret. The id is random too, so it cannot be confused with a lost key's.
    ///
    /// # Errors
    /// When the system provides no random bytes.
    pub fn make() -> Result<Entries, CryptError> {
        let (mut key, mut id) = ([0; 32], [0; 4]);
        let random = ring::rand::SystemRandom::new();
        for bytes in [&mut key[..], &mut id[..]] {
            ring::rand::SecureRandom::fill(&random, bytes).map_err(|_| CryptError::Cipher)?;
        }
        let id = format!("k{:08x}", u32::from_be_bytes(id));
        Ok(Entries::from([
            (ACTIVE.to_owned(), id.clone().into_bytes()),
            (id, BASE64_STANDARD.encode(key).into_bytes()),
        ]))
    }

    /// The key for writing.
    ///
    /// # Errors
    /// [`CryptError::NoKey`] when there is none yet.
    pub fn active(&self) -> Result<Arc<MasterKey>, CryptError> {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        self.refresh(&mut ring, FRESH);
        ring.as_ref()
            .map(|ring| ring.active.clone())
            .ok_or(CryptError::NoKey)
    }

    /// The key with this id.
    ///
    /// # Errors
    /// [`CryptError::KeyMissing`] when it does not exist after a reload.
    pub fn find(&self, id: &str) -> Result<Arc<MasterKey>, CryptError> {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let known = ring.as_ref().is_some_and(|ring| ring.keys.contains_key(id));
        self.refresh(&mut ring, if known { FRESH } else { AGAIN });
        let found = ring.as_ref().and_then(|ring| ring.keys.get(id).cloned());
        found.ok_or_else(|| CryptError::KeyMissing(id.to_owned()))
    }

    /// Retains the current keys when the directory is unusable: a partially written Secret must not interrupt the service.
    fn refresh(&self, ring: &mut Option<Ring>, fresh: Duration) {
        let Some(ring) = ring.as_mut().filter(|ring| ring.read_at.elapsed() >= fresh) else {
            return;
        };
        match read(&self.directory) {
            Ok(new) => {
                let other = |(id, key): &(&String, &Arc<MasterKey>)| {
                    ring.keys.get(*id).is_some_and(|old| old.bytes != key.bytes)
                };
                if let Some((id, _)) = new.keys.iter().find(other) {
                    tracing::error!(
                        key = id,
                        "the bytes of this key id have changed; the previous key is used until this process ends"
                    );
                    ring.read_at = Instant::now();
                    return;
                }
                if new.active.id != ring.active.id {
                    tracing::info!(key = new.active.id, "the active key has changed");
                }
                *ring = new;
            }
            Err(error) => {
                tracing::warn!(%error, "the keys cannot be reloaded");
                ring.read_at = Instant::now();
            }
        }
    }
}

fn read(directory: &Path) -> Result<Ring, KeysError> {
    ring(&entries(directory)?)
}

fn entries(directory: &Path) -> Result<Entries, KeysError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| KeysError::Read { path, source }
    };
    let mut entries = Entries::new();
    for entry in std::fs::read_dir(directory).map_err(failed(directory))? {
        let path = entry.map_err(failed(directory))?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .filter(|name| MasterKey::is_id(name) || *name == ACTIVE);
        if let Some(name) = name {
            entries.insert(
                name.to_owned(),
                std::fs::read(&path).map_err(failed(&path))?,
            );
        }
    }
    Ok(entries)
}

fn ring(entries: &Entries) -> Result<Ring, KeysError> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    let mut keys = BTreeMap::new();
    for (id, content) in entries.iter().filter(|(id, _)| MasterKey::is_id(id)) {
        let bytes = BASE64_STANDARD
            .decode(text(content))
            .ok()
            .and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
        let key = bytes
            .and_then(|bytes| MasterKey::new(id, bytes))
            .ok_or_else(|| KeysError::NoKey(id.clone()))?;
        keys.insert(id.clone(), Arc::new(key));
    }
    let active = text(entries.get(ACTIVE).ok_or(KeysError::NoActive)?);
    let active = keys
        .get(&active)
        .cloned()
        .ok_or(KeysError::NotActive(active))?;
    Ok(Ring {
        keys,
        active,
        read_at: Instant::now(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(directory: &Path, id: &str, byte: u8) {
        std::fs::write(
            directory.join(id),
            format!("{}\n", BASE64_STANDARD.encode([byte; 32])),
        )
        .unwrap();
    }

    fn age(keys: &Keys, by: Duration) {
        keys.ring.lock().unwrap().as_mut().unwrap().read_at =
            Instant::now().checked_sub(by).unwrap();
    }

    #[test]
    fn missing_key_is_named_and_a_new_one_is_loaded() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "k1", 1);
        std::fs::write(directory.path().join("active"), "k1\n").unwrap();
        let keys = Keys::open(directory.path()).unwrap();
        assert_eq!(keys.active().unwrap().id(), "k1");
        assert_eq!(
            keys.find("k2").err(),
            Some(CryptError::KeyMissing("k2".into()))
        );
        write(directory.path(), "k2", 2);
        age(&keys, AGAIN);
        assert_eq!(keys.find("k2").unwrap().bytes(), &[2; 32]);
    }

    #[test]
    fn partially_written_key_directory_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "k1", 1);
        assert!(matches!(
            Keys::open(directory.path()),
            Err(KeysError::NoActive)
        ));
        std::fs::write(directory.path().join("active"), "k1").unwrap();
        let keys = Keys::open(directory.path()).unwrap();
        std::fs::write(directory.path().join("active"), "k9").unwrap();
        age(&keys, FRESH);
        assert_eq!(keys.active().unwrap().id(), "k1");
        assert!(
            matches!(Keys::open(directory.path()), Err(KeysError::NotActive(id)) if id == "k9")
        );
        std::fs::write(directory.path().join("k2"), "AAAA").unwrap();
        assert!(matches!(Keys::open(directory.path()), Err(KeysError::NoKey(id)) if id == "k2"));
    }

    #[test]
    fn changed_bytes_of_a_key_id_are_ignored() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "k1", 1);
        std::fs::write(directory.path().join("active"), "k1").unwrap();
        let keys = Keys::open(directory.path()).unwrap();
        write(directory.path(), "k1", 9);
        age(&keys, FRESH);
        assert_eq!(keys.find("k1").unwrap().bytes(), &[1; 32]);
        assert_eq!(
            Keys::open(directory.path())
                .unwrap()
                .find("k1")
                .unwrap()
                .bytes(),
            &[9; 32],
            "a process that starts has no other"
        );
    }

    #[test]
    fn created_keys_are_valid_with_unique_ids() {
        let (one, two) = (Keys::make().unwrap(), Keys::make().unwrap());
        let keys = Keys::waiting(Path::new("/nowhere"));
        assert_eq!(keys.active().err(), Some(CryptError::NoKey));
        keys.take(&one).unwrap();
        let active = keys.active().unwrap();
        assert!(
            one.contains_key(active.id()) && !two.contains_key(active.id()),
            "{active:?}"
        );
        assert!(
            active.bytes() != &[0; 32]
                && one[active.id()] != two[std::str::from_utf8(&two[ACTIVE]).unwrap()]
        );
    }

    #[test]
    fn debug_output_hides_the_key() {
        assert!(!format!("{:?}", MasterKey::new("k", [77; 32])).contains("77"));
    }
}
