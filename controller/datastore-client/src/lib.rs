//! The datastore, as others ask it over HTTPS (`design/0009-datastore.md`; the words of the protocol are in [`crds::datastore`]).
//!
//! | module | holds |
//! |---|---|
//! | [`connection`] | where the datastore is, and whom it is trusted by |
//! | [`attempt`] | the requests of an attempt's pod |
//! | [`controller`] | the requests of the controller |
//! | [`sources`] | the requests of whoever follows repositories |
//! | [`error`] | requests that were not carried out |
//!
//! Nothing here waits and tries again: for how long that makes sense only the caller knows.

// Agent, controller and sources know the datastore by this API.
#![warn(missing_docs)]

pub mod attempt;
pub mod connection;
pub mod controller;
pub mod error;
pub mod sources;

pub use connection::{Connection, Limits, Text};
pub use error::RequestError;
