//! The HTTP protocol between agents, controller and datastore (`design/0009-datastore.md`). Requests use HTTPS with a
//! bearer token of the audience [`AUDIENCE`]; the body of an error is a [`Problem`].
//!
//! Paths of an attempt, below [`attempt_path`]:
//!
//! | request | effect |
//! |---|---|
//! | `PUT objects/KIND` | writes an object once; [`HEADER_DIGEST`] is required. 201, or 200 when the same content exists |
//! | `GET objects/KIND` | reads an object of any attempt of the caller's own run |
//! | `GET objects/KIND/digest` | reads the object from the store, decrypts it, answers [`Stored`] |
//! | `PUT log/PHASE?offset=N[&end=true]` | appends at most [`MAX_APPEND`] bytes; answers [`Length`]; 409 [`WRONG_OFFSET`] gives the length |
//! | `PUT log/journal?offset=N` | the same for the journal ([`crate::apply_log`]) |
//! | `GET recover` | the journal of the run in the caller's `spec.recover`; 409 [`NOT_ENDED`] until that run has ended |
//! | `PUT intent` | performs the writes of `PUT claim` before the claim, to prove that they work; 409 [`ALREADY_CLAIMED`] |
//! | `PUT claim` | the claim as JSON, once per run; 409 [`ALREADY_CLAIMED`] |
//! | `PUT outputs` | the outputs of the state ([`crate::outputs::StateOutputs`]), after the claim; those of the managed state where it has no state or no body. Answers a [`crate::OutputsStatus`] |
//! | `GET outputs` | the outputs of other stacks that the caller's spec references, each as [`crate::outputs::Taken`] |
//! | `GET source` | the snapshot of the revision in the caller's `spec.source.repository`; 404 [`SOURCE_NOT_READY`], 403 [`REPOSITORY_NOT_ALLOWED`] |
//! | `GET state` | the newest state; 204 when there is none; 403 [`FORMER_NAMESPACE`], as for `PUT lock` |
//! | `PUT state?lock=ID` | a new version of the state; 403 [`FORBIDDEN`] before the claim, 423 [`LOCKED`] without the lock |
//! | `PUT lock` | Terraform's lock info; 423 with the holder's lock info in [`Problem::holder`] |
//! | `DELETE lock?lock=ID` | releases the lock |
//! | `GET laststate` | the [`LastState`] of the run's stack and workspace; 204 before the first apply |
//! | `PUT laststate` | the [`LastState`] after an apply whose state is elsewhere; 403 [`FORBIDDEN`] before the claim |
//!
//! The controller reads `GET /v1/namespaces/NS/uids/UID/attempts/N/objects/result`, `…/attempts/N/journal` (a
//! [`crate::Journal`], compared with the run's managed state), `…/attempts/N/log` (a [`LogStand`]),
//! `GET /v1/namespaces/NS/uids/UID/claim`, `…/source/RUN` (whether the revision of that run's repository is stored; 404 [`SOURCE_NOT_READY`], and it is
//! wanted from then on), and sends `DELETE /v1/namespaces/NS/uids/UID[?only=bundle]`.
//!
//! `controller sources` writes the snapshots of repositories, below [`snapshots_path`]:
//!
//! | request | effect |
//! |---|---|
//! | `PUT REVISION` | stores the snapshot of a commit, at most [`MAX_SOURCE`] bytes; [`HEADER_DIGEST`] is required. The first write wins; answers its [`Stored`] |
//! | `GET REVISION/digest` | its [`Stored`] |
//! | `GET` | the commits with a stored snapshot, as a list of strings |
//! | `DELETE REVISION` | deletes one |
//!
//! It also reads [`WANTED_PATH`]: the [`WantedRevision`]s as a list, in each line of a streamed response.

pub use crate::state_id::StateId;

use serde::{Deserialize, Serialize};

pub use crate::digest::hex_digest;

/// Audience of the tokens.
pub const AUDIENCE: &str = "pawl-datastore";
/// Environment variable of a pod: URL of the datastore; unset without a datastore.
pub const ENV_URL: &str = "PAWL_DATASTORE_URL";
/// Environment variable of a pod: certificate authority of the datastore, PEM.
pub const ENV_CA: &str = "PAWL_DATASTORE_CA";
/// Directory of the projected token in a pod; the file is `token`.
pub const TOKEN_DIR: &str = "/var/run/secrets/pawl.run/datastore";
/// Loopback port at which the agent serves a managed state to the tool. It is constant because a plan's checksum covers
/// the address.
pub const STATE_PORT: u16 = 9417;

