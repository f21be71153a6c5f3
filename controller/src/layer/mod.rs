//! The reconciler of layers: observation, situation, decision, status. Each module uses only those above it in the table.
//!
//! | module | does | touches the cluster |
//! |---|---|---|
//! | [`run_summary`], [`cached_run`] | the part of a run that decisions read; its compact form in the index | no |
//! | [`observed`], [`decision`] | the input and output of a decision: plain values | no |
//! | [`template`] | the settings of the layer's runs: merged, hashed and shown | no |
//! | [`drift`], [`retries`] | when the next drift check and the next retry are due | no |
//! | [`facts`], [`situation`] | what the runs show, and the layer's state | no |
//! | [`requesters`] | the users whose requests the next run answers | no |
//! | [`triggers`] | the cause of the next run, and the run | no |
//! | [`next`] | the actions, and what the layer waits for | no |
//! | [`conditions`], [`status`] | the status and its conditions | no |
//! | [`retention`] | which ended runs are deleted | no |
//! | [`deletion`], [`mod@decide`] | the decision for a deleted layer, and for any | no |
//! | [`store`], [`index`] | layers, repositories and runs as the watches show them | no |
//! | [`context`] | clients, and what this process remembers of layers | no |
//! | [`execute`] | writes the status and carries out actions | yes |
//! | [`revoke`] | marks layers whose author is unverified | yes |
//! | [`reconcile`](mod@reconcile) | reconciles one layer | yes |
//! | [`watch`] | the indexes that a watch of layers fills, and the loop that reconciles layers | yes |

mod cached_run;
mod conditions;
mod context;
mod decide;
mod decision;
mod deletion;
mod drift;
mod execute;
mod facts;
mod index;
mod next;
mod observed;
mod reconcile;
mod requesters;
mod retention;
mod retries;
pub mod revoke;
mod run_summary;
mod situation;
mod status;
mod store;
mod template;
#[cfg(test)]
mod tests;
mod triggers;
pub mod watch;

pub use cached_run::{CachedLayerRun, LayerRun};
pub use context::Context;
pub use decide::decide;
pub use decision::{Action, Decision, NewRun};
pub use index::{Layers, trim};
pub use observed::{Namespace, Observed, Refused};
pub use reconcile::reconcile;
pub use run_summary::{RunSummary, SUPERSEDED, Stage};
