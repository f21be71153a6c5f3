//! Tests of the decision by tables: every row of the protocol, in a test double that applies decisions as the cluster would.

mod approvals;
mod beginnings;
mod effects;
mod ends;
mod journal;
mod kept;
mod late;
mod leases;
mod left;
mod newer;
mod nodes;
mod slots;
mod steady;

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::{Value, json};

use crds::{
    Adopted, Attempt, Changed, Claim, Failure, FailureClass, Phase, PlanStatus, RunResult,
    TerraformRun, TerraformRunStatus,
    conditions::{self, APPROVED, FINISHED, PLANNED, STALLED, STATE_LEASED, SUCCEEDED},
    names,
    termination::TerminationMessage,
    whole_seconds,
};

use super::{
    decide::{
        begin_attempt::{refused_again, source_wait},
        late_result::asked_again,
        stale_lock,
        state_queue::refused,
    },
    execute::pod::refusal,
    *,
};
use crate::{
    policies::missing::Missing,
    run_requests,
    settings::Settings,
    slots::{Full, Slot},
    testing::{NONCE, POD, UID, has, merge, run, t0},
};

pub(super) const SUM: &str =
    "sha256:1111111111111111111111111111111111111111111111111111111111111111";
pub(super) const OTHER: &str =
    "sha256:2222222222222222222222222222222222222222222222222222222222222222";

/// A run, its pod, and the controller's memory.
#[derive(Clone)]
pub(super) struct World {
    /// The run as the API server returns it.
    pub(super) run: Box<TerraformRun>,
    /// The other observations.
    pub(super) o: Box<Observed>,
    pub(super) settings: Settings,
    pub(super) now: Timestamp,
    pub(super) events: Vec<&'static str>,
    /// Status writes.
    pub(super) writes: Vec<Kind>,
    /// The result that the datastore has.
    pub(super) stored: Option<TerminationMessage>,
    /// Why the datastore has not the revision.
    pub(super) source: Option<WaitReason>,
    /// The journal that the datastore answers with; `None` while the datastore is unavailable.
    pub(super) journal: Option<crds::Journal>,
    /// The number of questions to the datastore.
    pub(super) asked: u32,
    /// The result of taking a Lease.
    pub(super) lease: crate::state_queue::lease::Taken,
    /// Why a request for a slot finds none.
    pub(super) full: Option<Full>,
    /// The holder that a lookup of the lock finds.
    pub(super) lock_holder: LockHolder,
    pub(super) nodes: Result<(), String>,
    /// The datastore's answer to a release of the lock that the run left, and the number of such requests.
    pub(super) unlock: Result<(), String>,
    pub(super) unlocks: u32,
    /// The run's finalizer was removed, or the run deleted.
    pub(super) gone: bool,
}

impl World {
    /// A Manual run that was just created.
    pub(super) fn new() -> Self {
        let o = Observed {
            run_live: true,
            pod: PodState::Absent,
            pod_live: true,
            policies: Enforcement::Enforced,
            ..Observed::of(RunView::live(Arc::new(run())))
        };
        Self {
            run: Box::new(run()),
            o: Box::new(o),
            settings: Settings::default(),
            now: t0(),
            events: Vec::new(),
            writes: Vec::new(),
            gone: false,
            stored: None,
            source: None,
            journal: Some(crds::Journal {
                compared: true,
                ..crds::Journal::default()
            }),
            asked: 0,
            lease: crate::state_queue::lease::Taken::Yes,
            full: None,
            nodes: Ok(()),
            unlock: Ok(()),
            unlocks: 0,
            lock_holder: LockHolder::Unknown,
        }
    }

    /// The same in Automatic mode.
    pub(super) fn automatic() -> Self {
        Self::new().with(|run| run.spec.approval.mode = crds::ApprovalMode::Automatic)
    }

    /// An Automatic run whose agent has claimed its apply.
    pub(super) fn applying() -> Self {
        Self::automatic().claimed()
    }

