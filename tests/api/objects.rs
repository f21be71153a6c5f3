//! Compares pods, Leases and Roles of the simulated API server with the real one, as far as the simulator relies on them: creation,
//! takeover, preconditions, finalizers, deletion with and without grace, and the events of a watch.

use anyhow::{Context, Result, ensure};
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{
    Api,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams, Preconditions,
        WatchEvent, WatchParams,
    },
};
use played::{
    PODS, Refusal, User,
    store::{Edit, Key, Store},
};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};

use crate::{
    conformance::class,
    world::{Test, World},
};

const OPERATIONS: u32 = 90;
const NAME: &str = "x";
const LEASES: &str = "leases";
const ROLES: &str = "roles";

pub(crate) fn tests() -> Vec<Test> {
    vec![Test::new("conformance::pods_leases_and_roles_are_played_as_they_are", true, objects)]
}

/// An operation on an object. Versions and UIDs differ between the two servers, so the operation states only whether to send the correct
/// one.
#[derive(Clone, Debug)]
enum Act {
    Create,
    Replace {
        right: bool,
    },
    Patch {
        patch: Value,
        under: Option<bool>,
    },
    Delete {
        grace: Option<u32>,
        uid: Option<bool>,
    },
    /// Pods only.
    Bind,
    Ends,
}

struct Both {
    real: Api<DynamicObject>,
    resource: &'static str,
    namespace: String,
    played: Store,
    user: User,
}

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap_or_default()
}

fn kind(resource: &str) -> ApiResource {
    let of = |group: &str, kind: &str| ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
    match resource {
        PODS => of("", "Pod"),
        LEASES => of("coordination.k8s.io", "Lease"),
        _ => of("rbac.authorization.k8s.io", "Role"),
    }
}

fn fresh(resource: &str, finalizers: bool) -> Value {
    let mut object = json!({"metadata": {"name": NAME, "labels": {"a": "1"}}});
    if finalizers {
        object["metadata"]["finalizers"] = json!(["pawl.run/attempt"]);
    }
    match resource {
        PODS => {
            let container = json!({"name": "runner", "image": "none"});
            object["spec"] =
                json!({"serviceAccountName": "agent", "automountServiceAccountToken": false, "containers": [container]});
        }
        LEASES => object["spec"] = json!({"holderIdentity": "team/a/1"}),
        _ => object["rules"] = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]),
    }
    object
}

/// A version that no object of either world reaches.
const OTHER: &str = "4000000000";

/// The compared parts of an object.
fn essence(object: &Value) -> Value {
    let metadata = &object["metadata"];
    json!({"labels": metadata["labels"], "finalizers": metadata["finalizers"].as_array().map_or(0, Vec::len),
        "deleted": !metadata["deletionTimestamp"].is_null(), "grace": metadata["deletionGracePeriodSeconds"],
        "holder": object["spec"]["holderIdentity"], "rules": object["rules"], "node": object["spec"]["nodeName"],
        "phase": object["status"]["phase"]})
}

impl Both {
    fn key(&self) -> Key {
        Key::of(self.resource, &self.namespace, NAME)
    }

