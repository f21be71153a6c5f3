//! The agent's side of the datastore (`design/0009-datastore.md`).
//!
//! | module | holds |
//! |---|---|
//! | [`mod@client`] | requests with files, and trying again; the requests themselves are those of [`datastore_client`] |
//! | [`bundle`] | plan file, lock file and work directory in one archive, and back |
//! | [`sealed_inputs`] | whether a plan's Secrets and ConfigMaps are as they were |
//! | [`spool`] | the log on disk until the datastore has it |
//! | [`shipper`] | sends the spool |
//! | [`state`] | a managed state, offered to the tool on the pod's loopback |

pub mod bundle;
pub mod client;
pub mod sealed_inputs;
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

/// The failure of a request before the claim: nothing was changed.
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
        // Of the pod, or of the datastore: the text says whose.
        error if is_disk_full(&error.why()) => return Reason::DiskFull.failure(format!("{what}: {}", error.why())),
        RequestError::File { .. } | RequestError::Authority(_) | RequestError::Unanswered(_) => Reason::DatastoreUnavailable,
    };
    let failure = reason.failure(format!("{what}: {}", causes(error)));
    match error {
        RequestError::Refused(problem)
            if matches!(problem.reason.as_str(), words::UNAUTHENTICATED | words::FORBIDDEN | words::REPLACED) =>
        {
            Failure { class: FailureClass::Credentials, ..failure }
        }
        _ => failure,
    }
}