/// Header: `sha256:` and the hexadecimal digest of the body.
pub const HEADER_DIGEST: &str = "pawl-digest";
/// Header of an answer to people with one log that is not followed: the length of the whole log, in bytes.
pub const HEADER_LOG_LENGTH: &str = "pawl-log-length";
/// Header: nonce of the process that adopted the attempt.
pub const HEADER_NONCE: &str = "pawl-nonce";

/// Maximum size of one append to a log, in bytes.
pub const MAX_APPEND: u64 = 1 << 20;
/// Maximum size of a phase's log, in bytes.
pub const MAX_LOG: u64 = 4 << 30;
/// Maximum size of a state, in bytes.
pub const MAX_STATE: u64 = 512 << 20;
/// Maximum size of a repository snapshot: 1 GiB.
pub const MAX_SOURCE: u64 = 1 << 30;
/// Maximum size of a claim or lock info, in bytes.
pub const MAX_SMALL: u64 = 16 << 10;

/// Objects that an attempt writes once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ObjectKind {
    /// Plan file, lock file and work directory.
    Bundle,
    /// The plan as text, secrets redacted.
    Plan,
    /// The plan as JSON as the tool prints it, including secret values.
    PlanJson,
    /// The changes of the plan, one JSON document a line ([`crate::changes`]), without sensitive values.
    Changes,
    /// The termination message of an attempt.
    Result,
    /// The state that the tool failed to save.
    ErroredState,
}

impl ObjectKind {
    /// All kinds.
    pub const ALL: [Self; 6] = [
        Self::Bundle,
        Self::Plan,
        Self::PlanJson,
        Self::Changes,
        Self::Result,
        Self::ErroredState,
    ];

    /// The name in a path.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Bundle => "bundle",
            Self::Plan => "plan",
            Self::PlanJson => "planjson",
            Self::Changes => "changes",
            Self::Result => "result",
            Self::ErroredState => "erroredstate",
        }
    }

    /// The kind for a name in a path.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }

    /// Maximum size, in bytes.
    pub const fn limit(self) -> u64 {
        match self {
            Self::Bundle => 8 << 30,
            Self::Plan | Self::PlanJson | Self::Changes => 2 << 30,
            Self::Result => 64 << 10,
            Self::ErroredState => MAX_STATE,
        }
    }
}

/// Phases that have a log, in execution order.
pub const LOG_PHASES: [&str; 4] = ["setup", "init", "plan", "apply"];

/// The name of the journal, in place of a phase.
pub const JOURNAL: &str = "journal";

/// A stored object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// `sha256:` and the hexadecimal digest of the content.
    pub digest: String,
    /// In bytes.
    pub size: u64,
}

/// The state with which the last apply of a stack and workspace ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastState {
    /// The backend's type; [`MANAGED`] for a managed state.
    pub backend: String,
    /// The key of the state's place ([`crate::state_key`]).
    pub key: String,
    /// The tool's lineage; `None` where nothing is left after a destroy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<String>,
    /// The serial number after the apply; the one that the plan was made from where the state could not be read afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<u64>,
}

/// In place of a backend's type: the datastore keeps the state.
pub const MANAGED: &str = "managed";

impl LastState {
    /// How `now`, the state of a plan, differs from this one. The same lineage at another place is the same state, moved; with a lower
    /// serial number it is an older version, as after a restore.
    pub fn is_not(&self, now: &Self) -> Option<String> {
        let known = self.lineage.as_ref()?;
        let short = |lineage: &str| lineage.chars().take(8).collect::<String>();
        let is = match &now.lineage {
            None => "is empty".to_owned(),
            Some(lineage) if lineage != known => format!("has lineage {}…", short(lineage)),
            Some(_) => {
                let older = now.serial.filter(|serial| Some(*serial) < self.serial)?;
                format!("is an older one, serial {older}")
            }
        };
        let place = if self.key == now.key {
            "at the same place"
        } else {
            "at another place"
        };
        let serial = self
            .serial
            .map(|serial| format!(", serial {serial}"))
            .unwrap_or_default();
        Some(format!(
            "the state (backend {}) {is}; the last apply of this stack ended with lineage {}…{serial}, {place} (backend {})",
            now.backend,
            short(known),
            self.backend
        ))
    }
}

/// The current length of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Length {
    /// In bytes.
    pub length: u64,
}

/// The completeness of an attempt's logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogStand {
    /// Every phase that began has a log, and each log has its end mark.
    pub whole: bool,
}

