//! Tests of the program as a person calls it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on ends here"
)]

mod local;
mod stand_in;
mod tool;
