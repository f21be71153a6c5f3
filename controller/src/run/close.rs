//! Ends of attempts: the table of `design/0001-run-protocol.md`.

use jiff::Timestamp;
use kube::ResourceExt;

use crds::{
    ApprovalMode, Attempt, Changed, Failure, FailureClass, Phase, RunResult, conditions, reason, termination::TerminationMessage,
};

use super::{
    actions::{Action, Decision, Kind, Observed, PodState, PodView, Proof, Write},
    decide::{GONE_WAIT, after, backoff, finish_conditions},
    journal, keep, lease, node, proof,
    status::{Draft, End, of_tries, operation},
};
use crate::settings::Settings;

/// The closing write, and the account's removal where no pod's finalizer is left to remind of it.
pub(super) fn closing(o: &Observed, attempt: &Attempt, write: Write) -> Decision {
    let mut actions = vec![Action::Write(write)];
    match &o.pod {
        PodState::Present(pod) if pod.held && pod.attempt == attempt.number => {}
        PodState::Present(_) | PodState::Absent | PodState::Unknown => {
            actions.push(Action::DeleteAccount { name: attempt.pod_name.clone() });
        }
    }
    Decision::all(actions)
}

/// Row 1: the agent has ended the run.
pub(super) fn close_ended(o: &Observed, attempt: &Attempt, now: Timestamp) -> Decision {
    closing(o, attempt, finish_conditions(o, Kind::Close, now))
}

/// The pod's termination message, when it is of the process that the status names.
fn believed<'a>(o: &Observed, pod: &'a PodView) -> Option<&'a TerminationMessage> {
    let message = pod.ended.as_ref()?.message.as_ref()?;
    let attempt = o.status().attempt.as_ref()?;
    let adopted = o.status().adopted.as_ref().filter(|adopted| adopted.attempt == attempt.number);
    let of_pod =
        message.run_uid == o.run.uid().unwrap_or_default() && message.attempt == attempt.number && message.pod_uid == pod.uid;
    let of_process = adopted.is_none_or(|adopted| adopted.pod_uid == pod.uid && adopted.nonce == message.nonce);
    (of_pod && of_process).then_some(message)
}

/// The failure of an attempt that ended Failed and does not say how.
fn undescribed(message: &TerminationMessage, changes: Changed) -> Failure {
    Failure {
        class: FailureClass::Internal,
        reason: reason::AGENT_FAULT.into(),
        message: message.message.clone(),
        changes,
        diagnostics: Vec::new(),
    }
}

/// Rows 2 and 3: a claim without an end, and the pod ended.
pub(super) fn close_claimed(o: &Observed, pod: &PodView, settings: &Settings, now: Timestamp) -> Decision {
    let message = pod.ended.as_ref().and_then(|ended| ended.message.as_ref());
    if let Some((message, result)) = message.and_then(|message| Some((message, proof::of_claim(o, message)?))) {
        return delivered(o, message, result, settings, now);
    }
    if message.is_some_and(|message| proof::is_newer(o, message)) {
        // Its pod is held, and with it what it says, until a version comes that knows the word.
        return Decision::wait();
    }
    let text = pod.ended.as_ref().map_or("its pod ended", |ended| ended.text.as_str());
    unconfirmed(o, text, settings, now)
}

/// The end of a claimed run, in the words of the process that claimed it.
fn delivered(o: &Observed, message: &TerminationMessage, result: RunResult, settings: &Settings, now: Timestamp) -> Decision {
    let failed = result.phase() == Phase::Failed;
    let failure = message.failure.clone().or_else(|| failed.then(|| undescribed(message, Changed::Unknown)));
    end_claimed(o, &End { result, message: message.message.clone(), failure }, settings, now)
}

/// The pod does not say how the apply ended: what the datastore says, and without an answer Indeterminate.
pub(super) fn unconfirmed(o: &Observed, text: &str, settings: &Settings, now: Timestamp) -> Decision {
    let found = match &o.proof {
        Proof::Unknown if settings.has_datastore() => return Decision::act(Action::AskProof),
        Proof::Unknown | Proof::Absent => None,
        Proof::Found(message) if proof::is_newer(o, message) => return Decision::wait(),
        Proof::Found(message) => proof::of_claim(o, message).map(|result| (message, result)),
    };
    match found {
        Some((message, result)) => delivered(o, message, result, settings, now),
        None => indeterminate(o, text, settings, now),
    }
}

