//! Verification: sums, signatures and archives, good and hostile.

mod archives;
mod corpus;
mod keys;
pub(crate) mod making;
pub(crate) mod packing;
mod signatures;
mod sums;
mod trees;

use tool_versions::{Error, Kind};

/// Asserts an error of a kind whose text contains each of `says`.
#[track_caller]
fn failed<T: std::fmt::Debug>(result: Result<T, Error>, kind: Kind, says: &[&str]) {
    let error = result.expect_err("it is refused");
    assert_eq!(error.kind, kind, "{error}");
    for part in says {
        assert!(error.text.contains(part), "`{error}` does not say `{part}`");
    }
}
