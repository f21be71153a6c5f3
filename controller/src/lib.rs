//! The controller: it schedules attempts and checks approvals, and leaves the work to the agents in their pods. What outlives pods is
//! kept by a crate of its own, `datastore`, which this one's program runs as `controller datastore`.
//!
//! Each room uses only those below it, which the tests read off the source (`tests/src/rooms`).
//!
//! | module | holds |
//! |---|---|
//! | [`watches`] | those that fill the caches of more than one reconciler |
//! | [`revoke`] | undoes what was set while the admission policies were not enforced |
//! | [`run`] | the reconciler: observe, tell the situation, decide, execute, and the loop that looks at runs |
//! | [`layer`] | the reconciler of layers: which runs a repository's directory needs, and what is said of it |
//! | [`policies`] | the proof that the admission policies are enforced |
//! | [`state_queue`] | one apply at a time on a state: who has it, who waits, what was applied or planned since |
//! | [`slots`] | how many attempts are open at once, and who is next |
//! | [`gc`] | what is deleted because nothing needs it any more |
//! | [`cluster`] | watches and caches, the API server's clock, which of several controllers works |
//! | [`runner_pod`] | what an attempt is made of, its pod and its rights, and what its pod says of itself |
//! | [`read_api`] | the APIService by which people read plans and logs |
//! | `requests` | what people ask of a run |
//! | [`server`] | `controller server`: what forges send when somebody pushes |
//! | [`events`], [`metrics`] | what it says of itself |
//! | [`error`] | calls that failed |
//! | [`convert`] | objects of other operators as ours; it speaks to no cluster |
//! | [`settings`] | command line |

pub mod cluster;
pub mod convert;
pub mod error;
pub mod events;
pub mod gc;
pub mod layer;
pub mod metrics;
pub mod policies;
pub mod read_api;
mod requests;
pub mod revoke;
pub mod run;
pub mod runner_pod;
pub mod server;
pub mod settings;
pub mod slots;
pub mod state_queue;
pub mod watches;

#[cfg(test)]
mod testing;
