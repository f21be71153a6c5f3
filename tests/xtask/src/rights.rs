//! The last stage: rights of the chart that no suite's requests used. Each whole suite leaves a file of them (`harness::cluster::rights`).

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::cache;

/// The suites in which Pawl's processes have its chart's accounts.
const SUITES: [&str; 4] = ["pods together", "pods alone", "kills", "api"];

/// The use of a right in a suite.
#[derive(Debug, Deserialize)]
struct Use {
    is_used: bool,
    /// Why no request uses it; empty if one has to.
    reason: String,
}

/// Fails if no suite used a right, and no reason is given.
pub(crate) fn judge(directory: &Path) -> Result<()> {
    let read = |suite| {
        let text = cache::read(&directory.join(format!("{suite}.json")))?;
        serde_json::from_str(&text).with_context(|| format!("the rights of {suite}"))
    };
    let suites: Vec<_> = SUITES.into_iter().map(read).collect::<Result<_>>()?;
    let unused = unused(&suites);
    ensure!(
        unused.is_empty(),
        "no request used these rights; remove them from the chart, or add a reason to `UNUSED` in tests/harness/src/cluster/rights/reasons.rs:\n{}",
        unused.join("\n")
    );
    Ok(())
}

fn unused(suites: &[BTreeMap<String, Use>]) -> Vec<&str> {
    let mut needless: BTreeMap<&str, bool> = BTreeMap::new();
    for (right, how) in suites.iter().flatten() {
        *needless.entry(right).or_insert(true) &= !how.is_used && how.reason.is_empty();
    }
    let named = needless.into_iter().filter(|(_, needless)| *needless);
    named.map(|(right, _)| right).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn right_without_a_request_needs_a_reason() {
        let suite = |is_used: bool| {
            let text = format!(
                r#"{{"a: get x": {{"is_used": {is_used}, "reason": ""}},
                "a: get y": {{"is_used": false, "reason": ""}},
                "a: control z": {{"is_used": false, "reason": "w"}}}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        assert_eq!(unused(&[suite(true), suite(false)]), ["a: get y"]);
    }
}
