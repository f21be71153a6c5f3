//! Approvals: `status.approval` is kept equal to the annotation until the claim freezes it.

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{
    draft::Draft,
    slots::{self, Gate},
    state_queue::{self, Turn},
};
use crate::{
    policies::Enforcement,
    run::{
        decision::{Action, Decision, Kind},
        observed::Observed,
        run_view::RunView,
        timing::after,
    },
    slots::Class,
};
use crds::{Attempt, PlanStatus, approval, conditions, names, reason, text::clip, whole_seconds};

/// A plan with changes waits for a person.
pub(super) fn decide(o: &Observed, plan: &PlanStatus, now: Timestamp) -> Decision {
    let (run, status) = (&o.run, o.status());
    let annotation = |name: &str| run.annotations().get(name).map(String::as_str);
    let mut draft = Draft::new(run, now);
    if conditions::status(&status.conditions, conditions::PLANNED) != Some(true) {
        draft.condition(conditions::PLANNED, Some(true), reason::PLANNED, &plan.summary);
        draft.note("PlanReady", false, format!("{} waits for approval: {}", plan.summary, plan.checksum));
    }
    says_it_is_stale(&mut draft, o, plan, now);
    if !approval::is_annotated(run.annotations(), &plan.checksum) {
        take_back(&mut draft, o, plan, now);
        return settle(draft);
    }
    let by = clip(annotation(names::APPROVED_BY).unwrap_or("unknown"), 512);
    let comment = annotation(names::COMMENT).map(|text| clip(text, 512));
    if status
        .approval
        .as_ref()
        .is_some_and(|record| record.checksum.as_deref() == Some(&plan.checksum) && record.by == by && record.comment == comment)
    {
        if let (true, Some(key)) = (draft.is_empty(), &plan.state_key)
            && let Some(decision) = state_queue::before_claim(o, key, now)
        {
            return decision;
        }
        return settle(draft);
    }
    match &o.policies {
        Enforcement::Enforced => {
            // Approval and lease are one write, so that a pod that is held may go on at once.
            match plan.state_key.as_ref().map(|key| (key, state_queue::turn(o, key, now))) {
                // Its pod would go on at once.
                None | Some((_, Turn::Has(false))) if o.run.open_attempt().is_some() => match slots::gate(o) {
                    Gate::Open => {}
                    Gate::Ask => return Decision::act(Action::TakeSlot { class: Class::Apply }),
                    Gate::Shut(reason, text) => {
                        draft.condition_if_new(conditions::APPROVED, Some(false), reason, &text);
                        return settle(draft);
                    }
                },
                None | Some((_, Turn::Has(false))) => {}
                Some((_, Turn::Has(true))) => state_queue::record(&mut draft, o),
                Some((key, Turn::Take)) => return Decision::act(Action::TakeLease { key: key.clone() }),
                Some((_, Turn::Slot)) => return Decision::act(Action::TakeSlot { class: Class::Apply }),
                Some((_, Turn::Waits(waits))) => state_queue::say(&mut draft, &waits),
            }
            let at = whole_seconds(now);
            draft.set(
                "approval",
                json!({"checksum": plan.checksum, "by": by, "comment": comment.clone().map_or(Value::Null, Value::from), "at": at}),
            );
            draft.condition(conditions::APPROVED, Some(true), reason::APPROVED, &format!("approved by {by}"));
            let said = comment.map(|text| format!(": {text}")).unwrap_or_default();
            draft.note("Approved", false, clip(&format!("{by} approved {}{said}", plan.checksum), 900));
            draft.condition_if_new(conditions::STALLED, Some(false), reason::PROGRESSING, "");
            Decision::act(Action::Write(draft.finish(Kind::Approval)))
        }
        Enforcement::NotEnforced { missing, retry_at } if now < *retry_at => {
            let mut decision = Decision::until(*retry_at, now);
            let stalled = o.status().condition(conditions::STALLED, missing.reason);
            if stalled.is_none_or(|c| c.status != "True") {
                draft.condition(conditions::STALLED, Some(true), missing.reason, &missing.text);
                draft.note(missing.reason, true, &missing.text);
            }
            if !draft.is_empty() {
                decision.actions.push(Action::Write(draft.finish(Kind::Conditions)));
            }
            decision
        }
        Enforcement::Unknown | Enforcement::NotEnforced { .. } => Decision::act(Action::ProbePolicies),
    }
}

