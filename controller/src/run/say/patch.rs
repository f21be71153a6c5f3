//! The builder of a status write: a merge patch of the controller's fields and no others.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{Resource as _, ResourceExt as _};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crds::{
    ApprovalMode, Failure, FailureClass, Operation, Phase, RunResult, TerraformRun, conditions,
    names,
    reason::{
        self,
        next_step::{self, CodeOrigin, Facts, Place},
    },
    status_limit,
    text::clip,
    whole_seconds,
};

use crate::{
    events::Note,
    run::{
        decision::{Kind, Write},
        run_view::{RunView, Status},
    },
};

/// A status write under construction.
pub(super) struct StatusPatch<'a> {
    run: &'a RunView,
    status: &'a Status,
    now: Timestamp,
    patch: Map<String, Value>,
    conditions: Vec<Condition>,
    /// New lines of the history.
    lines: Vec<String>,
    notes: Vec<Note>,
    incomplete: bool,
}

/// The end of a run.
pub(super) struct End {
    pub(super) result: RunResult,
    /// For people.
    pub(super) message: String,
    pub(super) failure: Option<Failure>,
}

impl<'a> StatusPatch<'a> {
    pub(super) fn new(run: &'a RunView, now: Timestamp) -> Self {
        let (status, conditions) = (&run.status, run.status.conditions.clone());
        Self {
            run,
            status,
            now,
            patch: Map::new(),
            conditions,
            lines: Vec::new(),
            notes: Vec::new(),
            incomplete: false,
        }
    }

