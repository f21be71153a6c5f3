//! The conditions of a layer, each a pure function with a table (`design/guide/layers.md`).

use jiff::Timestamp;

use kube::ResourceExt as _;

use crds::{DeletionPolicy, Remediation, RunResult, reason};

use super::{next::Next, observed::Namespace, situation::Situation};

/// The layer matches its code, as far as the last run showed.
pub(super) const READY: &str = "Ready";
/// Work is in progress, or will begin without a person (kstatus).
pub(super) const RECONCILING: &str = "Reconciling";
/// A person has to act, other than to approve (kstatus).
pub(super) const STALLED: &str = "Stalled";
/// No drift check is due since the last plan.
pub(super) const PLAN_UP_TO_DATE: &str = "IsPlanArtifactUpToDate";
/// The last plan left nothing to apply.
pub(super) const APPLY_UP_TO_DATE: &str = "IsApplyUpToDate";
/// The relevant content of the newest commit is planned.
pub(super) const COMMIT_PLANNED: &str = "IsLastRelevantCommitPlanned";

/// The deletion of its owner deletes the layer. Set only while it does not.
pub(super) const DELETED_WITH_OWNER: &str = "DeletedWithOwner";

/// Status, reason and message of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    /// `None`: Unknown.
    pub(super) holds: Option<bool>,
    /// One word, from `crds::reason`.
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl Verdict {
    fn new(
        holds: impl Into<Option<bool>>,
        reason: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self {
            holds: holds.into(),
            reason,
            message: message.into(),
        }
    }
}

/// `IsPlanArtifactUpToDate`.
pub(super) fn plan_up_to_date(s: &Situation<'_>, now: Timestamp) -> Verdict {
    let Some(plan) = &s.facts.last_plan else {
        return Verdict::new(false, reason::NO_PLAN, "nothing was planned yet");
    };
    match &s.check {
        Err(error) => Verdict::new(None::<bool>, reason::SCHEDULE_INVALID, error.as_str()),
        Ok(_) if s.o.layer.spec.drift.suspend => Verdict::new(
            true,
            reason::DRIFT_SUSPENDED,
            "drift detection is suspended: drift.suspend",
        ),
        Ok(Some(at)) if *at <= now => Verdict::new(
            false,
            reason::PLAN_IS_TOO_OLD,
            format!("planned at {}; a drift check is due since {at}", plan.at.0),
        ),
        Ok(_) => Verdict::new(
            true,
            reason::PLAN_IS_RECENT,
            format!("planned at {}", plan.at.0),
        ),
    }
}

/// `IsLastRelevantCommitPlanned`.
pub(super) fn commit_planned(s: &Situation<'_>) -> Verdict {
    match &s.wanted {
        Err(hold) => Verdict::new(None::<bool>, hold.reason, hold.message.as_str()),
        Ok(_) if let Some(fault) = &s.fault => {
            Verdict::new(None::<bool>, fault.reason, fault.message.as_str())
        }
        Ok(wanted) if s.is_planned() => Verdict::new(
            true,
            reason::COMMIT_PLANNED,
            format!("{} is planned", short(&wanted.revision)),
        ),
        Ok(wanted) => {
            let settings = s
                .facts
                .last_plan
                .as_ref()
                .is_some_and(|plan| plan.content == wanted.content);
            let what = if settings {
                "other settings are"
            } else {
                "it is"
            };
            Verdict::new(
                false,
                reason::PLAN_NEEDED,
                format!("{what} to be planned at {}", short(&wanted.revision)),
            )
        }
    }
}

/// `IsApplyUpToDate`.
pub(super) fn apply_up_to_date(s: &Situation<'_>) -> Verdict {
    let Some(plan) = &s.facts.last_plan else {
        return Verdict::new(None::<bool>, reason::NO_PLAN, "nothing was planned yet");
    };
    let run = s.o.named(&plan.run, plan.uid.as_deref());
    let up_to_date = |text| Verdict::new(true, reason::UP_TO_DATE, text);
    let text = match plan.result {
        Some(RunResult::Applied) => return up_to_date(format!("{run} was applied")),
        Some(RunResult::NoChanges) => return up_to_date(format!("{run} had no changes")),
        None => format!("the plan of {run} is not applied yet"),
        Some(result) => format!("{run} is {result}"),
    };
    let reason = if s.facts.drift.is_some() {
        reason::DRIFT_FOUND
    } else {
        reason::NOT_APPLIED
    };
    Verdict::new(false, reason, text)
}

/// `Ready`, and whether the layer is stalled.
pub(super) fn ready(s: &Situation<'_>, next: &Next) -> (Verdict, bool) {
    let (verdict, stalled) = unfrozen(s, next);
    // A freeze is in the way of what would begin, and of nothing else.
    let begins = match s.facts.current {
        Some(run) => run.waits_to_begin(),
        None => verdict.reason == reason::PLAN_NEEDED || verdict.reason == reason::RETRYING,
    };
    match &s.o.namespace {
        Namespace::Frozen(why)
            if begins && verdict.holds != Some(true) && s.wanted.is_ok() && !s.o.is_deleted() =>
        {
            let waits = next.waits_for.as_deref().unwrap_or(&verdict.message);
            let message = if s.facts.current.is_some() {
                format!("{why}; {waits}")
            } else {
                why.to_string()
            };
            (Verdict::new(false, reason::FROZEN, message), false)
        }
        _ => (verdict, stalled),
    }
}