/// What is taken away from a run whose attempt is still to start: nothing but an approval that no longer stands.
pub(super) fn withdrawal(o: &Observed, plan: &PlanStatus, now: Timestamp) -> Option<Action> {
    if o.status().approval.is_none() || approval::is_annotated(o.run.annotations(), &plan.checksum) {
        return None;
    }
    let mut draft = Draft::new(&o.run, now);
    take_back(&mut draft, o, plan, now);
    Some(Action::Write(draft.finish(Kind::Approval)))
}

/// The annotation does not approve this plan: nor does the record.
fn take_back(draft: &mut Draft<'_>, o: &Observed, plan: &PlanStatus, now: Timestamp) {
    if o.status().approval.is_some() {
        draft.clear("approval");
        state_queue::give_back(draft);
        slots::goes_on(draft);
        waits_again(draft, &o.run, plan, now);
    }
    match o.run.annotations().get(names::APPROVE) {
        None if is(o, reason::UNVERIFIED) => {}
        None if o.status().approval.is_some() => {
            draft.condition(conditions::APPROVED, Some(false), reason::WITHDRAWN, "the approval was withdrawn");
            draft.note("Withdrawn", false, format!("the approval of {} was withdrawn", plan.checksum));
        }
        None if is(o, reason::WITHDRAWN) => {}
        None => {
            draft.condition_if_new(conditions::APPROVED, Some(false), reason::WAITING, "nobody has approved the plan yet");
        }
        Some(_) if is(o, reason::STALE_APPROVAL) => {}
        Some(given) => {
            let text = format!("the plan that waits is {}, not {}; nothing was approved", plan.checksum, clip(given, 80));
            draft.condition(conditions::APPROVED, Some(false), reason::STALE_APPROVAL, &text);
            draft.note("StaleApproval", true, text);
        }
    }
}

/// The condition Approved is False for this reason.
fn is(o: &Observed, reason: &str) -> bool {
    o.status().condition(conditions::APPROVED, reason).is_some_and(|c| c.status == "False")
}

/// Nothing is held up; a write when anything changed.
fn settle(mut draft: Draft<'_>) -> Decision {
    if conditions::status(&draft.status().conditions, conditions::STALLED) != Some(false) {
        draft.condition(conditions::STALLED, Some(false), reason::PROGRESSING, "");
    }
    if draft.is_empty() { Decision::wait() } else { Decision::act(Action::Write(draft.finish(Kind::Approval))) }
}

/// Until when the plan waits for an approval.
pub(super) fn expires(run: &RunView, plan: &PlanStatus, attempt: &Attempt, now: Timestamp) -> Timestamp {
    let made = plan.created_at.as_ref().or(attempt.closed_at.as_ref()).or(attempt.opened_at.as_ref()).map_or(now, |t| t.0);
    after(made, SignedDuration::try_from(run.spec.approval.expires_after.0).unwrap_or(SignedDuration::MAX))
}

/// Says that the plan waits, and how to approve it.
pub(super) fn says_it_waits(draft: &mut Draft<'_>, run: &RunView, plan: &PlanStatus, attempt: &Attempt, now: Timestamp) {
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
    let caution = draft.whole().and_then(|_| plan.caution());
    let text = caution.into_iter().chain(stale).fold(text, |text, caution| format!("{text}; {caution}"));
    draft.message(&text);
    draft.set("nextStep", command);
}

/// Another run applied to the state after the plan was made: says so, once, and what to do instead of an approval. The plan waits on:
/// only the tool knows whether it can still be applied.
fn says_it_is_stale(draft: &mut Draft<'_>, o: &Observed, plan: &PlanStatus, now: Timestamp) {
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
fn waits_again(draft: &mut Draft<'_>, run: &RunView, plan: &PlanStatus, now: Timestamp) {
    if let Some(attempt) = draft.status().attempt.as_ref().filter(|attempt| !attempt.open) {
        says_it_waits(draft, run, plan, attempt, now);
    }
}
