//! Plans that outlive their pods: what becomes of a plan whose bundle is in the datastore when its pod ends, and how an approval
//! brings it back (`design/0001-run-protocol.md`, "A plan that waits without a pod").

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use kube::ResourceExt;

use crds::{
    ApprovalMode, Attempt, Changed, Failure, FailureClass, Phase, PlanStatus, RunResult, TerraformRun, TerraformRunStatus,
    conditions, names, reason,
};

use super::{
    actions::{Action, Decision, Kind, Observed, PodView, Write},
    approve, close,
    decide::{after, backoff, gated},
    lease,
    start::{self, Opening},
    status::{Draft, End, of_tries},
};
pub(super) use crate::requests::annotated;
use crate::{runner_pod, settings::Settings};

/// The plan that this attempt may apply: the one that it made, or the one that it restores.
pub(super) fn plan_of<'a>(status: &'a TerraformRunStatus, attempt: &Attempt) -> Option<&'a PlanStatus> {
    status.plan.as_ref().filter(|plan| plan.attempt == attempt.number || attempt.restores == Some(plan.attempt))
}

/// The plan that waits for a person and needs no pod to do so.
pub(super) fn kept(o: &Observed) -> Option<(&PlanStatus, &Attempt)> {
    let (run, status) = (&o.run, o.status());
    let waits =
        status.phase == Some(Phase::AwaitingApproval) && status.claim.is_none() && run.spec.approval.mode == ApprovalMode::Manual;
    let attempt = status.attempt.as_ref().filter(|_| waits)?;
    plan_of(status, attempt).filter(|plan| plan.bundle.is_some()).map(|plan| (plan, attempt))
}

/// Until when the plan waits for an approval.
fn expires(run: &TerraformRun, plan: &PlanStatus, attempt: &Attempt, now: Timestamp) -> Timestamp {
    let made = plan.created_at.as_ref().or(attempt.closed_at.as_ref()).or(attempt.opened_at.as_ref()).map_or(now, |t| t.0);
    after(made, SignedDuration::try_from(run.spec.approval.expires_after.0).unwrap_or(SignedDuration::MAX))
}

/// Says that the plan waits, and how to approve it.
pub(super) fn waits(draft: &mut Draft<'_>, run: &TerraformRun, plan: &PlanStatus, attempt: &Attempt, now: Timestamp) {
    let until = expires(run, plan, attempt, now).to_zoned(TimeZone::UTC).strftime("%Y-%m-%d %H:%M:%S UTC").to_string();
    let stale = draft.said(conditions::PLANNED, reason::STALE_PLAN).map(str::to_owned);
    let (namespace, name) = (run.namespace().unwrap_or_default(), run.name_any());
    let command = match stale {
        Some(_) => names::replan_command(&namespace, &name),
        None => names::approve_command(&namespace, &name, &plan.checksum),
    };
    let text = format!(
        "plan {} waits for approval until {until}; no pod is held meanwhile: an approval starts one that applies this plan",
        plan.summary
    );
    let text = plan.caution().into_iter().chain(stale).fold(text, |text, caution| format!("{text}; {caution}"));
    draft.message(&text);
    draft.set("nextStep", command);
}

/// Another run applied to the state after the plan was made: says so, once, and what to do instead of an approval. The plan waits on:
/// only the tool knows whether it can still be applied.
pub(super) fn tell_stale(draft: &mut Draft<'_>, o: &Observed, plan: &PlanStatus, now: Timestamp) {
    let Some(applied) = &o.applied else { return };
    if draft.said(conditions::PLANNED, reason::STALE_PLAN).is_some() {
        return;
    }
    let at = applied.at.to_zoned(TimeZone::UTC).strftime("%Y-%m-%d %H:%M:%S UTC");
    let text = format!(
        "run {} applied to the same state at {at}, after this plan was made: to apply it will most likely fail as {}, with nothing \
         changed; a fresh plan is needed",
        applied.run,
        reason::STALE_PLAN
    );
    draft.condition(conditions::PLANNED, Some(true), reason::STALE_PLAN, &text).note(reason::STALE_PLAN, true, text);
    if o.status().approval.is_none() {
        waits_again(draft, &o.run, plan, now);
    }
}

