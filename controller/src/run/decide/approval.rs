//! Approvals: `status.approval` follows the annotation until the claim freezes it.

use kube::ResourceExt;

use super::{
    slots::{self, Gate},
    state_queue::{self, Turn},
};
use crate::{
    run::{
        outcome::{Action, Approval, Consent, Decision, Outcome, Unapproved},
        say,
        situation::{Policies, Situation},
    },
    slots::Class,
};
use crds::{PlanStatus, approval, conditions, names, reason, text::clip};

/// Decides about a plan with changes, which waits for a person's approval.
pub(super) fn decide(s: &Situation<'_>, plan: &PlanStatus) -> Decision {
    let (run, status) = (s.run, s.status());
    let annotation = |name: &str| run.annotations().get(name).map(String::as_str);
    let told = conditions::status(&status.conditions, conditions::PLANNED) == Some(true);
    let told_stale = told
        && status
            .condition(conditions::PLANNED, reason::STALE_PLAN)
            .is_some();
    let stale = s.applied.filter(|_| !told_stale);
    let outcome = |consent| {
        Outcome::Approval(Approval {
            ready: !told,
            stale: stale.cloned(),
            consent,
        })
    };
    let settle = |consent| {
        Decision::all(
            say::news(run, s.now, outcome(consent))
                .into_iter()
                .collect(),
        )
    };
    if !approval::is_annotated(run.annotations(), &plan.checksum) {
        return settle(Consent::Missing(unapproved(s)));
    }
    let by = clip(annotation(names::APPROVED_BY).unwrap_or("unknown"), 512);
    let comment = annotation(names::COMMENT).map(|text| clip(text, 512));
    if status.approval.as_ref().is_some_and(|record| {
        record.checksum.as_deref() == Some(&plan.checksum)
            && record.by == by
            && record.comment == comment
    }) {
        if let (true, None, Some(key)) = (told, stale, &plan.state_key)
            && let Some(decision) = state_queue::before_claim(s, key)
        {
            return decision;
        }
        return settle(Consent::Recorded);
    }
    match s.policies {
        Policies::Enforced => {}
        Policies::Missing { missing, retry_at } => {
            let mut decision = Decision::until(retry_at, s.now);
            decision.actions.extend(say::news(
                run,
                s.now,
                outcome(Consent::Unproven(missing.clone())),
            ));
            return decision;
        }
        Policies::Unproven => return Decision::act(Action::ProbePolicies),
    }
    // Write approval and lease at once, so that a held pod may continue at once.
    let (mut lease, mut waits) = (None, None);
    match plan
        .state_key
        .as_ref()
        .map(|key| (key, state_queue::turn(s, key)))
    {
        // The write lets the pod start the apply at once, so the slot comes first.
        None | Some((_, Turn::Has)) if run.open_attempt().is_some() => match slots::gate(s) {
            Gate::Open => {}
            Gate::Ask => {
                return Decision::act(Action::TakeSlot {
                    class: Class::Apply,
                });
            }
            Gate::Shut(why) => return settle(Consent::Blocked(why)),
        },
        None | Some((_, Turn::Has)) => {}
        Some((_, Turn::Taken(taken))) => lease = Some(taken),
        Some((key, Turn::Take)) => return Decision::act(Action::TakeLease { key: key.clone() }),
        Some((_, Turn::Slot)) => {
            return Decision::act(Action::TakeSlot {
                class: Class::Apply,
            });
        }
        Some((_, Turn::Waits(wait))) => waits = Some(wait.why),
    }
    Decision::write(outcome(Consent::Given {
        by,
        comment,
        lease,
        waits,
    }))
}

/// Removes the approval of a run whose attempt has not started when its annotation is gone.
pub(super) fn withdrawal(s: &Situation<'_>, plan: &PlanStatus) -> Option<Outcome> {
    if s.status().approval.is_none() || approval::is_annotated(s.run.annotations(), &plan.checksum)
    {
        return None;
    }
    Some(Outcome::ApprovalRemoved(unapproved(s)))
}

/// Whether a person's approval is recorded. That of an Automatic run has no checksum; its plan waits if the agent could not read it.
fn recorded(s: &Situation<'_>) -> bool {
    let record = s.status().approval.as_ref();
    record.is_some_and(|record| record.checksum.is_some())
}

/// Why the annotation does not approve the plan.
fn unapproved(s: &Situation<'_>) -> Unapproved {
    let told = |reason| {
        s.status()
            .condition(conditions::APPROVED, reason)
            .is_some_and(|c| c.status == "False")
    };
    match s.run.annotations().get(names::APPROVE) {
        None if told(reason::UNVERIFIED) => Unapproved::Told,
        None if recorded(s) => Unapproved::Withdrawn,
        None if told(reason::WITHDRAWN) => Unapproved::Told,
        None => s.frozen.map_or(Unapproved::Waiting, |frozen| {
            Unapproved::Frozen(frozen.clone())
        }),
        Some(_) if told(reason::STALE_APPROVAL) => Unapproved::Told,
        Some(given) => Unapproved::OtherPlan(given.clone()),
    }
}
