//! The input of decisions: the observation of a run, evaluated once per reconcile. Decisions derive none of it again.

use std::sync::Arc;

use jiff::Timestamp;

use crds::{ApprovalMode, Attempt, Claim, Phase, PlanStatus, RunResult};

use super::{
    expectations::Notes,
    observed::{LateResult, LockHolder, Observed, PodState},
    run_view::{RunView, Status},
};
use crate::{
    cluster::{
        freeze::Frozen,
        nodes::{NodeState, NodeView, over},
    },
    policies::{Enforcement, missing::Missing},
    runner_pod::status::PodView,
    settings::Settings,
    slots::Slot,
    state_queue::{queue::Ahead, stale_plans::Applied},
};

/// The input of decisions.
pub(super) struct Situation<'a> {
    pub(super) run: &'a RunView,
    pub(super) settings: &'a Settings,
    pub(super) now: Timestamp,
    pub(super) stage: Stage<'a>,
    /// The pod under the name of the newest attempt's pod. Another process may have created it.
    pub(super) pod: Option<&'a PodView>,
    /// The same, if the attempt records its UID.
    pub(super) own_pod: Option<&'a PodView>,
    /// The node that the newest attempt's pod is on, or was when it was last observed.
    pub(super) node_name: Option<&'a str>,
    pub(super) node: &'a NodeState,
    pub(super) fate: Fate<'a>,
    pub(super) policies: Policies<'a>,
    pub(super) notes: &'a Notes,
    /// A newer run of the same workspace that has made its plan.
    pub(super) newer: Option<&'a str>,
    /// The newest apply of another run to the plan's state since the plan was made.
    pub(super) applied: Option<&'a Applied>,
    pub(super) late_result: &'a LateResult,
    /// The datastore has the revision of the run's repository.
    pub(super) source_ready: bool,
    /// The state whose lease was taken for the run, and the name of the Lease. The status does not record it yet.
    pub(super) taken: Option<&'a (String, String)>,
    /// The runs ahead of this one on the state.
    pub(super) ahead: Option<&'a Ahead>,
    pub(super) slot: &'a Slot,
    /// Others wait for the slot of the run's pod, which only waits itself.
    pub(super) slot_wanted: bool,
    pub(super) frozen: Option<&'a Frozen>,
    /// Why the datastore is away.
    pub(super) datastore_away: Option<&'a Arc<str>>,
    /// A node confirmed that no process of a vanished pod runs.
    pub(super) gone_pod_ended: bool,
    /// The lock that the run left on its managed state was released.
    pub(super) lock_released: bool,
    /// The ended process that left the lock which blocks the run.
    pub(super) lock_left_by: Option<&'a str>,
}

/// The node of a run's pod, as far as it matters for the pod.
pub(super) enum Fate<'a> {
    Unknown,
    /// Ready, and its kubelet reports on the pod.
    Ready,
    /// Not Ready: the pod may still run.
    Lost(&'a NodeView),
    /// No process of the pod runs any more, for this reason.
    Over(String),
}

/// Whether a decision may rely on the admission policies.
pub(super) enum Policies<'a> {
    /// They were proven before the run was read.
    Enforced,
    /// They could not be proven. The next proof is due at `retry_at`.
    Missing {
        missing: &'a Missing,
        retry_at: Timestamp,
    },
    /// They have to be proven first.
    Unproven,
}

/// The stage that a run has reached.
pub(super) enum Stage<'a> {
    /// A field has a value of a newer version: the run is left to that version.
    Newer,
    /// No attempt is open and no plan waits: the first or the next attempt is due.
    New,
    /// No attempt is open, and this attempt's plan waits for a person.
    WaitingPlan {
        plan: &'a PlanStatus,
        attempt: &'a Attempt,
    },
    /// An attempt is open, and nothing is claimed.
    Open(OpenAttempt<'a>),
    /// Nothing is claimed, and the run is asked to end.
    Stopping {
        result: RunResult,
        why: &'a str,
        open: Option<OpenAttempt<'a>>,
    },
    /// The open attempt has claimed its plan.
    Claimed {
        claim: &'a Claim,
        attempt: &'a Attempt,
        pod: AttemptPod<'a>,
    },
    /// The claimed attempt was closed, and the run has not ended.
    ClaimedClosed,
    /// The run has ended, and its attempt is open.
    EndedOpen {
        attempt: &'a Attempt,
        pod: AttemptPod<'a>,
    },
    /// The run has ended, and no attempt is open.
    AtRest,
}

/// An open attempt of a run that has not ended, before the claim.
pub(super) struct OpenAttempt<'a> {
    pub(super) attempt: &'a Attempt,
    pub(super) pod: AttemptPod<'a>,
    /// An agent has adopted it.
    pub(super) adopted: bool,
    /// The plan that it may apply.
    pub(super) plan: Option<&'a PlanStatus>,
    /// The same plan, if it waits for a person and needs no pod meanwhile.
    pub(super) waiting: Option<&'a PlanStatus>,
}

