//! Test double of an API server with one layer, its repository and its runs, which carries out decisions.

mod conditions;
mod decisions;
mod deletion;
mod drift;
mod endings;
mod faults;
mod index;
mod orders;
mod people;
mod requesters;
mod settings;

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use serde_json::{Value, json};

use crds::{
    LayerState, RunResult, TerraformLayer, TerraformLayerStatus, TerraformRepository, TerraformRun,
    names, version,
};

use super::{Action, Decision, Namespace, Observed, Refused, RunSummary, decide};
use crate::testing::{merge, t0};

/// A layer and its surroundings.
pub(super) struct World {
    pub(super) layer: TerraformLayer,
    pub(super) repository: Option<TerraformRepository>,
    pub(super) runs: Vec<TerraformRun>,
    pub(super) now: Timestamp,
    pub(super) started: Timestamp,
    pub(super) owner: Option<(String, String)>,
    pub(super) namespace: Namespace,
    pub(super) refused: Option<Refused>,
    /// Names of all runs ever created.
    pub(super) made: Vec<String>,
    /// Number of writes: status, finalizers, annotations.
    pub(super) writes: usize,
    /// The newest Event.
    pub(super) told: String,
}

pub(super) fn is(status: &str, reason: &str) -> (String, String) {
    (status.into(), reason.into())
}

pub(super) fn digest(of: &str) -> String {
    format!(
        "sha256:{}",
        of.repeat(64).chars().take(64).collect::<String>()
    )
}

pub(super) fn sha(of: u8) -> String {
    format!("{of:02x}").repeat(20)
}

impl World {
    /// A layer whose repository is not fetched yet.
    pub(super) fn new() -> Self {
        let layer = json!({"metadata": {"name": "net", "namespace": "team", "uid": "layer-uid", "resourceVersion": "1", "generation": 1,
            "creationTimestamp": t0()}, "spec": {"repository": {"name": "infra"}, "path": "live/net"}});
        let repository = json!({"metadata": {"name": "infra", "namespace": "team", "uid": "repository-uid"},
            "spec": {"url": "https://git.example.com/infra"}});
        Self {
            layer: serde_json::from_value(layer).unwrap(),
            repository: Some(serde_json::from_value(repository).unwrap()),
            runs: Vec::new(),
            now: t0(),
            started: t0(),
            owner: None,
            namespace: Namespace::Stays,
            refused: None,
            made: Vec::new(),
            writes: 0,
            told: String::new(),
        }
    }

    /// A layer whose commit 1 is applied.
    pub(super) fn applied() -> Self {
        let mut world = Self::begun();
        world.waits(1).ends(RunResult::Applied).settle();
        world
    }

    /// Merges a patch into the layer.
    pub(super) fn with(mut self, patch: &Value) -> Self {
        self.change(patch);
        self
    }

    pub(super) fn change(&mut self, patch: &Value) -> &mut Self {
        let mut layer = serde_json::to_value(&self.layer).unwrap();
        merge(&mut layer, patch);
        self.layer = serde_json::from_value(layer).unwrap();
        if patch.get("spec").is_some() {
            *self.layer.metadata.generation.as_mut().unwrap() += 1;
        }
        self.touched();
        self
    }

    fn touched(&mut self) {
        let version = version(&self.layer.metadata);
        self.layer.metadata.resource_version = Some((version + 1).to_string());
    }

    /// Writes `source` as `controller sources` does.
    pub(super) fn commit(mut self, revision: u8, content: &str) -> Self {
        self.pushed(revision, content);
        self
    }

    pub(super) fn pushed(&mut self, revision: u8, content: &str) -> &mut Self {
        let source = json!({"of": "main\nlive/net\n-", "revision": sha(revision), "content": digest(content)});
        self.change(&json!({"status": {"source": source}}))
    }

    pub(super) fn annotate(&mut self, name: &str, value: &str) -> &mut Self {
        self.change(&json!({"metadata": {"annotations": {name: value}}}))
    }

    pub(super) fn later(&mut self, minutes: i64) -> &mut Self {
        self.now += SignedDuration::from_mins(minutes);
        self
    }

    pub(super) fn status(&self) -> TerraformLayerStatus {
        self.layer.status.clone().unwrap_or_default()
    }

    pub(super) fn next_step(&self) -> String {
        self.status().step().unwrap_or_default()
    }

    pub(super) fn waits_for(&self) -> String {
        self.status().waits_for.unwrap_or_default()
    }

    pub(super) fn state(&self) -> Option<LayerState> {
        self.status().state
    }

    pub(super) fn condition(&self, type_: &str) -> (String, String) {
        let all = self.status().conditions;
        all.into_iter()
            .find(|c| c.type_ == type_)
            .map(|c| (c.status, c.reason))
            .unwrap_or_default()
    }

