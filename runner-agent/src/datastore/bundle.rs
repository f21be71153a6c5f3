//! The bundle: the plan file, the lock file and the work directory in one archive, so that another pod can apply the plan. Packs
//! and unpacks it.
//!
//! Leaves out what a fresh pod creates itself: provider binaries, which the lock file covers, and the tool's record of its backend,
//! which may contain credentials. Includes the variable files that the plan was made with.
//!
//! Links are stored as links wherever they lead, as the manifest counts them. The kernel restricts the files that code may read, and code
//! can create any link again. Pipes, sockets and devices are left out here and in the manifest, since their processes have ended.

use std::{
    collections::HashSet,
    fs::{self, File, Permissions},
    io::{self, BufReader, BufWriter, Read, Write},
    os::unix::{ffi::OsStrExt as _, fs::PermissionsExt as _},
    path::{Component, Path, PathBuf},
};

use crds::datastore::hex_digest;

use crate::{
    files::{self, Scratch},
    hooks::Hook,
    plan_checksum::{Parts, is_data_of_copy},
    sealed_inputs::{GivenVariables, SealedInputs},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Metadata at the start of a bundle, needed before the rest is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Head {
    /// Version of this layout.
    pub layout: u32,
    /// The tool, e.g. `OpenTofu`.
    pub tool: String,
    /// Exact version.
    pub version: String,
    /// SHA-256 of its executable in hexadecimal digits.
    #[serde(default)]
    pub digest: Option<String>,
    /// The tool that Terragrunt runs.
    #[serde(default)]
    pub beneath: Option<ToolHead>,
    /// The stack's directory relative to the directory of the source.
    pub stack: PathBuf,
    /// The name of the source's top directory in there; empty if it is that directory.
    #[serde(default)]
    pub top: String,
    /// Whether the datastore stores the state.
    pub managed: bool,
    /// The plan's inputs from Secrets and ConfigMaps.
    #[serde(default)]
    pub inputs: SealedInputs,
    /// The variables that Terragrunt gave the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given: Option<GivenVariables>,
    /// The hooks, with their scripts at the time of the plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<Hook>,
    /// The plan's parts by digest. Used for messages only.
    #[serde(default)]
    pub parts: Option<Parts>,
}

/// A tool that made a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolHead {
    /// The tool, e.g. `OpenTofu`.
    pub tool: String,
    /// Exact version.
    pub version: String,
    /// SHA-256 of its executable in hexadecimal digits.
    #[serde(default)]
    pub digest: Option<String>,
}

/// The layout that is written.
const LAYOUT: u32 = 1;
/// Maximum size of the head in bytes. A byte of a script takes up to six when escaped in JSON.
const MAX_HEAD: u64 = 8 << 20;
const HEAD: &str = "head.json";
const PLAN: &str = "plan";
const SOURCE: &str = "source";

#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// An I/O error, or a truncated archive.
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("its digest is {found}, not {wanted}")]
    Digest { found: String, wanted: String },
    /// It contains an entry that no bundle has.
    #[error("it holds {0}")]
    Foreign(String),
}

/// Writes a bundle to `to`, without the paths in `apart` (files of Secrets). Returns its digest with the prefix `sha256:`.
///
/// # Errors
/// A file cannot be read or written.
pub fn pack(
    head: &Head,
    plan: &Path,
    source: &Path,
    apart: &[PathBuf],
    to: &Scratch,
) -> Result<String, BundleError> {
    let head = Head {
        layout: LAYOUT,
        ..head.clone()
    };
    let file = Digesting {
        inner: BufWriter::with_capacity(256 << 10, to.file()),
        digest: Sha256::new(),
    };
    let mut archive = tar::Builder::new(file);
    archive.follow_symlinks(false);
    let text = serde_json::to_vec(&head).map_err(io::Error::other)?;
    let mut entry = tar::Header::new_gnu();
    entry.set_size(text.len() as u64);
    entry.set_mode(0o600);
    archive.append_data(&mut entry, HEAD, text.as_slice())?;
    archive.append_path_with_name(plan, PLAN)?;
    let is_apart =
        |path: &Path| is_made_anew(path, &head.stack) || apart.iter().any(|other| other == path);
    append(&mut archive, source, Path::new(""), &is_apart)?;
    let mut file = archive.into_inner()?;
    file.inner.flush()?;
    Ok(hex_digest(&file.digest.finalize()))
}

