//! `TerraformLayer`: a directory of a repository at a ref that Pawl plans and applies continuously.
#![allow(
    clippy::duplicated_attributes,
    reason = "each printcolumn is a column of its own"
)]

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{layer_status::TerraformLayerStatus, template::RunTemplate};
use crate::{digest::hex_digest, duration::Span, names};

/// A directory of a repository at a ref, planned and applied continuously. Commits, a schedule and people trigger its
/// runs.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[kube(
    group = "pawl.run",
    version = "v1alpha1",
    kind = "TerraformLayer",
    plural = "terraformlayers",
    namespaced,
    status = "TerraformLayerStatus",
    shortname = "tfl",
    shortname = "layer",
    shortname = "layers",
    category = "pawl",
    derive = "PartialEq",
    derive = "Default",
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Revision", type_ = "string", json_path = ".status.revision"),
    printcolumn(
        name = "Last Result",
        type_ = "string",
        json_path = ".status.lastResult"
    ),
    printcolumn(
        name = "Drift Since",
        type_ = "date",
        json_path = ".status.drift.since"
    ),
    printcolumn(name = "Pending", type_ = "string", json_path = ".status.pending.run"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    ),
    printcolumn(name = "Waits For", type_ = "string", json_path = ".status.waitsFor"),
    printcolumn(
        name = "Repository",
        type_ = "string",
        json_path = ".spec.repository.name",
        priority = 1
    ),
    printcolumn(name = "Ref", type_ = "string", json_path = ".spec.ref", priority = 1),
    printcolumn(
        name = "Path",
        type_ = "string",
        json_path = ".spec.path",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
pub struct TerraformLayerSpec {
    /// The repository.
    pub repository: RepositoryRef,
    /// Branch or tag to follow, or a full commit id, which never moves. Default: `main`; at most 255 characters.
    #[serde(default = "default_ref", rename = "ref")]
    #[schemars(
        length(min = 1, max = 255),
        extend("x-kubernetes-validations" = super::texts::git_ref())
    )]
    pub git_ref: String,
    /// Directory of the stack, relative to the top of the repository. Default: `.`; at most 1024 characters.
    #[serde(default = "default_path")]
    #[schemars(length(min = 1, max = 1024))]
    pub path: String,
    /// Settings of its runs, as in a run's spec. They override the repository's `defaults` field by field.
    #[serde(default, skip_serializing_if = "RunTemplate::is_empty")]
    pub template: RunTemplate,
    /// Globs of additional paths, relative to the top of the repository, whose changes trigger a plan: `modules/**`,
    /// `*.tfvars`; at most 32, without `..` and `\`. The directory itself, local modules and variable files are always included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 255)))]
    pub trigger_paths: Vec<String>,
    /// The handling of a plan, by its trigger.
    #[serde(default)]
    pub remediation: RemediationStrategy,
    /// When to detect drift.
    #[serde(default)]
    pub drift: DriftDetection,
    /// How many times a failed plan is retried automatically, 1 min after the failure, doubling to 1 h. After that,
    /// only a commit or a person triggers another. Default: `3`; at most 10.
    #[serde(default = "default_retries")]
    #[schemars(range(min = 0, max = 10))]
    pub max_retries: u32,
    /// How many ended runs without changes to retain, and how many of those that failed or whose plan was not applied;
    /// in addition to all Indeterminate runs. Default: `5`; at least 1, at most 50.
    #[serde(default = "default_history")]
    #[schemars(range(min = 1, max = 50))]
    pub run_history: u32,
    /// How long to retain such runs at most. Default: without limit; at least 1h, at most 8760h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_history_age: Option<Span>,
    /// How many applied runs to retain, with approver, plan and log. The last one stays in any case, until a later one is
    /// applied. Default: `10`; at least 1, at most 200.
    #[serde(default = "default_applied_history")]
    #[schemars(range(min = 1, max = 200))]
    pub applied_history: u32,
    /// How long to retain applied runs at most. Default: without limit; at least 1h, at most 8760h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied_history_age: Option<Span>,
    /// What happens to the layer's resources when it is deleted. Default: `Orphan`.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
    /// Whether the layer creates no runs. Default: `false`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
}

