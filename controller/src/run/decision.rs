//! Decisions on a run: plain values, so tests need no cluster.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::{events::Note, runner_pod::status::PodView, slots::Class};
use crds::{Operation, RunResult};

/// The kind of a status write. It determines whether a live read is needed and which metric counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Makes the run Pending without an attempt.
    Begin,
    /// Opens an attempt.
    Open,
    /// Reports why an unadopted attempt does not start, or that it starts after all.
    Start,
    /// Closes an attempt. The run continues or has ended already.
    Close,
    /// Ends the run, and closes its attempt if one is open.
    End,
    /// Records or removes an approval.
    Approval,
    /// Conditions only.
    Conditions,
    /// Starts the wait for the vanished pod of a claimed attempt.
    Gone,
    /// Names the run that answers a rerun or a recovery.
    Rerun,
    /// Accounts for the objects of an apply whose agent could not.
    Journal,
    /// Records how an Indeterminate run ended, once proven.
    Settled,
    /// Records or returns the lease on a state, or names the run that holds it.
    Lease,
    /// Permits the release of a lock.
    Lock,
}

/// One write of the status: a merge patch with the run's resourceVersion, or with tests of fields if the run is contended.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    pub kind: Kind,
    /// The patch of `status`.
    pub status: Map<String, Value>,
    /// Events to publish after the write succeeded.
    pub notes: Vec<Note>,
    /// The result, if this write finishes the run.
    pub finished: Option<(Operation, RunResult)>,
    /// Drafted on a cached run that lacks fields the write needs.
    pub incomplete: bool,
}

/// A command for the executor. `W` is a status write: an outcome during the decision, a [`Write`] for the executor.
#[derive(Clone, Debug, PartialEq)]
pub enum Action<W = Write> {
    /// Read the run live: the decision depends on fields that the cache drops.
    Read,
    /// Add the run's finalizer, and probe the policies at the same time if the next step needs it.
    AddFinalizer {
        prove: bool,
    },
    /// Prove that the admission policies are enforced.
    ProbePolicies,
    /// Ask the datastore how a claimed run ended, and for the account of its objects.
    AskDatastore,
    /// Ask the datastore for the revision of the run's repository.
    AskSource,
    TakeLease {
        key: String,
    },
    TakeSlot {
        class: Class,
    },
    /// Ask whether the node of a vanished pod has ended the pod's processes.
    AskNodes,
    /// Release the lock that the run left on its managed state.
    ReleaseLock,
    /// Find the process that left the lock which blocks the run.
    AskLock,
    Write(W),
    /// Create account and pod of the open attempt, as far as they do not exist.
    CreatePod,
    /// Delete a pod, which then ends within its grace period.
    DeletePod {
        name: String,
        /// Its UID, a precondition.
        uid: String,
    },
    /// Delete ServiceAccount, Role and RoleBinding of an attempt.
    DeleteAccount {
        name: String,
    },
    /// Remove Pawl's finalizer from a pod.
    ReleasePod {
        name: String,
        /// Its UID, a precondition.
        uid: String,
        /// Delete it as soon as its log is stored: it still has its requests.
        lingers: bool,
    },
    /// Delete all objects that carry the run's UID.
    Cleanup,
    RemoveFinalizer,
    /// Create the run that answers `pawl.run/rerun=true`.
    CreateRerun,
    /// Create the run that answers `pawl.run/recover=true`.
    CreateRecovery,
    /// Remove annotations that were answered or refused.
    TakeOff(&'static [&'static str]),
    Prune,
}

impl<W> Action<W> {
    pub(super) fn delete(pod: &PodView) -> Self {
        Self::DeletePod {
            name: pod.name.clone(),
            uid: pod.uid.clone(),
        }
    }

