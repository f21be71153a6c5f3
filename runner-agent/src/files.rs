//! Files of the agent's own that nobody can name, and files that a tool left, which may be anything.
//!
//! Code of the stack runs as the agent's user, in directories where the agent works too, and the agent may open what that code may not: a
//! link in place of a file would make the agent read a token, or write to a cache that pods share. So what the agent keeps for a while has
//! no name ([`Scratch`]), what it makes replaces whatever stands there ([`create`]), and what a tool left is opened as a file of one name,
//! that no link leads to, or not at all ([`left`]).

use std::{
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    io::{self, Read},
    os::{
        fd::OwnedFd,
        unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Component, Path},
    sync::Arc,
};

use bytes::Bytes;
use futures::{Stream, stream};
use nix::{
    errno::Errno,
    fcntl::{OFlag, open, openat},
    sys::stat::Mode,
    unistd::{UnlinkatFlags, unlinkat},
};
use tool_versions::Digest;

/// Name of the file in the stack's directory in which variables are given to the tool.
pub const VARIABLES_FILE: &str = "zz_pawl.auto.tfvars.json";
/// How the names of files with variables begin that a run names. They sort before [`VARIABLES_FILE`], whose variables win.
pub const VARIABLE_FILES: &str = "zz_pawl-";
/// Name of the file in the stack's directory that replaces the backend of the code.
pub const BACKEND_FILE: &str = "zz_pawl_override.tf.json";

/// Whether a file in the stack's directory is one in which variables are given to the tool.
pub fn is_variables_file(name: &str) -> bool {
    let is_read = || name.strip_suffix(".json").unwrap_or(name).ends_with(".auto.tfvars");
    name == VARIABLES_FILE || name.starts_with(VARIABLE_FILES) && is_read()
}

/// Bytes that are read at once.
const CHUNK: usize = 256 << 10;

/// A file without a name, for the agent alone. It is gone with its last clone.
#[derive(Clone, Debug)]
pub struct Scratch(Arc<File>);

impl Scratch {
    /// An empty one, on the file system of a directory.
    ///
    /// # Errors
    /// When nothing can be made there.
    pub fn create(dir: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600);
        let unnamed = (OFlag::O_TMPFILE | OFlag::O_EXCL).bits();
        if let Ok(file) = options.clone().custom_flags(unnamed).open(dir) {
            return Ok(Self(Arc::new(file)));
        }
        // A file system that knows no such files: its name is gone before anybody is told.
        let path = dir.join(format!(".{}", hex::encode(rand::random::<[u8; 16]>())));
        let file = options.create_new(true).open(&path)?;
        fs::remove_file(&path)?;
        Ok(Self(Arc::new(file)))
    }

    /// What another file holds now, on the file system of a directory.
    ///
    /// # Errors
    /// When it cannot be read, or there is no room.
    pub fn copy_of(file: &File, dir: &Path) -> io::Result<Self> {
        let copy = Self::create(dir)?;
        io::copy(&mut Reader { file, at: 0 }, &mut &*copy.0)?;
        Ok(copy)
    }

    /// For whoever writes it, from its beginning to its end.
    pub fn file(&self) -> &File {
        &self.0
    }

    /// Its bytes, from the beginning.
    pub fn reader(&self) -> impl Read + '_ {
        Reader { file: &self.0, at: 0 }
    }

    /// How many bytes it has.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    /// SHA-256 of its bytes: `sha256:` and 64 hexadecimal digits.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn digest(&self) -> io::Result<String> {
        Ok(format!("sha256:{}", digest(self.reader())?))
    }

    /// Its bytes as the body of a request, from the beginning each time.
    pub fn stream(&self) -> impl Stream<Item = io::Result<Bytes>> + Send + use<> {
        stream::try_unfold((self.0.clone(), 0), |(file, at)| async move {
            let from = file.clone();
            let read = tokio::task::spawn_blocking(move || {
                let mut bytes = vec![0; CHUNK];
                let count = from.read_at(&mut bytes, at)?;
                bytes.truncate(count);
                io::Result::Ok(bytes)
            });
            let bytes = read.await.map_err(io::Error::other)??;
            let next = at + bytes.len() as u64;
            Ok((!bytes.is_empty()).then(|| (Bytes::from(bytes), (file, next))))
        })
    }
}

impl From<File> for Scratch {
    /// A file that has a name all the same.
    fn from(file: File) -> Self {
        Self(Arc::new(file))
    }
}

/// Reads a file from a place of its own, wherever others are in it.
struct Reader<'a> {
    file: &'a File,
    at: u64,
}

impl Read for Reader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

/// SHA-256 of what is read, in hexadecimal digits.
///
/// # Errors
/// When it cannot be read.
pub fn digest(from: impl Read) -> io::Result<String> {
    Ok(Digest::read(io::BufReader::with_capacity(CHUNK, from))?.to_string())
}

/// Opens what a tool left: a regular file of no other name and of at most so many bytes, and no part of its path is a link. It never
/// waits for whoever holds the other end of a pipe. A relative path is one below the working directory.
///
/// # Errors
/// When it is not there, or something else; the message names it.
pub fn left(path: &Path, most: u64) -> io::Result<File> {
    let is = |kind, what: &str| io::Error::new(kind, format!("{} {what}", path.display()));
    let opened = directory_of(path).and_then(|(dir, name)| {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        openat(dir, name, flags, Mode::empty())
    });
    let file = File::from(opened.map_err(|error| match error {
        Errno::ELOOP | Errno::ENOTDIR => is(io::ErrorKind::InvalidData, "is a link, or one leads to it"),
        Errno::ENXIO => is(io::ErrorKind::InvalidData, "is no regular file"),
        error => is(io::Error::from(error).kind(), error.desc()),
    })?);
    let meta = file.metadata()?;
    let refused = if !meta.is_file() {
        "is no regular file".to_owned()
    } else if meta.nlink() != 1 {
        format!("has {} names", meta.nlink())
    } else if meta.len() > most {
        format!("has {} bytes, more than {most}", meta.len())
    } else {
        return Ok(file);
    };
    Err(is(io::ErrorKind::InvalidData, &refused))
}

