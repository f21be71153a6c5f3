//! A state of the model: the run as the API has it, pods, agents at work, and what two controllers have seen.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use controller::run::{Ended, PodView};
use crds::{
    ApprovalMode, Failure, FailureClass, RunResult, TerraformRun, TerraformRunStatus, names, reason,
    termination::TerminationMessage,
};
use played::trace::{self, Deed, Deeds, Step};
use played::{User, admission, patch::merge, schema};
use runner_agent::machine::{Effect, State};
use serde::Deserialize;
use serde_json::{Value, json};

pub(crate) const UID: &str = "0b9c1a4e-1f7e-4c07-9d43-2a1f35e3b8aa";

/// A run, with a fingerprint.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub object: Arc<Value>,
    pub typed: Arc<TerraformRun>,
    print: u64,
}

impl PartialEq for Run {
    fn eq(&self, other: &Self) -> bool {
        self.print == other.print
    }
}

impl Hash for Run {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.print.hash(state);
    }
}

impl Run {
    pub(crate) fn of(object: Value) -> Self {
        let typed = TerraformRun::deserialize(&object).unwrap();
        let mut hasher = DefaultHasher::new();
        object.to_string().hash(&mut hasher);
        Self { object: Arc::new(object), typed: Arc::new(typed), print: hasher.finish() }
    }

    pub(crate) fn status(&self) -> TerraformRunStatus {
        self.typed.status.clone().unwrap_or_default()
    }
}

/// What a run is asked for with.
pub(crate) fn fresh(mode: ApprovalMode) -> Run {
    let mut object = json!({"apiVersion": "pawl.run/v1alpha1", "kind": "TerraformRun",
        "metadata": {"name": "net", "namespace": "team", "uid": UID, "resourceVersion": "1", "generation": 1},
        "spec": {"source": {"inline": {"files": {"main.tf": ""}}}, "approval": {"mode": mode}, "retry": {"limit": 1}}});
    schema::shape(&mut object).unwrap();
    Run::of(object)
}

#[derive(Clone, Debug, Default, PartialEq, Hash)]
pub(crate) struct Pod {
    pub there: bool,
    pub held: bool,
    pub deleting: bool,
    pub ended: bool,
    /// What its agent left, when it ended.
    pub said: Option<Said>,
}

/// A termination message, as far as it matters.
#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) struct Said {
    pub result: Option<RunResult>,
    pub failed: bool,
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) struct Agent {
    pub alive: bool,
    pub state: State,
    /// The write that is under way.
    pub pending: Option<Effect>,
    /// The work that is under way.
    pub running: Option<Effect>,
    pub levels: Levels,
    pub told: bool,
    pub interrupts: u8,
    pub said: Option<Said>,
}

/// What an agent knows of its run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Levels {
    pub fenced: bool,
    pub cancelled: bool,
    pub deleted: bool,
    pub approved: bool,
    pub leased: bool,
}

/// What a controller has seen, and not yet acted upon.
#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) struct Seen {
    pub run: Run,
    pub pod: Option<(usize, Pod)>,
    pub live: bool,
    /// It has taken the lease on the state, and not recorded it.
    pub leased: bool,
}

/// What may still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    pub approve: u8,
    pub withdraw: u8,
    pub cancel: u8,
    pub delete: u8,
    /// Replies that are lost.
    pub lost: u8,
    /// Deaths of agents.
    pub crash: u8,
    /// Pods that are taken away by force while their process lives on.
    pub force: u8,
    /// Looks at an older version.
    pub stale: u8,
    /// Times that two minutes pass.
    pub ticks: u8,
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) struct World {
    pub run: Option<Run>,
    /// The version before, as a late watch has it.
    pub before: Option<Run>,
    pub pods: [Pod; 2],
    pub agents: [Option<Agent>; 2],
    pub seen: [Option<Seen>; 2],
    /// Attempts whose pod each controller has created itself.
    pub created: [u8; 2],
    pub left: Budget,
    /// Another run has the lease on the state.
    pub behind: bool,
    /// Hooks run before the apply, and at every end.
    pub hooks: bool,
    pub now: u8,
    pub deeds: Deeds,
    pub wrong: Option<&'static str>,
}

