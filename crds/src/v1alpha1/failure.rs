//! What a run says of a failure.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The class of a failure decides whether it is retried.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, JsonSchema)]
pub enum FailureClass {
    /// Their code or the run's spec: never retried.
    Configuration,
    /// Missing, wrong or expired credentials.
    Credentials,
    /// The state is locked; the message says by whom and since when.
    StateLocked,
    /// The state changed since the plan.
    StalePlan,
    /// Refused by a policy or by rights.
    Policy,
    /// Network, throttling, registry: retried before the claim.
    Transient,
    /// A phase passed its deadline.
    Timeout,
    /// A checksum or signature does not match, or a state is damaged.
    Integrity,
    /// Eviction, SIGTERM, out of memory, a lost pod: retried before the claim.
    Interrupted,
    /// A fault of Pawl.
    Internal,
    /// A word of a newer version. It is read, and never written in place of that word.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl FailureClass {
    /// Whether an attempt that failed so before the claim may be followed by another.
    pub const fn is_retried(self) -> bool {
        match self {
            // A failure that does not end its run is one that is retried, whatever it is called.
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
    /// Nothing was changed.
    #[default]
    None,
    /// Some of the plan was carried out.
    Some,
    /// Nobody can say; also what a word of a newer version is read as.
    #[serde(other)]
    Unknown,
}

/// What went wrong.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// Its class.
    pub class: FailureClass,
    /// One word for it, from [`crate::reason`].
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Z][A-Za-z]*$"))]
    pub reason: String,
    /// What failed, on what; one line.
    #[schemars(length(max = 1024))]
    pub message: String,
    /// Whether anything was changed.
    pub changes: Changed,
    /// What the tool said, errors first; at most 5.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5))]
    pub diagnostics: Vec<Diagnostic>,
}

/// A diagnostic of the tool.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Diagnostic {
    /// `error` or `warning`.
    #[schemars(length(max = 16))]
    pub severity: String,
    /// What it is about.
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
    /// File, relative to the stack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub file: Option<String>,
    /// Line in it, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
}
