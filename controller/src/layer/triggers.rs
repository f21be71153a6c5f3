//! Why a layer makes a run now, and the run.

use jiff::Timestamp;
use kube::{Resource as _, ResourceExt as _};
use serde_json::json;

use crds::{Operation, Remediation, TerraformLayer, Trigger, names};

use super::{
    decision::NewRun,
    situation::{Situation, Wanted},
    template::Effective,
};

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cause {
    pub(super) trigger: Trigger,
    /// What the run's name follows from besides commit and settings: the same look has the same.
    pub(super) id: String,
    /// The commit.
    pub(super) revision: String,
    /// What of it matters.
    pub(super) content: String,
    pub(super) operation: Operation,
    /// What becomes of its plan.
    pub(super) remediation: Remediation,
    /// The `pawl.run/plan` that it answers.
    pub(super) answers: Option<String>,
}

/// The run that is due: people before commits before what failed before the clock. Nothing is due while a run is under way, since
/// what came meanwhile is compared with what it was made of when it has ended.
pub(super) fn due(s: &Situation<'_>, now: Timestamp) -> Option<Cause> {
    let wanted = s.wanted.as_ref().ok().filter(|_| s.facts.current.is_none())?;
    let newest = s.o.newest();
    let of = |trigger, id: String| cause(s, wanted, trigger, id);
    if let Some(asked) = asked(s) {
        return Some(Cause { answers: Some(asked.to_owned()), ..of(Trigger::Person, format!("asked {asked}")) });
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
        // What cannot be planned or applied is not drift, and waits for a commit or a person.
        if failures.retry_at.is_some() || !s.is_settled() {
            return None;
        }
    }
    let checked = s.is_planned() && s.check.as_ref().ok().copied().flatten().is_some_and(|at| at <= now);
    checked.then(|| of(Trigger::Drift, format!("check after {newest}")))
}

/// What a person asks for, when the word is ours and no run answers it yet.
pub(super) fn asked<'a>(s: &Situation<'a>) -> Option<&'a str> {
    s.o.asked().filter(|asked| *asked != "now" && !s.o.runs.iter().any(|run| run.answers.as_deref() == Some(*asked)))
}

fn cause(s: &Situation<'_>, wanted: &Wanted, trigger: Trigger, id: String) -> Cause {
    let strategy = s.o.layer.spec.remediation;
    // What was denied, expired or failed on its way is no drift, though the clock brings it back: nobody approves it by that.
    let drifts = matches!(trigger, Trigger::Drift | Trigger::Retry) && s.is_settled();
    let remediation = if drifts { strategy.on_drift } else { strategy.on_commit };
    let operation = if remediation == Remediation::Dry { Operation::Plan } else { Operation::Apply };
    // The commit that was planned stands for all that are the same to the layer.
    let planned = s.facts.last_plan.as_ref().filter(|_| trigger == Trigger::Drift);
    let revision = planned.map_or_else(|| wanted.revision.clone(), |plan| plan.revision.clone());
    Cause { trigger, id, revision, content: wanted.content.clone(), operation, remediation, answers: None }
}

impl Cause {
    /// The run: its name follows from layer, commit, settings and cause, so that no crash makes two.
    ///
    /// # Errors
    /// When no run can be made of the settings, with what is wrong.
    pub(super) fn run(&self, layer: &TerraformLayer, effective: &Effective) -> Result<NewRun, String> {
        let uid = layer.uid().unwrap_or_default();
        let of = format!("{} {} {}", self.revision, effective.digest, self.id);
        let name = names::layer_run_name(&layer.name_any(), &uid, &of);
        let mut annotations = json!({
            names::TRIGGER: self.trigger.as_str(),
            names::CONTENT: self.content,
            names::SETTINGS: effective.digest,
        });
        if let Some(answers) = &self.answers {
            annotations[names::PLAN] = answers.as_str().into();
        }
        let mut metadata = json!({
            "name": name,
            "namespace": layer.namespace(),
            "labels": {names::LABEL_LAYER: layer.name_any(), names::LABEL_LAYER_UID: uid},
            "annotations": annotations,
        });
        // Whoever deletes in the foreground has the garbage collector delete what the layer owns first, and with it the destroy.
        if self.trigger != Trigger::Deletion {
            let owner = layer.controller_owner_ref(&()).map(|owner| {
                k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference { block_owner_deletion: Some(false), ..owner }
            });
            metadata["ownerReferences"] = json!([owner]);
        }
        let spec = effective.spec(layer, &self.revision, self.operation, self.remediation)?;
        let object = json!({"apiVersion": "pawl.run/v1alpha1", "kind": "TerraformRun", "metadata": metadata, "spec": spec});
        Ok(NewRun { name, object })
    }
}
