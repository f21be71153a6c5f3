//! Fetches a run's source, of any kind, to disk.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use crds::{Failure, ObjectSource, Reason, SourceKind, TerraformRunSpec};

use super::{PhaseRunner, git_source};
use crate::{
    classify::{OrInternal as _, not_run},
    ports::{Notice, Notices},
    process::RunError,
};

/// Attempts to read a ConfigMap's or Secret's files while the kubelet replaces them.
const TRIES: usize = 5;
/// Names that a source may not contain, since tools read files below them that no reviewer looks at.
const REFUSED: [&str; 2] = [".git", ".terraform"];

/// A source on disk.
pub(super) struct Fetched {
    /// Description for people.
    pub(super) source: String,
    /// The commit, or the archive's digest.
    pub(super) revision: Option<String>,
    /// Why contents of large files are missing, if any are.
    pub(super) without: Option<Failure>,
}

impl PhaseRunner {
    /// Fetches a run's source into an empty directory.
    pub(super) async fn fetch(
        &self,
        spec: &TerraformRunSpec,
        root: &Path,
        notices: &Notices,
    ) -> Result<Fetched, Failure> {
        let plain = |source: String| Fetched {
            source,
            revision: None,
            without: None,
        };
        let needed = "the source needs exactly one of git, inline, configMapRef, secretRef, artifact and repository";
        match spec
            .source
            .kind()
            .ok_or_else(|| Reason::InvalidSpec.failure(needed))?
        {
            SourceKind::Git(git) => {
                let git_source::Commit { id, without } = self
                    .fetch_git(git, &spec.credentials, root, notices)
                    .await?;
                let short: String = id.chars().take(7).collect();
                Ok(Fetched {
                    source: format!("git {short} of {}", git.revision),
                    revision: Some(id),
                    without,
                })
            }
            SourceKind::Inline(inline) => {
                git_source::write_files(&inline.files, root)?;
                Ok(plain(format!("inline, {}", files(inline.files.len()))))
            }
            SourceKind::ConfigMap(object) => {
                let count = write_object(
                    &self.settings.config_maps,
                    object,
                    ("ConfigMap", Reason::ConfigMapNotFound),
                    root,
                )?;
                Ok(plain(format!(
                    "ConfigMap {}, {}",
                    object.name,
                    files(count)
                )))
            }
            SourceKind::Secret(object) => {
                let count = write_object(
                    &self.settings.secrets,
                    object,
                    ("Secret", Reason::SecretNotFound),
                    root,
                )?;
                Ok(plain(format!("Secret {}, {}", object.name, files(count))))
            }
            SourceKind::Artifact(artifact) => {
                let source = self.fetch_artifact(artifact, root, notices).await?;
                Ok(Fetched {
                    source,
                    revision: Some(artifact.digest.clone()),
                    without: None,
                })
            }
            SourceKind::Repository(repository) => {
                self.fetch_repository(spec, repository, root, notices).await
            }
        }
    }

    /// Reports a download as the step `source`. A stop of the attempt ends it.
    pub(super) async fn fetching<T>(
        &self,
        download: impl Future<Output = Result<T, Failure>>,
        notices: &Notices,
    ) -> Result<T, Failure> {
        let _ = notices.send(Notice::Started("source"));
        let fetched = tokio::select! {
            fetched = download => fetched,
            () = self.children.stopped() => Err(not_run("source", &RunError::Stopped)),
        };
        let _ = notices.send(Notice::Ended("source", i32::from(fetched.is_err())));
        fetched
    }
}

/// `1 file`, `3 files`.
pub(super) fn files(count: usize) -> String {
    format!("{count} file{}", if count == 1 { "" } else { "s" })
}

/// Copies the files of a mounted ConfigMap or Secret, all from the same version of it.
fn write_object(
    dir: &Path,
    object: &ObjectSource,
    (kind, reason): (&str, Reason),
    root: &Path,
) -> Result<usize, Failure> {
    let name = &object.name;
    let read =
        one_version(&dir.join(name)).or_internal(&format!("{kind} {name} cannot be read"))?;
    let files = chosen(read, object).map_err(|key| {
        let message = format!("{kind} {name} has no key {key}; source wants it");
        reason.failure(message)
    })?;
    if files.is_empty() {
        return Err(reason.failure(format!(
            "{kind} {name} does not exist or is empty; source wants it"
        )));
    }
    if let Some(path) = files
        .keys()
        .find(|path| path.split('/').any(|part| REFUSED.contains(&part)))
    {
        return Err(Reason::SourceInvalid.failure(format!(
            "{kind} {name} has a file {path}, a name that no source may use"
        )));
    }
    git_source::write_files(&files, root)?;
    Ok(files.len())
}