/// Ends a claimed run, and closes its attempt when another hand has not done so.
fn end_claimed(o: &Observed, end: &End, settings: &Settings, now: Timestamp) -> Decision {
    let mut draft = Draft::new(&o.run, o.status(), now);
    lease::give_back_at_end(&mut draft, end.result);
    if let Some(attempt) = o.status().attempt.as_ref().filter(|attempt| attempt.open) {
        draft.close().end(end);
        journal::tell(&mut draft, o, end.result, settings);
        return closing(o, attempt, draft.finish(Kind::End));
    }
    draft.end(end);
    journal::tell(&mut draft, o, end.result, settings);
    Decision::act(Action::Write(draft.finish(Kind::End)))
}

/// Row 4: a claim without an end, and the pod is gone, or its node is over (`why`). A wait that a condition names, then
/// Indeterminate.
pub(super) fn claimed_and_gone(
    o: &Observed,
    attempt: &Attempt,
    why: Option<&str>,
    settings: &Settings,
    now: Timestamp,
) -> Decision {
    let status = o.status();
    let what =
        why.map_or_else(|| format!("pod {} is gone", attempt.pod_name), |why| format!("{why}, with pod {}", attempt.pod_name));
    let since = status
        .conditions
        .iter()
        .find(|c| c.type_ == conditions::STALLED && c.status == "True" && c.reason == reason::POD_GONE)
        .map(|c| c.last_transition_time.0);
    match since {
        Some(since) if now >= after(since, GONE_WAIT) => {
            let text = format!("{what}, seen at {}", since.strftime("%Y-%m-%d %H:%M:%S"));
            unconfirmed(o, &text, settings, now)
        }
        Some(since) => Decision::until(after(since, GONE_WAIT), now),
        None => {
            let text = format!(
                "{what}, in the middle of its {}; if nothing is heard of it for {} s, the run ends Indeterminate",
                operation(&o.run),
                GONE_WAIT.as_secs()
            );
            let mut draft = Draft::new(&o.run, status, now);
            draft.condition_since(conditions::STALLED, Some(true), reason::POD_GONE, &text);
            node::record(&mut draft, o, false);
            draft.note(reason::POD_GONE, true, text);
            Decision::act(Action::Write(draft.finish(Kind::Gone)))
        }
    }
}

/// Nobody can say how the apply ended.
fn indeterminate(o: &Observed, text: &str, settings: &Settings, now: Timestamp) -> Decision {
    let status = o.status();
    let claim = status.claim.as_ref();
    let holder = status.attempt.as_ref().map_or("its pod", |attempt| attempt.pod_name.as_str());
    let message = format!(
        "the {} of {} began at {} and nobody can say how it ended: {text}. Some of the plan may have been carried out, and the \
         state's lock may still be held by {holder}; the next run starts with a fresh plan",
        operation(&o.run),
        claim.map_or("the plan", |claim| claim.checksum.as_str()),
        claim.map_or_else(|| "an unknown time".into(), |claim| claim.at.0.strftime("%Y-%m-%d %H:%M:%S").to_string()),
    );
    let failure = Failure {
        class: FailureClass::Interrupted,
        reason: reason::APPLY_UNCONFIRMED.into(),
        message: text.to_owned(),
        changes: Changed::Unknown,
        diagnostics: Vec::new(),
    };
    end_claimed(o, &End { result: RunResult::Indeterminate, message, failure: Some(failure) }, settings, now)
}

/// Row 5: cancelled, denied, deleted, superseded or made before a restore, before the claim.
pub(super) fn close_early(o: &Observed, attempt: &Attempt, end: &End, now: Timestamp) -> Decision {
    let mut draft = Draft::new(&o.run, o.status(), now);
    draft.close().end(end);
    lease::give_back(&mut draft);
    closing(o, attempt, draft.finish(Kind::End))
}

/// No claim, and nothing is heard of the pod's node: the attempt is closed and uses up no try, as nothing of it failed.
pub(super) fn close_lost(o: &Observed, attempt: &Attempt, why: &str, now: Timestamp) -> Decision {
    let mut draft = Draft::new(&o.run, o.status(), now);
    draft.uncount(attempt).clear("failure");
    let text = if let Some((plan, attempt)) = keep::kept(o) {
        keep::waits(&mut draft, &o.run, plan, attempt, now);
        format!("{why}; the plan is kept and waits without it")
    } else {
        let text = format!("{why}; another attempt begins, and no retry is used up");
        draft.message(&text);
        again(&mut draft, o);
        text
    };
    draft.condition_if_new(conditions::STALLED, Some(false), reason::RETRYING, &text);
    draft.line("Lost", &text).note("Retrying", true, text);
    closing(o, attempt, draft.finish(Kind::Close))
}