/// Whether a fresh pod creates this path itself.
fn is_made_anew(path: &Path, stack: &Path) -> bool {
    path == stack.join(".terraform/providers")
        || path == stack.join(".terraform/terraform.tfstate")
        || is_data_of_copy(path)
}

fn append<W: Write>(
    archive: &mut tar::Builder<W>,
    source: &Path,
    below: &Path,
    is_apart: &dyn Fn(&Path) -> bool,
) -> Result<(), BundleError> {
    for entry in fs::read_dir(source.join(below))? {
        let entry = entry?;
        let relative = below.join(entry.file_name());
        if is_apart(&relative) {
            continue;
        }
        let kind = entry.file_type()?;
        let name = Path::new(SOURCE).join(&relative);
        if kind.is_dir() {
            archive.append_dir(&name, entry.path())?;
            append(archive, source, &relative, is_apart)?;
        } else if kind.is_symlink() {
            append_link(
                archive,
                &name,
                fs::read_link(entry.path())?.as_os_str().as_bytes(),
            )?;
        } else if kind.is_file() {
            archive.append_file(&name, &mut files::regular(&entry.path())?)?;
        }
        // Pipes, sockets and devices are skipped; the manifest skips them too.
    }
    Ok(())
}

/// Appends a link with its exact text, since the manifest counts each byte of it. `tar`'s own method would drop a `.` and double
/// slashes.
fn append_link<W: Write>(
    archive: &mut tar::Builder<W>,
    name: &Path,
    text: &[u8],
) -> io::Result<()> {
    let mut link = tar::Header::new_gnu();
    link.set_entry_type(tar::EntryType::Symlink);
    link.set_mode(0o777);
    link.set_size(0);
    if link.set_link_name_literal(text).is_err() {
        // A text that is longer than the field: GNU tar puts it into a preceding entry, terminated by a zero byte.
        let mut long = tar::Header::new_gnu();
        long.set_entry_type(tar::EntryType::GNULongLink);
        long.set_path("././@LongLink")?;
        long.set_size(text.len() as u64 + 1);
        long.set_cksum();
        archive.append(&long, text.chain(&b"\0"[..]))?;
    }
    archive.append_data(&mut link, name, io::empty())
}

