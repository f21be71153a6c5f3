//! Managed states. Each has one journal of numbered records, and the newest record says everything: who holds the lock, and
//! which versions there are. Whatever changes a state creates the next record, so that two writers cannot both be next: a write
//! under a lock and the taking of that lock are in one order, whichever replicas they come from.

pub mod handover;
pub mod lock;
pub mod serial;
pub mod versions;

use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crds::datastore::{FORMER_NAMESPACE, LOCKED, Problem, UNAVAILABLE};
use serving::problem::{corrupt, problem};

use crate::{
    blob::sealed::Sealed,
    names::{self, StateKey},
};

/// Versions that are kept.
pub const KEPT: usize = 64;
/// Notes that are kept.
const NOTES: usize = 16;
/// How old a record must be, in its store's time, before it may go: far older than any creation that is still under way.
const PRUNE_AGE: Duration = Duration::from_secs(3600);
/// The longest time between the reading of the newest record and the creation of the next.
const STALE: Duration = Duration::from_secs(600);
/// How often a creation that somebody else was ahead of is tried again.
const TRIES: u32 = 32;
/// Records at which the old ones are deleted.
const MANY: usize = 160;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Terraform's `ID` of the lock.
    pub id: String,
    /// Terraform's lock info, as the tool gave it.
    pub info: Value,
    /// Name of the run.
    pub run: String,
    /// Its UID.
    pub uid: String,
    pub attempt: u32,
    pub pod_uid: String,
    /// Since when.
    pub at: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Version {
    /// Counts from 1.
    pub number: u64,
    /// When it was written.
    pub at: Timestamp,
    /// Who wrote it: run and attempt, or a person.
    pub by: String,
    /// Why a person did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// `sha256:` and the hexadecimal digest of the content.
    pub digest: String,
    /// Bytes.
    pub size: u64,
    /// The tool's own number of the state, where it could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<u64>,
    /// The tool's id of all states that follow from one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<String>,
    #[serde(rename = "place")]
    pub(super) place: Place,
}

/// Where the content of a version stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Place {
    /// In the record of that number.
    Record(u64),
    /// In the blob of that name.
    Blob(String),
}

/// Something that people did, or that was done for them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    pub at: Timestamp,
    pub what: String,
    pub by: String,
    pub reason: String,
}

/// A record of the journal: all that is to be known of a state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// UID of the namespace that the state belongs to: names come again. None before the first lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_uid: Option<String>,
    #[serde(default)]
    pub lock: Option<Held>,
    /// The versions, oldest first; at most [`KEPT`].
    #[serde(default)]
    pub versions: Vec<Version>,
    /// At most 16.
    #[serde(default)]
    pub notes: Vec<Note>,
    /// Drawn for this record: how its writer knows it again.
    #[serde(default)]
    pub write: String,
}

impl Head {
    pub fn newest(&self) -> Option<&Version> {
        self.versions.last()
    }

    /// Adds a version and lets the oldest go.
    fn add(&mut self, version: Version) {
        self.versions.push(version);
        let over = self.versions.len().saturating_sub(KEPT);
        self.versions.drain(..over);
    }

    fn note(&mut self, note: Note) {
        self.notes.push(note);
        let over = self.notes.len().saturating_sub(NOTES);
        self.notes.drain(..over);
    }

    /// Whether the namespace of that UID may have the state: it is its own, or nobody's yet.
    ///
    /// # Errors
    /// `StateOfFormerNamespace`, with what a person may do.
    pub fn belongs_to(&self, key: &StateKey, namespace_uid: &str) -> Result<(), Problem> {
        if self.namespace_uid.as_deref().is_none_or(|uid| uid == namespace_uid) {
            return Ok(());
        }
        let (namespace, id) = (key.namespace(), key.id());
        Err(problem(
            FORMER_NAMESPACE,
            format!(
                "the state of stack {} and workspace {} belongs to an earlier namespace {namespace}, which was deleted; it was not \
                 read. Whoever has the role pawl-state-admin hands it over with a reason: POST \
                 /apis/read.pawl.run/v1alpha1/namespaces/{namespace}/states/{}/handover",
                id.stack, id.workspace, id.stack
            ),
        ))
    }

    /// The refusal that names the holder; `LOCKED` without one when nobody holds the lock.
    pub fn locked(&self) -> Problem {
        match &self.lock {
            None => problem(LOCKED, "nobody holds the lock of this state"),
            Some(held) => Problem {
                holder: Some(Box::new(held.info.clone())),
                ..problem(
                    LOCKED,
                    format!("run {} attempt {} holds the lock of this state since {}", held.run, held.attempt, held.at),
                )
            },
        }
    }
}

