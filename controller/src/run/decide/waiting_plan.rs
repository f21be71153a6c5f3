//! Plans that outlive their pods: what becomes of a plan whose bundle is in the datastore when its pod ends, and how an approval
//! brings it back (`design/0001-run-protocol.md`, "A plan that waits without a pod").

use jiff::Timestamp;

use super::{
    approval,
    begin::{self, Opening, restoring_message},
    draft::{Draft, End, of_tries},
    policies,
    release::{self, closing},
    slots, state_queue,
};
use crate::{
    run::{
        decision::{Action, Decision, Kind, Write},
        observed::Observed,
        situation::plan_of,
        timing::{after, backoff, next_due},
    },
    runner_pod,
    settings::Settings,
    slots::Class,
};
use crds::{Attempt, Changed, Failure, FailureClass, Phase, PlanStatus, RunResult, conditions, reason};

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
    let status = o.status();
    if let Some(end) = superseded(o).or_else(|| before_restore(o, settings)) {
        return release::end(o, &end, now);
    }
    let expiry = approval::expires(&o.run, plan, attempt, now);
    if status.approval.is_none() && now >= expiry {
        let message = "nobody approved the plan in time; nothing was applied".to_owned();
        return release::end(o, &End { result: RunResult::Expired, message, failure: None }, now);
    }
    let mut decision = approval::decide(o, plan, now);
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
        let due = next_due(attempt, now);
        if now < due {
            return Decision::until(due, now);
        }
    }
    if let Some(decision) = slots::still_waits(o).or_else(|| policies::wait(o, now)).or_else(|| slots::frozen(o, now)) {
        return decision;
    }
    if let Some(decision) = slots::before_opening(o, Class::Apply, now) {
        return decision;
    }
    let Some(whole) = o.run.whole() else { return Decision::act(Action::Read) };
    let image = runner_pod::attempt_image(whole, attempt, settings);
    Decision::act(Action::Write(restore(o, plan, attempt, &by.by, image, now)))
}

/// Opens an attempt that applies the plan of an older one, in the image that made it. Making a plan used up none of its tries.
fn restore(o: &Observed, plan: &PlanStatus, last: &Attempt, by: &str, image: &str, now: Timestamp) -> Write {
    let run = &o.run;
    let tries = if last.restores == Some(plan.attempt) { last.tries + 1 } else { 1 };
    let mut draft = Draft::new(run, now);
    let opening = Opening { number: last.number + 1, tries, image, restores: Some(plan.attempt) };
    let name = begin::opens(&mut draft, run, &opening);
    let text = restoring_message(run, &name, by, tries);
    draft.message(&text).line("Restore", &text);
    draft.finish(Kind::Open)
}

/// The pod of a plan that needs none has ended or is gone, without a result and without a failure that ends the run. `quiet`:
/// it said that it ends as planned.
pub(super) fn close(
    o: &Observed,
    plan: &PlanStatus,
    attempt: &Attempt,
    failure: Failure,
    quiet: bool,
    now: Timestamp,
) -> Decision {
    let (run, status) = (&o.run, o.status());
    let mut draft = Draft::new(run, now);
    draft.close();
    if attempt.restores.is_none() || (quiet && status.approval.is_none()) {
        approval::says_it_waits(&mut draft, run, plan, attempt, now);
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
        return closing(o, attempt, draft.finish(Kind::Close));
    }
    let tried = of_tries(run, attempt.tries);
    if attempt.tries > run.spec.retry.limit {
        let message = format!("{tried} to restore and apply the plan ended: {}; nothing was applied", failure.message);
        draft.end(&End { result: RunResult::Failed, message, failure: Some(failure) });
        state_queue::give_back(&mut draft);
        return closing(o, attempt, draft.finish(Kind::End));
    }
    let next = after(now, backoff(attempt.tries));
    let text = format!("{tried} to restore and apply the plan ended: {}", failure.message);
    let text = if status.approval.is_some() {
        let text = format!("{text}; the next begins at {}", next.strftime("%H:%M:%S"));
        draft.message(&text).clear("nextStep");
        text
    } else {
        approval::says_it_waits(&mut draft, run, plan, attempt, now);
        format!("{text}; the plan is kept and waits for an approval")
    };
    draft.failure(&failure).line("Retry", &text);
    draft.condition_if_new(conditions::STALLED, Some(false), reason::RETRYING, &text);
    draft.note("Retrying", true, text);
    closing(o, attempt, draft.finish(Kind::Close))
}
