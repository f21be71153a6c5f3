//! Tests of all modules in one program: decision, download, verification, cache, installation, hostile input.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a panic fails the test"
)]

mod fuzzed;
mod getting;
mod install;
mod keeping;
mod kills;
mod proving;
mod suite;

use tool_versions::{Error, Kind, Result};

/// Splits a table: a row on each line, cells separated by `|`. Lines that begin with `#` are comments.
fn table<const N: usize>(text: &str) -> impl Iterator<Item = [&str; N]> {
    let lines = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        cells
            .try_into()
            .unwrap_or_else(|_| panic!("`{line}` has not {N} cells"))
    })
}

/// Asserts an error of a kind whose text contains `says`.
#[track_caller]
fn fails<T: std::fmt::Debug>(result: Result<T>, kind: Kind, says: &str) -> Error {
    let error = result.expect_err(says);
    assert_eq!(error.kind, kind, "{error}");
    assert!(error.text.contains(says), "`{error}` does not say `{says}`");
    error
}