    pub(super) fn observe(&self) -> Observed {
        let mut runs: Vec<_> = self
            .runs
            .iter()
            .filter_map(RunSummary::of)
            .map(|(_, run)| run)
            .collect();
        runs.sort_by(|a, b| a.age().cmp(&b.age()));
        Observed {
            layer: Arc::new(self.layer.clone()),
            repository: self.repository.clone().map(Arc::new),
            runs,
            owner: self.owner.clone(),
            namespace: self.namespace.clone(),
            started: self.started,
            refused: self.refused.clone(),
            changes: None,
        }
    }

    pub(super) fn decide(&self) -> Decision {
        let mut o = self.observe();
        let decision = decide(&o, self.now);
        if let [Action::Read { run }] = decision.actions.as_slice() {
            let lines = self
                .runs
                .iter()
                .find(|r| r.name_any() == *run)
                .and_then(|run| run.status.as_ref()?.plan.clone());
            o.changes = Some((
                run.clone(),
                lines.map(|plan| plan.changes).unwrap_or_default(),
            ));
            return decide(&o, self.now);
        }
        decision
    }

    pub(super) fn due(&self) -> String {
        let actions = self.decide().actions;
        actions
            .into_iter()
            .find_map(|a| {
                if let Action::Create(run) = a {
                    Some(run.name)
                } else {
                    None
                }
            })
            .expect("none is due")
    }

    /// Carries out the first `steps` writes of a decision; the first is the status. Returns whether anything changed.
    pub(super) fn act(&mut self, decision: Decision, steps: usize) -> bool {
        let mut changed = false;
        if steps > 0 && self.status() != decision.status {
            self.layer.status = Some(decision.status);
            self.touched();
            self.writes += 1;
            changed = true;
            self.told = decision
                .notes
                .into_iter()
                .map(|note| note.text)
                .next_back()
                .unwrap_or(std::mem::take(&mut self.told));
            match Some(self.next_step()).filter(|step| !step.is_empty()) {
                Some(step) => assert!(
                    self.told.ends_with(&format!("; next step: {step}")),
                    "{} in place of {step}",
                    self.told
                ),
                None => assert!(
                    !self.told.contains("next step"),
                    "nothing is to be done, but: {}",
                    self.told
                ),
            }
        }
        for action in decision.actions.into_iter().take(steps.saturating_sub(1)) {
            changed |= self.carry_out(action);
        }
        changed
    }

    fn carry_out(&mut self, action: Action) -> bool {
        match action {
            Action::Read { .. } => return false,
            Action::AddFinalizer => {
                _ = self.change(&json!({"metadata": {"finalizers": [names::LAYER_FINALIZER]}}));
            }
            Action::RemoveFinalizer => _ = self.change(&json!({"metadata": {"finalizers": []}})),
            Action::TakeAsk { token } => _ = self.annotate(names::PLAN, &token),
            Action::Create(run) => {
                if self.runs.iter().any(|there| there.name_any() == run.name) {
                    return false;
                }
                let mut object = run.object;
                assert_eq!(
                    object["metadata"]["labels"][names::LABEL_LAYER_UID],
                    "layer-uid"
                );
                object["metadata"]["uid"] = format!("{}-{}", run.name, self.made.len()).into();
                object["metadata"]["creationTimestamp"] = json!(self.now);
                self.made.push(run.name);
                self.runs.push(serde_json::from_value(object).unwrap());
                // Creation times have whole seconds; each run of a test gets its own.
                self.now += SignedDuration::from_secs(1);
            }
            Action::Supersede { run, why, .. } => {
                let run = self
                    .runs
                    .iter_mut()
                    .find(|there| there.name_any() == run)
                    .unwrap();
                run.annotations_mut().insert(names::CANCEL.into(), why);
            }
            Action::Delete { run, .. } => {
                let ended = |run: &TerraformRun| {
                    run.status
                        .as_ref()
                        .is_some_and(crds::TerraformRunStatus::is_terminal)
                };
                assert!(
                    self.runs
                        .iter()
                        .any(|there| there.name_any() == run && ended(there)),
                    "{run} works, and was deleted"
                );
                self.runs.retain(|there| there.name_any() != run);
            }
        }
        true
    }

    /// Decides and acts until nothing changes. Cancelled runs end meanwhile.
    pub(super) fn settle(&mut self) -> &mut Self {
        for _ in 0..20 {
            let decision = self.decide();
            let changed = self.act(decision, usize::MAX);
            if !(self.cancelled() || changed) {
                return self;
            }
        }
        panic!("no rest: {:#?}", self.decide());
    }

