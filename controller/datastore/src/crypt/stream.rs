//! The format of an encrypted object:
//!
//! ```text
//! header:   "PAWL" 0x01, length of the key's id (1 byte), the id, salt (32 bytes)
//! segments: at most 64 KiB of content and a tag of 16 bytes each; the last one may be empty
//! ```
//!
//! The object key is HKDF-SHA256(master key, salt, name of the object). The nonce of a segment contains its number and
//! whether it is the last. Header and name are associated data of every segment. So decryption fails for an object that
//! was modified, reordered, truncated at any byte, extended, or moved to another name.
//!
//! This is STREAM (Hoang, Reyhanitabar, Rogaway, Vizár 2015) in the layout of RustCrypto's `aead-stream`,
//! `EncryptorBE32`: a prefix of seven bytes (zero here, because every object has its own key), a counter of four bytes,
//! and one byte that is 1 for the last segment. That crate is not used because it accepts only RustCrypto's ciphers,
//! which would add a second AES-GCM beside ring's, and because it leaves the segmentation, which is most of this file,
//! to its caller.

use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    hkdf::{HKDF_SHA256, Salt},
};

use super::{CryptError, keys::MasterKey};

/// Maximum content of a segment, in bytes.
pub const SEGMENT: usize = 64 << 10;
/// Overhead of a segment, in bytes.
const TAG: usize = 16;
const MAGIC: &[u8; 5] = b"PAWL\x01";
const SALT: usize = 32;
/// Maximum length of a header, in bytes.
pub const MAX_HEADER: usize = MAGIC.len() + 1 + MasterKey::MAX_ID + SALT;

/// Maximum size in the store for this much content, in bytes.
pub fn sealed_len(content: u64) -> u64 {
    let segments = content / SEGMENT as u64 + 1;
    MAX_HEADER as u64 + content + segments * TAG as u64
}

fn object_key(master: &MasterKey, salt: &[u8], name: &str) -> Result<LessSafeKey, CryptError> {
    let secret = Salt::new(HKDF_SHA256, salt).extract(master.bytes());
    let info = [b"pawl object\0".as_slice(), name.as_bytes()];
    let material = secret
        .expand(&info, &AES_256_GCM)
        .map_err(|_| CryptError::Cipher)?;
    Ok(LessSafeKey::new(UnboundKey::from(material)))
}

fn associated(header: &[u8], name: &str) -> Vec<u8> {
    [header, name.as_bytes()].concat()
}

fn nonce(counter: u32, last: bool) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[7..11].copy_from_slice(&counter.to_be_bytes());
    bytes[11] = u8::from(last);
    Nonce::assume_unique_for_key(bytes)
}

/// Encrypts one object incrementally.
pub struct Sealer {
    key: LessSafeKey,
    associated: Vec<u8>,
    counter: u32,
    /// Content that is not encrypted yet: whether a segment is the last is known only at the end of the object.
    pending: Vec<u8>,
}

impl Sealer {
    /// Starts an object with this name and writes its header to `out`.
    ///
    /// # Errors
    /// When the system provides no random bytes.
    pub fn new(master: &MasterKey, name: &str, out: &mut Vec<u8>) -> Result<Self, CryptError> {
        let mut salt = [0; SALT];
        ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut salt)
            .map_err(|_| CryptError::Cipher)?;
        let id = master.id().as_bytes();
        let mut header = Vec::with_capacity(MAX_HEADER);
        header.extend_from_slice(MAGIC);
        header.push(u8::try_from(id.len()).map_err(|_| CryptError::Cipher)?);
        header.extend_from_slice(id);
        header.extend_from_slice(&salt);
        out.extend_from_slice(&header);
        Ok(Self {
            key: object_key(master, &salt, name)?,
            associated: associated(&header, name),
            counter: 0,
            pending: Vec::with_capacity(SEGMENT),
        })
    }

    /// Takes content and writes complete segments to `out`.
    ///
    /// # Errors
    /// After 2^32 segments.
    pub fn push(&mut self, mut content: &[u8], out: &mut Vec<u8>) -> Result<(), CryptError> {
        while !content.is_empty() {
            if self.pending.len() == SEGMENT {
                self.seal(false, out)?;
            }
            let (now, later) = content.split_at(content.len().min(SEGMENT - self.pending.len()));
            self.pending.extend_from_slice(now);
            content = later;
        }
        Ok(())
    }

    /// Writes the last segment to `out`.
    ///
    /// # Errors
    /// After 2^32 segments.
    pub fn finish(mut self, out: &mut Vec<u8>) -> Result<(), CryptError> {
        self.seal(true, out)
    }

    fn seal(&mut self, last: bool, out: &mut Vec<u8>) -> Result<(), CryptError> {
        let nonce = nonce(self.counter, last);
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce, Aad::from(&self.associated), &mut self.pending)
            .map_err(|_| CryptError::Cipher)?;
        out.extend_from_slice(&self.pending);
        out.extend_from_slice(tag.as_ref());
        self.pending.clear();
        self.counter = self.counter.checked_add(1).ok_or(CryptError::Cipher)?;
        Ok(())
    }
}

