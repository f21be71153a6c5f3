//! What is observed of a run, and what may be decided on it: plain values, so that decisions can be tested without a cluster.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::{
    lease::{Nodes, Waits},
    locks::Left,
};
use crate::{
    cluster::nodes::NodeState,
    state_queue::{applied::Applied, queue::Ahead},
};
pub use crate::{
    events::Note,
    policies::Gate,
    runner_pod::status::{Ended, PodView, Trouble},
};
use crds::{Journal, Operation, RunResult, TerraformRun, TerraformRunStatus, termination::TerminationMessage};

/// Everything a decision is made of, the clock and the settings apart.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The run.
    pub run: Arc<TerraformRun>,
    /// Whether the run was read from the API server just now, not from the cache.
    pub run_live: bool,
    /// The pod of its newest attempt.
    pub pod: PodState,
    /// Whether the pod was asked of the API server just now.
    pub pod_live: bool,
    /// Whether the admission policies were proven to stand.
    pub gate: Gate,
    /// Whether the proof was compared with the policies as they stand after the run was read.
    pub gate_live: bool,
    /// What this process remembers of the run.
    pub notes: Notes,
    /// The newest of the newer runs of the same workspace that have made their plan.
    pub newer: Option<String>,
    /// What another run applied to the state of its plan since that was made.
    pub applied: Option<Applied>,
    /// What the datastore has of the end of a claimed run.
    pub proof: Proof,
    /// The state whose lease was taken for the run as it is here, and the name of that Lease.
    pub taken: Option<(String, String)>,
    /// Who comes before it, when it wants a lease.
    pub ahead: Option<Ahead>,
    /// The node of that pod.
    pub node: NodeState,
    /// What the nodes say of a pod that is gone.
    pub nodes: Nodes,
    /// The lock that a run which is Indeterminate left on its managed state was released.
    pub unlocked: bool,
    /// Whose lock keeps it waiting.
    pub left: Left,
}

/// What the datastore has of the end of a claimed run.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Proof {
    /// Nobody has asked yet.
    #[default]
    Unknown,
    /// Nothing, or it did not answer.
    Absent,
    /// This; still to be compared with the claim.
    Found(Box<TerminationMessage>),
}

impl Observed {
    /// The status, empty when there is none yet.
    pub fn status(&self) -> &TerraformRunStatus {
        static EMPTY: std::sync::LazyLock<TerraformRunStatus> = std::sync::LazyLock::new(TerraformRunStatus::default);
        self.run.status.as_ref().unwrap_or(&EMPTY)
    }

    /// Whether run and pod were read just now. Without an open attempt no pod matters.
    pub fn is_live(&self) -> bool {
        let open = self.status().attempt.as_ref().is_some_and(|attempt| attempt.open);
        self.run_live && (self.pod_live || !open)
    }
}

/// The pod of the newest attempt.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "there is one of them at a time")]
pub enum PodState {
    /// It was created or looked for a moment ago, and the cache may not show it yet.
    Unknown,
    /// The API server does not have it: not created yet, or gone.
    Absent,
    /// It exists.
    Present(PodView),
}

/// What this process remembers of a run. Losing it costs time or a request, never safety.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Notes {
    /// When a cancel, deny or deletion was first seen.
    pub asked_at: Option<Timestamp>,
    /// The API server's last refusal of the pod.
    pub refused: Option<Refused>,
    /// The pod that was created last: its attempt, and when.
    pub created: Option<(u32, Timestamp)>,
    /// resourceVersion after the last write of ours.
    pub version: u64,
    /// Errors in a row.
    pub errors: u32,
    /// When the datastore was asked how a claimed run ended.
    pub proof: Option<ProofAsked>,
    /// What it said of the objects of a claimed run, and whether the run was settled by then.
    pub journal: Option<(bool, Box<Journal>)>,
    /// Why the lease on its state was not to be had.
    pub waits: Option<Waits>,
    /// When the nodes were asked, and which could not answer.
    pub nodes_asked: Option<(Timestamp, String)>,
    /// When the lock on the managed state could not be released, and why.
    pub unlock_failed: Option<(Timestamp, String)>,
    /// The node of the pod that was seen last: its attempt, and the name.
    pub node: Option<(u32, String)>,
    /// The attempt whose node was written; an older definition of a run does not keep it, and it is not written again and again.
    pub node_told: Option<u32>,
    /// Which lock was asked about, and when.
    pub lock_asked: Option<(String, Timestamp)>,
}

/// Questions to the datastore that had no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProofAsked {
    /// How many.
    pub times: u32,
    /// When to ask again.
    pub next_at: Timestamp,
}

