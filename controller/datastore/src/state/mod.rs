//! Managed states. Each has a journal of numbered records, and the newest record is complete: it has the lock's holder and the list of
//! versions. Every change creates the next record with create-if-absent, so only one of several concurrent writers succeeds. So all
//! replicas see writes under a lock, and changes of that lock's holder, in one order.

pub mod last;
pub mod lock;
pub mod ownership;
pub mod serial;
pub mod versions;

use std::{
    ops::ControlFlow,
    time::{Duration, Instant, SystemTime},
};

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crds::datastore::{FORMER_NAMESPACE, LOCKED, LastState, Problem, UNAVAILABLE};
use serving::problem::{corrupt, problem};

use crate::{
    blob::sealed::Sealed,
    names::{self, StateKey},
};

/// Number of retained versions.
pub const KEPT: usize = 64;
/// Number of retained notes.
const NOTES: usize = 16;
/// Minimum age of a record before its deletion, by the store's clock: far older than any creation in progress.
const PRUNE_AGE: Duration = Duration::from_secs(3600);
/// Maximum time between reading the newest record and creating the next.
const STALE: Duration = Duration::from_secs(600);
/// Maximum tries of a creation that conflicts.
const TRIES: u32 = 32;
/// Number of records at which old ones are deleted.
const MANY: usize = 160;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Terraform's `ID` of the lock.
    pub id: String,
    /// Terraform's lock info, as the tool sent it.
    pub info: Value,
    /// Name of the run.
    pub run: String,
    /// Its UID.
    pub uid: String,
    pub attempt: u32,
    pub pod_uid: String,
    /// When the lock was taken.
    pub at: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Version {
    /// Number, from 1.
    pub number: u64,
    /// When it was written.
    pub at: Timestamp,
    /// The author: run and attempt, or a person.
    pub by: String,
    /// A person's reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// `sha256:` and the hexadecimal digest of the content.
    pub digest: String,
    /// In bytes.
    pub size: u64,
    /// The tool's serial number of the state, if it could be parsed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<u64>,
    /// The tool's lineage: the id shared by all versions of one state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<String>,
    #[serde(rename = "place")]
    pub(super) place: Place,
}

/// The location of a version's content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Place {
    /// In the record with this number.
    Record(u64),
    /// In the blob with this name.
    Blob(String),
}

/// An action of people, or on their behalf.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    pub at: Timestamp,
    pub what: String,
    pub by: String,
    pub reason: String,
}

/// A record of the journal: the complete metadata of a state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// UID of the owning namespace, because names are reused. `None` before the first lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_uid: Option<String>,
    pub lock: Option<Held>,
    /// The versions, oldest first; at most [`KEPT`].
    pub versions: Vec<Version>,
    /// At most 16.
    pub notes: Vec<Note>,
    /// The state of the last apply, if it is not here but in a backend of the code or run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elsewhere: Option<LastState>,
    /// Random value by which the writer recognizes its own record.
    pub write: String,
}

impl Head {
    pub fn newest(&self) -> Option<&Version> {
        self.versions.last()
    }

    /// Adds a version and drops the oldest beyond the limit.
    fn add(&mut self, version: Version) {
        self.versions.push(version);
        let over = self.versions.len().saturating_sub(KEPT);
        self.versions.drain(..over);
    }

    fn note(&mut self, what: String, by: String, reason: String) {
        self.notes.push(Note {
            at: Timestamp::now(),
            what,
            by,
            reason,
        });
        let over = self.notes.len().saturating_sub(NOTES);
        self.notes.drain(..over);
    }

    /// Whether the namespace with this UID may use the state: it owns it, or the state has no owner yet.
    ///
    /// # Errors
    /// `StateOfFormerNamespace`, with the possible actions of a person.
    pub fn belongs_to(&self, key: &StateKey, namespace_uid: &str) -> Result<(), Problem> {
        if self
            .namespace_uid
            .as_deref()
            .is_none_or(|uid| uid == namespace_uid)
        {
            return Ok(());
        }
        let (namespace, id) = (key.namespace(), key.id());
        Err(problem(
            FORMER_NAMESPACE,
            format!(
                "the state of stack {} and workspace {} belongs to an earlier namespace {namespace}, which was deleted; it was not \
                 read. A person with the role pawl-state-admin can hand it over with a reason: POST \
                 /apis/read.pawl.run/v1alpha1/namespaces/{namespace}/states/{}/handover",
                id.stack, id.workspace, id.stack
            ),
        ))
    }

    /// The `LOCKED` error, with the holder's info if the lock is held.
    pub fn locked(&self) -> Problem {
        match &self.lock {
            None => problem(LOCKED, "the lock of this state is not held"),
            Some(held) => Problem {
                holder: Some(Box::new(held.info.clone())),
                ..problem(
                    LOCKED,
                    format!(
                        "run {} attempt {} holds the lock of this state since {}",
                        held.run, held.attempt, held.at
                    ),
                )
            },
        }
    }
}

