//! Which of a layer's runs have been kept for long enough.

use crds::{RunResult, TerraformLayerStatus};

use super::run_summary::RunSummary;

/// The most runs that are deleted in one look.
const AT_ONCE: usize = 10;

/// The ended runs that go: all but the newest `keep`, what the status names, and what somebody has to look at. Nothing that works or
/// waits is among them.
pub(super) fn over<'a>(runs: &'a [RunSummary], status: &TerraformLayerStatus, keep: u32) -> Vec<&'a RunSummary> {
    let named = [
        status.last_plan.as_ref().map(|run| &run.run),
        status.last_apply.as_ref().map(|run| &run.run),
        status.failures.as_ref().map(|failures| &failures.run),
        status.drift.as_ref().map(|drift| &drift.run),
    ];
    let is_named = |run: &RunSummary| named.iter().flatten().any(|name| ***name == *run.name);
    let ended = runs.iter().rev().filter(|run| run.is_ended());
    let goes = |run: &&RunSummary| run.result != Some(RunResult::Indeterminate) && !run.deleting && !is_named(run);
    ended.skip(usize::try_from(keep).unwrap_or(usize::MAX)).filter(goes).take(AT_ONCE).collect()
}
