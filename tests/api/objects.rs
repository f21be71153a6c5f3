//! Compares pods, Leases and Roles of the simulated API server with the real one, as far as the simulator relies on them: creation,
//! takeover, preconditions, finalizers, deletion with and without grace, and the events of a watch.

use anyhow::{Context, Result, ensure};
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{
    Api,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
        PostParams, Preconditions, WatchEvent, WatchParams,
    },
};
use played::{
    PODS, Refusal, User,
    store::{Edit, Key, Store},
};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};

use crate::{
    conformance::{class, code},
    world::{World, tests},
};

const OPERATIONS: u32 = 90;
const NAME: &str = "x";
const LEASES: &str = "leases";
const ROLES: &str = "roles";

tests! {
    Guarded: pods_leases_and_roles_equal_the_real_ones,
}

/// An operation on an object. Versions and UIDs differ between the two servers, so the operation states only whether to send the correct
/// one.
#[derive(Clone, Debug)]
enum Act {
    Create,
    Replace(bool),
    Merge(Value, Option<bool>),
    /// The grace period, and whether the precondition on the UID is right.
    Delete(Option<u32>, Option<bool>),
    /// Pods only.
    Bind,
    Ends,
}

impl Act {
    /// The written object or patch in a world in which the present object has this metadata.
    fn body(&self, resource: &str, metadata: &Value) -> Value {
        let version = |right: bool| {
            if right {
                metadata["resourceVersion"].clone()
            } else {
                json!(OTHER)
            }
        };
        match self {
            Self::Create => fresh(resource, true),
            Self::Replace(right) => {
                let mut object = fresh(resource, false);
                object["metadata"]["resourceVersion"] = version(*right);
                object["spec"]["holderIdentity"] = json!("team/b/2");
                object
            }
            Self::Merge(patch, under) => {
                let mut patch = patch.clone();
                if let Some(right) = under {
                    patch["metadata"]["resourceVersion"] = version(*right);
                }
                patch
            }
            Self::Delete(_, uid) => uid.map_or(Value::Null, |right| {
                if right {
                    metadata["uid"].clone()
                } else {
                    json!("other")
                }
            }),
            Self::Bind => json!({"spec": {"nodeName": "n"}}),
            Self::Ends => json!({"status": {"phase": "Succeeded"}}),
        }
    }
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
    let of =
        |group: &str, kind: &str| ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
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
            object["spec"] = json!({"serviceAccountName": "agent", "automountServiceAccountToken": false, "containers": [container]});
        }
        LEASES => object["spec"] = json!({"holderIdentity": "team/a/1"}),
        _ => {
            object["rules"] = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
        }
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

    async fn really(&self, act: &Act) -> Result<kube::Result<()>> {
        let (params, put) = (PatchParams::default(), PostParams::default());
        let there = serde_json::to_value(self.real.get_opt(NAME).await?)?;
        let body = act.body(self.resource, &there["metadata"]);
        let answer = match act {
            Act::Create => self
                .real
                .create(&put, &serde_json::from_value(body)?)
                .await
                .map(drop),
            Act::Replace(_) => self
                .real
                .replace(NAME, &put, &serde_json::from_value(body)?)
                .await
                .map(drop),
            Act::Merge(..) => self
                .real
                .patch(NAME, &params, &Patch::Merge(body))
                .await
                .map(drop),
            Act::Delete(grace, _) => {
                let uid = body.as_str().map(str::to_owned);
                let preconditions = uid.map(|uid| Preconditions {
                    uid: Some(uid),
                    resource_version: None,
                });
                let params = DeleteParams {
                    grace_period_seconds: *grace,
                    preconditions,
                    ..DeleteParams::default()
                };
                self.real.delete(NAME, &params).await.map(drop)
            }
            Act::Bind => {
                let binding =
                    json!({"metadata": {"name": NAME}, "target": {"kind": "Node", "name": "n"}});
                self.real
                    .create_subresource::<_, Value>("binding", NAME, &put, &binding)
                    .await
                    .map(drop)
            }
            Act::Ends => self
                .real
                .patch_status(NAME, &params, &Patch::Merge(body))
                .await
                .map(drop),
        };
        Ok(answer)
    }

    fn in_play(&mut self, act: &Act) -> Result<(), Refusal> {
        let (key, user) = (self.key(), self.user.clone());
        let metadata = self
            .played
            .get(&key)
            .map_or(Value::Null, |object| object["metadata"].clone());
        let body = act.body(self.resource, &metadata);
        match act {
            Act::Create => self
                .played
                .create(&user, self.resource, &self.namespace, body, false, now())
                .map(drop),
            Act::Replace(_) => self
                .played
                .edit(&user, &key, false, &Edit::Replace(body), false)
                .map(drop),
            Act::Merge(..) => self
                .played
                .edit(&user, &key, false, &Edit::Merge(body), false)
                .map(drop),
            Act::Delete(grace, _) => {
                // The pod's default grace period.
                let grace = grace
                    .map(u64::from)
                    .or((self.resource == PODS).then_some(30));
                self.played
                    .delete(&key, &json!({"uid": body}), grace, now())
                    .map(drop)
            }
            Act::Bind | Act::Ends => {
                self.played.get(&key)?;
                self.played
                    .node_writes(&key, metadata["uid"].as_str().unwrap_or_default(), &body);
                Ok(())
            }
        }
    }
}

