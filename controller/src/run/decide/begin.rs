//! The beginning of an attempt: opened, its pod created, and not yet adopted.

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{
    draft::{Draft, End, of_tries},
    policies,
    release::closing,
    slots, state_queue,
};
use crate::{
    run::{
        decision::{Action, Decision, Kind, Write},
        memory::Refused,
        observed::Observed,
        run_view::RunView,
        timing::{CALLS, after, next_due, wait},
    },
    runner_pod::{
        self,
        status::{PodView, Trouble},
    },
    settings::Settings,
    slots::Class,
    state_queue::lease_request::requested_lease,
};
use crds::{
    ApprovalMode, Attempt, Changed, Failure, FailureClass, FormerAttempt, RunResult, TerraformRun, conditions, names, reason,
    whole_seconds,
};

/// How many attempts before the newest are known by their nodes.
const FORMER: usize = 8;

pub(super) struct Opening<'a> {
    pub(super) number: u32,
    pub(super) tries: u32,
    pub(super) image: &'a str,
    /// The attempt whose plan it restores.
    pub(super) restores: Option<u32>,
}

/// Opens an attempt; returns the name of its pod.
pub(super) fn opens(draft: &mut Draft<'_>, run: &RunView, opening: &Opening<'_>) -> String {
    let Opening { number, tries, image, restores } = *opening;
    let name = names::attempt_name(&run.name_any(), &run.uid().unwrap_or_default(), number);
    let (at, former) = (draft.time(), former(run));
    // A merge patch: what the attempt before had is taken away by name.
    draft.set(
        "attempt",
        json!({"number": number, "podName": name, "open": true, "openedAt": at, "closedAt": Value::Null, "tries": tries,
            "image": image, "restores": restores, "endHold": Value::Null, "nodeName": Value::Null, "bootID": Value::Null, "former": former}),
    );
    draft.clear("nextStep").clear("failure");
    draft.condition_if_new(conditions::STALLED, Some(false), reason::PROGRESSING, "");
    slots::goes_on(draft);
    draft.note("AttemptStarted", false, format!("{}: pod {name}, image {image}", of_tries(run, tries)));
    name
}

/// The attempts before the one that is opened, with their nodes; none where there is none to name. One that no process adopted has left
/// nothing.
fn former(run: &RunView) -> Option<Vec<FormerAttempt>> {
    let last = run.status.attempt.as_ref()?;
    let node = last.node(run.status.adopted.as_ref());
    let node = node.map(|name| FormerAttempt { number: last.number, node_name: name.to_owned() });
    let mut former: Vec<_> = last.former.iter().cloned().chain(node).collect();
    former.drain(..former.len().saturating_sub(FORMER));
    (!former.is_empty()).then_some(former)
}

/// No attempt is open and the run has not ended: the first attempt, or the next.
pub(super) fn next(o: &Observed, settings: &Settings, now: Timestamp) -> Decision {
    let status = o.status();
    if let Some(attempt) = status.attempt.as_ref().filter(|_| status.failure.is_some()) {
        let due = next_due(attempt, now);
        if now < due {
            return Decision::until(due, now);
        }
    }
    if let Some(decision) = slots::still_waits(o).or_else(|| policies::wait(o, now)).or_else(|| slots::frozen(o, now)) {
        return decision;
    }
    // Which state it is of, and in which image it runs, stands in what the cache does not keep.
    let Some(whole) = o.run.whole() else { return Decision::act(Action::Read) };
    if o.run.spec.approval.mode == ApprovalMode::Automatic
        && let Some(want) = requested_lease(whole, false, settings.has_datastore())
        && let Some(decision) = state_queue::before_opening(o, &want.key, now)
    {
        return decision;
    }
    // Last, so that nobody holds a slot who waits for something else.
    if let Some(decision) = slots::before_opening(o, Class::Plan, now) {
        return decision;
    }
    Decision::act(Action::Write(open(o, runner_pod::image(whole, settings), now)))
}

