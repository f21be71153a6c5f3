//! The run in the API: client, watch, and a writer that decides on what it has read, never on an error.

mod client;
mod patch;
mod watch;
mod write;

pub use client::KubeApi;
pub use patch::{PatchError, patch};
pub use watch::follow;
pub use write::{Kind, Outcome, Writer, backoff, backoff_of};
