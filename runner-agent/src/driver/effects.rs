//! What the machine orders, carried out.

use crds::{
    Adopted, ApprovalMode, Changes, FailureClass, Operation, Phase, Reason, RunResult, TerraformRun, pod_env, release,
    termination::TerminationMessage,
};
use tokio::time::Instant;

use super::{Done, Driver, requests::Requests};
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

    /// Starts something whose outcome comes back with the number of its turn.
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
        match effect {
            Effect::Adopt => self.adopt(),
            Effect::RunSetup => {
                self.begin_phase();
                let (work, notices) = (self.work.clone(), self.notices.0.clone());
                if let Some(run) = self.run.clone() {
                    self.start(async move { Done::Setup(work.setup(run, notices).await) });
                }
            }
            Effect::RunRestore => {
                self.begin_phase();
                let (work, notices) = (self.work.clone(), self.notices.0.clone());
                if let Some(run) = self.run.clone() {
                    self.start(async move { Done::Setup(work.restore(run, notices).await) });
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
            Effect::RunInit => {
                let (work, notices) = (self.work.clone(), self.notices.0.clone());
                self.start(async move { Done::Init(work.init(notices).await) });
            }
            Effect::RunPlan => {
                let (work, notices) = (self.work.clone(), self.notices.0.clone());
                self.start(async move { Done::Plan(work.plan(notices).await) });
            }
            Effect::KillOthers => {
                if !self.work.kill_others().await {
                    tracing::warn!("other processes are still there");
                }
            }
            Effect::VerifyManifest => {
                let work = self.work.clone();
                self.start(async move { Done::Verified(work.verify().await) });
            }
            Effect::Claim => self.claim(),
            Effect::RunHooksBefore => {
                let (work, notices) = (self.work.clone(), self.notices.0.clone());
                if let Some(claim) = self.view.claimed() {
                    self.start(async move { Done::HooksBefore(work.hooks_before(claim, notices).await) });
                }
            }
            Effect::VerifyAgain => {
                let work = self.work.clone();
                self.start(async move { Done::Verified(work.verify_again().await) });
            }
            Effect::RunApply => {
                let (work, notices) = (self.work.clone(), self.notices.0.clone());
                if let Some(claim) = self.view.claimed() {
                    self.start(async move { Done::Applied(work.apply(claim, notices).await) });
                }
            }
            Effect::Interrupt => self.work.interrupt(),
            Effect::KillProviders => self.work.kill_providers(),
            Effect::KillTool => self.work.kill_tool(),
            Effect::End(ending) => self.end(ending),
            Effect::RunHooksAfter(ending) => {
                let (work, notices) = (self.work.clone(), self.notices.0.clone());
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
                self.work.kill_tool();
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
        let (writer, wanted) = (self.writer.clone(), self.view.status(|text| self.work.redact(text)));
        self.start(async move { done(writer.write(wanted, kind).await) });
    }

    fn adopt(&mut self) {
        let now = self.clock.now();
        let (api, writer, settings) = (self.api.clone(), self.writer.clone(), self.settings.clone());
        let mut view = self.view.clone();
        self.start(async move {
            let mut tries = 0;
            loop {
                match api.get().await {
                    Ok(run) => {
                        writer.learn(&run);
                        if let Some(field) = run.unknown_word() {
                            // A newer version may be about to go on, or to close the attempt: nothing is begun, and nothing
                            // refused.
                            tracing::info!(field, "the run has a word that this version does not know; it is waited for");
                            tries += 1;
                            tokio::time::sleep(crate::api::backoff_of(tries, &settings.nonce)).await;
                            continue;
                        }
                        let requests = Requests::of(&run, None, |_| true);
                        let status = run.status.clone().unwrap_or_default();
                        let open = status
                            .attempt
                            .as_ref()
                            .is_some_and(|a| a.open && a.number == settings.attempt && a.pod_name == settings.pod_name);
                        let taken = status.adopted.as_ref().is_some_and(|a| a.attempt == settings.attempt);
                        let other = run.metadata.uid.as_deref() != Some(settings.run_uid.as_str());
                        if !open || taken || other || status.is_terminal() || status.claim.is_some() || requests.is_stopped() {
                            tracing::error!(open, taken, other, "the attempt is not to be had; nothing is written");
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
                        tokio::time::sleep(crate::api::backoff_of(tries, &settings.nonce).max(error.wait(false))).await;
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

    /// Whether nobody is asked about a plan with these changes.
    pub(super) fn is_automatic_for(&self, changes: &Changes) -> bool {
        self.run.as_ref().is_some_and(|run| run.spec.approval.is_automatic_for(changes))
    }

    pub(super) fn operation(&self) -> Operation {
        self.run.as_ref().map(|run| run.spec.operation).unwrap_or_default()
    }

    /// Delivers the end: to the termination message first, then to the datastore and to the run, or, where hooks follow, not to the run
    /// yet. Outputs are published behind the delivery and before hooks, so that a pod that dies with one of these has published.
    fn end(&mut self, ending: Ending) {
        self.abandon();
        let result = match ending {
            Ending::NoChanges => Some(RunResult::NoChanges),
            Ending::Planned if self.operation() == Operation::RefreshOnly => Some(RunResult::Drifted),
            Ending::Planned => Some(RunResult::Planned),
            Ending::Applied if self.operation() == Operation::Destroy => Some(RunResult::Destroyed),
            Ending::Applied => Some(RunResult::Applied),
            Ending::Rejected => Some(RunResult::Rejected),
            Ending::Canceled | Ending::Deleted => Some(RunResult::Canceled),
            Ending::Expired => Some(RunResult::Expired),
            Ending::Failed(_) => Some(RunResult::Failed),
            Ending::Released | Ending::Queued | Ending::Attempt(_) => None,
        };
        let reason = self.requests.words(ending);
        let hooks = self.work.has_hooks_after(ending == Ending::Applied);
        if hooks {
            // What the run says until they are over; the end itself is in the message and with the datastore first.
            self.view.hooks_follow(result);
            self.write_progress();
        }
        self.view.end(ending, result, &reason, self.work.changed(), self.clock.now());
        let without = if self.view.is_released(ending) { 0 } else { pod_env::EXIT_NO_RESULT };
        self.exit = result.map_or(without, pod_env::pod_exit_code);
        let message = self.leave_message();
        let delivers = self.delivers(&message);
        if hooks {
            let (work, publishes, claimed) = (self.work.clone(), self.publishes(), self.view.claimed().is_some());
            self.start(async move {
                let delivered = !delivers || work.deliver(message).await;
                let outputs = if publishes { work.publish(claimed).await } else { None };
                Done::Delivered(delivered, outputs)
            });
        } else {
            self.report(message, delivers);
        }
    }

    /// Leaves the end where the kubelet reads it.
    fn leave_message(&self) -> TerminationMessage {
        let status = self.view.status(|text| self.work.redact(text));
        let text = status.message.clone().unwrap_or_default();
        let message = termination::message(&self.settings, status.result, &text, status.failure.clone());
        termination::write(&self.settings.termination_log, &message);
        message
    }

    /// Whether the result is left with the datastore: that of a claimed run, for which there is no other proof should the API be away.
    fn delivers(&self, message: &TerminationMessage) -> bool {
        self.view.claimed().is_some() && message.result.is_some()
    }

    /// Whether the run asks for its outputs to be published at this end.
    fn publishes(&self) -> bool {
        let succeeded = matches!(self.view.result(), Some(RunResult::Applied | RunResult::Destroyed | RunResult::NoChanges));
        succeeded && self.run.as_ref().is_some_and(|run| run.spec.outputs.is_some())
    }

    /// Delivers the end to the run, and to the datastore where it is not yet.
    fn report(&mut self, message: TerminationMessage, delivers: bool) {
        let publishes = self.publishes() && !self.view.has_published();
        let claimed = self.view.claimed().is_some();
        let mut view = self.view.clone();
        let (writer, work) = (self.writer.clone(), self.work.clone());
        self.start(async move {
            if publishes {
                // A pod that dies from here on has applied all the same.
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
            // A second way for the result of what was claimed, should the first one fail.
            let deliver = async {
                if delivers && !publishes {
                    work.deliver(message).await;
                }
            };
            let (outcome, (), ()) = tokio::join!(writer.write(status.clone(), Kind::End), log, deliver);
            Done::Ended(outcome)
        });
    }
}

/// Says why the attempt was not adopted where the controller reads it: the status is not this agent's to write.
///
/// An image that the run or its plan names stays the same in each attempt, so the run fails at once. Any other image is the
/// controller's: an upgrade is under way, and the next attempt gets the image of the new release.
fn leave_other_release(settings: &Settings, run: &TerraformRun, text: &str) {
    let text = format!("{text} but of version {}; nothing was begun", release::VERSION);
    tracing::error!("{text}");
    let mut failure = Reason::ImageVersion.failure(&text);
    if run.spec.runner.image.is_none() && !settings.restores {
        failure.class = FailureClass::Interrupted;
    }
    termination::write(&settings.termination_log, &termination::message(settings, None, &text, Some(failure)));
}

/// A step is given up together with the one who waits for it.
struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