    /// The same, ended by its agent, whose pod has ended as well.
    pub(super) fn ended(result: RunResult) -> Self {
        Self::applying().finished(result).pod_ended(None)
    }

    pub(super) fn with(mut self, change: impl FnOnce(&mut TerraformRun)) -> Self {
        change(&mut self.run);
        self
    }

    pub(super) fn status_mut(&mut self) -> &mut TerraformRunStatus {
        self.run.status.get_or_insert_default()
    }

    pub(super) fn status(&self) -> &TerraformRunStatus {
        static EMPTY: std::sync::LazyLock<TerraformRunStatus> =
            std::sync::LazyLock::new(TerraformRunStatus::default);
        self.run.status.as_ref().unwrap_or(&EMPTY)
    }

    pub(super) fn annotate(mut self, key: &str, value: &str) -> Self {
        self.run
            .metadata
            .annotations
            .get_or_insert_default()
            .insert(key.into(), value.into());
        self
    }

    pub(super) fn deleted(self) -> Self {
        self.with(|run| run.metadata.deletion_timestamp = Some(whole_seconds(t0())))
    }

    /// An attempt is open and its pod runs.
    pub(super) fn opened(mut self) -> Self {
        self.settle();
        assert!(
            matches!(self.o.pod, PodState::Present(_)),
            "the pod was created"
        );
        self
    }

    /// Its agent has adopted it and reached a phase.
    pub(super) fn adopted(mut self, phase: Phase) -> Self {
        self = self.opened();
        let attempt = self.attempt().number;
        let status = self.status_mut();
        status.adopted = Some(Adopted {
            attempt,
            pod_uid: POD.into(),
            nonce: NONCE.into(),
            node_name: None,
            version: None,
        });
        status.phase = Some(phase);
        (status.failure, status.next_step) = (None, None);
        let restores = status.attempt.as_ref().and_then(|attempt| attempt.restores);
        if matches!(phase, Phase::AwaitingApproval | Phase::Apply) && restores.is_none() {
            status.plan = Some(PlanStatus {
                checksum: SUM.into(),
                attempt,
                summary: "+1 ~0 -0".into(),
                ..PlanStatus::default()
            });
        }
        self
    }

    /// Its plan waits, and the datastore has a copy.
    pub(super) fn kept(mut self) -> Self {
        self = self.adopted(Phase::AwaitingApproval);
        let at = whole_seconds(self.now);
        if let Some(plan) = &mut self.status_mut().plan {
            (plan.bundle, plan.created_at) = (Some(OTHER.into()), Some(at));
        }
        self
    }

    pub(super) fn claimed(self) -> Self {
        self.adopted(Phase::Apply).claims()
    }

    /// The agent of the attempt claims the apply.
    pub(super) fn claims(mut self) -> Self {
        let (attempt, at) = (self.attempt().number, whole_seconds(self.now));
        let status = self.status_mut();
        status.phase = Some(Phase::Apply);
        status.claim = Some(Claim {
            checksum: SUM.into(),
            attempt,
            pod_uid: POD.into(),
            nonce: NONCE.into(),
            at,
        });
        self
    }

    /// Its agent has ended the run.
    pub(super) fn finished(mut self, result: RunResult) -> Self {
        let at = whole_seconds(self.now);
        let status = self.status_mut();
        (status.phase, status.result, status.completion_time) =
            (Some(result.phase()), Some(result), Some(at));
        self
    }

    /// The pod ended, with or without a termination message.
    pub(super) fn pod_ended(mut self, message: Option<TerminationMessage>) -> Self {
        if let PodState::Present(pod) = &mut self.o.pod {
            pod.ended = Some(Ended {
                message,
                reason: crds::reason::POD_LOST,
                text: "pod ended".into(),
            });
        }
        self
    }

    /// The pod ended, and its process reports this result.
    pub(super) fn reports(self, result: RunResult) -> Self {
        self.pod_ended(Some(message(Some(result), None)))
    }

