//! Versions of a state: every write creates one; old ones can be read and restored.

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use jiff::Timestamp;

use crds::datastore::{MAX_STATE, Problem, WRONG_DIGEST};
use serving::problem::{corrupt, not_found, problem};

use crate::{
    blob::{
        sealed::{Content, Sealed},
        store::ByteStream,
    },
    names::{self, StateKey},
};

use super::{
    Head, Held, KEPT, MANY, Place, States, TRIES, Version,
    lock::{Holder, busy, name},
    serial,
};

/// The content of a write, until its version is in the journal or it is discarded.
#[derive(Debug)]
pub struct Written {
    content: Content,
    found: serial::Found,
}

impl States {
    /// Writes content without a version. The body may take long, so this happens before any decision.
    ///
    /// # Errors
    /// Those of the body; `TooLarge`, `WrongDigest`, `Unavailable`.
    pub async fn receive(
        &self,
        key: &StateKey,
        body: impl Stream<Item = Result<Bytes, Problem>>,
        digest: Option<&str>,
    ) -> Result<Written, Problem> {
        let content = self
            .sealed
            .write(body, MAX_STATE, &key.blob(&names::random()))
            .await?;
        let found = serial::scan(&content.head);
        let written = Written { content, found };
        match digest {
            Some(said) if said != written.content.digest => {
                let message = format!("the content is {}, not {said}", written.content.digest);
                self.give_up(written).await;
                Err(problem(WRONG_DIGEST, message))
            }
            _ => Ok(written),
        }
    }

    /// Deletes content that did not become a version.
    pub async fn give_up(&self, written: Written) {
        if let Some(blob) = written.content.blob {
            // The sweep deletes it if this fails.
            let _ = self.sealed.store().delete(&blob).await;
        }
    }

    /// Makes the received content the newest version, under the holder's lock. Repeating the newest version is
    /// acknowledged.
    ///
    /// # Errors
    /// `Locked` when the holder does not have the lock with this ID; `Unavailable`, in which case it may have become a
    /// version.
    pub async fn put(
        &self,
        key: &StateKey,
        holder: &Holder<'_>,
        id: &str,
        written: Written,
    ) -> Result<(), Problem> {
        for attempt in 0..TRIES {
            let newest = self.newest(key).await?;
            if !holder.holds(&newest.head, id) {
                self.give_up(written).await;
                return Err(newest.head.locked());
            }
            if newest
                .head
                .newest()
                .is_some_and(|version| version.digest == written.content.digest)
            {
                self.give_up(written).await;
                return Ok(());
            }
            let mut head = newest.head.clone();
            head.elsewhere = None;
            head.add(version(
                &newest.head,
                newest.number + 1,
                &written,
                name(holder),
                None,
            ));
            if self
                .append(key, &newest, head, inline(&written.content))
                .await?
            {
                self.prune_sometimes(key, newest.number);
                return Ok(());
            }
            Self::back_off(attempt).await;
        }
        self.give_up(written).await;
        Err(busy())
    }

    /// Reads a version, the newest without a number; `None` before the first version.
    ///
    /// # Errors
    /// `NotFound` for an unknown number; `Unavailable`, `Corrupt`, `KeyMissing`.
    pub async fn get(
        &self,
        key: &StateKey,
        number: Option<u64>,
    ) -> Result<Option<(Version, ByteStream)>, Problem> {
        self.get_from(key, number, None).await
    }

    /// Reads a version from the given head, or from the newest head if that one is outdated.
    pub(super) async fn get_from(
        &self,
        key: &StateKey,
        number: Option<u64>,
        mut known: Option<Head>,
    ) -> Result<Option<(Version, ByteStream)>, Problem> {
        // The blob may be deleted before it is read, when another writer creates 64 versions meanwhile.
        let mut last = None;
        for _ in 0..3 {
            let head = match known.take() {
                Some(head) => head,
                None => self.newest(key).await?.head,
            };
            let version = match number {
                None => head.versions.last(),
                Some(number) => head
                    .versions
                    .iter()
                    .find(|version| version.number == number),
            };
            let Some(version) = version else {
                return number.map_or(Ok(None), |n| {
                    Err(not_found(format!(
                        "there is no version {n}; the last {KEPT} are kept"
                    )))
                });
            };
            match content(&self.sealed, key, version).await {
                Ok(content) => return Ok(Some((version.clone(), content))),
                Err(problem) => last = Some(problem),
            }
        }
        Err(last.unwrap_or_else(busy))
    }

