//! Decisions on a run: plain values, so that they can be tested without a cluster.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::{events::Note, runner_pod::status::PodView, slots::Class};
use crds::{Operation, RunResult};

/// The kind of a status write. It determines whether a live read is needed, and which metric counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Makes the run Pending without an attempt.
    Begin,
    /// Opens an attempt.
    Open,
    /// Tells why an attempt that no pod has adopted does not start, or that it goes on.
    Start,
    /// Closes an attempt, and the run may go on or have ended already.
    Close,
    /// Ends the run, and closes its attempt when one is open.
    End,
    /// Records or removes an approval.
    Approval,
    /// Conditions only.
    Conditions,
    /// Names the wait for a claimed attempt's pod that is gone.
    Gone,
    /// Names the run that answers a rerun or a recovery.
    Rerun,
    /// Accounts for the objects of an apply whose agent could not.
    Journal,
    /// Records how an Indeterminate run ended after all.
    Settled,
    /// Records or returns the lease on a state, or tells which run has it.
    Lease,
    /// Permits that a lock is released.
    Lock,
}

/// One write of the status: a merge patch with the run's resourceVersion, or with tests of fields where the run is contended.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    pub kind: Kind,
    /// The patch of `status`.
    pub status: Map<String, Value>,
    /// Events to publish when it succeeded.
    pub notes: Vec<Note>,
    /// The run is finished for good with this write.
    pub finished: Option<(Operation, RunResult)>,
    /// It was drafted on a cached run, and lacks what only the whole one has.
    pub incomplete: bool,
}

/// An order to the executor. `W` is a status write: an outcome while it is decided, a [`Write`] for the executor.
#[derive(Clone, Debug, PartialEq)]
pub enum Action<W = Write> {
    /// Read the run: the decision depends on fields that the cache drops.
    Read,
    /// Add the run's finalizer, and probe the policies at the same time when that is needed next.
    AddFinalizer {
        /// Whether the policies are probed at the same time.
        prove: bool,
    },
    /// Prove that the admission policies are enforced.
    ProbePolicies,
    /// Ask the datastore how a claimed run ended, and for the account of its objects.
    AskDatastore,
    TakeLease {
        key: String,
    },
    TakeSlot {
        class: Class,
    },
    /// Ask whether the node of a pod that is gone has ended its processes.
    AskNodes,
    /// Release the lock that the run left on its managed state.
    ReleaseLock,
    /// Find the process that left the lock which the run waits for.
    AskLock,
    Write(W),
    /// Create account and pod of the open attempt, as far as they do not exist.
    CreatePod,
    /// Delete a pod, which then ends within its grace.
    DeletePod {
        name: String,
        /// Its UID, a precondition.
        uid: String,
    },
    /// Delete ServiceAccount, Role and RoleBinding of an attempt.
    DeleteAccount {
        name: String,
    },
    /// Remove our finalizer from a pod.
    ReleasePod {
        name: String,
        /// Its UID, a precondition.
        uid: String,
    },
    /// Delete everything that carries the run's UID.
    Cleanup,
    RemoveFinalizer,
    /// Create the run that answers `pawl.run/rerun=true`.
    CreateRerun,
    /// Create the run that answers `pawl.run/recover=true`.
    CreateRecovery,
    /// Take off annotations that were answered or refused.
    TakeOff(&'static [&'static str]),
    Prune,
}

impl<W> Action<W> {
    pub(super) fn delete(pod: &PodView) -> Self {
        Self::DeletePod { name: pod.name.clone(), uid: pod.uid.clone() }
    }

    /// The same order with the write in another form; `None` where that form has nothing to write.
    fn map<V>(self, write: impl FnOnce(W) -> Option<V>) -> Option<Action<V>> {
        Some(match self {
            Self::Write(this) => Action::Write(write(this)?),
            Self::Read => Action::Read,
            Self::AddFinalizer { prove } => Action::AddFinalizer { prove },
            Self::ProbePolicies => Action::ProbePolicies,
            Self::AskDatastore => Action::AskDatastore,
            Self::TakeLease { key } => Action::TakeLease { key },
            Self::TakeSlot { class } => Action::TakeSlot { class },
            Self::AskNodes => Action::AskNodes,
            Self::ReleaseLock => Action::ReleaseLock,
            Self::AskLock => Action::AskLock,
            Self::CreatePod => Action::CreatePod,
            Self::DeletePod { name, uid } => Action::DeletePod { name, uid },
            Self::DeleteAccount { name } => Action::DeleteAccount { name },
            Self::ReleasePod { name, uid } => Action::ReleasePod { name, uid },
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
    /// Whether the decision has to be made on a live read. The others hold for good once they were true, or their
    /// precondition says that nothing has changed since the cached read.
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

/// The orders to carry out now, and when to reconcile again though nothing changes.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision<W = Write> {
    /// In this order; an error ends the sequence.
    pub actions: Vec<Action<W>>,
    pub requeue: Option<Duration>,
}

impl<W> Decision<W> {
    /// Nothing to do until something changes.
    pub fn wait() -> Self {
        Self::all(Vec::new())
    }

    /// Nothing to do before that time.
    pub fn until(at: Timestamp, now: Timestamp) -> Self {
        // A little late rather than a little early, when nothing could be done yet.
        let millis = at.as_millisecond().saturating_sub(now.as_millisecond()).max(0);
        Self { actions: Vec::new(), requeue: Some(Duration::from_millis(millis.unsigned_abs() + 20)) }
    }

    pub fn act(action: Action<W>) -> Self {
        Self::all(vec![action])
    }

    pub fn write(write: W) -> Self {
        Self::act(Action::Write(write))
    }

    pub fn all(actions: Vec<Action<W>>) -> Self {
        Self { actions, requeue: None }
    }

    /// The same decision with each write in another form.
    pub(super) fn map<V>(self, write: impl Fn(W) -> Option<V>) -> Decision<V> {
        Decision { actions: self.actions.into_iter().filter_map(|action| action.map(&write)).collect(), requeue: self.requeue }
    }
}

impl Decision {
    /// Whether any of the actions has to be decided on a live read.
    pub fn needs_live(&self) -> bool {
        self.actions.iter().any(Action::needs_live)
    }
}