pub(crate) fn pod_name(attempt: usize) -> String {
    names::attempt_name("net", UID, u32::try_from(attempt).unwrap() + 1)
}

pub(crate) fn nonce(attempt: usize) -> String {
    format!("{attempt:032x}")
}

pub(crate) fn state_key() -> String {
    "a".repeat(64)
}

pub(crate) fn sum(attempt: usize) -> String {
    format!("sha256:{attempt:064x}")
}

pub(crate) fn agent_user(attempt: usize) -> User {
    User::pod("team", &pod_name(attempt), &format!("pod-{attempt}"))
}

impl World {
    /// Puts a new version in place of the run. Words for people are no part of the state.
    pub(crate) fn put(&mut self, mut object: Value) {
        if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
            for field in ["message", "nextStep", "history", "observedGeneration", "startTime", "completionTime"] {
                status.remove(field);
            }
            for condition in status.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten() {
                condition["message"] = "".into();
            }
            if let Some(failure) = status.get_mut("failure") {
                failure["message"] = "x".into();
            }
        }
        let fresh = Run::of(object);
        if self.run.as_ref() != Some(&fresh) {
            self.before = self.run.replace(fresh);
        }
    }

    /// A write of the status, as the API server judges it. Whether it landed.
    pub(crate) fn commit(&mut self, user: &User, patch: &Value) -> bool {
        let Some(run) = self.run.clone() else { return false };
        let mut new = (*run.object).clone();
        merge(&mut new, &json!({"status": patch}));
        let fine = schema::shape_status(&mut new).is_ok()
            && schema::rules(Some(&run.object), &new).is_ok()
            && admission::admit(user, Some(&run.object), &new, true).is_ok();
        if fine {
            self.put(new);
            if let Some(after) = &self.run {
                let (before, by) = (Some(&*run.typed), Some(&user.writer()));
                let found = trace::step(&Step { before, after: &after.typed, by, whole: true });
                self.wrong = self.wrong.or(found.first().map(|(invariant, _)| *invariant));
            }
        }
        fine
    }

    pub(crate) fn deed(&mut self, deed: Deed) {
        let result = self.run.as_ref().and_then(|run| run.status().result);
        let found = self.deeds.add(deed, result);
        self.wrong = self.wrong.or(found.first().map(|(invariant, _)| *invariant));
    }

    /// The pod of the newest attempt as a controller sees it.
    pub(crate) fn pod_of(&self, run: &Run) -> Option<(usize, Pod)> {
        let number = run.typed.status.as_ref()?.attempt.as_ref()?.number;
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        let pod = self.pods.get(index)?.clone();
        pod.there.then_some((index, pod))
    }
}

/// What a controller reads of a pod.
pub(crate) fn view(attempt: usize, pod: &Pod) -> PodView {
    let message = pod.said.as_ref().map(|said| TerminationMessage {
        run_uid: UID.into(),
        attempt: u32::try_from(attempt).unwrap() + 1,
        pod_uid: format!("pod-{attempt}"),
        nonce: nonce(attempt),
        result: said.result,
        message: "x".into(),
        failure: said.failed.then(failure),
        unkept: None,
    });
    PodView {
        name: pod_name(attempt),
        uid: format!("pod-{attempt}"),
        attempt: u32::try_from(attempt).unwrap() + 1,
        run: "net".into(),
        run_uid: UID.into(),
        node: None,
        tolerates: None,
        held: pod.held,
        deleting: pod.deleting,
        started: true,
        ended: pod.ended.then(|| Ended { message, reason: reason::POD_LOST, text: "x".into() }),
        trouble: None,
    }
}

pub(crate) fn failure() -> Failure {
    Failure {
        class: FailureClass::Interrupted,
        reason: reason::TERMINATED.into(),
        message: "x".into(),
        changes: crds::Changed::Unknown,
        diagnostics: Vec::new(),
    }
}
