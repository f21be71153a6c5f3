//! `TerraformRun`: one plan and at most one apply of it.
#![allow(
    clippy::duplicated_attributes,
    reason = "each printcolumn is a column of its own"
)]

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{names, text::clip};

use super::{
    approval::{Approval, ApprovalMode, Retry, Timeouts},
    attempt::Attempt,
    credentials::Credentials,
    hooks::{Hook, HookWhen, OnFailure},
    inputs::{Arguments, EnvFrom, FilePlace, InputFile, VariableFile},
    outputs::{OnDestroy, Outputs},
    phase::{Phase, RunResult},
    plan::PlanStatus,
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
    /// Plan, and apply the plan after its approval.
    #[default]
    Apply,
    /// Plan the destruction of everything, and apply that plan after its approval.
    Destroy,
    /// Check whether the infrastructure differs from the state, and stop: `Drifted` or `NoChanges`. Neither
    /// infrastructure nor state is changed.
    RefreshOnly,
    /// A value from a newer version; nothing starts.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl Operation {
    /// Whether its plans are ever applied. Only such runs claim.
    pub const fn applies(self) -> bool {
        matches!(self, Self::Apply | Self::Destroy)
    }

    /// The name in the API.
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

/// The tool.
#[derive(
    Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, JsonSchema,
)]
pub enum ToolName {
    /// OpenTofu (`tofu`).
    OpenTofu,
    /// Terraform (`terraform`).
    Terraform,
    /// Terragrunt (`terragrunt`), which runs one of the other two.
    Terragrunt,
    /// A value from a newer version; nothing starts.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl ToolName {
    /// The tools that this version supports.
    pub const KNOWN: [Self; 3] = [Self::OpenTofu, Self::Terraform, Self::Terragrunt];

    /// The name in the project's own spelling.
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
            // Never used: a run with an unknown tool is not started.
            Self::Unknown => "unknown",
        }
    }

    /// Name of the directory of its versions, in the image and in a cache.
    pub const fn directory(self) -> &'static str {
        match self {
            Self::OpenTofu => "opentofu",
            Self::Terraform => "terraform",
            Self::Terragrunt => "terragrunt",
            // Never used: a run with an unknown tool is not started.
            Self::Unknown => "unknown",
        }
    }
}

/// The tool and its version. Both are detected from the code when they are not set.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tool {
    /// The tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<ToolName>,
    /// Exact version or constraint, in HashiCorp's syntax: `1.10.6`, `~> 1.10`, `>= 1.8, < 2`; at most 128 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub version: Option<String>,
}

impl Tool {
    /// Whether the code selects tool and version.
    pub const fn is_empty(&self) -> bool {
        self.name.is_none() && self.version.is_none()
    }
}

/// The run whose objects a recovery run imports into the state.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Recover {
    /// Name of a run in the same namespace that ended without saving its state. The plan imports the objects that it
    /// created and that the state lacks. At most 52 characters.
    #[schemars(length(min = 1, max = 52))]
    pub from_run: String,
}

