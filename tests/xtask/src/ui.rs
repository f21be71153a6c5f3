//! Builds the web UI, which the controller embeds. Built once for each content of `controller/ui`, and kept in the cache.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use crate::{
    cache::{self, Cache},
    command, report, root,
};

/// Directories that the build writes.
const MADE: [&str; 3] = ["node_modules", "dist", "pictures"];

/// The directory of the web UI.
pub fn directory() -> PathBuf {
    root().join("controller/ui")
}

/// Puts the built UI of this checkout into `controller/ui/dist`.
///
/// # Errors
/// npm fails, or is missing. Without `dist` Cargo still builds a controller, whose page names the command to build the UI.
pub fn build() -> Result<()> {
    let (ui, cache) = (directory(), Cache::open()?);
    let mut files = BTreeMap::new();
    read(&ui, &ui, &mut files)?;
    let key = cache::key(
        files
            .iter()
            .flat_map(|(name, content)| [name.as_bytes(), content]),
    );
    let (dist, mark) = (ui.join("dist"), ui.join("node_modules/.built"));
    let kept = cache.path("ui").join(&key);
    if dist.exists() && fs::read_to_string(&mark).is_ok_and(|built| built == key) {
        return Ok(());
    }
    let _lock = cache.lock("ui")?;
    if !kept.exists() {
        let step = report::step("ui", "npm ci and build");
        install()?;
        npm(&["run", "build"])?;
        ensure!(dist.join("index.html").exists(), "npm built no index.html");
        cache::remove(&cache.path("ui"))?;
        Cache::install(&kept, |to| copy(&dist, to))?;
        step.done();
    }
    cache::remove(&dist)?;
    Cache::install(&dist, |to| copy(&kept, to))?;
    cache::write(&mark, key)
}

/// Installs the packages of the lock file, unless they are there.
pub fn install() -> Result<()> {
    let ui = directory();
    let (lock, installed) = (
        ui.join("package-lock.json"),
        ui.join("node_modules/.installed"),
    );
    let wanted = fs::read(&lock).with_context(|| format!("cannot read {}", lock.display()))?;
    if fs::read(&installed).is_ok_and(|of| of == wanted) {
        return Ok(());
    }
    npm(&["ci", "--no-audit", "--no-fund"])?;
    cache::write(&installed, wanted)
}

fn npm(arguments: &[&str]) -> Result<()> {
    command::run(Command::new("npm").args(arguments).current_dir(directory()))
        .map(drop)
        .context("the web UI is not built; it needs Node 20.19 or later and npm")
}

/// Reads the sources below a directory.
fn read(top: &Path, directory: &Path, files: &mut BTreeMap<String, Vec<u8>>) -> Result<()> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    for entry in entries {
        let path = entry?.path();
        let name = path.strip_prefix(top).unwrap_or(&path);
        if MADE.iter().any(|made| name.starts_with(made)) {
            continue;
        }
        if path.is_dir() {
            read(top, &path, files)?;
        } else {
            files.insert(name.display().to_string(), fs::read(&path)?);
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    command::sh(
        "cp",
        &["-r", &from.display().to_string(), &to.display().to_string()],
    )
    .map(drop)
}
