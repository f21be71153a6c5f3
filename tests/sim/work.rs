//! The simulated work of an attempt: a tool that records its actions, a disk, a lock, and data that outlives the pod.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use crds::{
    Changed, Changes, Claim, FailedHook, Failure,
    FailureClass::{Configuration, Integrity, Interrupted, Transient},
    HookWhen, Progress, RunResult, TerraformRun,
    datastore::StateId,
    reason, state_key,
    termination::TerminationMessage,
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
    schedule::{Failing, Scene},
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

fn transient() -> Failure {
    let text = "the network is away";
    Failure::new(Transient, reason::PROVIDER_UNREACHABLE, text, Changed::None)
}

/// An answer of the datastore that no retry changes.
pub(crate) fn refused(reason: &'static str, message: &str) -> Refusal {
    Refusal {
        code: 418,
        reason,
        message: message.into(),
    }
}

/// The failure of a claim that cannot be recorded.
pub(crate) fn unrecorded(trouble: Trouble) -> Failure {
    match trouble {
        Trouble::Refused(Refusal {
            code: 418, message, ..
        }) => Failure::new(
            Integrity,
            reason::ALREADY_CLAIMED,
            &message,
            Changed::Unknown,
        ),
        Trouble::Refused(_) | Trouble::Lost => {
            let text = "the datastore is away";
            Failure::new(
                Transient,
                reason::DATASTORE_UNAVAILABLE,
                text,
                Changed::None,
            )
        }
    }
}

fn terminated() -> Failure {
    let text = "the tool was asked to stop";
    Failure::new(Interrupted, reason::TERMINATED, text, Changed::None)
}

fn set_up(source: &str, why: &str) -> SetupReport {
    let tool = "OpenTofu 1.10.6".into();
    SetupReport {
        revision: None,
        source: source.into(),
        tool,
        why: why.into(),
    }
}

fn digest(of: &str) -> String {
    let digest = Sha256::digest(of.as_bytes());
    crds::datastore::hex_digest(&digest)
}

/// Changes the last digit only, so that a comparison of prefixes does not see it.
fn alter(checksum: &mut String) {
    let last = checksum.pop();
    checksum.push(if last == Some('0') { '1' } else { '0' });
}

impl PlayedWork {
    pub(crate) fn new(
        shared: Shared,
        process: Process,
        settings: Arc<Settings>,
        has_store: bool,
    ) -> Self {
        Self {
            shared,
            process,
            settings,
            has_store,
            told: watch::Sender::new(0),
            mine: Mutex::default(),
        }
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
        let config = json!({"address": "https://states/net"});
        state_key::foreign("http", &config, "default", NS, &id)
    }

    fn did(&self, done: Done) {
        let (process, settings) = (&self.process, &self.settings);
        self.shared
            .act(|world| deeds::did(world, process, settings, done));
    }

    fn scene<T>(&self, of: impl FnOnce(&Scene) -> T) -> T {
        of(&self.shared.lock().schedule.scene)
    }

    fn key(&self) -> (String, u32) {
        (self.settings.run_uid.clone(), self.settings.attempt)
    }

    /// Works for this many milliseconds or more. Returns the level of a request to stop that the tool obeyed.
    async fn works(&self, least: u64) -> Option<u8> {
        let mut told = self.told.subscribe();
        let ended = tokio::select! {
            biased;
            ended = self.ends(&mut told) => Some(ended),
            () = self.shared.pause(least) => None,
        };
        self.process.live().await;
        ended
    }

    /// Ends the apply of the tool, which releases its lock.
    fn end_apply(&self, well: bool, changed: Changed) {
        self.did(Done::Tool(Deed::Ended(well)));
        self.release_lock();
        self.mine().changed = changed;
    }

    fn read(&self) -> Verified {
        Verified {
            checksum: self.mine().disk.clone(),
            differs: Vec::new(),
        }
    }

