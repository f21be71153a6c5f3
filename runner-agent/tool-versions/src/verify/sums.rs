//! `SHA256SUMS`: which file of a release has which digest. Whose they are is proven by [`crate::verify::signature`].

use std::collections::BTreeMap;

use crate::{
    Error, Result,
    verify::digest::{Digest, beginning},
};

/// The largest file of sums that is read: 1 MiB. A release of today has some 20 lines of 100 bytes.
pub const LARGEST: usize = 1 << 20;

/// The most lines that are read.
pub const LINES: usize = 10_000;

/// The longest name of a file.
const LONGEST: usize = 255;

/// The digests of a release's files, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sums(BTreeMap<String, Digest>);

impl Sums {
    /// Reads what `sha256sum` writes: on each line 64 hexadecimal digits, spaces, a `*` when it was read as binary, and the name of a
    /// file. Lines may end in CR LF, and empty ones say nothing.
    ///
    /// Anything else is an error of integrity: too much of it, a page of HTML, a name that is a path or has characters that cannot be
    /// seen, two sums for one name, or no sum at all. Nothing is passed over, for a line that is not understood may be the one which
    /// contradicts another.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        if bytes.len() > LARGEST {
            return Err(Error::integrity(format!("SHA256SUMS has {} bytes, and {LARGEST} at most are read", bytes.len())));
        }
        let fault = |line: usize, found: &[u8], what: &str| {
            let html = if is_html(bytes) { ": it is a page of HTML" } else { "" };
            Error::integrity(format!("line {line} of SHA256SUMS {what}{html}: `{}`", beginning(found)))
        };
        let mut sums = BTreeMap::new();
        for (line, found) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
            let found = found.strip_suffix(b"\r").unwrap_or(found);
            if found.is_empty() {
                continue;
            }
            if line > LINES {
                return Err(fault(line, found, &format!("is one too many, {LINES} are read")));
            }
            let (digest, name) =
                entry(found).ok_or_else(|| fault(line, found, "is not a SHA-256, spaces and the name of a file"))?;
            let before = sums.insert(name.to_owned(), digest).filter(|before| *before != digest);
            if let Some(before) = before {
                return Err(fault(line, found, &format!("contradicts one before it, which says {before} of `{name}`")));
            }
        }
        if sums.is_empty() {
            return Err(Error::integrity("SHA256SUMS is empty"));
        }
        Ok(Self(sums))
    }

    /// The sum of this very file: `x.zip` is neither `x.zip.sig` nor `a/x.zip`. That there is none is an error of integrity.
    pub fn of(&self, name: &str) -> Result<Digest> {
        const SHOWN: usize = 5;
        self.0.get(name).copied().ok_or_else(|| {
            let mut names: Vec<_> = self.names().take(SHOWN).collect();
            if self.0.len() > SHOWN {
                names.push("…");
            }
            let names = names.join(", ");
            Error::integrity(format!("SHA256SUMS has no sum of `{name}`; its {} files are {names}", self.0.len()))
        })
    }

    /// That a file has the digest which it was published with; an error of integrity says what was expected and found.
    pub fn check(&self, name: &str, found: &Digest) -> Result<()> {
        let expected = self.of(name)?;
        if expected == *found {
            return Ok(());
        }
        Err(Error::integrity(format!("`{name}` has the SHA-256 {found}, and was published with {expected}")))
    }

    /// All names, in their order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

/// Whether it begins as pages of HTML do: proxies and portals answer with them, and they are the usual thing found instead of sums.
pub(crate) fn is_html(bytes: &[u8]) -> bool {
    bytes.trim_ascii_start().first() == Some(&b'<')
}

fn entry(line: &[u8]) -> Option<(Digest, &str)> {
    let line = std::str::from_utf8(line).ok()?;
    let (digest, rest) = line.split_at_checked(64)?;
    let name = rest.trim_start_matches(' ');
    if name.len() == rest.len() {
        return None;
    }
    let name = name.strip_prefix('*').unwrap_or(name);
    is_plain(name).then_some(())?;
    Some((digest.parse().ok()?, name))
}

/// Whether it names a file, and not a path to one.
fn is_plain(name: &str) -> bool {
    let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | '\\' | '*');
    !name.is_empty() && name.len() <= LONGEST && !matches!(name, "." | "..") && !name.contains(odd)
}
