//! Somebody with Kubernetes' `edit`, and no right in `pawl.run`, who puts a pod in the place of an attempt's pod.

use std::sync::Arc;

use crds::{Phase, TerraformRun, names, pod_env, termination::TerminationMessage};
use kube::ResourceExt as _;
use libtest_mimic::Failed;
use played::{
    User,
    store::{Edit, Key, PODS, RUNS, text},
};
use serde_json::{Value, json};

use crate::{
    life::fine,
    person::FIRST,
    schedule::{Gesture, Schedule, Strike},
    world::{NS, Shared, World, millis, now},
};

const ACCOUNTS: &str = "serviceaccounts";

/// The pod that she created, and the attempt whose name it has.
struct Foreign {
    run: Arc<TerraformRun>,
    attempt: u32,
    pod: Key,
    /// UIDs of pod and account.
    uids: [String; 2],
}

/// Creates pod and account of the next attempt, tries to act with its identity for so many seconds, and deletes them.
pub(crate) async fn acts(shared: Shared, labelled: bool, seconds: u8) {
    let until = millis() + u64::from(seconds) * 1000;
    let half = millis() + u64::from(seconds) * 500;
    let mut foreign = None;
    let mut ended = false;
    while millis() < until {
        shared.pause(100).await;
        shared.act(|world| {
            if foreign.is_none() {
                foreign = Foreign::create(world, labelled);
            }
            let Some(foreign) = &foreign else { return };
            foreign.tries(world);
            if millis() > half && !ended {
                ended = true;
                foreign.ends(world);
            }
        });
    }
    shared.act(|world| {
        if let Some(foreign) = &foreign {
            foreign.goes(world);
        }
    });
}

impl Foreign {
    /// Takes the name of the next attempt's pod, or of the open one's before its adoption.
    fn create(world: &mut World, labelled: bool) -> Option<Self> {
        let run = world.run(FIRST)?;
        let status = run.status.clone().unwrap_or_default();
        let (number, open) = status
            .attempt
            .map_or((0, false), |attempt| (attempt.number, attempt.open));
        let adopted = status
            .adopted
            .is_some_and(|adopted| adopted.attempt == number);
        let attempt = if open && !adopted { number } else { number + 1 };
        let name = names::attempt_name(FIRST, &run.uid()?, attempt);
        let pod = Key::of(PODS, NS, &name);
        remove(world, &pod, None);
        let labels = json!({names::LABEL_RUN: FIRST, names::LABEL_RUN_UID: run.uid(),
            names::LABEL_ATTEMPT: attempt.to_string(), names::LABEL_MANAGED_BY: names::MANAGED_BY});
        let labels = if labelled { labels } else { Value::Null };
        let finalizer = if labelled {
            names::POD_FINALIZER
        } else {
            "example.com/stays"
        };
        let metadata = json!({"name": name, "labels": labels, "finalizers": [finalizer]});
        let eve = User::with("eve", &[]);
        let mut create = |resource: &str, object: Value| {
            let made = world.store.create(&eve, resource, NS, object, false, now());
            made.ok()
                .map(|object| text(&object, "/metadata/uid").to_owned())
        };
        let account = json!({"metadata": {"name": name, "labels": labels}});
        let account = create(ACCOUNTS, account).unwrap_or_default();
        // No simulated node starts it: she acts herself.
        let uid = create(
            PODS,
            json!({"metadata": metadata, "spec": {"nodeName": "elsewhere"}}),
        )?;
        Some(Self {
            run,
            attempt,
            pod,
            uids: [uid, account],
        })
    }

    /// Adopts, claims and writes with a token of her pod.
    fn tries(&self, world: &mut World) {
        if world.store.lacks_policies {
            return;
        }
        let (uid, nonce) = (&self.uids[0], "e".repeat(32));
        let user = User::pod(NS, &self.pod.name, uid);
        let adopted = json!({"attempt": self.attempt, "podUID": uid, "nonce": nonce});
        let sum = world
            .run(FIRST)
            .and_then(|run| Some(run.plan()?.checksum.clone()));
        let claim = json!({"checksum": sum, "attempt": self.attempt, "podUID": uid, "nonce": nonce,
            "at": crds::whole_seconds(now())});
        for status in [
            json!({"adopted": adopted}),
            json!({"adopted": adopted, "phase": Phase::Setup}),
            json!({"phase": Phase::Apply, "claim": claim}),
            json!({"message": "eve was here"}),
        ] {
            let edit = Edit::Merge(json!({"status": status}));
            let run = Key::of(RUNS, NS, FIRST);
            if world.store.edit(&user, &run, true, &edit, false).is_ok() {
                world.violated("S47", &format!("a foreign pod wrote {status}"));
            }
        }
    }

    /// Her pod ends with the message of a successful apply, in the words of the process that claimed or adopted.
    fn ends(&self, world: &mut World) {
        let status = world
            .run(FIRST)
            .and_then(|run| run.status.clone())
            .unwrap_or_default();
        let adopted = status
            .adopted
            .map(|adopted| (adopted.attempt, adopted.pod_uid, adopted.nonce));
        let claimed = status
            .claim
            .map(|claim| (claim.attempt, claim.pod_uid, claim.nonce));
        let (attempt, pod_uid, nonce) = claimed.or(adopted).unwrap_or_default();
        let message = TerminationMessage {
            run_uid: self.run.uid().unwrap_or_default(),
            attempt,
            pod_uid,
            nonce,
            result: Some(crds::RunResult::Applied),
            message: "eve applied".into(),
            failure: None,
            unkept: None,
        };
        let message = String::from_utf8(message.to_bytes()).unwrap();
        let ended =
            json!({"terminated": {"exitCode": 0, "reason": "Completed", "message": message}});
        let container = json!({"name": pod_env::CONTAINER, "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "state": ended});
        let status = json!({"status": {"phase": "Succeeded", "containerStatuses": [container]}});
        world.store.node_writes(&self.pod, &self.uids[0], &status);
    }

    fn goes(&self, world: &mut World) {
        remove(world, &self.pod, Some(&self.uids[0]));
        let account = Key::of(ACCOUNTS, NS, &self.pod.name);
        let _ = world
            .store
            .delete(&account, &json!({"uid": self.uids[1]}), None, now());
    }
}

/// Deletes a pod by force, with its finalizers.
fn remove(world: &mut World, pod: &Key, uid: Option<&String>) {
    if world
        .store
        .delete(pod, &json!({"uid": uid}), Some(0), now())
        .is_ok()
    {
        let free = json!({"metadata": {"finalizers": []}});
        let _ = world.merge(&User::with("eve", &[]), pod, free);
    }
}

/// Her pods have no effect, and the run goes on to its apply.
pub(crate) fn pods() -> Result<(), Failed> {
    for (two, labelled) in [(false, true), (true, true), (false, false)] {
        for at in [0, 200, 1_000, 3_000, 7_500, 9_000, 9_050, 12_000] {
            let schedule = Schedule::of(7)
                .with(|scene| (scene.two, scene.hold) = (two, 2))
                .waits(9_000, Gesture::Approve)
                .strike(at, Strike::Foreign(labelled, 25));
            let report = fine(&schedule)?;
            let tried = report.at(&["Foreign"]).is_some();
            if !tried || !report.endings.contains("Applied") {
                return Err(report.failed("not applied", &schedule));
            }
        }
    }
    Ok(())
}
