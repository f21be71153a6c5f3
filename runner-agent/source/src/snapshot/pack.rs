//! Writes a snapshot from the objects of a mirror.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write},
    path::Path,
    process::{Command, Stdio},
};

use crds::text::clip;
use tar::Builder;

use super::{HEADER, Header, LARGE, PACK, VERSION};
use crate::lfs::Pointer;

/// The reason why there is no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// Git could not be run.
    #[error("git cannot be run")]
    NotRun(#[source] io::Error),
    /// The mirror lacks an object of the commit or has a corrupt one. A new fetch may help.
    #[error("the mirror is broken: {0}")]
    Mirror(String),
    /// Writing failed.
    #[error("the snapshot cannot be written")]
    Write(#[source] io::Error),
}

/// Writes the snapshot of the commits in `header` from a bare mirror with all of their objects. `git` is the command with its environment; this
/// function adds the arguments. `large` are contents in `lfs` of the mirror; missing ones are left out. `scratch` is an empty file for the pack.
/// Blocks the thread.
///
/// # Errors
/// The snapshot is incomplete.
pub fn pack(
    git: Command,
    mirror: &Path,
    header: Header,
    large: &[Pointer],
    scratch: &Path,
    into: impl Write,
) -> Result<(), PackError> {
    let header = Header {
        version: VERSION,
        ..header
    };
    objects(git, mirror, &header, scratch)?;
    let mut archive = Builder::new(into);
    let text = serde_json::to_vec(&header).map_err(|error| PackError::Write(error.into()))?;
    let mut add = |name: &str, size: u64, content: &mut dyn io::Read| {
        let mut entry = tar::Header::new_gnu();
        entry.set_size(size);
        entry.set_mode(0o644);
        archive
            .append_data(&mut entry, name, content)
            .map_err(PackError::Write)
    };
    add(HEADER, text.len() as u64, &mut text.as_slice())?;
    let mut file = File::open(scratch).map_err(PackError::Write)?;
    let size = file.metadata().map_err(PackError::Write)?.len();
    add(PACK, size, &mut file)?;
    for pointer in large {
        let path = mirror.join("lfs/objects").join(pointer.place());
        let file = File::open(path).and_then(|file| Ok((file.metadata()?, file)));
        if let Ok((meta, mut file)) = file
            && meta.is_file()
            && meta.len() == pointer.size
        {
            let name = Path::new(LARGE).join("objects").join(pointer.place());
            add(&name.to_string_lossy(), pointer.size, &mut file)?;
        }
    }
    let mut into = archive.into_inner().map_err(PackError::Write)?;
    into.flush().map_err(PackError::Write)
}

/// Packs the objects of the commits, without their history.
fn objects(
    mut git: Command,
    mirror: &Path,
    header: &Header,
    scratch: &Path,
) -> Result<(), PackError> {
    let to = File::create(scratch).map_err(PackError::Write)?;
    git.arg("--no-replace-objects").arg("--git-dir").arg(mirror);
    // Deltas save little in a tree without history, and their search takes long.
    git.args([
        "pack-objects",
        "--quiet",
        "--stdout",
        "--revs",
        "--window=0",
    ]);
    git.env("GIT_NO_LAZY_FETCH", "1")
        .stdin(Stdio::piped())
        .stdout(to)
        .stderr(Stdio::piped());
    let mut child = git.spawn().map_err(PackError::NotRun)?;
    let commits = header.remotes.iter().map(|(_, commit)| commit.as_str());
    let tags = header.tags.iter().map(|(_, tag)| tag.as_str());
    let shallow = commits
        .clone()
        .flat_map(|commit| ["--shallow ", commit, "\n"]);
    let ids = commits.chain(tags).flat_map(|id| [id, "\n"]);
    let wanted: String = shallow.chain(ids).collect();
    // If git ends early, its own error is more useful.
    let _ = child
        .stdin
        .take()
        .map(|mut stdin| stdin.write_all(wanted.as_bytes()));
    let mut said = String::new();
    if let Some(stderr) = child.stderr.take() {
        let _ = stderr.take(64 << 10).read_to_string(&mut said);
    }
    let status = child.wait().map_err(PackError::NotRun)?;
    if status.success() {
        return Ok(());
    }
    let full = said.contains("No space left") || fs::metadata(scratch).is_err();
    Err(if full {
        PackError::Write(io::ErrorKind::StorageFull.into())
    } else {
        PackError::Mirror(clip(said.trim(), 400))
    })
}
