//! Tools of this machine: those on PATH, laid out as a directory of tools.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result};
use crds::ToolName;
use serde::Deserialize;

use crate::tool::Version;

/// Makes `dir` a directory of tools that holds what is on PATH; which tools those are.
pub fn link(dir: &Path) -> Result<Vec<ToolName>> {
    let mut found = Vec::new();
    for name in [ToolName::OpenTofu, ToolName::Terraform] {
        let Some(binary) = on_path(name.binary()) else { continue };
        let Some(version) = version_of(&binary) else { continue };
        let place = dir.join(name.directory()).join(version.to_string());
        let link = place.join(name.binary());
        fs::create_dir_all(&place).with_context(|| format!("{} cannot be made", place.display()))?;
        let _ = fs::remove_file(&link);
        symlink(&binary, &link).with_context(|| format!("{} cannot be made", link.display()))?;
        found.push(name);
    }
    Ok(found)
}

fn on_path(program: &str) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| path.is_file() && nix::unistd::access(path, nix::unistd::AccessFlags::X_OK).is_ok();
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path).map(|dir| dir.join(program)).find(is_program)?;
    // The version's own file, so that the digest is of it and not of a link or of tenv's shim.
    found.canonicalize().ok()
}

fn version_of(binary: &Path) -> Option<Version> {
    #[derive(Deserialize)]
    struct Said {
        terraform_version: String,
    }
    let output =
        Command::new(binary).args(["version", "-json"]).env("CHECKPOINT_DISABLE", "1").stdin(Stdio::null()).output().ok()?;
    serde_json::from_slice::<Said>(&output.stdout).ok()?.terraform_version.parse().ok()
}
