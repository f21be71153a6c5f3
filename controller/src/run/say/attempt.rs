//! Attempts that begin: opened, blocked, or with a pod that does not start.

use jiff::Timestamp;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::{
    lease,
    patch::{StatusPatch, of_tries},
};
use crate::{
    policies::missing::Missing,
    run::{
        expectations::WaitReason,
        outcome::{Lease, Opening},
        run_view::RunView,
    },
    runner_pod::status::Trouble,
};
use crds::{
    ApprovalMode, Attempt, Changed, Failure, FailureClass, FormerAttempt, Reason, TerraformRun,
    conditions, names,
    reason::{
        self,
        next_step::{Facts, Place, next_step},
    },
    text::clip,
};

/// The number of earlier attempts whose nodes the status retains.
const FORMER: usize = 8;

/// Opens an attempt that makes a plan.
pub(super) fn opened(patch: &mut StatusPatch<'_>, opening: &Opening, lease: Option<&Lease>) {
    let (run, status) = (patch.run(), patch.status());
    let name = opens(patch, opening);
    patch.message(&opened_message(run, &name, opening.tries));
    let (approved, why, text) = match run.spec.approval.mode {
        ApprovalMode::Automatic if run.spec.approval.automatic_when.is_some() => (
            false,
            reason::WAITING,
            "a plan within approval.automaticWhen is applied at once, any other waits for a person",
        ),
        ApprovalMode::Automatic => {
            if status.approval.is_none() {
                let at = patch.time();
                patch.set("approval", json!({"by": "automatic", "at": at}));
            }
            (true, reason::AUTOMATIC, "approval.mode is Automatic")
        }
        // No attempt is opened in an unknown mode.
        ApprovalMode::Manual | ApprovalMode::Unknown => (false, reason::WAITING, ""),
    };
    if let Some(lease) = lease {
        lease::taken(patch, lease);
    }
    patch.condition_if_new(conditions::PLANNED, Some(false), reason::RUNNING, "");
    patch.condition_if_new(conditions::APPROVED, Some(approved), why, text);
    patch.pending();
}

/// Opens an attempt that applies the plan of an older one.
pub(super) fn restore_opened(patch: &mut StatusPatch<'_>, opening: &Opening, by: &str) {
    let name = opens(patch, opening);
    let text = restoring_message(patch.run(), &name, by, opening.tries);
    patch.message(&text).line("Restore", &text);
}

/// Opens an attempt. Returns the name of its pod.
fn opens(patch: &mut StatusPatch<'_>, opening: &Opening) -> String {
    let Opening {
        number,
        tries,
        image,
        restores,
    } = opening;
    let run = patch.run();
    let name = names::attempt_name(&run.name_any(), &run.uid().unwrap_or_default(), *number);
    let (at, former) = (patch.time(), former(run));
    // A merge patch: fields of the previous attempt are removed by name.
    patch.set(
        "attempt",
        json!({"number": number, "podName": name, "podUID": Value::Null, "open": true, "openedAt": at, "closedAt": Value::Null, "tries": tries,
            "image": image, "restores": restores, "endHold": Value::Null, "nodeName": Value::Null, "bootID": Value::Null, "former": former}),
    );
    patch.clear("nextStep").clear("failure");
    patch.condition_if_new(conditions::STALLED, Some(false), reason::PROGRESSING, "");
    unblocked(patch);
    patch.note(
        "AttemptStarted",
        false,
        format!("{}: pod {name}, image {image}", of_tries(run, *tries)),
    );
    name
}

/// The attempts before the one that is opened, with their nodes; `None` if there are none. An attempt that no process adopted left nothing
/// behind.
fn former(run: &RunView) -> Option<Vec<FormerAttempt>> {
    let last = run.status.attempt.as_ref()?;
    let adopted = run.status.adopted.as_ref();
    let node = last.node(adopted).map(|name| FormerAttempt {
        number: last.number,
        pod_uid: last.pod(adopted).map(str::to_owned),
        node_name: name.to_owned(),
    });
    let mut former: Vec<_> = last.former.iter().cloned().chain(node).collect();
    former.drain(..former.len().saturating_sub(FORMER));
    (!former.is_empty()).then_some(former)
}

fn opened_message(run: &RunView, name: &str, tries: u32) -> String {
    format!("{}: waits for pod {name} to start", of_tries(run, tries))
}

fn restoring_message(run: &RunView, name: &str, by: &str, tries: u32) -> String {
    let again = if tries > 1 {
        format!(" ({})", of_tries(run, tries))
    } else {
        String::new()
    };
    format!("approved by {by}; pod {name} restores the plan and applies it{again}")
}

/// Nothing begins without the admission policies.
pub(super) fn policy_missing(patch: &mut StatusPatch<'_>, missing: &Missing) {
    let text = &missing.text;
    patch.condition_if_new(conditions::STALLED, Some(true), missing.reason, text);
    if patch.is_empty() {
        return;
    }
    patch.pending();
    if missing.reason == reason::NAMESPACE_TERMINATING {
        patch.message(text).set(
            "nextStep",
            next_step(missing.reason, Place::Cluster, &Facts::default()),
        );
    } else {
        patch.message(&format!(
            "waits for the admission policies of the chart, without which no run starts: {text}"
        ));
        let command = format!(
            "install what is missing with the chart (policies.install=true): kubectl get \
             validatingadmissionpolicies,validatingadmissionpolicybindings {}",
            names::POLICIES.join(" ")
        );
        patch.set("nextStep", command);
    }
    patch.note(missing.reason, true, text);
}