/// The header of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub key_id: String,
    salt: [u8; SALT],
    bytes: Vec<u8>,
}

impl Header {
    /// Parses a header from the first [`MAX_HEADER`] bytes of an object, or from a whole shorter object.
    ///
    /// # Errors
    /// [`CryptError::Corrupt`] when it is not a header.
    pub fn parse(bytes: &[u8]) -> Result<Self, CryptError> {
        let rest = bytes
            .strip_prefix(MAGIC.as_slice())
            .ok_or(CryptError::Corrupt)?;
        let (length, rest) = rest.split_first().ok_or(CryptError::Corrupt)?;
        let length = usize::from(*length);
        let (id, rest) = rest.split_at_checked(length).ok_or(CryptError::Corrupt)?;
        let salt = rest.first_chunk::<SALT>().ok_or(CryptError::Corrupt)?;
        let key_id = std::str::from_utf8(id)
            .ok()
            .filter(|id| MasterKey::is_id(id))
            .ok_or(CryptError::Corrupt)?;
        let header = bytes
            .get(..MAGIC.len() + 1 + length + SALT)
            .ok_or(CryptError::Corrupt)?;
        Ok(Self {
            key_id: key_id.to_owned(),
            salt: *salt,
            bytes: header.to_vec(),
        })
    }

    /// Length in bytes.
    pub fn length(&self) -> usize {
        self.bytes.len()
    }
}

/// Decrypts one object incrementally. All output is authentic; only success of [`Self::finish`] proves that it is
/// complete.
pub struct Opener {
    key: LessSafeKey,
    associated: Vec<u8>,
    counter: u32,
    pending: Vec<u8>,
}

impl Opener {
    /// Starts after the header of the object with this name.
    ///
    /// # Errors
    /// [`CryptError::Cipher`], which does not happen with keys of this module.
    pub fn new(master: &MasterKey, header: &Header, name: &str) -> Result<Self, CryptError> {
        Ok(Self {
            key: object_key(master, &header.salt, name)?,
            associated: associated(&header.bytes, name),
            counter: 0,
            pending: Vec::with_capacity(SEGMENT + TAG),
        })
    }

    /// Takes stored bytes and writes the content of complete segments to `out`.
    ///
    /// # Errors
    /// [`CryptError::Corrupt`] at the first segment that fails authentication.
    pub fn push(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Result<(), CryptError> {
        while !bytes.is_empty() {
            if self.pending.len() == SEGMENT + TAG {
                self.open(false, out)?;
            }
            let (now, later) = bytes.split_at(bytes.len().min(SEGMENT + TAG - self.pending.len()));
            self.pending.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    /// Decrypts the last segment.
    ///
    /// # Errors
    /// [`CryptError::Corrupt`] when it fails authentication as the last one.
    pub fn finish(mut self, out: &mut Vec<u8>) -> Result<(), CryptError> {
        self.open(true, out)
    }

    fn open(&mut self, last: bool, out: &mut Vec<u8>) -> Result<(), CryptError> {
        let nonce = nonce(self.counter, last);
        let content = self
            .key
            .open_in_place(nonce, Aad::from(&self.associated), &mut self.pending)
            .map_err(|_| CryptError::Corrupt)?;
        out.extend_from_slice(content);
        self.pending.clear();
        self.counter = self.counter.checked_add(1).ok_or(CryptError::Cipher)?;
        Ok(())
    }
}

/// Encrypts a small object.
///
/// # Errors
/// When the system provides no random bytes.
pub fn seal(master: &MasterKey, name: &str, content: &[u8]) -> Result<Vec<u8>, CryptError> {
    let mut out =
        Vec::with_capacity(content.len() + MAX_HEADER + (content.len() / SEGMENT + 1) * TAG);
    let mut sealer = Sealer::new(master, name, &mut out)?;
    sealer.push(content, &mut out)?;
    sealer.finish(&mut out)?;
    Ok(out)
}

/// Decrypts a small object.
///
/// # Errors
/// When the header is invalid, or the object is not authentic for this name and key.
pub fn open(
    master: &MasterKey,
    header: &Header,
    name: &str,
    bytes: &[u8],
) -> Result<Vec<u8>, CryptError> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut opener = Opener::new(master, header, name)?;
    opener.push(
        bytes.get(header.length()..).ok_or(CryptError::Corrupt)?,
        &mut out,
    )?;
    opener.finish(&mut out)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

    use super::*;

    fn key(byte: u8) -> MasterKey {
        MasterKey::new("k1", [byte; 32]).unwrap()
    }

    fn read(master: &MasterKey, name: &str, bytes: &[u8]) -> Result<Vec<u8>, CryptError> {
        open(master, &Header::parse(bytes)?, name, bytes)
    }

    #[test]
    fn sealed_content_opens_with_any_length_and_chunks() {
        let mut rng = StdRng::seed_from_u64(1);
        for length in [
            0,
            1,
            SEGMENT - 1,
            SEGMENT,
            SEGMENT + 1,
            3 * SEGMENT,
            3 * SEGMENT + 5,
        ] {
            let content: Vec<u8> = (0..length).map(|_| rng.random()).collect();
            let mut sealed = Vec::new();
            let mut sealer = Sealer::new(&key(1), "a", &mut sealed).unwrap();
            let mut rest = content.as_slice();
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rng.random_range(1..=rest.len()));
                sealer.push(now, &mut sealed).unwrap();
                rest = later;
            }
            sealer.finish(&mut sealed).unwrap();
            assert!(sealed.len() as u64 <= sealed_len(length as u64));
            let header = Header::parse(&sealed).unwrap();
            let (mut opened, mut opener) =
                (Vec::new(), Opener::new(&key(1), &header, "a").unwrap());
            for piece in sealed[header.length()..].chunks(1 + length / 7) {
                opener.push(piece, &mut opened).unwrap();
            }
            opener.finish(&mut opened).unwrap();
            assert!(opened == content, "{length}");
        }
    }

