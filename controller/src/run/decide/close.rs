//! Ends of attempts: the table of `design/0001-run-protocol.md`.

use jiff::Timestamp;
use kube::ResourceExt;

use super::{
    apply_log, approval,
    draft::{Draft, End, of_tries, operation},
    late_result, lost_node,
    release::closing,
    state_queue, waiting_plan,
};
use crate::{
    run::{
        decision::{Action, Decision, Kind, Write},
        observed::{LateResult, Observed, PodState},
        situation::OpenAttempt,
        timing::{CREATION_LAG, GONE_WAIT, after, backoff},
    },
    runner_pod::status::PodView,
    settings::Settings,
};
use crds::{
    ApprovalMode, Attempt, Changed, Failure, FailureClass, Phase, PlanStatus, RunResult, conditions, reason,
    termination::TerminationMessage, text::clip,
};

/// The pod may be missing from the cache only.
pub(super) fn look_again(now: Timestamp) -> Decision {
    Decision::until(after(now, CREATION_LAG), now)
}

/// Says what of log and journal the pod could not leave with the datastore.
fn says_unkept(draft: &mut Draft<'_>, o: &Observed) {
    let PodState::Present(pod) = &o.pod else { return };
    let message = pod.ended.as_ref().and_then(|ended| ended.message.as_ref());
    if let Some(text) = message.and_then(|message| message.unkept.as_deref()) {
        draft.line("Log", text).note("LogTruncated", true, clip(text, 400));
    }
}

/// Conditions of a run that has ended, from its status.
pub(super) fn finish_conditions(o: &Observed, kind: Kind, now: Timestamp) -> Write {
    let status = o.status();
    let result = status.result.unwrap_or(RunResult::Failed);
    let mut draft = Draft::new(&o.run, now);
    if kind == Kind::Close {
        draft.close();
        says_unkept(&mut draft, o);
    }
    let failure = status.failure.as_ref().map(|f| f.reason.as_str());
    let message = draft.whole().and_then(|run| run.status.as_ref()?.message.as_deref());
    draft.ended_conditions(result, failure, message.unwrap_or_default());
    if kind == Kind::Close {
        state_queue::give_back_at_end(&mut draft, result);
    }
    draft.finish(kind)
}

/// Row 1: the agent has ended the run.
pub(super) fn ended(o: &Observed, attempt: &Attempt, now: Timestamp) -> Decision {
    closing(o, attempt, finish_conditions(o, Kind::Close, now))
}

