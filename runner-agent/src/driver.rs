//! Drives the state machine: feeds events in and performs its effects.
//!
//! The driver owns the agent's copy of the status. It reads the run as levels (cancelled, denied, deleted, approved, fenced) and
//! sends the machine an event when one changes. Timers follow from the state alone.

mod claim;
mod deadlines;
mod effects;
mod requests;
mod silence;
mod status;

use std::{collections::VecDeque, sync::Arc};

use crds::{
    Approval, OutputsStatus, TerraformRun, duration::Span, pod_env, reason::next_step::CodeOrigin,
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant, sleep_until},
};

use crate::{
    api::{Kind, Outcome, Writer, follow},
    machine::{Event, Permission, Stage, State, Stop, Task, Terms, Write, begin, next},
    ports::{
        Api, ApplyReport, Clock, InitReport, Notice, PlanReport, Seen, SetupReport, Verified, Work,
    },
    settings::Settings,
    termination,
};
use requests::{Requests, hold_for};
use silence::Stall;
use status::StatusView;

type Channel<T> = (mpsc::UnboundedSender<T>, mpsc::UnboundedReceiver<T>);
type StepResult<T> = Result<T, crds::Failure>;

/// The outcome of a started task.
enum Done {
    Adopted(Option<Arc<TerraformRun>>),
    Wrote(Outcome),
    Setup(StepResult<SetupReport>),
    Init(StepResult<InitReport>),
    Plan(StepResult<PlanReport>),
    Verified(StepResult<Verified>),
    Claimed(Outcome),
    HooksBefore(StepResult<()>),
    /// Whether the end is stored where it outlives the pod, and the status of the outputs.
    Delivered(bool, Option<OutputsStatus>),
    HooksAfter,
    Applied(StepResult<ApplyReport>),
    /// Whether the API accepted the write.
    Progress(bool),
    Ended(Outcome),
    Panicked,
}

/// Drives one attempt.
pub struct Driver<A, W, C> {
    api: Arc<A>,
    work: Arc<W>,
    clock: C,
    settings: Arc<Settings>,
    writer: Arc<Writer<A>>,
    run: Option<Arc<TerraformRun>>,
    view: StatusView,
    requests: Requests,
    state: State,
    events: VecDeque<Event>,
    /// Number of the current task. An outcome with another number belongs to an abandoned task and is dropped.
    turn: u64,
    running: Option<JoinHandle<()>>,
    done: Channel<(u64, Done)>,
    notices: Channel<Notice>,
    seen: (watch::Sender<Option<Seen>>, watch::Receiver<Option<Seen>>),
    follower: Option<JoinHandle<()>>,
    /// Start of the phase; time at which the tool was asked to stop; time at which this process was asked to stop.
    phase_since: Instant,
    told_at: Option<Instant>,
    terminated_at: Option<Instant>,
    expires_at: Option<Instant>,
    hold_until: Option<Instant>,
    progress_written: Instant,
    progress_due: bool,
    stall: Stall,
    /// ID of the lock last passed to the work for release.
    released: Option<String>,
    exit: u8,
}

impl<A: Api, W: Work, C: Clock> Driver<A, W, C> {
    pub fn new(api: Arc<A>, work: Arc<W>, clock: C, settings: Arc<Settings>) -> Self {
        let now = Instant::now();
        Self {
            writer: Arc::new(Writer::new(api.clone(), settings.clone())),
            stall: Stall::new(settings.stall_after, now, clock.now()),
            api,
            work,
            clock,
            view: StatusView::new(settings.clone()),
            settings,
            run: None,
            requests: Requests::default(),
            state: State::Ended,
            events: VecDeque::new(),
            turn: 0,
            running: None,
            done: mpsc::unbounded_channel(),
            notices: mpsc::unbounded_channel(),
            seen: watch::channel(None),
            follower: None,
            phase_since: now,
            told_at: None,
            terminated_at: None,
            expires_at: None,
            hold_until: None,
            progress_written: now,
            progress_due: false,
            released: None,
            exit: pod_env::EXIT_NO_RESULT,
        }
    }