    /// The pod ended, and its process reports this failure.
    pub(super) fn fails(self, class: FailureClass) -> Self {
        self.pod_ended(Some(message(None, Some(failure(class)))))
    }

    /// The pod ended by itself, with nothing to report.
    pub(super) fn exits(self) -> Self {
        self.pod_ended(Some(message(None, None)))
    }

    pub(super) fn withdrawn(self) -> Self {
        self.with(|run| run.metadata.annotations = None)
    }

    pub(super) fn pod_gone(mut self) -> Self {
        self.o.pod = PodState::Absent;
        self
    }

    pub(super) fn attempt(&self) -> &Attempt {
        self.status().attempt.as_ref().unwrap()
    }

    pub(super) fn later(mut self, seconds: i64) -> Self {
        self.now = self
            .now
            .checked_add(SignedDuration::from_secs(seconds))
            .unwrap();
        self
    }

    /// The observation: the whole run, or its cached form.
    pub(super) fn seen(&self) -> Observed {
        let mut run = self.run.clone();
        let run = if self.o.run_live {
            RunView::live(Arc::from(run))
        } else {
            cached_run::trim(&mut run);
            RunView::cached(&run)
        };
        let mut seen = Observed {
            run,
            ..(*self.o).clone()
        };
        if seen.run.asked.is_some() {
            // As `observe` does.
            seen.notes.asked_at.get_or_insert(self.now);
        }
        seen
    }

    pub(super) fn decide(&self) -> Decision {
        decide(&self.seen(), &self.settings, self.now)
    }

    /// Settles, and returns the world.
    #[track_caller]
    pub(super) fn settled(mut self) -> Self {
        self.settle();
        self
    }

    /// Settles without a status write: a condition is reported once.
    #[track_caller]
    pub(super) fn settled_silently(mut self) -> Self {
        let writes = self.writes.len();
        self.settle();
        assert_eq!(self.writes.len(), writes, "a status was written again");
        self
    }

    /// Applies the status write that the decision ends with.
    #[track_caller]
    pub(super) fn first_write(mut self) -> Self {
        let Some(Action::Write(write)) = self.decide().actions.pop() else {
            panic!("no write")
        };
        self.apply(&Action::Write(write));
        self
    }

    /// The API server refused the pod of the opened attempt.
    pub(super) fn without_pod(mut self) -> Self {
        self.status_mut().attempt.as_mut().unwrap().pod_uid = None;
        self.o.notes.created = None;
        self.pod_gone()
    }

    /// The probe found for five seconds that the policies are not enforced.
    pub(super) fn not_enforced(mut self, missing: Missing) -> Self {
        let retry_at = self.now.checked_add(SignedDuration::from_secs(5)).unwrap();
        self.o.policies = Enforcement::NotEnforced { missing, retry_at };
        self
    }

    pub(super) fn with_datastore(mut self) -> Self {
        self.settings.datastore_url = Some("https://datastore".into());
        self
    }

    /// A person approves the plan.
    pub(super) fn approve(self) -> Self {
        self.annotate(names::APPROVE, SUM)
            .annotate(names::APPROVED_BY, "alice")
    }

    /// Its plan names the state that it changes.
    pub(super) fn planned_on(mut self, key: &str) -> Self {
        let attempt = self.attempt().number;
        let new = || PlanStatus {
            checksum: SUM.into(),
            attempt,
            ..PlanStatus::default()
        };
        self.status_mut().plan.get_or_insert_with(new).state_key = Some(key.into());
        self
    }

    /// The hold has ended: the plan waits without a pod.
    pub(super) fn unheld(self) -> Self {
        self.exits().settled().pod_gone()
    }

    pub(super) fn condition(&self, type_: &str) -> (String, String) {
        let condition = self.status().conditions.iter().find(|c| c.type_ == type_);
        condition
            .map(|c| (c.status.clone(), c.reason.clone()))
            .unwrap_or_default()
    }

