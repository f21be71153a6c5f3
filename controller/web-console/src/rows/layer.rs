//! The row of a layer.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use schemars::JsonSchema;
use serde::Serialize;

use crds::{Changes, Phase, TerraformLayer, TerraformLayerStatus, conditions, names, reason};

use super::run::{RunRow, short};

/// The state of a layer in one word.
#[derive(Serialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerRowState {
    /// Nothing is planned yet, or a plan is due.
    Pending,
    /// A run plans, or is about to.
    Planning,
    /// A plan waits for a person.
    AwaitingApproval,
    /// A run applies.
    Applying,
    /// The objects match the code, as far as the last run showed.
    InSync,
    /// The last plan has changes that are never applied: remediation is Dry.
    Planned,
    /// The last plan has changes that were not applied.
    NotApplied,
    /// The infrastructure differs from the code.
    Drifted,
    /// The last run failed.
    Failed,
    /// A person has to correct something before a run can be created; the reason names it.
    Stuck,
    /// It makes no runs.
    Suspended,
    /// It is being deleted.
    Destroying,
}

impl LayerRowState {
    /// The name in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Planning => "Planning",
            Self::AwaitingApproval => "AwaitingApproval",
            Self::Applying => "Applying",
            Self::InSync => "InSync",
            Self::Planned => "Planned",
            Self::NotApplied => "NotApplied",
            Self::Drifted => "Drifted",
            Self::Failed => "Failed",
            Self::Stuck => "Stuck",
            Self::Suspended => "Suspended",
            Self::Destroying => "Destroying",
        }
    }
}

/// A layer in a list.
#[derive(Serialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct LayerRow {
    pub namespace: Box<str>,
    pub name: Box<str>,
    pub uid: Box<str>,
    /// Its repository, as `NAME`, or `NAMESPACE/NAME` in another namespace.
    pub repository: Box<str>,
    pub path: Box<str>,
    /// The branch, tag or commit that it follows.
    #[serde(rename = "ref")]
    pub git_ref: Box<str>,
    /// The workspace that it sets for its runs itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<Box<str>>,
    pub state: LayerRowState,
    /// The reason of its condition Ready: one word of the guide's `reasons.md`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Box<str>>,
    /// The commit that was planned last, 12 digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<Box<str>>,
    /// Its current run, or the one whose plan waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<Box<str>>,
    /// The changes of the plan that waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changes: Option<Changes>,
    /// The result of its last run, with the changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_result: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drift_since: Option<Time>,
    /// When a run last left nothing to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_applied: Option<Time>,
    /// When drift is checked next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_check: Option<Time>,
    /// When one of its conditions changed last.
    pub changed_at: Option<Time>,
}

impl LayerRow {
    pub fn of(layer: &TerraformLayer) -> Self {
        let none = TerraformLayerStatus::default();
        let (spec, status) = (&layer.spec, layer.status.as_ref().unwrap_or(&none));
        let pending = status.pending.as_ref().map(|pending| &pending.run);
        let workspace = spec.template.0.get("workspace");
        let transitions = status.conditions.iter();
        let mut ready = status.conditions.iter();
        let ready = ready.find(|condition| condition.type_ == conditions::READY);
        let (owner, repository) = layer.repository_key();
        Self {
            namespace: layer.namespace().unwrap_or_default().into(),
            name: layer.name_any().into(),
            uid: layer.uid().unwrap_or_default().into(),
            repository: if Some(&owner) == layer.metadata.namespace.as_ref() {
                repository.into()
            } else {
                format!("{owner}/{repository}").into()
            },
            path: spec.path.as_str().into(),
            git_ref: spec.git_ref.as_str().into(),
            workspace: workspace.and_then(|name| name.as_str()).map(short),
            state: state(layer, status),
            reason: ready.map(|condition| short(&condition.reason)),
            revision: status.revision.as_deref().map(short),
            run: pending
                .or(status.current_run.as_ref())
                .map(|run| short(run)),
            changes: None,
            last_result: status.last_result.as_deref().map(short),
            drift_since: status.drift.as_ref().map(|drift| drift.since.clone()),
            last_applied: status.last_apply.as_ref().map(|run| run.at.clone()),
            next_check: status.next_drift_check.clone(),
            changed_at: transitions
                .map(|condition| condition.last_transition_time.clone())
                .max()
                .or_else(|| layer.creation_timestamp()),
        }
    }

    /// Whether this is its repository.
    pub fn is_of(&self, namespace: &str, name: &str) -> bool {
        let own = (&*self.namespace, &*self.repository);
        self.repository.split_once('/').unwrap_or(own) == (namespace, name)
    }

    /// Adds what only its run tells. `None`: its run is not known.
    pub fn join(&mut self, run: Option<&RunRow>) {
        use LayerRowState::{Applying, AwaitingApproval, Planning};
        if matches!(self.state, Planning | Applying) {
            let applies = run.is_some_and(|run| run.phase == Phase::Apply);
            self.state = if applies { Applying } else { Planning };
        }
        self.changes = run
            .filter(|_| self.state == AwaitingApproval)
            .and_then(|run| run.changes);
    }
}

fn state(layer: &TerraformLayer, status: &TerraformLayerStatus) -> LayerRowState {
    let is_suspended = layer.spec.suspend || names::is_on(&layer.metadata, names::SUSPEND);
    let mut all = status.conditions.iter();
    let ready = all.find(|condition| condition.type_ == conditions::READY);
    let is_stalled = conditions::status(&status.conditions, conditions::STALLED) == Some(true);
    if layer.metadata.deletion_timestamp.is_some() {
        return LayerRowState::Destroying;
    }
    if status.pending.is_some() {
        return LayerRowState::AwaitingApproval;
    }
    if status.current_run.is_some() {
        return LayerRowState::Planning;
    }
    if is_suspended {
        return LayerRowState::Suspended;
    }
    match ready.map_or("", |condition| condition.reason.as_str()) {
        reason::RUN_FAILED | reason::RETRYING => LayerRowState::Failed,
        _ if is_stalled => LayerRowState::Stuck,
        reason::DRIFT_FOUND => LayerRowState::Drifted,
        reason::UP_TO_DATE => LayerRowState::InSync,
        reason::PLANNED => LayerRowState::Planned,
        reason::NOT_APPLIED => LayerRowState::NotApplied,
        reason::RUNNING => LayerRowState::Planning,
        _ => LayerRowState::Pending,
    }
}
