//! Plans that outlive their pods: the fate of a plan whose bundle is in the datastore when its pod ends, and how an approval restores it
//! (`design/0001-run-protocol.md`, "A plan that waits without a pod").

use super::{
    approval,
    cleanup::{self, closing},
    policies, slots,
};
use crate::{
    run::{
        outcome::{Action, Cause, Decision, Ending, Opening, Outcome, RunEnd},
        situation::{Situation, plan_of},
        timing::{after, backoff, expires, next_due},
    },
    runner_pod,
    slots::Class,
};
use crds::{Attempt, Phase, PlanStatus};

/// A newer run of the same workspace has made its plan, and this run's is not approved.
pub(super) fn superseded(s: &Situation<'_>) -> Option<Ending> {
    let status = s.status();
    let waits = status.phase == Some(Phase::AwaitingApproval)
        && status.claim.is_none()
        && status.approval.is_none();
    s.newer.filter(|_| waits).map(|newer| Ending::Superseded {
        by: newer.to_owned(),
    })
}

/// Ends a run whose plan was made before the configured restore of cluster or datastore, since it is unknown whether that plan was applied.
/// The policy `pawl-status` refuses the claim independently of this process.
pub(super) fn before_restore(s: &Situation<'_>) -> Option<Ending> {
    let (status, restored) = (s.status(), s.settings.refuse_plans_before?);
    let may_claim = matches!(status.phase, Some(Phase::Plan | Phase::AwaitingApproval))
        && status.claim.is_none();
    let plan = plan_of(status, status.attempt.as_ref().filter(|_| may_claim)?)?;
    let made = plan.created_at.as_ref().map(|at| at.0);
    if made.is_some_and(|made| made >= restored) {
        return None;
    }
    Some(Ending::PlanBeforeRestore { made, restored })
}

/// For a waiting plan without an open attempt: it expires, is superseded, or is approved and gets a pod.
pub(super) fn wait(s: &Situation<'_>, plan: &PlanStatus, attempt: &Attempt) -> Decision {
    let status = s.status();
    if let Some(ending) = superseded(s).or_else(|| before_restore(s)) {
        return cleanup::end(ending);
    }
    let expiry = expires(s.run, plan, attempt, s.now);
    if status.approval.is_none() && s.now >= expiry {
        return cleanup::end(Ending::Expired);
    }
    let mut decision = approval::decide(s, plan);
    let Some(approved) = status
        .approval
        .as_ref()
        .filter(|record| record.checksum.as_deref() == Some(&plan.checksum))
    else {
        if decision.actions.is_empty() {
            let due = Decision::until(expiry, s.now).requeue;
            decision.requeue = decision.requeue.into_iter().chain(due).min();
        }
        return decision;
    };
    if !decision.actions.is_empty() || decision.requeue.is_some() {
        return decision;
    }
    if attempt.restores.is_some() && status.failure.is_some() {
        let due = next_due(attempt, s.now);
        if s.now < due {
            return Decision::until(due, s.now);
        }
    }
    if let Some(decision) = slots::still_waits(s)
        .or_else(|| policies::wait(s))
        .or_else(|| slots::frozen(s))
    {
        return decision;
    }
    if let Some(decision) = slots::before_opening(s, Class::Apply) {
        return decision;
    }
    let Some(whole) = s.run.whole() else {
        return Decision::act(Action::Read);
    };
    // The image that made the plan. Making the plan used up none of these tries.
    let image = runner_pod::attempt_image(whole, attempt, s.settings).to_owned();
    let tries = if attempt.restores == Some(plan.attempt) {
        attempt.tries + 1
    } else {
        1
    };
    let opening = Opening {
        number: attempt.number + 1,
        tries,
        image,
        restores: Some(plan.attempt),
    };
    Decision::write(Outcome::RestoreOpened {
        opening,
        by: approved.by.clone(),
    })
}

/// Closes the attempt of a stored plan whose pod has ended or is gone, without a result or a failure that ends the run. `quiet`: the pod
/// ended as announced.
pub(super) fn close(s: &Situation<'_>, attempt: &Attempt, cause: Cause, quiet: bool) -> Decision {
    let outcome = if attempt.restores.is_none() || (quiet && s.status().approval.is_none()) {
        Outcome::PlanKept {
            lost: (!quiet).then_some(cause),
        }
    } else if attempt.tries > s.run.spec.retry.limit {
        Outcome::Ended(RunEnd::unclaimed(
            Ending::TriesUsedUp {
                cause,
                restoring: true,
            },
            true,
            None,
        ))
    } else {
        Outcome::RestoreRetried {
            cause,
            next: after(s.now, backoff(attempt.tries)),
        }
    };
    closing(s, attempt, outcome)
}
