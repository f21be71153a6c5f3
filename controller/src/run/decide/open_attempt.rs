//! Open attempts: an agent works, the run is asked to end, or the pod's node is lost.

use super::{
    approval, begin_attempt, close_attempt,
    lost_node::{self, Abandon},
    slots, stale_lock, state_queue, waiting_plan,
};
use crate::{
    run::{
        outcome::{Action, Decision, Ending, NodeLoss, Outcome, Working},
        situation::{AttemptPod, Fate, OpenAttempt, Situation, plan_of},
        timing::{ASK_GRACE, END_GRACE, LATE_CONDITIONS, after},
    },
    runner_pod::status::PodView,
};
use crds::{ApprovalMode, Attempt, Claim, Phase, PlanStatus, RunResult, conditions, reason};

/// An unclaimed run is asked to end: gives its agent time to end by itself first.
pub(super) fn stopping(
    s: &Situation<'_>,
    open: &OpenAttempt<'_>,
    result: RunResult,
    why: &str,
) -> Decision {
    let early = || {
        close_attempt::early(
            s,
            open.attempt,
            Ending::Stopped {
                result,
                why: why.to_owned(),
            },
        )
    };
    match open.pod {
        AttemptPod::Unknown => close_attempt::look_again(s.now),
        AttemptPod::Running(pod) if open.adopted => {
            let late = after(s.notes.asked_at.unwrap_or(s.now), ASK_GRACE);
            let last = after(late, END_GRACE);
            if s.now < late {
                Decision::until(late, s.now)
            } else if !pod.deleting {
                Decision::act(Action::delete(pod))
            } else if s.now < last {
                Decision::until(last, s.now)
            } else {
                early()
            }
        }
        AttemptPod::Running(_) | AttemptPod::Ended(_) | AttemptPod::Absent => early(),
    }
}

/// An open attempt without a claim, of a run that is not asked to end.
pub(super) fn unclaimed(s: &Situation<'_>, open: &OpenAttempt<'_>) -> Decision {
    let OpenAttempt {
        attempt,
        pod,
        adopted,
        plan,
        waiting,
    } = open;
    if let AttemptPod::Running(_) | AttemptPod::Absent = pod
        && let Some(ending) =
            waiting_plan::superseded(s).or_else(|| waiting_plan::before_restore(s))
    {
        return close_attempt::early(s, attempt, ending);
    }
    if let AttemptPod::Running(pod) = pod
        && let Some(decision) = off(s, open, pod)
    {
        return decision;
    }
    if let (false, Some(outcome)) = (
        adopted,
        waiting.and_then(|plan| approval::withdrawal(s, plan)),
    ) {
        return Decision::write(outcome);
    }
    if let (true, AttemptPod::Running(_)) = (*adopted && slots::ends_hold(s, open), pod) {
        return Decision::write(Outcome::HoldEnds);
    }
    match pod {
        AttemptPod::Unknown => close_attempt::look_again(s.now),
        AttemptPod::Ended(pod) => close_attempt::unclaimed(s, open, Some(pod)),
        AttemptPod::Absent if *adopted => close_attempt::unclaimed(s, open, None),
        AttemptPod::Running(_) if *adopted => progress(s, None, *plan),
        AttemptPod::Absent => begin_attempt::not_started(s, attempt, None),
        AttemptPod::Running(pod) => begin_attempt::not_started(s, attempt, Some(pod)),
    }
}