    /// Makes an old version the newest, on a person's request. Its serial exceeds all others, so that the tool accepts
    /// it as new.
    ///
    /// # Errors
    /// `Locked` when the lock is held; `NotFound`, `Unavailable`, `Corrupt`, `KeyMissing`.
    pub async fn restore(
        &self,
        key: &StateKey,
        number: u64,
        user: &str,
        reason: &str,
    ) -> Result<Version, Problem> {
        let newest = self.newest(key).await?;
        if newest.head.lock.is_some() {
            return Err(newest.head.locked());
        }
        let (old, content) = self
            .get(key, Some(number))
            .await?
            .ok_or_else(|| not_found("there is no such version"))?;
        let above = newest
            .head
            .versions
            .iter()
            .filter_map(|version| version.serial)
            .max()
            .map_or(1, |serial| serial + 1);
        let body = with_serial(content, above).await?;
        let written = self.receive(key, body, None).await?;
        for attempt in 0..TRIES {
            let now = self.newest(key).await?;
            // If another version was written meanwhile, `above` does not count its serial, and the restored version would hide it.
            if now.head.lock.is_some() || now.head.newest() != newest.head.newest() {
                self.give_up(written).await;
                return Err(if now.head.lock.is_some() {
                    now.head.locked()
                } else {
                    busy()
                });
            }
            let mut head = now.head.clone();
            let version = version(
                &now.head,
                now.number + 1,
                &written,
                user.to_owned(),
                Some(reason.to_owned()),
            );
            head.add(version.clone());
            let what = format!(
                "version {} restored as version {}",
                old.number, version.number
            );
            head.note(what, user.to_owned(), reason.to_owned());
            if self
                .append(key, &now, head, inline(&written.content))
                .await?
            {
                return Ok(version);
            }
            Self::back_off(attempt).await;
        }
        self.give_up(written).await;
        Err(busy())
    }

    /// The current holder of the lock.
    ///
    /// # Errors
    /// `Unavailable`, `Corrupt`, `KeyMissing`.
    pub async fn holder(&self, key: &StateKey) -> Result<Option<Held>, Problem> {
        Ok(self.newest(key).await?.head.lock)
    }

    fn prune_sometimes(&self, key: &StateKey, number: u64) {
        if !number.is_multiple_of(MANY as u64) {
            return;
        }
        let (states, key) = (self.clone(), key.clone());
        tokio::spawn(async move {
            // The sweep repeats it.
            let _ = states
                .prune(&key, std::time::Duration::from_secs(86_400))
                .await;
        });
    }
}

/// Replaces the serial in the first bytes; the rest is unchanged.
async fn with_serial(mut content: ByteStream, serial: u64) -> Result<ByteStream, Problem> {
    let mut head = Vec::new();
    while head.len() < crate::blob::sealed::INLINE {
        match content.next().await {
            Some(piece) => head.extend_from_slice(&piece?),
            None => break,
        }
    }
    if let Some((_, digits)) = serial::scan(&head).serial {
        head.splice(digits, serial.to_string().into_bytes());
    }
    Ok(futures::stream::once(async { Ok(Bytes::from(head)) })
        .chain(content)
        .boxed())
}

fn inline(content: &Content) -> &Bytes {
    static NOTHING: Bytes = Bytes::new();
    if content.blob.is_none() {
        &content.head
    } else {
        &NOTHING
    }
}

fn version(
    head: &Head,
    record: u64,
    written: &Written,
    by: String,
    reason: Option<String>,
) -> Version {
    Version {
        number: head.newest().map_or(1, |version| version.number + 1),
        at: Timestamp::now(),
        by,
        reason,
        digest: written.content.digest.clone(),
        size: written.content.size,
        serial: written.found.serial.as_ref().map(|(serial, _)| *serial),
        lineage: written.found.lineage.clone(),
        place: match &written.content.blob {
            None => Place::Record(record),
            Some(blob) => Place::Blob(blob.last().to_owned()),
        },
    }
}

async fn content(
    sealed: &Sealed,
    key: &StateKey,
    version: &Version,
) -> Result<ByteStream, Problem> {
    match &version.place {
        Place::Blob(blob) => {
            sealed
                .open(&names::below(&key.blobs(), blob), version.size)
                .await
        }
        Place::Record(number) => {
            let name = key.entry(*number);
            let gone = || {
                corrupt(format!(
                    "{name} is named by a later record and is not there"
                ))
            };
            let (_, content) = sealed.read::<Head>(&name).await?.ok_or_else(gone)?;
            if content.len() as u64 != version.size {
                return Err(corrupt(format!(
                    "{name} does not have the size in a later record"
                )));
            }
            Ok(futures::stream::once(async { Ok(content) }).boxed())
        }
    }
}
