//! Serializes applies to a state, and detects events between a plan and its apply (`design/0010-leases-and-locks.md`).
//!
//! | module | contents |
//! |---|---|
//! | [`lease`] | the Lease objects of states |
//! | [`lease_request`] | which run requests and which is entitled to a lease |
//! | [`queue`] | the queue of each state, and its holder |
//! | [`stale_plans`] | applies that made a waiting plan stale |
//! | [`newer_plans`] | newer runs of the same workspace that have a plan |

pub mod lease;
pub mod lease_request;
pub mod newer_plans;
pub mod queue;
pub mod stale_plans;
