//! The files of a package, and the check that they are unchanged.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use tool_versions::{Digest, cache::store::verify::Stamp, verify::digest::Hashing};

use super::dirhash::H1;

/// The most files of a package, and their greatest depth. Packages of registries have fewer than ten files.
const FILES: usize = 10_000;
const DEPTH: usize = 16;
/// Bytes copied between two checks for cancellation.
const CHUNK: usize = 1 << 20;

/// The state of a file when it was hashed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Seen {
    /// The name below the package.
    pub(super) name: String,
    pub(super) executable: bool,
    /// The stamp is unchanged as long as the file is not written.
    pub(super) stamp: Stamp,
}

/// The record beside a package.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) size: u64,
    /// Sorted by name.
    pub(super) files: Vec<Seen>,
}

/// The files below a directory, sorted by name.
///
/// # Errors
/// There is anything but files and directories, or too many.
pub(super) fn files(dir: &Path) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    let mut rest = vec![(dir.to_path_buf(), String::new(), 0)];
    while let Some((dir, below, depth)) = rest.pop() {
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            let name = entry
                .file_name()
                .into_string()
                .ok()
                .filter(|name| !name.contains(['\n', '\\']));
            let name =
                name.ok_or_else(|| io::Error::other("a file has a name that none should have"))?;
            let (name, kind) = (format!("{below}{name}"), entry.file_type()?);
            if kind.is_dir() && depth < DEPTH {
                rest.push((entry.path(), format!("{name}/"), depth + 1));
            } else if kind.is_file() {
                found.push(name);
            } else {
                return Err(io::Error::other(format!("{name} is no file")));
            }
            if found.len() + rest.len() > FILES {
                return Err(io::Error::other("it has too many files"));
            }
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Opens a regular file, without following a link or blocking on a pipe.
fn open(path: &Path) -> io::Result<File> {
    let file = File::options()
        .read(true)
        .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK)
        .open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::other(format!("{} is no file", path.display())))
    }
}

/// Copies and syncs a package of at most `most` bytes. The hash is of the written bytes.
///
/// # Errors
/// It is no package, is too large or changes during the copy; the disk failed; or it was cancelled.
pub(super) fn copy(
    from: &Path,
    to: &Path,
    most: u64,
    stop: &dyn Fn() -> bool,
) -> io::Result<(H1, Record)> {
    let (mut digests, mut seen, mut size) = (Vec::new(), Vec::new(), 0);
    let mut buffer = vec![0; CHUNK];
    for name in files(from)? {
        let mut source = open(&from.join(&name))?;
        let executable = source.metadata()?.permissions().mode() & 0o111 != 0;
        let path = to.join(&name);
        fs::create_dir_all(path.parent().unwrap_or(to))?;
        let mut copy = Hashing::new(
            File::options()
                .create_new(true)
                .write(true)
                .mode(0o600)
                .open(&path)?,
        );
        loop {
            let count = source.read(&mut buffer)?;
            if count == 0 {
                break;
            }
            size += count as u64;
            if size > most {
                return Err(io::Error::other(format!(
                    "it is larger than {} MiB",
                    most >> 20
                )));
            }
            if stop() {
                return Err(io::Error::new(io::ErrorKind::Interrupted, "told to stop"));
            }
            copy.write_all(&buffer[..count])?;
        }
        copy.get_ref().set_permissions(mode(executable))?;
        copy.get_ref().sync_all()?;
        digests.push((name.clone(), copy.digest()));
        seen.push(Seen {
            name,
            executable,
            stamp: Stamp::of(&path)?,
        });
    }
    directories(to, &mut |dir| File::open(dir)?.sync_all())?;
    Ok((hash(&digests), Record { size, files: seen }))
}

fn hash(digests: &[(String, Digest)]) -> H1 {
    H1::of(
        digests
            .iter()
            .map(|(name, digest)| (name.as_str(), *digest)),
    )
}

fn mode(executable: bool) -> fs::Permissions {
    fs::Permissions::from_mode(if executable { 0o555 } else { 0o444 })
}

/// Calls a function for a directory and all directories below it.
fn directories(dir: &Path, call: &mut dyn FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            directories(&entry.path(), call)?;
        }
    }
    call(dir)
}

impl Record {
    /// Whether a package is unchanged, by the stamps of its files.
    pub(super) fn holds(&self, package: &Path) -> bool {
        let same = |seen: &Seen, name: &String| {
            seen.name == *name
                && Stamp::of(&package.join(name)).is_ok_and(|stamp| stamp == seen.stamp)
        };
        files(package).is_ok_and(|found| {
            found.len() == self.files.len()
                && self
                    .files
                    .iter()
                    .zip(&found)
                    .all(|(seen, name)| same(seen, name))
        })
    }

    /// Reads a package again, and restores its modes, since a stack's code can change modes and nothing else.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn again(&self, package: &Path) -> io::Result<(H1, Self)> {
        let (mut digests, mut seen) = (Vec::new(), Vec::new());
        // Fails on a read-only cache, where it is not needed.
        let _ = fs::set_permissions(package, fs::Permissions::from_mode(0o755));
        for name in files(package)? {
            let path = package.join(&name);
            let executable = self
                .files
                .iter()
                .any(|seen| seen.name == name && seen.executable);
            let _ = fs::set_permissions(&path, mode(executable));
            let stamp = Stamp::of(&path)?;
            digests.push((
                name.clone(),
                Digest::read(io::BufReader::with_capacity(CHUNK, open(&path)?))?,
            ));
            seen.push(Seen {
                name,
                executable,
                stamp,
            });
        }
        Ok((
            hash(&digests),
            Self {
                size: self.size,
                files: seen,
            },
        ))
    }
}

/// Whether a package has an executable for this machine. A lock file has hashes of several platforms without naming them, so without this
/// check the package of another platform could be served.
pub(super) fn runs_here(package: &Path, provider: &str, record: &Record) -> io::Result<bool> {
    // Class, byte order and machine, as in `elf.h`.
    let machine: u8 = match std::env::consts::ARCH {
        "x86_64" => 62,
        "aarch64" => 183,
        _ => return Ok(false),
    };
    let begin = format!("terraform-provider-{provider}");
    for seen in record
        .files
        .iter()
        .filter(|seen| seen.executable && seen.name.starts_with(&begin))
    {
        let mut header = [0; 20];
        if open(&package.join(&seen.name))?
            .read_exact(&mut header)
            .is_err()
        {
            continue;
        }
        // The ABI is unspecified or Linux.
        if header.starts_with(b"\x7fELF\x02\x01\x01")
            && matches!(header[7], 0 | 3)
            && header[18..] == [machine, 0]
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The directory with the package's files, `PLACE/package`, next to the record.
pub(super) fn in_place(place: &Path) -> PathBuf {
    place.join("package")
}
