//! Selects the ended runs to delete.

use crds::{RunResult, TerraformLayerSpec, TerraformLayerStatus, duration::Span};
use jiff::{SignedDuration, Timestamp};

use super::run_summary::RunSummary;

/// The most runs that one reconcile deletes.
const AT_ONCE: usize = 10;

/// Ended runs that are counted together, so that looks for drift do not push out what was applied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Group {
    Applied,
    Unchanged,
    Other,
}

impl Group {
    fn of(run: &RunSummary) -> Self {
        match run.result {
            Some(RunResult::Applied) => Self::Applied,
            Some(RunResult::NoChanges) => Self::Unchanged,
            _ => Self::Other,
        }
    }

    fn bounds(self, spec: &TerraformLayerSpec) -> (u32, Option<Span>) {
        match self {
            Self::Applied => (spec.applied_history, spec.applied_history_age),
            Self::Unchanged | Self::Other => (spec.run_history, spec.run_history_age),
        }
    }
}

/// Selects the ended runs to delete: those beyond the bounds of their group. Never the last applied run, those that the status names,
/// Indeterminate ones, which a person has to check, and a run in progress. Also returns when the next one exceeds its age.
pub(super) fn over<'a>(
    runs: &'a [RunSummary],
    status: &TerraformLayerStatus,
    spec: &TerraformLayerSpec,
    now: Timestamp,
) -> (Vec<&'a RunSummary>, Option<Timestamp>) {
    let named = [
        status.last_plan.as_ref().map(|run| &run.run),
        status.last_apply.as_ref().map(|run| &run.run),
        status.failures.as_ref().map(|failures| &failures.run),
        status.drift.as_ref().map(|drift| &drift.run),
    ];
    let is_named = |run: &RunSummary| named.iter().flatten().any(|name| ***name == *run.name);
    let (mut over, mut next) = (Vec::new(), None::<Timestamp>);
    for group in [Group::Applied, Group::Unchanged, Group::Other] {
        let (count, age) = group.bounds(spec);
        let ended = runs
            .iter()
            .rev()
            .filter(|run| run.is_ended() && Group::of(run) == group);
        for (at, run) in ended.enumerate() {
            let last_applied = group == Group::Applied && at == 0;
            let kept = last_applied || is_named(run) || run.deleting;
            if kept || run.result == Some(RunResult::Indeterminate) {
                continue;
            }
            let until = age.zip(run.ended_at).and_then(|(age, ended)| {
                let age = SignedDuration::try_from(age.0).ok()?;
                ended.checked_add(age).ok()
            });
            if at >= usize::try_from(count).unwrap_or(usize::MAX)
                || until.is_some_and(|until| until <= now)
            {
                over.push(run);
            } else {
                next = [next, until].into_iter().flatten().min();
            }
        }
    }
    over.truncate(AT_ONCE);
    (over, next)
}
