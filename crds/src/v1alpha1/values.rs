//! Values that are given to a stack: variables, environment, backend, and where their contents come from.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::outputs::OutputRef;

/// The name of a Secret in the run's namespace.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretName {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// One key of a Secret or ConfigMap in the run's namespace.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeyRef {
    /// Name of the Secret or ConfigMap.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"))]
    pub name: String,
    /// Key in it.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[A-Za-z0-9._-]+$"))]
    pub key: String,
}

/// Where a value comes from when it is not in the run: exactly one of the fields.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ValueFrom {
    /// A key of a Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeyRef>,
    /// A key of a ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeyRef>,
    /// An output that another stack of the namespace publishes, with its type. When it changes, a plan made before is stale.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_of: Option<OutputRef>,
}

/// A variable of the stack. Exactly one of `value` and `valueFrom`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Variable {
    /// Name of the variable in the configuration.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[A-Za-z_][A-Za-z0-9_-]*$"))]
    pub name: String,
    /// Any JSON value; given to the tool in a `.auto.tfvars.json` file with its type intact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<serde_json::Value>,
    /// A key of a Secret or ConfigMap, whose text is given as a string, or an output of another stack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from: Option<ValueFrom>,
}

/// A variable of the tool's environment. Exactly one of `value` and `valueFrom`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvVar {
    /// Name in the environment. Names that steer the tool's command line (`TF_CLI_ARGS*`, `TF_DATA_DIR`, `TF_WORKSPACE`),
    /// those of Pawl (`PAWL_*`), and those by which programs load other code (`LD_*`, `BASH_ENV`, `PYTHONPATH`, `TF_REATTACH_PROVIDERS`)
    /// are refused by the agent.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[A-Za-z_][A-Za-z0-9_]*$"))]
    pub name: String,
    /// The value; at most 32768 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32768))]
    pub value: Option<String>,
    /// A key of a Secret or ConfigMap, or an output of another stack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from: Option<ValueFrom>,
}

/// Where the stack keeps its state, in place of what its code says.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Backend {
    /// The backend's type, in the tool's words: `s3`, `http`, `kubernetes`, …; at most 64 characters.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[a-z][a-z0-9_]*$"))]
    pub kind: String,
    /// Its arguments, any JSON object. Credentials belong in `env`, from a Secret.
    #[serde(default)]
    pub config: serde_json::Map<String, serde_json::Value>,
}
