//! The simulated node: starts the containers of pods, reports their exits, and ends deleted pods.

use std::{sync::Arc, time::Duration};

use crds::pod_env;
use played::store::{Key, PODS, is_leaving, text};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    agent::{Started, start},
    world::{NS, Shared, World, millis},
};

/// Runs all pods of a life.
pub(crate) async fn run(shared: Shared) {
    let (changes, mut seen) = (shared.changes(), 0);
    loop {
        let fresh: Vec<Arc<Value>> = {
            let world = shared.lock();
            let is_fresh = |pod: &Value| pod["spec"]["nodeName"].is_null() && !is_leaving(pod);
            let pods = world
                .store
                .since(seen)
                .iter()
                .filter(|change| change.key.resource == PODS && !change.deleted);
            let fresh = pods
                .map(|change| change.object.clone())
                .filter(|pod| is_fresh(pod))
                .collect();
            seen = world.store.version();
            fresh
        };
        for pod in fresh {
            tokio::spawn(one(shared.clone(), pod));
        }
        changes.after(seen).await;
    }
}

struct Pod {
    key: Key,
    uid: String,
}

impl Pod {
    fn object(&self, world: &World) -> Option<Arc<Value>> {
        world
            .store
            .get(&self.key)
            .ok()
            .filter(|pod| pod["metadata"]["uid"] == *self.uid)
    }

    /// Until when its node is lost: it neither sends nor receives.
    fn lost_until(&self, world: &World) -> u64 {
        self.object(world)
            .map_or(0, |pod| world.lost_until(text(&pod, "/spec/nodeName")))
    }

    /// Patches the pod as soon as the node is reachable.
    async fn write(&self, shared: &Shared, patch: Value) {
        self.say(shared, patch, |_| true).await;
    }

    /// Patches the pod as soon as the node is reachable, if `holds` is true for the pod then.
    async fn say(&self, shared: &Shared, patch: Value, holds: impl FnOnce(&Value) -> bool) {
        let away = {
            let world = shared.lock();
            let names = world
                .agents
                .get(&self.uid)
                .into_iter()
                .flatten()
                .map(|process| process.name.clone());
            let cut_off = names
                .filter_map(|name| world.cut_off.get(&name).copied())
                .max()
                .unwrap_or(0);
            cut_off
                .max(self.lost_until(&world))
                .max(world.api_away_until)
                .saturating_sub(millis())
        };
        if away > 0 {
            sleep(Duration::from_millis(away)).await;
        }
        shared.act(|world| {
            if self.object(world).is_some_and(|pod| holds(&pod)) {
                world.store.node_writes(&self.key, &self.uid, &patch);
            }
        });
    }
}

