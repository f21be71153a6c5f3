//! Tests.
pub mod bench;
pub mod chaos;
pub mod cluster;
pub mod compare;
pub mod demo;
pub mod guide;
pub mod history;
#[cfg(test)]
mod invariants;
pub mod ledger;
pub mod mutants;
pub mod played;
pub mod releases;
#[cfg(test)]
mod rooms;
pub mod scale;
pub mod scripted_tool;
pub mod servers;
pub mod trace;
pub mod wait;