/// The pod that an attempt records.
pub(super) enum AttemptPod<'a> {
    /// Not looked for, or too early to tell.
    Unknown,
    /// Never created, or gone.
    Absent,
    /// There and not ended.
    Running(&'a PodView),
    /// There and ended.
    Ended(&'a PodView),
}

impl<'a> Situation<'a> {
    pub(super) fn of(o: &'a Observed, settings: &'a Settings, now: Timestamp) -> Self {
        Self {
            run: &o.run,
            settings,
            now,
            stage: Stage::of(o),
            pod: match &o.pod {
                PodState::Present(pod) => Some(pod),
                PodState::Absent | PodState::Unknown => None,
            },
            own_pod: o.own_pod(),
            node_name: o.node_name(),
            node: &o.node,
            fate: Fate::of(o),
            policies: Policies::of(o, now),
            notes: &o.notes,
            newer: o.newer.as_deref(),
            applied: o.applied.as_ref(),
            late_result: &o.late_result,
            source_ready: o.source_ready,
            taken: o.taken.as_ref(),
            ahead: o.ahead.as_ref(),
            slot: &o.slot,
            slot_wanted: o.slot_wanted,
            frozen: o.frozen.as_ref(),
            datastore_away: o.datastore_away.as_ref(),
            gone_pod_ended: o.gone_pod_ended,
            lock_released: o.lock_released,
            lock_left_by: match &o.lock_holder {
                LockHolder::Ended(holder) => Some(holder),
                LockHolder::Unknown => None,
            },
        }
    }

    /// The status, empty if there is none yet.
    pub(super) fn status(&self) -> &'a Status {
        &self.run.status
    }
}

impl<'a> Fate<'a> {
    fn of(o: &'a Observed) -> Self {
        let Some(name) = o.node_name() else {
            return Self::Unknown;
        };
        if let Some(why) = over(name, o.status().attempt.as_ref(), &o.node) {
            return Self::Over(why);
        }
        match &o.node {
            NodeState::There(node) if node.name == name && node.ready => Self::Ready,
            NodeState::There(node) if node.name == name => Self::Lost(node),
            NodeState::There(_) | NodeState::Gone(_) | NodeState::Unknown => Self::Unknown,
        }
    }
}

impl<'a> Policies<'a> {
    fn of(o: &'a Observed, now: Timestamp) -> Self {
        match &o.policies {
            Enforcement::Enforced => Self::Enforced,
            Enforcement::NotEnforced { missing, retry_at } if now < *retry_at => Self::Missing {
                missing,
                retry_at: *retry_at,
            },
            Enforcement::Unknown | Enforcement::NotEnforced { .. } => Self::Unproven,
        }
    }
}

impl<'a> Stage<'a> {
    fn of(o: &'a Observed) -> Self {
        let (run, status) = (&o.run, o.status());
        if run.unknown_word.is_some() {
            return Self::Newer;
        }
        match (run.open_attempt(), &status.claim) {
            (Some(attempt), _) if status.is_terminal() => Self::EndedOpen {
                attempt,
                pod: AttemptPod::of(o),
            },
            (None, _) if status.is_terminal() => Self::AtRest,
            (Some(attempt), Some(claim)) => Self::Claimed {
                claim,
                attempt,
                pod: AttemptPod::of(o),
            },
            (None, Some(_)) => Self::ClaimedClosed,
            (open, None) => {
                let open = open.map(|attempt| OpenAttempt::of(o, attempt));
                match (&run.asked, open, waiting_plan(run)) {
                    (Some((result, why)), open, _) => Self::Stopping {
                        result: *result,
                        why,
                        open,
                    },
                    (None, Some(open), _) => Self::Open(open),
                    (None, None, Some((plan, attempt))) => Self::WaitingPlan { plan, attempt },
                    (None, None, None) => Self::New,
                }
            }
        }
    }
}

impl<'a> OpenAttempt<'a> {
    fn of(o: &'a Observed, attempt: &'a Attempt) -> Self {
        let status = o.status();
        Self {
            attempt,
            pod: AttemptPod::of(o),
            adopted: status
                .adopted
                .as_ref()
                .is_some_and(|adopted| adopted.attempt == attempt.number),
            plan: plan_of(status, attempt),
            waiting: waiting_plan(&o.run).map(|(plan, _)| plan),
        }
    }
}

impl<'a> AttemptPod<'a> {
    /// If another pod has the name of the recorded one, the recorded one is gone.
    fn of(o: &'a Observed) -> Self {
        match (&o.pod, o.own_pod()) {
            (PodState::Unknown, _) => Self::Unknown,
            (PodState::Present(_) | PodState::Absent, pod) => match pod {
                None => Self::Absent,
                Some(pod) if pod.ended.is_some() => Self::Ended(pod),
                Some(pod) => Self::Running(pod),
            },
        }
    }
}

/// The plan that this attempt may apply: the one that it made, or the one that it restores.
pub(super) fn plan_of<'a>(status: &'a Status, attempt: &Attempt) -> Option<&'a PlanStatus> {
    status
        .plan
        .as_ref()
        .filter(|plan| plan.attempt == attempt.number || attempt.restores == Some(plan.attempt))
}

/// The plan that waits for a person and needs no pod meanwhile.
fn waiting_plan(run: &RunView) -> Option<(&PlanStatus, &Attempt)> {
    let status = &run.status;
    let waits = status.phase == Some(Phase::AwaitingApproval)
        && status.claim.is_none()
        && run.approval_mode() == ApprovalMode::Manual;
    let attempt = status.attempt.as_ref().filter(|_| waits)?;
    plan_of(status, attempt)
        .filter(|plan| plan.bundle.is_some())
        .map(|plan| (plan, attempt))
}
