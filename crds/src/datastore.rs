//! The words of the protocol between agents, controller and datastore (`design/0009-datastore.md`). Requests are HTTPS with a
//! bearer token of the audience [`AUDIENCE`]; an error's body is a [`Problem`].
//!
//! Paths of an attempt, below [`attempt_path`]:
//!
//! | request | does |
//! |---|---|
//! | `PUT objects/KIND` | writes an object once; [`HEADER_DIGEST`] is required. 201, or 200 when the same is there already |
//! | `GET objects/KIND` | reads an object of any attempt of the caller's own run |
//! | `GET objects/KIND/digest` | reads it back from the store, opens it, and answers [`Stored`] |
//! | `PUT log/PHASE?offset=N[&end=true]` | appends at most [`MAX_APPEND`] bytes; answers [`Length`]; 409 [`WRONG_OFFSET`] names the length |
//! | `PUT log/journal?offset=N` | the same for the journal ([`crate::apply_log`]) |
//! | `GET recover` | the journal of the run that the caller's own `spec.recover` names; 409 [`NOT_ENDED`] while it works |
//! | `PUT intent` | writes as `PUT claim` would, before there is a claim: that it can be recorded is proven; 409 [`ALREADY_CLAIMED`] |
//! | `PUT claim` | the claim as JSON, once a run; 409 [`ALREADY_CLAIMED`] |
//! | `PUT outputs` | the outputs of the state ([`crate::outputs::StateOutputs`]), behind the claim; without a body those of the managed state. Answers a [`crate::OutputsStatus`] |
//! | `GET outputs` | the outputs of other stacks that the caller's own spec names, each as [`crate::outputs::Taken`] |
//! | `GET source` | the bundle of the revision that the caller's own `spec.source.repository` names; 404 [`SOURCE_NOT_READY`], 403 [`REPOSITORY_NOT_ALLOWED`] |
//! | `GET state` | the newest state; 204 when there is none; 403 [`FORMER_NAMESPACE`], as for `PUT lock` |
//! | `PUT state?lock=ID` | a new version of the state; 403 [`FORBIDDEN`] before the claim, 423 [`LOCKED`] without the lock |
//! | `PUT lock` | Terraform's lock info; 423 with the holder's lock info in [`Problem::holder`] |
//! | `DELETE lock?lock=ID` | gives the lock back |
//!
//! The controller reads `GET /v1/namespaces/NS/uids/UID/attempts/N/objects/result`, `…/attempts/N/journal` (a [`crate::Journal`],
//! compared with the run's managed state), `…/attempts/N/log` (a [`LogStand`]), `GET /v1/namespaces/NS/uids/UID/claim`, and deletes `DELETE /v1/namespaces/NS/uids/UID[?only=bundle]`.
//!
//! Whoever follows repositories writes their bundles, below [`bundles_path`]:
//!
//! | request | does |
//! |---|---|
//! | `PUT REVISION` | stores the bundle of a commit, at most [`MAX_SOURCE`] bytes; [`HEADER_DIGEST`] is required. Answers the [`Stored`] that is there, which is the first one |
//! | `GET REVISION/digest` | its [`Stored`] |
//! | `GET` | the commits that there are bundles of, as a list of strings |
//! | `DELETE REVISION` | deletes one |
//!
//! and reads [`WANTED_PATH`]: the [`WantedRevision`]s, as a list; or [`FOLLOW_WANTED_PATH`]: the same in each line of an answer that goes on.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use crate::digest::hex_digest;
use crate::{SourceKind, TerraformRunSpec, names::short_hash};

/// Audience of the tokens.
pub const AUDIENCE: &str = "pawl-datastore";
/// Environment of a pod: the datastore's address; absent when there is none.
pub const ENV_URL: &str = "PAWL_DATASTORE_URL";
/// Environment of a pod: the certificate authority of the datastore, as PEM.
pub const ENV_CA: &str = "PAWL_DATASTORE_CA";
/// Directory of the projected token in a pod; its file is `token`.
pub const TOKEN_DIR: &str = "/var/run/secrets/pawl.run/datastore";
/// Where the agent offers a managed state to the tool: on the pod's own loopback, always the same, as the address is part of what
/// a plan's checksum covers.
pub const STATE_PORT: u16 = 9417;

/// Header: `sha256:` and the hexadecimal digest of the body.
pub const HEADER_DIGEST: &str = "pawl-digest";
/// Header: the nonce of the process that adopted the attempt.
pub const HEADER_NONCE: &str = "pawl-nonce";

/// The longest piece of a log, in bytes.
pub const MAX_APPEND: u64 = 1 << 20;
/// The longest log of a phase, in bytes.
pub const MAX_LOG: u64 = 4 << 30;
/// The largest state, in bytes.
pub const MAX_STATE: u64 = 512 << 20;
/// The largest bundle of a repository's revision, in bytes: 1 GiB.
pub const MAX_SOURCE: u64 = 1 << 30;
/// The largest claim or lock info, in bytes.
pub const MAX_SMALL: u64 = 16 << 10;

