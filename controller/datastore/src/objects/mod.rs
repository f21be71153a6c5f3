//! Write-once objects: an attempt's bundle, plan, JSON plan and result, and the [snapshots](sources) of repositories.

pub mod claim;
pub mod log;
pub mod sources;
pub mod wanted;

use std::{
    collections::HashSet,
    sync::{Mutex, PoisonError},
    time::Duration,
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

/// Maximum number of cached runs whose name is recorded.
const NAMED: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    #[serde(flatten)]
    pub stored: Stored,
    /// The last segment of the blob's name; `None` when the record has the content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blob: Option<String>,
    pub at: Timestamp,
}

/// The record of a run's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    pub name: String,
    /// When the first object of the run was written.
    pub at: Timestamp,
}

pub struct Object {
    pub stored: Stored,
    pub content: ByteStream,
}

/// Whether an object was created now or existed with the same content.
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
        Self {
            sealed,
            named: Mutex::default(),
        }
    }

    /// Records the name of the run with this UID, for the sweep. Must precede all other writes for a run.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn name(&self, run: &RunKey, name: &str) -> Result<(), Problem> {
        if self
            .named
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .contains(run)
        {
            return Ok(());
        }
        self.sealed
            .create(
                &run.name_record(),
                &Named {
                    name: name.to_owned(),
                    at: Timestamp::now(),
                },
                &[],
            )
            .await?;
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        if named.len() >= NAMED {
            named.clear();
        }
        named.insert(run.clone());
        Ok(())
    }

    /// Writes an object once. `digest` is the digest announced by the writer.
    ///
    /// # Errors
    /// Those of the content; `AlreadyExists` for different content, `WrongDigest`, `TooLarge`, `Unavailable`.
    pub async fn put(
        &self,
        run: &RunKey,
        attempt: u32,
        kind: ObjectKind,
        digest: &str,
        content: impl Stream<Item = Result<Bytes, Problem>>,
    ) -> Result<(Stored, Wrote), Problem> {
        let slot = Slot {
            name: run.object(attempt, kind),
            blob: run.blob(attempt, kind, &names::random()),
            limit: kind.limit(),
        };
        let is_same = |there: &Record| existing(there, kind, digest);
        write_once(&self.sealed, slot, digest, content, is_same).await
    }

    /// Reads an object; `None` when it does not exist.
    ///
    /// # Errors
    /// `Unavailable`, `Corrupt`, `KeyMissing`. Errors after the start are in the content's stream.
    pub async fn get(
        &self,
        run: &RunKey,
        attempt: u32,
        kind: ObjectKind,
    ) -> Result<Option<Object>, Problem> {
        read_once(&self.sealed, &run.object(attempt, kind), &run.blobs()).await
    }

    /// Reads an object from the store to its end and verifies its digest.
    ///
    /// # Errors
    /// Those of [`Self::get`]; `NotFound`; `Corrupt` when the content differs.
    pub async fn verify(
        &self,
        run: &RunKey,
        attempt: u32,
        kind: ObjectKind,
    ) -> Result<Stored, Problem> {
        let object = self
            .get(run, attempt, kind)
            .await?
            .ok_or_else(|| none(attempt, kind))?;
        let (mut digest, mut size, mut content) = (Sha256::new(), 0_u64, object.content);
        while let Some(piece) = content.next().await {
            let piece = piece?;
            digest.update(&piece);
            size += piece.len() as u64;
        }
        let read = Stored {
            digest: hex_digest(&digest.finalize()),
            size,
        };
        if read == object.stored {
            Ok(read)
        } else {
            Err(corrupt(format!(
                "the {} is not what was written",
                kind.as_str()
            )))
        }
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

    /// Deletes all data of a run except its claim.
    ///
    /// # Errors
    /// `Unavailable`; some may be deleted.
    pub async fn delete_all(&self, run: &RunKey) -> Result<(), Problem> {
        self.delete_bundles(run).await?;
        // Delete the name last: the sweep needs it while other data remains.
        self.delete_where(run, |below| below != "run").await?;
        self.sealed.store().delete(&run.name_record()).await?;
        self.named
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(run);
        Ok(())
    }

    /// Deletes records before blobs, so that a record never references a deleted blob.
    async fn delete_where(
        &self,
        run: &RunKey,
        chosen: impl Fn(&str) -> bool,
    ) -> Result<(), Problem> {
        let prefix = format!("{}/", run.prefix());
        let mut found: Vec<_> = self
            .sealed
            .store()
            .list(&run.prefix())
            .await?
            .into_iter()
            .map(|entry| entry.name)
            .collect();
        found.retain(|name| name.as_str().strip_prefix(&prefix).is_some_and(&chosen));
        let is_blob = |name: &Name| {
            name.as_str()
                .strip_prefix(&prefix)
                .is_some_and(|below| below.starts_with("blobs/"))
        };
        found.sort_by_key(is_blob);
        for name in found {
            self.sealed.store().delete(&name).await?;
        }
        Ok(())
    }
}