/// The files by path, or the first missing key as the error.
fn chosen(
    mut read: BTreeMap<String, Vec<u8>>,
    object: &ObjectSource,
) -> Result<BTreeMap<String, Vec<u8>>, String> {
    if object.items.is_empty() {
        return Ok(read);
    }
    let items = object.items.iter();
    // Several items may name the same key.
    let last = |n: usize, key: &str| {
        object
            .items
            .iter()
            .skip(n + 1)
            .all(|other| other.key != key)
    };
    items
        .enumerate()
        .map(|(n, item)| {
            let bytes = if last(n, &item.key) {
                read.remove(&item.key)
            } else {
                read.get(&item.key).cloned()
            };
            bytes
                .map(|bytes| (item.path.clone(), bytes))
                .ok_or_else(|| item.key.clone())
        })
        .collect()
}

/// Reads a mounted volume, by key. For each version the kubelet creates a new directory, points a link at it, and removes the
/// previous one.
fn one_version(dir: &Path) -> io::Result<BTreeMap<String, Vec<u8>>> {
    let read = || {
        let at: PathBuf = match dir.join("..data").canonicalize() {
            Ok(at) => at,
            Err(error) if error.kind() == io::ErrorKind::NotFound => dir.to_owned(),
            Err(error) => return Err(error),
        };
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(at)? {
            let entry = entry?;
            // Keys are ASCII; the kubelet's own names begin with two dots.
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            if !name.starts_with("..") {
                files.insert(name, fs::read(entry.path())?);
            }
        }
        Ok(files)
    };
    let mut last = read();
    for _ in 1..TRIES {
        match last {
            Err(error) if error.kind() == io::ErrorKind::NotFound && dir.is_dir() => last = read(),
            done => return done,
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::os::unix::fs::symlink;

    /// The kubelet's layout of a mounted volume.
    fn mounted(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let version = dir.path().join("net/..2026_1");
        fs::create_dir_all(&version).unwrap();
        for (name, text) in files {
            fs::write(version.join(name), text).unwrap();
            symlink(format!("..data/{name}"), dir.path().join("net").join(name)).unwrap();
        }
        symlink("..2026_1", dir.path().join("net/..data")).unwrap();
        dir
    }

    fn written(dir: &Path, items: &serde_json::Value) -> Result<Vec<String>, Failure> {
        let root = tempfile::tempdir().unwrap();
        let object: ObjectSource =
            serde_json::from_value(json!({"name": "net", "items": items})).unwrap();
        write_object(
            dir,
            &object,
            ("ConfigMap", Reason::ConfigMapNotFound),
            root.path(),
        )?;
        let mut found = Vec::new();
        let mut dirs = vec![root.path().to_owned()];
        while let Some(at) = dirs.pop() {
            for entry in fs::read_dir(at).unwrap() {
                let path = entry.unwrap().path();
                assert!(
                    !path.is_symlink(),
                    "files, not links to what the kubelet replaces"
                );
                if path.is_dir() {
                    dirs.push(path);
                } else {
                    found.push(format!(
                        "{}={}",
                        path.strip_prefix(root.path()).unwrap().display(),
                        fs::read_to_string(&path).unwrap()
                    ));
                }
            }
        }
        found.sort();
        Ok(found)
    }

    #[test]
    fn keys_of_an_object_become_files() {
        let dir = mounted(&[("main.tf", "a"), ("vars.tf", "b")]);
        assert_eq!(
            written(dir.path(), &json!([])).unwrap(),
            ["main.tf=a", "vars.tf=b"]
        );
        let items = json!([{"key": "main.tf", "path": "main.tf"}, {"key": "main.tf", "path": "modules/x/main.tf"}]);
        assert_eq!(
            written(dir.path(), &items).unwrap(),
            ["main.tf=a", "modules/x/main.tf=a"]
        );
    }

    #[test]
    fn missing_keys_and_refused_paths_are_named() {
        let dir = mounted(&[("main.tf", "a"), (".terraform", "x")]);
        let said = |dir: &Path, items| {
            let failure = written(dir, &items).unwrap_err();
            (failure.reason, failure.message)
        };
        let of = |reason: Reason, text: &str| (reason.as_str().to_owned(), text.to_owned());
        assert_eq!(
            said(dir.path(), json!([{"key": "gone", "path": "x"}])),
            of(
                Reason::ConfigMapNotFound,
                "ConfigMap net has no key gone; source wants it"
            )
        );
        assert_eq!(
            said(dir.path(), json!([{"key": "main.tf", "path": "../x"}])).0,
            Reason::SourceInvalid
        );
        assert_eq!(
            said(dir.path(), json!([])),
            of(
                Reason::SourceInvalid,
                "ConfigMap net has a file .terraform, a name that no source may use"
            )
        );
        let empty = tempfile::tempdir().unwrap();
        fs::create_dir(empty.path().join("net")).unwrap();
        assert_eq!(
            said(empty.path(), json!([])),
            of(
                Reason::ConfigMapNotFound,
                "ConfigMap net does not exist or is empty; source wants it"
            )
        );
    }
}