    pub(super) fn run(&self) -> &'a RunView {
        self.run
    }

    /// The status that the patch changes.
    pub(super) fn status(&self) -> &'a Status {
        self.status
    }

    pub(super) fn now(&self) -> Timestamp {
        self.now
    }

    /// The whole run, for fields that the cache drops. Without it the patch is incomplete, and is built again on a live read.
    pub(super) fn whole(&mut self) -> Option<&'a TerraformRun> {
        self.incomplete |= self.run.whole().is_none();
        self.run.whole().map(|run| &**run)
    }

    /// The present time in the API server's precision.
    pub(super) fn time(&self) -> Time {
        whole_seconds(self.now)
    }

    /// Sets a field. A map is merged into the existing value.
    pub(super) fn set(&mut self, field: &str, value: impl Serialize) -> &mut Self {
        // All values are strings, numbers and structs with string keys, so the conversion does not fail.
        self.patch.insert(
            field.into(),
            serde_json::to_value(value).unwrap_or_default(),
        );
        self
    }

    pub(super) fn clear(&mut self, field: &str) -> &mut Self {
        self.patch.insert(field.into(), Value::Null);
        self
    }

    pub(super) fn message(&mut self, text: &str) -> &mut Self {
        self.set("message", clip(text, 1024))
    }

    /// Makes a run without a phase Pending, with the conditions of a run that has not ended.
    pub(super) fn pending(&mut self) -> &mut Self {
        if self.status.phase.is_none() {
            self.set("phase", Phase::Pending);
        }
        self.condition_if_new(conditions::SUCCEEDED, None, reason::RUNNING, "");
        self.condition_if_new(conditions::FINISHED, Some(false), reason::RUNNING, "")
    }

    pub(super) fn condition(
        &mut self,
        type_: &str,
        status: Option<bool>,
        reason: &str,
        message: &str,
    ) -> &mut Self {
        conditions::set(
            &mut self.conditions,
            type_,
            status,
            reason,
            message,
            self.run.meta().generation,
            self.now,
        );
        self
    }

    /// Sets a condition unless it has that status and reason: a new message alone is not worth a write.
    pub(super) fn condition_if_new(
        &mut self,
        type_: &str,
        status: Option<bool>,
        reason: &str,
        message: &str,
    ) -> &mut Self {
        let word = status.map_or("Unknown", |s| if s { "True" } else { "False" });
        let old = self.conditions.iter().find(|c| c.type_ == type_);
        if old.is_none_or(|c| c.status != word || c.reason != reason) {
            self.condition(type_, status, reason, message);
        }
        self
    }

    /// As [`Self::condition_if_new`], with a transition time that restarts with every reason.
    pub(super) fn condition_since(
        &mut self,
        type_: &str,
        status: Option<bool>,
        reason: &str,
        message: &str,
    ) -> &mut Self {
        if self
            .conditions
            .iter()
            .any(|c| c.type_ == type_ && c.reason != reason)
        {
            self.conditions.retain(|c| c.type_ != type_);
        }
        self.condition_if_new(type_, status, reason, message)
    }

    /// Removes a condition.
    pub(super) fn forget(&mut self, type_: &str) -> &mut Self {
        self.conditions.retain(|c| c.type_ != type_);
        self
    }

    /// The message of a condition that has this reason.
    pub(super) fn said(&self, type_: &str, reason: &str) -> Option<&str> {
        self.conditions
            .iter()
            .find(|c| c.type_ == type_ && c.reason == reason)
            .map(|c| c.message.as_str())
    }

    /// Adds a line to the history.
    pub(super) fn line(&mut self, word: &str, text: &str) -> &mut Self {
        self.lines.push(clip(
            &format!("{}  {word}  {text}", self.now.strftime("%H:%M:%S")),
            256,
        ));
        self
    }

    /// Replaces `failure`: a merge would retain diagnostics of an older failure.
    pub(super) fn failure(&mut self, failure: &Failure) -> &mut Self {
        let mut value = serde_json::to_value(failure).unwrap_or_default();
        if failure.diagnostics.is_empty() {
            value["diagnostics"] = Value::Null;
        }
        if failure.class == FailureClass::Unknown {
            let is_newer = self
                .status
                .failure
                .as_ref()
                .is_some_and(|failure| failure.class == FailureClass::Unknown);
            // If the status already has a class that only a newer version knows, keep it; otherwise write Internal.
            match value.as_object_mut().filter(|_| is_newer) {
                Some(fields) => fields.retain(|field, _| field != "class" && field != "changes"),
                None => value["class"] = json!(FailureClass::Internal),
            }
        }
        self.patch.insert("failure".into(), value);
        self
    }

    /// Publishes an Event after the write succeeded.
    pub(super) fn note(
        &mut self,
        reason: &'static str,
        warning: bool,
        text: impl Into<String>,
    ) -> &mut Self {
        self.notes.push(Note {
            reason,
            warning,
            text: text.into(),
        });
        self
    }

    pub(super) fn close(&mut self) -> &mut Self {
        let at = self.time();
        self.set("attempt", json!({"open": false, "closedAt": at}))
    }

    /// Closes the attempt without counting its try.
    pub(super) fn uncount(&mut self) -> &mut Self {
        let (at, tries) = (
            self.time(),
            self.status
                .attempt
                .as_ref()
                .map_or(0, |attempt| attempt.tries),
        );
        self.set(
            "attempt",
            json!({"open": false, "closedAt": at, "tries": tries.saturating_sub(1)}),
        )
    }

    /// Ends the run: phase, result, message, next step, failure, time, history and conditions.
    pub(super) fn end(&mut self, end: &End) -> &mut Self {
        let at = self.time();
        self.set("phase", end.result.phase())
            .set("result", end.result)
            .set("completionTime", at)
            .message(&end.message);
        match &end.failure {
            Some(failure) => self.failure(failure),
            None => self.clear("failure"),
        };
        match self.next_step(end.result, end.failure.as_ref()) {
            Some(step) => self.set("nextStep", step),
            None => self.clear("nextStep"),
        };
        self.line(end.result.as_str(), &end.message);
        let reason = end.failure.as_ref().map(|f| f.reason.clone());
        self.ended_conditions(end.result, reason.as_deref(), &end.message)
    }

    pub(super) fn ended_conditions(
        &mut self,
        result: RunResult,
        failure: Option<&str>,
        message: &str,
    ) -> &mut Self {
        let status = self.status;
        let word = if result.phase() == Phase::Failed {
            failure.unwrap_or(result.as_str())
        } else {
            result.as_str()
        };
        // Keep the condition that names another run's apply: it explains the failure.
        let stale = result == RunResult::Failed
            && self.said(conditions::PLANNED, reason::STALE_PLAN).is_some();
        match &status.plan {
            Some(_) if stale => &mut *self,
            Some(plan) => self.condition_if_new(
                conditions::PLANNED,
                Some(true),
                reason::PLANNED,
                &plan.summary,
            ),
            None => self.condition_if_new(conditions::PLANNED, Some(false), word, ""),
        };
        // A person's approval is recorded with a checksum.
        let approved = status
            .approval
            .as_ref()
            .is_some_and(|record| record.checksum.is_some());
        let automatic = self.run.spec.approval.mode == ApprovalMode::Automatic && !approved;
        match (&status.claim, result) {
            (Some(claim), _) if automatic => {
                if status.approval.is_none() {
                    self.set("approval", json!({"by": "automatic", "at": claim.at}));
                }
                self.condition_if_new(
                    conditions::APPROVED,
                    Some(true),
                    reason::AUTOMATIC,
                    "approval.mode is Automatic",
                )
            }
            (Some(_), _) => {
                self.condition_if_new(conditions::APPROVED, Some(true), reason::APPROVED, "")
            }
            (None, RunResult::NoChanges | RunResult::Planned | RunResult::Drifted) => self
                .condition_if_new(
                    conditions::APPROVED,
                    Some(false),
                    reason::NOT_NEEDED,
                    "nothing is applied",
                ),
            (
                None,
                RunResult::Applied
                | RunResult::Destroyed
                | RunResult::Rejected
                | RunResult::Canceled
                | RunResult::Expired
                | RunResult::Superseded
                | RunResult::Failed
                | RunResult::Indeterminate
                | RunResult::Unknown,
            ) => self.condition_if_new(
                conditions::APPROVED,
                Some(false),
                result.as_str(),
                "nothing was applied",
            ),
        };
        let told = conditions::status(&status.conditions, conditions::FINISHED) == Some(true);
        self.condition(
            conditions::SUCCEEDED,
            Some(result.phase() == Phase::Succeeded),
            word,
            message,
        );
        self.condition(conditions::FINISHED, Some(true), result.as_str(), message);
        self.condition_if_new(conditions::STALLED, Some(false), result.as_str(), "");
        if told {
            return self;
        }
        let text = clip(message, 400);
        match result.phase() {
            Phase::Succeeded => self.note("Succeeded", false, format!("{result}: {text}")),
            Phase::Canceled => self.note("Canceled", false, format!("{result}: {text}")),
            Phase::Failed
            | Phase::Pending
            | Phase::Setup
            | Phase::Init
            | Phase::Plan
            | Phase::AwaitingApproval
            | Phase::Apply
            | Phase::Unknown => {
                let reason = if result == RunResult::Indeterminate {
                    "Indeterminate"
                } else {
                    "Failed"
                };
                self.note(reason, true, text)
            }
        }
    }

    /// Whether there is nothing to write. An incomplete patch has to be built again on a live read first.
    pub(super) fn is_empty(&self) -> bool {
        !self.incomplete
            && self.patch.is_empty()
            && self.conditions == self.status.conditions
            && self.lines.is_empty()
    }

    pub(super) fn finish(mut self, kind: Kind) -> Write {
        if let (Kind::Begin | Kind::Open | Kind::Close | Kind::End, Some(generation)) =
            (kind, self.run.meta().generation)
        {
            self.set("observedGeneration", generation);
        }
        if self.conditions != self.status.conditions {
            let conditions = std::mem::take(&mut self.conditions);
            self.set("conditions", conditions);
        }
        if let Some(step) = self.patch.get("nextStep") {
            let (advice, command) = step.as_str().map(next_step::parts).unwrap_or_default();
            self.patch.insert("advice".into(), json!(advice));
            self.patch.insert("nextStep".into(), json!(command));
        }
        if !self.lines.is_empty()
            && let Some(history) = self.fitted_history()
        {
            self.set("history", history);
        }
        let word = self.patch.get("result").and_then(Value::as_str);
        let closed = self.status.result.filter(|_| kind == Kind::Close);
        let ended = RunResult::ALL
            .into_iter()
            .find(|r| Some(r.as_str()) == word)
            .or(closed);
        let finished = ended.map(|result| (self.run.spec.operation, result));
        Write {
            kind,
            status: self.patch,
            notes: self.notes,
            finished,
            incomplete: self.incomplete,
        }
    }

    /// The history, truncated so that the whole status fits its size limit.
    fn fitted_history(&mut self) -> Option<Vec<String>> {
        let mut whole = self.whole()?.status.clone().unwrap_or_default();
        let text = |field: &str| {
            self.patch
                .get(field)
                .and_then(Value::as_str)
                .map(str::to_owned)
        };
        whole.message = text("message").or(whole.message);
        whole.next_step = text("nextStep").or(whole.next_step);
        whole.advice = text("advice").or(whole.advice);
        whole.history.append(&mut self.lines);
        status_limit::fit(&mut whole);
        Some(whole.history)
    }

    /// The next command to run, or the fix that precedes it after a failure.
    pub(super) fn next_step(
        &mut self,
        result: RunResult,
        failure: Option<&Failure>,
    ) -> Option<String> {
        let (namespace, name) = (
            self.run.namespace().unwrap_or_default(),
            self.run.name_any(),
        );
        let again = names::rerun_command(&namespace, &name);
        match (result, failure) {
            (RunResult::Failed | RunResult::Indeterminate, Some(failure)) => {
                let origin = CodeOrigin::of(self.whole()?);
                let facts = Facts {
                    again,
                    logs: names::logs_command(&namespace, &name),
                    origin,
                    ..Facts::default()
                }
                .of(failure);
                Some(reason::next_step::next_step(
                    &failure.reason,
                    Place::Cluster,
                    &facts,
                ))
            }
            (
                RunResult::Failed
                | RunResult::Indeterminate
                | RunResult::Canceled
                | RunResult::Rejected
                | RunResult::Expired
                | RunResult::Superseded,
                _,
            ) => Some(again),
            (
                RunResult::NoChanges
                | RunResult::Planned
                | RunResult::Applied
                | RunResult::Destroyed
                | RunResult::Drifted
                | RunResult::Unknown,
                _,
            ) => None,
        }
    }
}

