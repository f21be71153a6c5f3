//! That what came is what was published: sums, signatures and archives, good ones and hostile ones.

mod archives;
mod corpus;
mod keys;
pub(crate) mod making;
mod properties;
mod signatures;
mod sums;
mod trees;

use tool_versions::{Error, Kind};

/// That something failed, whose fault it is, and that the message says all of these.
#[track_caller]
fn failed<T: std::fmt::Debug>(result: Result<T, Error>, kind: Kind, says: &[&str]) {
    let error = result.expect_err("it is refused");
    assert_eq!(error.kind, kind, "{error}");
    for part in says {
        assert!(error.text.contains(part), "`{error}` does not say `{part}`");
    }
}
