//! The observation of a run: plain values.

use std::sync::Arc;

use super::{
    expectations::Notes,
    run_view::{RunView, Status},
};
use crate::{
    cluster::{freeze::Frozen, nodes::NodeState},
    policies::Enforcement,
    runner_pod::status::PodView,
    slots::Slot,
    state_queue::{queue::Ahead, stale_plans::Applied},
};
use crds::{Adopted, Attempt, termination::TerminationMessage};

/// The input of a decision, except clock and settings.
#[derive(Clone, Debug)]
pub struct Observed {
    pub run: RunView,
    /// Whether the run was read live, not from the cache.
    pub run_live: bool,
    /// The pod of the newest attempt.
    pub pod: PodState,
    /// Whether the pod was read live.
    pub pod_live: bool,
    /// The state of the policies before the run was read. With `Enforced`, all annotations on the run were verified, or revoked.
    pub policies: Enforcement,
    /// In-memory notes on the run.
    pub notes: Notes,
    /// The newest of the newer runs of the same workspace that have made their plan.
    pub newer: Option<String>,
    /// The newest apply of another run to the plan's state since the plan was made.
    pub applied: Option<Applied>,
    /// The datastore's answer about the end of a claimed run.
    pub late_result: LateResult,
    /// The datastore has the revision of the run's repository.
    pub source_ready: bool,
    /// The state whose lease was taken for this version of the run, and the name of the Lease.
    pub taken: Option<(String, String)>,
    /// The runs ahead of this one, if it needs a lease.
    pub ahead: Option<Ahead>,
    /// The slot that the run needs next.
    pub slot: Slot,
    /// Others wait for the slot of the run's pod, which only waits itself.
    pub slot_wanted: bool,
    /// Why nothing new begins in the namespace.
    pub frozen: Option<Frozen>,
    /// Why the datastore is away, for an attempt that is open.
    pub datastore_away: Option<Arc<str>>,
    /// The node of the pod.
    pub node: NodeState,
    /// The node (or every node, if the pod's node is unknown) confirmed that no process of a vanished pod runs.
    pub gone_pod_ended: bool,
    /// The lock that an Indeterminate run left on its managed state was released.
    pub lock_released: bool,
    /// The holder of the lock that blocks the run.
    pub lock_holder: LockHolder,
}

/// The pod of the newest attempt.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "there is one of them at a time")]
pub enum PodState {
    /// Created or looked for a moment ago; the cache may not show it yet.
    Unknown,
    /// The API server does not have it: not created yet, or gone.
    Absent,
    Present(PodView),
}

/// The datastore's answer about the end of a claimed run.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum LateResult {
    /// Not asked yet.
    #[default]
    Unknown,
    /// No result, or no answer.
    Absent,
    /// A result, still to be compared with the claim.
    Found(Box<TerminationMessage>),
}

impl Observed {
    /// The observation of a run without any other fact.
    pub fn of(run: RunView) -> Self {
        Self {
            run,
            run_live: false,
            pod: PodState::Unknown,
            pod_live: false,
            policies: Enforcement::Unknown,
            notes: Notes::default(),
            newer: None,
            applied: None,
            late_result: LateResult::Unknown,
            source_ready: false,
            taken: None,
            ahead: None,
            slot: Slot::Free,
            slot_wanted: false,
            frozen: None,
            datastore_away: None,
            node: NodeState::Unknown,
            gone_pod_ended: false,
            lock_released: false,
            lock_holder: LockHolder::Unknown,
        }
    }

    /// The status, empty if there is none yet.
    pub fn status(&self) -> &Status {
        &self.run.status
    }

    /// The pod of the newest attempt, if the controller created it.
    pub fn own_pod(&self) -> Option<&PodView> {
        let status = self.status();
        own_pod(status.attempt.as_ref(), status.adopted.as_ref(), &self.pod)
    }

    /// The name of the node that the newest attempt's pod is on, or was when it was last observed.
    pub fn node_name(&self) -> Option<&str> {
        let status = self.status();
        node_name(
            status.attempt.as_ref(),
            status.adopted.as_ref(),
            self.own_pod(),
            &self.notes,
        )
    }

    /// Whether run and pod were read live. Without an open attempt no pod matters.
    pub fn is_live(&self) -> bool {
        self.run_live && (self.pod_live || self.run.open_attempt().is_none())
    }
}

/// The holder of the lock that blocks a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LockHolder {
    /// Not looked up, or the lock has to remain.
    #[default]
    Unknown,
    /// The process that held it has ended: `NAMESPACE/RUN, attempt 1`.
    Ended(String),
}

/// The pod, if the attempt records its UID: another pod of the same name proves neither the node nor the end of this one.
pub(super) fn own_pod<'a>(
    attempt: Option<&Attempt>,
    adopted: Option<&Adopted>,
    pod: &'a PodState,
) -> Option<&'a PodView> {
    let PodState::Present(pod) = pod else {
        return None;
    };
    let attempt = attempt.filter(|attempt| attempt.number == pod.attempt)?;
    (attempt.pod(adopted) == Some(&pod.uid)).then_some(pod)
}

/// The name of the node that the newest attempt's pod is on, or was when it was last observed.
pub(super) fn node_name<'a>(
    attempt: Option<&'a Attempt>,
    adopted: Option<&'a Adopted>,
    pod: Option<&'a PodView>,
    notes: &'a Notes,
) -> Option<&'a str> {
    if let Some(pod) = pod {
        return pod.node.as_deref();
    }
    let attempt = attempt?;
    let seen = notes
        .node
        .as_ref()
        .filter(|(number, _)| *number == attempt.number)
        .map(|(_, name)| name.as_str());
    attempt.node(adopted).or(seen)
}
