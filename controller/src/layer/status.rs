//! The status of a layer, without `source`, which `controller sources` writes.

use jiff::Timestamp;

use crds::{
    LayerState, RunResult, TerraformLayerStatus, conditions as set_of, reason,
    reason::next_step::{parts, whole},
    state_key,
    text::clip,
    whole_seconds,
};

use super::{
    conditions::{self, Verdict},
    next::Next,
    requesters,
    run_summary::Stage,
    situation::{Situation, Wanted},
};
use crate::events::Note;

/// Characters of the longest next step. Together with its message it fits into an Event.
const MAX_STEP: usize = 800;

/// The status, and the Events to publish once it is written.
pub(super) fn of(
    s: &Situation<'_>,
    next: &Next,
    now: Timestamp,
) -> (TerraformLayerStatus, Vec<Note>) {
    let (before, facts) = (s.o.status(), &s.facts);
    let generation = s.o.layer.metadata.generation;
    let mut all = before.conditions.clone();
    let (ready, is_stalled) = conditions::ready(s, next);
    let step = next.step.as_deref().map(|text| clip(text, MAX_STEP));
    let (advice, command) = step.as_deref().map(parts).unwrap_or_default();
    let step = whole(advice.as_deref(), command.as_deref());
    let same = (&advice, &command) == (&before.advice, &before.next_step);
    let is_wrong = is_stalled || s.fault.is_some();
    let told = told(&before, (step.as_deref(), same), &ready, is_wrong);
    let message = set_of::with_step(
        &ready.message,
        step.as_deref().filter(|_| ready.holds != Some(true)),
    );
    let verdicts = [
        (
            conditions::RECONCILING,
            conditions::reconciling(s, next, &ready, is_stalled),
        ),
        (conditions::STALLED, conditions::stalled(&ready, is_stalled)),
        (conditions::READY, Verdict { message, ..ready }),
        (
            conditions::PLAN_UP_TO_DATE,
            conditions::plan_up_to_date(s, now),
        ),
        (conditions::COMMIT_PLANNED, conditions::commit_planned(s)),
        (
            conditions::APPLY_UP_TO_DATE,
            conditions::apply_up_to_date(s),
        ),
    ];
    let owner = conditions::deleted_with_owner(s).map(|of| (conditions::DELETED_WITH_OWNER, of));
    all.retain(|condition| owner.is_some() || condition.type_ != conditions::DELETED_WITH_OWNER);
    for (
        type_,
        Verdict {
            holds,
            reason,
            message,
        },
    ) in verdicts.into_iter().chain(owner)
    {
        set_of::set(&mut all, type_, holds, reason, &message, generation, now);
    }
    // `kubectl describe` prints conditions in this order.
    all.sort_by_key(|c| c.type_ != conditions::READY);
    let answered =
        s.o.runs
            .iter()
            .rev()
            .find_map(|run| run.answers.as_deref())
            .filter(|token| s.o.asked() == Some(*token));
    let check = s
        .check
        .as_ref()
        .ok()
        .copied()
        .flatten()
        .filter(|_| next.made.is_none())
        .map(whole_seconds);
    let (stack, workspace) = managed(s, (before.stack, before.workspace));
    let status = TerraformLayerStatus {
        observed_generation: generation,
        state: Some(state(s)),
        waits_for: next.waits_for.as_deref().map(|text| clip(text, 512)),
        revision: facts
            .last_plan
            .as_ref()
            .map(|plan| conditions::short(&plan.revision)),
        last_result: facts.last_result.clone(),
        next_step: command,
        advice,
        conditions: all,
        last_plan: facts.last_plan.clone(),
        last_apply: facts.last_apply.clone(),
        pending: facts.pending.clone(),
        drift: facts.drift.clone(),
        next_drift_check: check,
        current_run: facts
            .current
            .map(|run| run.name.to_string())
            .or_else(|| next.made.clone()),
        failures: facts.failures.clone(),
        effective: s.wanted.as_ref().map_or_else(
            |_| before.effective.clone(),
            |wanted| wanted.effective.lines.clone(),
        ),
        stack,
        workspace,
        last_handled_plan: answered
            .map(|token| clip(token, 256))
            .or(before.last_handled_plan),
        requested_by: requesters::open(s),
        applied_spec: requesters::applied_spec(s),
        source: before.source,
    };
    let found = status.drift.as_ref().filter(|drift| {
        before
            .drift
            .as_ref()
            .is_none_or(|old| (&old.run, &old.uid) != (&drift.run, &drift.uid))
    });
    let notes = found.map(|drift| {
        let text = format!(
            "run {} found objects that differ from the code: {}",
            drift.run,
            drift.objects.join(", ")
        );
        Note {
            reason: "DriftFound",
            warning: true,
            text,
        }
    });
    (status, notes.into_iter().chain(told).collect())
}

/// The Event for the current situation, with the next step and whether the status has that already. `kubectl describe` sorts status fields by name and prints Events after them, so the newest Event
/// ends with the next step. A run in progress publishes its own Events.
fn told(
    before: &TerraformLayerStatus,
    (step, same): (Option<&str>, bool),
    ready: &Verdict,
    is_wrong: bool,
) -> Option<Note> {
    let was = before
        .conditions
        .iter()
        .find(|condition| condition.type_ == conditions::READY);
    let moved = was.is_none_or(|was| was.reason != ready.reason) && ready.reason != reason::RUNNING;
    if !moved && same {
        return None;
    }
    let warning = is_wrong || matches!(ready.reason, reason::RETRYING | reason::DRIFT_FOUND);
    let text = match step {
        Some(step) => format!("{}; next step: {step}", clip(&ready.message, 200)),
        None => ready.message.clone(),
    };
    Some(Note {
        reason: ready.reason,
        warning,
        text,
    })
}

/// Stack and workspace of a managed state.
type Managed = (Option<String>, Option<String>);

/// Those of the state that the newest plan with these settings used; unchanged if that is unknown.
fn managed(s: &Situation<'_>, before: Managed) -> Managed {
    let Ok(Wanted { effective, .. }) = &s.wanted else {
        return before;
    };
    let newest =
        s.o.runs
            .iter()
            .rev()
            .filter(|run| *run.settings == *effective.digest)
            .find_map(|run| run.plan.as_ref());
    let Some(key) = newest.and_then(|plan| plan.state_key.as_deref()) else {
        return before;
    };
    let namespace = s.o.layer.metadata.namespace.as_deref().unwrap_or_default();
    let id = effective.state();
    (state_key::managed(namespace, &id) == key)
        .then_some((id.stack, id.workspace))
        .unzip()
}

/// Burrito's states: PlanNeeded until the wanted content is planned, ApplyNeeded while a plan has changes that are not applied.
pub(super) fn state(s: &Situation<'_>) -> LayerState {
    match s.facts.current.map(|run| run.stage) {
        Some(Stage::Waiting | Stage::Approved | Stage::Applying) => return LayerState::ApplyNeeded,
        Some(Stage::NotBegun | Stage::Preparing | Stage::Planning) if !s.is_settled() => {
            return LayerState::PlanNeeded;
        }
        _ => {}
    }
    let failed = s.failed().is_some();
    match s.facts.last_plan.as_ref().map(|plan| plan.result) {
        _ if failed || !s.is_planned() => LayerState::PlanNeeded,
        None => LayerState::PlanNeeded,
        Some(Some(RunResult::NoChanges | RunResult::Applied)) => LayerState::Idle,
        Some(_) => LayerState::ApplyNeeded,
    }
}
