//! A mirror, a cache, and the channel between them.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use pgp::crypto::hash::HashAlgorithm;
use tool_versions::{
    Channel, Digest, Installer, Limits, Mirror, Platform, Store, Tool, Verification,
    install::{Ask, Got, Keys, PATIENCE},
    releases::mirror::{ListKind, Location},
};
use zip::CompressionMethod;

use super::{
    making::{BORN, DAY, Made, binary, made},
    packing, rules,
    server::{Act, Server, answer, ok},
    version,
};

/// The directory of release 1.10.6.
pub(crate) const AT: &str = "/opentofu/opentofu/releases/download/v1.10.6";
/// The executable: a script, so that tests can run it.
pub(crate) const SCRIPT: &str = "#!/bin/sh\necho tofu of the mirror\n";

pub(crate) fn linux() -> Platform {
    Platform {
        os: "linux".into(),
        arch: "amd64".into(),
    }
}

/// Packs files.
pub(crate) fn zip(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let files: Vec<_> = entries
        .iter()
        .map(|(name, bytes)| packing::file(name, bytes))
        .collect();
    packing::zip(&files, CompressionMethod::Deflated)
}

pub(crate) fn release() -> Vec<u8> {
    zip(&[
        ("LICENSE", b"MPL"),
        ("README.md", b"read"),
        ("tofu", SCRIPT.as_bytes()),
    ])
}

pub(crate) const ARCHIVE: &str = "tofu_1.10.6_linux_amd64.zip";
pub(crate) const SUMS: &str = "tofu_1.10.6_SHA256SUMS";

/// Files of a mirror: the answer of each path.
pub(crate) type Files = BTreeMap<String, Vec<Act>>;

/// A release as it is published, with this archive.
pub(crate) fn published(archive: &[u8], key: &Made, signed_at: u32) -> Files {
    let sums = format!(
        "{}  {ARCHIVE}\n{}  tofu_1.10.6_linux_arm64.zip\n",
        Digest::of(archive),
        Digest::of(b"another")
    );
    let signature = binary(&key.sign(sums.as_bytes(), signed_at, HashAlgorithm::Sha256));
    [
        (ARCHIVE, archive.to_vec()),
        (SUMS, sums.into_bytes()),
        ("tofu_1.10.6_SHA256SUMS.gpgsig", signature),
    ]
    .into_iter()
    .map(|(name, bytes)| {
        (
            format!("{AT}/{name}"),
            ok("Content-Type: application/octet-stream", &bytes),
        )
    })
    .chain([(
        "/tofu/api.json".to_owned(),
        list(&["1.9.4", "1.10.6", "1.10.5", "1.11.0-rc1"]),
    )])
    .collect()
}

pub(crate) fn list(versions: &[&str]) -> Vec<Act> {
    let all: Vec<_> = versions
        .iter()
        .map(|id| format!("{{\"id\":\"{id}\"}}"))
        .collect();
    ok(
        "ETag: \"l\"\nContent-Type: application/json",
        format!("{{\"versions\":[{}]}}", all.join(",")).as_bytes(),
    )
}

pub(crate) fn key() -> Made {
    made("")
}

pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) files: Arc<Mutex<Files>>,
    pub(crate) dir: tempfile::TempDir,
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(published(&release(), &key(), BORN + DAY)).await
    }

    pub(crate) async fn with(files: Files) -> Self {
        let files = Arc::new(Mutex::new(files));
        let served = Arc::clone(&files);
        let server = Server::start(move |request, _| {
            let missing = || answer("404 Not Found\nContent-Length: 0", b"");
            served
                .lock()
                .unwrap()
                .get(&request.path)
                .cloned()
                .unwrap_or_else(missing)
        })
        .await;
        Self {
            server,
            files,
            dir: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn set(&self, name: &str, acts: Vec<Act>) {
        let path = if name.starts_with('/') {
            name.to_owned()
        } else {
            format!("{AT}/{name}")
        };
        self.files.lock().unwrap().insert(path, acts);
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().join("tools")
    }

    pub(crate) fn installer(&self) -> Installer {
        self.verified(Verification::Signature(keyring(&key())))
    }

    pub(crate) fn verified(&self, verification: Verification) -> Installer {
        installer(&self.server.url(""), &self.root(), verification)
    }

    pub(crate) async fn get(&self) -> tool_versions::Result<Got> {
        get(&self.installer()).await
    }

    /// The number of requests for a file.
    pub(crate) fn asked(&self, name: &str) -> usize {
        self.server
            .seen()
            .iter()
            .filter(|request| request.path.ends_with(name))
            .count()
    }

    /// Files below the cache without locks and lists.
    pub(crate) fn left(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        let mut dirs = vec![self.root()];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
                if entry.file_type().unwrap().is_dir() {
                    dirs.push(entry.path());
                } else {
                    files.push(entry.path());
                }
            }
        }
        files.retain(|path| {
            !path
                .components()
                .any(|part| part.as_os_str() == ".locks" || part.as_os_str() == "lists")
        });
        files
    }
}

pub(crate) fn keyring(key: &Made) -> Keys {
    Keys::Own {
        armored: key.armored(),
        fingerprints: vec![key.fingerprint()],
    }
}

pub(crate) fn installer(base: &str, root: &Path, verification: Verification) -> Installer {
    let mut mirror = Mirror::below(Tool::OpenTofu, Location::Url(base.to_owned()));
    (mirror.list, mirror.list_kind) = (mirror.base.join("tofu/api.json"), ListKind::OpenTofu);
    Installer {
        store: Store::at(root, linux()),
        lists: root.join("lists"),
        channels: vec![Channel {
            mirror,
            rules: rules(),
            verification,
            refusal: None,
        }],
        platform: linux(),
        offline: false,
        limits: Limits::default(),
        ask: Ask::default(),
        patience: PATIENCE,
    }
}

pub(crate) async fn get(installer: &Installer) -> tool_versions::Result<Got> {
    installer
        .get(Tool::OpenTofu, &version("1.10.6"), &mut |_, _| {})
        .await
}
