//! A plan as it can be applied elsewhere: plan file, lock file and work directory in one archive, and back.
//!
//! What a fresh pod makes by itself is left out: provider binaries, which the lock file covers, and the tool's note of its backend,
//! which may hold credentials. The files with the values of variables are inside: they are what the plan was made with.

use std::{
    fs::{self, File},
    io::{self, BufReader, BufWriter, Read, Write},
    path::{Component, Path, PathBuf},
};

use crds::datastore::hex_digest;

use super::sealed_inputs::SealedInputs;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// What has to be known before anything of a bundle is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Head {
    /// Version of this layout.
    pub layout: u32,
    /// The tool: `OpenTofu`.
    pub tool: String,
    /// Its version, exactly.
    pub version: String,
    /// SHA-256 of its executable, in hexadecimal digits.
    #[serde(default)]
    pub digest: Option<String>,
    /// The tool that Terragrunt runs.
    #[serde(default)]
    pub beneath: Option<ToolHead>,
    /// The stack's directory below the top of the source.
    pub stack: PathBuf,
    /// Whether the state is the datastore's.
    pub managed: bool,
    /// What the plan took from Secrets and ConfigMaps.
    #[serde(default)]
    pub inputs: SealedInputs,
}

/// A tool that a plan was made with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolHead {
    /// The tool: `OpenTofu`.
    pub tool: String,
    /// Its version, exactly.
    pub version: String,
    /// SHA-256 of its executable, in hexadecimal digits.
    #[serde(default)]
    pub digest: Option<String>,
}

/// The layout that is written.
const LAYOUT: u32 = 1;
const HEAD: &str = "head.json";
const PLAN: &str = "plan";
const SOURCE: &str = "source";

/// Why a bundle cannot be restored.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// The disk, or an archive that is cut off.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is not what its digest says.
    #[error("its digest is {found}, not {wanted}")]
    Digest {
        /// What it is.
        found: String,
        /// What it should be.
        wanted: String,
    },
    /// It holds something that no bundle of ours holds.
    #[error("it holds {0}")]
    Foreign(String),
}

/// Writes a bundle to `to`. Its digest, with `sha256:` before it.
///
/// # Errors
/// When a file cannot be read or written.
pub fn pack(head: &Head, plan: &Path, source: &Path, to: &Path) -> Result<String, BundleError> {
    let head = Head { layout: LAYOUT, ..head.clone() };
    let file = Digesting { inner: BufWriter::with_capacity(256 << 10, File::create(to)?), digest: Sha256::new() };
    let mut archive = tar::Builder::new(file);
    archive.follow_symlinks(false);
    let text = serde_json::to_vec(&head).map_err(io::Error::other)?;
    let mut entry = tar::Header::new_gnu();
    entry.set_size(text.len() as u64);
    entry.set_mode(0o600);
    archive.append_data(&mut entry, HEAD, text.as_slice())?;
    archive.append_path_with_name(plan, PLAN)?;
    append(&mut archive, source, Path::new(""), &head.stack)?;
    let mut file = archive.into_inner()?;
    file.inner.flush()?;
    Ok(hex_digest(&file.digest.finalize()))
}

/// Whether a fresh pod makes this by itself.
fn is_made_anew(path: &Path, stack: &Path) -> bool {
    path == stack.join(".terraform/providers") || path == stack.join(".terraform/terraform.tfstate")
}

fn append<W: Write>(archive: &mut tar::Builder<W>, source: &Path, below: &Path, stack: &Path) -> Result<(), BundleError> {
    for entry in fs::read_dir(source.join(below))? {
        let entry = entry?;
        let relative = below.join(entry.file_name());
        if is_made_anew(&relative, stack) {
            continue;
        }
        let kind = entry.file_type()?;
        let name = Path::new(SOURCE).join(&relative);
        if kind.is_dir() {
            archive.append_dir(&name, entry.path())?;
            append(archive, source, &relative, stack)?;
        } else if kind.is_file() || kind.is_symlink() {
            archive.append_path_with_name(entry.path(), &name)?;
        }
        // A pipe, socket or device is nothing that can be planned with.
    }
    Ok(())
}

/// Checks a bundle's digest, and unpacks it: the plan file to `plan`, the source to `source`, which must be empty.
///
/// # Errors
/// Before anything is written when the digest differs; and when an entry is none of ours, or would lie outside.
pub fn unpack(from: &Path, wanted: &str, plan: &Path, source: &Path) -> Result<Head, BundleError> {
    let mut hasher = Sha256::new();
    io::copy(&mut BufReader::with_capacity(256 << 10, File::open(from)?), &mut Hashing(&mut hasher))?;
    let found = hex_digest(&hasher.finalize());
    if found != wanted {
        return Err(BundleError::Digest { found, wanted: wanted.to_owned() });
    }
    let mut archive = tar::Archive::new(BufReader::with_capacity(256 << 10, File::open(from)?));
    let mut head = None;
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let foreign = || BundleError::Foreign(path.display().to_string());
        if path == Path::new(HEAD) {
            let mut text = Vec::new();
            entry.by_ref().take(64 << 10).read_to_end(&mut text)?;
            head = Some(serde_json::from_slice::<Head>(&text).map_err(|error| BundleError::Foreign(error.to_string()))?);
        } else if path == Path::new(PLAN) {
            io::copy(&mut entry, &mut File::create(plan)?)?;
        } else {
            let relative = path.strip_prefix(SOURCE).map_err(|_| foreign())?;
            let plain = relative.components().all(|part| matches!(part, Component::Normal(_)));
            let kind = entry.header().entry_type();
            if !plain || !(kind.is_file() || kind.is_dir() || kind.is_symlink()) {
                return Err(foreign());
            }
            entry.set_preserve_mtime(false);
            entry.set_preserve_permissions(true);
            let target = source.join(relative);
            // Nothing is written through a link, and nothing twice.
            if fs::symlink_metadata(&target).is_ok() || !inside(&target, source)? {
                return Err(foreign());
            }
            entry.unpack(&target)?;
        }
    }
    let head = head.ok_or_else(|| BundleError::Foreign("no head".into()))?;
    if head.layout != LAYOUT {
        return Err(BundleError::Foreign(format!("layout {}, which this version does not know", head.layout)));
    }
    Ok(head)
}