/// The newest record as it was read.
#[derive(Clone, Debug)]
pub struct Newest {
    /// Its number; 0 when there is none yet.
    pub number: u64,
    pub head: Head,
    read_at: Instant,
}

#[derive(Clone)]
pub struct States {
    sealed: Sealed,
}

impl States {
    pub fn new(sealed: Sealed) -> Self {
        Self { sealed }
    }

    /// Reads the newest record.
    ///
    /// # Errors
    /// `Unavailable`, `Corrupt`, `KeyMissing`.
    pub async fn newest(&self, key: &StateKey) -> Result<Newest, Problem> {
        let read_at = Instant::now();
        // The newest is never deleted; but what was newest when it was listed may be old when it is read.
        for _ in 0..TRIES {
            let (_, words) = self.sealed.store().children(&key.journal()).await?;
            let Some(number) = words.iter().filter_map(|word| number(word)).max() else {
                return Ok(Newest { number: 0, head: Head::default(), read_at });
            };
            if let Some((head, _)) = self.sealed.read::<Head>(&key.entry(number)).await? {
                return Ok(Newest { number, head, read_at });
            }
        }
        Err(corrupt(format!("the journal of {} changes faster than it can be read", key.prefix())))
    }

    /// Creates the record behind `newest`; false when somebody else was ahead.
    ///
    /// # Errors
    /// `Unavailable`; it may have been created.
    async fn append(&self, key: &StateKey, newest: &Newest, mut head: Head, content: &Bytes) -> Result<bool, Problem> {
        head.write = names::random();
        let name = key.entry(newest.number + 1);
        let created = self.sealed.create(&name, &head, content).await?;
        // After a lost answer to a creation that was sent again, the record may be this one.
        let created = created || self.sealed.read::<Head>(&name).await?.is_some_and(|(there, _)| there.write == head.write);
        if created && newest.read_at.elapsed() > STALE {
            // Old numbers are deleted after an hour: this one may have been free because of that.
            return Err(problem(UNAVAILABLE, "it took so long that nobody can say whether it counts; read again"));
        }
        Ok(created)
    }

    /// Waits a little for those who were ahead.
    async fn back_off(attempt: u32) {
        let most = 5_u64 << attempt.min(5);
        tokio::time::sleep(Duration::from_millis(rand::random_range(1..=most))).await;
    }

    /// Deletes what no version and no reader needs any more.
    ///
    /// # Errors
    /// `Unavailable`, `Corrupt`, `KeyMissing`.
    pub async fn prune(&self, key: &StateKey, blob_age: Duration) -> Result<usize, Problem> {
        let store = self.sealed.store();
        // First the list, then the head: what is newer than the head is not touched.
        let entries = store.list(&key.journal()).await?;
        let blobs = store.list(&key.blobs()).await?;
        let newest = self.newest(key).await?;
        let versions = &newest.head.versions;
        let now = SystemTime::now();
        let older = |at: SystemTime, age: Duration| now.duration_since(at).is_ok_and(|passed| passed > age);
        let mut gone = Vec::new();
        for entry in &entries {
            let Some(number) = number(entry.name.last()) else { continue };
            let needed = number >= newest.number || versions.iter().any(|version| version.place == Place::Record(number));
            // Its successor must be old as well: until then somebody may be about to create that.
            let successor = entries.iter().find(|other| self::number(other.name.last()) == Some(number + 1));
            let settled = older(entry.modified, PRUNE_AGE) && successor.is_none_or(|next| older(next.modified, PRUNE_AGE));
            if !needed && settled {
                gone.push(&entry.name);
            }
        }
        for blob in &blobs {
            let needed = versions.iter().any(|v| matches!(&v.place, Place::Blob(name) if name == blob.name.last()));
            if !needed && older(blob.modified, blob_age) {
                gone.push(&blob.name);
            }
        }
        for name in &gone {
            store.delete(name).await?;
        }
        Ok(gone.len())
    }

    /// The states of a namespace.
    ///
    /// # Errors
    /// `Invalid`, `Unavailable`.
    pub async fn list(&self, namespace: &str) -> Result<Vec<StateKey>, Problem> {
        let (all, mut found) = (StateKey::all_of(namespace)?, Vec::new());
        let (stacks, _) = self.sealed.store().children(&all).await?;
        for stack in stacks {
            let (workspaces, _) = self.sealed.store().children(&names::below(&all, &stack)).await?;
            found.extend(workspaces.iter().filter_map(|directory| StateKey::listed(namespace, &stack, directory)));
        }
        Ok(found)
    }
}

fn number(word: &str) -> Option<u64> {
    word.parse().ok().filter(|_| word.len() == 12 && word.bytes().all(|b| b.is_ascii_digit()))
}
