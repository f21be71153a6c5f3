//! The controller: it schedules attempts and gates approvals, and leaves the work to the agents in their pods.
//!
//! | module | holds |
//! |---|---|
//! | [`run`] | the reconciler: observe, tell the situation, decide, execute |
//! | [`pod`], [`account`] | what an attempt is made of |
//! | [`gate`] | the proof that the admission policies stand |
//! | [`prune`] | runs whose time is over |
//! | [`watch`], [`pods`], [`nodes`] | watches and caches |
//! | [`datastore_client`] | what is asked of the datastore |
//! | [`read_api`] | the APIService by which people read plans and logs |
//! | [`locks`] | locks of states that dead pods left |
//! | [`clock`] | the API server's clock, off its answers |
//! | [`leader`] | which of several controllers works |
//! | [`leases`], [`queue`], [`sharing`] | one apply at a time on a state: who has it, who waits, and among whom |
//! | [`applied`] | whose apply came after a plan that waits |
//! | [`workspaces`] | which runs work on the same workspace |
//! | [`events`], [`metrics`], [`admin`] | what it says of itself |
//! | [`datastore`] | `controller datastore`: what outlives pods |
//! | [`settings`], [`error`] | command line; calls that failed |

pub mod account;
pub mod admin;
pub mod applied;
pub mod clock;
pub mod datastore;
pub mod datastore_client;
pub mod error;
pub mod events;
pub mod gate;
pub mod leader;
pub mod leases;
pub mod locks;
pub mod metrics;
pub mod nodes;
pub mod pod;
pub mod pods;
pub mod prune;
pub mod queue;
pub mod read_api;
pub mod run;
pub mod settings;
pub mod sharing;
pub mod sweep;
pub mod watch;
pub mod workspaces;

#[cfg(test)]
mod testing;
