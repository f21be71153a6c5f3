//! The controller: schedules attempts and checks approvals; agents in pods do the work. The crate `datastore`, run as
//! `controller datastore`, stores everything that outlives pods.
//!
//! Each module uses only those below it. A test checks this on the source (`tests/src/rooms`).
//!
//! | module | contents |
//! |---|---|
//! | [`watches`] | the watches that fill the indexes of several reconcilers, and start these |
//! | [`revoke`] | revokes changes made while the admission policies were not enforced |
//! | [`run`] | the reconciler of runs: observe, derive the situation, decide, execute |
//! | [`layer`] | the reconciler of layers: the runs that a repository's directory needs, and its status |
//! | [`policies`] | probes that the admission policies are enforced |
//! | [`state_queue`] | serializes applies to a state: holder, queue, later applies and plans |
//! | [`slots`] | bounds and order of open attempts |
//! | [`gc`] | garbage collection |
//! | [`cluster`] | watches and caches, the API server's clock, leader election |
//! | [`runner_pod`] | an attempt's pod and rights, and the pod's status |
//! | [`read_api`] | the APIService through which people read plans and logs |
//! | `requests` | people's requests to a run |
//! | [`server`] | `controller server`: webhooks of forges |
//! | [`metrics`] | metrics |
//! | [`error`] | failed calls |
//! | [`convert`] | conversion of other operators' objects; needs no cluster |
//! | [`settings`] | command line |

pub mod cluster;
pub mod convert;
pub mod error;
pub mod gc;
pub mod layer;
pub mod metrics;
pub mod policies;
pub mod read_api;
pub mod revoke;
pub mod run;
mod run_requests;
pub mod runner_pod;
pub mod server;
pub mod settings;
pub mod slots;
pub mod state_queue;
pub mod watches;

pub use serving::events;

#[cfg(test)]
mod testing;
