//! Performs the machine's effects.

use crds::{
    Adopted, ApprovalMode, Changes, FailureClass, Operation, Phase, Reason, RunResult,
    TerraformRun, pod_env, release, termination::TerminationMessage,
};
use tokio::time::Instant;

use super::{Done, Driver};
use crate::{
    api::{Kind, Outcome},
    machine::{Effect, Ending, Mode, State},
    ports::{Api, Clock, Work},
    settings::Settings,
    termination,
};

impl<A: Api, W: Work, C: Clock> Driver<A, W, C> {
    pub(super) fn abandon(&mut self) {
        self.turn += 1;
        if let Some(running) = self.running.take() {
            running.abort();
        }
    }

    /// Starts a task. Its outcome returns with the task's number.
    pub(super) fn start(&mut self, work: impl Future<Output = Done> + Send + 'static) {
        self.turn += 1;
        let (turn, done) = (self.turn, self.done.0.clone());
        let task = tokio::spawn(work);
        let abort = task.abort_handle();
        let waiter = tokio::spawn(async move {
            let guard = AbortOnDrop(abort);
            let outcome = match task.await {
                Ok(outcome) => outcome,
                Err(error) if error.is_cancelled() => return,
                Err(_) => Done::Panicked,
            };
            drop(guard);
            let _ = done.send((turn, outcome));
        });
        self.running = Some(waiter);
    }

    pub(super) async fn perform(&mut self, effect: Effect) {
        let (work, notices) = (self.work.clone(), self.notices.0.clone());
        match effect {
            Effect::Adopt => self.adopt(),
            Effect::RunSetup | Effect::RunRestore => {
                self.begin_phase();
                if let Some(run) = self.run.clone() {
                    self.start(async move {
                        let restores = effect == Effect::RunRestore;
                        Done::Setup(if restores {
                            work.restore(run, notices).await
                        } else {
                            work.setup(run, notices).await
                        })
                    });
                }
            }
            Effect::Record(phase) => {
                if matches!(phase, Phase::Init) || matches!(self.state, State::RecordingPlan(_)) {
                    self.begin_phase();
                }
                self.view.enter(phase);
                if phase == Phase::AwaitingApproval {
                    self.view.announce_hold(self.clock.now());
                }
                self.write(Kind::Update, Done::Wrote);
            }
            Effect::RunInit => self.start(async move { Done::Init(work.init(notices).await) }),
            Effect::RunPlan => self.start(async move { Done::Plan(work.plan(notices).await) }),
            Effect::KillOthers => {
                if !work.kill_others().await {
                    tracing::warn!("other processes are still there");
                }
            }
            Effect::VerifyManifest => {
                self.start(async move { Done::Verified(work.verify().await) });
            }
            Effect::Claim => self.claim(),
            Effect::RunHooksBefore => {
                if let Some(claim) = self.view.claimed() {
                    self.start(async move {
                        Done::HooksBefore(work.hooks_before(claim, notices).await)
                    });
                }
            }
            Effect::VerifyAgain => {
                self.start(async move { Done::Verified(work.verify_again().await) });
            }
            Effect::RunApply => {
                if let Some(claim) = self.view.claimed() {
                    self.start(async move { Done::Applied(work.apply(claim, notices).await) });
                }
            }
            Effect::Interrupt => work.interrupt(),
            Effect::KillProviders => work.kill_providers(),
            Effect::KillTool => work.kill_tool(),
            Effect::End(ending) => self.end(ending),
            Effect::RunHooksAfter(ending) => {
                let (applied, result) = (ending == Ending::Applied, self.view.result());
                self.start(async move {
                    work.hooks_after(applied, result, notices).await;
                    Done::HooksAfter
                });
            }
            Effect::Report => {
                self.abandon();
                self.view.hooks_over(self.clock.now());
                let message = self.leave_message();
                self.report(message, false);
            }
            Effect::Exit => {
                self.abandon();
                work.kill_tool();
            }
        }
    }

    pub(super) fn begin_phase(&mut self) {
        self.phase_since = Instant::now();
        self.progress_written = self.phase_since;
        self.progress_due = false;
        self.view.begin(self.clock.now());
    }