/// The next attempt plans anew.
fn again(draft: &mut Draft<'_>, o: &Observed) {
    draft.set("phase", Phase::Pending).clear("nextStep");
    draft.condition_if_new(conditions::PLANNED, Some(false), reason::RETRYING, "");
    if o.run.spec.approval.mode == ApprovalMode::Manual {
        // The plan died with its pod, and an approval of it is worth nothing.
        if o.status().approval.is_some() {
            draft.clear("approval");
        }
        lease::give_back(draft);
        draft.condition_if_new(conditions::APPROVED, Some(false), reason::RETRYING, "");
    }
}

/// The failure of an attempt that said nothing.
pub(super) fn lost(attempt: &Attempt, pod: Option<&PodView>) -> Failure {
    let ended = pod.and_then(|pod| pod.ended.as_ref());
    Failure {
        class: FailureClass::Interrupted,
        reason: ended.map_or(reason::POD_GONE, |ended| ended.reason).into(),
        message: ended.map_or_else(|| format!("pod {} is gone", attempt.pod_name), |ended| ended.text.clone()),
        changes: Changed::None,
        diagnostics: Vec::new(),
    }
}

/// Rows 6 and 7: no claim, and the pod ended or is gone.
pub(super) fn close_unclaimed(o: &Observed, attempt: &Attempt, pod: Option<&PodView>, now: Timestamp) -> Decision {
    let status = o.status();
    let message = pod.and_then(|pod| believed(o, pod));
    let adopted = status.adopted.as_ref().is_some_and(|adopted| adopted.attempt == attempt.number);
    let phase = status.phase.unwrap_or(Phase::Pending);
    // It ended as it said it would: the hold is over.
    // Before the adoption it is the controller's own word, of why the pod did not start.
    let said = status.failure.as_ref().filter(|_| adopted);
    let quiet = message.is_some_and(|message| message.result.is_none() && message.failure.is_none()) && said.is_none();
    // A result that the agent could not deliver by status. Before the claim nothing was applied, whatever a message says.
    let delivered = message
        .filter(|_| adopted)
        .and_then(|message| Some((message, message.result?)))
        .filter(|(_, result)| !result.needs_claim() && phase.may_become(result.phase()));
    let failure = message.and_then(|message| message.failure.clone()).or_else(|| said.cloned());
    let mut draft = Draft::new(&o.run, status, now);
    draft.close();
    if let Some((message, result)) = delivered {
        let failure = (result.phase() == Phase::Failed).then(|| failure.unwrap_or_else(|| undescribed(message, Changed::None)));
        draft.end(&End { result, message: message.message.clone(), failure });
        lease::give_back(&mut draft);
        return closing(o, attempt, draft.finish(Kind::End));
    }
    if let Some(failure) = failure.as_ref().filter(|failure| !failure.class.is_retried()) {
        draft.end(&End { result: RunResult::Failed, message: failure.message.clone(), failure: Some(failure.clone()) });
        lease::give_back(&mut draft);
        return closing(o, attempt, draft.finish(Kind::End));
    }
    if let Some(decision) = keep::close(o, pod, failure.clone(), quiet, now) {
        return decision;
    }
    if let Some(write) = lease::queued(o, now).filter(|_| quiet) {
        return closing(o, attempt, write);
    }
    let failure = failure.unwrap_or_else(|| lost(attempt, pod));
    let tried = of_tries(&o.run, attempt.tries);
    if attempt.tries > o.run.spec.retry.limit {
        let message = format!("{tried} ended: {}; nothing was applied", failure.message);
        draft.end(&End { result: RunResult::Failed, message, failure: Some(failure) });
        lease::give_back(&mut draft);
        return closing(o, attempt, draft.finish(Kind::End));
    }
    let next = after(now, backoff(attempt.tries));
    let text = format!("{tried} ended: {}; the next begins at {}", failure.message, next.strftime("%H:%M:%S"));
    draft.failure(&failure).message(&text).line("Retry", &text);
    draft.condition(conditions::STALLED, Some(false), reason::RETRYING, &text);
    again(&mut draft, o);
    draft.note("Retrying", true, text);
    closing(o, attempt, draft.finish(Kind::Close))
}