fn unfrozen(s: &Situation<'_>, next: &Next) -> (Verdict, bool) {
    let waits = next.waits_for.clone().unwrap_or_default();
    let not = |reason, message: String| (Verdict::new(false, reason, message), false);
    let stalled = |reason, message: String| (Verdict::new(false, reason, message), true);
    if s.o.is_deleted() {
        return not(
            reason::DESTROYING,
            if waits.is_empty() {
                "the layer is deleted".into()
            } else {
                waits
            },
        );
    }
    if let Err(hold) = &s.wanted {
        return (
            Verdict::new(false, hold.reason, hold.message.as_str()),
            hold.stalled,
        );
    }
    let rests = s.facts.current.is_none() || s.is_planned() && s.is_settled();
    if let Some(fault) = s
        .fault
        .as_ref()
        .filter(|_| rests && s.facts.pending.is_none())
    {
        let verdict = Verdict::new(false, fault.reason, fault.message.as_str());
        return (verdict, fault.stalled);
    }
    if next.refused {
        return stalled(reason::RUN_REFUSED, waits);
    }
    if let Some(failures) = s.failed().filter(|_| s.facts.pending.is_none()) {
        let run = s.o.named(&failures.run, failures.uid.as_deref());
        let failed = failed_text(&run, failures);
        return match &failures.retry_at {
            Some(at) => not(
                reason::RETRYING,
                format!("{failed}; tried again at {}", at.0),
            ),
            None => stalled(reason::RUN_FAILED, failed),
        };
    }
    if let Err(error) = &s.check {
        return stalled(reason::SCHEDULE_INVALID, error.clone());
    }
    if let Some(pending) = &s.facts.pending {
        let reason = if s.facts.drift.is_some() {
            reason::DRIFT_FOUND
        } else {
            reason::WAITING
        };
        return not(
            reason,
            format!(
                "run {} waits for an approval: {}",
                pending.run,
                pending.summary.as_deref().unwrap_or_default()
            ),
        );
    }
    let dry = s
        .facts
        .last_plan
        .as_ref()
        .is_some_and(|plan| plan.result == Some(RunResult::Planned));
    match (s.is_planned(), s.is_settled(), &s.facts.drift) {
        (true, true, None) => (
            Verdict::new(true, reason::UP_TO_DATE, "the objects match the code"),
            false,
        ),
        (true, true, Some(drift)) => not(
            reason::DRIFT_FOUND,
            format!(
                "{} found objects that differ from the code",
                s.o.named(&drift.run, drift.uid.as_deref())
            ),
        ),
        _ if let Some(obstacle) = s.facts.current.and_then(|run| run.obstacle.as_ref()) => {
            stalled(obstacle.word(), waits)
        }
        _ if s.facts.current.is_some() || next.made.is_some() => not(reason::RUNNING, waits),
        _ if s.o.is_suspended() => not(reason::SUSPENDED, waits),
        (true, false, _) if dry => (
            Verdict::new(
                true,
                reason::PLANNED,
                "planned; remediation is Dry, and nothing is applied",
            ),
            false,
        ),
        (true, false, _) => not(reason::NOT_APPLIED, waits),
        (false, ..) => not(reason::PLAN_NEEDED, waits),
    }
}

/// A failed run with the beginning of its error.
pub(super) fn failed_text(run: &str, failures: &crds::LayerFailures) -> String {
    let message = failures.message.as_deref().unwrap_or_default();
    let error = if message.is_empty() {
        String::new()
    } else {
        format!(": {message}")
    };
    format!("{run} failed ({}){error}", failures.reason)
}

/// `Reconciling`: the layer makes progress without a person. A drift check does not count, or health would flap with each one.
pub(super) fn reconciling(
    s: &Situation<'_>,
    next: &Next,
    ready: &Verdict,
    stalled: bool,
) -> Verdict {
    let waits = stalled || ready.reason == reason::FROZEN || s.facts.pending.is_some();
    let moves = ready.holds != Some(true) && !waits && {
        let works = s.facts.current.is_some() || next.made.is_some();
        let hold = s.wanted.as_ref().err().or(s.fault.as_ref());
        let comes = hold.is_some_and(|hold| hold.reason == ready.reason)
            || matches!(ready.reason, reason::RETRYING | reason::PLAN_NEEDED);
        works || comes || s.o.is_deleted() && next.step.is_none()
    };
    let message = if moves {
        ready.message.clone()
    } else {
        "nothing is under way".into()
    };
    Verdict::new(
        moves,
        if moves {
            ready.reason
        } else {
            reason::PROGRESSING
        },
        message,
    )
}

pub(super) fn stalled(ready: &Verdict, stalled: bool) -> Verdict {
    let message = if stalled {
        ready.message.clone()
    } else {
        "nothing blocks the layer".into()
    };
    Verdict::new(
        stalled,
        if stalled {
            ready.reason
        } else {
            reason::PROGRESSING
        },
        message,
    )
}

/// `DeletedWithOwner`: `None` for a layer that the garbage collector may delete, or that has no owner.
pub(super) fn deleted_with_owner(s: &Situation<'_>) -> Option<Verdict> {
    let layer = &s.o.layer;
    let destroys = layer.spec.deletion_policy == DeletionPolicy::Destroy
        && layer.spec.remediation.on_delete == Remediation::Automatic;
    let owner = layer.owner_references().first().filter(|_| destroys)?;
    let (kind, name) = (&owner.kind, &owner.name);
    Some(Verdict::new(
        false,
        reason::OWNER_MAY_NOT_DELETE,
        format!(
            "the deletion of its owner, {kind} {name}, does not delete this layer, since its destroy needs no approval: a person with the \
             verb autoapprove on terraformruns has to delete it, or to set remediation.onDelete to Manual before"
        ),
    ))
}

/// The first 12 characters of a revision.
pub(super) fn short(revision: &str) -> String {
    revision.chars().take(12).collect()
}