fn state(state: &Value) -> Value {
    json!([{"name": pod_env::CONTAINER, "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state}])
}

async fn one(shared: Shared, object: Arc<Value>) {
    let key = Key::of(PODS, NS, text(&object, "/metadata/name"));
    let pod = Pod {
        key,
        uid: text(&object, "/metadata/uid").to_owned(),
    };
    shared.pause(10).await;
    let there = shared.act(|world| {
        let there = pod.object(world).is_some_and(|object| !is_leaving(&object));
        if there {
            world.store.node_writes(
                &pod.key,
                &pod.uid,
                &json!({"spec": {"nodeName": world.place()}}),
            );
        }
        there
    });
    if !there {
        return;
    }
    shared.pause(200).await;
    loop {
        let lost = pod.lost_until(&shared.lock()).saturating_sub(millis());
        if lost == 0 {
            break;
        }
        sleep(Duration::from_millis(lost)).await;
    }
    if pod.object(&shared.lock()).is_none() {
        return;
    }
    if shared.lock().schedule.scene.no_image {
        let waiting =
            json!({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}});
        pod.write(
            &shared,
            json!({"status": {"containerStatuses": state(&waiting)}}),
        )
        .await;
        let changes = shared.changes();
        let deleted = |world: &World| pod.object(world).is_none_or(|object| is_leaving(&object));
        while !deleted(&shared.lock()) {
            changes.next().await;
        }
        end(&shared, &pod, None, String::new()).await;
        return;
    }
    let mut all = vec![start(&shared, &object, 1)];
    let reporter = shared.clone();
    let running = Pod {
        key: pod.key.clone(),
        uid: pod.uid.clone(),
    };
    tokio::spawn(async move {
        reporter.pause(100).await;
        let unfinished = running
            .object(&reporter.lock())
            .is_some_and(|o| o["status"]["phase"] == "Pending");
        if unfinished {
            let status =
                json!({"phase": "Running", "containerStatuses": state(&json!({"running": {}}))});
            running
                .say(&reporter, json!({"status": status}), |pod| {
                    pod["status"]["phase"] == "Pending"
                })
                .await;
        }
    });
    let code = watch(&shared, &pod, &object, &mut all).await;
    let message = all.iter().map(said).next().unwrap_or_default();
    for started in &all {
        started.process.kill();
        started.task.abort();
    }
    end(&shared, &pod, code, message).await;
}

fn said(started: &Started) -> String {
    std::fs::read_to_string(started.log.path()).unwrap_or_default()
}

/// Waits until the container has ended. Returns its exit code, or none when it was killed.
async fn watch(shared: &Shared, pod: &Pod, object: &Value, all: &mut Vec<Started>) -> Option<u8> {
    let changes = shared.changes();
    let grace = Duration::from_secs(
        object["spec"]["terminationGracePeriodSeconds"]
            .as_u64()
            .unwrap_or(30),
    );
    let (mut told, mut kill_at) = (false, None);
    loop {
        let (gone, deleted, twice, outlive) = {
            let mut world = shared.lock();
            let now = pod.object(&world);
            let grace = now
                .as_ref()
                .and_then(|o| o["metadata"]["deletionGracePeriodSeconds"].as_u64());
            let twice = world.twice.remove(&pod.uid);
            let hears = pod.lost_until(&world) <= millis();
            (
                now.is_none(),
                grace.filter(|_| hears),
                twice,
                world.outlive.get(&pod.uid).copied().unwrap_or(0),
            )
        };
        if twice {
            let count = u32::try_from(all.len()).unwrap() + 1;
            all.push(start(shared, object, count));
        }
        if gone && kill_at.is_none() {
            kill_at = Some(tokio::time::Instant::now() + Duration::from_millis(outlive + 20));
        } else if let (Some(seconds), false) = (deleted, told) {
            told = true;
            shared
                .lock()
                .note(&format!("   SIGTERM to {}", all[0].process.name));
            for started in all.iter() {
                let _ = started.stop.send(());
            }
            kill_at = Some(tokio::time::Instant::now() + grace.min(Duration::from_secs(seconds)));
        }
        let first = &mut all[0];
        tokio::select! {
            biased;
            () = first.process.death() => return None,
            code = &mut first.task => return code.ok(),
            () = tokio::time::sleep_until(kill_at.unwrap_or_else(tokio::time::Instant::now)), if kill_at.is_some() => return None,
            () = changes.next() => {}
        }
    }
}

/// Reports the container's exit, and then confirms that a deleted pod has ended.
async fn end(shared: &Shared, pod: &Pod, code: Option<u8>, message: String) {
    shared.pause(30).await;
    let exit = code.map_or(137, i32::from);
    let terminated = json!({"terminated": {"exitCode": exit, "reason": if exit == 0 { "Completed" } else { "Error" }, "message": message}});
    let phase = if exit == 0 { "Succeeded" } else { "Failed" };
    pod.write(
        shared,
        json!({"status": {"phase": phase, "containerStatuses": state(&terminated)}}),
    )
    .await;
    // A pod that is deleted now or later needs no grace period.
    let changes = shared.changes();
    loop {
        let Some(object) = pod.object(&shared.lock()) else {
            return;
        };
        if is_leaving(&object) {
            shared.pause(20).await;
            pod.write(
                shared,
                json!({"metadata": {"deletionGracePeriodSeconds": 0}}),
            )
            .await;
        }
        changes.next().await;
    }
}
