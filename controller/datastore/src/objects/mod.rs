//! What is written once: an attempt's bundle, plan, plan as JSON and result, and the [bundles](sources) of repositories.

pub mod claim;
pub mod log;
pub mod sources;
pub mod wanted;

use std::{
    collections::HashSet,
    sync::{Mutex, PoisonError},
};

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crds::datastore::{ALREADY_EXISTS, ObjectKind, Problem, Stored, WRONG_DIGEST, hex_digest};
use serving::problem::{corrupt, not_found, problem};

use crate::{
    blob::{sealed::Sealed, store::ByteStream},
    names::{self, Name, RunKey},
};

/// How many runs are remembered whose name is in the store.
const NAMED: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    #[serde(flatten)]
    pub stored: Stored,
    /// The last word of the blob's name; none when the content stands in the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blob: Option<String>,
    pub at: Timestamp,
}

/// The record of a run's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    pub name: String,
    /// When something was first written for it.
    pub at: Timestamp,
}

pub struct Object {
    pub stored: Stored,
    pub content: ByteStream,
}

/// Whether an object was written now or stood there, the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrote {
    Created,
    Same,
}

pub struct Objects {
    sealed: Sealed,
    named: Mutex<HashSet<RunKey>>,
}

impl Objects {
    pub fn new(sealed: Sealed) -> Self {
        Self { sealed, named: Mutex::default() }
    }

    /// Writes down under which name the run of that UID is found; the sweep needs it. Comes before everything else of a run.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn name(&self, run: &RunKey, name: &str) -> Result<(), Problem> {
        if self.named.lock().unwrap_or_else(PoisonError::into_inner).contains(run) {
            return Ok(());
        }
        self.sealed.create(&run.name_record(), &Named { name: name.to_owned(), at: Timestamp::now() }, &[]).await?;
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        if named.len() >= NAMED {
            named.clear();
        }
        named.insert(run.clone());
        Ok(())
    }

    /// Writes an object once. `digest` is what the writer says of its content.
    ///
    /// # Errors
    /// Those of the content; `AlreadyExists` for another content, `WrongDigest`, `TooLarge`, `Unavailable`.
    pub async fn put(
        &self,
        run: &RunKey,
        attempt: u32,
        kind: ObjectKind,
        digest: &str,
        content: impl Stream<Item = Result<Bytes, Problem>>,
    ) -> Result<(Stored, Wrote), Problem> {
        let slot = Slot { name: run.object(attempt, kind), blob: run.blob(attempt, kind, &names::random()), limit: kind.limit() };
        let is_same = |there: &Record| existing(there, kind, digest);
        write_once(&self.sealed, slot, digest, content, is_same).await
    }

    /// Reads an object; none when there is none.
    ///
    /// # Errors
    /// `Unavailable`, `Corrupt`, `KeyMissing`; later ones in the content.
    pub async fn get(&self, run: &RunKey, attempt: u32, kind: ObjectKind) -> Result<Option<Object>, Problem> {
        read_once(&self.sealed, &run.object(attempt, kind), &run.blobs()).await
    }

    /// Reads an object back from the store, to its end, and compares its digest.
    ///
    /// # Errors
    /// Those of [`Self::get`]; `NotFound`; `Corrupt` when the content is another.
    pub async fn verify(&self, run: &RunKey, attempt: u32, kind: ObjectKind) -> Result<Stored, Problem> {
        let object = self.get(run, attempt, kind).await?.ok_or_else(|| none(attempt, kind))?;
        let (mut digest, mut size, mut content) = (Sha256::new(), 0_u64, object.content);
        while let Some(piece) = content.next().await {
            let piece = piece?;
            digest.update(&piece);
            size += piece.len() as u64;
        }
        let read = Stored { digest: hex_digest(&digest.finalize()), size };
        if read == object.stored { Ok(read) } else { Err(corrupt(format!("the {} is not what was written", kind.as_str()))) }
    }

    /// Deletes the bundles of a run.
    ///
    /// # Errors
    /// `Unavailable`; some may be deleted.
    pub async fn delete_bundles(&self, run: &RunKey) -> Result<(), Problem> {
        let bundle = ObjectKind::Bundle.as_str();
        self.delete_where(run, |below| {
            let mut parts = below.split('/');
            match (parts.next(), parts.next()) {
                (Some("blobs"), Some(blob)) => blob.split('-').nth(1) == Some(bundle),
                (Some(_), Some(word)) => word == bundle,
                _ => false,
            }
        })
        .await
    }

    /// Deletes everything of a run but its claim.
    ///
    /// # Errors
    /// `Unavailable`; some may be deleted.
    pub async fn delete_all(&self, run: &RunKey) -> Result<(), Problem> {
        self.delete_bundles(run).await?;
        // The name goes last: while anything is left, the sweep can say whose it is.
        self.delete_where(run, |below| below != "run").await?;
        self.sealed.store().delete(&run.name_record()).await?;
        self.named.lock().unwrap_or_else(PoisonError::into_inner).remove(run);
        Ok(())
    }

    /// Records before blobs: a record never names what is gone.
    async fn delete_where(&self, run: &RunKey, chosen: impl Fn(&str) -> bool) -> Result<(), Problem> {
        let prefix = format!("{}/", run.prefix());
        let mut found: Vec<_> = self.sealed.store().list(&run.prefix()).await?.into_iter().map(|entry| entry.name).collect();
        found.retain(|name| name.as_str().strip_prefix(&prefix).is_some_and(&chosen));
        let is_blob = |name: &Name| name.as_str().strip_prefix(&prefix).is_some_and(|below| below.starts_with("blobs/"));
        found.sort_by_key(is_blob);
        for name in found {
            self.sealed.store().delete(&name).await?;
        }
        Ok(())
    }
}

