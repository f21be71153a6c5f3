//! Garbage collection.
//!
//! | module | contents |
//! |---|---|
//! | `delete` | deletes and releases objects of attempts |
//! | [`objects`] | leftover rights of attempts |
//! | [`pods`] | pods whose run is gone or at a later attempt |
//! | [`ended_pods`] | pods of closed attempts, an hour later |
//! | [`ttl`] | runs past their TTL |

pub(crate) mod delete;
pub mod ended_pods;
pub mod objects;
pub mod pods;
pub mod ttl;

use kube::ResourceExt as _;

use crds::TerraformRun;

/// The cached run that owns an attempt's object; `None` when it is gone or another run has its name.
fn owner<'a>(run_uid: &str, known: Option<&'a TerraformRun>) -> Option<&'a TerraformRun> {
    known.filter(|run| run.uid().as_deref() == Some(run_uid))
}
