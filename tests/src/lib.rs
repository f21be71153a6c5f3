//! Tests.
pub mod ci;
pub mod cluster;
pub mod ledger;
pub mod scripted_tool;
pub mod servers;