    /// Runs until the end. `stops` yields each signal that tells the process to end. Returns the exit code.
    pub async fn run(mut self, mut stops: mpsc::UnboundedReceiver<()>) -> u8 {
        let (state, effects) = begin();
        self.state = state;
        for effect in effects {
            self.perform(effect).await;
        }
        while self.state != State::Ended {
            let event = match self.events.pop_front() {
                Some(event) => event,
                None => match self.wait(&mut stops).await {
                    Some(event) => event,
                    None => continue,
                },
            };
            let (state, effects) = next(&self.state, &event);
            if state != self.state {
                tracing::debug!(?event, from = ?self.state, to = ?state, "changed state");
            }
            let before = std::mem::replace(&mut self.state, state);
            if before != state {
                self.entered(before);
            }
            for effect in effects {
                self.perform(effect).await;
            }
        }
        if let Some(follower) = self.follower.take() {
            follower.abort();
        }
        self.exit
    }

    /// Waits for the next event. `None` if it does not concern the machine.
    async fn wait(&mut self, stops: &mut mpsc::UnboundedReceiver<()>) -> Option<Event> {
        let deadline = self.deadline();
        let progress = self.progress_at();
        let stall = self.stall_at();
        tokio::select! {
            biased;
            Some(notice) = self.notices.1.recv() => {
                self.note(notice);
                None
            }
            Some(()) = stops.recv() => {
                self.terminated_at.get_or_insert_with(Instant::now);
                Some(Event::Stop(Stop::Terminated))
            }
            Some((turn, done)) = self.done.1.recv() => self.finished(turn, done),
            Ok(()) = self.seen.1.changed() => {
                let seen = self.seen.1.borrow_and_update().clone();
                self.look(seen.as_ref());
                None
            }
            () = sleep_until(deadline.map_or_else(Instant::now, |(at, _)| at)), if deadline.is_some() => {
                deadline.map(|(_, event)| event)
            }
            () = sleep_until(progress.unwrap_or_else(Instant::now)), if progress.is_some() => {
                self.write_progress();
                None
            }
            () = sleep_until(stall.unwrap_or_else(Instant::now)), if stall.is_some() => {
                self.write_stall();
                None
            }
        }
    }

    /// Performs the consequences of a new state that are not effects of the machine.
    fn entered(&mut self, before: State) {
        self.listens(before);
        match self.state {
            State::Stopping { killed: false, .. }
            | State::HoldingBack { killed: false, .. }
            | State::Interrupting {
                stage: Stage::Asked,
                ..
            } => {
                self.told_at = Some(Instant::now());
            }
            State::Claiming(_, Some(_)) => {
                self.told_at.get_or_insert_with(Instant::now);
            }
            State::Awaiting => {
                self.view.awaiting(self.clock.now());
                self.begin_expiry();
                if let (true, Some(run)) = (self.view.is_stored(), &self.run) {
                    self.hold_until
                        .get_or_insert_with(|| Instant::now() + hold_for(run));
                }
                // An approval may have come before the plan's write was acknowledged.
                if self.requests.approved {
                    self.events
                        .push_back(Event::Permission(Permission::Approved));
                }
            }
            State::Leasing => {
                self.begin_expiry();
                // The lease's state may have changed before the plan's write was acknowledged.
                if self.requests.leased {
                    self.events.push_back(Event::Permission(Permission::Leased));
                } else if self.requests.queued.is_some() {
                    self.events.push_back(Event::Permission(Permission::Queued));
                }
            }
            State::Verifying(_) if !matches!(before, State::Claiming(..)) => {
                self.phase_since = Instant::now();
            }
            // Hooks before the apply count towards the apply's timeout.
            State::Preparing | State::Applying if matches!(before, State::Claiming(..)) => {
                self.begin_phase();
            }
            State::Finishing(_) => self.phase_since = Instant::now(),
            // A new state has consequences only if it is listed above.
            _ => {}
        }
        // Abandon a verification whose approval was withdrawn.
        if matches!(before, State::Verifying(_)) && !matches!(self.state, State::Claiming(..)) {
            self.abandon();
        }
    }

    /// Sets the time at which the waiting plan expires, once.
    fn begin_expiry(&mut self) {
        let now = self.clock.now();
        let left = std::time::Duration::try_from(self.view.expires(now).duration_since(now))
            .unwrap_or_default();
        self.expires_at.get_or_insert_with(|| Instant::now() + left);
    }

