//! The reconciler of runs: observe, decide, execute.
//!
//! | module | does | touches the cluster |
//! |---|---|---|
//! | [`observe`] | reads run and pod, from the cache or live | yes |
//! | [`context`] | what all of it works with, and what is remembered between two looks | no |
//! | [`decide`] | says what is to be done | no |
//! | [`start`], [`close`], [`approve`] | its parts: attempts nobody has adopted, ends of attempts, approvals | no |
//! | [`locks`] | its part: locks of states that dead pods left | no |
//! | [`lease`] | its part: one apply at a time on a state | no |
//! | [`node`] | its part: the pod's node is lost, or over | no |
//! | [`keep`], [`proof`], [`journal`] | its parts: plans that outlive their pods; results and journals that arrive by the datastore | no |
//! | [`status`] | drafts of status writes | no |
//! | [`tested`] | the same as patches that test fields | no |
//! | [`execute`], [`stored`] | does it; asks and tells the datastore | yes |
//! | [`void`] | takes away what was set while the admission policies were not proven | yes |
//! | [`watch`] | watches of runs and pods, and the loop that turns their events into looks at runs | yes |

mod actions;
mod approve;
mod close;
mod context;
mod decide;
mod execute;
mod journal;
mod keep;
pub mod lease;
pub mod locks;
mod node;
mod observe;
mod proof;
mod reconcile;
mod start;
mod status;
mod stored;
mod tested;
#[cfg(test)]
mod tests;
pub mod void;
pub mod watch;

pub use actions::{
    Action, Decision, Ended, Gate, Kind, Note, Notes, Observed, PodState, PodView, Proof, ProofAsked, Refused, Trouble, Write,
};
pub use context::Context;
pub use decide::{ASK_GRACE, CREATION_LAG, GONE_WAIT, LATE_CONDITIONS, decide};
pub use node::{NODE_WAIT, NodeState, over};
pub use reconcile::{on_error, reconcile};
pub use status::{Draft, End};
