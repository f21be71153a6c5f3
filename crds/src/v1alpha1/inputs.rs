//! What is given to the tool as a whole: files of variables, an environment, files, and arguments.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::values::{KeyRef, SecretName};

/// A file with variables, as the tool's `-var-file`: JSON where the name ends in `.json`, otherwise in the tool's own language. Exactly
/// one of the fields.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VariableFile {
    /// A file of the source, from the stack's directory on: `prod.tfvars`, `../env/prod.tfvars.json`. It stays inside the source. At
    /// most 255 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255), regex(pattern = r"^[A-Za-z0-9_.][A-Za-z0-9_. /-]*$"))]
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

/// All keys of a Secret or ConfigMap as variables of the tool's environment. Exactly one of `configMapRef` and `secretRef`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvFrom {
    /// What is put before each key, `TF_VAR_` for one; at most 64 characters. Default: nothing.
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

/// Below which directory a file is put.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
pub enum FilePlace {
    /// The home directory of the tool.
    #[default]
    Home,
    /// The stack's directory.
    Source,
    /// A word of a newer version: nothing is begun.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl FilePlace {
    /// The word in a spec.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Home => "Home",
            Self::Source => "Source",
            Self::Unknown => "Unknown",
        }
    }
}

/// A file for the tool. Exactly one of `configMapKeyRef` and `secretKeyRef`. What is of a Secret enters neither the plan's checksum nor
/// what is kept of the plan, and is put there again when the plan is applied in another pod.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InputFile {
    /// Where the file is put, below the directory that `in` names: `.aws/credentials`. At most 255 characters.
    #[schemars(length(min = 1, max = 255), regex(pattern = r"^[A-Za-z0-9_.][A-Za-z0-9_. -]*(/[A-Za-z0-9_. -]+)*$"))]
    pub path: String,
    /// `Home` is the home directory of the tool, `Source` the stack's directory. Default: `Home`.
    #[serde(default, rename = "in")]
    pub place: FilePlace,
    /// A key of a ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeyRef>,
    /// A key of a Secret; no file of code, which nobody could review.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeyRef>,
    /// Whether a file of the source that is there already is replaced; otherwise the run fails. Default: `false`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overwrite: bool,
}

/// Further arguments of the tool's commands, one word each: `-name` or `-name=value`. What Pawl gives itself, and what a field of the
/// spec is for, is refused; the message lists what is allowed.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Arguments {
    /// Of `init`: `-upgrade`, `-lockfile=readonly`, and how warnings are printed. A plan that is applied in another pod has its own
    /// `init` without them. At most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 2, max = 512)))]
    pub init: Vec<String>,
    /// Of `plan`: `-exclude=ADDRESS`, `-target-file=PATH`, `-exclude-file=PATH`, `-generate-config-out=PATH`, and how warnings are
    /// printed. At most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 2, max = 512)))]
    pub plan: Vec<String>,
    /// Of `apply`: how warnings are printed. At most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 2, max = 512)))]
    pub apply: Vec<String>,
}

impl Arguments {
    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.init.is_empty() && self.plan.is_empty() && self.apply.is_empty()
    }
}
