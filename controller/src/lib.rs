//! The controller: it schedules attempts and gates approvals, and leaves the work to the agents in their pods.
//!
//! | module | holds |
//! |---|---|
//! | [`run`] | the reconciler: observe, decide, execute, and the loop that looks at runs |
//! | [`policies`] | the proof that the admission policies stand |
//! | [`state_queue`] | one apply at a time on a state: who has it, who waits, what was applied or planned since |
//! | [`gc`] | what is deleted because nothing needs it any more |
//! | [`cluster`] | watches and caches, the API server's clock, which of several controllers works |
//! | [`runner_pod`] | what an attempt is made of: its pod and its rights |
//! | [`datastore_client`] | what is asked of the datastore |
//! | `requests` | what people ask of a run |
//! | [`read_api`] | the APIService by which people read plans and logs |
//! | [`events`], [`metrics`], [`admin`] | what it says of itself |
//! | [`datastore`] | `controller datastore`: what outlives pods |
//! | [`settings`], [`error`] | command line; calls that failed |

pub mod admin;
pub mod cluster;
pub mod datastore;
pub mod datastore_client;
pub mod error;
pub mod events;
pub mod gc;
pub mod metrics;
pub mod policies;
pub mod read_api;
mod requests;
pub mod run;
pub mod runner_pod;
pub mod settings;
pub mod state_queue;

#[cfg(test)]
mod testing;
