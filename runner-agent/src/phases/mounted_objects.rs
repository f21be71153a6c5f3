//! Keys of Secrets and ConfigMaps, mounted in a pod or in a person's folder.

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
};

use crds::{Failure, KeyRef, Reason};

use crate::settings::Settings;

/// Maximum bytes read of a value. etcd stores no larger ones.
const MAX_VALUE: u64 = 2 << 20;

/// A key's value and its origin, e.g. `secret db/password`.
pub(super) struct Found {
    pub(super) bytes: Vec<u8>,
    pub(super) origin: String,
}

/// A Secret or ConfigMap that a run references.
pub(super) struct Object<'a> {
    pub(super) name: &'a str,
    pub(super) kind: &'static str,
    /// The word for it in origins.
    pub(super) word: &'static str,
    /// The failure's reason if the object or a key is missing.
    pub(super) reason: Reason,
    /// Mount path.
    pub(super) dir: PathBuf,
}

impl<'a> Object<'a> {
    pub(super) fn secret(name: &'a str, settings: &Settings) -> Self {
        Self {
            name,
            kind: "Secret",
            word: "secret",
            reason: Reason::SecretNotFound,
            dir: settings.secrets.join(name),
        }
    }

    pub(super) fn config_map(name: &'a str, settings: &Settings) -> Self {
        let dir = settings.config_maps.join(name);
        Self {
            name,
            kind: "ConfigMap",
            word: "configMap",
            reason: Reason::ConfigMapNotFound,
            dir,
        }
    }

    /// The referenced object; `None` unless exactly one of the two names is set.
    pub(super) fn of(
        secret: Option<&'a str>,
        config_map: Option<&'a str>,
        settings: &Settings,
    ) -> Option<Self> {
        match (secret, config_map) {
            (Some(name), None) => Some(Self::secret(name, settings)),
            (None, Some(name)) => Some(Self::config_map(name, settings)),
            (Some(_), Some(_)) | (None, None) => None,
        }
    }

    /// The error message for a missing object.
    pub(super) fn absent(&self) -> String {
        format!("{} {} does not exist or is empty", self.kind, self.name)
    }

    /// The same message with the field that needs the object.
    pub(super) fn absent_for(&self, field: &str, settings: &Settings) -> String {
        format!(
            "{}; {field} wants it{}",
            self.absent(),
            place(settings, &self.dir)
        )
    }

    /// The error message for a missing key.
    pub(super) fn lacks(&self, key: &str) -> String {
        if is_empty(&self.dir) {
            self.absent()
        } else {
            format!("{} {} has no key {key}", self.kind, self.name)
        }
    }

    /// The same message with the field that needs the key.
    pub(super) fn wanted(&self, key: &str, wanted: &str, settings: &Settings) -> String {
        let place = place(settings, &self.dir.join(key));
        format!(
            "{}; {wanted} wants {}/{key}{place}",
            self.lacks(key),
            self.name
        )
    }
}

/// References to a key of a Secret and of a ConfigMap.
pub(super) type Refs<'a> = (Option<&'a KeyRef>, Option<&'a KeyRef>);

/// The object and its key; `None` unless exactly one is referenced.
pub(super) fn named<'a>(refs: Refs<'a>, settings: &Settings) -> Option<(Object<'a>, &'a str)> {
    let name = |key: Option<&'a KeyRef>| key.map(|key| key.name.as_str());
    let object = Object::of(name(refs.0), name(refs.1), settings)?;
    Some((object, refs.0.or(refs.1)?.key.as_str()))
}

/// Reads the key of a Secret or a ConfigMap. Fails unless exactly one is referenced.
pub(super) fn key_of(refs: Refs<'_>, settings: &Settings, wanted: &str) -> Result<Found, Failure> {
    let Some((object, key)) = named(refs, settings) else {
        return Err(Reason::InvalidSpec.failure(format!(
            "{wanted} needs exactly one of secretKeyRef and configMapKeyRef"
        )));
    };
    let bytes = if is_name(object.name) {
        bytes(&object.dir, key)
    } else {
        None
    };
    let bytes = bytes.ok_or_else(|| object.reason.failure(object.wanted(key, wanted, settings)))?;
    Ok(Found {
        bytes,
        origin: format!("{} {}/{key}", object.word, object.name),
    })
}

/// Reads a key of a mounted Secret or ConfigMap as text.
pub(super) fn mounted(object: &Path, key: &str) -> Option<String> {
    Some(String::from_utf8_lossy(&bytes(object, key)?).into_owned())
}

fn bytes(object: &Path, key: &str) -> Option<Vec<u8>> {
    // The schema validates names. A path that leaves the directory is rejected again here.
    if key.contains('/') || key == ".." || key == "." {
        return None;
    }
    let mut bytes = Vec::new();
    fs::File::open(object.join(key))
        .ok()?
        .take(MAX_VALUE)
        .read_to_end(&mut bytes)
        .ok()?;
    Some(bytes)
}

/// Whether a mounted object has no keys; a missing object has none either.
pub(super) fn is_empty(object: &Path) -> bool {
    // The kubelet's own entries begin with two dots.
    !fs::read_dir(object).is_ok_and(|mut entries| {
        entries.any(|entry| entry.is_ok_and(|e| !e.file_name().to_string_lossy().starts_with("..")))
    })
}

/// The sorted keys of a mounted object.
pub(super) fn keys(object: &Path) -> Vec<String> {
    let names = fs::read_dir(object)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    let mut keys: Vec<_> = names.filter(|name| !name.starts_with("..")).collect();
    keys.sort();
    keys
}

/// Suffix of a message with the path searched on a person's machine; empty in a pod.
fn place(settings: &Settings, path: &Path) -> String {
    if settings.folder.is_some() {
        format!("; here it is looked for in {}", path.display())
    } else {
        String::new()
    }
}

/// Whether a name is one directory below its parent. The schema checks this as well.
pub(super) fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.contains('/') && !name.starts_with('.')
}