/// An open attempt that has claimed its plan.
pub(super) fn claimed(
    s: &Situation<'_>,
    claim: &Claim,
    attempt: &Attempt,
    pod: &AttemptPod<'_>,
) -> Decision {
    let pod = match pod {
        AttemptPod::Unknown => return close_attempt::look_again(s.now),
        AttemptPod::Ended(pod) => return close_attempt::claimed(s, pod),
        AttemptPod::Absent => return close_attempt::claimed_and_gone(s, None),
        AttemptPod::Running(pod) => pod,
    };
    // The pod reports no end, so its node decides.
    match &s.fate {
        Fate::Unknown | Fate::Ready => progress(s, Some(claim), plan_of(s.status(), attempt)),
        Fate::Over(why) => close_attempt::claimed_and_gone(s, Some(why.clone())),
        Fate::Lost(view) => match (lost_node::abandon(s), lost_node::not_ready(s, pod, view)) {
            (Abandon::Yes(why), _) => close_attempt::unconfirmed(s, why),
            (_, Some(action)) => Decision::act(action),
            (Abandon::Waits(decision), None) => decision,
            (Abandon::No, None) => Decision::wait(),
        },
    }
}

/// For an unclaimed attempt on a lost node: reports the node, and after a wait closes the attempt so that another follows. Closing fences
/// the pod, so its state does not matter.
fn off(s: &Situation<'_>, open: &OpenAttempt<'_>, pod: &PodView) -> Option<Decision> {
    match &s.fate {
        Fate::Unknown | Fate::Ready => None,
        Fate::Over(why) => Some(close_attempt::node_lost(
            s,
            open,
            NodeLoss::Over(why.clone()),
        )),
        Fate::Lost(view) => Some(if let Some(action) = lost_node::not_ready(s, pod, view) {
            Decision::act(action)
        } else if s.now < lost_node::due(s, pod) {
            Decision::until(lost_node::due(s, pod), s.now)
        } else {
            close_attempt::node_lost(
                s,
                open,
                NodeLoss::NotReady {
                    node: view.name.clone(),
                    pod: pod.name.clone(),
                },
            )
        }),
    }
}

/// The agent works: handles approvals, and writes conditions that are worth a write.
fn progress(s: &Situation<'_>, claim: Option<&Claim>, plan: Option<&PlanStatus>) -> Decision {
    let (mode, status) = (s.run.approval_mode(), s.status());
    if let Some(decision) = datastore(s) {
        return decision;
    }
    if let (None, Some(plan), Some(Phase::AwaitingApproval), ApprovalMode::Manual) =
        (claim, plan, status.phase, mode)
    {
        return approval::decide(s, plan);
    }
    if let Some(decision) = stale_lock::decide(s) {
        return decision;
    }
    if let (None, Some(key), ApprovalMode::Automatic) =
        (claim, plan.and_then(|plan| plan.state_key.as_deref()), mode)
        && let Some(decision) = state_queue::before_claim(s, key)
    {
        return decision;
    }
    let refuses = lost_node::refuses(s);
    let abandon_refused = refuses && !lost_node::told_refusal(s);
    let mut working = Working {
        abandon_refused,
        planned: false,
        record: None,
    };
    let mut decision = Decision::wait();
    if let (Some(claim), Some(_)) = (claim, plan) {
        let due = after(claim.at.0, LATE_CONDITIONS);
        let planned = conditions::status(&status.conditions, conditions::PLANNED) == Some(true);
        if s.now >= due {
            (working.planned, working.record) = (!planned, lost_node::record(s, false));
        } else if !planned || !lost_node::is_recorded(s) {
            decision = Decision::until(due, s.now);
        }
    }
    decision
        .actions
        .push(Action::Write(Outcome::Working(working)));
    if refuses {
        decision.actions.push(Action::TakeOff(&lost_node::ABANDONS));
    }
    decision
}

/// Reports once that the datastore is away, and that it is back. A plan that waits for an approval needs it only afterwards.
fn datastore(s: &Situation<'_>) -> Option<Decision> {
    let status = s.status();
    let works = status.phase != Some(Phase::AwaitingApproval);
    let away = s.datastore_away.filter(|_| works);
    let told = status.condition(conditions::SUCCEEDED, reason::DATASTORE_UNAVAILABLE);
    (away.is_some() != told.is_some()).then(|| Decision::write(Outcome::Datastore(away.cloned())))
}
