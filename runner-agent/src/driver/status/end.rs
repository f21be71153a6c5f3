//! The status at the end of an attempt or of the run.

use crds::{
    Changed, Failure, OutputsStatus, Phase, Reason, RunResult, reason, text::clip, whole_seconds,
};
use jiff::Timestamp;

use super::StatusView;
use crate::{
    machine::{Cause, Ending},
    report::{self, Held},
};

impl StatusView {
    /// Whether an attempt with this ending leaves a plan that continues to wait.
    pub(in crate::driver) fn is_released(&self, ending: Ending) -> bool {
        let waits = self.status.phase == Some(Phase::AwaitingApproval) && self.is_stored();
        match ending {
            Ending::Released | Ending::Queued => true,
            // The stored plan does not depend on the pod, so nothing needs a retry.
            Ending::Attempt(Cause::Terminated) => waits,
            _ => false,
        }
    }

    /// The files on disk differ from the plan. `parts` names the changed parts, as far as known.
    pub(in crate::driver) fn mismatch(&mut self, found: &str, parts: &[&str]) {
        let message = if parts.is_empty() {
            format!(
                "the plan on disk is {found}, not {}; it was not applied",
                self.checksum
            )
        } else {
            format!(
                "changed since the plan was made: {}; the plan was not applied",
                parts.join("; ")
            )
        };
        self.failure = Some(Reason::ChecksumMismatch.failure(message));
    }

    /// Records the outputs' status after the end.
    pub(in crate::driver) fn outputs(&mut self, outputs: OutputsStatus) {
        if outputs.reason != reason::PUBLISHED {
            let message = self.status.message.take().unwrap_or_default();
            self.status.message = Some(format!(
                "{message}; its outputs are not published: {}",
                outputs.message
            ));
        }
        self.status.outputs = Some(outputs);
    }

    /// Whether the outputs' status is recorded.
    pub(in crate::driver) const fn has_published(&self) -> bool {
        self.status.outputs.is_some()
    }

    /// Records the run's end, or the attempt's end if there is no result.
    pub(in crate::driver) fn end(
        &mut self,
        ending: Ending,
        result: Option<RunResult>,
        why: &str,
        changed: Changed,
        now: Timestamp,
    ) {
        self.stalled = None;
        self.ended = true;
        // Set by a phase that was stopped.
        self.hook = None;
        let commands = self.settings.commands();
        let phase = self.status.phase.unwrap_or(Phase::Setup);
        let claimed = phase == Phase::Apply;
        let word = phase.as_str();
        if ending == Ending::Queued {
            self.history(
                "Queue",
                &format!(
                    "{why}; the pod ends, a further one plans anew when it is this run's turn"
                ),
                now,
            );
            self.status.message = Some(format!("{why}; it plans anew when it is its turn"));
            return;
        }
        if self.is_released(ending) {
            if !why.is_empty() {
                self.history(
                    "Hold",
                    &format!("{why}; the pod ends, the approved plan is kept"),
                    now,
                );
                self.status.message = Some(format!(
                    "plan {} is approved; {why}; no pod is held",
                    self.summary()
                ));
                self.status.next_step = None;
                return;
            }
            let hold = if ending == Ending::Released {
                "no approval yet"
            } else {
                "the pod was asked to stop"
            };
            self.history(
                "Hold",
                &format!("{hold}; the pod ends, the plan is kept"),
                now,
            );
            let until = self.expires(now);
            self.status.message = Some(self.waits(until, Held::No));
            return;
        }
        self.status.next_step = None;
        match ending {
            // Handled above.
            Ending::Released | Ending::Queued => {}
            Ending::NoChanges => {
                // A refresh plans outputs and moves of the code too, which are no drift.
                let counts = self.status.plan.as_ref().map(|plan| plan.counts);
                let rest = counts.filter(|counts| counts.outputs | counts.moved > 0);
                let rest = rest.map(|counts| {
                    let summary = counts.summary();
                    format!("; the code has {summary} that an apply would put into the state")
                });
                self.status.message = Some(format!("no changes{}", rest.unwrap_or_default()));
            }
            Ending::Planned if result == Some(RunResult::Drifted) => {
                let text = format!(
                    "objects differ from the state: {}; neither they nor the state were changed",
                    self.summary()
                );
                self.status.message = Some(text);
            }
            Ending::Planned => {
                self.status.message = Some(format!(
                    "planned {}; nothing was applied, as asked",
                    self.summary()
                ));
            }
            Ending::Applied => {
                let done = self.status.progress.as_ref().map_or(0, |p| p.done);
                self.history(word, &format!("{done} done"), now);
                let what = if result == Some(RunResult::Destroyed) {
                    "destroyed"
                } else {
                    "applied"
                };
                let unread = self.unread_state.take().map(|why| {
                    format!("; the state was not read back, so what another client may have written is unknown: {why}")
                });
                let text = format!("{what} {}{}", self.summary(), unread.unwrap_or_default());
                self.status.message = Some(clip(&text, 1024));
            }
            Ending::Rejected | Ending::Canceled | Ending::Deleted | Ending::Expired => {
                let text = report::stopped(&commands, why);
                self.history(result.map_or(word, RunResult::as_str), why, now);
                self.status.message = Some(text.message);
                self.status.next_step = text.next_step;
            }
            Ending::Failed(cause) | Ending::Attempt(cause) => {
                let failure = self.caused(cause, why, claimed, changed, now);
                self.history(
                    word,
                    &format!("{}: {}", failure.reason, failure.message),
                    now,
                );
                if result.is_some() {
                    let mut text = report::failed(&commands, &failure, &self.origin);
                    if claimed {
                        report::accounted(
                            &mut text,
                            &commands,
                            &failure,
                            self.status.progress.as_ref(),
                            self.status.journal.as_ref(),
                        );
                    }
                    self.status.message = Some(text.message);
                    self.status.next_step = text.next_step;
                } else {
                    self.status.message = Some(report::retried(&failure));
                }
                self.status.failure = Some(failure);
            }
        }
        if let Some(current) = self.status.progress.as_mut() {
            current.current = None;
        }
        if let Some(result) = result {
            self.status.phase = Some(result.phase());
            self.status.result = Some(result);
            self.status.completion_time = Some(whole_seconds(now));
        }
    }