/// The newest record, as read.
#[derive(Clone, Debug)]
pub struct Newest {
    /// Its number; 0 when there is none.
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
        // The newest record is never deleted. But the newest record of the list may have been replaced and deleted before it is read.
        for _ in 0..TRIES {
            let (_, words) = self.sealed.store().children(&key.journal()).await?;
            let Some(number) = words.iter().filter_map(|word| number(word)).max() else {
                return Ok(Newest {
                    number: 0,
                    head: Head::default(),
                    read_at,
                });
            };
            if let Some((head, _)) = self.sealed.read::<Head>(&key.entry(number)).await? {
                return Ok(Newest {
                    number,
                    head,
                    read_at,
                });
            }
        }
        Err(corrupt(format!(
            "the journal of {} changes faster than it can be read",
            key.prefix()
        )))
    }

    /// Creates the record after `newest`; false on a conflict.
    ///
    /// # Errors
    /// `Unavailable`; it may have been created.
    async fn append(
        &self,
        key: &StateKey,
        newest: &Newest,
        mut head: Head,
        content: &Bytes,
    ) -> Result<bool, Problem> {
        head.write = names::random();
        let name = key.entry(newest.number + 1);
        let created = self.sealed.create(&name, &head, content).await?;
        // After a lost response and a retry, the record may be this one.
        let created = created
            || self
                .sealed
                .read::<Head>(&name)
                .await?
                .is_some_and(|(there, _)| there.write == head.write);
        if created && newest.read_at.elapsed() > STALE {
            // Old numbers are deleted after one hour, so the number may have been free for that reason.
            return Err(problem(
                UNAVAILABLE,
                "the write took too long and its outcome is unknown; read again",
            ));
        }
        Ok(created)
    }

    /// Changes the newest record, again when another writer was first. `Break` is an answer without a change.
    async fn change<T>(
        &self,
        key: &StateKey,
        change: impl Fn(&mut Head) -> Result<ControlFlow<T, T>, Problem>,
    ) -> Result<T, Problem> {
        for attempt in 0..TRIES {
            let newest = self.newest(key).await?;
            let mut head = newest.head.clone();
            match change(&mut head)? {
                ControlFlow::Break(answer) => return Ok(answer),
                ControlFlow::Continue(answer)
                    if self.append(key, &newest, head, &Bytes::new()).await? =>
                {
                    return Ok(answer);
                }
                ControlFlow::Continue(_) => Self::back_off(attempt).await,
            }
        }
        Err(lock::busy())
    }

    /// Waits a short random time after a conflict.
    async fn back_off(attempt: u32) {
        let most = 5_u64 << attempt.min(5);
        tokio::time::sleep(Duration::from_millis(rand::random_range(1..=most))).await;
    }

    /// Deletes records and blobs that neither a version nor a reader needs.
    ///
    /// # Errors
    /// `Unavailable`, `Corrupt`, `KeyMissing`.
    pub async fn prune(&self, key: &StateKey, blob_age: Duration) -> Result<usize, Problem> {
        let store = self.sealed.store();
        // List first, then read the head: objects newer than the head are not touched.
        let entries = store.list(&key.journal()).await?;
        let blobs = store.list(&key.blobs()).await?;
        let newest = self.newest(key).await?;
        let versions = &newest.head.versions;
        let now = SystemTime::now();
        let older =
            |at: SystemTime, age: Duration| now.duration_since(at).is_ok_and(|passed| passed > age);
        let mut gone = Vec::new();
        for entry in &entries {
            let Some(number) = number(entry.name.last()) else {
                continue;
            };
            let needed = number >= newest.number
                || versions
                    .iter()
                    .any(|version| version.place == Place::Record(number));
            // The successor must be old as well: otherwise its creation may be in progress.
            let successor = entries
                .iter()
                .find(|other| self::number(other.name.last()) == Some(number + 1));
            let settled = older(entry.modified, PRUNE_AGE)
                && successor.is_none_or(|next| older(next.modified, PRUNE_AGE));
            if !needed && settled {
                gone.push(&entry.name);
            }
        }
        for blob in &blobs {
            let needed = versions
                .iter()
                .any(|v| matches!(&v.place, Place::Blob(name) if name == blob.name.last()));
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
            let (workspaces, _) = self
                .sealed
                .store()
                .children(&names::below(&all, &stack))
                .await?;
            found.extend(
                workspaces
                    .iter()
                    .filter_map(|directory| StateKey::listed(namespace, &stack, directory)),
            );
        }
        Ok(found)
    }
}

fn number(word: &str) -> Option<u64> {
    word.parse()
        .ok()
        .filter(|_| word.len() == 12 && word.bytes().all(|b| b.is_ascii_digit()))
}
