//! The store as other modules use it: encrypts on write, decrypts on read. A *record* is a small JSON document with an
//! optional small content; a *blob* is a large content under its own name.

use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use serde::{Serialize, de::DeserializeOwned};
use sha2::{Digest as _, Sha256};

use crds::datastore::{KEY_MISSING, Problem, TOO_LARGE, hex_digest};
use serving::problem::{corrupt, problem};

use crate::{
    blob::store::{ByteStream, Store},
    crypt::{
        CryptError,
        keys::{Keys, MasterKey},
        stream::{self, Header, MAX_HEADER, Opener, Sealer, sealed_len},
    },
    names::Name,
};

/// Maximum size of content inside its record: needs one write and one read instead of two.
pub const INLINE: usize = 128 << 10;
/// Maximum size of a record without content, in bytes.
const RECORD: usize = 256 << 10;

/// A store with its keys.
#[derive(Clone)]
pub struct Sealed {
    store: Store,
    keys: Arc<Keys>,
}

#[derive(Debug)]
pub struct Content {
    /// `sha256:` and the hexadecimal digest.
    pub digest: String,
    /// Bytes.
    pub size: u64,
    /// The first bytes of the content, at most [`INLINE`].
    pub head: Bytes,
    /// The blob; `None` when `head` is the whole content and belongs into the record.
    pub blob: Option<Name>,
}

/// Whether a key decrypts an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fit {
    /// The object does not exist, or references no key.
    Nothing,
    /// The key with this id decrypts it.
    Opens(String),
    /// The key with this id does not exist.
    Missing(String),
    /// The key with this id does not decrypt it.
    Differs(String),
}

fn of_crypt(name: &Name, error: CryptError) -> Problem {
    match error {
        CryptError::KeyMissing(id) => problem(
            KEY_MISSING,
            format!("{name} was written with the key `{id}`, which the datastore does not have"),
        ),
        CryptError::NoKey => problem(KEY_MISSING, format!("{name} is not written: {error}")),
        CryptError::Corrupt | CryptError::Cipher => corrupt(format!("{name}: {error}")),
    }
}

impl Sealed {
    pub fn new(store: Store, keys: Arc<Keys>) -> Self {
        Self { store, keys }
    }

    /// The underlying store, for lists and deletions.
    pub fn store(&self) -> &Store {
        &self.store
    }

    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    fn seal(&self, name: &Name, content: &[u8]) -> Result<Vec<u8>, Problem> {
        let active = self.keys.active().map_err(|error| of_crypt(name, error))?;
        stream::seal(&active, name.as_str(), content).map_err(|error| of_crypt(name, error))
    }

    /// Creates an empty object that only this key decrypts; false when it exists.
    ///
    /// # Errors
    /// `Unavailable`; it may have been created.
    pub async fn mark(&self, name: &Name, key: &MasterKey) -> Result<bool, Problem> {
        let bytes = stream::seal(key, name.as_str(), b"").map_err(|error| of_crypt(name, error))?;
        self.store.create(name, bytes).await
    }

