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

/// Reads a text file; `None` when there is none. Replaces what is invalid and removes a byte order mark.
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
    Ok(Some(decoded(&bytes)))
}

/// UTF-8, or UTF-16 by its byte order mark: `echo 1.10.6 > .opentofu-version` in Windows PowerShell writes it.
fn decoded(bytes: &[u8]) -> String {
    let units = |text: &[u8], of: fn([u8; 2]) -> u16| {
        let pairs = text.chunks_exact(2);
        let units: Vec<u16> = pairs.map(|pair| of([pair[0], pair[1]])).collect();
        String::from_utf16_lossy(&units)
    };
    match bytes {
        [0xff, 0xfe, text @ ..] => units(text, u16::from_le_bytes),
        [0xfe, 0xff, text @ ..] => units(text, u16::from_be_bytes),
        _ => {
            let text = String::from_utf8_lossy(bytes);
            text.strip_prefix('\u{feff}').unwrap_or(&text).to_owned()
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// hashicorp/terraform #18618: files that Windows PowerShell writes.
    #[test]
    fn version_files_of_powershell_are_read() {
        let little: Vec<u8> = "\u{feff}1.10.6\r\n"
            .encode_utf16()
            .flat_map(u16::to_le_bytes)
            .collect();
        let big: Vec<u8> = "\u{feff}1.10.6\r\n"
            .encode_utf16()
            .flat_map(u16::to_be_bytes)
            .collect();
        for bytes in [
            &little[..],
            &big,
            "\u{feff}1.10.6\r\n".as_bytes(),
            b"1.10.6\r\n",
        ] {
            assert_eq!(decoded(bytes), "1.10.6\r\n", "{bytes:?}");
        }
        assert_eq!(decoded(b"\xff"), "\u{fffd}");
    }
}