    /// Whether the apply's state was overwritten by another client.
    pub(in crate::driver) fn has_lost_state(&self) -> bool {
        let failure = self.failure.as_ref();
        failure.is_some_and(|failure| failure.reason == reason::STATE_OVERWRITTEN)
    }

    /// Builds the failure of a cause: the step's message with the class of the cause.
    fn caused(
        &mut self,
        cause: Cause,
        why: &str,
        claimed: bool,
        changed: Changed,
        now: Timestamp,
    ) -> Failure {
        let phase = self.status.phase.unwrap_or(Phase::Setup);
        let said = self.failure.take();
        let commands = self.settings.commands();
        let (reason, text) = match cause {
            Cause::Step | Cause::Mismatch => {
                return said.unwrap_or_else(|| {
                    crate::termination::fault("a step failed without a reason")
                });
            }
            // A step that was waiting for a lock failed because of the lock.
            Cause::Deadline
                if said
                    .as_ref()
                    .is_some_and(|said| said.reason == reason::STATE_LOCKED) =>
            {
                return said.unwrap_or_else(|| {
                    crate::termination::fault("a step failed without a reason")
                });
            }
            Cause::Deadline => {
                let locked = self.status.state_lock.as_ref().map(|lock| {
                    // The holder was reported, and nothing has shown since that the tool got the lock.
                    let text = format!(
                        "{} failed: {}",
                        self.locking(),
                        crate::classify::held_by(lock)
                    );
                    (Reason::StateLocked, text)
                });
                let took = report::span(self.clocked(now).took);
                let stalled = Some(self.stalled_for)
                    .filter(|lasted| lasted.as_secs() > 0)
                    .map(report::span);
                let stalled = stalled
                    .map(|span| format!("; nothing had happened for {span}"))
                    .unwrap_or_default();
                let text = format!("phase {phase} passed its deadline after {took}{stalled}");
                locked.unwrap_or((Reason::DeadlineExceeded, text))
            }
            Cause::Terminated if claimed => (
                Reason::ApplyInterrupted,
                format!("{} was asked to stop during apply", commands.process()),
            ),
            Cause::Terminated => (
                Reason::Terminated,
                format!("{} was asked to stop in phase {phase}", commands.process()),
            ),
            Cause::Cancelled => {
                let why = why.strip_prefix("cancelled").unwrap_or_default();
                (
                    Reason::ApplyInterrupted,
                    format!("the run was cancelled during apply{why}"),
                )
            }
        };
        let message = match said.as_ref().map(|f| f.message.as_str()) {
            Some(said) if !said.is_empty() => format!("{text}; {said}"),
            _ => text,
        };
        let changes = match (claimed, &said) {
            (false, _) => Changed::None,
            (true, Some(said)) => said.changes,
            (true, None) => changed,
        };
        let diagnostics = said.map(|f| f.diagnostics).unwrap_or_default();
        Failure {
            message,
            changes,
            diagnostics,
            ..reason.failure("")
        }
    }
}
