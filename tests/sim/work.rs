//! The simulated work of an attempt: a tool that records its actions, a disk, a lock, and data that outlives the pod.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use crds::{
    Changed, Changes, Claim, FailedHook, Failure, FailureClass, HookWhen, Progress, RunResult, TerraformRun, datastore::StateId,
    reason, state_key, termination::TerminationMessage,
};
use kube::ResourceExt;
use played::Refusal;
use played::trace::Deed;
use runner_agent::{
    ports::{ApplyReport, InitReport, Notice, Notices, PlanReport, SetupReport, Verified, Work},
    settings::Settings,
};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::{sync::watch, time::sleep};

use crate::{
    deeds::{self, Done},
    schedule::Failing,
    world::{NS, Process, Shared, Trouble},
};

/// Levels of the request to stop the tool.
const ASKED: u8 = 1;
const PROVIDERS_KILLED: u8 = 2;
const KILLED: u8 = 3;

pub(crate) struct PlayedWork {
    pub shared: Shared,
    pub process: Process,
    pub settings: Arc<Settings>,
    pub has_store: bool,
    pub told: watch::Sender<u8>,
    mine: Mutex<Mine>,
}

#[derive(Default)]
pub(crate) struct Mine {
    run: Arc<TerraformRun>,
    /// The checksum of the files on disk.
    disk: String,
    changed: Changed,
    planned: u32,
    /// The id of the lock that the controller allows to be released.
    pub release: Option<String>,
}

pub(crate) fn failure(class: FailureClass, reason: &str, message: &str, changes: Changed) -> Failure {
    Failure { class, reason: reason.into(), message: message.into(), changes, diagnostics: Vec::new() }
}

fn transient() -> Failure {
    failure(FailureClass::Transient, reason::PROVIDER_UNREACHABLE, "the network is away", Changed::None)
}

/// The failure of a claim that cannot be recorded.
pub(crate) fn unrecorded(trouble: Trouble) -> Failure {
    match trouble {
        Trouble::Refused(refusal) if refusal.code == 418 => {
            failure(FailureClass::Integrity, reason::ALREADY_CLAIMED, &refusal.message, Changed::Unknown)
        }
        Trouble::Refused(_) | Trouble::Lost => {
            failure(FailureClass::Transient, reason::DATASTORE_UNAVAILABLE, "the datastore is away", Changed::None)
        }
    }
}

fn terminated() -> Failure {
    failure(FailureClass::Interrupted, reason::TERMINATED, "the tool was asked to stop", Changed::None)
}

fn digest(of: &str) -> String {
    let digest = Sha256::digest(of.as_bytes());
    crds::datastore::hex_digest(&digest)
}

impl PlayedWork {
    pub(crate) fn new(shared: Shared, process: Process, settings: Arc<Settings>, has_store: bool) -> Self {
        Self { shared, process, settings, has_store, told: watch::Sender::new(0), mine: Mutex::default() }
    }

    pub(crate) fn mine(&self) -> std::sync::MutexGuard<'_, Mine> {
        self.mine.lock().unwrap()
    }

    /// The key of the stack's state, with or without the datastore.
    fn state_key(&self) -> String {
        let run = self.mine().run.clone();
        let id = StateId::of(&run.name_any(), &run.spec);
        if self.has_store {
            return state_key::managed(NS, &id);
        }
        state_key::foreign("http", &json!({"address": "https://states/net"}), "default", NS, &id)
    }

    fn did(&self, done: Done) {
        let (process, settings) = (&self.process, &self.settings);
        self.shared.act(|world| deeds::did(world, process, settings, done));
    }

    /// A step that takes time. Its start is a boundary. Fails on a network fault or a request to stop.
    async fn step(&self, what: &'static str, done: Option<Done>, least: u64, notices: &Notices) -> Result<(), Failure> {
        if *self.told.borrow() > 0 {
            return Err(terminated());
        }
        if self.shared.exec(&self.process, what).await {
            return Err(transient());
        }
        if let Some(done) = done {
            self.did(done);
        }
        let _ = notices.send(Notice::Started(what));
        let flaky = {
            let mut world = self.shared.lock();
            let flaky = world.schedule.scene.flaky > world.watcher.flaky && what == "init";
            world.watcher.flaky += u8::from(flaky);
            flaky
        };
        let mut told = self.told.subscribe();
        let ended = tokio::select! {
            biased;
            ended = self.ends(&mut told) => Some(ended),
            () = self.shared.pause(least) => None,
        };
        self.process.live().await;
        let _ = notices.send(Notice::Ended(what, i32::from(ended.is_some())));
        if ended.is_some() {
            return Err(terminated());
        }
        if flaky { Err(transient()) } else { Ok(()) }
    }

    /// Waits until the tool obeys a request to stop. Returns its level.
    async fn ends(&self, told: &mut watch::Receiver<u8>) -> u8 {
        let stubborn = self.shared.lock().schedule.scene.stubborn;
        let needed = if stubborn { PROVIDERS_KILLED } else { ASKED };
        let got = told.wait_for(|told| *told >= needed).await.map_or(KILLED, |told| *told);
        if got < KILLED {
            sleep(Duration::from_millis(150)).await;
        }
        *told.borrow()
    }
}

