//! Versions of tools: deciding, getting, proving, keeping, all of it together, and what fuzzers once found.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "what cannot go on here is a failed test")]

mod fuzzed;
mod getting;
mod install;
mod keeping;
mod kills;
mod proving;
mod suite;
