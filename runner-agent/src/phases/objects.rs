//! Keys of Secrets and ConfigMaps, as they are mounted in a pod, or lie in a person's folder.

use std::{fs, io::Read as _, path::Path};

use crds::{Failure, KeyRef, Reason};

use crate::settings::Settings;

/// The longest value from a Secret or ConfigMap; etcd holds no longer ones.
const MAX_VALUE: u64 = 2 << 20;

/// What a key holds, and which it was: `secret db/password`.
pub(super) struct Found {
    pub(super) bytes: Vec<u8>,
    pub(super) origin: String,
}

/// Reads a key of a Secret or of a ConfigMap, of which exactly one is named.
pub(super) fn key_of(refs: (Option<&KeyRef>, Option<&KeyRef>), settings: &Settings, wanted: &str) -> Result<Found, Failure> {
    let (key, dir, kind, reason, secret) = match refs {
        (Some(key), None) => (key, &settings.secrets, "Secret", Reason::SecretNotFound, true),
        (None, Some(key)) => (key, &settings.config_maps, "ConfigMap", Reason::ConfigMapNotFound, false),
        (Some(_), Some(_)) | (None, None) => {
            return Err(Reason::InvalidSpec.failure(format!("{wanted} needs exactly one of secretKeyRef and configMapKeyRef")));
        }
    };
    let object = dir.join(&key.name);
    let bytes = Some(&object).filter(|_| is_name(&key.name)).and_then(|object| bytes(object, &key.key)).ok_or_else(|| {
        let what = lacks(kind, &key.name, &object, &key.key);
        let place = place(settings, &object.join(&key.key));
        reason.failure(format!("{what}; {wanted} wants {}/{}{place}", key.name, key.key))
    })?;
    let word = if secret { "secret" } else { "configMap" };
    Ok(Found { bytes, origin: format!("{word} {}/{}", key.name, key.key) })
}

/// Why a key is not there, for people.
pub(super) fn lacks(kind: &str, name: &str, object: &Path, key: &str) -> String {
    if is_empty(object) { format!("{kind} {name} does not exist or is empty") } else { format!("{kind} {name} has no key {key}") }
}

/// A key of a mounted Secret or ConfigMap, as text.
pub(super) fn mounted(object: &Path, key: &str) -> Option<String> {
    Some(String::from_utf8_lossy(&bytes(object, key)?).into_owned())
}

fn bytes(object: &Path, key: &str) -> Option<Vec<u8>> {
    // Names are checked by the schema; a path that leaves its directory is not even tried.
    if key.contains('/') || key == ".." || key == "." {
        return None;
    }
    let mut bytes = Vec::new();
    fs::File::open(object.join(key)).ok()?.take(MAX_VALUE).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Whether a mounted object has no keys, as one that does not exist.
pub(super) fn is_empty(object: &Path) -> bool {
    // The kubelet's own entries begin with two dots.
    !fs::read_dir(object)
        .is_ok_and(|mut entries| entries.any(|entry| entry.is_ok_and(|e| !e.file_name().to_string_lossy().starts_with(".."))))
}

/// The keys of a mounted object, in their order.
pub(super) fn keys(object: &Path) -> Vec<String> {
    let names = fs::read_dir(object).into_iter().flatten().flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut keys: Vec<_> = names.filter(|name| !name.starts_with("..")).collect();
    keys.sort();
    keys
}

/// Where a person's own are looked for, when they are; nothing in a pod.
pub(super) fn place(settings: &Settings, path: &Path) -> String {
    if settings.folder.is_some() { format!("; here it is looked for in {}", path.display()) } else { String::new() }
}

/// Whether a name stays one directory; the schema says so already.
pub(super) fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.contains('/') && !name.starts_with('.')
}