    /// Maps an outcome to an event of the machine.
    fn finished(&mut self, turn: u64, done: Done) -> Option<Event> {
        if let Done::Progress(landed) = done {
            if !landed && self.view.is_stalled() {
                self.stall.missed(Instant::now());
            }
            return None;
        }
        if turn != self.turn {
            return None;
        }
        self.running = None;
        // A step's notices come before its end.
        while let Ok(notice) = self.notices.1.try_recv() {
            self.note(notice);
        }
        let now = self.clock.now();
        let event = match done {
            Done::Adopted(None) => Event::Write(Write::AdoptionRefused),
            Done::Adopted(Some(run)) => self.adopted(run),
            Done::Wrote(Outcome::Landed(run)) => {
                // The acknowledged object is read first: a cancel in it prevents the next phase.
                self.look(Some(&Seen::Run(run)));
                self.events.push_back(Event::Write(Write::Recorded));
                return None;
            }
            Done::Wrote(
                Outcome::Refused(_) | Outcome::OtherRelease(_) | Outcome::Fenced | Outcome::GivenUp,
            )
            | Done::Claimed(Outcome::OtherRelease(_) | Outcome::Fenced | Outcome::GivenUp) => {
                Event::Stop(Stop::Fenced)
            }
            Done::Setup(Ok(report)) => {
                self.view.setup_done(report, now);
                Event::Task(Task::SetupDone)
            }
            Done::Init(Ok(report)) => {
                self.view.init_done(&report, now);
                Event::Task(Task::InitDone)
            }
            Done::Plan(Ok(report)) => {
                let (changes, harmless) =
                    (report.has_changes, self.is_automatic_for(&report.counts));
                self.view.planned(report, now);
                Event::Task(Task::PlanDone { changes, harmless })
            }
            Done::Verified(Ok(found)) if found.checksum == self.view.checksum() => {
                Event::Task(Task::ManifestMatched)
            }
            Done::Verified(Ok(found)) => {
                self.view.mismatch(&found.checksum, &found.differs);
                Event::Task(Task::ManifestDiffers)
            }
            Done::Applied(Ok(report)) => {
                self.view.applied(&report);
                Event::Task(Task::ApplyDone)
            }
            Done::HooksBefore(Ok(())) | Done::HooksAfter => Event::Task(Task::HooksDone),
            Done::Delivered(hooks, outputs) => {
                if let Some(outputs) = outputs {
                    self.view.outputs(outputs);
                }
                if !hooks {
                    self.view.hooks_left_out(now);
                }
                Event::Write(Write::Delivered { hooks })
            }
            Done::Setup(Err(f))
            | Done::Init(Err(f))
            | Done::Plan(Err(f))
            | Done::Verified(Err(f))
            | Done::HooksBefore(Err(f))
            | Done::Applied(Err(f)) => {
                let retried = f.class.is_retried();
                self.view.failed(f);
                Event::Task(Task::StepFailed { retried })
            }
            Done::Claimed(Outcome::Landed(_)) => Event::Write(Write::ClaimGranted {
                hooks: self.work.has_hooks_before(),
            }),
            Done::Claimed(Outcome::Refused(run)) => {
                self.view.unclaim();
                // The cause of the refusal comes first.
                self.look(Some(&Seen::Run(run)));
                self.events.push_back(Event::Write(Write::ClaimRefused));
                return None;
            }
            Done::Ended(
                Outcome::Landed(_)
                | Outcome::GivenUp
                | Outcome::Refused(_)
                | Outcome::OtherRelease(_),
            ) => Event::Write(Write::Reported),
            Done::Ended(Outcome::Fenced) => {
                tracing::error!(
                    "the end could not be delivered: the attempt is closed; it is in the termination message"
                );
                Event::Write(Write::Reported)
            }
            Done::Panicked => {
                let mut fault = termination::fault("the agent has a fault; see the log of the pod");
                fault.changes = self.work.changed();
                self.view.failed(fault);
                match self.state {
                    State::Ending(_) | State::Reporting(_) => Event::Write(Write::Reported),
                    State::Adopting => Event::Write(Write::AdoptionRefused),
                    // A panic of the writer leaves open whether the API accepted the write.
                    State::RecordingInit(_)
                    | State::RecordingPlan(_)
                    | State::RecordingResult(_)
                    | State::Claiming(..) => Event::Stop(Stop::Fenced),
                    _ => Event::Task(Task::StepFailed { retried: false }),
                }
            }
            Done::Progress(_) => return None,
        };
        Some(event)
    }