impl Work for PlayedWork {
    async fn setup(&self, run: Arc<TerraformRun>, notices: Notices) -> Result<SetupReport, Failure> {
        self.mine().run = run;
        self.step("setup", None, 100, &notices).await?;
        Ok(SetupReport { revision: None, source: "inline".into(), tool: "OpenTofu 1.10.6".into(), why: "played".into() })
    }

    async fn restore(&self, run: Arc<TerraformRun>, notices: Notices) -> Result<SetupReport, Failure> {
        self.mine().run = run.clone();
        self.step("restore", None, 200, &notices).await?;
        let plan = run.status.as_ref().and_then(|status| status.plan.clone()).unwrap_or_default();
        let key = (self.settings.run_uid.clone(), plan.attempt);
        let missing = || Refusal { code: 418, reason: "NotFound", message: "the datastore has no such plan".into() };
        let bundle = self.stored("take the plan", 60, move |data| data.bundles.get(&key).cloned().ok_or_else(missing)).await;
        let bundle = match bundle {
            Ok(bundle) => bundle,
            Err(Trouble::Refused(refusal)) if refusal.code == 418 => {
                return Err(failure(FailureClass::Integrity, reason::STORED_PLAN_MISSING, &refusal.message, Changed::None));
            }
            Err(_) => return Err(transient()),
        };
        let mut mine = self.mine();
        mine.disk = bundle;
        mine.planned = plan.counts.operations();
        Ok(SetupReport { revision: None, source: "plan".into(), tool: "OpenTofu 1.10.6".into(), why: "as planned".into() })
    }

    async fn init(&self, notices: Notices) -> Result<InitReport, Failure> {
        self.step("init", Some(Done::Init), 300, &notices).await?;
        Ok(InitReport { backend: "http".into(), workspace: "default".into() })
    }

    async fn plan(&self, notices: Notices) -> Result<PlanReport, Failure> {
        self.take_lock(&notices).await?;
        let planned = self.step("plan", Some(Done::Plan), 500, &notices).await;
        if *self.told.borrow() < KILLED {
            self.release_lock();
        }
        planned?;
        let (scene, drawn) = {
            let mut world = self.shared.lock();
            (world.schedule.scene.clone(), world.chance.next())
        };
        let checksum = digest(&format!("{} {} {drawn}", self.settings.run_uid, self.process.name));
        let run = self.mine().run.clone();
        let has_changes = if scene.layer.is_some() { self.shared.lock().ground.differs(&run) } else { scene.changes };
        let operations = if has_changes { u32::from(scene.objects) } else { 0 };
        {
            let mut mine = self.mine();
            mine.disk.clone_from(&checksum);
            mine.planned = operations;
        }
        let counts = if scene.destroys {
            Changes { destroy: operations, ..Changes::default() }
        } else {
            Changes { add: operations, ..Changes::default() }
        };
        let asks = !run.spec.approval.is_automatic_for(&counts);
        let mut bundle = None;
        if self.has_store && asks && has_changes && run.spec.operation.applies() {
            let (key, content) = ((self.settings.run_uid.clone(), self.settings.attempt), checksum.clone());
            let kept = self.stored("keep the plan", 60, move |data| {
                data.bundles.insert(key.clone(), content.clone());
                Ok(())
            });
            kept.await.map_err(|_| transient())?;
            bundle = Some(digest(&checksum));
        }
        if scene.tampered {
            self.mine().disk = digest("something else");
        }
        let (lines, platform) = (vec!["+ a.b".to_owned()], "linux_amd64".to_owned());
        Ok(PlanReport {
            has_changes,
            counts,
            lines,
            checksum,
            bundle,
            platform,
            state_key: Some(self.state_key()),
            notes: Vec::new(),
        })
    }

    async fn verify(&self) -> Result<Verified, Failure> {
        self.shared.pause(5).await;
        self.process.live().await;
        if self.has_store {
            let uid = self.settings.run_uid.clone();
            let claimed = || Refusal { code: 418, reason: "AlreadyClaimed", message: "a claim is recorded".into() };
            let proof = self.stored("prove that a claim can be recorded", 60, move |data| {
                if data.claims.contains_key(&uid) { Err(claimed()) } else { Ok(()) }
            });
            proof.await.map_err(unrecorded)?;
        }
        Ok(Verified { checksum: self.mine().disk.clone(), differs: Vec::new() })
    }

    fn has_hooks_before(&self) -> bool {
        self.shared.lock().schedule.scene.hooks
    }

    async fn hooks_before(&self, claim: Claim, notices: Notices) -> Result<(), Failure> {
        self.record(&claim).await?;
        let (fails, tampers) = {
            let scene = &self.shared.lock().schedule.scene;
            (scene.hook_fails == Some(Failing::BeforeApply), scene.hook_tampers)
        };
        self.step("hooks before", Some(Done::HooksBefore { failed: fails }), 200, &notices).await?;
        if fails {
            let text = "hook login (BeforeApply) failed with 3";
            return Err(failure(FailureClass::Configuration, reason::HOOK_FAILED, text, Changed::None));
        }
        if tampers {
            self.mine().disk = digest("what a hook made");
        }
        Ok(())
    }