/// One run of Terraform or OpenTofu: one plan and at most one apply of it. The spec never changes; the annotation
/// `pawl.run/rerun=true` requests a new run of the same spec.
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
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.failure.reason"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    ),
    printcolumn(
        name = "Layer",
        type_ = "string",
        json_path = ".metadata.labels.pawl\\.run/layer",
        priority = 1
    ),
    printcolumn(
        name = "Trigger",
        type_ = "string",
        json_path = ".metadata.annotations.pawl\\.run/trigger",
        priority = 1
    ),
    printcolumn(
        name = "Tool",
        type_ = "string",
        json_path = ".status.plan.tool",
        priority = 1
    ),
    printcolumn(
        name = "Revision",
        type_ = "string",
        json_path = ".status.plan.revision",
        priority = 1
    ),
    printcolumn(
        name = "Checksum",
        type_ = "string",
        json_path = ".status.plan.checksum",
        priority = 1
    ),
    printcolumn(
        name = "Approver",
        type_ = "string",
        json_path = ".status.approval.by",
        priority = 1
    ),
    printcolumn(
        name = "Attempt",
        type_ = "integer",
        json_path = ".status.attempt.number",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
pub struct TerraformRunSpec {
    /// What the run does. Default: `Apply`.
    #[serde(default)]
    pub operation: Operation,
    /// Source of the configuration.
    pub source: Source,
    /// The tool and its version.
    #[serde(default, skip_serializing_if = "Tool::is_empty")]
    pub tool: Tool,
    /// Workspace of the state. An Apply creates it if it is missing; any other operation fails. Default: `default`; at
    /// most 90 characters.
    #[serde(default = "default_workspace")]
    #[schemars(length(min = 1, max = 90), regex(pattern = r"^[A-Za-z0-9_.-]+$"))]
    pub workspace: String,
    /// Name of the stack. Runs of one stack and workspace in a namespace share one managed state, which is used when
    /// neither the code nor `backend` configures a backend. Default: derived from repository and path of a git source;
    /// the run's own name for an inline one. At most 63 characters; dots are allowed, as in names of runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$")
    )]
    pub stack: Option<String>,
    /// Where the state is stored. Merged over the code's block of the same type, as `-backend-config` merges; replaces a block of another
    /// type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<Backend>,
    /// Variables of the stack; at most 256.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub variables: Vec<Variable>,
    /// Files with variables, in order: later files override earlier ones. `variables` override all files, and the files
    /// override those that the tool finds by itself and `TF_VAR_…`. At most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub variable_files: Vec<VariableFile>,
    /// Environment of the tool; at most 128 variables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub env: Vec<EnvVar>,
    /// Credentials of `init` for registries and git servers, and workload identities.
    #[serde(default, skip_serializing_if = "Credentials::is_empty")]
    pub credentials: Credentials,
    /// Scripts around the phases; hooks for the same moment run in this order; at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub hooks: Vec<Hook>,
    /// Which of the stack's outputs are published after an apply, and where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Outputs>,
    /// Secrets and ConfigMaps whose keys all become environment variables, in order: later ones override earlier ones,
    /// and `env` overrides all. At most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub env_from: Vec<EnvFrom>,
    /// Files for the tool, from Secrets and ConfigMaps; at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub files: Vec<InputFile>,
    /// Addresses to restrict the plan to, including their dependencies, as the tool's `-target`; at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 512)))]
    pub targets: Vec<String>,
    /// Addresses of objects to replace, as the tool's `-replace`; at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 512)))]
    pub replace: Vec<String>,
    /// Whether the plan refreshes the state first, as the tool's `-refresh`. Default: true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh: Option<bool>,
    /// Number of concurrent operations of the tool, in plan and apply; at least 1, at most 256. Default: the tool's
    /// own, which is 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 256))]
    pub parallelism: Option<u16>,
    /// Additional arguments of `init`, `plan` and `apply`.
    #[serde(default, skip_serializing_if = "Arguments::is_empty")]
    pub arguments: Arguments,
    /// Imports into the state the objects that another run created and did not record, with `import` blocks that the
    /// plan shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recover: Option<Recover>,
    /// How a plan with changes is approved.
    #[serde(default)]
    pub approval: Approval,
    /// The deadlines of the phases.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// How many attempts follow a failed one.
    #[serde(default)]
    pub retry: Retry,
    /// Settings of the pods.
    #[serde(default)]
    pub runner: Runner,
    /// Seconds from its end until the run is deleted; at most 315360000, which is ten years. Default: the chart's
    /// `controller.ttlSecondsAfterFinished`. An Indeterminate run is retained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 315_360_000))]
    pub ttl_seconds_after_finished: Option<u32>,
}

fn default_workspace() -> String {
    "default".into()
}

impl TerraformRun {
    /// Who approves the run's current plan.
    pub fn approval_mode(&self) -> ApprovalMode {
        self.spec
            .approval
            .mode_in(self.status.as_ref().and_then(|status| status.phase))
    }