/// What is said of an object that is not there.
pub fn none(attempt: u32, kind: ObjectKind) -> Problem {
    not_found(format!("attempt {attempt} has stored no {}", kind.as_str()))
}

fn existing(there: &Record, kind: ObjectKind, digest: &str) -> Result<(), Problem> {
    if there.stored.digest == digest {
        return Ok(());
    }
    Err(problem(ALREADY_EXISTS, format!("another {} is stored: {}", kind.as_str(), there.stored.digest)))
}

/// Where something is written once.
struct Slot {
    /// Its record.
    name: Name,
    /// Its content, when that is large.
    blob: Name,
    /// The most bytes.
    limit: u64,
}

/// Writes content once; what is there then. `is_same` judges what was there before. `digest` is what the writer says of its content.
async fn write_once(
    sealed: &Sealed,
    Slot { name, blob, limit }: Slot,
    digest: &str,
    content: impl Stream<Item = Result<Bytes, Problem>>,
    is_same: impl Fn(&Record) -> Result<(), Problem>,
) -> Result<(Stored, Wrote), Problem> {
    if let Some((record, _)) = sealed.read::<Record>(&name).await? {
        let mut content = std::pin::pin!(content);
        is_same(&record)?;
        // A client that is still sending would not read the answer.
        while let Some(piece) = content.next().await {
            piece?;
        }
        return Ok((record.stored, Wrote::Same));
    }
    let written = sealed.write(content, limit, &blob).await?;
    let stored = Stored { digest: written.digest, size: written.size };
    if stored.digest != digest {
        discard(sealed, written.blob.as_ref()).await;
        return Err(problem(WRONG_DIGEST, format!("the content is {}, not {digest}", stored.digest)));
    }
    let inline = if written.blob.is_none() { written.head } else { Bytes::new() };
    let record =
        Record { stored: stored.clone(), blob: written.blob.as_ref().map(|name| name.last().to_owned()), at: Timestamp::now() };
    if sealed.create(&name, &record, &inline).await? {
        return Ok((stored, Wrote::Created));
    }
    let (there, _) = sealed.read::<Record>(&name).await?.ok_or_else(|| not_found("it was deleted meanwhile"))?;
    // After a lost answer to a creation that was sent again, the record may be this one.
    if there.blob != record.blob {
        discard(sealed, written.blob.as_ref()).await;
    }
    is_same(&there)?;
    Ok((there.stored, Wrote::Same))
}

async fn discard(sealed: &Sealed, blob: Option<&Name>) {
    if let Some(blob) = blob {
        // What cannot be deleted now, the sweep deletes.
        let _ = sealed.store().delete(blob).await;
    }
}

/// Reads what was written once; none when there is none.
async fn read_once(sealed: &Sealed, name: &Name, blobs: &Name) -> Result<Option<Object>, Problem> {
    let Some((record, inline)) = sealed.read::<Record>(name).await? else { return Ok(None) };
    let content = match &record.blob {
        Some(blob) => sealed.open(&names::below(blobs, blob), record.stored.size).await?,
        None if inline.len() as u64 == record.stored.size => futures::stream::once(async { Ok(inline) }).boxed(),
        None => return Err(corrupt(format!("{name} has another size than it says"))),
    };
    Ok(Some(Object { stored: record.stored, content }))
}
