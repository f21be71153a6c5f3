//! The agent's copy of the status, during the work and at the end.

mod end;
mod hooks;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crds::{
    Adopted, Approval, Claim, Failure, HookWhen, Journal, Phase, PlanStatus, Progress, RunResult,
    StateLock, Step, TerraformRunStatus,
    fields::{self, Origin},
    names,
    reason::next_step::{self, CodeOrigin},
    whole_seconds,
};
use jiff::Timestamp;

use crate::{
    ports::{ApplyReport, InitReport, PlanReport, SetupReport},
    report::{self, Clocked, Ends, Held},
    settings::Settings,
};

/// History entry of an attempt on a node without Landlock.
const UNCONFINED: &str = "code of the stack is not confined (this node has no Landlock): it can read this pod's tokens, and change \
     the tool's memory and so its words";

#[derive(Clone, Debug)]
pub(super) struct StatusView {
    settings: Arc<Settings>,
    status: TerraformRunStatus,
    setup: SetupReport,
    since: Option<Timestamp>,
    failure: Option<Failure>,
    before_claim: Option<TerraformRunStatus>,
    checksum: String,
    approval: Approval,
    /// Another run applied to the state since the plan was made.
    stale: Option<String>,
    /// The place of the run's code, for the next step after a failure.
    origin: CodeOrigin,
    /// Since when nothing happens, and when the silence ends by force.
    stalled: Option<(Timestamp, Option<Ends>)>,
    /// Duration of the silence when the command was asked to stop.
    stalled_for: Duration,
    /// The running hook.
    hook: Option<(String, HookWhen)>,
    /// Why the state could not be read back after the apply.
    unread_state: Option<String>,
    /// The end is decided. Later failures are those of hooks at the end.
    ended: bool,
}

impl StatusView {
    pub(super) fn new(settings: Arc<Settings>) -> Self {
        Self {
            settings,
            status: TerraformRunStatus::default(),
            setup: SetupReport::default(),
            since: None,
            failure: None,
            before_claim: None,
            checksum: String::new(),
            approval: Approval::default(),
            stale: None,
            origin: CodeOrigin::default(),
            stalled: None,
            stalled_for: Duration::ZERO,
            hook: None,
            unread_state: None,
            ended: false,
        }
    }

    /// The status to write, with secrets redacted in its free texts.
    pub(super) fn status(&self, redact: impl Fn(&str) -> String) -> TerraformRunStatus {
        let mut status = self.status.clone();
        if let Some((since, ends)) = self.stalled {
            let progress = status.progress.get_or_insert_default();
            progress.quiet_since = Some(whole_seconds(since));
            status.message = Some(report::quiet(
                status.phase.unwrap_or(Phase::Setup),
                since,
                progress.current.as_deref(),
                ends,
            ));
        }
        if let report::Commands::Cluster { .. } = self.settings.commands() {
            let step = status.next_step.as_deref().map(next_step::parts);
            (status.advice, status.next_step) = step.unwrap_or_default();
        }
        fields::texts(&mut status, |text, _, origin| {
            if origin == Origin::Printed {
                *text = redact(text);
            }
        });
        status
    }

    /// The checksum of this attempt's plan; empty before there is one.
    pub(super) fn checksum(&self) -> String {
        self.checksum.clone()
    }

    pub(super) fn adopt(
        &mut self,
        before: &TerraformRunStatus,
        adopted: Adopted,
        restores: bool,
        now: Timestamp,
    ) {
        self.status = before.clone();
        self.status
            .start_time
            .get_or_insert_with(|| whole_seconds(now));
        if restores || self.restores() {
            // The plan continues to wait until it is claimed.
            self.status.phase = Some(Phase::AwaitingApproval);
            self.status.message = Some("the plan is taken to where it was made".to_owned());
        } else {
            self.status.phase = Some(Phase::Setup);
            self.status.message = Some("the source is fetched and the tool found".to_owned());
        }
        self.status.next_step = None;
        // While the run goes on, a failure describes the newest attempt.
        self.status.failure = None;
        self.status.progress = None;
        self.status.state_lock = None;
        let text = self
            .settings
            .commands()
            .start(adopted.attempt, &self.settings.pod_name);
        self.status.history.push(report::line(
            Clocked {
                since: now,
                took: Duration::ZERO,
            },
            "Start",
            &text,
        ));
        self.status.adopted = Some(adopted);
    }

    pub(super) fn resume(
        &mut self,
        status: TerraformRunStatus,
        approval: Approval,
        origin: CodeOrigin,
        now: Timestamp,
    ) {
        self.status = status;
        (self.approval, self.origin) = (approval, origin);
        self.since = Some(now);
    }

    /// Whether the attempt restores an earlier attempt's plan.
    pub(super) fn restores(&self) -> bool {
        self.status
            .attempt
            .as_ref()
            .is_some_and(|attempt| attempt.restores.is_some())
    }

    /// Whether the plan outlives this pod.
    pub(super) fn is_stored(&self) -> bool {
        self.status
            .plan
            .as_ref()
            .is_some_and(|plan| plan.bundle.is_some())
    }

