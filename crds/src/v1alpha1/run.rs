//! `TerraformRun`: one plan, and at most one apply of it.
#![allow(clippy::duplicated_attributes, reason = "each printcolumn is a column of its own")]

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{names, text::clip};

use super::{
    credentials::Credentials,
    hooks::{Hook, HookWhen, OnFailure},
    inputs::{Arguments, EnvFrom, FilePlace, InputFile, VariableFile},
    outputs::{OnDestroy, Outputs},
    phase::{Phase, RunResult},
    policy::{Approval, ApprovalMode, Retry, Timeouts},
    runner::Runner,
    source::Source,
    status::TerraformRunStatus,
    values::{Backend, EnvVar, Variable},
};

/// What a run does.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
pub enum Operation {
    /// Plan and stop.
    Plan,
    /// Plan, and apply that plan when it is approved.
    #[default]
    Apply,
    /// Plan the destruction of everything, and apply that plan when it is approved.
    Destroy,
    /// Look whether the world differs from the state, and stop: `Drifted` or `NoChanges`. Nothing is applied, the state neither.
    RefreshOnly,
    /// A word of a newer version: nothing is begun.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl Operation {
    /// Whether a plan of it is ever applied. Only such a run claims.
    pub const fn applies(self) -> bool {
        matches!(self, Self::Apply | Self::Destroy)
    }

    /// The word in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Plan => "Plan",
            Self::Apply => "Apply",
            Self::Destroy => "Destroy",
            Self::RefreshOnly => "RefreshOnly",
            Self::Unknown => "Unknown",
        }
    }
}

/// The tool that runs.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, JsonSchema)]
pub enum ToolName {
    /// OpenTofu (`tofu`).
    OpenTofu,
    /// Terraform (`terraform`).
    Terraform,
    /// Terragrunt (`terragrunt`), which runs one of the others.
    Terragrunt,
    /// A word of a newer version: nothing is begun.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl ToolName {
    /// Those that this version knows.
    pub const KNOWN: [Self; 3] = [Self::OpenTofu, Self::Terraform, Self::Terragrunt];

    /// The name as the project writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OpenTofu => "OpenTofu",
            Self::Terraform => "Terraform",
            Self::Terragrunt => "Terragrunt",
            Self::Unknown => "Unknown",
        }
    }

    /// Name of the executable.
    pub const fn binary(self) -> &'static str {
        match self {
            Self::OpenTofu => "tofu",
            Self::Terraform => "terraform",
            Self::Terragrunt => "terragrunt",
            // Nobody asks: a run that names another tool is left alone.
            Self::Unknown => "unknown",
        }
    }

    /// Name of the directory with its versions, in the image and in a cache.
    pub const fn directory(self) -> &'static str {
        match self {
            Self::OpenTofu => "opentofu",
            Self::Terraform => "terraform",
            Self::Terragrunt => "terragrunt",
            // Nobody asks: a run that names another tool is left alone.
            Self::Unknown => "unknown",
        }
    }
}

/// Which tool runs, and in which version. Both are detected from the code when they are not given.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tool {
    /// The tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<ToolName>,
    /// Exact version or constraint, in HashiCorp's grammar: `1.10.6`, `~> 1.10`, `>= 1.8, < 2`; at most 128 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub version: Option<String>,
}

impl Tool {
    /// Whether it leaves the choice to the code.
    pub const fn is_empty(&self) -> bool {
        self.name.is_none() && self.version.is_none()
    }
}

/// Whose objects a run takes into the state.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Recover {
    /// Name of a run of the same namespace that ended without its state: what it created and the state does not know is imported
    /// by the plan. At most 52 characters.
    #[schemars(length(min = 1, max = 52))]
    pub from_run: String,
}