/// Opens the next attempt that makes a plan.
fn open(o: &Observed, image: &str, now: Timestamp) -> Write {
    let (run, status) = (&o.run, o.status());
    let (number, tries) = status.attempt.as_ref().map_or((1, 1), |old| (old.number + 1, old.tries + 1));
    let mut draft = Draft::new(run, now);
    let at = whole_seconds(now);
    let name = opens(&mut draft, run, &Opening { number, tries, image, restores: None });
    draft.message(&opened_message(run, &name, tries));
    let (approved, why, text) = match run.spec.approval.mode {
        ApprovalMode::Automatic if run.spec.approval.automatic_when.is_some() => {
            (false, reason::WAITING, "a plan within approval.automaticWhen is applied at once, any other waits for a person")
        }
        ApprovalMode::Automatic => {
            if status.approval.is_none() {
                draft.set("approval", json!({"by": "automatic", "at": at}));
            }
            (true, reason::AUTOMATIC, "approval.mode is Automatic")
        }
        // Of a mode that is not known no attempt is opened.
        ApprovalMode::Manual | ApprovalMode::Unknown => (false, reason::WAITING, ""),
    };
    state_queue::record(&mut draft, o);
    draft.condition_if_new(conditions::PLANNED, Some(false), reason::RUNNING, "");
    draft.condition_if_new(conditions::APPROVED, Some(approved), why, text);
    draft.pending();
    draft.finish(Kind::Open)
}

/// When an attempt has to be adopted at the latest.
fn deadline(o: &Observed, attempt: &Attempt, now: Timestamp) -> Timestamp {
    let start = SignedDuration::try_from(o.run.spec.timeouts.start.0).unwrap_or(SignedDuration::MAX);
    after(attempt.opened_at.as_ref().map_or(now, |t| t.0), start)
}

/// Nobody has adopted the attempt: create its pod, wait for it, or give up.
pub(super) fn not_started(
    o: &Observed,
    attempt: &Attempt,
    pod: Option<&PodView>,
    settings: &Settings,
    now: Timestamp,
) -> Decision {
    let deadline = deadline(o, attempt, now);
    let refused = o.notes.refused.as_ref().filter(|refused| refused.attempt == attempt.number);
    let trouble = pod.and_then(|pod| pod.trouble.clone()).or_else(|| match pod {
        None => refused.map(|refused| refused.trouble.clone()),
        Some(_) => None,
    });
    if now >= deadline {
        return give_up(o, attempt, trouble.as_ref(), settings, now);
    }
    // A process that did not create the pod itself cannot know that account and rights were created as well.
    let sure = o.notes.created.is_some_and(|(number, _)| number == attempt.number);
    let mut decision = Decision::until(deadline, now);
    if pod.is_none() || !sure {
        let due = refused.map_or(now, |refused: &Refused| refused.retry_at);
        if now >= due {
            return Decision::act(Action::CreatePod);
        }
        decision = Decision::until(due.min(deadline), now);
    }
    let write = match trouble {
        Some(trouble) => held_up(o, attempt, &trouble, deadline, now),
        None if pod.is_some() => goes_on(o, attempt, now),
        None => None,
    };
    decision.actions.extend(write.map(Action::Write));
    decision
}

/// Says why the attempt does not start, and what a person can do; `None` when the run says so already. Nobody has adopted the
/// attempt, so that these fields are not its agent's yet.
fn held_up(o: &Observed, attempt: &Attempt, trouble: &Trouble, deadline: Timestamp, now: Timestamp) -> Option<Write> {
    let (run, status) = (&o.run, o.status());
    let mut draft = Draft::new(run, now);
    draft.condition_if_new(conditions::STALLED, Some(true), trouble.reason, &trouble.text);
    // Other words for the same are worth no write, and the kubelet has many.
    if draft.is_empty() && status.failure.as_ref().is_some_and(|failure| failure.reason == trouble.reason) {
        return None;
    }
    let (until, start) = (deadline.strftime("%H:%M:%S UTC"), run.spec.timeouts.start);
    draft.failure(&failure(trouble, trouble.text.clone()));
    draft.message(&format!("{}; nothing was applied, and the run waits until {until} (timeouts.start {start})", trouble.text));
    if let Some(run) = draft.whole() {
        draft.set("nextStep", remedy(run, attempt, trouble.reason));
    }
    draft.note(trouble.reason, true, trouble.text.clone());
    Some(draft.finish(Kind::Start))
}

/// Takes back what [`held_up`] said; `None` when nothing of it is there.
fn goes_on(o: &Observed, attempt: &Attempt, now: Timestamp) -> Option<Write> {
    let (run, status) = (&o.run, o.status());
    let mut draft = Draft::new(run, now);
    if stalled(o).is_some() {
        draft.condition_if_new(conditions::STALLED, Some(false), reason::PROGRESSING, "");
    }
    if status.failure.is_some() {
        draft.clear("failure").clear("nextStep").message(&match (attempt.restores, &status.approval) {
            (Some(_), Some(record)) => restoring_message(run, &attempt.pod_name, &record.by, attempt.tries),
            _ => opened_message(run, &attempt.pod_name, attempt.tries),
        });
    }
    (!draft.is_empty()).then(|| draft.finish(Kind::Start))
}

