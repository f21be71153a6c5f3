//! The beginning of an attempt: opened, its pod created, not yet adopted.

use jiff::{SignedDuration, Timestamp};

use super::{cleanup::closing, policies, slots, state_queue};
use crate::{
    run::{
        expectations::PodRejection,
        outcome::{Action, Decision, Ending, Opening, Outcome, RunEnd},
        situation::Situation,
        timing::{CALLS, after, next_due, wait},
    },
    runner_pod::{
        self,
        status::{PodView, Trouble},
    },
    slots::Class,
    state_queue::lease_request::requested_lease,
};
use crds::{ApprovalMode, Attempt, reason};

/// Opens the first or the next attempt of a run that has not ended.
pub(super) fn next(s: &Situation<'_>) -> Decision {
    let status = s.status();
    if let Some(attempt) = status.attempt.as_ref().filter(|_| status.failure.is_some()) {
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
    // The cached form has neither the state key nor the image.
    let Some(whole) = s.run.whole() else {
        return Decision::act(Action::Read);
    };
    if s.run.spec.approval.mode == ApprovalMode::Automatic
        && let Some(want) = requested_lease(whole, false, s.settings.has_datastore())
        && let Some(decision) = state_queue::before_opening(s, &want.key)
    {
        return decision;
    }
    // Last, so that a run holds no slot while it waits for something else.
    if let Some(decision) = slots::before_opening(s, Class::Plan) {
        return decision;
    }
    let (number, tries) = status
        .attempt
        .as_ref()
        .map_or((1, 1), |old| (old.number + 1, old.tries + 1));
    let image = runner_pod::image(whole, s.settings).to_owned();
    let opening = Opening {
        number,
        tries,
        image,
        restores: None,
    };
    Decision::write(Outcome::Opened {
        opening,
        lease: state_queue::taken(s),
    })
}

/// The latest time for the adoption of the attempt.
fn deadline(s: &Situation<'_>, attempt: &Attempt) -> Timestamp {
    let start =
        SignedDuration::try_from(s.run.spec.timeouts.start.0).unwrap_or(SignedDuration::MAX);
    after(attempt.opened_at.as_ref().map_or(s.now, |t| t.0), start)
}

/// No agent has adopted the attempt: creates its pod, waits for it, or fails the run at the deadline.
pub(super) fn not_started(s: &Situation<'_>, attempt: &Attempt, pod: Option<&PodView>) -> Decision {
    let deadline = deadline(s, attempt);
    let refused = s
        .notes
        .refused
        .as_ref()
        .filter(|refused| refused.attempt == attempt.number);
    let trouble = pod
        .and_then(|pod| pod.trouble.clone())
        .or_else(|| match pod {
            None => refused.map(|refused| refused.trouble.clone()),
            Some(_) => None,
        });
    if s.now >= deadline {
        return give_up(s, attempt, trouble);
    }
    let created = s.notes.created.as_ref().filter(|created| {
        created.attempt == attempt.number && attempt.pod_uid.as_ref() != Some(&created.uid)
    });
    if let (None, Some(created)) = (pod, created) {
        return Decision::write(Outcome::Starting {
            pod: Some(created.uid.clone()),
        });
    }
    let mut decision = Decision::until(deadline, s.now);
    if pod.is_none() {
        let due = refused.map_or(s.now, |refused: &PodRejection| refused.retry_at);
        if s.now >= due {
            return Decision::act(Action::CreatePod);
        }
        decision = Decision::until(due.min(deadline), s.now);
    }
    let outcome = match trouble {
        Some(trouble) => Some(Outcome::NotStarting {
            trouble,
            until: deadline,
        }),
        None if pod.is_some() => Some(Outcome::Starting { pod: None }),
        None => None,
    };
    decision.actions.extend(outcome.map(Action::Write));
    decision
}

/// The deadline has passed: closes the attempt, deletes its pod and ends the run as Failed.
fn give_up(s: &Situation<'_>, attempt: &Attempt, trouble: Option<Trouble>) -> Decision {
    let trouble = trouble
        .or_else(|| s.status().stalled())
        .unwrap_or_else(|| Trouble {
            reason: reason::POD_NOT_STARTED,
            text: format!("pod {} did not report", attempt.pod_name),
        });
    let Some(run) = s.run.whole() else {
        return Decision::act(Action::Read);
    };
    let not_pulled = trouble.reason == reason::IMAGE_NOT_AVAILABLE;
    let image = not_pulled.then(|| runner_pod::attempt_image(run, attempt, s.settings).to_owned());
    let ending = Ending::NotStarted { trouble, image };
    closing(
        s,
        attempt,
        Outcome::Ended(RunEnd::unclaimed(ending, true, None)),
    )
}

/// Schedules the next try of a refused creation.
pub(in crate::run) fn refused_again(
    before: Option<&PodRejection>,
    attempt: u32,
    trouble: Trouble,
    now: Timestamp,
) -> PodRejection {
    let times = before
        .filter(|refused| refused.attempt == attempt)
        .map_or(1, |refused| refused.times.saturating_add(1));
    PodRejection {
        attempt,
        trouble,
        times,
        retry_at: after(now, wait(CALLS, times)),
    }
}