/// What an attempt writes once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ObjectKind {
    /// Plan file, lock file and work directory.
    Bundle,
    /// The plan as text, without secrets.
    Plan,
    /// The plan as JSON, as the tool prints it: with the values of secrets.
    PlanJson,
    /// The termination message of an attempt.
    Result,
    /// The state that the tool could not save.
    ErroredState,
}

impl ObjectKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Bundle, Self::Plan, Self::PlanJson, Self::Result, Self::ErroredState];

    /// The word in a path.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Bundle => "bundle",
            Self::Plan => "plan",
            Self::PlanJson => "planjson",
            Self::Result => "result",
            Self::ErroredState => "erroredstate",
        }
    }

    /// The kind of a word in a path.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }

    /// The largest object, in bytes.
    pub const fn limit(self) -> u64 {
        match self {
            Self::Bundle => 8 << 30,
            Self::Plan | Self::PlanJson => 2 << 30,
            Self::Result => 64 << 10,
            Self::ErroredState => MAX_STATE,
        }
    }
}

/// Phases that have a log, in the order of a run.
pub const LOG_PHASES: [&str; 4] = ["setup", "init", "plan", "apply"];

/// The journal's word, where those of phases stand.
pub const JOURNAL: &str = "journal";

/// What stands in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// `sha256:` and the hexadecimal digest of the content.
    pub digest: String,
    /// Bytes.
    pub size: u64,
}

/// How long a log is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Length {
    /// Bytes.
    pub length: u64,
}

/// How the log of an attempt stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogStand {
    /// All that its agent had to say is there: each phase that began has a log, and of each the end.
    pub whole: bool,
}

/// The caller proves nothing: 401.
pub const UNAUTHENTICATED: &str = "Unauthenticated";
/// The object is another run's, or the attempt another pod's: 403.
pub const FORBIDDEN: &str = "Forbidden";
/// The attempt is closed, or not the newest: 403.
pub const REPLACED: &str = "AttemptReplaced";
/// There is no such run or object: 404.
pub const NOT_FOUND: &str = "NotFound";
/// Another content stands under that name: 409.
pub const ALREADY_EXISTS: &str = "AlreadyExists";
/// Another process claimed: 409.
pub const ALREADY_CLAIMED: &str = "AlreadyClaimed";
/// The run has not ended: 409.
pub const NOT_ENDED: &str = "NotEnded";
/// A log has another length: 409.
pub const WRONG_OFFSET: &str = "WrongOffset";
/// The state belongs to a namespace of the same name that was deleted: 403.
pub const FORMER_NAMESPACE: &str = crate::reason::STATE_OF_FORMER_NAMESPACE;
/// The bundle of the revision is not there, or the repository is not: 404.
pub const SOURCE_NOT_READY: &str = crate::reason::SOURCE_NOT_READY;
/// The repository does not name the run's namespace: 403.
pub const REPOSITORY_NOT_ALLOWED: &str = crate::reason::REPOSITORY_NOT_ALLOWED;
/// Too large: 413.
pub const TOO_LARGE: &str = "TooLarge";
/// The content is not what its digest says: 422.
pub const WRONG_DIGEST: &str = "WrongDigest";
/// The request makes no sense: 400.
pub const INVALID: &str = "Invalid";
/// Somebody else holds the state's lock, or nobody does: 423.
pub const LOCKED: &str = "Locked";
/// What stands in the store does not open: changed, cut off, another object's, or of another key. 500.
pub const CORRUPT: &str = "Corrupt";
/// The key that the object was written with is not there. 500.
pub const KEY_MISSING: &str = "KeyMissing";
/// The store or the API server does not answer: 503.
pub const UNAVAILABLE: &str = "Unavailable";

/// Why a request was not carried out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct Problem {
    /// One word, of this module's.
    pub reason: String,
    /// For people; one line.
    pub message: String,
    /// The length of the log, with [`WRONG_OFFSET`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<u64>,
    /// The lock info of the holder, with [`LOCKED`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<Box<serde_json::Value>>,
}

/// The path of an attempt's requests.
pub fn attempt_path(namespace: &str, run: &str, attempt: u32) -> String {
    format!("/v1/namespaces/{namespace}/runs/{run}/attempts/{attempt}")
}

/// The path of the bundles of a repository, which are kept by its UID.
pub fn bundles_path(namespace: &str, uid: &str) -> String {
    format!("/v1/namespaces/{namespace}/repositories/{uid}/bundles")
}

/// The path of what runs asked for and was not stored.
pub const WANTED_PATH: &str = "/v1/wanted";

/// The path of the same, said again and again.
pub const FOLLOW_WANTED_PATH: &str = "/v1/wanted/follow";