/// An approval was taken back while no attempt was open: the plan waits again.
pub(super) fn waits_again(draft: &mut Draft<'_>, run: &TerraformRun, plan: &PlanStatus, now: Timestamp) {
    if let Some(attempt) = draft.status().attempt.as_ref().filter(|attempt| !attempt.open) {
        waits(draft, run, plan, attempt, now);
    }
}

/// A newer run of the same workspace has made its plan, and nobody has approved this one's.
pub(super) fn superseded(o: &Observed) -> Option<End> {
    let status = o.status();
    let waits = status.phase == Some(Phase::AwaitingApproval) && status.claim.is_none() && status.approval.is_none();
    let newer = o.newer.as_ref().filter(|_| waits)?;
    let message = format!("superseded by {newer}, a newer run of the same workspace; nothing was applied");
    Some(End { result: RunResult::Superseded, message, failure: None })
}

/// The plan that may be claimed next was made before the cluster or its datastore was restored, as the operator says: nobody knows
/// any more whether it was applied. The policy `pawl-status` refuses its claim whatever this process does; here its run ends.
pub(super) fn before_restore(o: &Observed, settings: &Settings) -> Option<End> {
    let (status, before) = (o.status(), settings.refuse_plans_before?);
    let may_claim = matches!(status.phase, Some(Phase::Plan | Phase::AwaitingApproval)) && status.claim.is_none();
    let plan = plan_of(status, status.attempt.as_ref().filter(|_| may_claim)?)?;
    let made = plan.created_at.as_ref().map(|at| at.0);
    if made.is_some_and(|made| made >= before) {
        return None;
    }
    let when = made.map_or_else(|| "at an unknown time".to_owned(), |made| format!("at {made}"));
    let message = format!(
        "the plan was made {when}, before the restore of {before} (controller.refusePlansBefore): it may have been applied \
         since; nothing is applied now, and a fresh plan is needed"
    );
    let failure = Failure {
        class: FailureClass::StalePlan,
        reason: reason::PLAN_BEFORE_RESTORE.into(),
        message: message.clone(),
        changes: Changed::Unknown,
        diagnostics: Vec::new(),
    };
    Some(End { result: RunResult::Failed, message, failure: Some(failure) })
}

/// No attempt is open and the plan waits: it expires, is superseded, or is approved and gets a pod.
pub(super) fn wait(o: &Observed, plan: &PlanStatus, attempt: &Attempt, settings: &Settings, now: Timestamp) -> Decision {
    let (run, status) = (&o.run, o.status());
    if let Some(end) = superseded(o).or_else(|| before_restore(o, settings)) {
        return ends(o, &end, now);
    }
    let expiry = expires(run, plan, attempt, now);
    if status.approval.is_none() && now >= expiry {
        let message = "nobody approved the plan in time; nothing was applied".to_owned();
        return ends(o, &End { result: RunResult::Expired, message, failure: None }, now);
    }
    let mut decision = approve::decide(o, plan, now);
    let Some(by) = status.approval.as_ref().filter(|record| record.checksum.as_deref() == Some(&plan.checksum)) else {
        if decision.actions.is_empty() {
            let due = Decision::until(expiry, now).requeue;
            decision.requeue = decision.requeue.into_iter().chain(due).min();
        }
        return decision;
    };
    if !decision.actions.is_empty() || decision.requeue.is_some() {
        return decision;
    }
    if attempt.restores.is_some() && status.failure.is_some() {
        let closed = attempt.closed_at.as_ref().map_or(now, |t| t.0);
        let due = after(closed, backoff(attempt.tries));
        if now < due {
            return Decision::until(due, now);
        }
    }
    if let Some(decision) = gated(o, now) {
        return decision;
    }
    Decision::act(Action::Write(restore(o, plan, attempt, &by.by, settings, now)))
}

