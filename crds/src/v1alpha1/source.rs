//! The source of a run's configuration.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::values::SecretName;

/// The source of the configuration: exactly one of the fields.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// A directory of a git repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git: Option<GitSource>,
    /// Files in the run itself, for small stacks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inline: Option<InlineSource>,
    /// The files of a ConfigMap in the run's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<Box<ObjectSource>>,
    /// The files of a Secret in the run's namespace. They are treated as code: the plan, its checksum and the stored
    /// plan contain them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<Box<ObjectSource>>,
    /// An archive on a web server, such as Flux's source-controller. Requires `spec.stack`, because no URL identifies
    /// the stack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<Box<ArtifactSource>>,
    /// A revision of a `TerraformRepository` from the datastore: the pod needs no credentials for it. Requires
    /// `spec.stack`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<Box<RepositorySource>>,
}

/// A revision of a `TerraformRepository`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RepositorySource {
    /// Name of the `TerraformRepository`.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")
    )]
    pub name: String,
    /// Namespace of the `TerraformRepository`. If it is not the run's own, the repository must list the run's namespace in
    /// `allowedNamespaces`. Default: the run's own; at most 63 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")
    )]
    pub namespace: Option<String>,
    /// Full commit id, in hexadecimal digits; at most 64 characters.
    #[schemars(
        length(min = 40, max = 64),
        regex(pattern = r"^([0-9a-f]{40}|[0-9a-f]{64})$")
    )]
    pub revision: String,
    /// Branch or tag that led to the revision, as programs of the stack find it with git. It selects no code. Default: none, a detached `HEAD`;
    /// at most 255 characters.
    #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 255),
        extend("x-kubernetes-validations" = super::texts::git_ref())
    )]
    pub git_ref: Option<String>,
    /// Directory of the stack, relative to the top of the repository. Default: `.`; at most 1024 characters.
    #[serde(default = "default_path")]
    #[schemars(length(min = 1, max = 1024))]
    pub path: String,
}

/// The one field that a source sets.
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
    /// The source; `None` unless exactly one field is set. A source from a newer version also gives `None`.
    pub fn kind(&self) -> Option<SourceKind<'_>> {
        let Self {
            git,
            inline,
            config_map_ref,
            secret_ref,
            artifact,
            repository,
        } = self;
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

    /// The spec field that contains the code or its digest, so that runs of the same spec never have other code.
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
            Some(SourceKind::Inline(_) | SourceKind::ConfigMap(_) | SourceKind::Secret(_))
            | None => ".",
        }
    }
}

/// The files of a ConfigMap or Secret: one per key.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectSource {
    /// Name of the object; at most 253 characters.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")
    )]
    pub name: String,
    /// The keys to use and the paths of their files; at most 64. Default: every key, as a file with the key's name
    /// (keys contain no `/`).
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
    #[schemars(
        length(min = 1, max = 255),
        regex(pattern = r"^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*$")
    )]
    pub path: String,
}

/// An archive on a web server.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArtifactSource {
    /// URL of the archive, `https://` or `http://`, without credentials: a `.tar.gz`, `.tar` or `.zip`, recognized by its content,
    /// not its name. At most 2048 characters.
    #[schemars(
        length(min = 8, max = 2048),
        extend("x-kubernetes-validations" = super::texts::archive_url())
    )]
    pub url: String,
    /// SHA-256 of the archive, as `sha256:` and 64 hexadecimal digits, at most 71 characters; Flux publishes it in
    /// `status.artifact.digest`. An archive with another digest is not unpacked. `status.plan.revision` shows it.
    #[schemars(length(min = 71, max = 71), regex(pattern = r"^sha256:[0-9a-f]{64}$"))]
    pub digest: String,
    /// Directory of the stack, relative to the top of the archive. Default: `.`; at most 1024 characters.
    #[serde(default = "default_path")]
    #[schemars(length(min = 1, max = 1024))]
    pub path: String,
    /// Secret in the run's namespace with the credentials: `username` and `password`, or `bearerToken`, and `ca.crt`
    /// for a private certificate authority. They are sent only to the URL's own host, not to redirect targets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretName>,
}

/// A directory of a git repository at a revision.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GitSource {
    /// URL of the repository: `https://` or `http://` without a password, or `ssh://user@host/path` or
    /// `user@host:path`, which need a key in `secretRef`; at most 2048 characters.
    #[schemars(
        length(min = 5, max = 2048),
        extend("x-kubernetes-validations" = super::texts::git_url())
    )]
    pub url: String,
    /// Branch, tag or full commit id; `status.plan.revision` shows the commit used. Default: `HEAD`; at most 255
    /// characters.
    #[serde(default = "default_revision")]
    #[schemars(
        length(min = 1, max = 255),
        extend("x-kubernetes-validations" = super::texts::git_ref())
    )]
    pub revision: String,
    /// Directory of the stack, relative to the top of the repository. Default: `.`; at most 1024 characters.
    #[serde(default = "default_path")]
    #[schemars(length(min = 1, max = 1024))]
    pub path: String,
    /// Secret in the run's namespace with the credentials: `username` and `password`, or `bearerToken`, and `ca.crt`
    /// for a private certificate authority of that host only; for SSH `identity` (or `ssh-privatekey`), a private key
    /// without a passphrase, and `known_hosts`, which extends the built-in keys of the public forges. These are the
    /// keys that Flux, `kubernetes.io/basic-auth` and `kubernetes.io/ssh-auth` use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretName>,
}

/// Files in the run itself.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InlineSource {
    /// File contents by path, relative to the stack's directory; at most 64 files of at most 128 KiB.
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
    fn source_has_a_kind_only_with_exactly_one_field() {
        let of = |source| serde_json::from_value::<Source>(source).unwrap();
        let (inline, secret) = (json!({"files": {}}), json!({"name": "a"}));
        assert!(
            matches!(of(json!({"secretRef": secret})).kind(), Some(SourceKind::Secret(object)) if object.name == "a")
        );
        assert!(matches!(
            of(json!({"inline": inline})).kind(),
            Some(SourceKind::Inline(_))
        ));
        assert_eq!(
            of(json!({"inline": inline, "secretRef": secret})).kind(),
            None
        );
        assert_eq!(of(json!({})).kind(), None);
    }
}
