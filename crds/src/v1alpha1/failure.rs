//! The failure of a run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The class of a failure. It decides whether the failure is retried.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, JsonSchema)]
pub enum FailureClass {
    /// The code or the run's spec: never retried.
    Configuration,
    /// Missing, wrong or expired credentials.
    Credentials,
    /// The state is locked; the message gives the holder and the time.
    StateLocked,
    /// The state changed since the plan.
    StalePlan,
    /// Rejected by a policy or for lack of rights.
    Policy,
    /// Network, throttling, registry: retried before the claim.
    Transient,
    /// A phase exceeded its deadline.
    Timeout,
    /// A checksum or signature does not match, or a state is damaged.
    Integrity,
    /// Eviction, SIGTERM, out of memory, a lost pod: retried before the claim.
    Interrupted,
    /// A defect in Pawl.
    Internal,
    /// A value from a newer version. It is read, and never written back in place of that value.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl FailureClass {
    /// Whether another attempt may follow an attempt that failed so before the claim.
    pub const fn is_retried(self) -> bool {
        match self {
            // A failure that did not end its run is retried, whatever its class.
            Self::Transient | Self::Interrupted | Self::Unknown => true,
            Self::Configuration
            | Self::Credentials
            | Self::StateLocked
            | Self::StalePlan
            | Self::Policy
            | Self::Timeout
            | Self::Integrity
            | Self::Internal => false,
        }
    }
}

/// Whether a failed run changed anything.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
pub enum Changed {
    /// No changes.
    #[default]
    None,
    /// Some of the plan was carried out.
    Some,
    /// Unknown. Values from a newer version are read as this.
    #[serde(other)]
    Unknown,
}

/// The failure.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// Class of the failure.
    pub class: FailureClass,
    /// Name of the reason: one word of the guide's `reasons.md`.
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Z][A-Za-z]*$"))]
    pub reason: String,
    /// One line that says which action failed on which object.
    #[schemars(length(max = 1024))]
    pub message: String,
    /// Whether the run changed anything.
    pub changes: Changed,
    /// Diagnostics of the tool, errors first; at most 5.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5))]
    pub diagnostics: Vec<Diagnostic>,
}

impl Failure {
    /// A failure without diagnostics.
    pub fn new(class: FailureClass, reason: &str, message: &str, changes: Changed) -> Self {
        Self {
            class,
            reason: reason.to_owned(),
            message: message.to_owned(),
            changes,
            diagnostics: Vec::new(),
        }
    }
}

/// A diagnostic of the tool.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Diagnostic {
    /// `error` or `warning`.
    #[schemars(length(max = 16))]
    pub severity: String,
    /// The summary.
    #[schemars(length(max = 512))]
    pub summary: String,
    /// The tool's explanation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub detail: Option<String>,
    /// Address of the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub address: Option<String>,
    /// File, relative to the stack's directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub file: Option<String>,
    /// Line in the file, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
}
