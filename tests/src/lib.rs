//! Tests.
pub mod bench;
pub mod ci;
pub mod cluster;
pub mod demo;
pub mod ledger;
pub mod scripted_tool;
pub mod servers;
