//! The attempts of a run: the newest, the process that works for it, its claim, and what arrived after the end.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::phase::RunResult;

/// The newest attempt.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// Counts from 1.
    pub number: u32,
    /// Name of its pod.
    #[schemars(length(max = 63))]
    pub pod_name: String,
    /// Whether its pod may still write.
    pub open: bool,
    /// When it was opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened_at: Option<Time>,
    /// When it was closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_at: Option<Time>,
    /// Attempts so far that count against `spec.retry.limit`, this one included.
    #[serde(default)]
    pub tries: u32,
    /// The attempt whose plan this one takes from the datastore and applies, instead of making one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restores: Option<u32>,
    /// Whether others wait for its slot: a pod that only waits for an approval, or for the lease on its state, ends as soon as its plan
    /// is kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub end_hold: bool,
    /// How often another run took the lease on the state while this one waited, so that a record of it that is still on its way fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passed_over: Option<u32>,
    /// Image of its pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub image: Option<String>,
    /// Node of its pod, once its apply runs or the node is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub node_name: Option<String>,
    /// Boot ID of that node when it was lost.
    #[serde(default, rename = "bootID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub boot_id: Option<String>,
    /// The attempts before this one whose pods may have left a lock, the newest last; older ones than the last eight are not kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub former: Vec<FormerAttempt>,
}

impl Attempt {
    /// The node of its pod, as its agent or the controller wrote it down.
    pub fn node<'a>(&'a self, adopted: Option<&'a Adopted>) -> Option<&'a str> {
        let said = adopted.filter(|adopted| adopted.attempt == self.number).and_then(|adopted| adopted.node_name.as_deref());
        self.node_name.as_deref().or(said)
    }
}

/// An attempt that was followed by another.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FormerAttempt {
    /// Its number.
    pub number: u32,
    /// Node of its pod.
    #[schemars(length(max = 253))]
    pub node_name: String,
}

/// The process that works for an attempt; written once per attempt number.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Adopted {
    /// The attempt's number.
    pub attempt: u32,
    /// UID of its pod.
    #[serde(rename = "podUID")]
    #[schemars(length(max = 64))]
    pub pod_uid: String,
    /// Drawn by the process at its start and kept in memory only: 32 hexadecimal digits.
    #[schemars(length(min = 32, max = 32))]
    pub nonce: String,
    /// Node of its pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub node_name: Option<String>,
    /// Version of its agent, of the controller's minor release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub version: Option<String>,
}

/// The one write that permits the one apply.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// The plan that is applied.
    #[schemars(length(min = 71, max = 71))]
    pub checksum: String,
    /// The attempt that applies it.
    pub attempt: u32,
    /// UID of its pod.
    #[serde(rename = "podUID")]
    #[schemars(length(max = 64))]
    pub pod_uid: String,
    /// The process that applies it.
    #[schemars(length(min = 32, max = 32))]
    pub nonce: String,
    /// When.
    pub at: Time,
}

/// How an apply ended whose run had been given up as Indeterminate.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Settled {
    /// The result that the process which held the claim reported.
    pub result: RunResult,
    /// What it said.
    #[schemars(length(max = 1024))]
    pub message: String,
    /// When it was recorded.
    pub at: Time,
}
