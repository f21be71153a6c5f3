//! Attempts that are open: an agent works, somebody asks for the end, or the pod's node is lost.

use jiff::Timestamp;

use super::{
    approval, begin, close,
    draft::{Draft, End},
    lost_node::{self, Abandon, Fate},
    slots, stale_lock, state_queue, waiting_plan,
};
use crate::{
    run::{
        decision::{Action, Decision, Kind},
        observed::Observed,
        situation::{AttemptPod, OpenAttempt, plan_of},
        timing::{ASK_GRACE, END_GRACE, LATE_CONDITIONS, after},
    },
    runner_pod::status::PodView,
    settings::Settings,
};
use crds::{ApprovalMode, Attempt, Claim, Phase, PlanStatus, RunResult, conditions, reason};

/// Somebody asks that a run without a claim comes to an end: its agent is given time to say so itself.
pub(super) fn stopping(o: &Observed, open: &OpenAttempt<'_>, result: RunResult, why: &str, now: Timestamp) -> Decision {
    let early = || close::early(o, open.attempt, &End::stopped(result, why), now);
    match open.pod {
        AttemptPod::Unknown => close::look_again(now),
        AttemptPod::Running(pod) if open.adopted => {
            let late = after(o.notes.asked_at.unwrap_or(now), ASK_GRACE);
            let last = after(late, END_GRACE);
            if now < late {
                Decision::until(late, now)
            } else if !pod.deleting {
                Decision::act(Action::delete(pod))
            } else if now < last {
                Decision::until(last, now)
            } else {
                early()
            }
        }
        AttemptPod::Running(_) | AttemptPod::Ended(_) | AttemptPod::Absent => early(),
    }
}

/// An attempt is open, nothing was claimed, and nobody asks for the end.
pub(super) fn unclaimed(o: &Observed, open: &OpenAttempt<'_>, settings: &Settings, now: Timestamp) -> Decision {
    let OpenAttempt { attempt, pod, adopted, plan, waiting } = open;
    if let AttemptPod::Running(_) | AttemptPod::Absent = pod
        && let Some(end) = waiting_plan::superseded(o).or_else(|| waiting_plan::before_restore(o, settings))
    {
        return close::early(o, attempt, &end, now);
    }
    if let AttemptPod::Running(pod) = pod
        && let Some(decision) = off(o, open, pod, now)
    {
        return decision;
    }
    if let (false, Some(action)) = (adopted, waiting.and_then(|plan| approval::withdrawal(o, plan, now))) {
        return Decision::act(action);
    }
    if let (true, AttemptPod::Running(_), Some(write)) = (*adopted, pod, slots::ends_hold(o, open, now)) {
        return Decision::act(Action::Write(write));
    }
    match pod {
        AttemptPod::Unknown => close::look_again(now),
        AttemptPod::Ended(pod) => close::unclaimed(o, open, Some(pod), now),
        AttemptPod::Absent if *adopted => close::unclaimed(o, open, None, now),
        AttemptPod::Running(_) if *adopted => progress(o, None, *plan, now),
        AttemptPod::Absent => begin::not_started(o, attempt, None, settings, now),
        AttemptPod::Running(pod) => begin::not_started(o, attempt, Some(pod), settings, now),
    }
}

/// An attempt is open, and has claimed its plan.
pub(super) fn claimed(
    o: &Observed,
    claim: &Claim,
    attempt: &Attempt,
    pod: &AttemptPod<'_>,
    settings: &Settings,
    now: Timestamp,
) -> Decision {
    let pod = match pod {
        AttemptPod::Unknown => return close::look_again(now),
        AttemptPod::Ended(pod) => return close::claimed(o, pod, settings, now),
        AttemptPod::Absent => return close::claimed_and_gone(o, attempt, None, settings, now),
        AttemptPod::Running(pod) => pod,
    };
    // It has not ended as far as anybody knows: its node has to say so.
    match lost_node::fate(o) {
        Fate::Unknown | Fate::Ready => progress(o, Some(claim), plan_of(o.status(), attempt), now),
        Fate::Over(why) => close::claimed_and_gone(o, attempt, Some(&why), settings, now),
        Fate::Lost(view) => match (lost_node::abandon(o, now), lost_node::says(o, pod, view, now)) {
            (Abandon::Yes(text), _) => close::unconfirmed(o, &text, settings, now),
            (_, Some(write)) => Decision::act(Action::Write(write)),
            (Abandon::Waits(decision), None) => decision,
            (Abandon::No, None) => Decision::wait(),
        },
    }
}

/// The pod of an attempt without a claim is on a node that is lost: the run says so, and after a time another attempt follows.
/// Closing this one is the fence, so that nothing has to be known of its pod.
fn off(o: &Observed, open: &OpenAttempt<'_>, pod: &PodView, now: Timestamp) -> Option<Decision> {
    match lost_node::fate(o) {
        Fate::Unknown | Fate::Ready => None,
        Fate::Over(why) => Some(close::node_lost(o, open.attempt, open.waiting, &why, now)),
        Fate::Lost(view) => Some(if let Some(write) = lost_node::says(o, pod, view, now) {
            Decision::act(Action::Write(write))
        } else if now < lost_node::due(o, pod, now) {
            Decision::until(lost_node::due(o, pod, now), now)
        } else {
            let why = format!("node {} of pod {} is lost", view.name, pod.name);
            close::node_lost(o, open.attempt, open.waiting, &why, now)
        }),
    }
}

/// The agent works: approvals, and conditions that are worth a write.
fn progress(o: &Observed, claim: Option<&Claim>, plan: Option<&PlanStatus>, now: Timestamp) -> Decision {
    let (mode, status) = (o.run.approval_mode(), o.status());
    if let (None, Some(plan), Some(Phase::AwaitingApproval), ApprovalMode::Manual) = (claim, plan, status.phase, mode) {
        return approval::decide(o, plan, now);
    }
    if let Some(decision) = stale_lock::decide(o, now) {
        return decision;
    }
    if let (None, Some(key), ApprovalMode::Automatic) = (claim, plan.and_then(|plan| plan.state_key.as_deref()), mode)
        && let Some(decision) = state_queue::before_claim(o, key, now)
    {
        return decision;
    }
    let mut draft = Draft::new(&o.run, now);
    lost_node::goes_on(&mut draft, o);
    let mut decision = Decision::wait();
    if let (Some(claim), Some(plan)) = (claim, plan) {
        let due = after(claim.at.0, LATE_CONDITIONS);
        if now >= due {
            if conditions::status(&status.conditions, conditions::PLANNED) != Some(true) {
                draft.condition(conditions::PLANNED, Some(true), reason::PLANNED, &plan.summary);
            }
            lost_node::record(&mut draft, o, false);
        } else if conditions::status(&status.conditions, conditions::PLANNED) != Some(true) || !lost_node::is_recorded(o) {
            decision = Decision::until(due, now);
        }
    }
    if !draft.is_empty() {
        decision.actions.push(Action::Write(draft.finish(Kind::Conditions)));
    }
    if lost_node::refuses(o) {
        decision.actions.push(Action::TakeOff(&lost_node::ABANDONS));
    }
    decision
}
