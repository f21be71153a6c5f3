//! The backend of the tool's state, as recorded by `init`. The properties of each backend type are in one table: [`crds::backend`].

mod mentioned;
pub mod of_code;
pub mod workspace_reads;

use std::{
    ffi::OsString,
    io::{self, Read as _},
    path::Path,
};

use crds::{Failure, Reason, ToolName, backend::BackendType};
use serde::Deserialize;
use serde_json::Value;

pub use mentioned::mentions_backend;

use crate::files;

/// Maximum size of the record, in bytes. Code may leave one of any size.
const LARGEST: u64 = 1 << 20;

/// The configured backend, as recorded by `init`.
#[derive(Clone, Debug, PartialEq)]
pub struct Backend {
    pub kind: String,
    /// Its arguments, including credentials.
    pub config: Value,
    /// Whether the code or the run configures one.
    named: bool,
}

impl Backend {
    /// Reads `init`'s record. Without a backend, the tool writes no record and stores its state in the stack's directory.
    ///
    /// # Errors
    /// The file exists but cannot be read, or is no regular file.
    pub fn read(stack: &Path) -> io::Result<Self> {
        #[derive(Deserialize)]
        struct File {
            backend: Option<Block>,
        }
        #[derive(Deserialize)]
        struct Block {
            #[serde(rename = "type")]
            kind: String,
            #[serde(default)]
            config: Value,
        }
        let mut text = String::new();
        let read = files::regular(&stack.join(".terraform/terraform.tfstate"))
            .and_then(|file| file.take(LARGEST + 1).read_to_string(&mut text));
        let text = match read {
            Ok(count) if count as u64 > LARGEST => {
                let text = format!("the record of the backend has more than {LARGEST} bytes");
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
            }
            Ok(_) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => "{}".to_owned(),
            Err(error) => return Err(error),
        };
        Ok(match serde_json::from_str::<File>(&text)?.backend {
            Some(block) => Self {
                kind: block.kind,
                config: block.config,
                named: true,
            },
            None => Self {
                kind: "local".into(),
                config: Value::Null,
                named: false,
            },
        })
    }

    /// Whether the code or the run configures one.
    pub fn is_named(&self) -> bool {
        self.named
    }

    /// The place of the state for the plan checksum, without credentials.
    pub fn place(&self) -> Value {
        BackendType::of(&self.kind).place(&self.config)
    }

    /// Whether the tool locks this state, according to the configuration and the tool's environment. Only this lock protects it
    /// from runs of other namespaces and from people.
    pub fn locks(&self, env: &[(OsString, OsString)]) -> bool {
        let is_set = |variable: &str| {
            env.iter()
                .any(|(name, value)| name == variable && !value.is_empty())
        };
        BackendType::of(&self.kind).locks(&self.config, is_set)
    }

    /// Whether another client may have written the state during an apply.
    pub fn may_be_shared(&self, env: &[(OsString, OsString)]) -> bool {
        BackendType::of(&self.kind).lock_may_fail || !self.locks(env)
    }

    /// Whether a refusal of the lock has the facts of its holder.
    pub fn names_holder(&self) -> bool {
        BackendType::of(&self.kind).names_holder
    }

    /// Whether a tool can release a lock of this state by its ID alone.
    pub fn unlocks_by_id(&self, tool: Option<ToolName>) -> bool {
        BackendType::of(&self.kind).unlocks_by_id(tool)
    }

    /// Refuses a state that would be lost with the pod, before anything is planned or changed.
    ///
    /// # Errors
    /// Reason `NoDurableState`.
    pub fn check(&self) -> Result<(), Failure> {
        if BackendType::of(&self.kind).is_durable {
            return Ok(());
        }
        let what = match (self.kind.as_str(), self.named) {
            ("local", false) => "the configuration has no backend".to_owned(),
            ("local", true) => {
                "the backend `local` keeps the state on the pod's own storage".to_owned()
            }
            (kind, _) => format!("the backend is `{kind}`"),
        };
        let message = format!(
            "{what}, so the state would be lost with the pod; name a backend in the code or in spec.backend"
        );
        Err(Reason::NoDurableState.failure(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crds::reason;
    use serde_json::json;
    use std::fs;

    fn recorded(json: &str) -> io::Result<Backend> {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(".terraform")).unwrap();
        fs::write(dir.path().join(".terraform/terraform.tfstate"), json).unwrap();
        Backend::read(dir.path())
    }

    fn backend(json: &str) -> Backend {
        recorded(json).unwrap()
    }

    #[test]
    fn record_of_any_size_is_not_read() {
        let error = recorded(&format!("{{{}}}", " ".repeat(2 << 20))).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn only_a_state_that_outlives_the_pod_is_accepted() {
        let of = |json: &str| backend(json).check().map_err(|f| f.reason);
        let lost = Err(reason::NO_DURABLE_STATE.to_owned());
        assert_eq!(of(r#"{"version":3}"#), lost);
        assert_eq!(
            of(r#"{"backend":{"type":"local","config":{"path":null}}}"#),
            lost
        );
        assert_eq!(
            of(r#"{"backend":{"type":"local","config":{"path":"/tmp/state"}}}"#),
            lost
        );
        assert_eq!(of(r#"{"backend":{"type":"inmem","config":{}}}"#), lost);
        assert_eq!(
            of(r#"{"backend":{"type":"http","config":{"address":"http://s"}}}"#),
            Ok(())
        );
        let missing = tempfile::tempdir().unwrap();
        let failure = Backend::read(missing.path()).unwrap().check().unwrap_err();
        assert_eq!(
            failure.message,
            "the configuration has no backend, so the state would be lost with the pod; name a backend in the code or in spec.backend"
        );
    }

    #[test]
    fn lock_address_may_come_from_the_environment() {
        let env = |value: &str| {
            [(
                OsString::from("TF_HTTP_LOCK_ADDRESS"),
                OsString::from(value),
            )]
        };
        let http = Backend {
            kind: "http".into(),
            config: json!({"address": "http://s"}),
            named: true,
        };
        assert!(http.locks(&env("http://s/l")) && !http.locks(&env("")) && !http.locks(&[]));
    }
}