    async fn really(&self, act: &Act) -> kube::Result<()> {
        let params = PatchParams::default();
        let there = self.real.get_opt(NAME).await?;
        let version = |right: bool| {
            if right { there.as_ref().and_then(kube::ResourceExt::resource_version) } else { Some(OTHER.to_owned()) }
        };
        match act {
            Act::Create => {
                let object = serde_json::from_value(fresh(self.resource, true)).map_err(kube::Error::SerdeError)?;
                self.real.create(&PostParams::default(), &object).await.map(drop)
            }
            Act::Replace { right } => {
                let mut object: DynamicObject =
                    serde_json::from_value(fresh(self.resource, false)).map_err(kube::Error::SerdeError)?;
                object.metadata.resource_version = version(*right);
                object.data["spec"]["holderIdentity"] = json!("team/b/2");
                self.real.replace(NAME, &PostParams::default(), &object).await.map(drop)
            }
            Act::Patch { patch, under } => {
                let mut patch = patch.clone();
                if let Some(right) = under {
                    patch["metadata"]["resourceVersion"] = json!(version(*right));
                }
                self.real.patch(NAME, &params, &Patch::Merge(patch)).await.map(drop)
            }
            Act::Delete { grace, uid } => {
                let right = there.as_ref().and_then(kube::ResourceExt::uid);
                let uid = uid.map(|is_right| if is_right { right.unwrap_or_default() } else { "other".to_owned() });
                let preconditions = uid.map(|uid| Preconditions { uid: Some(uid), resource_version: None });
                let params = DeleteParams { grace_period_seconds: *grace, preconditions, ..DeleteParams::default() };
                self.real.delete(NAME, &params).await.map(drop)
            }
            Act::Bind => {
                let binding = json!({"metadata": {"name": NAME}, "target": {"kind": "Node", "name": "n"}});
                self.real.create_subresource::<_, Value>("binding", NAME, &PostParams::default(), &binding).await.map(drop)
            }
            Act::Ends => {
                let patch = json!({"status": {"phase": "Succeeded"}});
                self.real.patch_status(NAME, &params, &Patch::Merge(patch)).await.map(drop)
            }
        }
    }

