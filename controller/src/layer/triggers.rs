//! Why a layer creates a run now, and that run.

use jiff::Timestamp;
use kube::{Resource as _, ResourceExt as _};
use serde_json::json;

use crds::{Operation, Remediation, Trigger, names};

use super::{
    decision::NewRun,
    requesters,
    situation::{Situation, Wanted},
    template::Effective,
};

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cause {
    pub(super) trigger: Trigger,
    /// Input of the run's name besides commit and settings; equal for repeated reconciles.
    pub(super) id: String,
    pub(super) revision: String,
    /// Digest of its content that is relevant to the layer.
    pub(super) content: String,
    pub(super) operation: Operation,
    /// How its plan is handled.
    pub(super) remediation: Remediation,
    /// The value of `pawl.run/plan` that it answers.
    pub(super) answers: Option<String>,
    /// If its content was applied before: the digest of the changes that were applied last, or `none`.
    pub(super) applied: Option<String>,
}

/// The run that is due: for a request, else a commit, a retry or a drift check. None is due while a run is in progress: once
/// it has ended, its content is compared with the wanted content.
pub(super) fn due(s: &Situation<'_>, now: Timestamp) -> Option<Cause> {
    let wanted = s
        .wanted
        .as_ref()
        .ok()
        .filter(|_| s.facts.current.is_none())?;
    let newest = s.o.newest();
    let of = |trigger, id: String| cause(s, wanted, trigger, id);
    if let Some(asked) = asked(s) {
        return Some(Cause {
            answers: Some(asked.to_owned()),
            ..of(Trigger::Person, format!("asked {asked}"))
        });
    }
    let failed = s.failed();
    if !s.is_planned() && failed.is_none() {
        return Some(of(Trigger::Commit, format!("commit after {newest}")));
    }
    if let Some(failures) = failed {
        let again = failures.retry_at.as_ref().is_some_and(|at| at.0 <= now);
        if again {
            return Some(of(Trigger::Retry, format!("retry after {newest}")));
        }
        // A failed plan or apply is not drift; it waits for a commit or a person.
        if failures.retry_at.is_some() || !s.is_settled() {
            return None;
        }
    }
    let checked = s.is_planned()
        && s.check
            .as_ref()
            .ok()
            .copied()
            .flatten()
            .is_some_and(|at| at <= now);
    checked.then(|| of(Trigger::Drift, format!("check after {newest}")))
}

/// The token of a request that no run answers yet.
pub(super) fn asked<'a>(s: &Situation<'a>) -> Option<&'a str> {
    s.o.asked().filter(|asked| {
        *asked != "now"
            && !s
                .o
                .runs
                .iter()
                .any(|run| run.answers.as_deref() == Some(*asked))
    })
}

fn cause(s: &Situation<'_>, wanted: &Wanted, trigger: Trigger, id: String) -> Cause {
    let strategy = s.o.layer.spec.remediation;
    // Content that was never applied cannot drift. A repeated plan of it uses `remediation.onCommit`, since waiting approves nothing.
    // So does a plan in place of one whose run was deleted: the deletion must not turn drift into a commit.
    let again = match trigger {
        Trigger::Drift | Trigger::Retry => true,
        _ => trigger == Trigger::Commit && s.facts.last_plan.is_none(),
    };
    let drifts = again && s.is_settled();
    let remediation = if drifts {
        strategy.on_drift
    } else {
        strategy.on_commit
    };
    let operation = if remediation == Remediation::Dry {
        Operation::Plan
    } else {
        Operation::Apply
    };
    // A drift check uses the planned commit, which has the same relevant content.
    let planned = s
        .facts
        .last_plan
        .as_ref()
        .filter(|_| trigger == Trigger::Drift);
    let revision = planned.map_or_else(|| wanted.revision.clone(), |plan| plan.revision.clone());
    Cause {
        trigger,
        id,
        revision,
        content: wanted.content.clone(),
        operation,
        remediation,
        answers: None,
        applied: drifts.then(|| applied(s)),
    }
}

/// The changes of the last apply, unless a look found the changes gone since.
fn applied(s: &Situation<'_>) -> String {
    let last = s.facts.last_apply.as_ref();
    last.and_then(|run| run.changes.clone())
        .unwrap_or_else(|| "none".to_owned())
}

impl Cause {
    /// The run. Its name is derived from layer, commit, settings and cause, so a crash cannot cause a second one.
    ///
    /// # Errors
    /// If no run can be created from the settings, with the reason.
    pub(super) fn run(&self, s: &Situation<'_>, effective: &Effective) -> Result<NewRun, String> {
        let layer = &*s.o.layer;
        let uid = layer.uid().unwrap_or_default();
        let of = format!("{} {} {}", self.revision, effective.digest, self.id);
        let name = names::layer_run_name(&layer.name_any(), &uid, &of);
        let mut annotations = json!({
            names::TRIGGER: self.trigger.as_str(),
            names::CONTENT: self.content,
            names::SETTINGS: effective.digest,
        });
        if let Some(applied) = &self.applied {
            annotations[names::APPLIED] = applied.as_str().into();
        }
        if let Some(answers) = &self.answers {
            annotations[names::PLAN] = answers.as_str().into();
        }
        let requesters = requesters::of_run(s);
        if !requesters.is_empty() {
            annotations[names::REQUESTED_BY] = requesters.into();
            annotations[names::LAYER_SPEC] = requesters::spec_digest(layer).into();
        }
        let mut metadata = json!({
            "name": name,
            "namespace": layer.namespace(),
            "labels": {names::LABEL_LAYER: layer.name_any(), names::LABEL_LAYER_UID: uid},
            "annotations": annotations,
        });
        // The destroy run has no owner: in a foreground deletion the garbage collector deletes owned objects first.
        if self.trigger != Trigger::Deletion {
            let owner = layer.controller_owner_ref(&()).map(|owner| {
                k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference {
                    block_owner_deletion: Some(false),
                    ..owner
                }
            });
            metadata["ownerReferences"] = json!([owner]);
        }
        let spec = effective.spec(layer, &self.revision, self.operation, self.remediation)?;
        let object = json!({"apiVersion": "pawl.run/v1alpha1", "kind": "TerraformRun", "metadata": metadata, "spec": spec});
        Ok(NewRun { name, object })
    }
}
