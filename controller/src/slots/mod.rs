//! Bounds the attempts that are open at once, and orders the waiting runs (`design/0031-slots.md`).
//!
//! | module | holds |
//! |---|---|
//! | [`mod@admission`] | which runs of a queue may take a slot, and their order: plain values |
//! | [`index`] | which runs have a slot or wait for one, from the watches and this process's own writes |
//! | [`allocations`] | the counts and the queue behind the index |
//! | [`entry`] | the part of a run that concerns slots |

pub mod admission;
pub mod allocations;
pub mod entry;
pub mod index;

pub use admission::{Class, Full, Slot};
pub use index::Slots;
