//! Outputs of a stack: where they are published, and how another stack references them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which of the stack's outputs are published after an apply, and where. Requires a datastore, which writes the
/// objects.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Outputs {
    /// A ConfigMap in the run's namespace. It never receives sensitive outputs. The run's creator needs the right to
    /// create it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<OutputsObject>,
    /// A Secret in the run's namespace, of type `pawl.run/outputs`. The run's creator needs the right to create it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<OutputsObject>,
    /// Whether `status.outputs.values` shows outputs that are not sensitive. Default: `false`.
    #[serde(default)]
    pub status: bool,
    /// What happens to the objects when a run with `outputs` destroys the stack. Default: `Delete`.
    #[serde(default)]
    pub on_destroy: OnDestroy,
}

/// An object for outputs, and the outputs it receives.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OutputsObject {
    /// Name of the object. An object that Pawl did not create, or that has another stack's outputs, is not changed.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$")
    )]
    pub name: String,
    /// The outputs and their keys; at most 128. When empty: all outputs, in a ConfigMap only those that are not
    /// sensitive.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub items: Vec<OutputItem>,
}

/// An output in an object. Strings are written as they are, other values as JSON.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OutputItem {
    /// Name of the output in the configuration.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[A-Za-z_][A-Za-z0-9_-]*$")
    )]
    pub output: String,
    /// Key in the object. Default: the output's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$")
    )]
    pub key: Option<String>,
}

impl OutputItem {
    /// The key in the object.
    pub fn key(&self) -> &str {
        self.key.as_deref().unwrap_or(&self.output)
    }
}

/// What happens to published outputs when their stack is destroyed.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
pub enum OnDestroy {
    /// Deletes them.
    #[default]
    Delete,
    /// Leaves them unchanged.
    Keep,
    /// A value from a newer version; nothing starts.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// An output that a stack in the same namespace publishes to a ConfigMap or a Secret.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OutputRef {
    /// Name of the stack: `spec.stack` of its runs, or its default. At most 63 characters.
    #[schemars(length(min = 1, max = 63))]
    pub stack: String,
    /// Workspace of that stack. Default: `default`; at most 90 characters.
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

/// The result of publishing the outputs.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OutputsStatus {
    /// `Published`, or the reason why they are not.
    #[schemars(length(max = 64))]
    pub reason: String,
    /// What was and was not published; one line.
    #[schemars(length(max = 512))]
    pub message: String,
    /// Outputs that are not sensitive, if `spec.outputs.status` requests them; long values are left out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<String, String>,
}