    fn adopted(&mut self, run: Arc<TerraformRun>) -> Event {
        let status = run.status.clone().unwrap_or_default();
        let approval = Approval {
            hold_for: Span(hold_for(&run)),
            ..run.spec.approval
        };
        self.view
            .resume(status, approval, CodeOrigin::of(&run), self.clock.now());
        let version = run.metadata.resource_version.clone().unwrap_or_default();
        self.follower = Some(tokio::spawn(follow(
            self.api.clone(),
            self.settings.nonce.clone(),
            version,
            self.seen.0.clone(),
        )));
        self.look(Some(&Seen::Run(run.clone())));
        self.run = Some(run);
        if self.settings.restores || self.view.restores() {
            self.view.restore();
            return Event::Write(Write::AdoptedPlan);
        }
        Event::Write(Write::Adopted(Terms {
            plan_only: !self.operation().applies(),
            mode: self.mode(),
        }))
    }

    /// Reads the run's levels and queues an event for each change.
    fn look(&mut self, seen: Option<&Seen>) {
        let checksum = self.view.checksum();
        if let Some(Seen::Run(run)) = seen {
            self.writer.saw(run);
        }
        let requests = match seen {
            Some(Seen::Run(run)) => {
                Requests::of(run, Some(&checksum), |run| self.writer.is_own(run))
            }
            Some(Seen::Gone) => Requests {
                fenced: true,
                ..self.requests.clone()
            },
            Some(Seen::Lost) | None => return,
        };
        if let Some(Seen::Run(run)) = seen
            && let Some(release) = run
                .status
                .as_ref()
                .and_then(|status| status.lock_release.as_ref())
            && self.released.as_ref() != Some(&release.id)
        {
            self.released = Some(release.id.clone());
            self.work.may_unlock(&release.id, &release.holder);
        }
        self.events.extend(requests.news(&self.requests));
        let waits = requests.recorded && requests.queued != self.requests.queued
            || requests.recorded != self.requests.recorded;
        let waits = waits || requests.stale != self.requests.stale;
        self.requests = requests;
        self.view.stale(self.requests.stale.as_deref());
        if waits && self.state == State::Awaiting && !self.requests.approved {
            // This write is informational, so its loss does no harm.
            self.view.turn(self.requests.turn(), self.clock.now());
            self.write_progress();
        }
    }

    fn note(&mut self, notice: Notice) {
        self.happened();
        match notice {
            Notice::Happened => {}
            Notice::Started(name) => self.view.step_started(name, self.clock.now()),
            Notice::Ended(name, code) => self.view.step_ended(name, self.clock.now(), code),
            Notice::HookStarted(name, when) => {
                self.view.hook_started(&name, when, self.clock.now());
            }
            Notice::HookEnded(name, code) => self.view.hook_ended(&name, self.clock.now(), code),
            Notice::HookFailed(failed) => self.view.hook_failed(failed, self.clock.now()),
            Notice::Progress(progress) => {
                self.view.progress(progress);
                self.progress_due = true;
            }
            Notice::Journal(journal) => self.view.journal(*journal),
            Notice::Locked(lock) => {
                if self.view.locked(lock) {
                    self.write_progress();
                }
            }
            Notice::Unlocked(text) => {
                self.view.unlocked(&text, self.clock.now());
                self.write_progress();
            }
            // Written together with the end of Setup, before the stack's code runs.
            Notice::Unconfined => self.view.unconfined(self.clock.now()),
        }
    }

    fn progress_at(&self) -> Option<Instant> {
        (silence::works(self.state) && self.progress_due && !self.writer.is_busy())
            .then(|| self.progress_written + self.settings.progress_every)
    }

    fn write_progress(&mut self) {
        self.progress_due = false;
        self.progress_written = Instant::now();
        let (writer, wanted) = (
            self.writer.clone(),
            self.view.status(|text| self.work.redact(text)),
        );
        let done = self.done.0.clone();
        tokio::spawn(async move {
            let landed = matches!(
                writer.write(wanted, Kind::Progress).await,
                Outcome::Landed(_)
            );
            let _ = done.send((0, Done::Progress(landed)));
        });
    }
}