/// What a person can do about a pod that does not start. The run goes on by itself then.
fn remedy(run: &TerraformRun, attempt: &Attempt, reason: &str) -> String {
    let (namespace, runner) = (run.namespace().unwrap_or_default(), &run.spec.runner);
    let pod = format!("kubectl describe pod -n {namespace} {}", attempt.pod_name);
    let secrets: Vec<_> = runner.image_pull_secrets.iter().map(|secret| secret.name.as_str()).collect();
    let (what, command) = match (reason, runner.account(attempt.restores.is_some())) {
        (reason::POD_REJECTED, _) => {
            return "create or change what the message names, and the run goes on by itself; what its spec has wrong needs \
                    another run"
                .into();
        }
        (reason::NAMESPACE_TERMINATING, _) => {
            return "create the run in a namespace that is not being deleted".into();
        }
        (reason::SERVICE_ACCOUNT_NOT_FOUND, Some(name)) => {
            ("create the ServiceAccount", format!("kubectl create serviceaccount -n {namespace} {name}"))
        }
        (reason::IMAGE_NOT_AVAILABLE, _) if !secrets.is_empty() => (
            "see that the image and the Secrets for its registry exist",
            format!("kubectl get secret -n {namespace} {}", secrets.join(" ")),
        ),
        (reason::IMAGE_NOT_AVAILABLE, _) => ("see that the image exists and may be pulled", pod),
        (reason::QUOTA_EXCEEDED, _) => ("make room in the quota", format!("kubectl describe resourcequota -n {namespace}")),
        (reason::UNSCHEDULABLE, _) => ("see that a node can take the pod", pod),
        _ => ("correct what the message names", pod),
    };
    format!("{what}, and the run goes on by itself: {command}")
}

/// An attempt that did not start, as a failure: nothing was changed.
fn failure(trouble: &Trouble, message: String) -> Failure {
    let class = match trouble.reason {
        reason::IMAGE_NOT_AVAILABLE | reason::SERVICE_ACCOUNT_NOT_FOUND | reason::NAMESPACE_TERMINATING => {
            FailureClass::Configuration
        }
        _ => FailureClass::Timeout,
    };
    Failure { class, reason: trouble.reason.into(), message, changes: Changed::None, diagnostics: Vec::new() }
}

/// What the condition Stalled says, when it is True: it outlives a restart of this process.
fn stalled(o: &Observed) -> Option<Trouble> {
    let condition = o.status().conditions.iter().find(|c| c.type_ == conditions::STALLED && c.status == "True")?;
    let reason = reason::ALL.iter().find(|reason| **reason == condition.reason)?;
    Some(Trouble { reason, text: condition.message.clone() })
}

/// The deadline is over: the attempt is closed, its pod deleted, the run Failed.
fn give_up(o: &Observed, attempt: &Attempt, trouble: Option<&Trouble>, settings: &Settings, now: Timestamp) -> Decision {
    let waited = o.run.spec.timeouts.start;
    let trouble = trouble
        .cloned()
        .or_else(|| stalled(o))
        .unwrap_or_else(|| Trouble { reason: reason::POD_NOT_STARTED, text: format!("pod {} did not report", attempt.pod_name) });
    let Some(run) = o.run.whole() else { return Decision::act(Action::Read) };
    let what = if trouble.reason == reason::IMAGE_NOT_AVAILABLE {
        format!("image {} cannot be pulled", runner_pod::attempt_image(run, attempt, settings))
    } else {
        "the pod did not start".to_owned()
    };
    let message = format!("{what} within {waited}: {}; nothing was applied", trouble.text);
    let failure = failure(&trouble, message.clone());
    let mut draft = Draft::new(&o.run, now);
    draft.close().end(&End { result: RunResult::Failed, message, failure: Some(failure) });
    state_queue::give_back(&mut draft);
    closing(o, attempt, draft.finish(Kind::End))
}

/// The next time a refused creation is tried.
pub(in crate::run) fn refused_again(before: Option<&Refused>, attempt: u32, trouble: Trouble, now: Timestamp) -> Refused {
    let times = before.filter(|refused| refused.attempt == attempt).map_or(1, |refused| refused.times.saturating_add(1));
    Refused { attempt, trouble, times, retry_at: after(now, wait(CALLS, times)) }
}

fn opened_message(run: &RunView, name: &str, tries: u32) -> String {
    format!("{}: waits for pod {name} to start", of_tries(run, tries))
}

pub(super) fn restoring_message(run: &RunView, name: &str, by: &str, tries: u32) -> String {
    let again = if tries > 1 { format!(" ({})", of_tries(run, tries)) } else { String::new() };
    format!("approved by {by}; pod {name} restores the plan and applies it{again}")
}
