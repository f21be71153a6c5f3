//! `TerraformRepository`: a Git repository that layers use.
#![allow(
    clippy::duplicated_attributes,
    reason = "each printcolumn is a column of its own"
)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    credentials::GitCredential, failure::FailureClass, template::RunTemplate, values::SecretName,
};
use crate::{duration::Span, reason::next_step::whole};

/// A Git repository to follow: Pawl checks each ref that a layer uses and stores each needed revision once.
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
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].status"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].reason"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].message",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
pub struct TerraformRepositorySpec {
    /// URL of the repository: `https://` or `http://` without a password, or `ssh://user@host/path` or
    /// `user@host:path`, which need a key in `secretRef`; at most 2048 characters.
    #[schemars(
        length(min = 5, max = 2048),
        extend("x-kubernetes-validations" = super::texts::git_url())
    )]
    pub url: String,
    /// Secret in this namespace with the credentials: `username` and `password`, `bearerToken`, or the GitHub App's
    /// `githubAppID`, `githubAppInstallationID` and `githubAppPrivateKey`, and `ca.crt` for a private certificate
    /// authority; for SSH `identity` and `known_hosts`. They are sent only to the URL's host. Setting
    /// this, or changing `url`, needs the verb `get` on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretName>,
    /// Credentials for submodules, and for large files elsewhere; at most 16. Setting one, or changing `url` beside it, needs the verb `get` on its
    /// Secret.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub credentials: Vec<GitCredential>,
    /// Polling interval of its refs, ±10 %. Default: `5m`; at least 30s, at most 24h.
    #[serde(default = "interval")]
    pub interval: Span,
    /// Default settings for runs of its layers. They cannot set account, image, approval mode, hooks or environment:
    /// those are reserved to the layer's creator. Objects, `stack`, `workspace` and `credentials` apply only to layers in this
    /// namespace, and naming them needs the right to them.
    #[serde(default, skip_serializing_if = "RunTemplate::is_empty")]
    pub defaults: RunTemplate,
    /// Webhook for pushes. Default: none, only polling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Webhook>,
    /// Other namespaces whose layers and runs may use it; at most 256.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 256),
        inner(
            length(min = 1, max = 63),
            regex(pattern = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")
        )
    )]
    pub allowed_namespaces: Vec<String>,
    /// Maximum number of open attempts of its layers' runs, in addition to the chart's own bounds; at least 1, at most
    /// 10000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub max_concurrent_runs: Option<u32>,
    /// Whether polling is suspended. Layers keep their content. Default: `false`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
}

/// How a forge reports pushes: a signed `POST /hooks/UID` to `controller server`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Webhook {
    /// Secret in this namespace with the shared secret as `secret`, and during a rotation the former one as `previous`.
    /// Setting it needs the verb `get` on it.
    pub secret_ref: SecretName,
}

/// The status of a repository.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TerraformRepositoryStatus {
    /// Generation of the spec that was processed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`: it answers, or is away for less than an hour. `Synced`: the last check succeeded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub conditions: Vec<Condition>,
    /// The next command to run, while the repository or a ref fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub next_step: Option<String>,
    /// Advice beside the next command, or in its place, as one line for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub advice: Option<String>,
    /// The refs that layers use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub refs: Vec<RefStatus>,
    /// The last handled value of `pawl.run/reconcile`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub last_handled_reconcile: Option<String>,
}

/// The status of a ref.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RefStatus {
    /// The ref as written in layers.
    #[schemars(length(max = 255))]
    pub name: String,
    /// Current commit of the ref.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<Commit>,
    /// When the ref was first seen at that commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Duration from the check to the stored snapshot, such as `1.2s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub took: Option<String>,
    /// The failure of the last check; empty when it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<RefFailure>,
}

/// A commit and the snapshot of its tree.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Commit {
    /// Full id of the commit.
    #[schemars(length(max = 64))]
    pub revision: String,
    /// Author of the commit, as `NAME <ADDRESS>`.
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
    /// `sha256:` and the digest of its snapshot in the datastore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 71))]
    pub digest: Option<String>,
    /// Size of the snapshot in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Which large files of Git LFS its snapshot has as pointers, and which address of `.lfsconfig` is not used, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub large: Option<String>,
}

/// Why the check of a ref failed.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RefFailure {
    /// Class of the failure.
    pub class: FailureClass,
    /// Name of the reason: one word of the guide's `reasons.md`.
    #[schemars(length(max = 64))]
    pub reason: String,
    /// The error, for people.
    #[schemars(length(max = 1024))]
    pub message: String,
    /// The next command to run.
    #[schemars(length(max = 1024))]
    pub next_step: String,
    /// Advice beside the next command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub advice: Option<String>,
    /// Time of the first failure in a row.
    pub since: Time,
    /// Number of failures in a row, at most 1000.
    pub times: u32,
}

impl TerraformRepositoryStatus {
    /// Advice and command of the next step, in one line.
    pub fn step(&self) -> Option<String> {
        whole(self.advice.as_deref(), self.next_step.as_deref())
    }
}

impl RefFailure {
    /// Advice and command of the next step, in one line.
    pub fn step(&self) -> Option<String> {
        let command = Some(self.next_step.as_str()).filter(|step| !step.is_empty());
        whole(self.advice.as_deref(), command)
    }
}

const fn interval() -> Span {
    Span::minutes(5)
}

impl TerraformRepository {
    /// Whether layers and runs in a namespace may use it.
    pub fn admits(&self, namespace: &str) -> bool {
        self.metadata.namespace.as_deref() == Some(namespace)
            || self
                .spec
                .allowed_namespaces
                .iter()
                .any(|name| name == namespace)
    }
}
