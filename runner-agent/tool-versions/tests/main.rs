//! Tests of all modules in one program: decision, download, verification, cache, installation, fuzz corpus.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic fails the test")]

mod fuzzed;
mod getting;
mod install;
mod keeping;
mod kills;
mod proving;
mod suite;
