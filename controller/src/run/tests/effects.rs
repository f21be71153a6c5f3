//! Effects of actions on the test double, as a cluster would have them.

use super::*;

impl World {
    /// Decides and applies until nothing is left to do. Returns when to reconcile again, in seconds.
    pub(super) fn settle(&mut self) -> Option<u64> {
        if run_requests::asked(&self.run).is_some() {
            self.o.notes.asked_at.get_or_insert(self.now);
        }
        for _ in 0..12 {
            let decision = self.decide();
            if decision.actions.is_empty() || self.gone {
                return decision.requeue.map(|wait| wait.as_secs());
            }
            for action in decision.actions {
                self.apply(&action);
            }
        }
        panic!("no rest: {:?}", self.decide());
    }

    /// Applies an action as the cluster would.
    pub(super) fn apply(&mut self, action: &Action) {
        match action {
            Action::AddFinalizer { prove } => {
                self.run.metadata.finalizers = Some(vec![names::RUN_FINALIZER.into()]);
                assert!(!prove || !matches!(self.o.policies, Enforcement::Enforced));
                if *prove {
                    self.o.policies = Enforcement::Enforced;
                }
            }
            Action::ProbePolicies => self.o.policies = Enforcement::Enforced,
            Action::Read => self.o.run_live = true,
            Action::AskSource => {
                let before = self.o.notes.source.take();
                let why = self.source.clone();
                self.o.notes.source = why.map(|why| source_wait(before.as_ref(), why, self.now));
                self.o.source_ready = self.o.notes.source.is_none();
            }
            Action::AskDatastore => {
                self.asked += 1;
                let found = |message| LateResult::Found(Box::new(message));
                self.o.late_result = self.stored.clone().map_or(LateResult::Absent, found);
                self.o.notes.journal = self
                    .journal
                    .clone()
                    .map(|journal| (self.status().settled.is_some(), Box::new(journal)));
                self.o.notes.datastore_asked =
                    Some(asked_again(self.o.notes.datastore_asked, self.now));
            }
            Action::TakeLease { key } => {
                let waits = refused(&self.lease, key.clone(), self.now);
                self.o.taken = waits.is_none().then(|| {
                    (
                        key.clone(),
                        self.settings.shared_states.lease_name("team", key),
                    )
                });
                self.o.notes.waits = waits;
            }
            Action::TakeSlot { class } => {
                self.o.slot = self.full.clone().map_or(Slot::Taken(*class), Slot::Full);
            }
            Action::AskNodes => match &self.nodes {
                Ok(()) => self.o.gone_pod_ended = true,
                Err(text) => self.o.notes.nodes_asked = Some((self.now, text.clone())),
            },
            Action::ReleaseLock => {
                assert!(
                    !self.attempt().open,
                    "the lock of an open attempt was released"
                );
                self.unlocks += 1;
                self.o.lock_released = self.unlock.is_ok();
                self.o.notes.unlock_failed = self.unlock.clone().err().map(|text| (self.now, text));
            }
            Action::AskLock => {
                self.o.notes.lock_asked = self
                    .status()
                    .state_lock
                    .clone()
                    .map(|lock| (lock.id, self.now));
                self.o.lock_holder = self.lock_holder.clone();
            }
            Action::Write(write) => {
                self.write(write);
                if write.kind == Kind::Open {
                    // The executor has created the pod before.
                    self.status_mut().attempt.as_mut().unwrap().pod_uid = Some(POD.into());
                    self.pod_created();
                }
            }
            Action::CreatePod => {
                assert!(self.attempt().open, "a pod of a closed attempt");
                assert!(self.status().claim.is_none(), "a pod of a claimed run");
                self.pod_created();
            }
            Action::DeletePod { .. } => {
                if let PodState::Present(pod) = &mut self.o.pod {
                    pod.deleting = true;
                }
            }
            Action::ReleasePod { .. } => {
                assert!(
                    !self.attempt().open,
                    "the pod of an open attempt was released"
                );
                if let PodState::Present(pod) = &mut self.o.pod {
                    pod.held = false;
                }
            }
            Action::DeleteAccount { .. } => assert!(
                !self.attempt().open,
                "the account of an open attempt was deleted"
            ),
            Action::Cleanup => {
                assert!(
                    self.status().attempt.as_ref().is_none_or(|a| !a.open),
                    "cleaned up under an open attempt"
                );
                self.o.pod = PodState::Absent;
            }
            Action::RemoveFinalizer | Action::Prune => self.gone = true,
            Action::CreateRerun | Action::CreateRecovery => {}
            Action::TakeOff(keys) => {
                self.run
                    .metadata
                    .annotations
                    .get_or_insert_default()
                    .retain(|name, _| !keys.contains(&name.as_str()));
            }
        }
    }

    fn pod_created(&mut self) {
        let attempt = self.attempt().number;
        self.o.notes.created = Some(Created {
            attempt,
            uid: POD.into(),
            at: self.now,
        });
        self.o.pod = PodState::Present(PodView {
            name: self.attempt().pod_name.clone(),
            uid: POD.into(),
            attempt,
            held: true,
            ..PodView::default()
        });
    }

    /// Applies a status write, and checks the rules of the CRD's CEL expressions.
    fn write(&mut self, write: &Write) {
        self.writes.push(write.kind);
        self.events
            .extend(write.notes.iter().map(|note| note.reason));
        let old = self.status().clone();
        let mut value = serde_json::to_value(&old).unwrap();
        merge(&mut value, &Value::Object(write.status.clone()));
        let new: TerraformRunStatus = serde_json::from_value(value).unwrap();
        match (old.phase, new.phase) {
            (None, phase) => assert_eq!(phase, Some(Phase::Pending), "the first phase"),
            (Some(from), Some(to)) => assert!(from.may_become(to), "{from} to {to}"),
            (Some(_), None) => panic!("the phase was removed"),
        }
        assert!(
            old.result.is_none() || old.result == new.result,
            "a result changed"
        );
        assert_eq!(new.result.is_some(), new.is_terminal());
        assert_eq!(old.claim, new.claim, "the controller wrote a claim");
        assert!(
            old.settled.is_none() || old.settled == new.settled,
            "what settled a run changed"
        );
        assert!(new.settled.is_none() || new.result == Some(RunResult::Indeterminate));
        if let Some(result) = new.result {
            assert_eq!(Some(result.phase()), new.phase);
            assert!(new.claim.is_some() || !result.needs_claim());
            assert!(new.claim.is_none() || new.phase != Some(Phase::Canceled));
        }
        if let Some(silent) = new
            .conditions
            .iter()
            .find(|condition| condition.message.is_empty())
        {
            panic!("{} says nothing", silent.type_);
        }
        for field in ["adopted", "plan", "claim", "progress", "steps"] {
            assert!(
                !write.status.contains_key(field),
                "`{field}` is the agent's"
            );
        }
        let adopted = |a: &Attempt| {
            old.adopted
                .as_ref()
                .is_some_and(|adopted| adopted.attempt == a.number)
        };
        if old.attempt.as_ref().is_some_and(|a| a.open && adopted(a))
            && !write.status.contains_key("attempt")
        {
            for field in [
                "phase",
                "result",
                "message",
                "nextStep",
                "history",
                "failure",
                "startTime",
                "completionTime",
            ] {
                assert!(
                    !write.status.contains_key(field),
                    "`{field}` is the agent's from its adoption to the close of the attempt"
                );
            }
        }
        self.status_mut().clone_from(&new);
        // The lease stays valid across the controller's own writes until one of them records it.
        if write.status.contains_key("lease") {
            self.o.taken = None;
        }
    }
}
