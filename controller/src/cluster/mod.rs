//! Access to the cluster: watches, caches, clock, and leader election.
//!
//! | module | contents |
//! |---|---|
//! | [`context`] | client, caches, clock and settings |
//! | `work_queue` | the queue of objects to reconcile, and its loop |
//! | [`watch`] | receivers of the objects to reconcile, and the end of watches |
//! | [`pods`], [`nodes`] | caches |
//! | `packed`, [`cached`] | compact storage of similar JSON values; the store of cached objects |
//! | [`node_watch`] | the watch and live reads of nodes |
//! | [`memory`] | in-memory notes on objects |
//! | [`freeze`] | frozen namespaces |
//! | [`clock`] | the API server's clock, from its responses |
//! | [`leader`] | leader election |

pub mod cached;
pub mod clock;
pub mod context;
pub mod freeze;
pub mod leader;
pub mod memory;
pub mod node_watch;
pub mod nodes;
pub(crate) mod packed;
pub mod pods;
pub mod watch;
pub(crate) mod work_queue;

pub use context::Cluster;
pub(crate) use context::{create_params, patch_params};