    /// The field with a value that this version does not know, if any. Readers then wait and neither decide, start nor
    /// write anything for this run, since the value may change the meaning of all others.
    pub fn unknown_word(&self) -> Option<&'static str> {
        let status = self.status.as_ref();
        let words = [
            (
                "status.phase",
                status.and_then(|status| status.phase) == Some(Phase::Unknown),
            ),
            (
                "status.result",
                status.and_then(|status| status.result) == Some(RunResult::Unknown),
            ),
            ("spec.operation", self.spec.operation == Operation::Unknown),
            (
                "spec.approval.mode",
                self.spec.approval.mode == ApprovalMode::Unknown,
            ),
            (
                "spec.tool.name",
                self.spec.tool.name == Some(ToolName::Unknown),
            ),
            (
                "spec.hooks.when",
                self.spec
                    .hooks
                    .iter()
                    .any(|hook| hook.when == HookWhen::Unknown),
            ),
            (
                "spec.hooks.onFailure",
                self.spec
                    .hooks
                    .iter()
                    .any(|hook| hook.on_failure == OnFailure::Unknown),
            ),
            (
                "spec.outputs.onDestroy",
                self.spec
                    .outputs
                    .as_ref()
                    .is_some_and(|o| o.on_destroy == OnDestroy::Unknown),
            ),
            (
                "spec.files[].in",
                self.spec
                    .files
                    .iter()
                    .any(|file| file.place == FilePlace::Unknown),
            ),
        ];
        words
            .into_iter()
            .find(|(_, unknown)| *unknown)
            .map(|(field, _)| field)
    }

    /// If the plan is denied: by whom, as far as known, and why: `denied by alice: not on a Friday`.
    pub fn denied(&self) -> Option<String> {
        self.stopped("denied", names::DENY, names::DENIED_BY)
    }

    /// If the run is cancelled: by whom, as far as known, and why.
    pub fn cancelled(&self) -> Option<String> {
        self.stopped("cancelled", names::CANCEL, names::CANCELED_BY)
    }

    /// The plan, if one is made.
    pub fn plan(&self) -> Option<&PlanStatus> {
        self.status.as_ref()?.plan.as_ref()
    }

    /// The current attempt, if one was begun.
    pub fn attempt(&self) -> Option<&Attempt> {
        self.status.as_ref()?.attempt.as_ref()
    }

    /// Whether its deletion, its cancellation or its denial is requested.
    pub fn is_stopped(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
            || self.cancelled().is_some()
            || self.denied().is_some()
    }

    /// Whether the run holds the lease on the state of its plan. A plan without a state key needs none.
    pub fn is_leased(&self) -> bool {
        let Some(status) = &self.status else {
            return false;
        };
        let key = status
            .plan
            .as_ref()
            .and_then(|plan| plan.state_key.as_ref());
        key.is_none_or(|key| {
            status
                .lease
                .as_ref()
                .is_some_and(|lease| lease.state_key == *key)
        })
    }

    fn stopped(&self, word: &str, why: &str, by: &str) -> Option<String> {
        let annotation = |name: &str| {
            self.metadata
                .annotations
                .as_ref()
                .and_then(|all| all.get(name))
        };
        let part = |before: &str, text: &str, most| {
            if text.is_empty() {
                String::new()
            } else {
                format!("{before}{}", clip(text, most))
            }
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
    fn unknown_values_in_a_run_are_parsed_and_located() {
        assert_eq!(run(|_| ()).unknown_word(), None);
        let pointers = "/status/phase /status/result /spec/operation /spec/approval/mode /spec/tool/name /spec/outputs/onDestroy";
        for pointer in pointers.split(' ') {
            let (parent, field) = pointer.rsplit_once('/').unwrap();
            let run = run(|run| run.pointer_mut(parent).unwrap()[field] = "Newer".into());
            assert_eq!(
                run.unknown_word(),
                Some(pointer[1..].replace('/', ".").as_str())
            );
        }
        let run = run(|run| run["spec"]["files"] = json!([{"path": "a", "in": "Newer"}]));
        assert_eq!(run.unknown_word(), Some("spec.files[].in"));
    }

    #[test]
    fn denial_and_cancellation_name_their_author() {
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
    fn unknown_failure_values_do_not_block_a_run() {
        let failure = json!({"class": "Quota", "reason": "Newer", "message": "m", "changes": "Reverted", "how": "newer"});
        let run = run(|run| run["status"]["failure"] = failure);
        let failure = run.status.as_ref().unwrap().failure.clone().unwrap();
        assert_eq!(
            (failure.class, failure.changes),
            (crate::FailureClass::Unknown, crate::Changed::Unknown)
        );
        assert!(run.unknown_word().is_none() && failure.class.is_retried());
    }
}
