//! Garbage collection.
//!
//! | module | contents |
//! |---|---|
//! | `delete` | deletes and releases objects of attempts |
//! | [`leftover_accounts`] | leftover rights of attempts |
//! | [`leftover_pods`] | pods whose run is gone or at a later attempt |
//! | [`ended_pods`] | pods of closed attempts, an hour later |
//! | [`expired_runs`] | runs past their TTL |

pub(crate) mod delete;
pub mod ended_pods;
pub mod expired_runs;
pub mod leftover_accounts;
pub mod leftover_pods;

use kube::ResourceExt as _;

use crds::TerraformRun;

/// The cached run that owns an attempt's object; `None` when it is gone or another run has its name.
fn owner<'a>(run_uid: &str, known: Option<&'a TerraformRun>) -> Option<&'a TerraformRun> {
    known.filter(|run| run.uid().as_deref() == Some(run_uid))
}
