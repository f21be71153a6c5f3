//! Inputs of the tool: variable files, environment, files, and arguments.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::values::{KeyRef, SecretName};

/// A file with variables, passed as `-var-file`: JSON when the name ends in `.json`, otherwise the tool's own language.
/// Exactly one of the fields.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VariableFile {
    /// A file of the source, relative to the stack's directory: `prod.tfvars`, `../env/prod.tfvars.json`. It must be
    /// inside the source. At most 255 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 255),
        regex(pattern = r"^[A-Za-z0-9_.][A-Za-z0-9_. /-]*$")
    )]
    pub path: Option<String>,
    /// A key of a ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeyRef>,
    /// A key of a Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeyRef>,
}

/// The name of a ConfigMap in the run's namespace.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvConfigMap {
    /// Name of the ConfigMap.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// All keys of a Secret or ConfigMap as environment variables of the tool. Exactly one of `configMapRef` and
/// `secretRef`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvFrom {
    /// Prefix of each key, for example `TF_VAR_`; at most 64 characters. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), regex(pattern = r"^([A-Za-z_][A-Za-z0-9_]*)?$"))]
    pub prefix: Option<String>,
    /// A ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<EnvConfigMap>,
    /// A Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretName>,
}

/// The base directory of a file.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
pub enum FilePlace {
    /// The home directory of the tool.
    #[default]
    Home,
    /// The stack's directory.
    Source,
    /// A value from a newer version; nothing starts.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl FilePlace {
    /// The name in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Home => "Home",
            Self::Source => "Source",
            Self::Unknown => "Unknown",
        }
    }
}

/// A file for the tool. Exactly one of `configMapKeyRef` and `secretKeyRef`. A file from a Secret enters neither the
/// plan's checksum nor the stored plan; it is written again when another pod applies the plan.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InputFile {
    /// Path of the file below the directory in `in`: `.aws/credentials`. At most 255 characters.
    #[schemars(
        length(min = 1, max = 255),
        regex(pattern = r"^[A-Za-z0-9_.][A-Za-z0-9_. -]*(/[A-Za-z0-9_. -]+)*$")
    )]
    pub path: String,
    /// Base directory: `Home` is the home directory of the tool, `Source` the stack's directory. Default: `Home`.
    #[serde(default, rename = "in")]
    pub place: FilePlace,
    /// A key of a ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeyRef>,
    /// A key of a Secret. Not allowed for code files, because reviewers could not see them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeyRef>,
    /// Whether to replace an existing file of the source; otherwise the run fails. Default: `false`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overwrite: bool,
}

/// Additional arguments of the tool's commands, one word each: `-name` or `-name=value`. Arguments that Pawl sets
/// itself, or that a spec field covers, are rejected; the message lists the allowed ones.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Arguments {
    /// For `init`: `-upgrade`, `-lockfile=readonly`, `-compact-warnings`, `-consolidate-warnings`, `-consolidate-errors`. The `init` of
    /// another pod that applies the plan does not get them. At most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 2, max = 512)))]
    pub init: Vec<String>,
    /// For `plan`: `-exclude=ADDRESS`, `-invoke=ADDRESS`, `-target-file=PATH`, `-exclude-file=PATH`, `-generate-config-out=PATH`, and those
    /// of `apply`. At most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 2, max = 512)))]
    pub plan: Vec<String>,
    /// For `apply`: `-compact-warnings`, `-consolidate-warnings`, `-consolidate-errors`, `-concise`, `-deprecation=VALUE`. At most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 2, max = 512)))]
    pub apply: Vec<String>,
}

impl Arguments {
    /// Whether there are no arguments.
    pub const fn is_empty(&self) -> bool {
        self.init.is_empty() && self.plan.is_empty() && self.apply.is_empty()
    }
}
