//! Ends of runs, and facts that arrive after them.

use kube::ResourceExt as _;

use super::{
    attempt, close, lease, node,
    patch::{End, StatusPatch, operation},
};
use crate::run::outcome::{Ending, Objects, RunEnd, Unconfirmed};
use crds::{
    Changed, Failure, FailureClass, Journal, Phase, RunResult, Settled, names, reason,
    status_limit, text::clip,
};

/// Ends the run.
pub(super) fn ended(patch: &mut StatusPatch<'_>, end: &RunEnd) {
    if end.closes {
        patch.close();
    }
    close::unkept(patch, end.unkept.as_deref());
    let words = words(patch, &end.ending);
    patch.end(&words);
    if end.returns_lease {
        lease::give_back(patch);
    }
    match &end.objects {
        Some(Objects::Compared(journal)) => account(patch, (**journal).clone(), words.result),
        Some(Objects::InLog) => {
            let summary = format!(
                "without a datastore, the journal is in the log of {} only",
                claimant(patch)
            );
            account(
                patch,
                Journal {
                    summary,
                    ..Journal::default()
                },
                words.result,
            );
        }
        None => {}
    }
}

/// The pod that claimed the plan.
fn claimant<'a>(patch: &StatusPatch<'a>) -> &'a str {
    let status = patch.status();
    let of = |number| {
        status
            .attempt
            .as_ref()
            .filter(|attempt| attempt.number == number)
    };
    status
        .claim
        .as_ref()
        .and_then(|claim| of(claim.attempt))
        .map_or("its pod", |attempt| &attempt.pod_name)
}

/// Result, message and failure of an end.
fn words(patch: &StatusPatch<'_>, ending: &Ending) -> End {
    let (message, failure) = match ending {
        Ending::Stopped { why, .. } => (format!("{why}; nothing was applied"), None),
        Ending::Expired => (
            "the plan was not approved in time; nothing was applied".to_owned(),
            None,
        ),
        Ending::Superseded { by } => (
            format!("superseded by {by}, a newer run of the same workspace; nothing was applied"),
            None,
        ),
        Ending::PlanBeforeRestore { made, restored } => {
            let when = made.map_or_else(
                || "at an unknown time".to_owned(),
                |made| format!("at {made}"),
            );
            let message = format!(
                "the plan was made {when}, before the restore of {restored} (controller.refusePlansBefore): it may have been applied \
                 since; nothing is applied now, and a fresh plan is needed"
            );
            let failure = Failure::new(
                FailureClass::StalePlan,
                reason::PLAN_BEFORE_RESTORE,
                &message,
                Changed::Unknown,
            );
            (message, Some(failure))
        }
        Ending::NotStarted { trouble, image } => {
            let what = image.as_ref().map_or_else(
                || "the pod did not start".to_owned(),
                |image| format!("image {image} cannot be pulled"),
            );
            let waited = patch.run().spec.timeouts.start;
            let message = format!(
                "{what} within {waited}: {}; nothing was applied",
                trouble.text
            );
            let failure = attempt::failure(trouble, &message);
            (message, Some(failure))
        }
        Ending::Delivered {
            result,
            message,
            failure,
        } => {
            let changes = if patch.status().claim.is_some() {
                Changed::Unknown
            } else {
                Changed::None
            };
            // The agent ended as Failed without a description.
            let undescribed = || {
                Failure::new(
                    FailureClass::Internal,
                    reason::AGENT_FAULT,
                    message,
                    changes,
                )
            };
            let failed = result.phase() == Phase::Failed;
            (
                message.clone(),
                failure.clone().or_else(|| failed.then(undescribed)),
            )
        }
        Ending::Failed(cause) => {
            let failure = close::failure(patch, cause);
            (failure.message.clone(), Some(failure))
        }
        Ending::TriesUsedUp { cause, restoring } => {
            let failure = close::failure(patch, cause);
            let what = if *restoring {
                " to restore and apply the plan"
            } else {
                ""
            };
            (
                format!(
                    "{}{what} ended: {}; nothing was applied",
                    close::tried(patch),
                    failure.message
                ),
                Some(failure),
            )
        }
        Ending::Unconfirmed(why) => unconfirmed(patch, why),
    };
    End {
        result: ending.result(),
        message,
        failure,
    }
}