    async fn verify_again(&self) -> Result<Verified, Failure> {
        self.shared.pause(5).await;
        self.process.live().await;
        Ok(Verified { checksum: self.mine().disk.clone(), differs: Vec::new() })
    }

    async fn apply(&self, claim: Claim, notices: Notices) -> Result<ApplyReport, Failure> {
        if !self.has_hooks_before() {
            self.record(&claim).await?;
        }
        if *self.told.borrow() > 0 {
            return Err(terminated());
        }
        // The tool cannot reach its state for a moment: it reports that and changes nothing.
        if self.shared.exec(&self.process, "apply").await {
            return Err(transient());
        }
        self.take_lock(&notices).await?;
        let bytes = self.mine().disk.clone();
        self.did(Done::Apply { bytes, checksum: claim.checksum.clone() });
        self.mine().changed = Changed::Unknown;
        let _ = notices.send(Notice::Started("apply"));
        let (objects, fails) = {
            let world = self.shared.lock();
            (world.schedule.scene.objects, world.schedule.scene.fails)
        };
        let mut told = self.told.subscribe();
        for done in 0..objects {
            let ended = tokio::select! {
                biased;
                ended = self.ends(&mut told) => Some(ended),
                () = self.shared.pause(700) => None,
            };
            self.process.live().await;
            let so_far = |done: u8| if done == 0 { Changed::None } else { Changed::Some };
            if let Some(ended) = ended {
                if ended < KILLED {
                    self.did(Done::Tool(Deed::Ended(false)));
                    self.release_lock();
                    self.mine().changed = so_far(done);
                } else if done > 0 {
                    self.mine().changed = Changed::Some;
                }
                let changed = self.mine().changed;
                return Err(failure(FailureClass::Interrupted, reason::APPLY_INTERRUPTED, "the tool was interrupted", changed));
            }
            self.did(Done::Tool(Deed::Changed));
            let progress = Progress { done: u32::from(done) + 1, total: self.mine().planned, current: None, quiet_since: None };
            let _ = notices.send(Notice::Progress(progress));
            if fails {
                self.did(Done::Tool(Deed::Ended(false)));
                self.release_lock();
                self.mine().changed = Changed::Some;
                return Err(failure(FailureClass::Configuration, reason::APPLY_FAILED, "it does not work", Changed::Some));
            }
        }
        self.did(Done::Tool(Deed::Ended(true)));
        self.release_lock();
        self.mine().changed = Changed::Some;
        let _ = notices.send(Notice::Ended("apply", 0));
        Ok(ApplyReport { done: objects.into(), outputs: 0 })
    }

    fn interrupt(&self) {
        if self.process.is_dead() {
            return;
        }
        self.did(Done::Tool(Deed::Interrupted));
        self.told.send_if_modified(|told| {
            let more = *told < ASKED;
            *told = (*told).max(ASKED);
            more
        });
    }

    fn may_unlock(&self, id: &str, _holder: &str) {
        self.mine().release = Some(id.to_owned());
    }

    fn kill_providers(&self) {
        if self.process.is_dead() {
            return;
        }
        self.told.send_modify(|told| *told = (*told).max(PROVIDERS_KILLED));
    }

    fn kill_tool(&self) {
        if self.process.is_dead() {
            return;
        }
        self.did(Done::Tool(Deed::Killed));
        self.told.send_modify(|told| *told = KILLED);
    }

    async fn kill_others(&self) -> bool {
        true
    }

    fn changed(&self) -> Changed {
        self.mine().changed
    }

    fn has_hooks_after(&self, _applied: bool) -> bool {
        self.shared.lock().schedule.scene.hooks
    }

    async fn hooks_after(&self, applied: bool, _result: Option<RunResult>, notices: Notices) {
        let failed = self.shared.lock().schedule.scene.hook_fails == Some(Failing::AfterApply);
        // A hook that cannot be started fails without effect.
        if self.shared.exec(&self.process, "hooks after").await {
            return;
        }
        self.did(Done::HooksAfter { applied });
        self.shared.pause(300).await;
        self.process.live().await;
        if failed {
            self.did(Done::HookAfterFailed);
            let message = "hook tell (AfterApply) failed with 3".to_owned();
            let _ = notices.send(Notice::HookFailed(FailedHook { name: "tell".into(), when: HookWhen::AfterApply, message }));
        }
    }

    async fn deliver(&self, message: TerminationMessage) -> bool {
        if !self.has_store {
            return true;
        }
        let key = (message.run_uid.clone(), message.attempt);
        let delivered = self.stored("deliver the result", 20, move |data| {
            data.results.insert(key.clone(), message.clone());
            Ok(())
        });
        delivered.await.is_ok()
    }

    fn redact(&self, text: &str) -> String {
        text.to_owned()
    }

    async fn log(&self, _line: &str) {}
}
