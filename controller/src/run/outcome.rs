//! Outcomes: the facts that a decision reports in the status. They are values without words; [`say`](super::say) words them. Facts on the
//! run itself (its attempt, plan, claim and approval) are not repeated here.

use std::sync::Arc;

use jiff::Timestamp;

use super::{decision, expectations::WaitReason};
use crate::{
    cluster::{freeze::Frozen, nodes::NodeView},
    policies::missing::Missing,
    runner_pod::status::Trouble,
    state_queue::stale_plans::Applied,
};
use crds::{Failure, FailureClass, Journal, RunResult};

/// A decision whose writes are not worded yet.
pub(super) type Decision = decision::Decision<Outcome>;
/// An action whose write is not worded yet.
pub(super) type Action = decision::Action<Outcome>;

/// A fact that the status of a run has to report.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Outcome {
    /// The run gets its first phase.
    Noticed,
    /// No attempt begins: the admission policies could not be proven.
    PolicyMissing(Missing),
    /// No attempt begins: the namespace is frozen, no slot is free, or the datastore is away or has not the revision yet.
    Blocked(WaitReason),
    /// No attempt begins: the run has to wait for the lease on its state.
    QueuedToOpen(WaitReason),
    /// An attempt that makes a plan is opened, with the lease that was taken for it.
    Opened {
        opening: Opening,
        lease: Option<Lease>,
    },
    /// An attempt is opened that applies the plan of an older one, approved by `by`.
    RestoreOpened {
        opening: Opening,
        by: String,
    },

    /// The pod of the open attempt does not start. The attempt fails at `until`.
    NotStarting {
        trouble: Trouble,
        until: Timestamp,
    },
    /// The trouble of a pod that did not start is over. `pod` is the UID of a pod that the attempt does not record yet.
    Starting {
        pod: Option<String>,
    },
    /// The agent works on a plan that is claimed or about to be claimed.
    Working(Working),
    /// The datastore, which the agent needs for its next step, is away for this reason, or is back.
    Datastore(Option<Arc<str>>),
    /// The pod ends its hold once its plan is in the datastore, as others wait for its slot.
    HoldEnds,
    /// The node of the pod is not Ready. An unclaimed attempt is replaced at `retry_at`.
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
    /// The record of an approval is removed before its attempt has started.
    ApprovalRemoved(Unapproved),
    /// The approval of a waiting plan was revoked, as its author `by` is unverified.
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
    /// The pod ended and its plan waits on. `lost` is the cause, unless the pod ended as announced.
    PlanKept {
        lost: Option<Cause>,
    },
    /// The attempt to restore and apply the plan ended without a result. The next one begins at `next`, if the plan is still approved.
    RestoreRetried {
        cause: Cause,
        next: Timestamp,
    },
    /// The node of an unclaimed attempt is lost. No try is used up.
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
    /// An ended run retains its lease.
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

/// An attempt to open.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Opening {
    pub(super) number: u32,
    pub(super) tries: u32,
    pub(super) image: String,
    /// The attempt whose plan it restores.
    pub(super) restores: Option<u32>,
}

/// A lease that was taken: the state key, and the name of the Lease.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Lease {
    pub(super) key: String,
    pub(super) name: String,
}

/// News of a run whose agent works.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Working {
    /// A person abandoned the apply while its node was Ready.
    pub(super) abandon_refused: bool,
    /// The plan was claimed some time ago, and the condition Planned is not True yet.
    pub(super) planned: bool,
    pub(super) record: Option<NodeRecord>,
}

/// The node of the pod, and its boot ID when it was lost.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NodeRecord {
    pub(super) name: String,
    pub(super) boot_id: Option<String>,
}

/// News of a plan with changes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Approval {
    /// The status does not report the plan yet.
    pub(super) ready: bool,
    /// Another run applied to the state since, and the status does not report it yet.
    pub(super) stale: Option<Applied>,
    pub(super) consent: Consent,
}