/// Checks a bundle's digest and unpacks it: the plan file to `plan`, which must not exist, the source to `source`, which must be
/// empty.
///
/// # Errors
/// The digest differs, in which case nothing is written; or an entry is foreign or would lie outside.
pub fn unpack(
    from: &Scratch,
    wanted: &str,
    plan: &Path,
    source: &Path,
) -> Result<Head, BundleError> {
    let found = from.digest()?;
    if found != wanted {
        return Err(BundleError::Digest {
            found,
            wanted: wanted.to_owned(),
        });
    }
    let mut archive = tar::Archive::new(BufReader::with_capacity(256 << 10, from.reader()));
    let mut head = None;
    // The directories that this unpacking created, since only into these is anything written; and their final modes.
    let (mut made, mut modes) = (HashSet::from([PathBuf::new()]), Vec::new());
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let foreign = || BundleError::Foreign(path.display().to_string());
        if path == Path::new(HEAD) {
            let mut text = Vec::new();
            entry.by_ref().take(MAX_HEAD).read_to_end(&mut text)?;
            head = Some(
                serde_json::from_slice::<Head>(&text)
                    .map_err(|error| BundleError::Foreign(error.to_string()))?,
            );
        } else if path == Path::new(PLAN) {
            io::copy(&mut entry, &mut File::create_new(plan)?)?;
        } else {
            let relative = path.strip_prefix(SOURCE).map_err(|_| foreign())?;
            let plain = relative
                .components()
                .all(|part| matches!(part, Component::Normal(_)));
            let target = source.join(relative);
            // No path is written twice, and only into directories created here.
            let fits = relative
                .parent()
                .is_some_and(|parent| made.contains(parent))
                && fs::symlink_metadata(&target).is_err();
            if !plain || !fits {
                return Err(foreign());
            }
            match entry.header().entry_type() {
                tar::EntryType::Directory => {
                    fs::create_dir(&target)?;
                    // The final mode may forbid writing into the directory, so it is set at the end.
                    modes.push((target, entry.header().mode()?));
                    made.insert(relative.to_path_buf());
                }
                // Sparse files are written with their holes.
                tar::EntryType::Regular | tar::EntryType::GNUSparse | tar::EntryType::Symlink => {
                    entry.set_preserve_mtime(false);
                    entry.set_preserve_permissions(true);
                    entry.unpack(&target)?;
                }
                _ => return Err(foreign()),
            }
        }
    }
    for (directory, mode) in modes.iter().rev() {
        fs::set_permissions(directory, Permissions::from_mode(mode & 0o7777))?;
    }
    let head = head.ok_or_else(|| BundleError::Foreign("no head".into()))?;
    if head.layout != LAYOUT {
        return Err(BundleError::Foreign(format!(
            "layout {}, which this version does not know",
            head.layout
        )));
    }
    Ok(head)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan_checksum::source_digest;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn head() -> Head {
        Head {
            digest: None,
            beneath: None,
            layout: 1,
            tool: "OpenTofu".into(),
            version: "1.10.6".into(),
            stack: "live/a".into(),
            top: String::new(),
            managed: true,
            inputs: SealedInputs::default(),
            given: None,
            hooks: Vec::new(),
            parts: Some(Parts::default()),
        }
    }

    fn source(dir: &Path) {
        let stack = dir.join("live/a");
        fs::create_dir_all(stack.join(".terraform/providers/x")).unwrap();
        fs::create_dir_all(stack.join(".terraform/modules/m")).unwrap();
        fs::create_dir(dir.join("empty")).unwrap();
        fs::write(stack.join("main.tf"), "code").unwrap();
        fs::write(stack.join(".terraform/providers/x/p"), "binary").unwrap();
        fs::write(
            stack.join(".terraform/terraform.tfstate"),
            "{\"backend\":{\"password\":\"x\"}}",
        )
        .unwrap();
        fs::write(stack.join(".terraform/modules/m/run.sh"), "#!/bin/sh").unwrap();
        fs::set_permissions(
            stack.join(".terraform/modules/m/run.sh"),
            PermissionsExt::from_mode(0o755),
        )
        .unwrap();
        fs::create_dir_all(dir.join("live/b/.terragrunt-cache/1/2/.terraform")).unwrap();
        fs::write(
            dir.join("live/b/.terragrunt-cache/1/2/.terraform/terraform.tfstate"),
            "a password",
        )
        .unwrap();
        symlink("live/a/main.tf", dir.join("link")).unwrap();
        fs::write(dir.join("a".repeat(120)), "a long name").unwrap();
    }

    /// Entries that plan-time code may leave as well.
    fn odd(dir: &Path) {
        for (name, target) in [
            ("outward", "/bin/sh"),
            ("upward", "../../../etc"),
            ("dangling", "not/there"),
            ("unusual", "live//a/./main.tf"),
            ("directory", "live/a/"),
        ] {
            symlink(target, dir.join(name)).unwrap();
        }
        symlink("x/./".repeat(60), dir.join("long")).unwrap();
        fs::create_dir_all(dir.join("closed/below")).unwrap();
        fs::write(dir.join("closed/below/file"), "kept").unwrap();
        fs::write(dir.join("closed/file"), "kept").unwrap();
        File::create(dir.join("holes"))
            .unwrap()
            .set_len(3 << 20)
            .unwrap();
        for name in ["closed/below", "closed"] {
            fs::set_permissions(dir.join(name), PermissionsExt::from_mode(0o555)).unwrap();
        }
    }

    /// Makes the content of a scratch directory removable again.
    fn open(dir: &Path) {
        for name in ["closed", "closed/below"] {
            fs::set_permissions(dir.join(name), PermissionsExt::from_mode(0o755)).unwrap();
        }
    }

    /// An archive in a scratch file, with its digest.
    fn scratch(dir: &Path, bytes: &[u8]) -> (Scratch, String) {
        let scratch = Scratch::create(dir).unwrap();
        let mut writer = scratch.file();
        writer.write_all(bytes).unwrap();
        let digest = scratch.digest().unwrap();
        (scratch, digest)
    }

    #[test]
    fn unpacked_bundle_equals_the_packed_source() {
        let (dir, back) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        source(dir.path());
        let of = |root: &Path| {
            source_digest(
                root,
                Path::new("live/a"),
                &[PathBuf::from("live/a/secret.json")],
            )
            .unwrap()
        };
        let counted = of(dir.path());
        odd(dir.path());
        assert_ne!(of(dir.path()), counted);
        let counted = of(dir.path());
        // Neither digest nor bundle includes a pipe or a socket.
        nix::unistd::mkfifo(
            &dir.path().join("live/a/pipe"),
            nix::sys::stat::Mode::S_IRWXU,
        )
        .unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
        assert_eq!(of(dir.path()), counted);
        // Nor a file of a Secret.
        fs::write(dir.path().join("live/a/secret.json"), "t0k3n").unwrap();
        assert_eq!(of(dir.path()), counted);
        let (plan, file) = (
            back.path().join("in"),
            Scratch::create(back.path()).unwrap(),
        );
        fs::write(&plan, "the plan").unwrap();
        // The largest script, with the bytes that take the most space in JSON.
        let script = "\u{1}".repeat(crate::hooks::MAX_SCRIPT);
        let hook = Hook {
            name: "late".into(),
            when: crds::HookWhen::BeforeApply,
            continues: false,
            script,
        };
        let head = Head {
            hooks: vec![hook; 4],
            ..head()
        };
        let digest = pack(
            &head,
            &plan,
            dir.path(),
            &[PathBuf::from("live/a/secret.json")],
            &file,
        )
        .unwrap();
        assert_eq!(digest, file.digest().unwrap());
        let restored = back.path().join("source");
        fs::create_dir(&restored).unwrap();
        assert_eq!(
            unpack(&file, &digest, &back.path().join("out"), &restored).unwrap(),
            head
        );
        assert_eq!(
            fs::read_to_string(back.path().join("out")).unwrap(),
            "the plan"
        );
        // The providers' directory itself is not counted, so the digests equal the manifest's.
        assert_eq!(of(&restored), counted);
        assert!(!restored.join("live/a/.terraform/providers").exists());
        assert!(
            !restored
                .join("live/a/.terraform/terraform.tfstate")
                .exists()
        );
        assert!(restored.join("live/b/.terragrunt-cache/1/2").exists());
        assert!(
            !restored
                .join("live/b/.terragrunt-cache/1/2/.terraform")
                .exists()
        );
        assert!(!restored.join("live/a/secret.json").exists());
        assert!(!restored.join("live/a/pipe").exists() && !restored.join("socket").exists());
        assert_eq!(
            fs::read_link(restored.join("outward")).unwrap(),
            Path::new("/bin/sh")
        );
        for name in ["closed", "closed/below"] {
            assert_eq!(
                fs::metadata(restored.join(name))
                    .unwrap()
                    .permissions()
                    .mode()
                    & 0o777,
                0o555,
                "{name}"
            );
        }
        assert_eq!(
            fs::read_to_string(restored.join("closed/below/file")).unwrap(),
            "kept"
        );
        open(dir.path());
        open(&restored);
    }

    #[test]
    fn head_of_an_older_version_is_parsed() {
        let text = r#"{"layout": 1, "tool": "OpenTofu", "version": "1.10.6", "stack": "live/a", "managed": true}"#;
        assert_eq!(
            serde_json::from_str::<Head>(text).unwrap(),
            Head {
                parts: None,
                ..head()
            }
        );
    }

    #[test]
    fn modified_bundle_is_not_unpacked() {
        let (dir, back) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        source(dir.path());
        let file = Scratch::create(back.path()).unwrap();
        let digest = pack(
            &head(),
            &dir.path().join("live/a/main.tf"),
            dir.path(),
            &[],
            &file,
        )
        .unwrap();
        let mut bytes = Vec::new();
        file.reader().read_to_end(&mut bytes).unwrap();
        let at = bytes.len() / 2;
        bytes[at] ^= 1;
        let (file, _) = scratch(back.path(), &bytes);
        let restored = back.path().join("source");
        fs::create_dir(&restored).unwrap();
        let error = unpack(&file, &digest, &back.path().join("out"), &restored).unwrap_err();
        assert!(matches!(error, BundleError::Digest { .. }), "{error}");
        assert_eq!(fs::read_dir(&restored).unwrap().count(), 0);
    }

    #[test]
    fn unpack_writes_nothing_outside() {
        use tar::EntryType::{Directory, Fifo, Link, Regular, Symlink};
        let back = tempfile::tempdir().unwrap();
        let outside = back.path().join("outside");
        fs::create_dir(&outside).unwrap();
        let cases: [&[(&str, tar::EntryType, &str)]; 12] = [
            &[("source/../../evil", Regular, "")],
            &[("/etc/evil", Regular, "")],
            &[("other/evil", Regular, "")],
            &[("source", Regular, "")],
            &[("source/pipe", Fifo, "")],
            &[("source/hard", Link, "/etc/passwd")],
            &[
                ("source/way", Symlink, "../outside"),
                ("source/way/evil", Regular, ""),
            ],
            &[
                ("source/way", Symlink, "../outside"),
                ("source/way", Directory, ""),
            ],
            &[
                ("source/way", Symlink, "../outside/evil"),
                ("source/way", Regular, ""),
            ],
            // Nor through links within the source: a file below a link has another path in the manifest.
            &[
                ("source/dir", Directory, ""),
                ("source/way", Symlink, "dir"),
                ("source/way/evil", Regular, ""),
            ],
            &[
                ("source/file", Regular, ""),
                ("source/file/evil", Regular, ""),
            ],
            &[("plan", Regular, ""), ("plan", Regular, "")],
        ];
        for entries in cases {
            let mut archive = tar::Builder::new(Vec::new());
            for (name, kind, link) in entries {
                let mut header = tar::Header::new_gnu();
                header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
                header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
                header.set_entry_type(*kind);
                header.set_mode(0o755);
                header.set_size(0);
                header.set_cksum();
                archive.append(&header, io::empty()).unwrap();
            }
            let (file, digest) = scratch(back.path(), &archive.into_inner().unwrap());
            let restored = tempfile::tempdir_in(back.path()).unwrap();
            let _ = fs::remove_file(back.path().join("out"));
            assert!(
                unpack(&file, &digest, &back.path().join("out"), restored.path()).is_err(),
                "{entries:?}"
            );
            assert!(
                fs::read_dir(&outside).unwrap().next().is_none()
                    && !Path::new("/etc/evil").exists(),
                "{entries:?}"
            );
            assert!(!restored.path().join("dir/evil").exists());
        }
    }
}
