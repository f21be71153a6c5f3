//! Reading the cluster: its watches, what of them is kept, its clock, and which of several controllers works on it.
//!
//! | module | holds |
//! |---|---|
//! | [`context`] | the client, the caches, the clock and the settings, for whoever calls the API server |
//! | `work_queue` | which objects are looked at next, and the loop that looks at them |
//! | [`watch`], [`index`] | what all watches have in common; what they have shown, by key |
//! | [`pods`], [`nodes`] | caches |
//! | `packed`, `cached` | values that look much alike, kept small; objects as caches of the runtime keep them |
//! | [`node_watch`] | nodes, as they are watched and read |
//! | [`freeze`] | which namespaces let nothing new begin |
//! | [`clock`] | the API server's clock, off its answers |
//! | [`leader`] | which of several controllers works |

pub(crate) mod cached;
pub mod clock;
pub mod context;
pub mod freeze;
pub mod index;
pub mod leader;
pub mod node_watch;
pub mod nodes;
pub(crate) mod packed;
pub mod pods;
pub(crate) mod watch;
pub(crate) mod work_queue;

pub use context::Cluster;
