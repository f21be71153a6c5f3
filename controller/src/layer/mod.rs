//! The reconciler of layers: what is observed of a layer and its runs, where it is, what is to be done, and what it says. Each module
//! uses those above it only.
//!
//! | module | does | touches the cluster |
//! |---|---|---|
//! | [`run_summary`], [`cached_run`] | what decisions read of a layer's run; the same, kept small | no |
//! | [`observed`], [`decision`] | what is observed, and what may be decided: plain values | no |
//! | [`template`] | the settings of its runs, merged and shown | no |
//! | [`drift`], [`retries`] | when drift is looked for, and when what failed is made again | no |
//! | [`facts`], [`situation`] | what its runs say, and where it is | no |
//! | [`triggers`] | why a run is made now, and the run | no |
//! | [`next`] | what is to be done, and what it waits for, in the making | no |
//! | [`conditions`], [`status`] | what it says of itself | no |
//! | [`history`] | which ended runs go | no |
//! | [`deletion`], [`mod@decide`] | what is to be done | no |
//! | [`known`], [`index`] | what the watches have shown of layers, repositories and runs | no |
//! | [`context`] | what this process remembers of layers, and works with | no |
//! | [`execute`] | writes what a layer says, and does what was decided | yes |
//! | [`revoke`] | marks layers whose author is unverified | yes |
//! | [`reconcile`](mod@reconcile) | one look at a layer | yes |
//! | [`watch`] | watches, and the loop that turns their events into looks at layers | yes |

mod cached_run;
mod conditions;
mod context;
mod decide;
mod decision;
mod deletion;
mod drift;
mod execute;
mod facts;
mod history;
mod index;
mod next;
mod observed;
mod reconcile;
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