    /// A step that takes time. Its start is a boundary. Fails on a network fault or a request to stop.
    async fn step(
        &self,
        what: &'static str,
        done: Option<Done>,
        least: u64,
        notices: &Notices,
    ) -> Result<(), Failure> {
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
        let ended = self.works(least).await;
        let _ = notices.send(Notice::Ended(what, i32::from(ended.is_some())));
        if ended.is_some() {
            return Err(terminated());
        }
        if flaky { Err(transient()) } else { Ok(()) }
    }

    /// Waits until the tool obeys a request to stop. Returns its level.
    async fn ends(&self, told: &mut watch::Receiver<u8>) -> u8 {
        let needed = if self.scene(|scene| scene.stubborn) {
            PROVIDERS_KILLED
        } else {
            ASKED
        };
        let got = told.wait_for(|told| *told >= needed).await;
        let got = got.map_or(KILLED, |told| *told);
        if got < KILLED {
            sleep(Duration::from_millis(150)).await;
        }
        *told.borrow()
    }
}

impl Work for PlayedWork {
    async fn setup(
        &self,
        run: Arc<TerraformRun>,
        notices: Notices,
    ) -> Result<SetupReport, Failure> {
        self.mine().run = run;
        self.step("setup", None, 100, &notices).await?;
        Ok(set_up("inline", "played"))
    }

    async fn restore(
        &self,
        run: Arc<TerraformRun>,
        notices: Notices,
    ) -> Result<SetupReport, Failure> {
        self.mine().run = run.clone();
        self.step("restore", None, 200, &notices).await?;
        let plan = run
            .status
            .clone()
            .and_then(|status| status.plan)
            .unwrap_or_default();
        let key = (self.settings.run_uid.clone(), plan.attempt);
        let missing = || refused("NotFound", "the datastore has no such plan");
        let taken = self.stored("take the plan", 60, move |data| {
            data.bundles.get(&key).cloned().ok_or_else(missing)
        });
        let bundle = taken.await.map_err(|trouble| match trouble {
            Trouble::Refused(Refusal {
                code: 418, message, ..
            }) => Failure::new(
                Integrity,
                reason::STORED_PLAN_MISSING,
                &message,
                Changed::None,
            ),
            Trouble::Refused(_) | Trouble::Lost => transient(),
        })?;
        let mut mine = self.mine();
        (mine.disk, mine.planned) = (bundle, plan.counts.operations());
        Ok(set_up("plan", "as planned"))
    }

    async fn init(&self, notices: Notices) -> Result<InitReport, Failure> {
        self.step("init", Some(Done::Init), 300, &notices).await?;
        Ok(InitReport {
            backend: "http".into(),
            workspace: "default".into(),
            providers: None,
        })
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
        let (uid, name) = (&self.settings.run_uid, &self.process.name);
        let checksum = digest(&format!("{uid} {name} {drawn}"));
        let run = self.mine().run.clone();
        let is_layer = scene.layer.is_some();
        let has_changes = if is_layer {
            self.shared.lock().ground.differs(&run)
        } else {
            scene.changes
        };
        let operations = if has_changes { scene.objects.into() } else { 0 };
        self.mine().disk.clone_from(&checksum);
        self.mine().planned = operations;
        let mut counts = Changes::default();
        *(if scene.destroys {
            &mut counts.destroy
        } else {
            &mut counts.add
        }) = operations;
        let asks = !run.spec.approval.is_automatic_for(&counts);
        let mut bundle = None;
        if self.has_store && asks && has_changes && run.spec.operation.applies() {
            let (key, content) = (self.key(), checksum.clone());
            let kept = self.stored("keep the plan", 60, move |data| {
                data.bundles.insert(key.clone(), content.clone());
                Ok(())
            });
            kept.await.map_err(|_| transient())?;
            bundle = Some(digest(&checksum));
        }
        if scene.tampered {
            alter(&mut self.mine().disk);
        }
        let (lines, platform) = (vec!["+ a.b".to_owned()], "linux_amd64".to_owned());
        let (state_key, notes) = (Some(self.state_key()), Vec::new());
        Ok(PlanReport {
            has_changes,
            counts,
            lines,
            checksum,
            bundle,
            platform,
            state_key,
            notes,
            unread: None,
            other_state: None,
        })
    }

