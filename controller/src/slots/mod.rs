//! How many attempts are open at once, and who is next (`design/0031-slots.md`).
//!
//! | module | holds |
//! |---|---|
//! | [`mod@line`] | who of a line may have a slot, and in which order: plain values |
//! | [`index`] | who has a slot and who waits for one, as the watches and this process's own writes say |
//! | [`allocations`] | what of runs is counted, behind it |
//! | [`entry`] | what of a run matters for that |

pub mod allocations;
pub mod entry;
pub mod index;
pub mod line;

pub use index::Slots;
pub use line::{Class, Full, Slot};