    #[track_caller]
    pub(super) fn whole_condition(&self, type_: &str) -> &Condition {
        self.status()
            .conditions
            .iter()
            .find(|c| c.type_ == type_)
            .unwrap()
    }

    pub(super) fn phase(&self) -> Option<Phase> {
        self.status().phase
    }

    pub(super) fn result(&self) -> Option<RunResult> {
        self.status().result
    }

    pub(super) fn message(&self) -> &str {
        self.status().message.as_deref().unwrap_or_default()
    }

    pub(super) fn next_step(&self) -> String {
        self.status().step().unwrap_or_default()
    }

    #[track_caller]
    pub(super) fn failure(&self) -> &Failure {
        self.status().failure.as_ref().unwrap()
    }

    /// The phase, and whether the attempt is open.
    pub(super) fn at(&self) -> (Option<Phase>, bool) {
        (self.phase(), self.attempt().open)
    }

    /// The result, and whether the attempt is open.
    pub(super) fn end(&self) -> (Option<RunResult>, bool) {
        (self.result(), self.attempt().open)
    }

    pub(super) fn has_lease(&self) -> bool {
        self.status().lease.is_some()
    }

    pub(super) fn is_approved(&self) -> bool {
        self.status().approval.is_some()
    }

    /// Number of the attempt, its try, and whether it is open.
    pub(super) fn counts(&self) -> (u32, u32, bool) {
        let attempt = self.attempt();
        (attempt.number, attempt.tries, attempt.open)
    }

    /// Number of Events with this reason.
    pub(super) fn reported(&self, reason: &str) -> usize {
        self.events.iter().filter(|event| **event == reason).count()
    }

    /// Number of status writes of this kind.
    pub(super) fn written(&self, kind: Kind) -> usize {
        self.writes.iter().filter(|write| **write == kind).count()
    }

    #[track_caller]
    pub(super) fn pod(&self) -> &PodView {
        let PodState::Present(pod) = &self.o.pod else {
            panic!("no pod")
        };
        pod
    }

    #[track_caller]
    pub(super) fn pod_mut(&mut self) -> &mut PodView {
        let PodState::Present(pod) = &mut self.o.pod else {
            panic!("no pod")
        };
        pod
    }
}

/// The termination message of the process that adopted attempt 1.
pub(super) fn message(result: Option<RunResult>, failure: Option<Failure>) -> TerminationMessage {
    TerminationMessage {
        run_uid: UID.into(),
        attempt: 1,
        pod_uid: POD.into(),
        nonce: NONCE.into(),
        result,
        message: "what the agent said".into(),
        failure,
        unkept: None,
    }
}

pub(super) fn failure(class: FailureClass) -> Failure {
    Failure::new(class, "ProviderUnreachable", "no route", Changed::None)
}

/// A pod that does not start for this reason.
pub(super) fn trouble(reason: &'static str) -> Trouble {
    Trouble {
        reason,
        text: json!({"because": reason}).to_string(),
    }
}

pub(super) fn is_true(reason: &str) -> (String, String) {
    ("True".into(), reason.into())
}

pub(super) fn is_false(reason: &str) -> (String, String) {
    ("False".into(), reason.into())
}

/// Termination messages that do not prove the end of a claimed apply: no message, that of another process, or a result that no claimed run
/// can have.
pub(super) fn no_results() -> [Option<TerminationMessage>; 8] {
    [
        None,
        Some(message(None, None)),
        Some(TerminationMessage {
            nonce: "f".repeat(32),
            ..message(Some(RunResult::Applied), None)
        }),
        Some(TerminationMessage {
            pod_uid: "other".into(),
            ..message(Some(RunResult::Applied), None)
        }),
        Some(TerminationMessage {
            attempt: 2,
            ..message(Some(RunResult::Applied), None)
        }),
        Some(TerminationMessage {
            run_uid: "other".into(),
            ..message(Some(RunResult::Applied), None)
        }),
        Some(message(Some(RunResult::Canceled), None)),
        Some(message(Some(RunResult::NoChanges), None)),
    ]
}