/// A revision that a run asked for a moment ago, and that nobody has stored.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WantedRevision {
    /// Namespace of the repository.
    pub namespace: String,
    /// Its UID.
    pub uid: String,
    /// The commit, by its full id.
    pub revision: String,
}

/// The text of an error with those of its causes: that of an HTTP client leaves them out, and only they help.
pub fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Which managed state a run has; within its namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StateId {
    /// The stack: `spec.stack`, or what follows from the source.
    pub stack: String,
    /// The workspace.
    pub workspace: String,
}

impl StateId {
    /// The state of a run of that name and spec. A git source has its repository and path, however the URL is written (scheme,
    /// user, `.git`); a ConfigMap or Secret its name; an inline source, or an artifact that names none, the run's name.
    pub fn of(name: &str, spec: &TerraformRunSpec) -> Self {
        let stack = spec.stack.clone().unwrap_or_else(|| match spec.source.kind() {
            Some(SourceKind::Git(git)) => git_stack(&git.url, &git.path),
            Some(SourceKind::ConfigMap(object)) => stack_name(&format!("configMap\n{}", object.name), &object.name),
            Some(SourceKind::Secret(object)) => stack_name(&format!("secret\n{}", object.name), &object.name),
            Some(SourceKind::Inline(_) | SourceKind::Artifact(_) | SourceKind::Repository(_)) | None => name.to_owned(),
        });
        Self { stack, workspace: spec.workspace.clone() }
    }
}

/// `NAME-HASH`: the last word of path or repository, and a hash of both.
fn git_stack(url: &str, path: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (host, repository) = match rest.find(['/', ':']) {
        Some(at) => (&rest[..at], &rest[at + 1..]),
        None => (rest, ""),
    };
    // `user@host:path` of ssh and `host:port/path` of the others: a port is part of where, a user is not.
    let (host, repository) = match rest.split_once('@') {
        Some((_, after)) if after.find(['/', ':']).is_some() => {
            let at = after.find(['/', ':']).unwrap_or_default();
            (&after[..at], &after[at + 1..])
        }
        Some(_) | None => (host, repository),
    };
    let repository = repository.trim_matches('/').trim_end_matches(".git");
    let path: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let path = path.join("/");
    let whole = format!("{}\n{repository}\n{path}", host.to_ascii_lowercase());
    let last = if path.is_empty() { repository } else { &path };
    stack_name(&whole, last.rsplit('/').next().unwrap_or_default())
}

/// A word of what is at `last`, and a hash of the `whole`.
fn stack_name(whole: &str, last: &str) -> String {
    let mut word: String =
        last.to_ascii_lowercase().chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(40).collect();
    word = word.trim_matches('-').to_owned();
    if word.is_empty() {
        "stack".clone_into(&mut word);
    }
    let digest = Sha256::digest(whole.as_bytes());
    let hash = digest.iter().take(16).fold(0_u128, |hash, byte| (hash << 8) | u128::from(*byte));
    let hash = format!("{hash:032x}");
    format!("{word}-{}{}", short_hash(&hash), short_hash(&format!("{hash} again")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_is_the_same_however_it_is_written() {
        let one = git_stack("https://git.example.com/team/infra.git", "live/net");
        for url in [
            "ssh://git@git.example.com/team/infra",
            "git@git.example.com:team/infra.git",
            "https://u:p@GIT.example.com/team/infra/",
        ] {
            assert_eq!(git_stack(url, "./live/net/"), one, "{url}");
        }
        assert!(one.starts_with("net-") && one.len() == 14, "{one}");
        assert_ne!(git_stack("https://git.example.com/team/infra", "live/app"), one);
        assert_ne!(git_stack("https://other.example.com/team/infra", "live/net"), one);
        assert!(git_stack("http://127.0.0.1:3000/infra", ".").starts_with("infra-"));
    }

    #[test]
    fn sources_that_are_not_git_have_their_own_stacks() {
        let of = |source: serde_json::Value| {
            let spec = serde_json::from_value(serde_json::json!({"source": source})).unwrap();
            StateId::of("run-1", &spec).stack
        };
        let object = serde_json::json!({"name": "net.app"});
        let config_map = of(serde_json::json!({"configMapRef": object}));
        let secret = of(serde_json::json!({"secretRef": object}));
        assert!(
            config_map.starts_with("netapp-") && secret.starts_with("netapp-") && config_map != secret,
            "{config_map} {secret}"
        );
        assert_eq!(of(serde_json::json!({"inline": {"files": {}}})), "run-1");
        let artifact = serde_json::json!({"url": "https://h/a", "digest": "sha256:x"});
        assert_eq!(of(serde_json::json!({"artifact": artifact})), "run-1", "only a schema of before admits that");
    }

    #[test]
    fn kinds_have_words_of_their_own() {
        for kind in ObjectKind::ALL {
            assert_eq!(ObjectKind::of(kind.as_str()), Some(kind));
        }
        assert_eq!(ObjectKind::of("../bundle"), None);
    }
}
