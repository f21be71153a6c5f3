//! Tools of this machine: those on PATH, linked into a directory of tools.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result};
use crds::ToolName;
use serde::Deserialize;
use tool_versions::cache::shared_dir::write_atomic;

use super::{LocalTool, Stamp, ToolSources, Version, sources::name_of};

/// The tools on PATH, for a stack in `dir`: the wanted one, or all.
pub fn tools(wanted: Option<ToolName>, dir: &Path) -> Vec<LocalTool> {
    // Terragrunt needs one of the others.
    let is_wanted = |name: &ToolName| {
        wanted.is_none_or(|wanted| wanted == *name || wanted == ToolName::Terragrunt)
    };
    let mut known = Remembered::read();
    let found = ToolName::KNOWN
        .into_iter()
        .filter(is_wanted)
        .filter_map(|name| {
            let binary = on_path(name)?;
            let version = if name == ToolName::Terragrunt {
                terragrunt(&binary, dir)
            } else {
                known.of(&binary, dir)
            }?;
            Some(LocalTool {
                name,
                version,
                binary,
            })
        });
    let found = found.collect();
    known.keep();
    found
}

/// The tools that `runner-agent tool install` has put into this person's cache.
pub fn installed(wanted: Option<ToolName>) -> Vec<LocalTool> {
    let Some(cache) = cache() else {
        return Vec::new();
    };
    let store = ToolSources::of_dirs(Vec::new(), &cache).installer.store;
    let all = store.list().unwrap_or_default().into_iter();
    let all = all.map(|one| LocalTool {
        name: name_of(one.tool),
        version: one.version,
        binary: one.binary,
    });
    all.filter(|one| {
        wanted.is_none_or(|wanted| wanted == one.name || wanted == ToolName::Terragrunt)
    })
    .collect()
}

/// Parses `terragrunt version v0.93.0`.
fn terragrunt(binary: &Path, dir: &Path) -> Option<Version> {
    let output = Command::new(binary)
        .arg("--version")
        .current_dir(dir)
        .stdin(Stdio::null())
        .output()
        .ok()?;
    String::from_utf8_lossy(&output.stdout)
        .split_whitespace()
        .next_back()?
        .parse()
        .ok()
}

fn own_cache() -> Option<PathBuf> {
    let absolute = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    Some(
        absolute("XDG_CACHE_HOME")
            .or_else(|| Some(absolute("HOME")?.join(".cache")))?
            .join("pawl"),
    )
}

/// The tool cache of `runner-agent tool install`.
pub fn cache() -> Option<PathBuf> {
    own_cache().map(|cache| cache.join("tool-cache"))
}

/// Links tools into `dir` with the layout of a tool directory.
pub fn link(dir: &Path, tools: &[LocalTool]) -> Result<()> {
    for tool in tools {
        let place = dir
            .join(tool.name.directory())
            .join(tool.version.to_string());
        fs::create_dir_all(&place)
            .with_context(|| format!("{} cannot be made", place.display()))?;
        let link = place.join(tool.name.binary());
        symlink(&tool.binary, &link)
            .with_context(|| format!("{} cannot be made", link.display()))?;
    }
    Ok(())
}

/// The tool's executable on PATH.
pub fn on_path(tool: ToolName) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| {
        path.is_file() && nix::unistd::access(path, nix::unistd::AccessFlags::X_OK).is_ok()
    };
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path)
        .map(|dir| dir.join(tool.binary()))
        .find(is_program)?;
    // The real file, so that the digest is not one of a link's target that may change.
    found.canonicalize().ok()
}

fn version_of(binary: &Path, dir: &Path) -> Option<Version> {
    #[derive(Deserialize)]
    struct Said {
        terraform_version: String,
    }
    let output = Command::new(binary)
        .args(["version", "-json"])
        .current_dir(dir)
        .env("CHECKPOINT_DISABLE", "1")
        .stdin(Stdio::null())
        .output()
        .ok()?;
    serde_json::from_slice::<Said>(&output.stdout)
        .ok()?
        .terraform_version
        .parse()
        .ok()
}

/// The digest of a tool, cached by its file's stamp. Only for a plan that is about to be made: for a plan that waited the bytes are
/// hashed again, since code that ran in between may have written to the cache.
pub fn digest(binary: &Path) -> io::Result<(Stamp, String)> {
    let mut known = Remembered::read();
    let digest = known.digest(binary);
    known.keep();
    digest
}

/// Smaller programs only select the tool (tenv, tfenv), and may select another one in another folder.
const WHOLE: u64 = 32 << 20;
/// Maximum number of cache entries.
const REMEMBERED: usize = 64;

