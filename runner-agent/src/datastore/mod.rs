//! The agent's side of the datastore (`design/0009-datastore.md`).
//!
//! | module | holds |
//! |---|---|
//! | [`mod@client`] | requests with files, and retries; the other requests are in [`datastore_client`] |
//! | [`bundle`] | packs and unpacks plan file, lock file and work directory |
//! | [`spool`] | buffers the log on disk until the datastore has it |
//! | [`shipper`] | uploads the spool |
//! | [`state`] | serves a managed state to the tool on the pod's loopback |

pub mod bundle;
pub mod client;
pub mod shipper;
pub mod spool;
pub mod state;

pub use client::{client, get_file, put_file, retry_for};
pub use datastore_client::{RequestError, attempt::Client};

use crds::{
    Failure, FailureClass, Reason,
    datastore::{self as words, causes},
};

use crate::classify::is_disk_full;

/// The failure of a request before the claim, when nothing is changed yet.
pub fn failure(what: &str, error: &RequestError) -> Failure {
    let reason = match error {
        RequestError::Refused(problem) => match problem.reason.as_str() {
            words::CORRUPT | words::WRONG_DIGEST => Reason::StoredPlanCorrupt,
            words::KEY_MISSING => Reason::KeyMissing,
            words::FORMER_NAMESPACE => Reason::StateOfFormerNamespace,
            words::NOT_FOUND => Reason::StoredPlanMissing,
            words::ALREADY_CLAIMED | words::ALREADY_EXISTS => Reason::AlreadyClaimed,
            _ => Reason::DatastoreRefused,
        },
        // The pod's disk or the datastore's; the text tells which.
        error if is_disk_full(&error.why()) => {
            return Reason::DiskFull.failure(format!("{what}: {}", error.why()));
        }
        RequestError::File { .. } | RequestError::Authority(_) | RequestError::Unanswered(_) => {
            Reason::DatastoreUnavailable
        }
    };
    let failure = reason.failure(format!("{what}: {}", causes(error)));
    match error {
        RequestError::Refused(problem)
            if matches!(
                problem.reason.as_str(),
                words::UNAUTHENTICATED | words::FORBIDDEN | words::REPLACED
            ) =>
        {
            Failure {
                class: FailureClass::Credentials,
                ..failure
            }
        }
        _ => failure,
    }
}
