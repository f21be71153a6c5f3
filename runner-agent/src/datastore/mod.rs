//! The agent's side of the datastore (`design/0009-datastore.md`).
//!
//! | module | holds |
//! |---|---|
//! | [`client`] | requests with files, and trying again; the requests themselves are those of [`datastore_client`] |
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

pub use client::{client, get_file, patiently, put_file};
pub use datastore_client::{RequestError, attempt::Client};

use crds::{
    Failure, FailureClass,
    datastore::{self as words, causes},
    reason,
};

use crate::classify::{is_disk_full, simple};

/// The failure of a request before the claim: nothing was changed.
pub fn failure(what: &str, error: &RequestError) -> Failure {
    let (class, reason) = match error {
        RequestError::Refused(problem) => match problem.reason.as_str() {
            words::CORRUPT | words::WRONG_DIGEST => (FailureClass::Integrity, reason::STORED_PLAN_CORRUPT),
            words::KEY_MISSING => (FailureClass::Integrity, reason::KEY_MISSING),
            words::FORMER_NAMESPACE => (FailureClass::Policy, reason::STATE_OF_FORMER_NAMESPACE),
            words::NOT_FOUND => (FailureClass::Integrity, reason::STORED_PLAN_MISSING),
            words::ALREADY_CLAIMED | words::ALREADY_EXISTS => (FailureClass::Integrity, reason::ALREADY_CLAIMED),
            words::UNAUTHENTICATED | words::FORBIDDEN | words::REPLACED => (FailureClass::Credentials, reason::DATASTORE_REFUSED),
            _ => (FailureClass::Internal, reason::DATASTORE_REFUSED),
        },
        // Of the pod, or of the datastore: the text says whose.
        error if is_disk_full(&error.why()) => {
            return simple(FailureClass::Transient, reason::DISK_FULL, format!("{what}: {}", error.why()));
        }
        RequestError::File { .. } | RequestError::Authority(_) | RequestError::Unanswered(_) => {
            (FailureClass::Transient, reason::DATASTORE_UNAVAILABLE)
        }
    };
    simple(class, reason, format!("{what}: {}", causes(error)))
}