/// A refusal of the pod's creation.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused {
    /// The attempt.
    pub attempt: u32,
    /// Why.
    pub trouble: Trouble,
    /// How often.
    pub times: u32,
    /// When to try again.
    pub retry_at: Timestamp,
}

/// What a status write does; decides whether it needs a live read, and what is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Makes the run Pending without an attempt.
    Begin,
    /// Opens an attempt.
    Open,
    /// Says why an attempt that no pod has adopted does not start, or that it goes on.
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
    /// Says what became of the objects of an apply whose agent could not.
    Journal,
    /// Records how an Indeterminate run ended after all.
    Settled,
    /// Records, or gives back, the lease on a state, or says who has it.
    Lease,
    /// Says that a lock may be released.
    Lock,
}

/// One write of the status: a merge patch with the run's resourceVersion, or with tests of fields where the run is contended.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    /// What it does.
    pub kind: Kind,
    /// The patch of `status`.
    pub status: Map<String, Value>,
    /// Events to publish when it succeeded.
    pub notes: Vec<Note>,
    /// The run is finished for good with this write.
    pub finished: Option<(Operation, RunResult)>,
}

/// An order to the executor.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Add the run's finalizer, and prove the gate at the same time when it is needed next.
    AddFinalizer {
        /// Whether the gate is proven at the same time.
        prove: bool,
    },
    /// Prove that the admission policies stand, or that those stand that were proven.
    ProveGate,
    /// Ask the datastore how a claimed run ended.
    AskProof,
    /// Take the lease on a state.
    TakeLease {
        /// The state.
        key: String,
    },
    /// Ask whether the node of a pod that is gone has ended what was on it.
    AskNodes,
    /// Release the lock that the run left on its managed state.
    ReleaseLock,
    /// Find out who left the lock that the run waits for.
    AskLock,
    /// Write the status.
    Write(Write),
    /// Create account and pod of the open attempt, as far as they do not exist.
    CreatePod,
    /// Delete a pod, which then ends within its grace.
    DeletePod {
        /// Its name.
        name: String,
        /// Its UID, a precondition.
        uid: String,
    },
    /// Delete ServiceAccount, Role and RoleBinding of an attempt.
    DeleteAccount {
        /// Their name.
        name: String,
    },
    /// Remove our finalizer from a pod.
    ReleasePod {
        /// Its name.
        name: String,
        /// Its UID, a precondition.
        uid: String,
    },
    /// Delete everything that carries the run's UID.
    Cleanup,
    /// Remove the run's finalizer.
    RemoveFinalizer,
    /// Create the run that answers `pawl.run/rerun=true`.
    CreateRerun,
    /// Create the run that answers `pawl.run/recover=true`.
    CreateRecovery,
    /// Take off annotations that were answered or refused.
    TakeOff(&'static [&'static str]),
    /// Delete the run.
    Prune,
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
                Kind::Approval | Kind::Conditions => false,
            },
            Self::CreatePod
            | Self::DeletePod { .. }
            | Self::CreateRerun
            | Self::CreateRecovery
            | Self::AskProof
            | Self::TakeLease { .. }
            | Self::AskNodes
            | Self::ReleaseLock
            | Self::AskLock
            | Self::TakeOff(_) => true,
            Self::AddFinalizer { .. }
            | Self::ProveGate
            | Self::DeleteAccount { .. }
            | Self::ReleasePod { .. }
            | Self::Cleanup
            | Self::RemoveFinalizer
            | Self::Prune => false,
        }
    }
}

/// What is to be done now, and when to look again though nothing changes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// In this order; an error ends the sequence.
    pub actions: Vec<Action>,
    /// When to look again.
    pub requeue: Option<Duration>,
}

impl Decision {
    /// Nothing to do until something changes.
    pub fn wait() -> Self {
        Self::default()
    }

    /// Nothing to do before that time.
    pub fn until(at: Timestamp, now: Timestamp) -> Self {
        // A little late rather than a little early, when nothing could be done yet.
        let millis = at.as_millisecond().saturating_sub(now.as_millisecond()).max(0);
        Self { actions: Vec::new(), requeue: Some(Duration::from_millis(millis.unsigned_abs() + 20)) }
    }

    /// One action.
    pub fn act(action: Action) -> Self {
        Self { actions: vec![action], requeue: None }
    }

    /// Some actions.
    pub fn all(actions: Vec<Action>) -> Self {
        Self { actions, requeue: None }
    }

    /// Whether any of the actions has to be decided on a live read.
    pub fn needs_live(&self) -> bool {
        self.actions.iter().any(Action::needs_live)
    }
}
