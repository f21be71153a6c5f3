//! `TerraformRepository`: a Git repository that layers are made of.
#![allow(clippy::duplicated_attributes, reason = "each printcolumn is a column of its own")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{failure::FailureClass, template::RunTemplate, values::SecretName};
use crate::duration::Span;

/// A Git repository that is followed: each ref that a layer names is looked at, and each revision that is wanted is stored once.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[kube(
    group = "pawl.run",
    version = "v1alpha1",
    kind = "TerraformRepository",
    plural = "terraformrepositories",
    namespaced,
    status = "TerraformRepositoryStatus",
    shortname = "tfrepo",
    category = "pawl",
    derive = "PartialEq",
    derive = "Default",
    printcolumn(name = "URL", type_ = "string", json_path = ".spec.url"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].message", priority = 1)
)]
#[serde(rename_all = "camelCase")]
pub struct TerraformRepositorySpec {
    /// URL of the repository: `https://` or `http://` without credentials, or `ssh://user@host/path` or `user@host:path`, which need a key
    /// in `secretRef`; at most 2048 characters.
    #[schemars(
        length(min = 5, max = 2048),
        regex(pattern = r"^(https?://[^\s@]+|ssh://([A-Za-z0-9._+~-]+@)?[^\s@]+|[A-Za-z0-9._+~-]+@[A-Za-z0-9._-]+:[^\s]+)$")
    )]
    pub url: String,
    /// Secret of this namespace with the credentials: `username` and `password`, `bearerToken`, or the GitHub App's `githubAppID`,
    /// `githubAppInstallationID` and `githubAppPrivateKey`, and `ca.crt` for a private certificate authority; for ssh `identity` and
    /// `known_hosts`. They are sent to the URL's host alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretName>,
    /// How often its refs are looked at without being asked to, give or take a tenth. Default: `5m`; at least 30s, at most 24h.
    #[serde(default = "interval")]
    pub interval: Span,
    /// Settings of the runs of its layers, where a layer does not say otherwise. They hold no account, image, approval mode, hooks or
    /// environment: those are of whoever may create the layer.
    #[serde(default, skip_serializing_if = "RunTemplate::is_empty")]
    pub defaults: RunTemplate,
    /// How its forge tells of pushes. Default: nobody does, and the interval is all there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Webhook>,
    /// Other namespaces whose layers and runs may use it; at most 256.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")))]
    pub allowed_namespaces: Vec<String>,
    /// The most attempts of runs of its layers that are open at once, besides the chart's own bounds; at least 1, at most 10000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub max_concurrent_runs: Option<u32>,
    /// Whether its refs are not looked at. Layers keep what they have. Default: `false`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
}

/// How a forge tells of pushes: `POST /hooks/UID` of `controller server`, signed.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Webhook {
    /// Secret of this namespace with the shared secret as `secret`, and the one before it, while it is changed, as `previous`.
    pub secret_ref: SecretName,
}

/// What is known of a repository.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TerraformRepositoryStatus {
    /// Generation of the spec that was looked at last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`: every ref that a layer names is known. `Synced`: the last look had an answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub conditions: Vec<Condition>,
    /// The refs that layers name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub refs: Vec<RefStatus>,
    /// The `pawl.run/poke` that was answered last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub last_handled_poke: Option<String>,
}

/// What is known of a ref.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RefStatus {
    /// The ref, as layers name it.
    #[schemars(length(max = 255))]
    pub name: String,
    /// The commit that it is at, with what is known of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<Commit>,
    /// When it was first seen there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// How long it took from the look to the stored bundle, as `1.2s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub took: Option<String>,
    /// The commit that it was at before, when the new one does not follow from that: a push by force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub forced_from: Option<String>,
    /// Why the last look at it failed; empty when it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<RefFailure>,
}

/// A commit, and the bundle of its tree.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Commit {
    /// Its full id.
    #[schemars(length(max = 64))]
    pub revision: String,
    /// Who wrote it, as `NAME <ADDRESS>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub author: Option<String>,
    /// When it was committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
    /// The first line of its message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub subject: Option<String>,
    /// `sha256:` and the digest of the bundle that the datastore has of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 71))]
    pub digest: Option<String>,
    /// Size of the bundle in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
}

/// Why a ref could not be looked at.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RefFailure {
    /// Its class.
    pub class: FailureClass,
    /// One word of `reasons.md`.
    #[schemars(length(max = 64))]
    pub reason: String,
    /// What failed, for people.
    #[schemars(length(max = 1024))]
    pub message: String,
    /// What to do, for people.
    #[schemars(length(max = 1024))]
    pub next_step: String,
    /// Since when it fails.
    pub since: Time,
    /// How often in a row, at most 1000.
    pub times: u32,
}

const fn interval() -> Span {
    Span::minutes(5)
}

impl TerraformRepository {
    /// Whether layers and runs of a namespace may use it.
    pub fn admits(&self, namespace: &str) -> bool {
        self.metadata.namespace.as_deref() == Some(namespace) || self.spec.allowed_namespaces.iter().any(|name| name == namespace)
    }
}
