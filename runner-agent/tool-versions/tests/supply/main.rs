//! All of it together: from what is asked for to an executable that may be run, against a mirror that is signed by a test's key and has
//! its bad days.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "what cannot go on here is a failed test")]

mod choosing;
mod hostile;
#[path = "../proving/making.rs"]
#[allow(dead_code, reason = "more can be made than is needed here")]
mod making;
mod processes;
mod proven;
#[path = "../getting/server.rs"]
#[allow(dead_code, reason = "more can be asked than is needed here")]
mod server;
mod world;

use tool_versions::Version;

fn version(text: &str) -> Version {
    text.parse().unwrap()
}
