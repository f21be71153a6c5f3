//! What a layer's runs say, and what its status remembers of those that are gone.

use jiff::Timestamp;

use crds::{Drift, LayerFailures, LayerRun, Operation, Pending, RunResult, TerraformLayerStatus, whole_seconds};

use super::{
    observed::Observed,
    retries,
    run_summary::{RunSummary, Stage},
};

/// The most lines of drift in a status.
const OBJECTS: usize = 32;

#[derive(Clone, Debug)]
pub(super) struct Facts<'a> {
    pub(super) current: Option<&'a RunSummary>,
    /// The last run that made its plan.
    pub(super) last_plan: Option<LayerRun>,
    /// The last run that left nothing to be done.
    pub(super) last_apply: Option<LayerRun>,
    /// Failures in a row.
    pub(super) failures: Option<LayerFailures>,
    pub(super) drift: Option<Drift>,
    pub(super) pending: Option<Pending>,
    /// How the last run ended, or what it planned.
    pub(super) last_result: Option<String>,
    /// When a run planned, or came to its end, last.
    pub(super) last: Option<Timestamp>,
}

impl<'a> Facts<'a> {
    pub(super) fn of(o: &'a Observed) -> Self {
        let before = o.status();
        let kept = || o.runs.iter().rev().filter(|run| run.operation != Operation::Destroy && !run.was_taken_back());
        let current = o.runs.iter().rev().find(|run| !run.is_ended());
        let planned = kept().find(|run| run.has_planned());
        let plan = planned.map(|run| remembered(run, run.plan.as_ref().map_or(run.at(), |plan| plan.at)));
        let last_plan = newer(plan, before.last_plan.clone().filter(|plan| !is_void(plan, o)));
        let apply = kept().find(|run| run.is_settled()).map(|run| remembered(run, run.at()));
        let last_apply = newer(apply, before.last_apply.clone());
        let judged = o.runs.iter().rev().find(|run| !run.was_taken_back() && (run.is_ended() || run.has_planned()));
        let failures = match judged {
            Some(run) => retries::after(run, before.failures.as_ref(), o.layer.spec.max_retries),
            None => before.failures.clone(),
        };
        let last =
            o.runs.iter().map(RunSummary::at).chain([&last_plan, &last_apply].into_iter().flatten().map(|run| run.at.0)).max();
        Self {
            drift: drift(planned, last_apply.as_ref(), &before, o),
            pending: current.filter(|run| run.stage == Stage::Waiting).and_then(pending),
            last_result: judged.map(said).or(before.last_result),
            current,
            last_plan,
            last_apply,
            failures,
            last,
        }
    }

    /// Whether what was made of this content with these settings is planned.
    pub(super) fn is_planned(&self, content: &str, settings: &str) -> bool {
        self.last_plan.as_ref().is_some_and(|run| run.content == content && run.settings == settings)
    }

    /// Whether it was applied, or needed no apply: whatever a plan of it changes from then on is drift.
    pub(super) fn is_settled(&self, content: &str, settings: &str) -> bool {
        self.last_apply.as_ref().is_some_and(|run| run.content == content && run.settings == settings)
    }

    /// The failures of what was made of this content with these settings.
    pub(super) fn failed(&self, content: &str, settings: &str) -> Option<&LayerFailures> {
        self.failures.as_ref().filter(|failures| failures.content == content && failures.settings == settings)
    }

    /// The run whose changes have to be read before drift can be shown.
    pub(super) fn unread(&self, o: &Observed) -> Option<String> {
        let run = &self.drift.as_ref()?.run;
        let known = o.layer.status.as_ref().and_then(|status| status.drift.as_ref()).is_some_and(|drift| drift.run == *run);
        let read = o.changes.as_ref().is_some_and(|(of, _)| of == run);
        (!known && !read).then(|| run.clone())
    }
}

/// The plan of a run that was taken back, or that somebody deleted while it waited: nothing will become of it.
fn is_void(plan: &LayerRun, o: &Observed) -> bool {
    match o.runs.iter().find(|run| *run.name == *plan.run) {
        Some(run) => run.was_taken_back(),
        None => plan.result.is_none(),
    }
}

fn remembered(run: &RunSummary, at: Timestamp) -> LayerRun {
    LayerRun {
        run: run.name.to_string(),
        revision: run.revision.to_string(),
        content: run.content.to_string(),
        settings: run.settings.to_string(),
        trigger: run.trigger,
        result: run.result,
        at: whole_seconds(at),
    }
}

/// What is seen, unless what is remembered came after it.
fn newer(seen: Option<LayerRun>, remembered: Option<LayerRun>) -> Option<LayerRun> {
    match (seen, remembered) {
        (Some(seen), Some(remembered)) if remembered.run != seen.run && remembered.at.0 > seen.at.0 => Some(remembered),
        (Some(seen), _) => Some(seen),
        (None, remembered) => remembered,
    }
}

/// Drift is a plan with changes of what was applied before, whoever asked for it. It is gone with the next apply, and with the next
/// plan without changes.
fn drift(planned: Option<&RunSummary>, applied: Option<&LayerRun>, before: &TerraformLayerStatus, o: &Observed) -> Option<Drift> {
    let stored = before.drift.clone().filter(|drift| applied.is_none_or(|applied| applied.at.0 < drift.since.0));
    let found = planned
        .zip(applied)
        .filter(|(run, applied)| !run.is_settled() && run.is_of(&applied.content, &applied.settings) && run.at() >= applied.at.0);
    let Some((run, _)) = found else { return stored };
    if let Some(stored) = stored.clone().filter(|stored| stored.run == *run.name) {
        return Some(stored);
    }
    let mut objects = o.changes.clone().filter(|(of, _)| *of == *run.name).map(|(_, lines)| lines).unwrap_or_default();
    // What is not as it was, before what would be done about it.
    objects.sort_by_key(|line| !line.starts_with('!'));
    if objects.len() > OBJECTS {
        let more = objects.len() - OBJECTS + 1;
        objects.truncate(OBJECTS - 1);
        objects.push(format!("and {more} more"));
    }
    let since = stored.map_or_else(|| whole_seconds(run.plan.as_ref().map_or(run.at(), |plan| plan.at)), |stored| stored.since);
    Some(Drift { since, run: run.name.to_string(), objects })
}

fn pending(run: &RunSummary) -> Option<Pending> {
    let plan = run.plan.as_ref()?;
    let checksum = plan.checksum.as_ref()?.to_string();
    Some(Pending { run: run.name.to_string(), checksum, summary: Some(plan.summary.to_string()) })
}

/// How a run ended, in a word or two.
fn said(run: &RunSummary) -> String {
    let summary = run.plan.as_ref().map_or("", |plan| &plan.summary);
    let text = match run.result {
        None => format!("Planned {summary}"),
        Some(RunResult::NoChanges) => "NoChanges".to_owned(),
        Some(result @ (RunResult::Failed | RunResult::Indeterminate)) => {
            format!("{result} {}", run.failure.as_ref().map_or("", |(_, reason)| reason))
        }
        Some(result) => format!("{result} {summary}"),
    };
    crds::text::clip(text.trim_end(), 128)
}