    fn in_play(&mut self, act: &Act) -> Result<(), Refusal> {
        let (key, user) = (self.key(), self.user.clone());
        let there = self.played.get(&key).ok();
        let text = |field: &str| there.as_ref().map_or(Value::Null, |object| object["metadata"][field].clone());
        let version = |right: bool| if right { text("resourceVersion") } else { json!(OTHER) };
        match act {
            Act::Create => {
                self.played.create(&user, self.resource, &self.namespace, fresh(self.resource, true), false, now()).map(drop)
            }
            Act::Replace { right } => {
                let mut object = fresh(self.resource, false);
                object["metadata"]["resourceVersion"] = version(*right);
                object["spec"]["holderIdentity"] = json!("team/b/2");
                self.played.edit(&user, &key, false, &Edit::Replace(object), false).map(drop)
            }
            Act::Patch { patch, under } => {
                let mut patch = patch.clone();
                if let Some(right) = under {
                    patch["metadata"]["resourceVersion"] = version(*right);
                }
                self.played.edit(&user, &key, false, &Edit::Merge(patch), false).map(drop)
            }
            Act::Delete { grace, uid } => {
                let wanted = uid.map_or(Value::Null, |right| json!({"uid": if right { text("uid") } else { json!("other") }}));
                // The pod's default grace period.
                let grace = grace.map(u64::from).or((self.resource == PODS).then_some(30));
                self.played.delete(&key, &wanted, grace, now()).map(drop)
            }
            Act::Bind | Act::Ends => {
                let uid = self.played.get(&key)?["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
                let patch = if matches!(act, Act::Bind) {
                    json!({"spec": {"nodeName": "n"}})
                } else {
                    json!({"status": {"phase": "Succeeded"}})
                };
                self.played.node_writes(&key, &uid, &patch);
                Ok(())
            }
        }
    }
}

/// Draws an operation that fits the present object.
fn anything(random: &mut StdRng, resource: &str, there: Option<&DynamicObject>) -> Act {
    let Some(there) = there else {
        return if random.random_bool(0.7) { Act::Create } else { Act::Delete { grace: None, uid: None } };
    };
    let placed = !there.data["spec"]["nodeName"].is_null();
    match random.random_range(0..14) {
        0 => Act::Create,
        1..=2 => {
            let label = json!({"metadata": {"labels": {"a": random.random_range(1..4).to_string()}}});
            Act::Patch { patch: label, under: *[None, Some(true), Some(false)].choose(random).unwrap_or(&None) }
        }
        3..=4 => {
            let finalizers = if random.random_bool(0.7) { json!([]) } else { json!(["pawl.run/attempt"]) };
            Act::Patch { patch: json!({"metadata": {"finalizers": finalizers}}), under: None }
        }
        5..=7 => {
            let grace = *[None, Some(0), Some(10)].choose(random).unwrap_or(&None);
            Act::Delete { grace, uid: *[None, Some(true), Some(false)].choose(random).unwrap_or(&None) }
        }
        8..=10 if resource == PODS && !placed && there.metadata.deletion_timestamp.is_none() => Act::Bind,
        8..=10 if resource == PODS && placed => Act::Ends,
        _ if resource == LEASES => Act::Replace { right: random.random_bool(0.7) },
        _ => Act::Patch { patch: json!({"metadata": {"labels": {"b": "x"}}}), under: Some(true) },
    }
}

async fn objects(world: World) -> Result<()> {
    let mut landed = 0;
    for (seed, resource) in (0_u64..).zip([PODS, PODS, PODS, LEASES, ROLES]) {
        let mut random = StdRng::seed_from_u64(seed);
        let namespace = world.namespace().await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(world.admin.clone(), &namespace);
        accounts.create(&PostParams::default(), &serde_json::from_value(json!({"metadata": {"name": "agent"}}))?).await?;
        let real: Api<DynamicObject> = Api::namespaced_with(world.admin.clone(), &namespace, &kind(resource));
        let from = real.list(&ListParams::default()).await?.metadata.resource_version.context("no version")?;
        let mut both = Both { real, resource, namespace, played: Store::default(), user: User::with("admin", &[]) };
        let mut done = Vec::new();
        for _ in 0..OPERATIONS {
            let act = anything(&mut random, resource, both.real.get_opt(NAME).await?.as_ref());
            let answer = both.really(&act).await;
            let code = match &answer {
                Ok(()) => None,
                Err(kube::Error::Api(status)) => Some(status.code),
                Err(error) => anyhow::bail!("no answer: {error}"),
            };
            let played = both.in_play(&act);
            done.push(format!("{act:?}: {}", class(code)));
            let told = || format!("{resource}, seed {seed}: {}\nreal {answer:?}\nplayed {played:?}", done.join("\n"));
            ensure!(class(code) == class(played.as_ref().err().map(|refusal| refusal.code)), "other answers; {}", told());
            let there = both.real.get_opt(NAME).await?.map(serde_json::to_value).transpose()?.as_ref().map(essence);
            let here = both.played.get(&both.key()).ok().as_deref().map(essence);
            ensure!(there == here, "other objects; {}\n{there:?}\n{here:?}", told());
            landed += u32::from(code.is_none());
        }
        let (there, here) = (watched(&both, &from).await?, changes(&both));
        ensure!(there == here, "{resource}, seed {seed}: a watch shows\n{there:#?}\nand is played as\n{here:#?}");
    }
    ensure!(landed > 200, "hardly anything landed: {landed}");
    Ok(())
}

/// The events of a real watch since a version. A deletion has no object.
async fn watched(both: &Both, from: &str) -> Result<Vec<(&'static str, Value)>> {
    let mut events = std::pin::pin!(both.real.watch(&WatchParams::default().timeout(2).disable_bookmarks(), from).await?);
    let mut seen = Vec::new();
    while let Some(event) = events.next().await {
        seen.push(match event? {
            WatchEvent::Added(object) => ("added", essence(&serde_json::to_value(object)?)),
            WatchEvent::Modified(object) => ("modified", essence(&serde_json::to_value(object)?)),
            WatchEvent::Deleted(_) => ("deleted", Value::Null),
            other => anyhow::bail!("not a change: {other:?}"),
        });
    }
    Ok(seen)
}

/// The same events of the simulated API server, as the simulator's watches deliver them.
fn changes(both: &Both) -> Vec<(&'static str, Value)> {
    let (mut there, mut seen) = (false, Vec::new());
    for change in both.played.since(0).iter().filter(|change| change.key == both.key()) {
        seen.push(match (change.deleted, there) {
            (true, _) => ("deleted", Value::Null),
            (false, false) => ("added", essence(&change.object)),
            (false, true) => ("modified", essence(&change.object)),
        });
        there = !change.deleted;
    }
    seen
}
