//! The part of a layer's run that decisions read.

use jiff::Timestamp;
use kube::ResourceExt;
use serde::{Deserialize, Serialize};

use crds::{
    FailureClass, Operation, Phase, RunResult, TerraformRun, TerraformRunStatus, Trigger, approval,
    conditions, names, reason, text::clip,
};

/// Prefix of the cancel reason when a layer withdraws its own run. A withdrawn run is planned again at once; one that a person cancelled is
/// not.
pub const SUPERSEDED: &str = "superseded by its layer: ";

#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// No agent has begun to work. An attempt may be open, whose pod does not run yet.
    NotBegun,
    /// Its attempt fetches the source and initializes.
    Preparing,
    /// It plans, or is about to plan again.
    Planning,
    /// Its plan waits for approval.
    Waiting,
    /// Its plan is approved, but not claimed yet.
    Approved,
    /// Its plan is claimed.
    Applying,
    Ended,
}

/// A completed plan.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct PlanSummary {
    pub at: Timestamp,
    pub summary: Box<str>,
    /// `None` once the run has ended.
    pub checksum: Option<Box<str>>,
    pub state_key: Option<Box<str>>,
    /// Digest of its lines of changes.
    pub changes: Option<Box<str>>,
}

/// The condition Stalled of a run, while it is True.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    reason: Box<str>,
    pub message: Box<str>,
    pub step: Option<Box<str>>,
}

impl Obstacle {
    /// Its reason; `Progressing` for one that this version does not know.
    pub fn word(&self) -> &'static str {
        let known = reason::ALL.iter().find(|known| ***known == *self.reason);
        known.copied().unwrap_or(reason::PROGRESSING)
    }
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct RunSummary {
    pub name: Box<str>,
    pub uid: Box<str>,
    pub created: Timestamp,
    pub trigger: Trigger,
    pub operation: Operation,
    pub revision: Box<str>,
    /// `status.source.content` that it was created for.
    pub content: Box<str>,
    /// Digest of the settings that it was created with.
    pub settings: Box<str>,
    /// Digest of the layer's fields that it was created with, if it has requesters.
    pub layer_spec: Option<Box<str>>,
    /// The value of `pawl.run/plan` that it answers.
    pub answers: Option<Box<str>>,
    pub stage: Stage,
    /// An attempt is open.
    pub open: bool,
    /// `status.settled.result` if set, else `status.result`.
    pub result: Option<RunResult>,
    pub ended_at: Option<Timestamp>,
    pub plan: Option<PlanSummary>,
    /// Class, reason and the beginning of its error, if it ended with a failure.
    pub failure: Option<(FailureClass, Box<str>, Box<str>)>,
    /// The reason that it is Stalled for, before it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<Box<Obstacle>>,
    /// Its layer withdrew it.
    pub superseded: bool,
    pub deleting: bool,
}

impl RunSummary {
    /// The layer's UID, and the run; `None` for a run without a layer.
    pub fn of(run: &TerraformRun) -> Option<(String, Self)> {
        let layer = run.labels().get(names::LABEL_LAYER_UID)?.clone();
        let optional =
            |name: &str| (run.annotations().get(name)).map(|value| Box::from(value.as_str()));
        let annotation = |name: &str| run.annotations().get(name).map_or("", String::as_str);
        let status = run.status.as_ref();
        let result = status.and_then(|status| {
            status
                .settled
                .as_ref()
                .map(|settled| settled.result)
                .or(status.result)
        });
        let stage = stage(run);
        let plan = status
            .and_then(|status| status.plan.as_ref())
            .filter(|_| !matches!(stage, Stage::NotBegun | Stage::Planning))
            .map(|plan| PlanSummary {
                at: plan
                    .created_at
                    .as_ref()
                    .map_or_else(|| created(run), |at| at.0),
                summary: plan.summary.as_str().into(),
                checksum: (stage != Stage::Ended).then(|| plan.checksum.as_str().into()),
                state_key: plan.state_key.as_deref().map(Into::into),
                changes: plan.changes_digest.as_deref().map(Into::into),
            });
        let failure = status
            .and_then(|status| status.failure.as_ref())
            .filter(|_| stage == Stage::Ended);
        let obstacle = status.filter(|_| stage != Stage::Ended).and_then(obstacle);
        let repository = run.spec.source.repository.as_ref();
        let seen = Self {
            name: run.name_any().into(),
            uid: run.uid().unwrap_or_default().into(),
            created: created(run),
            trigger: Trigger::of(annotation(names::TRIGGER)),
            operation: run.spec.operation,
            revision: repository
                .map_or("", |repository| &repository.revision)
                .into(),
            content: annotation(names::CONTENT).into(),
            settings: annotation(names::SETTINGS).into(),
            layer_spec: optional(names::LAYER_SPEC),
            answers: optional(names::PLAN),
            stage,
            open: (status.and_then(|status| status.attempt.as_ref()))
                .is_some_and(|attempt| attempt.open),
            result,
            ended_at: status
                .and_then(|status| status.completion_time.as_ref())
                .map(|at| at.0),
            plan,
            failure: failure.map(|failure| {
                let message = clip(&failure.message, 240).into();
                (failure.class, failure.reason.as_str().into(), message)
            }),
            obstacle,
            superseded: annotation(names::CANCEL).starts_with(SUPERSEDED),
            deleting: run.metadata.deletion_timestamp.is_some(),
        };
        Some((layer, seen))
    }