    pub(super) fn write(&mut self, kind: Kind, done: fn(Outcome) -> Done) {
        let (writer, wanted) = (
            self.writer.clone(),
            self.view.status(|text| self.work.redact(text)),
        );
        self.start(async move { done(writer.write(wanted, kind).await) });
    }

    fn adopt(&mut self) {
        let now = self.clock.now();
        let (api, writer, settings) =
            (self.api.clone(), self.writer.clone(), self.settings.clone());
        let mut view = self.view.clone();
        self.start(async move {
            let mut tries = 0;
            loop {
                match api.get().await {
                    Ok(run) => {
                        writer.learn(&run);
                        let unknown = run.unknown_word();
                        if unknown.is_some() || writer.is_early(&run) {
                            // A newer version may be about to continue or close the attempt, or the controller to record this pod.
                            // Neither adopt nor refuse.
                            tracing::info!(
                                unknown,
                                "the run does not record this pod yet, or has a value that this version does not know; waiting"
                            );
                            tries += 1;
                            tokio::time::sleep(crate::api::backoff_of(tries, &settings.nonce))
                                .await;
                            continue;
                        }
                        let status = run.status.clone().unwrap_or_default();
                        let open = writer.is_open(&run);
                        let taken = status
                            .adopted
                            .as_ref()
                            .is_some_and(|a| a.attempt == settings.attempt);
                        if !open
                            || taken
                            || status.is_terminal()
                            || status.claim.is_some()
                            || run.is_stopped()
                        {
                            tracing::error!(
                                open,
                                taken,
                                "the attempt cannot be adopted; nothing is written"
                            );
                            return Done::Adopted(None);
                        }
                        let adopted = Adopted {
                            attempt: settings.attempt,
                            pod_uid: settings.pod_uid.clone(),
                            nonce: settings.nonce.clone(),
                            node_name: settings.node_name.clone(),
                            version: Some(release::VERSION.to_owned()),
                        };
                        view.adopt(&status, adopted, settings.restores, now);
                        let outcome = writer.write(view.status(str::to_owned), Kind::Adopt).await;
                        return Done::Adopted(match outcome {
                            Outcome::Landed(run) => Some(run),
                            Outcome::OtherRelease(text) => {
                                leave_other_release(&settings, &run, &text);
                                None
                            }
                            Outcome::Refused(_) | Outcome::Fenced | Outcome::GivenUp => None,
                        });
                    }
                    Err(error) => {
                        tracing::info!(code = error.code, %error, "the run cannot be read yet");
                        tries += 1;
                        tokio::time::sleep(
                            crate::api::backoff_of(tries, &settings.nonce).max(error.wait(false)),
                        )
                        .await;
                    }
                }
            }
        });
    }

    pub(super) fn mode(&self) -> Mode {
        match self.run.as_ref().map(|run| run.spec.approval.mode) {
            Some(ApprovalMode::Automatic) => Mode::Automatic,
            Some(ApprovalMode::Manual | ApprovalMode::Unknown) | None => Mode::Manual,
        }
    }

    /// Whether a plan with these changes needs no approval.
    pub(super) fn is_automatic_for(&self, changes: &Changes) -> bool {
        self.run
            .as_ref()
            .is_some_and(|run| run.spec.approval.is_automatic_for(changes))
    }

    pub(super) fn operation(&self) -> Operation {
        self.run
            .as_ref()
            .map(|run| run.spec.operation)
            .unwrap_or_default()
    }

