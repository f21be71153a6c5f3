//! Where the configuration of a run comes from.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::values::SecretName;

/// Where the configuration comes from: exactly one of the fields.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// A directory of a git repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git: Option<GitSource>,
    /// Files in the run itself, for a stack that fits in one screen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inline: Option<InlineSource>,
}

/// A directory of a git repository at a revision.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GitSource {
    /// URL of the repository: `https://` or `http://` without credentials, or `ssh://user@host/path` or `user@host:path`, which need a key
    /// in `secretRef`; at most 2048 characters.
    #[schemars(
        length(min = 5, max = 2048),
        regex(pattern = r"^(https?://[^\s@]+|ssh://([A-Za-z0-9._+~-]+@)?[^\s@]+|[A-Za-z0-9._+~-]+@[A-Za-z0-9._-]+:[^\s]+)$")
    )]
    pub url: String,
    /// Branch, tag or full commit id; the commit that was used is in `status.plan.revision`. Default: `HEAD`;
    /// at most 255 characters.
    #[serde(default = "default_revision")]
    #[schemars(length(min = 1, max = 255), regex(pattern = r"^[A-Za-z0-9_.][A-Za-z0-9_./+@#-]*$"))]
    pub revision: String,
    /// Directory of the stack, relative to the top of the repository. Default: `.`; at most 1024 characters.
    #[serde(default = "default_path")]
    #[schemars(length(min = 1, max = 1024))]
    pub path: String,
    /// Secret of the run's namespace with the credentials: `username` and `password`, or `bearerToken`, and `ca.crt` for a
    /// private certificate authority; for ssh `identity` (or `ssh-privatekey`), a private key without a passphrase, and `known_hosts`, besides
    /// the public forges, whose keys are built in (the keys that Flux, `kubernetes.io/basic-auth` and `kubernetes.io/ssh-auth` use).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretName>,
}

/// Files in the run itself.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InlineSource {
    /// Contents by path, relative to the stack's directory; at most 64 files of at most 128 KiB.
    #[schemars(length(min = 1, max = 64))]
    pub files: BTreeMap<String, String>,
}

fn default_revision() -> String {
    "HEAD".into()
}

fn default_path() -> String {
    ".".into()
}
