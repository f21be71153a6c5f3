//! The lock of a state, and the authentication header of its server.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Terraform's lock info, with its field names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct LockInfo {
    /// Random id, which the holder sends with each write.
    #[serde(rename = "ID")]
    pub id: String,
    /// Its purpose, for example `OperationTypeApply`.
    pub operation: String,
    /// Free text.
    pub info: String,
    /// `user@host`; the host of a runner is its pod.
    pub who: String,
    /// Version of the tool.
    pub version: String,
    /// Time of the lock (RFC 3339).
    pub created: String,
    /// Location of the state; set by some backends.
    pub path: String,
}

impl Default for LockInfo {
    fn default() -> Self {
        let text = String::new;
        // The tools cannot parse a lock with an empty time.
        let created = "0001-01-01T00:00:00Z".to_owned();
        Self {
            id: text(),
            operation: text(),
            info: text(),
            who: text(),
            version: text(),
            created,
            path: text(),
        }
    }
}

impl LockInfo {
    /// A lock of someone else, held for an apply.
    pub fn stranger(id: &str, who: &str) -> Self {
        Self {
            id: id.to_owned(),
            operation: "OperationTypeApply".to_owned(),
            who: who.to_owned(),
            version: "1.10.6".to_owned(),
            created: jiff::Timestamp::now().to_string(),
            ..Self::default()
        }
    }

    /// Its details in an entry of the ledger, for the state at `path`.
    pub fn detail(&self, path: &str) -> Value {
        json!({"path": path, "id": self.id, "operation": self.operation, "holder": self.who, "info": self.info})
    }
}

/// The `Authorization` header of basic authentication.
pub fn basic_header(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}
