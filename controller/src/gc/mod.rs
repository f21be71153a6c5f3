//! Garbage collection: whatever is deleted because nothing needs it any more.
//!
//! | module | holds |
//! |---|---|
//! | `delete` | deletes and releases what belongs to attempts |
//! | [`objects`] | what attempts were given and nobody took back |
//! | [`pods`] | pods whose run is gone or at a later attempt |
//! | [`ended_pods`] | pods of closed attempts, an hour later |
//! | [`ttl`] | runs whose time is over |

pub(crate) mod delete;
pub mod ended_pods;
pub mod objects;
pub mod pods;
pub mod ttl;

use kube::ResourceExt as _;

use crds::TerraformRun;

/// The run that an object of an attempt names, as it is known: none when that is gone, or another has its name.
fn owner<'a>(run_uid: &str, known: Option<&'a TerraformRun>) -> Option<&'a TerraformRun> {
    known.filter(|run| run.uid().as_deref() == Some(run_uid))
}
