//! What a run is in the middle of, told once from what was observed: decisions need not find it out again.

use crds::{ApprovalMode, Attempt, Claim, Phase, PlanStatus, RunResult};

use super::{
    observed::{Observed, PodState},
    run_view::{RunView, Status},
};
use crate::runner_pod::status::PodView;

/// What a run is in the middle of.
pub(super) enum Situation<'a> {
    /// A field has a word of a newer version: the run is left to that.
    Newer,
    /// No attempt is open and no plan waits: the first attempt is due, or the next.
    New,
    /// No attempt is open, and the plan of this one waits for a person.
    WaitingPlan { plan: &'a PlanStatus, attempt: &'a Attempt },
    /// An attempt is open, and nothing was claimed.
    Open(OpenAttempt<'a>),
    /// Nothing was claimed, and somebody asks that the run comes to an end.
    Stopping { result: RunResult, why: &'a str, open: Option<OpenAttempt<'a>> },
    /// The open attempt has claimed its plan.
    Claimed { claim: &'a Claim, attempt: &'a Attempt, pod: AttemptPod<'a> },
    /// The attempt with the claim was closed, and the run has no end.
    ClaimedClosed,
    /// The run has ended, and its attempt is open.
    EndedOpen { attempt: &'a Attempt, pod: AttemptPod<'a> },
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
    /// The same, when it waits for a person and needs no pod to do so.
    pub(super) waiting: Option<&'a PlanStatus>,
}

/// The pod of an attempt, as far as the status knows it: the adopted one, or before that whichever has its name.
pub(super) enum AttemptPod<'a> {
    /// Not looked for, or too early to say.
    Unknown,
    /// Not there: never created, or gone.
    Absent,
    /// There and not ended.
    Running(&'a PodView),
    /// There and ended.
    Ended(&'a PodView),
}

impl<'a> Situation<'a> {
    pub(super) fn of(o: &'a Observed) -> Self {
        let (run, status) = (&o.run, o.status());
        if run.unknown_word.is_some() {
            return Self::Newer;
        }
        match (run.open_attempt(), &status.claim) {
            (Some(attempt), _) if status.is_terminal() => Self::EndedOpen { attempt, pod: AttemptPod::of(o, attempt) },
            (None, _) if status.is_terminal() => Self::AtRest,
            (Some(attempt), Some(claim)) => Self::Claimed { claim, attempt, pod: AttemptPod::of(o, attempt) },
            (None, Some(_)) => Self::ClaimedClosed,
            (open, None) => {
                let open = open.map(|attempt| OpenAttempt::of(o, attempt));
                match (&run.asked, open, waiting_plan(run)) {
                    (Some((result, why)), open, _) => Self::Stopping { result: *result, why, open },
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
            pod: AttemptPod::of(o, attempt),
            adopted: status.adopted.as_ref().is_some_and(|adopted| adopted.attempt == attempt.number),
            plan: plan_of(status, attempt),
            waiting: waiting_plan(&o.run).map(|(plan, _)| plan),
        }
    }
}

impl<'a> AttemptPod<'a> {
    /// Another pod of the same name than the adopted one means that the adopted one is gone.
    fn of(o: &'a Observed, attempt: &Attempt) -> Self {
        match (&o.pod, o.own_pod()) {
            (PodState::Unknown, _) => Self::Unknown,
            (PodState::Present(_) | PodState::Absent, pod) => match pod.filter(|pod| pod.attempt == attempt.number) {
                None => Self::Absent,
                Some(pod) if pod.ended.is_some() => Self::Ended(pod),
                Some(pod) => Self::Running(pod),
            },
        }
    }
}

/// The plan that this attempt may apply: the one that it made, or the one that it restores.
pub(super) fn plan_of<'a>(status: &'a Status, attempt: &Attempt) -> Option<&'a PlanStatus> {
    status.plan.as_ref().filter(|plan| plan.attempt == attempt.number || attempt.restores == Some(plan.attempt))
}

/// The plan that waits for a person and needs no pod to do so.
fn waiting_plan(run: &RunView) -> Option<(&PlanStatus, &Attempt)> {
    let status = &run.status;
    let waits =
        status.phase == Some(Phase::AwaitingApproval) && status.claim.is_none() && run.approval_mode() == ApprovalMode::Manual;
    let attempt = status.attempt.as_ref().filter(|_| waits)?;
    plan_of(status, attempt).filter(|plan| plan.bundle.is_some()).map(|plan| (plan, attempt))
}
