//! The agent's unnamed files, and safe access to files that a tool left.
//!
//! The stack's code runs as the agent's user, in directories that the agent uses too, and the agent may open files that the code
//! may not. A link in place of a file would make the agent read a token, or write to a shared cache. So the agent's temporary files
//! have no name ([`Scratch`]), its named files replace any existing entry ([`create`]), and a file that a tool left is opened only
//! if it has a single name and no link leads to it ([`left`]).

use std::{
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write as _},
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

/// Name of the file in the stack's directory that passes variables to the tool.
pub const VARIABLES_FILE: &str = "zz_pawl.auto.tfvars.json";
/// Prefix of the variable files that a run references. They sort before [`VARIABLES_FILE`], whose variables win.
pub const VARIABLE_FILES: &str = "zz_pawl-";
/// Name of the file in the stack's directory that overrides the code's backend.
pub const BACKEND_FILE: &str = "zz_pawl_override.tf.json";

/// Whether a file name in the stack's directory is one that Pawl uses for variables.
pub fn is_variables_file(name: &str) -> bool {
    let is_read = || {
        name.strip_suffix(".json")
            .unwrap_or(name)
            .ends_with(".auto.tfvars")
    };
    name == VARIABLES_FILE || name.starts_with(VARIABLE_FILES) && is_read()
}

/// The field of a run that a file of variables comes from, for people: nobody wrote that file.
pub fn variables_field(path: &str) -> Option<String> {
    let name = path.rsplit('/').next().unwrap_or_default();
    let own = ["values.tfvars", "variables.tfvars.json"];
    if path.contains("/.pawl/runs/") && own.contains(&name) {
        return Some("spec.variables".to_owned());
    }
    if !is_variables_file(name) {
        return None;
    }
    Some(match given_name(name) {
        Some(given) => format!("spec.variableFiles {given}"),
        None => "spec.variables".to_owned(),
    })
}

/// The name of a variable file for people, from that of its copy beside the code: `zz_pawl-NN-NAME`.
pub fn given_name(name: &str) -> Option<&str> {
    let (number, given) = name.strip_prefix(VARIABLE_FILES)?.split_once('-')?;
    number.parse::<u8>().is_ok().then_some(given)
}

/// Whether an error is of a file itself and not of the disk: its permissions, its kind, the length of its path, or that it has vanished.
pub fn is_of_the_file(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied
            | io::ErrorKind::NotFound
            | io::ErrorKind::AlreadyExists
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::InvalidFilename
            | io::ErrorKind::FileTooLarge
            | io::ErrorKind::InvalidData
    ) || error.raw_os_error() == Some(nix::libc::ELOOP)
}

/// Read buffer size in bytes.
const CHUNK: usize = 256 << 10;

/// An unnamed file that only the agent can access. It is removed with its last clone.
#[derive(Clone, Debug)]
pub struct Scratch(Arc<File>);

impl Scratch {
    /// Creates an empty file on the file system of a directory.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn create(dir: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600);
        let unnamed = (OFlag::O_TMPFILE | OFlag::O_EXCL).bits();
        if let Ok(file) = options.clone().custom_flags(unnamed).open(dir) {
            return Ok(Self(Arc::new(file)));
        }
        // Without support for unnamed files: create one and remove its name at once.
        let path = dir.join(format!(".{}", hex::encode(rand::random::<[u8; 16]>())));
        let file = options.create_new(true).open(&path)?;
        fs::remove_file(&path)?;
        Ok(Self(Arc::new(file)))
    }

    /// Copies the current content of another file, on the file system of a directory.
    ///
    /// # Errors
    /// The file cannot be read, or the disk is full.
    pub fn copy_of(file: &File, dir: &Path) -> io::Result<Self> {
        let copy = Self::create(dir)?;
        io::copy(&mut Reader { file, at: 0 }, &mut &*copy.0)?;
        Ok(copy)
    }

    /// The file, for a writer. It shares one position between all users.
    pub fn file(&self) -> &File {
        &self.0
    }

    /// Reads from the beginning, at its own position.
    pub fn reader(&self) -> impl Read + '_ {
        Reader {
            file: &self.0,
            at: 0,
        }
    }

    /// Size in bytes.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    /// SHA-256 of its bytes: `sha256:` and 64 hexadecimal digits.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn digest(&self) -> io::Result<String> {
        Ok(format!("sha256:{}", digest(self.reader())?))
    }

    /// A request body of its bytes, from the beginning each time.
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
    /// Wraps a file that has a name.
    fn from(file: File) -> Self {
        Self(Arc::new(file))
    }
}

/// Reads a file at its own position, independent of other readers.
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

/// SHA-256 of a reader's bytes in hexadecimal digits.
///
/// # Errors
/// The reader fails.
pub fn digest(from: impl Read) -> io::Result<String> {
    Ok(Digest::read(io::BufReader::with_capacity(CHUNK, from))?.to_string())
}

