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
    /// The files of a ConfigMap of the run's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<Box<ObjectSource>>,
    /// The files of a Secret of the run's namespace. They are code then, which the plan, its checksum and its bundle hold as any other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<Box<ObjectSource>>,
    /// An archive on a web server, as Flux's source-controller serves it. Needs `spec.stack`: no URL says which stack it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<Box<ArtifactSource>>,
    /// A revision of a `TerraformRepository`, as the datastore has it: the pod needs no credentials for it. Needs `spec.stack`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<Box<RepositorySource>>,
}

/// A revision of a repository that Pawl follows.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RepositorySource {
    /// Name of the `TerraformRepository`.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"))]
    pub name: String,
    /// Its namespace, which has to name this one in `allowedNamespaces`. Default: the run's own; at most 63 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"))]
    pub namespace: Option<String>,
    /// Full id of the commit, in hexadecimal digits; at most 64 characters.
    #[schemars(length(min = 40, max = 64), regex(pattern = r"^([0-9a-f]{40}|[0-9a-f]{64})$"))]
    pub revision: String,
    /// Directory of the stack, relative to the top of the repository. Default: `.`; at most 1024 characters.
    #[serde(default = "default_path")]
    #[schemars(length(min = 1, max = 1024))]
    pub path: String,
}

/// The one field that a source has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SourceKind<'a> {
    /// `git`.
    Git(&'a GitSource),
    /// `inline`.
    Inline(&'a InlineSource),
    /// `configMapRef`.
    ConfigMap(&'a ObjectSource),
    /// `secretRef`.
    Secret(&'a ObjectSource),
    /// `artifact`.
    Artifact(&'a ArtifactSource),
    /// `repository`.
    Repository(&'a RepositorySource),
}

impl Source {
    /// What it is. `None` unless exactly one of its fields is set, as in a run whose source this version does not know.
    pub fn kind(&self) -> Option<SourceKind<'_>> {
        let Self { git, inline, config_map_ref, secret_ref, artifact, repository } = self;
        let kinds = [
            git.as_ref().map(SourceKind::Git),
            inline.as_ref().map(SourceKind::Inline),
            config_map_ref.as_deref().map(SourceKind::ConfigMap),
            secret_ref.as_deref().map(SourceKind::Secret),
            artifact.as_deref().map(SourceKind::Artifact),
            repository.as_deref().map(SourceKind::Repository),
        ];
        let mut kinds = kinds.into_iter().flatten();
        kinds.next().filter(|_| kinds.next().is_none())
    }

    /// The field of the spec that has the code, or fixes it by a digest: no run of the same spec has other code.
    pub fn fixed_by(&self) -> Option<&'static str> {
        match self.kind()? {
            SourceKind::Inline(_) => Some("spec.source.inline.files"),
            SourceKind::Artifact(_) => Some("spec.source.artifact"),
            SourceKind::Repository(_) => Some("spec.source.repository.revision"),
            SourceKind::Git(_) | SourceKind::ConfigMap(_) | SourceKind::Secret(_) => None,
        }
    }

    /// Directory of the stack, relative to the top of the source.
    pub fn path(&self) -> &str {
        match self.kind() {
            Some(SourceKind::Git(git)) => &git.path,
            Some(SourceKind::Artifact(artifact)) => &artifact.path,
            Some(SourceKind::Repository(repository)) => &repository.path,
            Some(SourceKind::Inline(_) | SourceKind::ConfigMap(_) | SourceKind::Secret(_)) | None => ".",
        }
    }
}

/// The files of a ConfigMap or Secret: one each key.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectSource {
    /// Name of the ConfigMap or Secret; at most 253 characters.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"))]
    pub name: String,
    /// The keys that are taken, and the paths of their files; at most 64. Default: every key, as a file of its name beside the others,
    /// since no key holds a `/`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub items: Vec<KeyPath>,
}

/// A key and the path of its file.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeyPath {
    /// Key in the ConfigMap or Secret.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[A-Za-z0-9._-]+$"))]
    pub key: String,
    /// Path of the file, relative to the stack's directory; at most 255 characters.
    #[schemars(length(min = 1, max = 255), regex(pattern = r"^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*$"))]
    pub path: String,
}

/// An archive on a web server.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArtifactSource {
    /// Its URL, `https://` or `http://`, without credentials: a `.tar.gz`, `.tar` or `.zip`, told by its bytes and not by its name.
    /// At most 2048 characters.
    #[schemars(length(min = 8, max = 2048), regex(pattern = r"^https?://[^\s@/?#]+([/?#]\S*)?$"))]
    pub url: String,
    /// SHA-256 of the archive, as `sha256:` and 64 hexadecimal digits, at most 71 characters; Flux has it in `status.artifact.digest`.
    /// Other bytes are not unpacked. It is in `status.plan.revision`.
    #[schemars(length(min = 71, max = 71), regex(pattern = r"^sha256:[0-9a-f]{64}$"))]
    pub digest: String,
    /// Directory of the stack, relative to the top of the archive. Default: `.`; at most 1024 characters.
    #[serde(default = "default_path")]
    #[schemars(length(min = 1, max = 1024))]
    pub path: String,
    /// Secret of the run's namespace with the credentials: `username` and `password`, or `bearerToken`, and `ca.crt` for a
    /// private certificate authority. They are sent to the URL's own host alone, and not where it redirects to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretName>,
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
    /// private certificate authority of that host alone; for ssh `identity` (or `ssh-privatekey`), a private key without a passphrase, and `known_hosts`, besides
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_source_is_one_thing_or_nothing_that_is_known() {
        let of = |source| serde_json::from_value::<Source>(source).unwrap();
        let (inline, secret) = (json!({"files": {}}), json!({"name": "a"}));
        assert!(matches!(of(json!({"secretRef": secret})).kind(), Some(SourceKind::Secret(object)) if object.name == "a"));
        assert!(matches!(of(json!({"inline": inline})).kind(), Some(SourceKind::Inline(_))));
        assert_eq!(of(json!({"inline": inline, "secretRef": secret})).kind(), None);
        assert_eq!(of(json!({})).kind(), None);
    }
}