    #[test]
    fn equal_content_has_different_ciphertext() {
        assert_ne!(
            seal(&key(1), "a", b"x").unwrap(),
            seal(&key(1), "a", b"x").unwrap()
        );
    }

    #[test]
    fn other_name_or_key_does_not_open_an_object() {
        let sealed = seal(&key(1), "a", b"secret").unwrap();
        assert_eq!(read(&key(1), "a", &sealed).unwrap(), b"secret");
        assert_eq!(read(&key(1), "b", &sealed), Err(CryptError::Corrupt));
        assert_eq!(read(&key(2), "a", &sealed), Err(CryptError::Corrupt));
    }

    #[test]
    fn truncated_object_does_not_open() {
        let content = vec![7; 2 * SEGMENT];
        let sealed = seal(&key(1), "a", &content).unwrap();
        let header = Header::parse(&sealed).unwrap().length();
        let edges = [
            0,
            1,
            header - 1,
            header,
            header + 1,
            header + SEGMENT + TAG,
            sealed.len() - TAG,
            sealed.len() - 1,
        ];
        for cut in edges {
            assert_eq!(
                read(&key(1), "a", &sealed[..cut]),
                Err(CryptError::Corrupt),
                "{cut}"
            );
        }
        let more = [sealed.as_slice(), &[0]].concat();
        assert_eq!(
            read(&key(1), "a", &more),
            Err(CryptError::Corrupt),
            "continued"
        );
        let (one, two) = (
            header..header + SEGMENT + TAG,
            header + SEGMENT + TAG..sealed.len(),
        );
        let reordered = [&sealed[..header], &sealed[two], &sealed[one]].concat();
        assert_eq!(
            read(&key(1), "a", &reordered),
            Err(CryptError::Corrupt),
            "reordered"
        );
    }

    /// Decrypts thousands of damaged objects: none panics, and none yields a byte that was not written under that name.
    #[test]
    fn damaged_objects_never_open() {
        let mut rng = StdRng::seed_from_u64(42);
        let secret = b"another object's secret".repeat(4000);
        let other = seal(&key(1), "other", &secret).unwrap();
        let content: Vec<u8> = (0..SEGMENT + 100).map(|_| rng.random()).collect();
        let sealed = seal(&key(1), "mine", &content).unwrap();
        for round in 0..3000 {
            let mut bytes = match round % 4 {
                0 => (0..rng.random_range(0..400))
                    .map(|_| rng.random())
                    .collect(),
                1 => other.clone(),
                _ => sealed.clone(),
            };
            for _ in 0..rng.random_range(1..4) {
                let at = if bytes.is_empty() {
                    0
                } else {
                    rng.random_range(0..bytes.len())
                };
                match rng.random_range(0..5) {
                    0 if !bytes.is_empty() => bytes[at] ^= 1 << rng.random_range(0..8),
                    1 => bytes.truncate(at),
                    2 => bytes.insert(at, rng.random()),
                    3 if !bytes.is_empty() => drop(bytes.remove(at)),
                    _ => bytes.extend_from_slice(&other[..rng.random_range(0..other.len())]),
                }
            }
            let Ok(header) = Header::parse(&bytes) else {
                continue;
            };
            let (mut out, mut opener) =
                (Vec::new(), Opener::new(&key(1), &header, "mine").unwrap());
            let body = bytes.get(header.length()..).unwrap_or_default();
            let whole = opener
                .push(body, &mut out)
                .and_then(|()| opener.finish(&mut out));
            assert!(
                content.starts_with(&out),
                "round {round} gave bytes that nobody wrote there"
            );
            // Two changes may cancel each other out.
            assert!(whole.is_err() || bytes == sealed, "round {round} opened");
        }
    }
}