/// Cache of facts about unchanged files. A tool takes 0.1 s to print its version, and hashing it takes as long.
#[derive(Debug, Default)]
struct Remembered {
    file: Option<PathBuf>,
    known: BTreeMap<String, String>,
    changed: bool,
}

impl Remembered {
    fn read() -> Self {
        Self::of_file(own_cache().map(|cache| cache.join("tools.json")))
    }

    fn of_file(file: Option<PathBuf>) -> Self {
        let known = file
            .as_ref()
            .and_then(|file| serde_json::from_slice(&fs::read(file).ok()?).ok())
            .unwrap_or_default();
        Self {
            file,
            known,
            changed: false,
        }
    }

    fn of(&mut self, binary: &Path, dir: &Path) -> Option<Version> {
        let is_whole = fs::metadata(binary).is_ok_and(|meta| meta.len() >= WHOLE);
        let Some(stamp) = Stamp::of(binary).ok().filter(|_| is_whole) else {
            return version_of(binary, dir);
        };
        let key = format!("{} {stamp:?}", binary.display());
        if let Some(version) = self.known.get(&key).and_then(|text| text.parse().ok()) {
            return Some(version);
        }
        let version = version_of(binary, dir)?;
        self.remember(key, version.to_string());
        Some(version)
    }

    /// The digest of a file, and its stamp.
    fn digest(&mut self, binary: &Path) -> io::Result<(Stamp, String)> {
        let stamp = Stamp::of(binary)?;
        let key = format!("sha256 of {} {stamp:?}", binary.canonicalize()?.display());
        if let Some(digest) = self.known.get(&key) {
            return Ok((stamp, digest.clone()));
        }
        let digest = super::digest(binary)?;
        // A file that changed during the read is not cached.
        if Stamp::of(binary)? == stamp {
            self.remember(key, digest.clone());
        }
        Ok((stamp, digest))
    }

    fn remember(&mut self, key: String, value: String) {
        if self.known.len() >= REMEMBERED {
            self.known.clear();
        }
        self.known.insert(key, value);
        self.changed = true;
    }

    /// Writes the cache if it changed. Without it, the next call asks the tool again.
    fn keep(&self) {
        let (Some(file), true) = (&self.file, self.changed) else {
            return;
        };
        let kept = file
            .parent()
            .is_none_or(|dir| fs::create_dir_all(dir).is_ok())
            && serde_json::to_vec(&self.known).is_ok_and(|text| write_atomic(file, &text).is_ok());
        if !kept {
            tracing::debug!(file = %file.display(), "tools are not remembered");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A program that prints a version and logs the call.
    fn program(dir: &Path, version: &str, size: u64) -> PathBuf {
        let path = dir.join("tofu");
        let script = format!(
            "#!/bin/sh\necho asked >> {}/asked\necho '{{\"terraform_version\":\"{version}\"}}'\nexit\n",
            dir.display()
        );
        fs::write(&path, script).unwrap();
        fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(size)
            .unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn file_is_asked_once_and_version_selector_each_time() {
        let dir = tempfile::tempdir().unwrap();
        let asked = || {
            fs::read_to_string(dir.path().join("asked"))
                .unwrap_or_default()
                .lines()
                .count()
        };
        let ask = |binary: &Path| {
            let mut versions = Remembered::of_file(Some(dir.path().join("cache/versions.json")));
            let version = versions.of(binary, dir.path()).unwrap().to_string();
            versions.keep();
            version
        };
        let binary = program(dir.path(), "1.10.6", WHOLE);
        assert_eq!(
            (ask(&binary).as_str(), ask(&binary).as_str(), asked()),
            ("1.10.6", "1.10.6", 1)
        );
        let binary = program(dir.path(), "1.11.0", WHOLE + 1);
        assert_eq!(
            (ask(&binary).as_str(), asked()),
            ("1.11.0", 2),
            "another file at the same place"
        );
        let digest = || {
            let mut known = Remembered::of_file(Some(dir.path().join("cache/versions.json")));
            let digest = known.digest(&binary).unwrap().1;
            known.keep();
            (digest, known.changed)
        };
        let real = crate::tool::digest(&binary).unwrap();
        assert_eq!(
            (digest(), digest()),
            ((real.clone(), true), (real.clone(), false))
        );
        fs::OpenOptions::new()
            .append(true)
            .open(&binary)
            .unwrap()
            .set_len(WHOLE + 2)
            .unwrap();
        assert!(
            digest().1 && digest().0 != real,
            "its bytes are other ones now"
        );
        let binary = program(dir.path(), "1.9.0", 200);
        assert_eq!(
            (ask(&binary).as_str(), ask(&binary).as_str(), asked()),
            ("1.9.0", "1.9.0", 4)
        );
    }
}
