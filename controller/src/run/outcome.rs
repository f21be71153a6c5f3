//! Outcomes: the facts that a decision has the status tell. They are values without words; [`say`](super::say) words them. Facts that are
//! on the run itself (its attempt, plan, claim and approval) are not repeated here.

use jiff::Timestamp;

use super::{decision, memory::WaitReason};
use crate::{cluster::nodes::NodeView, policies::missing::Missing, runner_pod::status::Trouble, state_queue::applied::Applied};
use crds::{Failure, FailureClass, Journal, RunResult};

/// A decision whose writes are not worded yet.
pub(super) type Decision = decision::Decision<Outcome>;
/// An order whose write is not worded yet.
pub(super) type Action = decision::Action<Outcome>;

/// A fact that the status of a run has to tell.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Outcome {
    /// The run gets its first phase.
    Noticed,
    /// No attempt begins: the admission policies could not be proven.
    PolicyMissing(Missing),
    /// No attempt begins: the namespace is frozen, or no slot is free.
    Blocked(WaitReason),
    /// No attempt begins: the run has to wait for the lease on its state.
    QueuedToOpen(WaitReason),
    /// An attempt that makes a plan is opened, with the lease that was taken for it.
    Opened {
        opening: Opening,
        lease: Option<Lease>,
    },
    /// An attempt is opened that applies the plan of an older one, which `by` approved.
    RestoreOpened {
        opening: Opening,
        by: String,
    },

    /// The pod of the open attempt does not start. The attempt is given up at `until`.
    NotStarting {
        trouble: Trouble,
        until: Timestamp,
    },
    /// The trouble of a pod that did not start is over.
    Starting,
    /// The agent of a claimed, or about to be claimed, plan works.
    Working(Working),
    /// The pod ends its hold once its plan is in the datastore, as others wait for its slot.
    HoldEnds,
    /// The node of the pod is not Ready. `retry_at` is when an attempt without a claim is replaced.
    NodeNotReady {
        node: NodeView,
        pod: String,
        retry_at: Timestamp,
        record: Option<NodeRecord>,
    },
    /// The pod of a claimed attempt is gone, or its node is over (`node` tells why). A wait begins.
    PodGone {
        node: Option<String>,
        record: Option<NodeRecord>,
    },
    /// The process that left the lock on the state has ended, so the lock may be released.
    LockLeft {
        by: String,
    },

    /// A plan waits for a person, or was approved.
    Approval(Approval),
    /// The record of an approval is removed while its attempt has not started.
    ApprovalRemoved(Unapproved),
    /// The approval of a plan that waits was revoked, as its author `by` is unverified.
    ApprovalRevoked {
        by: Option<String>,
    },
    /// The lease on the state was taken.
    LeaseTaken(Lease),
    /// The run has to wait for the lease before it may claim its plan.
    QueuedToClaim(WaitReason),

    /// The pod of an Automatic run ended to wait for its turn on the state. No try is used up.
    Requeued,
    /// The attempt ended without a result, and another one makes a plan at `next`.
    Retried {
        cause: Cause,
        unkept: Option<String>,
        next: Timestamp,
    },
    /// The pod ended and its plan waits on; `lost` is why, unless the pod ended as planned.
    PlanKept {
        lost: Option<Cause>,
    },
    /// The attempt to restore and apply the plan ended without a result. The next one begins at `next`, if the plan is still approved.
    RestoreRetried {
        cause: Cause,
        next: Timestamp,
    },
    /// The node of an attempt without a claim is lost. No try is used up.
    NodeLost {
        loss: NodeLoss,
        plan_waits: bool,
    },

    /// The run ends.
    Ended(RunEnd),
    /// The agent has ended the run; its conditions follow.
    Finished,
    /// The agent has ended the run; its attempt is closed and its conditions follow.
    FinishedAndClosed {
        unkept: Option<String>,
        returns_lease: bool,
    },
    /// A run that has ended retains its lease.
    LeaseRetained {
        why: Retained,
        abandonable: bool,
    },
    LeaseReturned,
    /// Proof of how an Indeterminate run ended.
    Settled {
        result: RunResult,
        message: String,
    },
    /// The datastore accounts for the objects of an apply after its end.
    Accounted(Box<Journal>),
    /// A run of that name answers a rerun.
    RerunCreated(String),
    /// A run of that name answers a recovery.
    RecoveryCreated(String),
}

/// An attempt that is opened.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Opening {
    pub(super) number: u32,
    pub(super) tries: u32,
    pub(super) image: String,
    /// The attempt whose plan it restores.
    pub(super) restores: Option<u32>,
}

/// A lease that was taken: the state, and the name of the Lease.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Lease {
    pub(super) key: String,
    pub(super) name: String,
}

/// News of a run whose agent works.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Working {
    /// A person gave the apply up while its node was Ready.
    pub(super) abandon_refused: bool,
    /// The plan was claimed some time ago, and the condition Planned is not True yet.
    pub(super) planned: bool,
    pub(super) record: Option<NodeRecord>,
}

