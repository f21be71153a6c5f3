//! `SHA256SUMS`: the digests of a release's files. [`crate::verify::signature`] verifies their origin.

use std::collections::BTreeMap;

use crate::{
    Error, Result,
    verify::digest::{Digest, beginning},
};

/// The largest file of sums, in bytes: 1 MiB. A present release has about 20 lines of 100 bytes.
pub const LARGEST: usize = 1 << 20;

/// The most lines.
pub const LINES: usize = 10_000;

/// The longest file name, in bytes.
const LONGEST: usize = 255;

/// Digests by file name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sums(BTreeMap<String, Digest>);

impl Sums {
    /// Parses the output of `sha256sum`: on each line 64 hex digits, spaces, a `*` for binary mode, and a file name. Lines may
    /// end in CR LF; empty lines are ignored.
    ///
    /// Integrity for anything else: too long, an HTML page, a path or control characters in a name, two digests for one name, no
    /// digest at all. No line is skipped, since an unparsed line may contradict another.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        if bytes.len() > LARGEST {
            return Err(Error::integrity(format!(
                "SHA256SUMS has {} bytes, and {LARGEST} at most are read",
                bytes.len()
            )));
        }
        let fault = |line: usize, found: &[u8], what: &str| {
            let html = if is_html(bytes) {
                ": it is a page of HTML"
            } else {
                ""
            };
            Error::integrity(format!(
                "line {line} of SHA256SUMS {what}{html}: `{}`",
                beginning(found)
            ))
        };
        let mut sums = BTreeMap::new();
        for (line, found) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
            let found = found.strip_suffix(b"\r").unwrap_or(found);
            if found.is_empty() {
                continue;
            }
            if line > LINES {
                return Err(fault(
                    line,
                    found,
                    &format!("is one too many, {LINES} are read"),
                ));
            }
            let (digest, name) = entry(found).ok_or_else(|| {
                fault(
                    line,
                    found,
                    "is not a SHA-256, spaces and the name of a file",
                )
            })?;
            let before = sums
                .insert(name.to_owned(), digest)
                .filter(|before| *before != digest);
            if let Some(before) = before {
                return Err(fault(
                    line,
                    found,
                    &format!("contradicts one before it, which says {before} of `{name}`"),
                ));
            }
        }
        if sums.is_empty() {
            return Err(Error::integrity("SHA256SUMS is empty"));
        }
        Ok(Self(sums))
    }

    /// The digest of exactly this name: `x.zip` is neither `x.zip.sig` nor `a/x.zip`. Integrity when it is missing.
    pub fn of(&self, name: &str) -> Result<Digest> {
        const SHOWN: usize = 5;
        self.0.get(name).copied().ok_or_else(|| {
            let mut names: Vec<_> = self.names().take(SHOWN).collect();
            if self.0.len() > SHOWN {
                names.push("…");
            }
            let names = names.join(", ");
            Error::integrity(format!(
                "SHA256SUMS has no sum of `{name}`; its {} files are {names}",
                self.0.len()
            ))
        })
    }

    /// Compares a file with its published digest. Integrity, with both digests, when they differ.
    pub fn check(&self, name: &str, found: &Digest) -> Result<()> {
        let expected = self.of(name)?;
        if expected == *found {
            return Ok(());
        }
        Err(Error::integrity(format!(
            "`{name}` has the SHA-256 {found}, and was published with {expected}"
        )))
    }

    /// All names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

/// Whether the text starts like HTML: proxies and portals often serve a page in place of a file.
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

/// Whether the name is a file name and no path.
fn is_plain(name: &str) -> bool {
    let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | '\\' | '*');
    !name.is_empty() && name.len() <= LONGEST && !matches!(name, "." | "..") && !name.contains(odd)
}