fn ends(o: &Observed, end: &End, now: Timestamp) -> Decision {
    let mut draft = Draft::new(&o.run, o.status(), now);
    draft.end(end);
    lease::give_back(&mut draft);
    Decision::act(Action::Write(draft.finish(Kind::End)))
}

/// Opens an attempt that applies the plan of an older one, in the image that made it. Making a plan used up none of its tries.
fn restore(o: &Observed, plan: &PlanStatus, last: &Attempt, by: &str, settings: &Settings, now: Timestamp) -> Write {
    let run = &o.run;
    let tries = if last.restores == Some(plan.attempt) { last.tries + 1 } else { 1 };
    let image = runner_pod::attempt_image(run, last, settings);
    let mut draft = Draft::new(run, o.status(), now);
    let opening = Opening { number: last.number + 1, tries, image, restores: Some(plan.attempt) };
    let name = start::begin(&mut draft, run, &opening);
    let text = restoring_message(run, &name, by, tries);
    draft.message(&text).line("Restore", &text);
    draft.finish(Kind::Open)
}

/// The message of a run whose attempt restores a plan.
pub(super) fn restoring_message(run: &TerraformRun, name: &str, by: &str, tries: u32) -> String {
    let again = if tries > 1 { format!(" ({})", of_tries(run, tries)) } else { String::new() };
    format!("approved by {by}; pod {name} restores the plan and applies it{again}")
}

/// The pod of a plan that needs none has ended or is gone, without a result and without a failure that ends the run. `quiet`:
/// it said that it ends as planned.
pub(super) fn close(
    o: &Observed,
    pod: Option<&PodView>,
    failure: Option<Failure>,
    quiet: bool,
    now: Timestamp,
) -> Option<Decision> {
    let (plan, attempt) = kept(o)?;
    let (run, status) = (&o.run, o.status());
    let mut draft = Draft::new(run, status, now);
    draft.close();
    let failure = failure.unwrap_or_else(|| close::lost(attempt, pod));
    if attempt.restores.is_none() || (quiet && status.approval.is_none()) {
        waits(&mut draft, run, plan, attempt, now);
        draft.clear("failure");
        draft.condition_if_new(conditions::STALLED, Some(false), reason::PROGRESSING, "");
        if attempt.restores.is_some() {
            // It waited for an approval that had been taken back, and failed at nothing.
            draft.uncount(attempt);
        }
        if !quiet {
            let text = format!("{}; the plan is kept and waits without it", failure.message);
            draft.line("Kept", &text).note("PlanKept", false, text);
        }
        return Some(close::closing(o, attempt, draft.finish(Kind::Close)));
    }
    let tried = of_tries(run, attempt.tries);
    if attempt.tries > run.spec.retry.limit {
        let message = format!("{tried} to restore and apply the plan ended: {}; nothing was applied", failure.message);
        draft.end(&End { result: RunResult::Failed, message, failure: Some(failure) });
        lease::give_back(&mut draft);
        return Some(close::closing(o, attempt, draft.finish(Kind::End)));
    }
    let next = after(now, backoff(attempt.tries));
    let text = format!("{tried} to restore and apply the plan ended: {}", failure.message);
    let text = if status.approval.is_some() {
        let text = format!("{text}; the next begins at {}", next.strftime("%H:%M:%S"));
        draft.message(&text).clear("nextStep");
        text
    } else {
        waits(&mut draft, run, plan, attempt, now);
        format!("{text}; the plan is kept and waits for an approval")
    };
    draft.failure(&failure).line("Retry", &text);
    draft.condition_if_new(conditions::STALLED, Some(false), reason::RETRYING, &text);
    draft.note("Retrying", true, text);
    Some(close::closing(o, attempt, draft.finish(Kind::Close)))
}
