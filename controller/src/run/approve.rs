//! Approvals: `status.approval` is kept equal to the annotation until the claim freezes it.

use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Value, json};

use crds::{PlanStatus, conditions, names, reason, text::clip, whole_seconds};

use super::{
    actions::{Action, Decision, Gate, Kind, Observed},
    keep,
    lease::{self, Turn},
    status::Draft,
};

/// Shows whether the policies are installed.
pub(super) const POLICY_COMMAND: &str = "kubectl get validatingadmissionpolicies,validatingadmissionpolicybindings pawl-approval pawl-status \
                                  pawl-creation pawl-finalizer; install what is missing with the chart (policies.install=true)";

/// A plan with changes waits for a person.
pub(super) fn decide(o: &Observed, plan: &PlanStatus, now: Timestamp) -> Decision {
    let (run, status) = (&o.run, o.status());
    let annotation = |name: &str| run.annotations().get(name).map(String::as_str);
    let mut draft = Draft::new(run, status, now);
    if conditions::status(&status.conditions, conditions::PLANNED) != Some(true) {
        draft.condition(conditions::PLANNED, Some(true), reason::PLANNED, &plan.summary);
        draft.note("PlanReady", false, format!("{} waits for approval: {}", plan.summary, plan.checksum));
    }
    keep::tell_stale(&mut draft, o, plan, now);
    if !keep::annotated(run, plan) {
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
            && let Some(decision) = lease::before_claim(o, key, now)
        {
            return decision;
        }
        return settle(draft);
    }
    match &o.gate {
        Gate::Proven if o.gate_live => {
            // Approval and lease are one write, so that a pod that is held may go on at once.
            match plan.state_key.as_ref().map(|key| (key, lease::turn(o, key, now))) {
                None | Some((_, Turn::Has(false))) => {}
                Some((_, Turn::Has(true))) => lease::record(&mut draft, o),
                Some((key, Turn::Take)) => return Decision::act(Action::TakeLease { key: key.clone() }),
                Some((_, Turn::Waits(waits))) => lease::say(&mut draft, &waits),
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
        Gate::Refuted { missing, retry_at } if now < *retry_at => {
            let mut decision = Decision::until(*retry_at, now);
            let stalled = o
                .status()
                .conditions
                .iter()
                .any(|c| c.type_ == conditions::STALLED && c.status == "True" && c.reason == reason::POLICY_MISSING);
            if !stalled {
                draft.condition(conditions::STALLED, Some(true), reason::POLICY_MISSING, missing);
                draft.note(reason::POLICY_MISSING, true, missing.clone());
            }
            if !draft.is_empty() {
                decision.actions.push(Action::Write(draft.finish(Kind::Conditions)));
            }
            decision
        }
        Gate::Unknown | Gate::Proven | Gate::Refuted { .. } => Decision::act(Action::ProveGate),
    }
}

/// What is taken away from a run whose attempt is still to start: nothing but an approval that no longer stands.
pub(super) fn withdrawal(o: &Observed, plan: &PlanStatus, now: Timestamp) -> Option<Action> {
    if o.status().approval.is_none() || keep::annotated(&o.run, plan) {
        return None;
    }
    let mut draft = Draft::new(&o.run, o.status(), now);
    take_back(&mut draft, o, plan, now);
    Some(Action::Write(draft.finish(Kind::Approval)))
}

/// The annotation does not approve this plan: nor does the record.
fn take_back(draft: &mut Draft<'_>, o: &Observed, plan: &PlanStatus, now: Timestamp) {
    if o.status().approval.is_some() {
        draft.clear("approval");
        lease::give_back(draft);
        keep::waits_again(draft, &o.run, plan, now);
    }
    match o.run.annotations().get(names::APPROVE) {
        None if o.status().approval.is_some() => {
            draft.condition(conditions::APPROVED, Some(false), reason::WITHDRAWN, "the approval was withdrawn");
            draft.note("Withdrawn", false, format!("the approval of {} was withdrawn", plan.checksum));
        }
        None if is(o, reason::WITHDRAWN) || is(o, reason::VOID) => {}
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
    let approved = o.status().conditions.iter().find(|c| c.type_ == conditions::APPROVED);
    approved.is_some_and(|c| c.status == "False" && c.reason == reason)
}

/// Nothing is held up; a write when anything changed.
fn settle(mut draft: Draft<'_>) -> Decision {
    if conditions::status(&draft.status().conditions, conditions::STALLED) != Some(false) {
        draft.condition(conditions::STALLED, Some(false), reason::PROGRESSING, "");
    }
    if draft.is_empty() { Decision::wait() } else { Decision::act(Action::Write(draft.finish(Kind::Approval))) }
}
