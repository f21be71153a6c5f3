//! The whole path from a request to a verified executable, with a mirror signed by a test key.

mod choosing;
mod hostile;
mod processes;
mod proven;
mod world;

use tool_versions::Version;

use super::{
    getting::{rules, server},
    proving::{making, packing},
};

fn version(text: &str) -> Version {
    text.parse().unwrap()
}