/// The number of a try: `attempt 2 of at most 4`.
pub(super) fn of_tries(run: &RunView, tries: u32) -> String {
    format!("attempt {tries} of at most {}", run.spec.retry.limit + 1)
}

pub(super) fn operation(run: &RunView) -> &'static str {
    match run.spec.operation {
        Operation::Plan => "plan",
        Operation::Apply => "apply",
        Operation::Destroy => "destroy",
        Operation::RefreshOnly => "refresh",
        Operation::Unknown => "operation",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use crds::Changed;

    #[test]
    fn new_failure_replaces_every_field_of_the_old_one() {
        let run = RunView::live(testing::run().into());
        let mut patch = StatusPatch::new(&run, testing::t0());
        patch.failure(&Failure::new(
            FailureClass::Interrupted,
            reason::POD_LOST,
            "x",
            Changed::None,
        ));
        let write = patch.finish(Kind::Close);
        assert!(write.status["failure"]["diagnostics"].is_null());
        assert_eq!(write.status["observedGeneration"], 1);
        assert!(
            !write.status.contains_key("conditions"),
            "unchanged lists are not sent"
        );
    }

    #[test]
    fn new_wait_restarts_its_transition_time() {
        let mut run = RunView::live(testing::run().into());
        let early = testing::t0();
        conditions::set(
            &mut run.status.conditions,
            conditions::STALLED,
            Some(true),
            reason::UNSCHEDULABLE,
            "",
            None,
            early,
        );
        let late = Timestamp::from_second(early.as_second() + 500).unwrap();
        let mut patch = StatusPatch::new(&run, late);
        patch.condition_since(conditions::STALLED, Some(true), reason::POD_GONE, "gone");
        assert_eq!(patch.conditions[0].last_transition_time.0, late);
    }
}
