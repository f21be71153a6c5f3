//! The digest of the work directory, in a pod and in a person's folder.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::{
    outside,
    tree::{TreeError, digest},
    uncounted::{NOTED, UNCOUNTED, is_given, is_uncounted},
};

/// Whether a path is a data directory in a copy that Terragrunt made: a link to the stack's own, or that of a unit whose outputs
/// are read, which Terragrunt recreates if it is missing. It contains providers and the backend's credentials.
pub fn is_data_of_copy(path: &Path) -> bool {
    path.ends_with(".terraform")
        && path
            .components()
            .any(|part| part.as_os_str() == ".terragrunt-cache")
}

/// The digest of a source fetched for this run; the stack is `below` its top. Excludes the paths in `apart`: files of Secrets,
/// which are written again before the digest for the claim is computed.
pub fn source_digest(root: &Path, below: &Path, apart: &[PathBuf]) -> Result<String, TreeError> {
    let skip = UNCOUNTED.map(|name| below.join(name));
    let is_noted = |path: &Path| NOTED.iter().any(|name| path.ends_with(name));
    let is_apart =
        |path: &Path| skip.iter().chain(apart).any(|skip| skip == path) || is_given(path, below);
    digest(root, &|path| {
        is_noted(path) || is_data_of_copy(path) || is_apart(path)
    })
}

/// The digest of a stack in its folder, with the modules that it uses and the files that its code names outside of the folder. Excludes
/// files that the tool writes during plan and apply: its state, and the state's lock.
pub fn folder_digest(stack: &Path) -> Result<String, TreeError> {
    let mut parts = BTreeMap::from([(String::new(), digest(stack, &is_uncounted)?)]);
    let modules = modules_beside(stack);
    parts.extend(outside::digests(stack, &outside::named(stack, &modules)));
    for module in modules {
        parts.insert(
            module.display().to_string(),
            digest(&stack.join(&module), &is_uncounted)?,
        );
    }
    let mut hasher = Sha256::new();
    for (path, digest) in parts {
        // The length prefix makes the encoding unambiguous.
        hasher.update((path.len() as u64).to_le_bytes());
        hasher.update(path);
        hasher.update(digest);
    }
    Ok(hex::encode(hasher.finalize()))
}

/// The files counted by [`folder_digest`] that changed since a time, for people. Uses the inode's change time, which no program can
/// set. Omits unreadable files.
pub fn changed_since(stack: &Path, since: SystemTime) -> Vec<String> {
    let mut changed = Vec::new();
    let modules = modules_beside(stack);
    let named = outside::named(stack, &modules);
    for part in std::iter::once(PathBuf::new()).chain(modules) {
        collect(
            &stack.join(&part),
            Path::new(""),
            &is_uncounted,
            since,
            &mut |path| {
                changed.push(part.join(path).display().to_string());
            },
        );
    }
    let top = stack.canonicalize().unwrap_or_else(|_| stack.to_owned());
    for part in named {
        let shown = outside::from(&top, &part);
        if part.is_dir() {
            collect(
                &part,
                Path::new(""),
                &outside::is_left_out,
                since,
                &mut |path| {
                    changed.push(shown.join(path).display().to_string());
                },
            );
        } else if part.metadata().is_ok_and(|meta| changed_at(&meta) > since) {
            changed.push(shown.display().to_string());
        }
    }
    changed.sort();
    changed.dedup();
    changed
}

/// The change time of an inode.
fn changed_at(meta: &fs::Metadata) -> SystemTime {
    let nanos = u32::try_from(meta.ctime_nsec()).unwrap_or_default();
    u64::try_from(meta.ctime()).map_or(UNIX_EPOCH, |seconds| {
        UNIX_EPOCH + Duration::new(seconds, nanos)
    })
}

fn collect(
    root: &Path,
    below: &Path,
    skip: &dyn Fn(&Path) -> bool,
    since: SystemTime,
    found: &mut dyn FnMut(&Path),
) {
    for entry in fs::read_dir(root.join(below))
        .into_iter()
        .flatten()
        .flatten()
    {
        let path = below.join(entry.file_name());
        let Some(meta) = entry.metadata().ok().filter(|_| !skip(&path)) else {
            continue;
        };
        if meta.is_dir() {
            collect(root, &path, skip, since, found);
        } else if changed_at(&meta) > since {
            found(&path);
        }
    }
}

/// Keys and directories of modules, as recorded by `init` below the data directory.
pub fn modules(data: &Path) -> Vec<(String, PathBuf)> {
    #[derive(Deserialize)]
    struct Modules {
        #[serde(rename = "Modules")]
        modules: Vec<Module>,
    }
    #[derive(Deserialize)]
    struct Module {
        #[serde(rename = "Key")]
        key: String,
        #[serde(rename = "Dir")]
        dir: PathBuf,
    }
    // Without the file there are no modules.
    let text = fs::read(data.join("modules/modules.json")).unwrap_or_default();
    let modules = serde_json::from_slice::<Modules>(&text)
        .map(|found| found.modules)
        .unwrap_or_default();
    let parts = |module: Module| (module.key, module.dir);
    modules.into_iter().map(parts).collect()
}

/// Directories of local modules outside the stack.
fn modules_beside(stack: &Path) -> Vec<PathBuf> {
    let beside = |dir: &PathBuf| dir.starts_with("..") && stack.join(dir).is_dir();
    modules(&stack.join(".terraform"))
        .into_iter()
        .map(|(_, dir)| dir)
        .filter(beside)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_digest_covers_code_and_modules_outside() {
        let dir = tempfile::tempdir().unwrap();
        let stack = dir.path().join("live/a");
        for below in [
            ".terraform/modules",
            ".terraform/providers/x",
            ".pawl/runs/1",
            "sub/.terraform/providers",
            "../../modules/net",
        ] {
            fs::create_dir_all(stack.join(below)).unwrap();
        }
        fs::write(stack.join("main.tf"), "a").unwrap();
        fs::write(stack.join("../../modules/net/main.tf"), "net").unwrap();
        let list = r#"{"Modules":[{"Key":"","Source":"","Dir":"."},{"Key":"net","Source":"../../modules/net","Dir":"../../modules/net"}]}"#;
        fs::write(stack.join(".terraform/modules/modules.json"), list).unwrap();
        let before = folder_digest(&stack).unwrap();
        let own = "terraform.tfstate terraform.tfstate.backup .terraform.tfstate.lock.info .pawl/runs/1/log \
                   .terraform/providers/x/p sub/.terraform/providers/p sub/.terragrunt-source-version";
        for own in own.split(' ') {
            fs::write(stack.join(own), "new").unwrap();
            assert_eq!(folder_digest(&stack).unwrap(), before, "{own}");
        }
        for code in [
            "main.tf",
            "sub/script.sh",
            "../../modules/net/main.tf",
            "x.tfstate.tf",
        ] {
            let before = folder_digest(&stack).unwrap();
            fs::write(stack.join(code), "changed").unwrap();
            assert_ne!(folder_digest(&stack).unwrap(), before, "{code}");
        }
        let named = changed_since(&stack, UNIX_EPOCH);
        assert_eq!(
            named,
            [
                "../../modules/net/main.tf",
                ".terraform/modules/modules.json",
                "main.tf",
                "sub/script.sh",
                "x.tfstate.tf"
            ]
        );
        assert!(changed_since(&stack, SystemTime::now() + Duration::from_secs(60)).is_empty());
    }
}