/// The state of the plan's approval.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Consent {
    Missing(Unapproved),
    /// The status records the approval.
    Recorded,
    /// The approval is recorded now, together with the lease or the wait for it.
    Given {
        by: String,
        comment: Option<String>,
        lease: Option<Lease>,
        waits: Option<WaitReason>,
    },
    /// Approved, and the apply has to wait.
    Blocked(WaitReason),
    /// Approved, and the admission policies could not be proven.
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
    /// The same in a frozen namespace.
    Frozen(Frozen),
    /// The condition Approved reports it already.
    Told,
}

/// Why an attempt ended without a result.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cause {
    /// The failure that the agent reported.
    Told(Failure),
    /// The pod ended and its agent reported nothing.
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

/// How the node of an unclaimed attempt was lost.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum NodeLoss {
    /// No process runs there any more, for this reason.
    Over(String),
    /// It was not Ready for too long.
    NotReady { node: String, pod: String },
}

/// The end of a run, and all that is written with it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RunEnd {
    pub(super) ending: Ending,
    /// The same write closes the attempt.
    pub(super) closes: bool,
    /// The part of log and journal that the pod could not upload to the datastore.
    pub(super) unkept: Option<String>,
    pub(super) returns_lease: bool,
    pub(super) objects: Option<Objects>,
}

impl RunEnd {
    /// The end of an unclaimed run.
    pub(super) fn unclaimed(ending: Ending, closes: bool, unkept: Option<String>) -> Self {
        Self {
            ending,
            closes,
            unkept,
            returns_lease: true,
            objects: None,
        }
    }
}

/// How a run ends.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Ending {
    /// A person or the API requested it.
    Stopped { result: RunResult, why: String },
    /// Its plan was not approved in time.
    Expired,
    /// A newer run of the same workspace has made its plan.
    Superseded { by: String },
    /// Its plan was made before the restore of `restored`.
    PlanBeforeRestore {
        made: Option<Timestamp>,
        restored: Timestamp,
    },
    /// The pod did not start in time. `image` is the one that could not be pulled.
    NotStarted {
        trouble: Trouble,
        image: Option<String>,
    },
    /// The agent reported it.
    Delivered {
        result: RunResult,
        message: String,
        failure: Option<Failure>,
    },
    /// The attempt failed for a cause that no retry resolves.
    Failed(Cause),
    /// The last attempt failed.
    TriesUsedUp { cause: Cause, restoring: bool },
    /// How the apply ended is unknown.
    Unconfirmed(Unconfirmed),
}

impl Ending {
    pub(super) fn result(&self) -> RunResult {
        match self {
            Self::Stopped { result, .. } | Self::Delivered { result, .. } => *result,
            Self::Expired => RunResult::Expired,
            Self::Superseded { .. } => RunResult::Superseded,
            Self::PlanBeforeRestore { .. }
            | Self::NotStarted { .. }
            | Self::Failed(_)
            | Self::TriesUsedUp { .. } => RunResult::Failed,
            Self::Unconfirmed(_) => RunResult::Indeterminate,
        }
    }
}

/// Why the end of an apply is unknown.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Unconfirmed {
    /// Another writer closed the attempt.
    AttemptClosed,
    /// The pod ended, with the kubelet's account of it.
    PodEnded(Option<String>),
    /// The pod is gone, or its node is over (`node` tells why).
    PodGone {
        node: Option<String>,
        since: Timestamp,
    },
    /// A person abandoned it while its node was not Ready.
    Abandoned {
        node: String,
        by: String,
        why: String,
    },
}

/// The account of the objects of an apply.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Objects {
    Compared(Box<Journal>),
    /// Without a datastore only the pod's log has it.
    InLog,
}

/// Why an ended run retains its lease.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Retained {
    /// The release of the lock that the run may have left on its state failed.
    Lock(String),
    /// The end of the pod is not confirmed.
    EndUnconfirmed,
    /// The apply may still run, with the node's account of it.
    MayRun(String),
}
