//! What is observed of a run: plain values.

use super::{
    memory::Notes,
    run_view::{RunView, Status},
};
use crate::{
    cluster::{freeze::Frozen, nodes::NodeState},
    policies::Enforcement,
    runner_pod::status::PodView,
    slots::Slot,
    state_queue::{applied::Applied, queue::Ahead},
};
use crds::{Adopted, Attempt, termination::TerminationMessage};

/// Everything a decision is made of, the clock and the settings apart.
#[derive(Clone, Debug)]
pub struct Observed {
    pub run: RunView,
    /// Whether the run was read from the API server just now, not from the cache.
    pub run_live: bool,
    /// The pod of its newest attempt.
    pub pod: PodState,
    /// Whether the pod was asked of the API server just now.
    pub pod_live: bool,
    /// As of before the run was read: what was set on it before that was revoked, or set while the policies were enforced.
    pub policies: Enforcement,
    /// What this process remembers of the run.
    pub notes: Notes,
    /// The newest of the newer runs of the same workspace that have made their plan.
    pub newer: Option<String>,
    /// What another run applied to the state of its plan since that was made.
    pub applied: Option<Applied>,
    /// What the datastore has of the end of a claimed run.
    pub late_result: LateResult,
    /// The state whose lease was taken for the run as it is here, and the name of that Lease.
    pub taken: Option<(String, String)>,
    /// Who comes before it, when it wants a lease.
    pub ahead: Option<Ahead>,
    /// How it stands with the slot that it needs next.
    pub slot: Slot,
    /// Others wait for the slot of its pod, which only waits itself.
    pub slot_wanted: bool,
    /// Why nothing new begins in its namespace.
    pub frozen: Option<Frozen>,
    /// The node of that pod.
    pub node: NodeState,
    /// Its node says, or every node where nobody knows which it was, that nothing of a pod that is gone runs any more.
    pub gone_pod_ended: bool,
    /// The lock that a run which is Indeterminate left on its managed state was released.
    pub lock_released: bool,
    /// Whose lock keeps it waiting.
    pub lock_holder: LockHolder,
}

/// The pod of the newest attempt.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "there is one of them at a time")]
pub enum PodState {
    /// It was created or looked for a moment ago, and the cache may not show it yet.
    Unknown,
    /// The API server does not have it: not created yet, or gone.
    Absent,
    Present(PodView),
}

/// What the datastore has of the end of a claimed run.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum LateResult {
    /// Nobody has asked yet.
    #[default]
    Unknown,
    /// Nothing, or it did not answer.
    Absent,
    /// This; still to be compared with the claim.
    Found(Box<TerminationMessage>),
}

impl Observed {
    /// A run of which nothing else is known.
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
            taken: None,
            ahead: None,
            slot: Slot::Free,
            slot_wanted: false,
            frozen: None,
            node: NodeState::Unknown,
            gone_pod_ended: false,
            lock_released: false,
            lock_holder: LockHolder::Unknown,
        }
    }

    /// The status, empty when there is none yet.
    pub fn status(&self) -> &Status {
        &self.run.status
    }

    /// The pod of the newest attempt, as far as it says anything of that.
    pub fn own_pod(&self) -> Option<&PodView> {
        own_pod(self.status().adopted.as_ref(), &self.pod)
    }

    /// The name of the node that the newest attempt's pod is on, or was when it was seen last.
    pub fn node_name(&self) -> Option<&str> {
        let status = self.status();
        node_name(status.attempt.as_ref(), status.adopted.as_ref(), self.own_pod(), &self.notes)
    }

    /// Whether run and pod were read just now. Without an open attempt no pod matters.
    pub fn is_live(&self) -> bool {
        self.run_live && (self.pod_live || self.run.open_attempt().is_none())
    }
}

/// What is known of the lock that keeps a run waiting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LockHolder {
    /// Nobody asked, or it has to stay.
    #[default]
    Unknown,
    /// The process that held it has ended: `NAMESPACE/RUN, attempt 1`.
    Ended(String),
}

/// A pod, unless another one has adopted its attempt: one that comes late under the name of that says nothing of it, neither where it is
/// nor that it has ended.
pub(super) fn own_pod<'a>(adopted: Option<&Adopted>, pod: &'a PodState) -> Option<&'a PodView> {
    let PodState::Present(pod) = pod else { return None };
    let is_another = adopted.is_some_and(|adopted| adopted.attempt == pod.attempt && adopted.pod_uid != pod.uid);
    (!is_another).then_some(pod)
}

/// The name of the node that the newest attempt's pod is on, or was when it was seen last.
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
    let seen = notes.node.as_ref().filter(|(number, _)| *number == attempt.number).map(|(_, name)| name.as_str());
    attempt.node(adopted).or(seen)
}
