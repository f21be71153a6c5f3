//! Clients of the datastore over HTTPS (`design/0009-datastore.md`; [`crds::datastore`] defines the protocol).
//!
//! | module | contents |
//! |---|---|
//! | [`connection`] | URL, certificate authority and timeouts |
//! | [`attempt`] | requests of an attempt's pod |
//! | [`controller`] | requests of the controller |
//! | [`sources`] | requests of `controller sources` |
//! | [`error`] | failed requests |
//!
//! Nothing here retries: only the caller knows for how long that is useful.

// Agent, controller and sources use the datastore through this API.
#![warn(missing_docs)]

pub mod attempt;
pub mod connection;
pub mod controller;
pub mod error;
pub mod sources;

pub use connection::{Connection, Limits, Text};
pub use error::RequestError;
