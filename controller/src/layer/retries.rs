//! Failed runs: their number, and when the next is created automatically.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crds::{
    FailureClass, LayerFailures, Operation, RunResult, Trigger, backoff::Backoff, reason,
    whole_seconds,
};

use super::run_summary::RunSummary;

/// Delays between the end of a failed run and its retry. Measured from the end, so a long run does not shorten them.
const RUNS: Backoff = Backoff {
    base: Duration::from_secs(60),
    cap: Duration::from_secs(3600),
};

/// The failure reason of a run that a person cancelled before it had a plan.
pub(super) const CANCELED: &str = "Canceled";

/// Whether a retry of the same commit and settings may succeed.
pub(super) const fn helps(class: FailureClass) -> bool {
    match class {
        FailureClass::Credentials
        | FailureClass::StateLocked
        | FailureClass::StalePlan
        | FailureClass::Transient
        | FailureClass::Timeout
        | FailureClass::Interrupted
        | FailureClass::Unknown => true,
        FailureClass::Configuration
        | FailureClass::Policy
        | FailureClass::Integrity
        | FailureClass::Internal => false,
    }
}

/// The consecutive failures up to this run; `None` if it did not fail. A run with a new cause starts the count at one.
pub(super) fn after(
    run: &RunSummary,
    before: Option<&LayerFailures>,
    max_retries: u32,
) -> Option<LayerFailures> {
    let failure = run.failure.as_ref();
    let failure = failure.filter(|_| run.result == Some(RunResult::Failed));
    let (class, reason) = match run.result? {
        RunResult::Failed => failure
            .map_or((FailureClass::Internal, reason::AGENT_FAULT), |failure| {
                (failure.0, &*failure.1)
            }),
        // The outcome is unknown: a person has to check before any retry.
        RunResult::Indeterminate => (FailureClass::Internal, reason::APPLY_UNCONFIRMED),
        // A person cancelled it.
        RunResult::Canceled if !run.has_planned() && !run.superseded => {
            (FailureClass::Policy, CANCELED)
        }
        // A stopped destroy leaves no plan that the layer remembers.
        result @ (RunResult::Rejected | RunResult::Expired | RunResult::Canceled)
            if run.operation == Operation::Destroy && !run.superseded =>
        {
            (FailureClass::Policy, result.as_str())
        }
        _ => return None,
    };
    // Neither a commit nor a request is its cause.
    let follows =
        matches!(run.trigger, Trigger::Retry | Trigger::Deletion) && run.answers.is_none();
    let times = match before {
        Some(before) if run.is_same(&before.run, before.uid.as_deref()) => before.times,
        Some(before) if follows && run.is_of(&before.content, &before.settings) => before.times + 1,
        _ => 1,
    };
    let again = helps(class) && times <= max_retries;
    Some(LayerFailures {
        times,
        run: run.name.to_string(),
        uid: Some(run.uid.to_string()),
        reason: reason.to_string(),
        message: failure
            .filter(|failure| !failure.2.is_empty())
            .map(|failure| failure.2.to_string()),
        content: run.content.to_string(),
        settings: run.settings.to_string(),
        at: whole_seconds(run.at()),
        retry_at: again.then(|| whole_seconds(due(run.at(), times))),
    })
}

fn due(ended: Timestamp, times: u32) -> Timestamp {
    let wait = SignedDuration::try_from(RUNS.after(times)).unwrap_or(SignedDuration::MAX);
    ended.checked_add(wait).unwrap_or(Timestamp::MAX)
}
