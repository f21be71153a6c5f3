//! In-memory notes on active runs.

use jiff::Timestamp;

use crds::Journal;

use super::timing::{CREATION_LAG, after};
use crate::{cluster::freeze::Frozen, runner_pod::status::Trouble, slots::Full};

/// Notes on one run. Losing them costs time or a request, never safety.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Notes {
    /// When a cancel, deny or deletion was first observed.
    pub asked_at: Option<Timestamp>,
    /// The API server's last refusal of the pod.
    pub refused: Option<PodRejection>,
    /// The pod that this process created last, with all that gives it its rights.
    pub created: Option<Created>,
    /// The resourceVersion after this process's last write.
    pub version: u64,
    /// Consecutive errors.
    pub errors: u32,
    /// When the datastore was asked how a claimed run ended.
    pub datastore_asked: Option<DatastoreAsked>,
    /// The journal from the datastore, and whether the run was settled when it was read.
    pub journal: Option<(bool, Box<Journal>)>,
    /// Why the revision of the run's repository cannot be had yet.
    pub source: Option<SourceWait>,
    /// Why the lease on the state could not be taken.
    pub waits: Option<LeaseWait>,
    /// When the nodes were asked, and which could not answer.
    pub nodes_asked: Option<(Timestamp, String)>,
    /// When and why the release of the lock on the managed state failed.
    pub unlock_failed: Option<(Timestamp, String)>,
    /// The node of the pod that was observed last: its attempt, and the name.
    pub node: Option<(u32, String)>,
    /// The attempt whose node was written. An older CRD drops that field; without this note the controller would write it again and again.
    pub node_told: Option<u32>,
    /// The lock whose holder was looked up, and when.
    pub lock_asked: Option<(String, Timestamp)>,
}

/// A pod that this process created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    pub attempt: u32,
    pub uid: String,
    pub at: Timestamp,
}

/// Consecutive questions to the datastore without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatastoreAsked {
    pub times: u32,
    pub next_at: Timestamp,
}

/// A refusal of the pod's creation.
#[derive(Clone, Debug, PartialEq)]
pub struct PodRejection {
    pub attempt: u32,
    pub trouble: Trouble,
    pub times: u32,
    pub retry_at: Timestamp,
}

/// Why a run waits for the lease, and when it is tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseWait {
    /// The state key.
    pub key: String,
    pub why: WaitReason,
    pub retry_at: Timestamp,
}

/// Why the revision of a run's repository cannot be had yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceWait {
    pub why: WaitReason,
    /// The first answer in a row.
    pub since: Timestamp,
    pub times: u32,
    pub retry_at: Timestamp,
}

/// Why a run waits before its next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// Other runs are ahead on the state: the first of them, and the position in the queue.
    Turn {
        first: String,
        place: usize,
    },
    /// The Lease object could not be taken.
    Refused(String),
    Frozen(Frozen),
    SlotsFull(Full),
    /// The datastore has not the revision yet.
    Source(String),
    /// The datastore does not answer.
    Datastore(String),
}

impl Notes {
    /// Whether the attempt's pod was created within the creation lag, so that the cache may not show it yet.
    pub(super) fn just_created(&self, attempt: u32, now: Timestamp) -> bool {
        self.created.as_ref().is_some_and(|created| {
            created.attempt == attempt && now < after(created.at, CREATION_LAG)
        })
    }
}

/// Notes on active runs, by UID.
pub type Memory = crate::cluster::memory::Memory<Notes>;
