//! All of it together: from what is asked for to an executable that may be run, against a mirror that is signed by a test's key and has
//! its bad days.

mod choosing;
mod hostile;
mod processes;
mod proven;
mod world;

use tool_versions::Version;

use super::{
    getting::{rules, server},
    proving::making,
};

fn version(text: &str) -> Version {
    text.parse().unwrap()
}
