//! One apply at a time on a state, and what comes between a plan and its apply (`design/0010-leases-and-locks.md`).
//!
//! | module | holds |
//! |---|---|
//! | [`lease`] | the Lease objects of states |
//! | [`lease_request`] | which run wants which, and which has it |
//! | [`queue`] | who waits for which state, in which order, and who has it |
//! | [`applied`] | whose apply came after a plan that waits |
//! | [`newer_plans`] | which newer runs of the same workspace have made their plan |

pub mod applied;
pub mod lease;
pub mod lease_request;
pub mod newer_plans;
pub mod queue;