    /// Delivers the end: first to the termination message, then to the datastore and the run. If hooks follow, the run is written after
    /// them. Outputs are published after the delivery and before hooks, so that they are published even if a hook kills the pod.
    fn end(&mut self, ending: Ending) {
        self.abandon();
        let result = match ending {
            Ending::NoChanges => Some(RunResult::NoChanges),
            Ending::Planned if self.operation() == Operation::RefreshOnly => {
                Some(RunResult::Drifted)
            }
            Ending::Planned => Some(RunResult::Planned),
            Ending::Applied if self.operation() == Operation::Destroy => Some(RunResult::Destroyed),
            Ending::Applied => Some(RunResult::Applied),
            Ending::Rejected => Some(RunResult::Rejected),
            Ending::Canceled | Ending::Deleted => Some(RunResult::Canceled),
            Ending::Expired => Some(RunResult::Expired),
            Ending::Failed(_) if self.view.has_lost_state() => Some(RunResult::Indeterminate),
            Ending::Failed(_) => Some(RunResult::Failed),
            Ending::Released | Ending::Queued | Ending::Attempt(_) => None,
        };
        let reason = self.requests.words(ending);
        let hooks = self.work.has_hooks_after(ending == Ending::Applied);
        if hooks {
            // Shows in the status that hooks follow. The end itself is in the termination message and the datastore first.
            self.view.hooks_follow(result);
            self.write_progress();
        }
        self.view.end(
            ending,
            result,
            &reason,
            self.work.changed(),
            self.clock.now(),
        );
        let without = if self.view.is_released(ending) {
            0
        } else {
            pod_env::EXIT_NO_RESULT
        };
        self.exit = result.map_or(without, pod_env::pod_exit_code);
        let message = self.leave_message();
        let delivers = self.delivers(&message);
        if hooks {
            let (work, publishes, claimed) = (
                self.work.clone(),
                self.publishes(),
                self.view.claimed().is_some(),
            );
            self.start(async move {
                let delivered = !delivers || work.deliver(message).await;
                let outputs = if publishes {
                    work.publish(claimed).await
                } else {
                    None
                };
                Done::Delivered(delivered, outputs)
            });
        } else {
            self.report(message, delivers);
        }
    }

    /// Writes the termination message for the kubelet.
    fn leave_message(&self) -> TerminationMessage {
        let status = self.view.status(|text| self.work.redact(text));
        let text = status.message.clone().unwrap_or_default();
        let message =
            termination::message(&self.settings, status.result, &text, status.failure.clone());
        termination::write(&self.settings.termination_log, &message);
        message
    }

    /// Whether to deliver the result to the datastore. Only a claimed run needs it, as proof should the API be unavailable.
    fn delivers(&self, message: &TerminationMessage) -> bool {
        self.view.claimed().is_some() && message.result.is_some()
    }

    /// Whether the run's spec requests publishing outputs at this end.
    fn publishes(&self) -> bool {
        let succeeded = matches!(
            self.view.result(),
            Some(RunResult::Applied | RunResult::Destroyed | RunResult::NoChanges)
        );
        succeeded
            && self
                .run
                .as_ref()
                .is_some_and(|run| run.spec.outputs.is_some())
    }

    /// Writes the end to the run, and delivers it to the datastore unless that is done.
    fn report(&mut self, message: TerminationMessage, delivers: bool) {
        let publishes = self.publishes() && !self.view.has_published();
        let claimed = self.view.claimed().is_some();
        let mut view = self.view.clone();
        let (writer, work) = (self.writer.clone(), self.work.clone());
        self.start(async move {
            if publishes {
                // The result is stored first, since the pod may die while it publishes.
                if delivers {
                    work.deliver(message.clone()).await;
                }
                if let Some(outputs) = work.publish(claimed).await {
                    view.outputs(outputs);
                }
            }
            let status = view.status(|text| work.redact(text));
            let text = status.message.clone().unwrap_or_default();
            let log = async {
                work.log(&format!("pawl: {text}")).await;
                if let Some(failure) = &status.failure {
                    tracing::info!(class = ?failure.class, reason = failure.reason, "failed");
                }
            };
            // A second path for the result of a claimed run, should the API write fail.
            let deliver = async {
                if delivers && !publishes {
                    work.deliver(message).await;
                }
            };
            let (outcome, (), ()) =
                tokio::join!(writer.write(status.clone(), Kind::End), log, deliver);
            Done::Ended(outcome)
        });
    }
}

/// Reports in the termination message why the attempt was not adopted: this agent may not write the status.
///
/// An image that the run or its plan names stays the same in each attempt, so the run fails at once. The controller chooses any other
/// image: an upgrade is in progress, and the next attempt gets the image of the new release.
fn leave_other_release(settings: &Settings, run: &TerraformRun, text: &str) {
    let text = format!(
        "{text} but of version {}; nothing was begun",
        release::VERSION
    );
    tracing::error!("{text}");
    let mut failure = Reason::ImageVersion.failure(&text);
    if run.spec.runner.image.is_none() && !settings.restores {
        failure.class = FailureClass::Interrupted;
    }
    termination::write(
        &settings.termination_log,
        &termination::message(settings, None, &text, Some(failure)),
    );
}

/// Aborts a task when its waiter is dropped.
struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
