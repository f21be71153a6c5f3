//! The attempts of a run: the newest, its process, its claim, and results that arrived after the end.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::phase::RunResult;

/// The newest attempt.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// Number, from 1.
    pub number: u32,
    /// Name of its pod.
    #[schemars(length(max = 63))]
    pub pod_name: String,
    /// UID of its pod, from the API server's answer to the controller that created the pod. Only this pod adopts the
    /// attempt. Absent until a pod could be created.
    #[serde(default, rename = "podUID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub pod_uid: Option<String>,
    /// Whether its pod may still write the status.
    pub open: bool,
    /// When it was opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened_at: Option<Time>,
    /// When it was closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_at: Option<Time>,
    /// Number of attempts, including this one, that count against `spec.retry.limit`.
    #[serde(default)]
    pub tries: u32,
    /// The attempt whose stored plan this one applies instead of making one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restores: Option<u32>,
    /// Whether other runs wait for its slot. A pod that only waits for an approval or for the lease on its state then
    /// ends once its plan is stored.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub end_hold: bool,
    /// How often another run took the lease on the state while this one waited. A delayed write that records the lease
    /// fails when this number has changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passed_over: Option<u32>,
    /// Image of its pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub image: Option<String>,
    /// Node of its pod, set when its apply runs or the node is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub node_name: Option<String>,
    /// Boot ID of the attempt's node, recorded when the node was lost.
    #[serde(default, rename = "bootID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub boot_id: Option<String>,
    /// Earlier attempts whose pods may have left a lock, the newest last; at most 8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub former: Vec<FormerAttempt>,
}

impl Attempt {
    /// The UID of its pod. An older release recorded it with the adoption only.
    pub fn pod<'a>(&'a self, adopted: Option<&'a Adopted>) -> Option<&'a str> {
        let adopted = adopted.filter(|adopted| adopted.attempt == self.number);
        self.pod_uid
            .as_deref()
            .or(adopted.map(|adopted| adopted.pod_uid.as_str()))
    }

    /// The node of its pod, as recorded by controller or agent.
    pub fn node<'a>(&'a self, adopted: Option<&'a Adopted>) -> Option<&'a str> {
        let said = adopted
            .filter(|adopted| adopted.attempt == self.number)
            .and_then(|adopted| adopted.node_name.as_deref());
        self.node_name.as_deref().or(said)
    }
}

/// An earlier attempt.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FormerAttempt {
    /// Number of the attempt.
    pub number: u32,
    /// UID of its pod.
    #[serde(default, rename = "podUID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub pod_uid: Option<String>,
    /// Node of its pod.
    #[schemars(length(max = 253))]
    pub node_name: String,
}

/// The process of an attempt; written once per attempt number.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Adopted {
    /// The attempt's number.
    pub attempt: u32,
    /// UID of its pod.
    #[serde(rename = "podUID")]
    #[schemars(length(max = 64))]
    pub pod_uid: String,
    /// Random value that the process generates at its start and keeps in memory only: 32 hexadecimal digits.
    #[schemars(length(min = 32, max = 32))]
    pub nonce: String,
    /// Node of its pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub node_name: Option<String>,
    /// Version of its agent; has the controller's minor release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub version: Option<String>,
}

/// The record that permits the run's only apply.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// Checksum of the plan to apply.
    #[schemars(length(min = 71, max = 71))]
    pub checksum: String,
    /// The attempt that applies it.
    pub attempt: u32,
    /// UID of its pod.
    #[serde(rename = "podUID")]
    #[schemars(length(max = 64))]
    pub pod_uid: String,
    /// Nonce of the process that applies it.
    #[schemars(length(min = 32, max = 32))]
    pub nonce: String,
    /// Time of the claim.
    pub at: Time,
}

/// The outcome of an apply that arrived after the run was ended as Indeterminate.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Settled {
    /// The result that the claiming process reported.
    pub result: RunResult,
    /// Message of the claiming process.
    #[schemars(length(max = 1024))]
    pub message: String,
    /// When it was recorded.
    pub at: Time,
}