    /// This process's claim.
    pub(super) fn claimed(&self) -> Option<Claim> {
        self.status
            .claim
            .clone()
            .filter(|claim| claim.nonce == self.settings.nonce)
    }

    /// Expiry time of the plan.
    pub(super) fn expires(&self, now: Timestamp) -> Timestamp {
        let made = self
            .status
            .plan
            .as_ref()
            .and_then(|plan| plan.created_at.as_ref())
            .map_or(now, |at| at.0);
        made.checked_add(self.approval.expires_after.0)
            .unwrap_or(Timestamp::MAX)
    }

    /// Continues with the plan in the status, whichever process made it.
    pub(super) fn restore(&mut self) {
        self.checksum = self
            .status
            .plan
            .as_ref()
            .map(|plan| plan.checksum.clone())
            .unwrap_or_default();
    }

    pub(super) fn begin(&mut self, now: Timestamp) {
        self.since = Some(now);
        self.status.progress = None;
        self.stalled = None;
        self.stalled_for = Duration::ZERO;
    }

    /// Reports silence. The previous message is kept and returns with the next activity.
    pub(super) fn stalled(&mut self, since: Timestamp, ends: Option<Ends>) {
        self.stalled = Some((since, ends));
    }

    pub(super) const fn is_stalled(&self) -> bool {
        self.stalled.is_some()
    }

    pub(super) fn heard(&mut self) {
        self.stalled = None;
    }

    /// Records the silence before the command was asked to stop.
    pub(super) fn stalled_for(&mut self, lasted: Duration) {
        self.stalled_for = lasted;
    }

    fn clocked(&self, now: Timestamp) -> Clocked {
        let since = self.since.unwrap_or(now);
        Clocked {
            since,
            took: Duration::try_from(now.duration_since(since)).unwrap_or_default(),
        }
    }

    fn history(&mut self, phase: &str, text: &str, now: Timestamp) {
        let line = report::line(self.clocked(now), phase, text);
        self.status.history.push(line);
        // The schema's bound; `fit` enforces it again. The oldest lines are dropped.
        let extra = self.status.history.len().saturating_sub(48);
        self.status.history.drain(..extra);
    }

    pub(super) fn enter(&mut self, phase: Phase) {
        let message = match phase {
            Phase::Init => "init runs",
            Phase::Plan if self.checksum.is_empty() => "plan runs",
            Phase::Plan => "the plan is about to be claimed",
            _ => "",
        };
        self.status.phase = Some(phase);
        self.status.message = (!message.is_empty()).then(|| message.to_owned());
    }

    pub(super) fn unconfined(&mut self, now: Timestamp) {
        self.status.unconfined = true;
        self.history("Setup", UNCONFINED, now);
    }

    pub(super) fn setup_done(&mut self, setup: SetupReport, now: Timestamp) {
        self.history(
            "Setup",
            &format!("{}; {}, {}", setup.source, setup.tool, setup.why),
            now,
        );
        self.setup = setup;
    }

    pub(super) fn init_done(&mut self, init: &InitReport, now: Timestamp) {
        self.history(
            "Init",
            &format!("backend {}, workspace {}", init.backend, init.workspace),
            now,
        );
        if let Some(note) = &init.providers {
            self.history("Init", note, now);
        }
    }

    pub(super) fn planned(&mut self, plan: PlanReport, now: Timestamp) {
        let short: String = plan.checksum.chars().take(19).collect();
        self.checksum.clone_from(&plan.checksum);
        let summary = plan.counts.summary();
        self.status.state_lock = None;
        self.history("Plan", &format!("{summary}; {short}…"), now);
        if let Some(why) = &plan.unread {
            self.history(
                "Plan",
                &format!("{why}, and a person has to approve them"),
                now,
            );
        }
        if let Some(why) = &plan.other_state {
            let text = format!(
                "{why}; a person has to approve the plan, and its apply makes this state the stack's"
            );
            self.history("Plan", &text, now);
        }
        for note in &plan.notes {
            self.history("Recover", note, now);
        }
        self.status.progress = None;
        self.status.plan = Some(PlanStatus {
            checksum: plan.checksum,
            attempt: self.settings.attempt,
            summary,
            counts: plan.counts,
            tool: self.setup.tool.clone(),
            revision: self.setup.revision.clone(),
            created_at: Some(whole_seconds(now)),
            platform: Some(plan.platform),
            bundle: plan.bundle,
            state_key: plan.state_key,
            changes_digest: crds::changes_digest(&plan.lines),
            changes: plan.lines,
        });
    }

    pub(super) fn announce_hold(&mut self, now: Timestamp) {
        let until = self.expires(now);
        let held = if self.is_stored() {
            Held::Until(
                now.checked_add(self.approval.hold_for.0)
                    .unwrap_or(until)
                    .min(until),
            )
        } else {
            Held::All
        };
        self.status.message = Some(self.waits(until, held));
        self.status.next_step = Some(match self.stale {
            Some(_) => names::replan_command(&self.settings.namespace, &self.settings.run),
            None => self.settings.commands().approve(&self.checksum),
        });
    }

