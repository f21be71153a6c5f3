//! SHA-256 digests.

use std::{
    fmt,
    io::{self, Read, Write},
    str::FromStr,
};

use sha2::{Digest as _, Sha256};

use crate::Error;

/// A SHA-256 digest. It is public, so comparison need not be in constant time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

impl Digest {
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Digests a stream without buffering it. The error is that of reading.
    pub fn read(mut from: impl Read) -> io::Result<Self> {
        let mut through = Hashing::new(io::sink());
        io::copy(&mut from, &mut through)?;
        Ok(through.digest())
    }

    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Digest {
    /// 64 lower-case hex digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = Error;

    /// Parses 64 hex digits in any case. Any other text is an integrity error, since digests come from files that prove
    /// something.
    fn from_str(text: &str) -> Result<Self, Error> {
        let fault = || {
            Error::integrity(format!(
                "`{}` is no SHA-256, which has 64 hexadecimal digits",
                beginning(text.as_bytes())
            ))
        };
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| fault())?;
        Ok(Self(bytes))
    }
}

/// A writer that counts and digests. The caller flushes the inner writer.
pub struct Hashing<W> {
    into: W,
    hash: Sha256,
    written: u64,
}

impl<W: Write> Hashing<W> {
    pub fn new(into: W) -> Self {
        Self {
            into,
            hash: Sha256::new(),
            written: 0,
        }
    }

    /// Bytes written so far.
    pub const fn written(&self) -> u64 {
        self.written
    }

    /// The digest of the bytes so far.
    pub fn digest(&self) -> Digest {
        Digest(self.hash.clone().finalize().into())
    }

    pub const fn get_ref(&self) -> &W {
        &self.into
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.into.write(bytes)?;
        self.hash.update(bytes.get(..count).unwrap_or(bytes));
        self.written += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.into.flush()
    }
}

/// The first 100 characters for messages, with control characters escaped.
pub(crate) fn beginning(bytes: &[u8]) -> String {
    const SHOWN: usize = 100;
    let text = String::from_utf8_lossy(bytes.get(..4 * SHOWN).unwrap_or(bytes));
    let shown: String = text
        .chars()
        .take(SHOWN)
        .flat_map(char::escape_debug)
        .collect();
    if text.chars().count() > SHOWN || bytes.len() > 4 * SHOWN {
        format!("{shown}…")
    } else {
        shown
    }
}
