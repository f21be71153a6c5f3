//! Selects the ended runs to delete.

use crds::{RunResult, TerraformLayerStatus};

use super::run_summary::RunSummary;

/// The most runs that one reconcile deletes.
const AT_ONCE: usize = 10;

/// Selects the ended runs to delete: all but the newest `keep`, those that the status names, and Indeterminate ones, which a person has to
/// check. Never a run in progress.
pub(super) fn over<'a>(
    runs: &'a [RunSummary],
    status: &TerraformLayerStatus,
    keep: u32,
) -> Vec<&'a RunSummary> {
    let named = [
        status.last_plan.as_ref().map(|run| &run.run),
        status.last_apply.as_ref().map(|run| &run.run),
        status.failures.as_ref().map(|failures| &failures.run),
        status.drift.as_ref().map(|drift| &drift.run),
    ];
    let is_named = |run: &RunSummary| named.iter().flatten().any(|name| ***name == *run.name);
    let ended = runs.iter().rev().filter(|run| run.is_ended());
    let goes = |run: &&RunSummary| {
        run.result != Some(RunResult::Indeterminate) && !run.deleting && !is_named(run)
    };
    ended
        .skip(usize::try_from(keep).unwrap_or(usize::MAX))
        .filter(goes)
        .take(AT_ONCE)
        .collect()
}