/// One run of Terraform or OpenTofu: one plan, and at most one apply of it. The spec never changes; annotate the run with
/// `pawl.run/rerun=true` for a fresh run of the same spec.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[kube(
    group = "pawl.run",
    version = "v1alpha1",
    kind = "TerraformRun",
    namespaced,
    status = "TerraformRunStatus",
    shortname = "tfrun",
    category = "pawl",
    derive = "PartialEq",
    derive = "Default",
    printcolumn(name = "Operation", type_ = "string", json_path = ".spec.operation"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Result", type_ = "string", json_path = ".status.result"),
    printcolumn(name = "Changes", type_ = "string", json_path = ".status.plan.summary"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.failure.reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Tool", type_ = "string", json_path = ".status.plan.tool", priority = 1),
    printcolumn(name = "Revision", type_ = "string", json_path = ".status.plan.revision", priority = 1),
    printcolumn(name = "Checksum", type_ = "string", json_path = ".status.plan.checksum", priority = 1),
    printcolumn(name = "Approver", type_ = "string", json_path = ".status.approval.by", priority = 1),
    printcolumn(name = "Attempt", type_ = "integer", json_path = ".status.attempt.number", priority = 1)
)]
#[serde(rename_all = "camelCase")]
pub struct TerraformRunSpec {
    /// What the run does. Default: `Apply`.
    #[serde(default)]
    pub operation: Operation,
    /// Where the configuration comes from.
    pub source: Source,
    /// Which tool runs, and in which version.
    #[serde(default, skip_serializing_if = "Tool::is_empty")]
    pub tool: Tool,
    /// Workspace of the state; an Apply makes it when it is missing, and any other operation fails. Default: `default`; at most 90
    /// characters.
    #[serde(default = "default_workspace")]
    #[schemars(length(min = 1, max = 90), regex(pattern = r"^[A-Za-z0-9_.-]+$"))]
    pub workspace: String,
    /// Name of the stack: runs of one stack and workspace in a namespace share one managed state, which is used when neither
    /// the code nor `backend` says where the state is kept. Default: what names the repository and path of a git source; the
    /// run's own name for an inline one. At most 63 characters; dots are allowed, as they are in names of runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$"))]
    pub stack: Option<String>,
    /// Where the state is kept, in place of what the code says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<Backend>,
    /// Variables of the stack; at most 256.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub variables: Vec<Variable>,
    /// Files with variables, in their order: of a variable that several give, the last one counts. `variables` win over all of them, and
    /// they over the files that the tool finds by itself and over `TF_VAR_…`. At most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub variable_files: Vec<VariableFile>,
    /// Environment of the tool; at most 128 variables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub env: Vec<EnvVar>,
    /// What `init` asks registries and git servers with.
    #[serde(default, skip_serializing_if = "Credentials::is_empty")]
    pub credentials: Credentials,
    /// Scripts around the phases, in the order in which those of one moment run; at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub hooks: Vec<Hook>,
    /// What is published of the stack's outputs after an apply, and where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Outputs>,
    /// Secrets and ConfigMaps of which all keys become variables of the environment, in their order: the last one counts, and `env` wins
    /// over all. At most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub env_from: Vec<EnvFrom>,
    /// Files for the tool, from Secrets and ConfigMaps; at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub files: Vec<InputFile>,
    /// Addresses of what alone is planned, with what it depends on, as the tool's `-target`; at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 512)))]
    pub targets: Vec<String>,
    /// Addresses of objects that are made anew, as the tool's `-replace`; at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 512)))]
    pub replace: Vec<String>,
    /// Whether the plan reads what exists first, as the tool's `-refresh`. Default: true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh: Option<bool>,
    /// How many operations the tool carries out at once, in plan and apply; at least 1, at most 256. Default: the tool's own, which is 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 256))]
    pub parallelism: Option<u16>,
    /// Further arguments of `init`, `plan` and `apply`.
    #[serde(default, skip_serializing_if = "Arguments::is_empty")]
    pub arguments: Arguments,
    /// Takes what another run created and did not record into the state, by `import` blocks that the plan shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recover: Option<Recover>,
    /// How a plan with changes comes to be applied.
    #[serde(default)]
    pub approval: Approval,
    /// The longest time each phase may take.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// How often an attempt is followed by another.
    #[serde(default)]
    pub retry: Retry,
    /// Settings of the pods.
    #[serde(default)]
    pub runner: Runner,
    /// Seconds after its end until the run is deleted; at most 315360000, which is ten years. Default: the chart's
    /// `controller.ttlSecondsAfterFinished`. An Indeterminate run is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 315_360_000))]
    pub ttl_seconds_after_finished: Option<u32>,
}

fn default_workspace() -> String {
    "default".into()
}

impl TerraformRun {
    /// Who lets the plan be applied that the run has now.
    pub fn approval_mode(&self) -> ApprovalMode {
        self.spec.approval.mode_in(self.status.as_ref().and_then(|status| status.phase))
    }