/// Message and failure of an apply whose end is unknown.
fn unconfirmed(patch: &StatusPatch<'_>, why: &Unconfirmed) -> (String, Option<Failure>) {
    let text = match why {
        Unconfirmed::AttemptClosed => "its attempt was closed".to_owned(),
        Unconfirmed::PodEnded(text) => text.clone().unwrap_or_else(|| "its pod ended".to_owned()),
        Unconfirmed::PodGone { node, since } => {
            format!(
                "{}, seen at {}",
                node::gone(patch, node.as_deref()),
                since.strftime("%Y-%m-%d %H:%M:%S")
            )
        }
        Unconfirmed::Abandoned { node, by, why } => {
            format!(
                "node {node} is not Ready, and {} abandoned the apply: {}",
                clip(by, 100),
                clip(why, 200)
            )
        }
    };
    let status = patch.status();
    let claim = status.claim.as_ref();
    let holder = status
        .attempt
        .as_ref()
        .map_or("its pod", |attempt| attempt.pod_name.as_str());
    let message = format!(
        "the {} of {} began at {} and its end is unknown: {text}. Some of the plan may have been carried out, and the \
         state's lock may still be held by {holder}; the next run starts with a fresh plan",
        operation(patch.run()),
        claim.map_or("the plan", |claim| claim.checksum.as_str()),
        claim.map_or_else(
            || "an unknown time".into(),
            |claim| claim.at.0.strftime("%Y-%m-%d %H:%M:%S").to_string()
        ),
    );
    let failure = Failure::new(
        FailureClass::Interrupted,
        reason::APPLY_UNCONFIRMED,
        &text,
        Changed::Unknown,
    );
    (message, Some(failure))
}

/// Accounts for the objects of an apply that did not end well.
fn account(patch: &mut StatusPatch<'_>, journal: Journal, result: RunResult) {
    let run = patch.run();
    let Some(mut whole) = patch
        .whole()
        .map(|run| run.status.clone().unwrap_or_default())
    else {
        return;
    };
    let step = if journal.wants_recovery() {
        Some(names::recover_command(
            &run.namespace().unwrap_or_default(),
            &run.name_any(),
        ))
    } else {
        patch.next_step(result, whole.failure.as_ref())
    };
    if whole.journal.as_ref() != Some(&journal) {
        patch.line("Journal", &journal.summary);
    }
    whole.journal = Some(journal);
    status_limit::fit_journal(&mut whole);
    patch.set("journal", whole.journal);
    if let Some(step) = step {
        patch.set("nextStep", step);
    }
}

/// The datastore accounted for the objects after the end.
pub(super) fn accounted(patch: &mut StatusPatch<'_>, journal: &Journal) {
    if let Some(result) = patch.status().result {
        account(patch, journal.clone(), result);
    }
}

/// Conditions of a run that its agent has ended, from its status.
pub(super) fn finished(patch: &mut StatusPatch<'_>) {
    let status = patch.status();
    let failure = status
        .failure
        .as_ref()
        .map(|failure| failure.reason.as_str());
    let message = patch
        .whole()
        .and_then(|run| run.status.as_ref()?.message.as_deref());
    patch.ended_conditions(
        status.result.unwrap_or(RunResult::Failed),
        failure,
        message.unwrap_or_default(),
    );
}

/// The same, and closes the attempt.
pub(super) fn finished_and_closed(
    patch: &mut StatusPatch<'_>,
    left: Option<&str>,
    returns_lease: bool,
) {
    patch.close();
    close::unkept(patch, left);
    finished(patch);
    if returns_lease {
        lease::give_back(patch);
    }
}

/// Settles an Indeterminate run. Its journal is older than the proof, so it is requested again.
pub(super) fn settled(patch: &mut StatusPatch<'_>, result: RunResult, message: &str) {
    let text = format!("{result}, proven later: {message}");
    let at = patch.time();
    patch.set(
        "settled",
        Settled {
            result,
            message: clip(message, 1024),
            at,
        },
    );
    patch
        .clear("journal")
        .line("Settled", &text)
        .note("Settled", false, text);
}

pub(super) fn rerun_created(patch: &mut StatusPatch<'_>, name: &str) {
    patch.set("rerun", name);
    patch.note(
        "RerunCreated",
        false,
        format!("run {name} has the same spec"),
    );
}

pub(super) fn recovery_created(patch: &mut StatusPatch<'_>, name: &str) {
    patch.set("recovery", name);
    patch.note(
        "RecoveryCreated",
        false,
        format!("run {name} imports the objects that this run created and the state lacks"),
    );
}
