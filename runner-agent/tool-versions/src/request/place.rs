//! File and line of a value, for messages and reasons.

use std::{
    fmt,
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use crate::{Error, Result};

/// The largest file that is read, in bytes: 1 MiB. No version file is larger.
const LARGEST: u64 = 1 << 20;

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The file, relative to the root of the source if it is below.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: usize,
}

impl Place {
    /// A line of a file, relative to `root`.
    pub fn of(file: &Path, root: &Path, line: usize) -> Self {
        Self {
            file: file.strip_prefix(root).unwrap_or(file).to_owned(),
            line,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// A value from a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    pub text: String,
    pub place: Place,
}

/// Reads a text file; `None` when there is none. Replaces invalid UTF-8 and removes a byte order mark.
pub(crate) fn read(path: &Path) -> Result<Option<String>> {
    let what = || path.display().to_string();
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(Error::storage(what(), &error)),
    };
    // Skip directories, and pipes, which block without a writer.
    let meta = file
        .metadata()
        .map_err(|error| Error::storage(what(), &error))?;
    if !meta.is_file() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(LARGEST + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Error::storage(what(), &error))?;
    if bytes.len() as u64 > LARGEST {
        return Err(Error::configuration(format!(
            "{} is larger than 1 MiB",
            what()
        )));
    }
    let text = String::from_utf8_lossy(&bytes);
    Ok(Some(
        text.strip_prefix('\u{feff}').unwrap_or(&text).to_owned(),
    ))
}

/// The line of a byte offset, from 1.
pub fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()
        .iter()
        .take(offset)
        .filter(|byte| **byte == b'\n')
        .count()
        + 1
}