    /// Where the run has a word that this version does not know. Whoever meets one waits: nothing of the run is decided, begun
    /// or written, since what the word means may change what everything else means.
    pub fn unknown_word(&self) -> Option<&'static str> {
        let status = self.status.as_ref();
        let words = [
            ("status.phase", status.and_then(|status| status.phase) == Some(Phase::Unknown)),
            ("status.result", status.and_then(|status| status.result) == Some(RunResult::Unknown)),
            ("spec.operation", self.spec.operation == Operation::Unknown),
            ("spec.approval.mode", self.spec.approval.mode == ApprovalMode::Unknown),
            ("spec.tool.name", self.spec.tool.name == Some(ToolName::Unknown)),
            ("spec.hooks.when", self.spec.hooks.iter().any(|hook| hook.when == HookWhen::Unknown)),
            ("spec.hooks.onFailure", self.spec.hooks.iter().any(|hook| hook.on_failure == OnFailure::Unknown)),
            ("spec.outputs.onDestroy", self.spec.outputs.as_ref().is_some_and(|o| o.on_destroy == OnDestroy::Unknown)),
            ("spec.files[].in", self.spec.files.iter().any(|file| file.place == FilePlace::Unknown)),
        ];
        words.into_iter().find(|(_, unknown)| *unknown).map(|(field, _)| field)
    }

    /// That the plan is denied, by whom, as far as that was said, and why: `denied by alice: not on a Friday`.
    pub fn denied(&self) -> Option<String> {
        self.stopped("denied", names::DENY, names::DENIED_BY)
    }

    /// That the run is cancelled, by whom, as far as that was said, and why.
    pub fn cancelled(&self) -> Option<String> {
        self.stopped("cancelled", names::CANCEL, names::CANCELED_BY)
    }

    fn stopped(&self, word: &str, why: &str, by: &str) -> Option<String> {
        let annotation = |name: &str| self.metadata.annotations.as_ref().and_then(|all| all.get(name));
        let part = |before: &str, text: &str, most| {
            if text.is_empty() { String::new() } else { format!("{before}{}", clip(text, most)) }
        };
        let why = annotation(why)?;
        let by = part(" by ", annotation(by).map_or("", String::as_str), 120);
        Some(format!("{word}{by}{}", part(": ", why, 200)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn run(change: impl FnOnce(&mut Value)) -> TerraformRun {
        let mut run = json!({"apiVersion": "pawl.run/v1alpha1", "kind": "TerraformRun", "metadata": {"name": "a"},
            "spec": {"source": {"inline": {"files": {}}}, "approval": {"mode": "Manual"}, "tool": {"name": "OpenTofu"}, "outputs": {}},
            "status": {"phase": "Plan"}});
        change(&mut run);
        serde_json::from_value(run).unwrap()
    }

    #[test]
    fn a_run_with_words_of_a_newer_version_is_read_and_says_where_they_are() {
        assert_eq!(run(|_| ()).unknown_word(), None);
        for pointer in [
            "/status/phase",
            "/status/result",
            "/spec/operation",
            "/spec/approval/mode",
            "/spec/tool/name",
            "/spec/outputs/onDestroy",
        ] {
            let (parent, field) = pointer.rsplit_once('/').unwrap();
            let run = run(|run| run.pointer_mut(parent).unwrap()[field] = "Newer".into());
            assert_eq!(run.unknown_word(), Some(pointer[1..].replace('/', ".").as_str()));
        }
        let run = run(|run| run["spec"]["files"] = json!([{"path": "a", "in": "Newer"}]));
        assert_eq!(run.unknown_word(), Some("spec.files[].in"));
    }

    #[test]
    fn who_stopped_a_run_is_named_where_he_said_it() {
        let of = |annotations: Value| {
            let run = run(|run| run["metadata"]["annotations"] = annotations);
            (run.denied(), run.cancelled())
        };
        assert_eq!(of(json!({names::DENIED_BY: "alice"})), (None, None));
        assert_eq!(
            of(json!({names::DENY: "", names::CANCEL: "later"})),
            (Some("denied".into()), Some("cancelled: later".into()))
        );
        let by = of(json!({names::DENY: "not on a Friday", names::DENIED_BY: "alice"}));
        assert_eq!(by.0.as_deref(), Some("denied by alice: not on a Friday"));
    }

    #[test]
    fn what_says_how_it_failed_may_be_newer_and_keeps_nobody_waiting() {
        let failure = json!({"class": "Quota", "reason": "Newer", "message": "m", "changes": "Reverted", "how": "newer"});
        let run = run(|run| run["status"]["failure"] = failure);
        let failure = run.status.as_ref().unwrap().failure.clone().unwrap();
        assert_eq!((failure.class, failure.changes), (crate::FailureClass::Unknown, crate::Changed::Unknown));
        assert!(run.unknown_word().is_none() && failure.class.is_retried());
    }
}