/// 401: no valid credentials.
pub const UNAUTHENTICATED: &str = "Unauthenticated";
/// 403: the object belongs to another run, or the attempt to another pod.
pub const FORBIDDEN: &str = "Forbidden";
/// 403: the attempt is closed or not the newest.
pub const REPLACED: &str = "AttemptReplaced";
/// 404: no such run or object.
pub const NOT_FOUND: &str = "NotFound";
/// 409: the name holds different content.
pub const ALREADY_EXISTS: &str = "AlreadyExists";
/// 409: another process claimed.
pub const ALREADY_CLAIMED: &str = "AlreadyClaimed";
/// 409: the run has not ended.
pub const NOT_ENDED: &str = "NotEnded";
/// 409: the log has another length.
pub const WRONG_OFFSET: &str = "WrongOffset";
/// 403: the state belongs to a deleted namespace of the same name.
pub const FORMER_NAMESPACE: &str = crate::reason::STATE_OF_FORMER_NAMESPACE;
/// 404: the snapshot or the repository does not exist.
pub const SOURCE_NOT_READY: &str = crate::reason::SOURCE_NOT_READY;
/// 403: the repository does not allow the run's namespace.
pub const REPOSITORY_NOT_ALLOWED: &str = crate::reason::REPOSITORY_NOT_ALLOWED;
/// 413: too large.
pub const TOO_LARGE: &str = "TooLarge";
/// 422: the content does not match its digest.
pub const WRONG_DIGEST: &str = "WrongDigest";
/// 400: malformed request.
pub const INVALID: &str = "Invalid";
/// 423: another client holds the state's lock, or it is not held.
pub const LOCKED: &str = "Locked";
/// 500: the stored object cannot be decrypted: modified, truncated, moved, or encrypted with another key.
pub const CORRUPT: &str = "Corrupt";
/// 500: the object's encryption key is not configured.
pub const KEY_MISSING: &str = "KeyMissing";
/// 503: the store or the API server does not respond.
pub const UNAVAILABLE: &str = "Unavailable";

/// The body of an error response.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct Problem {
    /// One of this module's reasons.
    pub reason: String,
    /// One line for people.
    pub message: String,
    /// The length of the log, with [`WRONG_OFFSET`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<u64>,
    /// The lock info of the holder, with [`LOCKED`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<Box<serde_json::Value>>,
}

/// The path of an attempt.
pub fn attempt_path(namespace: &str, run: &str, attempt: u32) -> String {
    format!("/v1/namespaces/{namespace}/runs/{run}/attempts/{attempt}")
}

/// The path of a repository's snapshots in format 2. The UID identifies the repository. A process of a release with another format finds none here.
pub fn snapshots_path(namespace: &str, uid: &str) -> String {
    format!("/v1/namespaces/{namespace}/repositories/{uid}/snapshots-2")
}

/// The path of the revisions that runs requested and that are not stored: a stream of lists, one line per change.
pub const WANTED_PATH: &str = "/v1/wanted";

/// A revision that a run requested recently and that is not stored.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WantedRevision {
    /// Namespace of the repository.
    pub namespace: String,
    /// UID of the repository.
    pub uid: String,
    /// The full commit id.
    pub revision: String,
}

/// The text of an error and all its causes. The `Display` of an HTTP client's errors omits the causes, which hold the
/// useful part.
pub fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn last_state_is_told_by_its_lineage_and_serial() {
        let with = |key: &str, lineage: Option<&str>, serial| super::LastState {
            backend: "s3".into(),
            key: key.into(),
            lineage: lineage.map(str::to_owned),
            serial,
        };
        let at = |key: &str, lineage: Option<&str>| with(key, lineage, lineage.map(|_| 4));
        let own = Some("0a1b2c3d-4e5f");
        let known = at("k", own);
        for (last, now, is_same) in [
            (&known, at("k", own), true),
            (&known, at("moved", own), true),
            (&known, with("k", own, Some(5)), true),
            (&known, with("k", own, Some(3)), false),
            (&known, with("moved", own, Some(3)), false),
            // A state or a record without a number.
            (&known, with("k", own, None), true),
            (&with("k", own, None), with("k", own, Some(3)), true),
            (&known, at("k", Some("9")), false),
            (&known, at("k", None), false),
            (&at("k", None), at("k", Some("9")), true),
        ] {
            assert_eq!(last.is_not(&now).is_none(), is_same, "{now:?}");
        }
        let why = known.is_not(&at("other", None)).unwrap();
        assert_eq!(
            why,
            "the state (backend s3) is empty; the last apply of this stack ended with lineage 0a1b2c3d…, serial 4, at another place \
             (backend s3)"
        );
        let why = known.is_not(&with("k", own, Some(3))).unwrap();
        assert_eq!(
            why,
            "the state (backend s3) is an older one, serial 3; the last apply of this stack ended with lineage 0a1b2c3d…, serial 4, at the \
             same place (backend s3)"
        );
    }

    use super::*;

    #[test]
    fn object_kinds_have_unique_names() {
        for kind in ObjectKind::ALL {
            assert_eq!(ObjectKind::of(kind.as_str()), Some(kind));
        }
        assert_eq!(ObjectKind::of("../bundle"), None);
    }
}