/// Whether the directory of a path, which exists already, lies in `root` when links are followed.
fn inside(path: &Path, root: &Path) -> io::Result<bool> {
    let root = root.canonicalize()?;
    let parent = path.parent().unwrap_or(path);
    Ok(parent.canonicalize()?.starts_with(root))
}

struct Digesting<W> {
    inner: W,
    digest: Sha256,
}

impl<W: Write> Write for Digesting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.digest.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

struct Hashing<'a>(&'a mut Sha256);

impl Write for Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::source_digest;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn head() -> Head {
        Head {
            digest: None,
            beneath: None,
            layout: 1,
            tool: "OpenTofu".into(),
            version: "1.10.6".into(),
            stack: "live/a".into(),
            managed: true,
            inputs: SealedInputs::default(),
        }
    }

    fn source(dir: &Path) {
        let stack = dir.join("live/a");
        fs::create_dir_all(stack.join(".terraform/providers/x")).unwrap();
        fs::create_dir_all(stack.join(".terraform/modules/m")).unwrap();
        fs::create_dir(dir.join("empty")).unwrap();
        fs::write(stack.join("main.tf"), "code").unwrap();
        fs::write(stack.join(".terraform/providers/x/p"), "binary").unwrap();
        fs::write(stack.join(".terraform/terraform.tfstate"), "{\"backend\":{\"password\":\"x\"}}").unwrap();
        fs::write(stack.join(".terraform/modules/m/run.sh"), "#!/bin/sh").unwrap();
        fs::set_permissions(stack.join(".terraform/modules/m/run.sh"), PermissionsExt::from_mode(0o755)).unwrap();
        symlink("live/a/main.tf", dir.join("link")).unwrap();
        fs::write(dir.join("a".repeat(120)), "a long name").unwrap();
    }

    #[test]
    fn what_comes_back_is_what_went_in() {
        let (dir, back) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        source(dir.path());
        let (plan, file) = (back.path().join("in"), back.path().join("bundle"));
        fs::write(&plan, "the plan").unwrap();
        let digest = pack(&head(), &plan, dir.path(), &file).unwrap();
        let restored = back.path().join("source");
        fs::create_dir(&restored).unwrap();
        assert_eq!(unpack(&file, &digest, &back.path().join("out"), &restored).unwrap(), head());
        assert_eq!(fs::read_to_string(back.path().join("out")).unwrap(), "the plan");
        let of = |root: &Path| source_digest(root, Path::new("live/a")).unwrap();
        // The providers' directory itself is not counted, so the digests are those of the manifest.
        assert_eq!(of(&restored), of(dir.path()));
        assert!(!restored.join("live/a/.terraform/providers").exists());
        assert!(!restored.join("live/a/.terraform/terraform.tfstate").exists());
    }

    #[test]
    fn a_bundle_that_was_touched_is_not_unpacked() {
        let (dir, back) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        source(dir.path());
        let file = back.path().join("bundle");
        let digest = pack(&head(), &dir.path().join("live/a/main.tf"), dir.path(), &file).unwrap();
        let mut bytes = fs::read(&file).unwrap();
        let at = bytes.len() / 2;
        bytes[at] ^= 1;
        fs::write(&file, &bytes).unwrap();
        let restored = back.path().join("source");
        fs::create_dir(&restored).unwrap();
        let error = unpack(&file, &digest, &back.path().join("out"), &restored).unwrap_err();
        assert!(matches!(error, BundleError::Digest { .. }), "{error}");
        assert_eq!(fs::read_dir(&restored).unwrap().count(), 0);
    }

    #[test]
    fn nothing_is_written_outside() {
        type Entries = Vec<(&'static str, tar::EntryType, &'static str)>;
        let back = tempfile::tempdir().unwrap();
        let outside = back.path().join("outside");
        fs::create_dir(&outside).unwrap();
        let cases: Vec<Entries> = vec![
            vec![("source/../../evil", tar::EntryType::Regular, "")],
            vec![("/etc/evil", tar::EntryType::Regular, "")],
            vec![("other/evil", tar::EntryType::Regular, "")],
            vec![("source/pipe", tar::EntryType::Fifo, "")],
            vec![("source/hard", tar::EntryType::Link, "/etc/passwd")],
            vec![("source/way", tar::EntryType::Symlink, "../outside"), ("source/way/evil", tar::EntryType::Regular, "")],
        ];
        for entries in cases {
            let file = back.path().join("bundle");
            let mut archive = tar::Builder::new(File::create(&file).unwrap());
            for (name, kind, link) in &entries {
                let mut header = tar::Header::new_gnu();
                header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
                header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
                header.set_entry_type(*kind);
                header.set_mode(0o644);
                header.set_size(0);
                header.set_cksum();
                archive.append(&header, io::empty()).unwrap();
            }
            archive.into_inner().unwrap();
            let digest = hex_digest(&Sha256::digest(fs::read(&file).unwrap()));
            let restored = tempfile::tempdir_in(back.path()).unwrap();
            assert!(unpack(&file, &digest, &back.path().join("out"), restored.path()).is_err(), "{entries:?}");
            assert!(fs::read_dir(&outside).unwrap().next().is_none() && !Path::new("/etc/evil").exists(), "{entries:?}");
        }
    }
}
