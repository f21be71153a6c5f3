//! The journal of an apply: what the tool said of each object as it said it, kept outside of the pod
//! (`design/0011-journal-and-recovery.md`). One JSON object a line.
//!
//! | module | holds |
//! |---|---|
//! | [`replay`] | what the lines come to: created, destroyed, under way |
//! | [`compare`] | that, compared with a state |
//! | [`state`] | the objects of a state of the tools |
//! | [`address`] | addresses and strings as the tools write them |

pub mod address;
pub mod compare;
pub mod replay;
pub mod state;

pub use compare::{Comparison, MAY_EXIST, Object, uncompared};
pub use replay::Replay;
pub use state::{Recorded, StateFacts};

use serde::{Deserialize, Serialize};

/// The longest address or ID that is journaled, in bytes; a longer ID counts as not printed.
pub const MAX_TEXT: usize = 2048;

/// A line of a journal.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(tag = "event", rename_all = "camelCase")]
pub enum Line {
    /// The apply begins.
    Begin(Head),
    /// The tool begins with an object.
    Start(Operation),
    /// It is done with it.
    Complete(Operation),
    /// It failed with it.
    Errored(Operation),
    /// The tool ended by itself.
    End(Ended),
}

/// What is known when an apply begins.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Head {
    /// The state is the datastore's.
    #[serde(default)]
    pub managed: bool,
    /// Key of the state ([`crate::state_key`]).
    #[serde(default)]
    pub state: String,
}

/// How the tool ended.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Ended {
    /// Its exit code.
    pub code: i32,
    /// Whether its state is where it belongs. Then what it says to have failed it has judged itself.
    #[serde(default)]
    pub saved: bool,
}

/// What is done with an object.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub enum Action {
    /// It is made.
    Create,
    /// It is changed in place.
    Update,
    /// It is destroyed.
    Delete,
    /// It is taken into the state.
    Import,
    /// It is taken out of the state.
    Forget,
    /// Something that leaves objects as they are.
    #[serde(other)]
    Other,
}

impl Action {
    /// The action of the tool's word.
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

    /// The word for people.
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

/// One object and what is done with it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Operation {
    /// What is done.
    pub action: Action,
    /// Its address, as the tool writes it.
    pub address: String,
    /// Its type: `aws_vpc`.
    #[serde(default, rename = "type")]
    pub kind: String,
    /// Its provider, as far as the tool says.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub provider: String,
    /// Its ID, when the tool printed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// When, in the tool's words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub at: String,
}

impl Line {
    /// The line, with its end.
    pub fn to_bytes(&self) -> Vec<u8> {
        // All of it are strings, numbers and booleans: it has a JSON.
        let mut bytes = serde_json::to_vec(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }

    /// Reads a line; `None` when it is something else.
    pub fn parse(line: &[u8]) -> Option<Self> {
        serde_json::from_slice(line).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_line_and_reads_as_it_was() {
        let operation = Operation {
            action: Action::Create,
            address: "module.m[\"a\"].aws_vpc.main".into(),
            kind: "aws_vpc".into(),
            provider: "aws".into(),
            id: Some("vpc-1\nx".into()),
            at: "2026-11-21T10:00:00Z".into(),
        };
        for line in [
            Line::Begin(Head { managed: true, state: "sha256:ab".into() }),
            Line::Start(Operation { id: None, ..operation.clone() }),
            Line::Complete(operation.clone()),
            Line::Errored(operation),
            Line::End(Ended { code: 1, saved: true }),
        ] {
            let bytes = line.to_bytes();
            assert_eq!(bytes.iter().position(|b| *b == b'\n'), Some(bytes.len() - 1));
            assert_eq!(Line::parse(&bytes), Some(line));
        }
        assert_eq!(Line::parse(b"[7 bytes are missing here: the log could not be kept]"), None);
        let later = br#"{"event":"start","action":"transmute","address":"a.b","new":1}"#;
        assert!(matches!(Line::parse(later), Some(Line::Start(o)) if o.action == Action::Other));
    }
}