    /// Records the controller's message on the state that the plan is based on.
    pub(super) fn stale(&mut self, said: Option<&str>) {
        self.stale = said.map(str::to_owned);
    }

    /// The message of a waiting plan, with warnings if any.
    fn waits(&self, until: Timestamp, held: Held) -> String {
        let text = self
            .settings
            .commands()
            .awaiting(&self.summary(), until, held);
        let caution = self.status.plan.as_ref().and_then(PlanStatus::caution);
        caution
            .into_iter()
            .chain(self.stale.clone())
            .fold(text, |text, caution| format!("{text}; {caution}"))
    }

    /// The plan is approved and queued for the lease, or waits for its approval again.
    pub(super) fn turn(&mut self, behind: Option<&str>, now: Timestamp) {
        match behind {
            Some(behind) => {
                self.status.message =
                    Some(format!("plan {} is approved; {behind}", self.summary()));
                self.status.next_step = None;
            }
            None => self.announce_hold(now),
        }
    }

    pub(super) fn awaiting(&mut self, now: Timestamp) {
        self.since = Some(now);
    }

    pub(super) fn claim(&mut self, claim: Claim, now: Timestamp, approver: Option<&str>) {
        self.before_claim = Some(self.status.clone());
        if let Some(by) = approver {
            self.history("Approved", &format!("by {by}"), now);
        } else {
            // Without a wait, `since` is the plan's beginning.
            self.since = Some(now);
            let (title, text) = self.settings.commands().unasked();
            self.history(title, text, now);
        }
        self.status.phase = Some(Phase::Apply);
        self.status.message = Some("apply runs".to_owned());
        self.status.next_step = None;
        self.status.claim = Some(claim);
        self.since = Some(now);
    }

    pub(super) fn unclaim(&mut self) {
        if let Some(before) = self.before_claim.take() {
            self.status = before;
        }
    }

    pub(super) fn applied(&mut self, apply: &ApplyReport) {
        let total = self
            .status
            .progress
            .as_ref()
            .map_or(apply.done, |p| p.total);
        self.status.state_lock = None;
        self.status.progress = Some(Progress {
            done: apply.done,
            total,
            current: None,
            quiet_since: None,
        });
        self.unread_state.clone_from(&apply.unread);
    }

    pub(super) fn progress(&mut self, progress: Progress) {
        // A tool that works on objects holds the lock.
        if self.status.state_lock.take().is_some() {
            self.status.message = Some(format!("{} runs", self.locking()));
        }
        self.status.progress = Some(progress);
    }

    /// The step that takes the state's lock.
    fn locking(&self) -> &'static str {
        if self.status.phase == Some(Phase::Apply) {
            "apply"
        } else {
            "plan"
        }
    }

    /// Records the holder of the state's lock. Returns whether it is new.
    pub(super) fn locked(&mut self, lock: StateLock) -> bool {
        let since = lock
            .created
            .as_ref()
            .map(|at| format!(" since {at}"))
            .unwrap_or_default();
        self.status.message = Some(format!(
            "{} waits for the state, which is locked by {}{since} (lock {})",
            self.locking(),
            lock.who,
            lock.id
        ));
        let news = self.status.state_lock.as_ref() != Some(&lock);
        self.status.state_lock = Some(lock);
        news
    }

    pub(super) fn unlocked(&mut self, text: &str, now: Timestamp) {
        self.status.state_lock = None;
        self.status.message = Some(format!("{} runs", self.locking()));
        self.history("Unlock", text, now);
    }

    pub(super) fn step_started(&mut self, name: &str, at: Timestamp) {
        // Attempts of a command that waits for a lock count as one step.
        let again = |s: &Step| {
            s.name == name
                && s.attempt == self.settings.attempt
                && s.exit_code.is_some_and(|code| code != 0)
        };
        if self.status.state_lock.is_some() && self.status.steps.last().is_some_and(again) {
            self.status.steps.pop();
        }
        let step = Step {
            name: name.into(),
            attempt: self.settings.attempt,
            started_at: whole_seconds(at),
            finished_at: None,
            exit_code: None,
            newer: BTreeMap::new(),
        };
        self.status.steps.push(step);
        let extra = self.status.steps.len().saturating_sub(32);
        self.status.steps.drain(..extra);
    }

    pub(super) fn step_ended(&mut self, name: &str, at: Timestamp, code: i32) {
        let open = |s: &&mut Step| {
            s.name == name && s.finished_at.is_none() && s.attempt == self.settings.attempt
        };
        if let Some(step) = self.status.steps.iter_mut().rev().find(open) {
            step.finished_at = Some(whole_seconds(at));
            step.exit_code = Some(code);
        }
    }

    pub(super) const fn result(&self) -> Option<RunResult> {
        self.status.result
    }

    /// Records the account of the apply's objects.
    pub(super) fn journal(&mut self, journal: Journal) {
        self.status.journal = Some(journal);
    }

    pub(super) fn failed(&mut self, failure: Failure) {
        self.failure = Some(failure);
    }

    fn summary(&self) -> String {
        self.status
            .plan
            .as_ref()
            .map(|p| p.summary.clone())
            .unwrap_or_default()
    }
}
