//! The journal of an apply: the tool's events for each object, stored outside the pod while the apply runs
//! (`design/0011-journal-and-recovery.md`). One JSON object per line.
//!
//! | module | contents |
//! |---|---|
//! | [`replay`] | the outcome of the lines: created, destroyed, in progress |
//! | [`compare`] | comparison of that outcome with a state |
//! | [`state`] | the objects of a tool's state |
//! | [`address`] | addresses and string literals of the tools |

pub mod address;
pub mod compare;
pub mod replay;
pub mod state;

pub use compare::{Comparison, MAY_EXIST, Object, uncompared};
pub use replay::Replay;
pub use state::{Recorded, StateFacts};

use serde::{Deserialize, Serialize};

/// Maximum length of a journaled address or ID, in bytes. A longer ID counts as not printed.
pub const MAX_TEXT: usize = 2048;

/// A line of a journal.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(tag = "event", rename_all = "camelCase")]
pub enum Line {
    /// The apply starts.
    Begin(Head),
    /// The tool starts to work on an object.
    Start(Operation),
    /// The tool completed the operation.
    Complete(Operation),
    /// The operation failed.
    Errored(Operation),
    /// The tool exited by itself.
    End(Ended),
}

/// Facts at the start of an apply.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Head {
    /// Whether the datastore stores the state.
    #[serde(default)]
    pub managed: bool,
    /// Key of the state ([`crate::state_key`]).
    #[serde(default)]
    pub state: String,
}

/// The end of the tool.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Ended {
    /// Its exit code.
    pub code: i32,
    /// Whether the tool saved the state to its backend. If so, the state shows which of the objects that the tool reported as failed exist.
    #[serde(default)]
    pub saved: bool,
}

/// An action on an object.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub enum Action {
    /// Creates it.
    Create,
    /// Changes it in place.
    Update,
    /// Destroys it.
    Delete,
    /// Imports it into the state.
    Import,
    /// Removes it from the state.
    Forget,
    /// An action that changes no object.
    #[serde(other)]
    Other,
}

impl Action {
    /// The action for the tool's name of it.
    pub fn of(word: &str) -> Self {
        match word {
            "create" => Self::Create,
            "update" => Self::Update,
            "delete" => Self::Delete,
            "import" => Self::Import,
            "forget" => Self::Forget,
            _ => Self::Other,
        }
    }

    /// The name for people.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Import => "import",
            Self::Forget => "forget",
            Self::Other => "read",
        }
    }
}

/// One object and the action on it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Operation {
    /// The action.
    pub action: Action,
    /// Its address, as the tool writes it.
    pub address: String,
    /// Its type: `aws_vpc`.
    #[serde(default, rename = "type")]
    pub kind: String,
    /// The provider, if the tool reports it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub provider: String,
    /// The ID, if the tool printed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The time, as the tool prints it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub at: String,
}

impl Line {
    /// The line, including its line feed.
    pub fn to_bytes(&self) -> Vec<u8> {
        // The type has only strings, numbers and booleans, so serialization cannot fail.
        let mut bytes = serde_json::to_vec(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }

    /// Parses a line; `None` when it is not one.
    pub fn parse(line: &[u8]) -> Option<Self> {
        serde_json::from_slice(line).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journal_line_round_trips_on_one_line() {
        let operation = Operation {
            action: Action::Create,
            address: "module.m[\"a\"].aws_vpc.main".into(),
            kind: "aws_vpc".into(),
            provider: "aws".into(),
            id: Some("vpc-1\nx".into()),
            at: "2026-11-21T10:00:00Z".into(),
        };
        for line in [
            Line::Begin(Head {
                managed: true,
                state: "sha256:ab".into(),
            }),
            Line::Start(Operation {
                id: None,
                ..operation.clone()
            }),
            Line::Complete(operation.clone()),
            Line::Errored(operation),
            Line::End(Ended {
                code: 1,
                saved: true,
            }),
        ] {
            let bytes = line.to_bytes();
            assert_eq!(
                bytes.iter().position(|b| *b == b'\n'),
                Some(bytes.len() - 1)
            );
            assert_eq!(Line::parse(&bytes), Some(line));
        }
        assert_eq!(
            Line::parse(b"[7 bytes are missing here: the log could not be kept]"),
            None
        );
        let later = br#"{"event":"start","action":"transmute","address":"a.b","new":1}"#;
        assert!(matches!(Line::parse(later), Some(Line::Start(o)) if o.action == Action::Other));
    }
}
