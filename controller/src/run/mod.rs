//! The reconciler of runs: observe, decide, word the outcomes, execute. Each module uses only those above it.
//!
//! | module | does | touches the cluster |
//! |---|---|---|
//! | [`timing`] | delays, timeouts and backoffs | no |
//! | [`run_view`] | the fields of a run that decisions read, cached or whole | no |
//! | [`cached_run`] | the part of a run that is cached | no |
//! | [`outage`] | whether the datastore responds | no |
//! | [`expectations`], [`context`] | in-memory notes on runs, and the reconciler's context | no |
//! | [`observed`], [`decision`] | observations and possible decisions: plain values | no |
//! | [`situation`] | the input of decisions in one typed view | no |
//! | [`outcome`] | the facts that a decision reports in the status, without words | no |
//! | [`say`] | words outcomes: conditions, messages, history and Events of a status write | no |
//! | [`mod@decide`] | decides the next actions | no |
//! | [`observe`] | reads run and pod, from the cache or live | yes |
//! | [`execute`] | executes decided actions | yes |
//! | [`revoke`] | revokes annotations that were set while the admission policies were not enforced | yes |
//! | [`reconcile`](mod@reconcile) | one reconcile of a run | yes |
//! | [`event_handlers`] | releases left pods and wakes the runs of pods on watch events | yes |
//! | [`datastore_watch`] | asks whether the datastore responds, and wakes the runs that wait for it | yes |
//! | [`work`] | the loop that reconciles runs | yes |

pub mod cached_run;
mod context;
pub mod datastore_watch;
mod decide;
mod decision;
pub mod event_handlers;
mod execute;
mod expectations;
mod observe;
mod observed;
mod outage;
mod outcome;
mod reconcile;
pub mod revoke;
mod run_view;
mod say;
mod situation;
#[cfg(test)]
mod tests;
mod timing;
pub mod work;

pub use context::Context;
pub use decide::decide;
pub use decision::{Action, Decision, Kind, Write};
pub use expectations::{
    Created, DatastoreAsked, LeaseWait, Memory, Notes, PodRejection, SourceWait, WaitReason,
};
pub use observed::{LateResult, LockHolder, Observed, PodState};
pub use reconcile::reconcile;
pub use run_view::{RunView, Spec, Status};

pub use crate::{
    cluster::nodes::NodeState,
    events::Note,
    policies::Enforcement,
    runner_pod::status::{Ended, PodView, Trouble},
};
