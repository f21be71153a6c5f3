//! The termination message: transports a result when the API is unreachable.
//!
//! The kubelet stores at most 4096 bytes of it in the pod's status. The controller accepts it only for the attempt, pod
//! and process recorded in the run's status.

use serde::{Deserialize, Serialize};

use crate::{Failure, RunResult, text::clip};

/// Maximum size that the kubelet stores, in bytes.
pub const MAX_BYTES: usize = 4096;

/// The end of an attempt.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TerminationMessage {
    /// UID of the run.
    #[serde(rename = "runUID")]
    pub run_uid: String,
    /// Number of the attempt.
    pub attempt: u32,
    /// UID of the pod.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// The nonce of the process.
    pub nonce: String,
    /// The result of the run; `None` when the attempt ended without ending the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<RunResult>,
    /// One line for people.
    #[serde(default)]
    pub message: String,
    /// The failure, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// Parts of log and journal that are missing in the datastore, for people; `None` when everything is stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unkept: Option<String>,
}

impl TerminationMessage {
    /// Serializes as JSON of at most [`MAX_BYTES`] bytes: drops diagnostics first, then clips long texts.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut message = self.clone();
        for limit in [usize::MAX, 400, 100, 0] {
            if let Some(failure) = &mut message.failure {
                if limit < usize::MAX {
                    failure.diagnostics.clear();
                }
                failure.message = clip(&failure.message, limit);
            }
            message.message = clip(&message.message, limit);
            message.unkept = message
                .unkept
                .map(|text| clip(&text, limit))
                .filter(|text| !text.is_empty());
            let bytes = serde_json::to_vec(&message).unwrap_or_default();
            if bytes.len() <= MAX_BYTES {
                return bytes;
            }
        }
        Vec::new()
    }

    /// Parses a message; `None` when the text is not one.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text.trim()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Diagnostic, Reason};

    fn message(length: usize) -> TerminationMessage {
        let diagnostics = vec![Diagnostic {
            summary: "x".repeat(length),
            ..Diagnostic::default()
        }];
        let message = "\"".repeat(length);
        TerminationMessage {
            run_uid: "u".into(),
            attempt: 1,
            pod_uid: "p".into(),
            nonce: "n".into(),
            result: Some(RunResult::Failed),
            message: "é".repeat(length),
            failure: Some(Failure {
                message,
                diagnostics,
                ..Reason::AgentFault.failure("")
            }),
            unkept: Some("x".repeat(length)),
        }
    }

    #[test]
    fn oversized_message_retains_its_result() {
        for length in [0, 100, 1_000, 100_000] {
            let bytes = message(length).to_bytes();
            assert!(bytes.len() <= MAX_BYTES, "{length}: {}", bytes.len());
            let read = TerminationMessage::parse(std::str::from_utf8(&bytes).unwrap()).unwrap();
            assert_eq!(read.result, Some(RunResult::Failed));
        }
    }
}
