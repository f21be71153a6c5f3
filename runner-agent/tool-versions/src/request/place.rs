//! Where something was read, for messages and reasons.

use std::{
    fmt,
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use crate::{Error, Result};

/// The largest file that is read for versions: 1 MiB. A larger one is no version file.
const LARGEST: u64 = 1 << 20;

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The file, relative to the top of the source where it lies below it.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: usize,
}

impl Place {
    /// A line of a file, told from `root`.
    pub fn of(file: &Path, root: &Path, line: usize) -> Self {
        Self { file: file.strip_prefix(root).unwrap_or(file).to_owned(), line }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// Something that a file says, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    pub text: String,
    pub place: Place,
}

/// Reads a file of text; `None` when there is none. Bytes that are no UTF-8 are replaced, and no byte order mark is left.
pub(crate) fn read(path: &Path) -> Result<Option<String>> {
    let what = || path.display().to_string();
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(None),
        Err(error) => return Err(Error::storage(what(), &error)),
    };
    // Neither a directory nor a pipe that nobody writes to.
    let meta = file.metadata().map_err(|error| Error::storage(what(), &error))?;
    if !meta.is_file() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(|error| Error::storage(what(), &error))?;
    if bytes.len() as u64 > LARGEST {
        return Err(Error::configuration(format!("{} is larger than 1 MiB", what())));
    }
    let text = String::from_utf8_lossy(&bytes);
    Ok(Some(text.strip_prefix('\u{feff}').unwrap_or(&text).to_owned()))
}

/// The line of a place in a text.
pub(crate) fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count() + 1
}
