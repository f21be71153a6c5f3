//! What decisions read of a layer's run: read off the run as the API server sent it, and small.

use jiff::Timestamp;
use kube::ResourceExt;
use serde::{Deserialize, Serialize};

use crds::{FailureClass, Operation, Phase, RunResult, TerraformRun, Trigger, approval, names};

/// Begins the words with which a layer takes its own run back: what a person cancels is not planned again at once, this is.
pub const SUPERSEDED: &str = "superseded by its layer: ";

#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// No attempt of it was opened.
    NotBegun,
    /// It makes its plan, or is about to make it again.
    Planning,
    /// Its plan waits for a person.
    Waiting,
    /// Its plan is approved, and not claimed yet.
    Approved,
    /// Its plan is claimed.
    Applying,
    Ended,
}

/// A plan that was made whole.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct PlanSummary {
    pub at: Timestamp,
    pub summary: Box<str>,
    /// What an approval names; none once the run has ended.
    pub checksum: Option<Box<str>>,
    pub state_key: Option<Box<str>>,
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct RunSummary {
    pub name: Box<str>,
    pub uid: Box<str>,
    pub created: Timestamp,
    pub trigger: Trigger,
    pub operation: Operation,
    /// The commit.
    pub revision: Box<str>,
    /// `status.source.content` that it was made of.
    pub content: Box<str>,
    /// Digest of the settings that it was made with.
    pub settings: Box<str>,
    /// The `pawl.run/plan` that it answers.
    pub answers: Option<Box<str>>,
    pub stage: Stage,
    /// How it ended, by the proof where that arrived later.
    pub result: Option<RunResult>,
    pub ended_at: Option<Timestamp>,
    pub plan: Option<PlanSummary>,
    /// Class and reason of its failure, when it ended with one.
    pub failure: Option<(FailureClass, Box<str>)>,
    /// It was taken back by its layer.
    pub superseded: bool,
    pub deleting: bool,
}

impl RunSummary {
    /// Name and UID of the layer, and the run; `None` for a run that is no layer's.
    pub fn of(run: &TerraformRun) -> Option<(String, Self)> {
        let layer = run.labels().get(names::LABEL_LAYER_UID)?.clone();
        let annotation = |name: &str| run.annotations().get(name).map_or("", String::as_str);
        let status = run.status.as_ref();
        let result = status.and_then(|status| status.settled.as_ref().map(|settled| settled.result).or(status.result));
        let stage = stage(run);
        let plan = status.and_then(|status| status.plan.as_ref()).filter(|_| stage != Stage::Planning).map(|plan| PlanSummary {
            at: plan.created_at.as_ref().map_or_else(|| created(run), |at| at.0),
            summary: plan.summary.as_str().into(),
            checksum: (stage != Stage::Ended).then(|| plan.checksum.as_str().into()),
            state_key: plan.state_key.as_deref().map(Into::into),
        });
        let failure = status.and_then(|status| status.failure.as_ref()).filter(|_| stage == Stage::Ended);
        let repository = run.spec.source.repository.as_ref();
        let seen = Self {
            name: run.name_any().into(),
            uid: run.uid().unwrap_or_default().into(),
            created: created(run),
            trigger: Trigger::of(annotation(names::TRIGGER)),
            operation: run.spec.operation,
            revision: repository.map_or("", |repository| &repository.revision).into(),
            content: annotation(names::CONTENT).into(),
            settings: annotation(names::SETTINGS).into(),
            answers: run.annotations().get(names::PLAN).map(|token| token.as_str().into()),
            stage,
            result,
            ended_at: status.and_then(|status| status.completion_time.as_ref()).map(|at| at.0),
            plan,
            failure: failure.map(|failure| (failure.class, failure.reason.as_str().into())),
            superseded: annotation(names::CANCEL).starts_with(SUPERSEDED),
            deleting: run.metadata.deletion_timestamp.is_some(),
        };
        Some((layer, seen))
    }

    /// What comes before another of its layer is less. Creations are known by the second, and a run may end and the next be made within one:
    /// then the one that has ended is the older.
    pub(super) fn age(&self) -> (Timestamp, bool, Option<Timestamp>, &str) {
        (self.created, !self.is_ended(), self.ended_at, &self.name)
    }

    pub fn is_ended(&self) -> bool {
        self.stage == Stage::Ended
    }

    /// Whether it was made of this content with these settings.
    pub fn is_of(&self, content: &str, settings: &str) -> bool {
        *self.content == *content && *self.settings == *settings
    }

    /// Whether it made its plan whole: whatever became of that, what it was made of is planned.
    pub fn has_planned(&self) -> bool {
        let done =
            matches!(self.result, Some(RunResult::NoChanges | RunResult::Planned | RunResult::Applied | RunResult::Destroyed));
        self.plan.is_some() || done
    }

    /// Whether it left nothing to be done.
    pub fn is_settled(&self) -> bool {
        matches!(self.result, Some(RunResult::NoChanges | RunResult::Applied)) && self.operation != Operation::Destroy
    }

    /// Whether its layer took it back before anything of it was applied: what it was made of counts as not planned.
    pub fn was_taken_back(&self) -> bool {
        self.superseded && self.result == Some(RunResult::Canceled)
    }

    /// Whether it may be taken back: nothing of it is approved or claimed, and no attempt of it plans.
    pub fn may_be_superseded(&self) -> bool {
        matches!(self.stage, Stage::NotBegun | Stage::Waiting) && !self.superseded && !self.deleting
    }

    /// The same of one whose plan nobody needs any more, wherever that is.
    pub fn may_be_taken_back(&self) -> bool {
        self.may_be_superseded() || self.stage == Stage::Planning && !self.superseded && !self.deleting
    }

    /// When it came to its end, or made its plan; its creation before that.
    pub fn at(&self) -> Timestamp {
        self.ended_at.or(self.plan.as_ref().map(|plan| plan.at)).unwrap_or(self.created)
    }
}

fn created(run: &TerraformRun) -> Timestamp {
    run.creation_timestamp().map_or(Timestamp::UNIX_EPOCH, |at| at.0)
}

fn stage(run: &TerraformRun) -> Stage {
    let Some(status) = &run.status else { return Stage::NotBegun };
    if status.is_terminal() {
        return Stage::Ended;
    }
    // What it means is a newer version's to say: it is left alone until it ends.
    if run.unknown_word().is_some() {
        return Stage::Planning;
    }
    if status.claim.is_some() {
        return Stage::Applying;
    }
    match status.phase {
        Some(Phase::AwaitingApproval) => {
            let annotated = status.plan.as_ref().is_some_and(|plan| approval::is_annotated(run.annotations(), &plan.checksum));
            if status.approval.is_some() || annotated { Stage::Approved } else { Stage::Waiting }
        }
        _ if status.attempt.is_none() => Stage::NotBegun,
        _ => Stage::Planning,
    }
}
