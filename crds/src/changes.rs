//! The changes of a plan without sensitive values, which a viewer may read (`read.pawl.run`, `terraformruns/changes`): JSON lines, a [`Head`]
//! and one [`Change`] each. The agent makes them from the plan's JSON, since only it knows the values of Secrets.
//!
//! They are made from a list of what is taken. Variables, states, configuration and sensitive values are not.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Changes;

/// In place of a sensitive value.
pub const SENSITIVE: &str = "(sensitive value)";
/// In place of a value that is not known yet.
pub const UNKNOWN: &str = "(known after apply)";

/// The first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Head {
    /// The version of the lines: 1.
    pub version: u32,
    /// The counts of the plan.
    pub counts: Changes,
}

/// The part of the plan that a change is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ChangeOf {
    /// An object that the apply changes.
    Resource,
    /// An object that was changed outside of the code.
    Drift,
    /// An output of the stack.
    Output,
    /// An action that the apply invokes (Terraform 1.14 and later).
    Action,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// The part of the plan.
    pub of: ChangeOf,
    /// The address, with module and key; `output.NAME` of an output.
    pub address: String,
    /// The address of its module; empty in the root.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub module: String,
    /// The resource type.
    #[serde(rename = "type", default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// The name in its module.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The key of a deposed object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub deposed: String,
    /// The tool's words: `create`, `update`, `delete`, `read`, `forget`, `no-op`; two for a replacement, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<String>,
    /// The tool's reason for the actions.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Paths of the attributes that force a replacement.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replace_paths: Vec<Value>,
    /// The ID of an object that is imported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub importing: Option<String>,
    /// The former address of a moved object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub previous_address: String,
    /// The resource whose change invokes the action.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub trigger: String,
    /// The attributes that change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<Attribute>,
    /// Whether the attributes are too large and left out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
}

/// An attribute that changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Attribute {
    /// Names and indexes; empty for an output.
    pub path: Vec<Value>,
    /// The value, in which [`SENSITIVE`] and [`UNKNOWN`] take the place of others. Strings longer than 256 KiB are cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    /// The same after the apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Value>,
    /// Both values are sensitive and left out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sensitive: bool,
    /// The value after the apply is not known yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unknown: bool,
}