/// The pod's termination message, when it is of the process that the status names.
fn believed<'a>(o: &Observed, open: &OpenAttempt<'_>, pod: &'a PodView) -> Option<&'a TerminationMessage> {
    let message = pod.ended.as_ref()?.message.as_ref()?;
    let number = open.attempt.number;
    let adopted = o.status().adopted.as_ref().filter(|_| open.adopted);
    let of_pod = message.run_uid == o.run.uid().unwrap_or_default() && message.attempt == number && message.pod_uid == pod.uid;
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
pub(super) fn claimed(o: &Observed, pod: &PodView, settings: &Settings, now: Timestamp) -> Decision {
    let message = pod.ended.as_ref().and_then(|ended| ended.message.as_ref());
    if let Some((message, result)) = message.and_then(|message| Some((message, late_result::of_claim(o, message)?))) {
        return delivered(o, message, result, settings, now);
    }
    if message.is_some_and(|message| late_result::is_newer(o, message)) {
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
    let found = match &o.late_result {
        LateResult::Unknown if settings.has_datastore() => return Decision::act(Action::AskDatastore),
        LateResult::Unknown | LateResult::Absent => None,
        LateResult::Found(message) if late_result::is_newer(o, message) => return Decision::wait(),
        LateResult::Found(message) => late_result::of_claim(o, message).map(|result| (message, result)),
    };
    match found {
        Some((message, result)) => delivered(o, message, result, settings, now),
        None => indeterminate(o, text, settings, now),
    }
}

/// Ends a claimed run, and closes its attempt when another hand has not done so.
fn end_claimed(o: &Observed, end: &End, settings: &Settings, now: Timestamp) -> Decision {
    let mut draft = Draft::new(&o.run, now);
    state_queue::give_back_at_end(&mut draft, end.result);
    if let Some(attempt) = o.run.open_attempt() {
        says_unkept(&mut draft, o);
        draft.close().end(end);
        apply_log::tell(&mut draft, o, end.result, settings);
        return closing(o, attempt, draft.finish(Kind::End));
    }
    draft.end(end);
    apply_log::tell(&mut draft, o, end.result, settings);
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
    let what =
        why.map_or_else(|| format!("pod {} is gone", attempt.pod_name), |why| format!("{why}, with pod {}", attempt.pod_name));
    let since = o.status().condition(conditions::STALLED, reason::POD_GONE).filter(|c| c.status == "True");
    let since = since.map(|c| c.last_transition_time.0);
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
            let mut draft = Draft::new(&o.run, now);
            draft.condition_since(conditions::STALLED, Some(true), reason::POD_GONE, &text);
            lost_node::record(&mut draft, o, false);
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
pub(super) fn early(o: &Observed, attempt: &Attempt, end: &End, now: Timestamp) -> Decision {
    let mut draft = Draft::new(&o.run, now);
    draft.close().end(end);
    state_queue::give_back(&mut draft);
    closing(o, attempt, draft.finish(Kind::End))
}

/// No claim, and nothing is heard of the pod's node: the attempt is closed and uses up no try, as nothing of it failed.
pub(super) fn node_lost(o: &Observed, attempt: &Attempt, waiting: Option<&PlanStatus>, why: &str, now: Timestamp) -> Decision {
    let mut draft = Draft::new(&o.run, now);
    draft.uncount(attempt).clear("failure");
    let text = if let Some(plan) = waiting {
        approval::says_it_waits(&mut draft, &o.run, plan, attempt, now);
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
    if o.run.approval_mode() == ApprovalMode::Manual {
        // The plan died with its pod, and an approval of it is worth nothing.
        if o.status().approval.is_some() {
            draft.clear("approval");
        }
        state_queue::give_back(draft);
        draft.condition_if_new(conditions::APPROVED, Some(false), reason::RETRYING, "");
    }
}

/// The failure of an attempt that said nothing.
fn lost(attempt: &Attempt, pod: Option<&PodView>) -> Failure {
    let ended = pod.and_then(|pod| pod.ended.as_ref());
    let reason = ended.map_or(reason::POD_GONE, |ended| ended.reason);
    Failure {
        class: FailureClass::Interrupted,
        reason: reason.into(),
        message: ended.map_or_else(|| format!("pod {} is gone", attempt.pod_name), |ended| ended.text.clone()),
        changes: Changed::None,
        diagnostics: Vec::new(),
    }
}

/// Rows 6 and 7: no claim, and the pod ended or is gone.
pub(super) fn unclaimed(o: &Observed, open: &OpenAttempt<'_>, pod: Option<&PodView>, now: Timestamp) -> Decision {
    let (status, attempt, adopted) = (o.status(), open.attempt, open.adopted);
    let message = pod.and_then(|pod| believed(o, open, pod));
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
    let mut draft = Draft::new(&o.run, now);
    draft.close();
    says_unkept(&mut draft, o);
    if let Some((message, result)) = delivered {
        let failure = (result.phase() == Phase::Failed).then(|| failure.unwrap_or_else(|| undescribed(message, Changed::None)));
        draft.end(&End { result, message: message.message.clone(), failure });
        state_queue::give_back(&mut draft);
        return closing(o, attempt, draft.finish(Kind::End));
    }
    let failure = failure.unwrap_or_else(|| lost(attempt, pod));
    if !failure.class.is_retried() {
        draft.end(&End { result: RunResult::Failed, message: failure.message.clone(), failure: Some(failure) });
        state_queue::give_back(&mut draft);
        return closing(o, attempt, draft.finish(Kind::End));
    }
    if let Some(plan) = open.waiting {
        return waiting_plan::close(o, plan, attempt, failure, quiet, now);
    }
    if let Some(write) = state_queue::queued(o, now).filter(|_| quiet) {
        return closing(o, attempt, write);
    }
    let tried = of_tries(&o.run, attempt.tries);
    if attempt.tries > o.run.spec.retry.limit {
        let message = format!("{tried} ended: {}; nothing was applied", failure.message);
        draft.end(&End { result: RunResult::Failed, message, failure: Some(failure) });
        state_queue::give_back(&mut draft);
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
