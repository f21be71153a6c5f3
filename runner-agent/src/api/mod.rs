//! The run in the API: client, watch, and the writer that decides on what it reads and never on an error.

mod client;
mod watch;
mod write;

pub use client::KubeApi;
pub use watch::follow;
pub use write::{Kind, Outcome, Writer, backoff, backoff_of, is_approved, is_leased};