/// A repository in the namespace of the layer or run, or in one that allows it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RepositoryRef {
    /// Name of the `TerraformRepository`.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")
    )]
    pub name: String,
    /// Namespace of the repository, which must list the layer's namespace in `allowedNamespaces`. Default: the layer's own; at
    /// most 63 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")
    )]
    pub namespace: Option<String>,
}

/// The handling of a plan with changes.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
pub enum Remediation {
    /// Shows it and never applies it.
    Dry,
    /// Waits until a person approves its run.
    #[default]
    Manual,
    /// Applies it. Creating such a layer requires the verb `autoapprove`.
    Automatic,
    /// A value from a newer version; nothing starts.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// The handling of a plan, by its trigger.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RemediationStrategy {
    /// For a plan triggered by a commit, changed settings, or a person. Default: `Manual`.
    #[serde(default)]
    pub on_commit: Remediation,
    /// For a plan that found drift. Default: `Manual`.
    #[serde(default)]
    pub on_drift: Remediation,
    /// For the plan that destroys everything, with `deletionPolicy: Destroy`. With `Dry`, the layer waits until its
    /// policy is changed. Default: `Manual`.
    #[serde(default)]
    pub on_delete: Remediation,
}

/// When to detect drift: at an interval, or on a cron schedule.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DriftDetection {
    /// Time after the last plan, ±10 %. Default: `24h`; at least 1m, at most 720h.
    #[serde(default = "drift_interval")]
    pub interval: Span,
    /// Cron schedule, replaces the interval: minute, hour, day of month, month, day of week; at most 128 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 9, max = 128))]
    pub schedule: Option<String>,
    /// Time zone of the schedule, such as `Europe/Paris`; at most 64 characters. Default: `UTC`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub time_zone: Option<String>,
    /// Whether drift detection is off. Default: `false`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
}

impl Default for DriftDetection {
    fn default() -> Self {
        Self {
            interval: drift_interval(),
            schedule: None,
            time_zone: None,
            suspend: false,
        }
    }
}

/// What happens to a layer's resources when the layer is deleted.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
pub enum DeletionPolicy {
    /// Resources and state remain.
    #[default]
    Orphan,
    /// A run destroys them, subject to `remediation.onDelete`; the layer remains until that run is applied. When its
    /// namespace is being deleted, the resources remain.
    Destroy,
    /// A value from a newer version; nothing starts.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

fn default_ref() -> String {
    "main".into()
}

fn default_path() -> String {
    ".".into()
}

const fn default_retries() -> u32 {
    3
}

const fn default_history() -> u32 {
    5
}

const fn default_applied_history() -> u32 {
    10
}

const fn drift_interval() -> Span {
    Span::hours(24)
}

impl TerraformLayer {
    /// Whether its author is unverified. Such a layer creates no runs until a person confirms it.
    pub fn is_unverified(&self) -> bool {
        self.metadata
            .annotations
            .as_ref()
            .is_some_and(|all| all.contains_key(names::UNVERIFIED))
    }

    /// Whether its runs need rights beyond those to create a layer, as checked by the admission policy `pawl-layer`.
    pub fn asks_for_rights(&self) -> bool {
        let RemediationStrategy {
            on_commit,
            on_drift,
            on_delete,
        } = self.spec.remediation;
        let waits = |remediation| matches!(remediation, Remediation::Dry | Remediation::Manual);
        let template = &self.spec.template.0;
        let runner = |field| {
            template
                .get("runner")
                .is_some_and(|runner| runner.get(field).is_some())
        };
        let named = runner("serviceAccountName") || runner("planServiceAccountName");
        ![on_commit, on_drift, on_delete].into_iter().all(waits)
            || named
            || template.contains_key("outputs")
    }

    /// Namespace and name of its repository.
    pub fn repository_key(&self) -> (String, String) {
        let own = self.metadata.namespace.clone().unwrap_or_default();
        let RepositoryRef { name, namespace } = &self.spec.repository;
        (namespace.clone().unwrap_or(own), name.clone())
    }

    /// The identity of the spec that `status.source` must match: ref, path and a digest of the trigger paths, if there are any.
    pub fn source_of(&self) -> String {
        let spec = &self.spec;
        let triggers = match spec.trigger_paths.as_slice() {
            [] => String::new(),
            paths => hex_digest(&Sha256::digest(paths.join("\n").as_bytes())),
        };
        format!("{}\n{}\n{triggers}", spec.git_ref, spec.path)
    }
}
