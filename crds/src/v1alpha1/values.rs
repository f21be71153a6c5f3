//! Values for a stack: variables, environment, backend, and references to their contents.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::outputs::OutputRef;
use crate::backend::BackendType;

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
    /// Name of the object.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")
    )]
    pub name: String,
    /// Key in that object.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[A-Za-z0-9._-]+$"))]
    pub key: String,
}

/// The source of a value outside the run: exactly one of the fields.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ValueFrom {
    /// A key of a Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeyRef>,
    /// A key of a ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeyRef>,
    /// An output that another stack in the namespace publishes, with its type. A change makes earlier plans stale.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_of: Option<OutputRef>,
}

/// A variable of the stack. Exactly one of `value` and `valueFrom`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Variable {
    /// Name of the variable in the configuration.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[A-Za-z_][A-Za-z0-9_-]*$")
    )]
    pub name: String,
    /// Any JSON value; passed to the tool in a `.auto.tfvars.json` file, with its type.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "present"
    )]
    pub value: Option<serde_json::Value>,
    /// A key of a Secret or ConfigMap, passed as a string, or an output of another stack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from: Option<ValueFrom>,
}

/// A value that is there, also null.
fn present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<serde_json::Value>, D::Error> {
    Deserialize::deserialize(from).map(Some)
}

/// An environment variable of the tool. Exactly one of `value` and `valueFrom`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvVar {
    /// Name of the environment variable. The agent rejects names that control the tool's command line (`TF_CLI_ARGS*`,
    /// `TF_DATA_DIR`, `TF_WORKSPACE`), names of Pawl (`PAWL_*`), and names that make programs load other code (`LD_*`,
    /// `BASH_ENV`, `PYTHONPATH`, `TF_REATTACH_PROVIDERS`).
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[A-Za-z_][A-Za-z0-9_]*$")
    )]
    pub name: String,
    /// The value; at most 32768 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32768))]
    pub value: Option<String>,
    /// A key of a Secret or ConfigMap, or an output of another stack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from: Option<ValueFrom>,
}

/// Where the stack stores its state; overrides the code.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Backend {
    /// The backend's type, as in the tool: `s3`, `http`, `kubernetes`, …; at most 64 characters.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[a-z][a-z0-9_]*$"))]
    pub kind: String,
    /// Arguments of the backend, any JSON object. Put credentials into `env`, from a Secret.
    #[serde(default)]
    pub config: serde_json::Map<String, serde_json::Value>,
}

impl Backend {
    /// Whether it alone, without code and environment, tells which state it is.
    pub fn names_state(&self) -> bool {
        BackendType::of(&self.kind).names_state(&serde_json::Value::Object(self.config.clone()))
    }
}