/// The error for a missing object.
pub fn none(attempt: u32, kind: ObjectKind) -> Problem {
    not_found(format!("attempt {attempt} has stored no {}", kind.as_str()))
}

fn existing(there: &Record, kind: ObjectKind, digest: &str) -> Result<(), Problem> {
    if there.stored.digest == digest {
        return Ok(());
    }
    Err(problem(
        ALREADY_EXISTS,
        format!(
            "another {} is stored: {}",
            kind.as_str(),
            there.stored.digest
        ),
    ))
}

/// The location of a write-once object.
struct Slot {
    /// Its record.
    name: Name,
    /// Its content, if large.
    blob: Name,
    /// Maximum size, in bytes.
    limit: u64,
}

/// Writes content once and returns the stored result. `is_same` compares with an existing record. `digest` is the
/// digest announced by the writer.
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
        // Drain the body: a client that is still sending would not read the response.
        while let Some(piece) = content.next().await {
            piece?;
        }
        return Ok((record.stored, Wrote::Same));
    }
    let written = sealed.write(content, limit, &blob).await?;
    let stored = Stored {
        digest: written.digest,
        size: written.size,
    };
    if stored.digest != digest {
        discard(sealed, written.blob.as_ref()).await;
        return Err(problem(
            WRONG_DIGEST,
            format!("the content is {}, not {digest}", stored.digest),
        ));
    }
    let inline = if written.blob.is_none() {
        written.head
    } else {
        Bytes::new()
    };
    let record = Record {
        stored: stored.clone(),
        blob: written.blob.as_ref().map(|name| name.last().to_owned()),
        at: Timestamp::now(),
    };
    if sealed.create(&name, &record, &inline).await? {
        return Ok((stored, Wrote::Created));
    }
    let (there, _) = sealed
        .read::<Record>(&name)
        .await?
        .ok_or_else(|| not_found("it was deleted meanwhile"))?;
    // After a lost response and a retry, the record may be this one.
    if there.blob != record.blob {
        discard(sealed, written.blob.as_ref()).await;
    }
    is_same(&there)?;
    Ok((there.stored, Wrote::Same))
}

async fn discard(sealed: &Sealed, blob: Option<&Name>) {
    if let Some(blob) = blob {
        // The sweep deletes it if this fails.
        let _ = sealed.store().delete(blob).await;
    }
}

/// Deletes blobs older than `age` that no record references, and returns their number. `record` gives the record of a
/// blob by the last segment of its name, so most are decided without a read.
///
/// # Errors
/// `Unavailable`, `Corrupt`, `KeyMissing`; some may be deleted.
pub async fn prune(
    sealed: &Sealed,
    blobs: &Name,
    age: Duration,
    record: impl Fn(&str) -> Option<Name>,
) -> Result<usize, Problem> {
    let mut deleted = 0;
    for entry in sealed
        .store()
        .list(blobs)
        .await?
        .into_iter()
        .filter(|entry| entry.is_older(age))
    {
        let Some(name) = record(entry.name.last()) else {
            continue;
        };
        let record = sealed.read::<Record>(&name).await?;
        if record.is_none_or(|(record, _)| record.blob.as_deref() != Some(entry.name.last())) {
            sealed.store().delete(&entry.name).await?;
            deleted += 1;
        }
    }
    Ok(deleted)
}

/// Reads a write-once object; `None` when it does not exist.
async fn read_once(sealed: &Sealed, name: &Name, blobs: &Name) -> Result<Option<Object>, Problem> {
    let Some((record, inline)) = sealed.read::<Record>(name).await? else {
        return Ok(None);
    };
    let content = match &record.blob {
        Some(blob) => {
            sealed
                .open(&names::below(blobs, blob), record.stored.size)
                .await?
        }
        None if inline.len() as u64 == record.stored.size => {
            futures::stream::once(async { Ok(inline) }).boxed()
        }
        None => {
            return Err(corrupt(format!(
                "{name} does not have the size that it records"
            )));
        }
    };
    Ok(Some(Object {
        stored: record.stored,
        content,
    }))
}