/// Opens a file that a tool left: a regular file with a single name and at most `most` bytes, and no part of its path is a link.
/// Never blocks on a pipe. A relative path is relative to the working directory.
///
/// # Errors
/// The file does not exist, or does not meet these conditions; the message tells which.
pub fn left(path: &Path, most: u64) -> io::Result<File> {
    let is = |kind, what: &str| io::Error::new(kind, format!("{} {what}", path.display()));
    let opened = directory_of(path).and_then(|(dir, name)| {
        let flags = OFlag::O_RDONLY
            | OFlag::O_NOFOLLOW
            | OFlag::O_NONBLOCK
            | OFlag::O_NOCTTY
            | OFlag::O_CLOEXEC;
        openat(dir, name, flags, Mode::empty())
    });
    let file = File::from(opened.map_err(|error| match error {
        Errno::ELOOP | Errno::ENOTDIR => {
            is(io::ErrorKind::InvalidData, "is a link, or one leads to it")
        }
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

/// Creates an empty file that only its owner can access, in place of any file or link with its name, but not of a directory. No
/// part of its path may be a link.
///
/// # Errors
/// A part of the path is a link, or the file cannot be created.
pub fn create(path: &Path) -> io::Result<File> {
    let (dir, name) = directory_of(path)?;
    match unlinkat(&dir, name, UnlinkatFlags::NoRemoveDir) {
        Err(error) if error != Errno::ENOENT => return Err(error.into()),
        Ok(()) | Err(_) => {}
    }
    let flags =
        OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    Ok(openat(dir, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?.into())
}

/// Writes a new file like [`create`].
///
/// # Errors
/// As [`create`], or the disk is full.
pub fn write(path: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    create(path)?.write_all(bytes.as_ref())
}

/// Maximum size of a file of code in bytes.
const CODE: u64 = 8 << 20;

/// Reads a file of code, through links as the tools do. The caller shows nothing of it but names and lines.
///
/// # Errors
/// The file cannot be read, or is no regular file.
pub fn code(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    opened(path, OFlag::empty())?
        .take(CODE)
        .read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.strip_prefix('\u{feff}').unwrap_or(&text).to_owned())
}

/// Opens a regular file for reading; fails if its name is a link. Never blocks on a pipe.
///
/// # Errors
/// The file does not exist, or is no regular file.
pub fn regular(path: &Path) -> io::Result<File> {
    opened(path, OFlag::O_NOFOLLOW)
}

fn opened(path: &Path, flags: OFlag) -> io::Result<File> {
    let flags = flags | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits())
        .open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "no regular file",
        ))
    }
}

/// Opens a path's directory step by step without following links. Returns it with the last name.
fn directory_of(path: &Path) -> nix::Result<(OwnedFd, &OsStr)> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Errno::EINVAL);
    };
    let way = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut at = open(
        if path.is_absolute() { "/" } else { "." },
        way,
        Mode::empty(),
    )?;
    for part in parent.components() {
        match part {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => at = openat(&at, name, way, Mode::empty())?,
            Component::ParentDir | Component::Prefix(_) => return Err(Errno::EINVAL),
        }
    }
    Ok((at, name))
}

/// A temporary directory with these files.
///
/// # Panics
/// It cannot be written.
#[cfg(test)]
pub fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(dir.path().join(name), text).unwrap();
    }
    dir
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::TryStreamExt as _;
    use nix::{sys::stat, unistd::mkfifo};
    use std::os::unix::{fs::symlink, net::UnixListener};

    #[tokio::test]
    async fn scratch_file_has_no_name_and_is_read_from_its_start() {
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
    fn left_opens_only_a_regular_file_with_a_single_name() {
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
        assert_eq!(
            io::read_to_string(left(&at("dir/plan"), 8).unwrap()).unwrap(),
            "dir/plan"
        );
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
            assert!(
                error.contains(why) && error.contains(name),
                "{name}: {error}"
            );
        }
        assert!(
            left(&at("token"), 4)
                .unwrap_err()
                .to_string()
                .contains("has 5 bytes, more than 4")
        );
        assert_eq!(
            left(&at("none"), 100).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        for name in ["link", "pipe", "socket", "dir", "none"] {
            assert!(regular(&at(name)).is_err(), "{name}");
        }
        assert!(regular(&at("twice")).is_ok());
    }

    #[test]
    fn create_writes_through_no_link() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        let at = |name: &str| top.join(name);
        fs::create_dir(at("shared")).unwrap();
        fs::write(at("shared/tool"), "kept").unwrap();
        symlink("shared/tool", at("file")).unwrap();
        symlink("shared", at("way")).unwrap();
        for _ in 0..2 {
            write(&at("file"), "ours").unwrap();
            assert_eq!(fs::read_to_string(at("file")).unwrap(), "ours");
        }
        assert!(create(&at("way/new")).is_err() && create(&at("way/tool")).is_err());
        assert_eq!(fs::read_dir(at("shared")).unwrap().count(), 1);
        assert_eq!(fs::read_to_string(at("shared/tool")).unwrap(), "kept");
    }
}