/// No attempt begins: the namespace is frozen, no slot is free, or the datastore is away or has not the revision yet.
pub(super) fn blocked(patch: &mut StatusPatch<'_>, why: &WaitReason) {
    let (status, (reason, text)) = (patch.status(), lease::words(why));
    let told = status.condition(conditions::SUCCEEDED, reason);
    if told.is_some_and(|c| c.message == clip(&text, 512)) {
        return;
    }
    patch.pending();
    if conditions::status(&status.conditions, conditions::STALLED) == Some(true) {
        // The trouble that blocked the run before is over.
        patch.condition(conditions::STALLED, Some(false), reason::PROGRESSING, "");
    }
    patch.condition(conditions::SUCCEEDED, None, reason, &text);
    if told.is_none() {
        patch.note(reason, false, text.as_str());
    }
    lease::waits_message(patch, why, &text);
}

/// The run was blocked, and continues.
pub(super) fn unblocked(patch: &mut StatusPatch<'_>) {
    let said = |reason| {
        patch
            .status()
            .condition(conditions::SUCCEEDED, reason)
            .is_some()
    };
    let waits = [
        reason::SLOTS_FULL,
        reason::FROZEN,
        reason::SOURCE_NOT_READY,
        reason::DATASTORE_UNAVAILABLE,
    ];
    if waits.into_iter().any(said) {
        patch.condition(conditions::SUCCEEDED, None, reason::RUNNING, "");
    }
}

/// Reports why the attempt does not start, and the remedy. No agent has adopted the attempt, so no agent owns these fields yet.
pub(super) fn not_starting(patch: &mut StatusPatch<'_>, trouble: &Trouble, until: Timestamp) {
    let (run, status) = (patch.run(), patch.status());
    patch.condition_if_new(
        conditions::STALLED,
        Some(true),
        trouble.reason,
        &trouble.text,
    );
    // The kubelet words one trouble in many ways, so a new text alone is not worth a write.
    if patch.is_empty()
        && status
            .failure
            .as_ref()
            .is_some_and(|failure| failure.reason == trouble.reason)
    {
        return;
    }
    let (until, start) = (until.strftime("%H:%M:%S UTC"), run.spec.timeouts.start);
    patch.failure(&failure(trouble, &trouble.text));
    patch.message(&format!(
        "{}; nothing was applied, and the run waits until {until} (timeouts.start {start})",
        trouble.text
    ));
    if let (Some(run), Some(attempt)) = (patch.whole(), &status.attempt) {
        patch.set("nextStep", remedy(run, attempt, trouble.reason));
    }
    patch.note(trouble.reason, true, trouble.text.clone());
}

/// Records a pod that was created after its attempt was opened, and reverts the fields that [`not_starting`] wrote.
pub(super) fn starting(patch: &mut StatusPatch<'_>, pod: Option<&str>) {
    let (run, status) = (patch.run(), patch.status());
    if let Some(uid) = pod {
        patch.set("attempt", json!({"podUID": uid}));
    }
    if status.stalled().is_some() {
        patch.condition_if_new(conditions::STALLED, Some(false), reason::PROGRESSING, "");
    }
    if let (Some(_), Some(attempt)) = (&status.failure, &status.attempt) {
        patch.clear("failure").clear("nextStep").message(
            &match (attempt.restores, &status.approval) {
                (Some(_), Some(record)) => {
                    restoring_message(run, &attempt.pod_name, &record.by, attempt.tries)
                }
                _ => opened_message(run, &attempt.pod_name, attempt.tries),
            },
        );
    }
}

/// The remedy for a pod that does not start. The run then continues by itself.
fn remedy(run: &TerraformRun, attempt: &Attempt, reason: &str) -> String {
    let (namespace, runner) = (run.namespace().unwrap_or_default(), &run.spec.runner);
    let pod = format!("kubectl describe pod -n {namespace} {}", attempt.pod_name);
    let secrets: Vec<_> = runner
        .image_pull_secrets
        .iter()
        .map(|secret| secret.name.as_str())
        .collect();
    let (what, command) = match (reason, runner.account(attempt.restores.is_some())) {
        (reason::POD_REJECTED, _) => {
            return "create or change what the message names, and the run goes on by itself; what its spec has wrong needs \
                    another run"
                .into();
        }
        (reason::NAMESPACE_TERMINATING, _) => {
            return "create the run in a namespace that is not being deleted".into();
        }
        (reason::SERVICE_ACCOUNT_NOT_FOUND, Some(name)) => (
            "create the ServiceAccount",
            format!("kubectl create serviceaccount -n {namespace} {name}"),
        ),
        (reason::IMAGE_NOT_AVAILABLE, _) if !secrets.is_empty() => (
            "make sure that the image and the Secrets for its registry exist",
            format!("kubectl get secret -n {namespace} {}", secrets.join(" ")),
        ),
        (reason::IMAGE_NOT_AVAILABLE, _) => {
            ("make sure that the image exists and may be pulled", pod)
        }
        (reason::QUOTA_EXCEEDED, _) => (
            "make room in the quota",
            format!("kubectl describe resourcequota -n {namespace}"),
        ),
        (reason::UNSCHEDULABLE, _) => ("make sure that a node can take the pod", pod),
        _ => ("correct what the message names", pod),
    };
    format!("{what}, and the run goes on by itself: {command}")
}

/// The failure of an attempt that did not start: nothing was changed.
pub(super) fn failure(trouble: &Trouble, message: &str) -> Failure {
    let class = Reason::parse(trouble.reason).and_then(Reason::class);
    let class = class.unwrap_or(FailureClass::Timeout);
    Failure::new(class, trouble.reason, message, Changed::None)
}
