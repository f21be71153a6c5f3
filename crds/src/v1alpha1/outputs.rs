//! Outputs of a stack: where they are published, and how another stack takes them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is published of the stack's outputs after an apply, and where. It takes a datastore, which writes the objects.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Outputs {
    /// A ConfigMap of the run's namespace. A sensitive output never gets there. The run's creator needs the right to create it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<OutputsObject>,
    /// A Secret of the run's namespace, of the type `pawl.run/outputs`. The run's creator needs the right to create it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<OutputsObject>,
    /// Whether `status.outputs.values` shows outputs that are not sensitive. Default: `false`.
    #[serde(default)]
    pub status: bool,
    /// What becomes of the objects when the stack is destroyed by a run with `outputs`. Default: `Delete`.
    #[serde(default)]
    pub on_destroy: OnDestroy,
}

/// An object that holds outputs, and which ones.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OutputsObject {
    /// Name of the object. One that Pawl did not make, or that holds the outputs of another stack, is left as it is.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$")
    )]
    pub name: String,
    /// Which outputs, and under which keys; at most 128. When empty, all: in a ConfigMap those that are not sensitive.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub items: Vec<OutputItem>,
}

/// An output in an object. A string is written as it is, any other value as JSON.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OutputItem {
    /// Name of the output in the configuration.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[A-Za-z_][A-Za-z0-9_-]*$"))]
    pub output: String,
    /// Key in the object. Default: the output's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$"))]
    pub key: Option<String>,
}

impl OutputItem {
    /// The key in the object.
    pub fn key(&self) -> &str {
        self.key.as_deref().unwrap_or(&self.output)
    }
}

/// What becomes of published outputs when their stack is destroyed.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
pub enum OnDestroy {
    /// They are deleted.
    #[default]
    Delete,
    /// They stay as they are.
    Keep,
    /// A word of a newer version: nothing is begun.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// An output that a stack of the same namespace publishes to a ConfigMap or a Secret.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OutputRef {
    /// Name of the stack: `spec.stack` of its runs, or what stands in its place. At most 63 characters.
    #[schemars(length(min = 1, max = 63))]
    pub stack: String,
    /// Its workspace. Default: `default`; at most 90 characters.
    #[serde(default = "default_workspace")]
    #[schemars(length(min = 1, max = 90), regex(pattern = r"^[A-Za-z0-9_.-]+$"))]
    pub workspace: String,
    /// Name of the output in that stack's configuration.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

fn default_workspace() -> String {
    "default".into()
}

/// What became of the outputs that were to be published.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OutputsStatus {
    /// One word: `Published`, or why they are not.
    #[schemars(length(max = 64))]
    pub reason: String,
    /// What was published, and what was not; one line.
    #[schemars(length(max = 512))]
    pub message: String,
    /// Outputs that are not sensitive, where `spec.outputs.status` asks for them; those that are too long are left out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<String, String>,
}