    async fn verify(&self) -> Result<Verified, Failure> {
        self.shared.pause(5).await;
        self.process.live().await;
        if self.has_store {
            let uid = self.settings.run_uid.clone();
            let proof = self.stored("prove that a claim can be recorded", 60, move |data| {
                let claimed = data
                    .claims
                    .get(&uid)
                    .map(|_| refused("AlreadyClaimed", "a claim is recorded"));
                claimed.map_or(Ok(()), Err)
            });
            proof.await.map_err(unrecorded)?;
        }
        Ok(self.read())
    }

    fn has_hooks_before(&self) -> bool {
        self.scene(|scene| scene.hooks)
    }

    async fn hooks_before(&self, claim: Claim, notices: Notices) -> Result<(), Failure> {
        self.record(&claim).await?;
        let failed = self.scene(|scene| scene.hook_fails == Some(Failing::BeforeApply));
        let done = Some(Done::HooksBefore { failed });
        self.step("hooks before", done, 200, &notices).await?;
        if failed {
            let text = "hook login (BeforeApply) failed with 3";
            return Err(Failure::new(
                Configuration,
                reason::HOOK_FAILED,
                text,
                Changed::None,
            ));
        }
        if self.scene(|scene| scene.hook_tampers) {
            alter(&mut self.mine().disk);
        }
        Ok(())
    }

    async fn verify_again(&self) -> Result<Verified, Failure> {
        self.shared.pause(5).await;
        self.process.live().await;
        Ok(self.read())
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
        let (bytes, checksum) = (self.mine().disk.clone(), claim.checksum.clone());
        self.did(Done::Apply { bytes, checksum });
        self.mine().changed = Changed::Unknown;
        let _ = notices.send(Notice::Started("apply"));
        let (objects, fails) = self.scene(|scene| (scene.objects, scene.fails));
        for done in 0..objects {
            let so_far = if done == 0 {
                Changed::None
            } else {
                Changed::Some
            };
            if let Some(level) = self.works(700).await {
                if level < KILLED {
                    self.end_apply(false, so_far);
                } else if done > 0 {
                    self.mine().changed = Changed::Some;
                }
                let text = "the tool was interrupted";
                return Err(Failure::new(
                    Interrupted,
                    reason::APPLY_INTERRUPTED,
                    text,
                    self.changed(),
                ));
            }
            self.did(Done::Tool(Deed::Changed));
            let (done, total) = (u32::from(done) + 1, self.mine().planned);
            let progress = Progress {
                done,
                total,
                current: None,
                quiet_since: None,
            };
            let _ = notices.send(Notice::Progress(progress));
            if fails {
                self.end_apply(false, Changed::Some);
                let text = "it does not work";
                return Err(Failure::new(
                    Configuration,
                    reason::APPLY_FAILED,
                    text,
                    Changed::Some,
                ));
            }
        }
        self.end_apply(true, Changed::Some);
        let _ = notices.send(Notice::Ended("apply", 0));
        Ok(ApplyReport {
            done: objects.into(),
            outputs: 0,
            unread: None,
        })
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
        self.told
            .send_modify(|told| *told = (*told).max(PROVIDERS_KILLED));
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
        self.scene(|scene| scene.hooks)
    }

    async fn hooks_after(&self, applied: bool, _result: Option<RunResult>, notices: Notices) {
        let failed = self.scene(|scene| scene.hook_fails == Some(Failing::AfterApply));
        // A hook that cannot be started fails without effect.
        if self.shared.exec(&self.process, "hooks after").await {
            return;
        }
        self.did(Done::HooksAfter { applied });
        self.shared.pause(300).await;
        self.process.live().await;
        if failed {
            self.did(Done::HookAfterFailed);
            let (name, message) = ("tell".into(), "hook tell (AfterApply) failed with 3".into());
            let hook = FailedHook {
                name,
                when: HookWhen::AfterApply,
                message,
            };
            let _ = notices.send(Notice::HookFailed(hook));
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
