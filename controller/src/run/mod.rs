//! The reconciler of runs: observe, decide, word the outcomes, execute. Each module uses those above it only.
//!
//! | module | does | touches the cluster |
//! |---|---|---|
//! | [`timing`] | how long everything waits | no |
//! | [`run_view`] | what decisions read of a run, cached or whole | no |
//! | [`cached_run`] | a run as the cache keeps it | no |
//! | [`memory`], [`context`] | what this process remembers of runs, and works with | no |
//! | [`observed`], [`decision`] | what is observed, and what may be decided: plain values | no |
//! | [`situation`] | everything that decisions read, in one typed view | no |
//! | [`outcome`] | the facts that a decision has the status tell, without words | no |
//! | [`say`] | words outcomes: conditions, messages, history and Events of a status write | no |
//! | [`mod@decide`] | decides what is to be done | no |
//! | [`observe`] | reads run and pod, from the cache or live | yes |
//! | [`execute`] | does what was decided | yes |
//! | [`revoke`] | revokes what was set while the admission policies were not enforced | yes |
//! | [`reconcile`](mod@reconcile) | one look at a run | yes |
//! | [`event_handlers`] | what watches of runs and pods tell everybody else | yes |
//! | [`watch`] | watches of runs and pods, and the loop that turns their events into looks at runs | yes |

pub mod cached_run;
mod context;
mod decide;
mod decision;
pub mod event_handlers;
mod execute;
mod memory;
mod observe;
mod observed;
mod outcome;
mod reconcile;
pub mod revoke;
mod run_view;
mod say;
mod situation;
#[cfg(test)]
mod tests;
mod timing;
pub mod watch;

pub use context::Context;
pub use decide::decide;
pub use decision::{Action, Decision, Kind, Write};
pub use memory::{DatastoreAsked, Memory, Notes, Refused, WaitReason, Waits};
pub use observed::{LateResult, LockHolder, Observed, PodState};
pub use reconcile::reconcile;
pub use run_view::{RunView, Spec, Status};

pub use crate::{
    cluster::nodes::NodeState,
    events::Note,
    policies::Enforcement,
    runner_pod::status::{Ended, PodView, Trouble},
};