    pub(super) fn settled(mut self) -> Self {
        self.settle();
        self
    }

    /// A layer whose first commit has a run.
    pub(super) fn begun() -> Self {
        Self::new().commit(1, "a").settled()
    }

    /// The run that plans this content, by its annotation.
    pub(super) fn content(&self) -> &str {
        &self.open().expect("no run is under way").annotations()[names::CONTENT]
    }

    /// The open run waits for approval of a plan with one change, and the layer reports it.
    pub(super) fn planned(&mut self) -> &mut Self {
        self.waits(1).settle()
    }

    /// The agent of the open run claims the apply.
    pub(super) fn claims(&mut self) -> &mut Self {
        let claim = json!({"checksum": digest("c"), "attempt": 1, "podUID": "p", "nonce": "0".repeat(32), "at": self.now});
        self.merge_run(
            &self.open_name(),
            &json!({"status": {"phase": "Apply", "claim": claim}}),
        )
    }

    /// Ends cancelled runs, as the run controller does.
    pub(super) fn cancelled(&mut self) -> bool {
        let open: Vec<_> = self
            .runs
            .iter()
            .filter(|run| is_open(run) && run.annotations().contains_key(names::CANCEL))
            .cloned()
            .collect();
        for run in &open {
            self.end(&run.name_any(), RunResult::Canceled, &json!({}));
        }
        !open.is_empty()
    }

    /// The run that has not ended; panics if there are two.
    pub(super) fn open(&self) -> Option<&TerraformRun> {
        let mut open = self.runs.iter().filter(|run| is_open(run));
        let one = open.next();
        assert!(open.next().is_none(), "two runs are under way");
        one
    }

    pub(super) fn open_name(&self) -> String {
        self.open().expect("no run is under way").name_any()
    }

    pub(super) fn trigger(&self) -> String {
        self.open().expect("no run is under way").annotations()[names::TRIGGER].clone()
    }

    pub(super) fn merge_run(&mut self, name: &str, patch: &Value) -> &mut Self {
        let run = self
            .runs
            .iter_mut()
            .find(|run| run.name_any() == name)
            .unwrap();
        let mut value = serde_json::to_value(&*run).unwrap();
        merge(&mut value, patch);
        *run = serde_json::from_value(value).unwrap();
        self
    }

    fn plan(&self, add: u32) -> Value {
        json!({"checksum": digest("c"), "attempt": 1, "summary": format!("+{add} ~0 -0"), "add": add, "change": 0, "destroy": 0,
            "import": 0, "replace": 0, "forget": 0, "outputs": 0, "tool": "OpenTofu 1.10.6", "createdAt": self.now,
            "changes": ["~ aws_vpc.main", "! aws_vpc.main (changed outside of the code: tags)"]})
    }

    /// The open run begins to plan.
    pub(super) fn begins(&mut self) -> &mut Self {
        let attempt = json!({"number": 1, "podName": "p", "open": true, "tries": 1});
        self.merge_run(
            &self.open_name(),
            &json!({"status": {"phase": "Plan", "attempt": attempt}}),
        )
    }

    /// The open run waits for approval.
    pub(super) fn waits(&mut self, add: u32) -> &mut Self {
        self.begins();
        let plan = self.plan(add);
        self.merge_run(
            &self.open_name(),
            &json!({"status": {"phase": "AwaitingApproval", "plan": plan}}),
        )
    }

    pub(super) fn approved(&mut self) -> &mut Self {
        self.merge_run(
            &self.open_name(),
            &json!({"metadata": {"annotations": {names::APPROVE: digest("c")}}}),
        )
    }

    pub(super) fn ends(&mut self, result: RunResult) -> &mut Self {
        self.end(&self.open_name(), result, &json!({}));
        self
    }

    pub(super) fn fails(&mut self, class: &str, reason: &str) -> &mut Self {
        let failure = json!({"class": class, "reason": reason, "message": "m", "changes": "None"});
        self.end(
            &self.open_name(),
            RunResult::Failed,
            &json!({"failure": failure}),
        );
        self
    }

    fn end(&mut self, name: &str, result: RunResult, more: &Value) {
        let mut status =
            json!({"phase": result.phase(), "result": result, "completionTime": self.now});
        merge(&mut status, more);
        self.merge_run(name, &json!({"status": status}));
    }
}

/// The commit that a run plans.
fn revision(run: &TerraformRun) -> &str {
    &run.spec.source.repository.as_ref().unwrap().revision
}

fn is_open(run: &TerraformRun) -> bool {
    !run.status
        .as_ref()
        .is_some_and(crds::TerraformRunStatus::is_terminal)
}
