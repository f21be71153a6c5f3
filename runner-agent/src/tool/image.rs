//! Statements of an image about its built-in tools. Hashing a tool of 90 MB takes longer than running it. The statement is trusted,
//! since an attacker who can change the image can change the agent too.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::digest;

/// Number of parts of a tool that are compared with the statement.
const PARTS: u64 = 16;
/// Bytes per part.
const PART: usize = 4096;

/// The statement beside a tool in its image.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Statement {
    /// Size of the tool in bytes.
    size: u64,
    /// SHA-256 of [`PARTS`] parts of it in hexadecimal digits. A replaced tool differs there or in size.
    parts: String,
    /// SHA-256 of the whole file in hexadecimal digits.
    sha256: String,
}

/// Path of the statement.
fn beside(binary: &Path) -> PathBuf {
    let mut name = binary.as_os_str().to_owned();
    name.push(".digest");
    name.into()
}

/// Writes a tool's statement and returns its path. For image builds, after the last change to the tool.
///
/// # Errors
/// The tool cannot be read, or the statement cannot be written.
pub fn state(binary: &Path) -> io::Result<PathBuf> {
    let place = beside(binary);
    let (size, parts) = parts(binary)?;
    let statement = Statement {
        size,
        parts,
        sha256: digest(binary)?,
    };
    fs::write(&place, serde_json::to_vec(&statement)?)?;
    Ok(place)
}

/// The digest from the container image's statement, if the statement matches the tool.
pub(crate) fn stated(binary: &Path) -> Option<String> {
    of_image(binary, Path::new("/"))
}

/// Checks that a file is part of the image: a volume has another device, and files of the image belong to root, while no process of a pod
/// runs as root.
fn of_image(binary: &Path, top: &Path) -> Option<String> {
    let (place, top) = (beside(binary), fs::metadata(top).ok()?);
    let ours = |path: &Path| {
        fs::symlink_metadata(path).is_ok_and(|meta| {
            meta.is_file()
                && meta.dev() == top.dev()
                && meta.uid() == top.uid()
                && meta.mode() & 0o022 == 0
        })
    };
    if !ours(binary) || !ours(&place) {
        return None;
    }
    let statement: Statement = serde_json::from_slice(&fs::read(place).ok()?).ok()?;
    let (size, parts) = parts(binary).ok()?;
    (statement.size == size && statement.parts == parts).then_some(statement.sha256)
}

/// Size of the file, and digest of its parts: the first bytes, the last, and others at equal distances between.
fn parts(binary: &Path) -> io::Result<(u64, String)> {
    let file = File::open(binary)?;
    let size = file.metadata()?.len();
    let (mut hash, mut part) = (Sha256::new(), vec![0; PART]);
    let last = size.saturating_sub(PART as u64);
    for n in 0..PARTS {
        let read = file.read_at(
            &mut part,
            last / (PARTS - 1) * n
                + if n == PARTS - 1 {
                    last % (PARTS - 1)
                } else {
                    0
                },
        )?;
        hash.update(&part[..read]);
    }
    Ok((size, hex::encode(hash.finalize())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn statement_counts_only_for_its_own_tool() {
        let dir = tempfile::tempdir().unwrap();
        let binary = dir.path().join("tofu");
        fs::write(&binary, vec![7; 300_000]).unwrap();
        let of = |binary: &Path| of_image(binary, dir.path());
        assert_eq!(of(&binary), None, "it states nothing");
        let place = state(&binary).unwrap();
        for path in [&binary, &place] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        assert_eq!(
            of(&binary).as_deref(),
            Some(digest(&binary).unwrap().as_str())
        );
        // Another tool, of the same size or not.
        for other in [vec![8; 300_000], vec![7; 299_999], Vec::new()] {
            fs::write(&binary, other).unwrap();
            assert_eq!(of(&binary), None);
        }
        fs::write(&binary, vec![7; 300_000]).unwrap();
        assert!(of(&binary).is_some());
        // A statement that others may write is ignored, and so is one outside the image.
        fs::set_permissions(&place, fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(of(&binary), None);
        fs::set_permissions(&place, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(of_image(&binary, Path::new("/proc")), None);
    }

    #[test]
    fn small_tool_has_a_statement_too() {
        let dir = tempfile::tempdir().unwrap();
        let binary = dir.path().join("tofu");
        for size in [0_usize, 1, 15, PART - 1, PART, PART + 1, PART * 3] {
            fs::write(&binary, vec![1; size]).unwrap();
            assert_eq!(parts(&binary).unwrap().0, size as u64);
        }
    }
}
