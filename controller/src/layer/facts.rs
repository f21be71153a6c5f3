//! Facts about a layer: from its runs, and from its status for runs that are gone.

use jiff::Timestamp;

use crds::{
    Drift, LayerFailures, LayerRun, Operation, Pending, RunResult, TerraformLayerStatus,
    whole_seconds,
};

use super::{
    observed::Observed,
    retries,
    run_summary::{RunSummary, Stage},
};

/// The most lines of `status.drift.objects`.
const OBJECTS: usize = 32;

#[derive(Clone, Debug)]
pub(super) struct Facts<'a> {
    pub(super) current: Option<&'a RunSummary>,
    /// The last run that completed its plan.
    pub(super) last_plan: Option<LayerRun>,
    /// The last run that left nothing to apply.
    pub(super) last_apply: Option<LayerRun>,
    /// Consecutive failures.
    pub(super) failures: Option<LayerFailures>,
    pub(super) drift: Option<Drift>,
    pub(super) pending: Option<Pending>,
    /// How the last run ended, or its plan's summary.
    pub(super) last_result: Option<String>,
    /// When a run planned or ended last.
    pub(super) last: Option<Timestamp>,
}

impl<'a> Facts<'a> {
    pub(super) fn of(o: &'a Observed) -> Self {
        let before = o.status();
        let kept = || {
            o.runs
                .iter()
                .rev()
                .filter(|run| run.operation != Operation::Destroy && !run.was_taken_back())
        };
        let current = o.runs.iter().rev().find(|run| !run.is_ended());
        let planned = kept().find(|run| run.has_planned());
        let plan =
            planned.map(|run| remembered(run, run.plan.as_ref().map_or(run.at(), |plan| plan.at)));
        let last_plan = newer(
            plan,
            before.last_plan.clone().filter(|plan| !is_void(plan, o)),
        );
        let apply = kept()
            .find(|run| run.is_settled())
            .map(|run| remembered(run, run.at()));
        let last_apply = newer(apply, before.last_apply.clone());
        let judged = o
            .runs
            .iter()
            .rev()
            .find(|run| !run.was_taken_back() && (run.is_ended() || run.has_planned()));
        // The failure of a run that was deleted stays until a newer one is judged: who deletes a run requests no other.
        let is_newest = |run: &&RunSummary| {
            let past =
                |failures: &LayerFailures| failures.run == *run.name || failures.at.0 <= run.at();
            before.failures.as_ref().is_none_or(past)
        };
        let failures = match judged.filter(is_newest) {
            Some(run) => retries::after(run, before.failures.as_ref(), o.layer.spec.max_retries),
            None => before.failures.clone(),
        };
        let last = o
            .runs
            .iter()
            .map(RunSummary::at)
            .chain(
                [&last_plan, &last_apply]
                    .into_iter()
                    .flatten()
                    .map(|run| run.at.0),
            )
            .max();
        Self {
            drift: drift(planned, last_apply.as_ref(), &before, o),
            pending: current
                .filter(|run| run.stage == Stage::Waiting)
                .and_then(pending),
            last_result: judged.map(said).or(before.last_result),
            current,
            last_plan,
            last_apply,
            failures,
            last,
        }
    }

    /// Whether this content is planned with these settings.
    pub(super) fn is_planned(&self, content: &str, settings: &str) -> bool {
        self.last_plan
            .as_ref()
            .is_some_and(|run| run.content == content && run.settings == settings)
    }

    /// Whether this content was applied with these settings, or needed no apply. From then on, changes in a plan of it are drift.
    pub(super) fn is_settled(&self, content: &str, settings: &str) -> bool {
        self.last_apply
            .as_ref()
            .is_some_and(|run| run.content == content && run.settings == settings)
    }

    /// The failures of this content with these settings.
    pub(super) fn failed(&self, content: &str, settings: &str) -> Option<&LayerFailures> {
        self.failures
            .as_ref()
            .filter(|failures| failures.content == content && failures.settings == settings)
    }