/// Makes an empty file that its owner alone reads and writes, in place of whatever has its name, which may be a link but no directory.
/// No part of the way to it is a link.
///
/// # Errors
/// When something on the way is a link, or nothing can be made there.
pub fn create(path: &Path) -> io::Result<File> {
    let (dir, name) = directory_of(path)?;
    match unlinkat(&dir, name, UnlinkatFlags::NoRemoveDir) {
        Err(error) if error != Errno::ENOENT => return Err(error.into()),
        Ok(()) | Err(_) => {}
    }
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    Ok(openat(dir, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?.into())
}

/// Opens a regular file for reading when no link has its name; it never waits for a pipe.
///
/// # Errors
/// When it is not there, or something else.
pub fn regular(path: &Path) -> io::Result<File> {
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::new(io::ErrorKind::InvalidData, "no regular file")) }
}

/// The directory of a path, opened step by step and by no link, and the last name.
fn directory_of(path: &Path) -> nix::Result<(OwnedFd, &OsStr)> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(Errno::EINVAL) };
    let way = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut at = open(if path.is_absolute() { "/" } else { "." }, way, Mode::empty())?;
    for part in parent.components() {
        match part {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => at = openat(&at, name, way, Mode::empty())?,
            Component::ParentDir | Component::Prefix(_) => return Err(Errno::EINVAL),
        }
    }
    Ok((at, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::TryStreamExt as _;
    use nix::{sys::stat, unistd::mkfifo};
    use std::{
        io::Write as _,
        os::unix::{fs::symlink, net::UnixListener},
    };

    #[tokio::test]
    async fn a_file_of_ours_has_no_name_and_is_read_from_its_beginning_each_time() {
        let dir = tempfile::tempdir().unwrap();
        let scratch = Scratch::create(dir.path()).unwrap();
        let text = "x".repeat(CHUNK + 10);
        let mut writer = scratch.file();
        writer.write_all(text.as_bytes()).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        for _ in 0..2 {
            let body: Vec<Bytes> = scratch.stream().try_collect().await.unwrap();
            assert_eq!((body.len(), body.concat()), (2, text.clone().into_bytes()));
            assert_eq!(io::read_to_string(scratch.reader()).unwrap(), text);
        }
        assert_eq!(scratch.size().unwrap(), text.len() as u64);
        let copy = Scratch::copy_of(scratch.file(), dir.path()).unwrap();
        assert_eq!(copy.digest().unwrap(), scratch.digest().unwrap());
        assert!(Scratch::create(&dir.path().join("not-there")).is_err());
    }

    #[test]
    fn what_a_tool_left_is_one_regular_file_or_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        let at = |name: &str| top.join(name);
        fs::create_dir(at("dir")).unwrap();
        for name in ["dir/plan", "token", "twice"] {
            fs::write(at(name), name).unwrap();
        }
        symlink(at("token"), at("link")).unwrap();
        symlink("dir", at("way")).unwrap();
        symlink("nowhere", at("dangling")).unwrap();
        fs::hard_link(at("twice"), at("again")).unwrap();
        mkfifo(&at("pipe"), stat::Mode::S_IRWXU).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        assert_eq!(io::read_to_string(left(&at("dir/plan"), 8).unwrap()).unwrap(), "dir/plan");
        for (name, why) in [
            ("link", "is a link"),
            ("dangling", "is a link"),
            ("way/plan", "one leads to it"),
            ("token/plan", "one leads to it"),
            ("twice", "has 2 names"),
            ("pipe", "is no regular file"),
            ("socket", "is no regular file"),
            ("dir", "is no regular file"),
            ("dir/../token", "Invalid argument"),
        ] {
            let error = left(&at(name), 100).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(name), "{name}: {error}");
        }
        assert!(left(&at("token"), 4).unwrap_err().to_string().contains("has 5 bytes, more than 4"));
        assert_eq!(left(&at("none"), 100).unwrap_err().kind(), io::ErrorKind::NotFound);
        for name in ["link", "pipe", "socket", "dir", "none"] {
            assert!(regular(&at(name)).is_err(), "{name}");
        }
        assert!(regular(&at("twice")).is_ok());
    }

    #[test]
    fn what_is_made_is_written_through_no_link() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        let at = |name: &str| top.join(name);
        fs::create_dir(at("shared")).unwrap();
        fs::write(at("shared/tool"), "kept").unwrap();
        symlink("shared/tool", at("file")).unwrap();
        symlink("shared", at("way")).unwrap();
        for _ in 0..2 {
            create(&at("file")).unwrap().write_all(b"ours").unwrap();
            assert_eq!(fs::read_to_string(at("file")).unwrap(), "ours");
        }
        assert!(create(&at("way/new")).is_err() && create(&at("way/tool")).is_err());
        assert_eq!(fs::read_dir(at("shared")).unwrap().count(), 1);
        assert_eq!(fs::read_to_string(at("shared/tool")).unwrap(), "kept");
    }
}