    /// Whether the keys decrypt a record or a mark.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn fit(&self, name: &Name) -> Result<Fit, Problem> {
        let bytes = self
            .store
            .read(name, sealed_len((RECORD + INLINE) as u64))
            .await?
            .unwrap_or_default();
        // A truncated header does not identify a key.
        let Ok(header) = Header::parse(&bytes) else {
            return Ok(Fit::Nothing);
        };
        let id = header.key_id.clone();
        let Ok(key) = self.keys.find(&id) else {
            return Ok(Fit::Missing(id));
        };
        Ok(
            if stream::open(&key, &header, name.as_str(), &bytes).is_ok() {
                Fit::Opens(id)
            } else {
                Fit::Differs(id)
            },
        )
    }

    /// Creates a record; false when the name exists.
    ///
    /// # Errors
    /// `Unavailable`; it may have been created.
    pub async fn create<T: Serialize>(
        &self,
        name: &Name,
        record: &T,
        content: &[u8],
    ) -> Result<bool, Problem> {
        self.store
            .create(name, self.seal(name, &encode(name, record, content)?)?)
            .await
    }

    /// Reads a record and its content; `None` when it does not exist.
    ///
    /// # Errors
    /// `Unavailable`, `Corrupt`, `KeyMissing`.
    pub async fn read<T: DeserializeOwned>(
        &self,
        name: &Name,
    ) -> Result<Option<(T, Bytes)>, Problem> {
        let Some(plain) = self.read_bytes(name, RECORD + INLINE).await? else {
            return Ok(None);
        };
        decode(&plain)
            .map(Some)
            .ok_or_else(|| corrupt(format!("{name} is no such record")))
    }

    /// Creates or replaces a small object.
    ///
    /// # Errors
    /// `Unavailable`; it may have been written.
    pub async fn overwrite_bytes(&self, name: &Name, content: &[u8]) -> Result<(), Problem> {
        self.store.overwrite(name, self.seal(name, content)?).await
    }

    /// Reads a small object; `None` when it does not exist.
    ///
    /// # Errors
    /// `Unavailable`, `Corrupt`, `KeyMissing`.
    pub async fn read_bytes(&self, name: &Name, limit: usize) -> Result<Option<Bytes>, Problem> {
        let Some(bytes) = self.store.read(name, sealed_len(limit as u64)).await? else {
            return Ok(None);
        };
        let opened = Header::parse(&bytes).and_then(|header| {
            stream::open(
                &*self.keys.find(&header.key_id)?,
                &header,
                name.as_str(),
                &bytes,
            )
        });
        opened
            .map(|plain| Some(plain.into()))
            .map_err(|error| of_crypt(name, error))
    }

    /// Writes content of any size in one pass: small content is returned for its record, large content becomes a blob
    /// with the given name. Holds at most two parts in memory.
    ///
    /// # Errors
    /// Those of the content's stream; `TooLarge`; `Unavailable`. Nothing is left behind then.
    pub async fn write(
        &self,
        content: impl Stream<Item = Result<Bytes, Problem>>,
        limit: u64,
        blob: &Name,
    ) -> Result<Content, Problem> {
        let mut content = std::pin::pin!(content);
        let (mut digest, mut size, mut head) = (Sha256::new(), 0_u64, Vec::new());
        let mut writer = None;
        let all = async {
            while let Some(piece) = content.next().await {
                let piece = piece?;
                take(&piece, &mut size, limit)?;
                digest.update(&piece);
                match &mut writer {
                    None if head.len() + piece.len() <= INLINE => head.extend_from_slice(&piece),
                    None => {
                        let begun = writer.insert(BlobWriter::begin(self, blob.clone()).await?);
                        begun.push(&head).await?;
                        begun.push(&piece).await?;
                        let room = (INLINE - head.len()).min(piece.len());
                        head.extend_from_slice(&piece[..room]);
                    }
                    Some(begun) => begun.push(&piece).await?,
                }
            }
            Ok(())
        };
        let whole: Result<(), Problem> = all.await;
        let blob = match (writer, whole) {
            (Some(writer), Ok(())) => Some(writer.finish().await?),
            (None, Ok(())) => None,
            (writer, Err(problem)) => {
                if let Some(writer) = writer {
                    writer.upload.abort().await;
                }
                return Err(problem);
            }
        };
        Ok(Content {
            digest: hex_digest(&digest.finalize()),
            size,
            head: head.into(),
            blob,
        })
    }

    /// Opens a blob. Decrypts its first segment before it returns, so that a wrong key is detected before the response
    /// starts.
    ///
    /// # Errors
    /// `Unavailable`, `KeyMissing`, `Corrupt`, also when the blob does not exist or has another size. Later errors are
    /// in the stream.
    pub async fn open(&self, name: &Name, size: u64) -> Result<ByteStream, Problem> {
        let gone = || corrupt(format!("{name} is named by its record and is not there"));
        let mut raw = self.store.stream(name).await?.ok_or_else(gone)?;
        let mut first = Vec::new();
        while first.len() < MAX_HEADER {
            match raw.next().await {
                Some(piece) => first.extend_from_slice(&piece?),
                None => break,
            }
        }
        let header = Header::parse(&first).map_err(|error| of_crypt(name, error))?;
        let key = self
            .keys
            .find(&header.key_id)
            .map_err(|error| of_crypt(name, error))?;
        let opener =
            Opener::new(&key, &header, name.as_str()).map_err(|error| of_crypt(name, error))?;
        let rest = Bytes::from(first).slice(header.length()..);
        let reader = Reader {
            raw,
            opener: Some(opener),
            ahead: Some(rest),
            name: name.clone(),
            left: size,
        };
        let mut opened = futures::stream::try_unfold(reader, Reader::next).boxed();
        Ok(match opened.next().await {
            None => futures::stream::empty().boxed(),
            Some(piece) => {
                let piece = piece?;
                futures::stream::once(async { Ok(piece) })
                    .chain(opened)
                    .boxed()
            }
        })
    }
}