    /// The run whose list of changes has to be read before `status.drift` can be written.
    pub(super) fn unread(&self, o: &Observed) -> Option<String> {
        let found = self.drift.as_ref()?;
        let run = &found.run;
        let known = o
            .layer
            .status
            .as_ref()
            .and_then(|status| status.drift.as_ref())
            .is_some_and(|drift| drift.run == *run && drift.uid == found.uid);
        let read = o.changes.as_ref().is_some_and(|(of, _)| of == run);
        (!known && !read).then(|| run.clone())
    }
}

/// A plan without effect: its run was withdrawn, or deleted while it waited.
fn is_void(plan: &LayerRun, o: &Observed) -> bool {
    let same = |run: &&RunSummary| run.is_same(&plan.run, plan.uid.as_deref());
    match o.runs.iter().find(same) {
        Some(run) => run.was_taken_back(),
        None => plan.result.is_none(),
    }
}

fn remembered(run: &RunSummary, at: Timestamp) -> LayerRun {
    LayerRun {
        run: run.name.to_string(),
        uid: Some(run.uid.to_string()),
        revision: run.revision.to_string(),
        content: run.content.to_string(),
        settings: run.settings.to_string(),
        trigger: run.trigger,
        result: run.result,
        changes: run.applied_changes().map(str::to_owned),
        at: whole_seconds(at),
    }
}

/// The run that is seen, unless the recorded one is later.
fn newer(seen: Option<LayerRun>, remembered: Option<LayerRun>) -> Option<LayerRun> {
    match (seen, remembered) {
        (Some(seen), Some(remembered))
            if (&remembered.run, &remembered.uid) != (&seen.run, &seen.uid)
                && remembered.at.0 > seen.at.0 =>
        {
            Some(remembered)
        }
        (Some(seen), _) => Some(seen),
        (None, remembered) => remembered,
    }
}

/// Drift is a plan with changes for content that was applied before, whatever its trigger. An apply, or a plan without changes, clears it.
fn drift(
    planned: Option<&RunSummary>,
    applied: Option<&LayerRun>,
    before: &TerraformLayerStatus,
    o: &Observed,
) -> Option<Drift> {
    let stored = before
        .drift
        .clone()
        .filter(|drift| applied.is_none_or(|applied| applied.at.0 < drift.since.0));
    let found = planned.zip(applied).filter(|(run, applied)| {
        !run.is_settled()
            && run.is_of(&applied.content, &applied.settings)
            && run.at() >= applied.at.0
    });
    let Some((run, _)) = found else { return stored };
    if let Some(stored) = stored
        .clone()
        .filter(|stored| run.is_same(&stored.run, stored.uid.as_deref()))
    {
        return Some(stored);
    }
    let mut objects = o
        .changes
        .clone()
        .filter(|(of, _)| *of == *run.name)
        .map(|(_, lines)| lines)
        .unwrap_or_default();
    // Drifted objects (`!`) before the planned changes.
    objects.sort_by_key(|line| !line.starts_with('!'));
    if objects.len() > OBJECTS {
        let more = objects.len() - OBJECTS + 1;
        objects.truncate(OBJECTS - 1);
        objects.push(format!("and {more} more"));
    }
    let since = stored.map_or_else(
        || whole_seconds(run.plan.as_ref().map_or(run.at(), |plan| plan.at)),
        |stored| stored.since,
    );
    Some(Drift {
        since,
        run: run.name.to_string(),
        uid: Some(run.uid.to_string()),
        objects,
    })
}

fn pending(run: &RunSummary) -> Option<Pending> {
    let plan = run.plan.as_ref()?;
    let checksum = plan.checksum.as_ref()?.to_string();
    Some(Pending {
        run: run.name.to_string(),
        checksum,
        summary: Some(plan.summary.to_string()),
    })
}

/// How a run ended, in a few words.
fn said(run: &RunSummary) -> String {
    let summary = run.plan.as_ref().map_or("", |plan| &plan.summary);
    let text = match run.result {
        None => format!("Planned {summary}"),
        Some(RunResult::NoChanges) => "NoChanges".to_owned(),
        Some(result @ (RunResult::Failed | RunResult::Indeterminate)) => {
            format!(
                "{result} {}",
                run.failure.as_ref().map_or("", |(_, reason, _)| reason)
            )
        }
        Some(result) => format!("{result} {summary}"),
    };
    crds::text::clip(text.trim_end(), 128)
}
