//! The agent's side of the datastore (`design/0009-datastore.md`).
//!
//! | module | holds |
//! |---|---|
//! | [`client`] | the requests |
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

pub use client::{Client, Trouble, patiently};

use crds::{Failure, FailureClass, Reason, datastore as words};

use crate::classify::is_disk_full;

/// The failure of a request before the claim: nothing was changed.
pub fn failure(what: &str, trouble: &Trouble) -> Failure {
    match trouble {
        // Of the pod, or of the datastore: the text says whose.
        Trouble::Unavailable(text) if is_disk_full(text) => Reason::DiskFull.failure(format!("{what}: {text}")),
        Trouble::Unavailable(text) => {
            Reason::DatastoreUnavailable.failure(format!("{what}: the datastore does not answer: {text}"))
        }
        Trouble::Refused(problem) => {
            let reason = match problem.reason.as_str() {
                words::CORRUPT | words::WRONG_DIGEST => Reason::StoredPlanCorrupt,
                words::KEY_MISSING => Reason::KeyMissing,
                words::FORMER_NAMESPACE => Reason::StateOfFormerNamespace,
                words::NOT_FOUND => Reason::StoredPlanMissing,
                words::ALREADY_CLAIMED | words::ALREADY_EXISTS => Reason::AlreadyClaimed,
                _ => Reason::DatastoreRefused,
            };
            let failure = reason.failure(format!("{what}: the datastore refuses: {problem}"));
            match problem.reason.as_str() {
                words::UNAUTHENTICATED | words::FORBIDDEN | words::REPLACED => {
                    Failure { class: FailureClass::Credentials, ..failure }
                }
                _ => failure,
            }
        }
    }
}