fn take(piece: &Bytes, size: &mut u64, limit: u64) -> Result<(), Problem> {
    *size = size.saturating_add(piece.len() as u64);
    if *size > limit {
        Err(problem(TOO_LARGE, format!("at most {limit} bytes")))
    } else {
        Ok(())
    }
}

/// Encodes as: length of the JSON in four bytes, the JSON, the content.
fn encode<T: Serialize>(name: &Name, record: &T, content: &[u8]) -> Result<Vec<u8>, Problem> {
    let json = serde_json::to_vec(record)
        .map_err(|error| corrupt(format!("{name} cannot be written: {error}")))?;
    let length = u32::try_from(json.len())
        .ok()
        .filter(|_| json.len() <= RECORD && content.len() <= INLINE);
    let length =
        length.ok_or_else(|| problem(TOO_LARGE, format!("{name}: too large for a record")))?;
    Ok([&length.to_be_bytes(), json.as_slice(), content].concat())
}

fn decode<T: DeserializeOwned>(plain: &Bytes) -> Option<(T, Bytes)> {
    let length = u32::from_be_bytes(*plain.first_chunk::<4>()?);
    let end = 4 + usize::try_from(length).ok()?;
    let record = serde_json::from_slice(plain.get(4..end)?).ok()?;
    Some((record, plain.slice(end..)))
}

struct BlobWriter {
    name: Name,
    upload: super::store::Upload,
    sealer: Sealer,
    part: Vec<u8>,
    part_size: usize,
}

impl BlobWriter {
    async fn begin(sealed: &Sealed, name: Name) -> Result<Self, Problem> {
        let part_size = sealed.store.part_size();
        let mut part = Vec::with_capacity(part_size + 2 * stream::SEGMENT);
        let active = sealed
            .keys
            .active()
            .map_err(|error| of_crypt(&name, error))?;
        let sealer = Sealer::new(&active, name.as_str(), &mut part)
            .map_err(|error| of_crypt(&name, error))?;
        let upload = sealed.store.upload(&name).await?;
        Ok(Self {
            name,
            upload,
            sealer,
            part,
            part_size,
        })
    }

    async fn push(&mut self, content: &[u8]) -> Result<(), Problem> {
        for piece in content.chunks(stream::SEGMENT) {
            self.sealer
                .push(piece, &mut self.part)
                .map_err(|error| of_crypt(&self.name, error))?;
            self.send_full().await?;
        }
        Ok(())
    }

    /// All parts except the last have equal sizes, as some stores require.
    async fn send_full(&mut self) -> Result<(), Problem> {
        if self.part.len() < self.part_size {
            return Ok(());
        }
        let mut next = Vec::with_capacity(self.part_size + 2 * stream::SEGMENT);
        next.extend_from_slice(&self.part[self.part_size..]);
        let mut full = std::mem::replace(&mut self.part, next);
        full.truncate(self.part_size);
        self.upload.part(full).await
    }

    async fn finish(mut self) -> Result<Name, Problem> {
        self.sealer
            .finish(&mut self.part)
            .map_err(|error| of_crypt(&self.name, error))?;
        let last = if self.part.len() > self.part_size {
            self.part.split_off(self.part_size)
        } else {
            Vec::new()
        };
        for part in [self.part, last] {
            if !part.is_empty() {
                self.upload.part(part).await?;
            }
        }
        self.upload.complete().await?;
        Ok(self.name)
    }
}

struct Reader {
    raw: ByteStream,
    opener: Option<Opener>,
    /// Bytes read together with the header.
    ahead: Option<Bytes>,
    name: Name,
    /// Remaining content, in bytes.
    left: u64,
}

impl Reader {
    async fn next(mut self) -> Result<Option<(Bytes, Self)>, Problem> {
        let mut out = Vec::new();
        while out.is_empty() {
            let Some(opener) = &mut self.opener else {
                return Ok(None);
            };
            let piece = match self.ahead.take() {
                Some(piece) => Some(piece),
                None => self.raw.next().await.transpose()?,
            };
            let opened = match piece {
                Some(piece) => {
                    out.reserve(piece.len());
                    opener.push(&piece, &mut out)
                }
                None => self
                    .opener
                    .take()
                    .map_or(Ok(()), |opener| opener.finish(&mut out)),
            };
            opened.map_err(|error| of_crypt(&self.name, error))?;
            let differs = || {
                corrupt(format!(
                    "{} does not have the size in its record",
                    self.name
                ))
            };
            self.left = self
                .left
                .checked_sub(out.len() as u64)
                .ok_or_else(differs)?;
            if self.opener.is_none() && self.left > 0 {
                return Err(differs());
            }
        }
        Ok(Some((out.into(), self)))
    }
}