    /// The same command with the write converted; `None` if there is nothing to write.
    fn map<V>(self, write: impl FnOnce(W) -> Option<V>) -> Option<Action<V>> {
        Some(match self {
            Self::Write(this) => Action::Write(write(this)?),
            Self::Read => Action::Read,
            Self::AddFinalizer { prove } => Action::AddFinalizer { prove },
            Self::ProbePolicies => Action::ProbePolicies,
            Self::AskDatastore => Action::AskDatastore,
            Self::AskSource => Action::AskSource,
            Self::TakeLease { key } => Action::TakeLease { key },
            Self::TakeSlot { class } => Action::TakeSlot { class },
            Self::AskNodes => Action::AskNodes,
            Self::ReleaseLock => Action::ReleaseLock,
            Self::AskLock => Action::AskLock,
            Self::CreatePod => Action::CreatePod,
            Self::DeletePod { name, uid } => Action::DeletePod { name, uid },
            Self::DeleteAccount { name } => Action::DeleteAccount { name },
            Self::ReleasePod { name, uid, lingers } => Action::ReleasePod { name, uid, lingers },
            Self::Cleanup => Action::Cleanup,
            Self::RemoveFinalizer => Action::RemoveFinalizer,
            Self::CreateRerun => Action::CreateRerun,
            Self::CreateRecovery => Action::CreateRecovery,
            Self::TakeOff(keys) => Action::TakeOff(keys),
            Self::Prune => Action::Prune,
        })
    }
}

impl Action {
    /// Whether the decision needs a live read. The other actions rely on facts that never become false again, or have a precondition that
    /// fails if a fact has changed since the cached read.
    pub const fn needs_live(&self) -> bool {
        match self {
            Self::Write(write) => match write.kind {
                Kind::Begin
                | Kind::Open
                | Kind::Start
                | Kind::Close
                | Kind::End
                | Kind::Gone
                | Kind::Rerun
                | Kind::Journal
                | Kind::Settled
                | Kind::Lease
                | Kind::Lock => true,
                Kind::Approval | Kind::Conditions => write.incomplete,
            },
            Self::Read
            | Self::CreatePod
            | Self::DeletePod { .. }
            | Self::CreateRerun
            | Self::CreateRecovery
            | Self::AskDatastore
            | Self::AskSource
            | Self::TakeLease { .. }
            | Self::TakeSlot { .. }
            | Self::AskNodes
            | Self::ReleaseLock
            | Self::AskLock
            | Self::TakeOff(_) => true,
            Self::AddFinalizer { .. }
            | Self::ProbePolicies
            | Self::DeleteAccount { .. }
            | Self::ReleasePod { .. }
            | Self::Cleanup
            | Self::RemoveFinalizer
            | Self::Prune => false,
        }
    }
}

/// The actions to execute now, and when to reconcile again without an event.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision<W = Write> {
    /// In order; an error ends the sequence.
    pub actions: Vec<Action<W>>,
    pub requeue: Option<Duration>,
}

impl<W> Decision<W> {
    /// Nothing to do until an event.
    pub fn wait() -> Self {
        Self::all(Vec::new())
    }

    /// Nothing to do before that time.
    pub fn until(at: Timestamp, now: Timestamp) -> Self {
        // A little late rather than early, when nothing could be done yet.
        let millis = at
            .as_millisecond()
            .saturating_sub(now.as_millisecond())
            .max(0);
        Self {
            actions: Vec::new(),
            requeue: Some(Duration::from_millis(millis.unsigned_abs() + 20)),
        }
    }

    pub fn act(action: Action<W>) -> Self {
        Self::all(vec![action])
    }

    pub fn write(write: W) -> Self {
        Self::act(Action::Write(write))
    }

    pub fn all(actions: Vec<Action<W>>) -> Self {
        Self {
            actions,
            requeue: None,
        }
    }

    /// The same decision with each write converted.
    pub(super) fn map<V>(self, write: impl Fn(W) -> Option<V>) -> Decision<V> {
        Decision {
            actions: self
                .actions
                .into_iter()
                .filter_map(|action| action.map(&write))
                .collect(),
            requeue: self.requeue,
        }
    }
}

impl Decision {
    /// Whether any of the actions needs a live read.
    pub fn needs_live(&self) -> bool {
        self.actions.iter().any(Action::needs_live)
    }
}
