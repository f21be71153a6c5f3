//! The beginning of an attempt: opened, its pod created, not yet adopted.

use jiff::{SignedDuration, Timestamp};

use super::{
    cleanup::{self, closing},
    policies, slots, state_queue,
};
use crate::{
    run::{
        expectations::{PodRejection, SourceWait, WaitReason},
        outcome::{Action, Decision, Ending, Opening, Outcome, RunEnd},
        say::words,
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
use crds::{ApprovalMode, Attempt, TerraformRun, reason};

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
    if let Some(decision) = source(s, whole) {
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

/// Before a run of a repository holds a slot or uses a try, the datastore has its revision. `None` when it has.
fn source(s: &Situation<'_>, run: &TerraformRun) -> Option<Decision> {
    if s.source_ready || run.spec.source.repository.is_none() || !s.settings.has_datastore() {
        return None;
    }
    let Some(wait) = s.notes.source.as_ref().filter(|wait| s.now < wait.retry_at) else {
        return Some(Decision::act(Action::AskSource));
    };
    let start = SignedDuration::try_from(run.spec.timeouts.start.0).unwrap_or(SignedDuration::MAX);
    let ends = matches!(wait.why, WaitReason::Source(_)).then(|| after(wait.since, start));
    if ends.is_some_and(|ends| s.now >= ends) {
        let (reason, text) = words(&wait.why);
        let trouble = Trouble { reason, text };
        return Some(cleanup::end(Ending::NotStarted {
            trouble,
            image: None,
        }));
    }
    let due = ends.map_or(wait.retry_at, |ends| ends.min(wait.retry_at));
    Some(state_queue::queued(
        s,
        Outcome::Blocked(wait.why.clone()),
        due,
    ))
}

/// Schedules the next question for the revision.
pub(in crate::run) fn source_wait(
    before: Option<&SourceWait>,
    why: WaitReason,
    now: Timestamp,
) -> SourceWait {
    let times = before.map_or(1, |before| before.times.saturating_add(1));
    let same =
        |before: &&SourceWait| std::mem::discriminant(&before.why) == std::mem::discriminant(&why);
    SourceWait {
        since: before.filter(same).map_or(now, |before| before.since),
        times,
        retry_at: after(now, wait(CALLS, times)),
        why,
    }
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