    /// Sort key by age, oldest first. Creation times have whole seconds, so a run may end and the next be created within one: the ended one
    /// counts as older.
    pub(super) fn age(&self) -> (Timestamp, bool, Option<Timestamp>, &str) {
        (self.created, !self.is_ended(), self.ended_at, &self.name)
    }

    /// Whether it is the run that a status remembers with this name and UID. Earlier versions recorded no UIDs.
    pub fn is_same(&self, name: &str, uid: Option<&str>) -> bool {
        *self.name == *name && uid.is_none_or(|uid| *self.uid == *uid)
    }

    pub fn is_ended(&self) -> bool {
        self.stage == Stage::Ended
    }

    /// Whether it was created for this content and these settings.
    pub fn is_of(&self, content: &str, settings: &str) -> bool {
        *self.content == *content && *self.settings == *settings
    }

    /// Whether the plan was completed. Then the content counts as planned, even if the plan was denied or expired.
    pub fn has_planned(&self) -> bool {
        let done = matches!(
            self.result,
            Some(
                RunResult::NoChanges
                    | RunResult::Planned
                    | RunResult::Applied
                    | RunResult::Destroyed
            )
        );
        self.plan.is_some() || done
    }

    /// Whether it left nothing to apply.
    pub fn is_settled(&self) -> bool {
        matches!(self.result, Some(RunResult::NoChanges | RunResult::Applied))
            && self.operation != Operation::Destroy
    }

    /// Digest of the changes that it applied.
    pub fn applied_changes(&self) -> Option<&str> {
        let plan = self.plan.as_ref()?;
        let applied = self.result == Some(RunResult::Applied);
        plan.changes.as_deref().filter(|_| applied)
    }

    /// Whether its layer withdrew it before any apply. Its content counts as not planned then.
    pub fn was_taken_back(&self) -> bool {
        self.superseded && self.result == Some(RunResult::Canceled)
    }

    /// Whether it may be withdrawn: not approved, not claimed, and no attempt is planning.
    pub fn may_be_superseded(&self) -> bool {
        matches!(
            self.stage,
            Stage::NotBegun | Stage::Preparing | Stage::Waiting
        ) && !self.superseded
            && !self.deleting
    }

    /// The same if its plan is no longer needed, so a planning attempt may be interrupted.
    pub fn may_be_taken_back(&self) -> bool {
        self.may_be_superseded()
            || self.stage == Stage::Planning && !self.superseded && !self.deleting
    }

    /// Whether a freeze delays it: its first attempt, or the apply of its plan, has not begun.
    pub fn waits_to_begin(&self) -> bool {
        match self.stage {
            Stage::NotBegun => !self.open,
            Stage::Waiting | Stage::Approved => true,
            Stage::Preparing | Stage::Planning | Stage::Applying | Stage::Ended => false,
        }
    }

    /// When it ended, else when it planned, else when it was created.
    pub fn at(&self) -> Timestamp {
        self.ended_at
            .or(self.plan.as_ref().map(|plan| plan.at))
            .unwrap_or(self.created)
    }
}

fn created(run: &TerraformRun) -> Timestamp {
    run.creation_timestamp()
        .map_or(Timestamp::UNIX_EPOCH, |at| at.0)
}

fn obstacle(status: &TerraformRunStatus) -> Option<Box<Obstacle>> {
    let condition = status
        .conditions
        .iter()
        .find(|c| c.type_ == conditions::STALLED && c.status == "True")?;
    Some(Box::new(Obstacle {
        reason: condition.reason.as_str().into(),
        message: clip(&condition.message, 240).into(),
        step: status.next_step.as_deref().map(Into::into),
    }))
}

fn stage(run: &TerraformRun) -> Stage {
    let Some(status) = &run.status else {
        return Stage::NotBegun;
    };
    if status.is_terminal() {
        return Stage::Ended;
    }
    // A newer version defines what the value means, so the run is left alone until it ends.
    if run.unknown_word().is_some() {
        return Stage::Planning;
    }
    if status.claim.is_some() {
        return Stage::Applying;
    }
    match status.phase {
        Some(Phase::AwaitingApproval) => {
            let annotated = status
                .plan
                .as_ref()
                .is_some_and(|plan| approval::is_annotated(run.annotations(), &plan.checksum));
            if status.approval.is_some() || annotated {
                Stage::Approved
            } else {
                Stage::Waiting
            }
        }
        // Its pod may wait for a node, an image or an account for minutes.
        None | Some(Phase::Pending) => Stage::NotBegun,
        Some(Phase::Setup | Phase::Init) => Stage::Preparing,
        _ => Stage::Planning,
    }
}