/// Draws an operation that fits the present object.
fn draw(random: &mut StdRng, resource: &str, there: Option<&DynamicObject>) -> Act {
    let Some(there) = there else {
        return if random.random_bool(0.7) {
            Act::Create
        } else {
            Act::Delete(None, None)
        };
    };
    let placed = !there.data["spec"]["nodeName"].is_null();
    let under = *[None, Some(true), Some(false)]
        .choose(random)
        .unwrap_or(&None);
    let grace = *[None, Some(0), Some(10)].choose(random).unwrap_or(&None);
    match random.random_range(0..14) {
        0 => Act::Create,
        1..=2 => {
            let label = random.random_range(1..4).to_string();
            Act::Merge(json!({"metadata": {"labels": {"a": label}}}), under)
        }
        3..=4 => {
            let finalizers = if random.random_bool(0.7) {
                json!([])
            } else {
                json!(["pawl.run/attempt"])
            };
            Act::Merge(json!({"metadata": {"finalizers": finalizers}}), None)
        }
        5..=7 => Act::Delete(grace, under),
        8..=10 if resource == PODS && !placed && there.metadata.deletion_timestamp.is_none() => {
            Act::Bind
        }
        8..=10 if resource == PODS && placed => Act::Ends,
        _ if resource == LEASES => Act::Replace(random.random_bool(0.7)),
        _ => Act::Merge(json!({"metadata": {"labels": {"b": "x"}}}), Some(true)),
    }
}

async fn pods_leases_and_roles_equal_the_real_ones(world: World) -> Result<()> {
    let mut landed = 0;
    for (seed, resource) in (0_u64..).zip([PODS, PODS, PODS, LEASES, ROLES]) {
        let mut random = StdRng::seed_from_u64(seed);
        let namespace = world.namespace().await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(world.admin.clone(), &namespace);
        accounts
            .create(
                &PostParams::default(),
                &serde_json::from_value(json!({"metadata": {"name": "agent"}}))?,
            )
            .await?;
        let real: Api<DynamicObject> =
            Api::namespaced_with(world.admin.clone(), &namespace, &kind(resource));
        let from = real
            .list(&ListParams::default())
            .await?
            .metadata
            .resource_version
            .context("no version")?;
        let mut both = Both {
            real,
            resource,
            namespace,
            played: Store::default(),
            user: User::with("admin", &[]),
        };
        let mut done = Vec::new();
        for _ in 0..OPERATIONS {
            let act = draw(
                &mut random,
                resource,
                both.real.get_opt(NAME).await?.as_ref(),
            );
            let answer = both.really(&act).await?;
            let code = code(&answer)?;
            let played = both.in_play(&act);
            done.push(format!("{act:?}: {}", class(code)));
            let told = || {
                format!(
                    "{resource}, seed {seed}: {}\nreal {answer:?}\nplayed {played:?}",
                    done.join("\n")
                )
            };
            ensure!(
                class(code) == class(played.as_ref().err().map(|refusal| refusal.code)),
                "other answers; {}",
                told()
            );
            let there = both
                .real
                .get_opt(NAME)
                .await?
                .map(serde_json::to_value)
                .transpose()?
                .as_ref()
                .map(essence);
            let here = both.played.get(&both.key()).ok().as_deref().map(essence);
            ensure!(
                there == here,
                "other objects; {}\n{there:?}\n{here:?}",
                told()
            );
            landed += u32::from(code.is_none());
        }
        let (there, here) = (watched(&both, &from).await?, changes(&both));
        ensure!(
            there == here,
            "{resource}, seed {seed}: a watch shows\n{there:#?}\nand is played as\n{here:#?}"
        );
    }
    ensure!(landed > 200, "hardly anything landed: {landed}");
    Ok(())
}

/// The events of a real watch since a version. A deletion has no object.
async fn watched(both: &Both, from: &str) -> Result<Vec<(&'static str, Value)>> {
    let mut events = std::pin::pin!(
        both.real
            .watch(&WatchParams::default().timeout(2).disable_bookmarks(), from)
            .await?
    );
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
    for change in both
        .played
        .since(0)
        .iter()
        .filter(|change| change.key == both.key())
    {
        seen.push(match (change.deleted, there) {
            (true, _) => ("deleted", Value::Null),
            (false, false) => ("added", essence(&change.object)),
            (false, true) => ("modified", essence(&change.object)),
        });
        there = !change.deleted;
    }
    seen
}
