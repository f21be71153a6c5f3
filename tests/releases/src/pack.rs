//! Packs programs in their projects' formats, and caches the archives because that takes seconds.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _, copy};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use tool_versions::Tool;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::Release;
use harness::cluster::cache::{self, Cache, Lock};

/// Increase this when the archive of a program changes.
const FORMAT: &str = "1";

/// Age at which archives are deleted: those of an older scripted tool are useless.
const KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The archive of a release below `packed`, created if not cached.
pub(super) fn packed(release: &Release, packed: &Path) -> Result<PathBuf> {
    let mut parts = vec![FORMAT.to_owned(), release.digest()?.to_string()];
    parts.extend(
        release
            .companions()
            .into_iter()
            .flat_map(|(name, text)| [name.to_owned(), text]),
    );
    let key = cache::key(parts);
    let path = packed.join(key).join(release.archive());
    if !path.exists() {
        let _lock = Lock::wait(&path.with_extension("lock"))?;
        if !path.exists() {
            forget_old(packed)?;
            Cache::install(&path, |temporary| write(release, temporary))?;
        }
    }
    Ok(path)
}

/// Deletes old archives.
pub(super) fn forget_old(packed: &Path) -> Result<()> {
    for entry in fs::read_dir(packed).into_iter().flatten().flatten() {
        let made = entry
            .metadata()
            .and_then(|meta| meta.modified())
            .unwrap_or_else(|_| SystemTime::now());
        if made.elapsed().is_ok_and(|age| age > KEPT) {
            cache::remove(&entry.path())?;
        }
    }
    Ok(())
}

fn write(release: &Release, path: &Path) -> Result<()> {
    let what = || format!("cannot write {}", path.display());
    let file = File::create(path).with_context(what)?;
    let mut program = release.open()?;
    if release.tool == Tool::Terragrunt {
        copy(&mut program, &mut BufWriter::new(file)).with_context(what)?;
        return Ok(());
    }
    let mut zip = ZipWriter::new(BufWriter::new(file));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
    for (name, text) in release.companions() {
        zip.start_file(name, options.unix_permissions(0o644))
            .with_context(what)?;
        zip.write_all(text.as_bytes()).with_context(what)?;
    }
    zip.start_file(release.tool.binary(), options.unix_permissions(0o755))
        .with_context(what)?;
    copy(&mut program, &mut zip).with_context(what)?;
    zip.finish().with_context(what)?.flush().with_context(what)
}
