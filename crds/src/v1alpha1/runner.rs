//! The typed allow-list of pod settings in a run's spec.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, ResourceRequirements, Toleration, TopologySpreadConstraint,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A Secret with credentials for a registry.
pub type RunnerSecretName = super::values::SecretName;

/// Settings of a run's pods. None can weaken their security context.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Runner {
    /// Image of the runner; at most 1024 characters. Default: the chart's `runner.image`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,
    /// `Always`, `IfNotPresent` or `Never`. Default: the chart's `runner.image.pullPolicy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), regex(pattern = r"^(Always|IfNotPresent|Never)$"))]
    pub image_pull_policy: Option<String>,
    /// Secrets in the run's namespace with credentials for the image's registry; at most 8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub image_pull_secrets: Vec<RunnerSecretName>,
    /// ServiceAccount of the pods; requires the verb `use` on it. By default each attempt gets its own, with rights on
    /// this run only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")
    )]
    pub service_account_name: Option<String>,
    /// ServiceAccount of the pods that make plans, if it differs from that of the pods that apply them, for example one
    /// with read-only rights. Requires `approval.mode` Manual, a datastore, and the verb `use` on the account. No pod
    /// that made a plan then applies it, so each apply starts in its own pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")
    )]
    pub plan_service_account_name: Option<String>,
    /// Resources of the runner's container; the default requests 100m, 512Mi and the chart's amount of node disk, and
    /// sets no limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Labels that a node must have; at most 64.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(length(max = 32))]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that the pods tolerate; at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub tolerations: Vec<Toleration>,
    /// Scheduling constraints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// How pods spread over the cluster; at most 8 rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    /// PriorityClass of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
    /// RuntimeClass of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub runtime_class_name: Option<String>,
    /// Additional labels of the pods, at most 64; `pawl.run/` and `app.kubernetes.io/` are reserved to the controller.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(length(max = 32))]
    pub labels: BTreeMap<String, String>,
    /// Additional annotations of the pods; at most 64.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(length(max = 32))]
    pub annotations: BTreeMap<String, String>,
    /// Seconds between SIGTERM and SIGKILL of the pod: the time in which an apply must save its state. Default: `600`;
    /// at least 30, at most 86400.
    #[serde(default = "grace")]
    #[schemars(range(min = 30, max = 86400))]
    pub termination_grace_period_seconds: i64,
    /// Group that owns the pods' volumes; at least 1, at most 2147483647.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2_147_483_647_i64))]
    pub fs_group: Option<i64>,
}

impl Runner {
    /// The user's account for pods of attempts that restore a plan, or make one.
    pub fn account(&self, restores: bool) -> Option<&str> {
        let plan = self
            .plan_service_account_name
            .as_deref()
            .filter(|_| !restores);
        plan.or(self.service_account_name.as_deref())
    }
}

impl Default for Runner {
    fn default() -> Self {
        Self {
            image: None,
            image_pull_policy: None,
            image_pull_secrets: Vec::new(),
            service_account_name: None,
            plan_service_account_name: None,
            resources: None,
            node_selector: BTreeMap::new(),
            tolerations: Vec::new(),
            affinity: None,
            topology_spread_constraints: Vec::new(),
            priority_class_name: None,
            runtime_class_name: None,
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            termination_grace_period_seconds: grace(),
            fs_group: None,
        }
    }
}

const fn grace() -> i64 {
    600
}
