//! Plans that wait for a person, and their approvals.

use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::{attempt::unblocked, lease, patch::StatusPatch};
use crate::{
    run::{
        outcome::{Approval, Consent, Unapproved},
        timing::expires,
    },
    state_queue::stale_plans::Applied,
};
use crds::{conditions, names, reason, text::clip};

/// Words the news of a plan with changes.
pub(super) fn approval(patch: &mut StatusPatch<'_>, approval: &Approval) {
    let status = patch.status();
    let Some(plan) = &status.plan else { return };
    if approval.ready {
        patch.condition(
            conditions::PLANNED,
            Some(true),
            reason::PLANNED,
            &plan.summary,
        );
        patch.note(
            "PlanReady",
            false,
            format!("{} waits for approval: {}", plan.summary, plan.checksum),
        );
    }
    if let Some(applied) = &approval.stale {
        stale(patch, applied);
    }
    match &approval.consent {
        Consent::Missing(why) => removed(patch, why),
        Consent::Recorded => {}
        Consent::Blocked(why) => {
            let (reason, text) = lease::words(why);
            patch.condition_if_new(conditions::APPROVED, Some(false), reason, &text);
        }
        Consent::Given {
            by,
            comment,
            lease,
            waits,
        } => {
            if let Some(lease) = lease {
                lease::taken(patch, lease);
            }
            if let Some(why) = waits {
                lease::queued(patch, why);
            }
            let at = patch.time();
            let record = comment.clone().map_or(Value::Null, Value::from);
            patch.set(
                "approval",
                json!({"checksum": plan.checksum, "by": by, "comment": record, "at": at}),
            );
            patch.condition(
                conditions::APPROVED,
                Some(true),
                reason::APPROVED,
                &format!("approved by {by}"),
            );
            let said = comment
                .as_ref()
                .map(|text| format!(": {text}"))
                .unwrap_or_default();
            patch.note(
                "Approved",
                false,
                clip(&format!("{by} approved {}{said}", plan.checksum), 900),
            );
            patch.condition_if_new(conditions::STALLED, Some(false), reason::PROGRESSING, "");
            return;
        }
        Consent::Unproven(missing) => {
            if status
                .condition(conditions::STALLED, missing.reason)
                .is_none_or(|c| c.status != "True")
            {
                patch.condition(
                    conditions::STALLED,
                    Some(true),
                    missing.reason,
                    &missing.text,
                );
                patch.note(missing.reason, true, &missing.text);
            }
            return;
        }
    }
    // Nothing blocks the run.
    if conditions::status(&status.conditions, conditions::STALLED) != Some(false) {
        patch.condition(conditions::STALLED, Some(false), reason::PROGRESSING, "");
    }
}

/// The annotation does not approve the plan: removes a recorded approval.
pub(super) fn removed(patch: &mut StatusPatch<'_>, why: &Unapproved) {
    let status = patch.status();
    let Some(plan) = &status.plan else { return };
    if status.approval.is_some() {
        patch.clear("approval");
        lease::give_back(patch);
        unblocked(patch);
        waits_again(patch);
    }
    match why {
        Unapproved::Withdrawn => {
            patch.condition(
                conditions::APPROVED,
                Some(false),
                reason::WITHDRAWN,
                "the approval was withdrawn",
            );
            patch.note(
                "Withdrawn",
                false,
                format!("the approval of {} was withdrawn", plan.checksum),
            );
        }
        Unapproved::OtherPlan(given) => {
            let text = format!(
                "the plan that waits is {}, not {}; nothing was approved",
                plan.checksum,
                clip(given, 80)
            );
            patch.condition(
                conditions::APPROVED,
                Some(false),
                reason::STALE_APPROVAL,
                &text,
            );
            patch.note("StaleApproval", true, text);
        }
        Unapproved::Waiting => {
            patch.condition_if_new(
                conditions::APPROVED,
                Some(false),
                reason::WAITING,
                "the plan is not approved yet",
            );
        }
        Unapproved::Frozen(frozen) => {
            let text = format!("the plan is not approved yet; {frozen}");
            patch.condition_if_new(conditions::APPROVED, Some(false), reason::FROZEN, &text);
        }
        Unapproved::Told => {}
    }
}

/// The wait of the plan, and the command that approves it.
pub(super) fn waits(patch: &mut StatusPatch<'_>) {
    let (run, status) = (patch.run(), patch.status());
    let (Some(plan), Some(attempt)) = (&status.plan, &status.attempt) else {
        return;
    };
    let until = expires(run, plan, attempt, patch.now())
        .strftime("%Y-%m-%d %H:%M:%S UTC")
        .to_string();
    let stale = patch
        .said(conditions::PLANNED, reason::STALE_PLAN)
        .map(str::to_owned);
    let (namespace, name) = (run.namespace().unwrap_or_default(), run.name_any());
    let command = match stale {
        Some(_) => names::replan_command(&namespace, &name),
        None => names::approve_command(&namespace, &name, &plan.checksum),
    };
    let text = format!(
        "plan {} waits for approval until {until}; no pod is held meanwhile: an approval starts one that applies this plan",
        plan.summary
    );
    let caution = patch.whole().and_then(|_| plan.caution());
    let text = caution
        .into_iter()
        .chain(stale)
        .fold(text, |text, caution| format!("{text}; {caution}"));
    patch.message(&text);
    patch.set("nextStep", command);
}

/// Another run applied to the state after the plan was made. The plan waits on: only the tool can tell whether it is still applicable.
fn stale(patch: &mut StatusPatch<'_>, applied: &Applied) {
    let at = applied.at.strftime("%Y-%m-%d %H:%M:%S UTC");
    let text = format!(
        "run {} applied to the same state at {at}, after this plan was made: applying it will most likely fail as {}, with nothing \
         changed; a fresh plan is needed",
        applied.run,
        reason::STALE_PLAN
    );
    patch
        .condition(conditions::PLANNED, Some(true), reason::STALE_PLAN, &text)
        .note(reason::STALE_PLAN, true, text);
    if patch.status().approval.is_none() {
        waits_again(patch);
    }
}

/// The plan waits again, if no attempt is open: an open one's agent owns the message.
pub(super) fn waits_again(patch: &mut StatusPatch<'_>) {
    if patch
        .status()
        .attempt
        .as_ref()
        .is_some_and(|attempt| !attempt.open)
    {
        waits(patch);
    }
}