/// The node that the pod is on, and the boot of it that was lost.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NodeRecord {
    pub(super) name: String,
    pub(super) boot_id: Option<String>,
}

/// News of a plan with changes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Approval {
    /// The run does not tell of the plan yet.
    pub(super) ready: bool,
    /// Another run applied to the state since, and the run does not tell so yet.
    pub(super) stale: Option<Applied>,
    pub(super) consent: Consent,
}

/// How the plan stands with the person who approves it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Consent {
    Missing(Unapproved),
    /// The status has the approval.
    Recorded,
    /// The approval is recorded now, together with the lease or the wait for it.
    Given {
        by: String,
        comment: Option<String>,
        lease: Option<Lease>,
        waits: Option<WaitReason>,
    },
    /// It was approved, and its apply has to wait.
    Blocked(WaitReason),
    /// It was approved, and the admission policies could not be proven.
    Unproven(Missing),
}

/// Why the annotation does not approve the plan.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Unapproved {
    /// It was removed.
    Withdrawn,
    /// It names another plan.
    OtherPlan(String),
    /// It was never set.
    Waiting,
    /// The condition Approved tells it already.
    Told,
}

/// Why an attempt ended without a result.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cause {
    /// In the words of its agent.
    Told(Failure),
    /// Its pod ended and its agent told nothing.
    PodEnded {
        reason: &'static str,
        text: String,
    },
    PodGone,
}

impl Cause {
    pub(super) fn class(&self) -> FailureClass {
        match self {
            Self::Told(failure) => failure.class,
            Self::PodEnded { .. } | Self::PodGone => FailureClass::Interrupted,
        }
    }
}

/// How the node of an attempt without a claim was lost.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum NodeLoss {
    /// Nothing runs there any more; why.
    Over(String),
    /// It was not Ready for too long.
    NotReady { node: String, pod: String },
}

/// The end of a run, and everything that is written with it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RunEnd {
    pub(super) ending: Ending,
    /// Its attempt is closed in the same write.
    pub(super) closes: bool,
    /// The part of log and journal that the pod could not leave with the datastore.
    pub(super) unkept: Option<String>,
    pub(super) returns_lease: bool,
    pub(super) objects: Option<Objects>,
}

impl RunEnd {
    /// The end of a run without a claim.
    pub(super) fn unclaimed(ending: Ending, closes: bool, unkept: Option<String>) -> Self {
        Self { ending, closes, unkept, returns_lease: true, objects: None }
    }
}

/// How a run ends.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Ending {
    /// A person or the API asks for it.
    Stopped { result: RunResult, why: String },
    /// Its plan was not approved in time.
    Expired,
    /// A newer run of the same workspace has made its plan.
    Superseded { by: String },
    /// Its plan was made before the restore of `restored`.
    PlanBeforeRestore { made: Option<Timestamp>, restored: Timestamp },
    /// Its pod did not start in time; `image` is the one that could not be pulled.
    NotStarted { trouble: Trouble, image: Option<String> },
    /// In the words of its agent.
    Delivered { result: RunResult, message: String, failure: Option<Failure> },
    /// Its attempt failed for a cause that no retry helps.
    Failed(Cause),
    /// Its attempt failed and was the last one.
    TriesUsedUp { cause: Cause, restoring: bool },
    /// How its apply ended is not known.
    Unconfirmed(Unconfirmed),
}

impl Ending {
    pub(super) fn result(&self) -> RunResult {
        match self {
            Self::Stopped { result, .. } | Self::Delivered { result, .. } => *result,
            Self::Expired => RunResult::Expired,
            Self::Superseded { .. } => RunResult::Superseded,
            Self::PlanBeforeRestore { .. } | Self::NotStarted { .. } | Self::Failed(_) | Self::TriesUsedUp { .. } => {
                RunResult::Failed
            }
            Self::Unconfirmed(_) => RunResult::Indeterminate,
        }
    }
}

/// Why the end of an apply is not known.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Unconfirmed {
    /// Its attempt was closed by another writer.
    AttemptClosed,
    /// Its pod ended; the kubelet's account of it.
    PodEnded(Option<String>),
    /// Its pod is gone, or its node is over (`node` tells why).
    PodGone { node: Option<String>, since: Timestamp },
    /// A person gave it up while its node was not Ready.
    Abandoned { node: String, by: String, why: String },
}

/// The account of the objects of an apply.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Objects {
    Compared(Box<Journal>),
    /// Without a datastore only the pod's log has it.
    InLog,
}

/// Why a run that has ended retains its lease.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Retained {
    /// The lock that it may have left on its state could not be released.
    Lock(String),
    /// The end of its pod is not confirmed.
    EndUnconfirmed,
    /// Its apply may run on: the node's account of it.
    MayRun(String),
}
