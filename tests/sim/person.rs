//! The simulated person, and faults from outside.

use std::time::Duration;

use crds::{Phase, TerraformRun, conditions, names, reason};
use played::{
    User,
    patch::merge,
    store::{Key, RUNS, text},
};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    foreign,
    invariants::has_condition,
    layered,
    schedule::{Gesture, Strike, When},
    world::{NAMESPACES, NODE_NAMES, NS, Process, Shared, World, millis},
};

/// The first run of a life.
pub(crate) const FIRST: &str = "net";
/// The second run of the same stack.
pub(crate) const SECOND: &str = "net-later";

/// How long a plan waits for approval, in seconds.
pub(crate) const EXPIRES_AFTER: u64 = 300;

/// Marker in annotations that were forged while the policies were away.
pub(crate) const FORGED: &str = "forged";

pub(crate) fn alice() -> User {
    User::with(
        "alice",
        &[
            "create",
            names::VERB_APPROVE,
            names::VERB_AUTOAPPROVE,
            names::VERB_ABANDON,
        ],
    )
}

pub(crate) async fn create(shared: Shared) {
    let scene = shared.lock().schedule.scene.clone();
    let make = |user: &User, name: &str, annotations: Value, spec: Value| {
        let mut run = json!({"apiVersion": "pawl.run/v1alpha1", "kind": "TerraformRun",
            "metadata": {"name": name, "annotations": annotations}, "spec": {
            "stack": "net", "source": {"inline": {"files": {"main.tf": ""}}},
            "timeouts": {"start": "60s", "setup": "60s", "init": "60s", "plan": "120s", "apply": "90s"},
            "retry": {"limit": 2}}});
        merge(&mut run["spec"], &spec);
        shared.act(|world| world.create(user, RUNS, run)).unwrap();
    };
    let of_person = |name: &str, automatic: bool| {
        let mode = if automatic { "Automatic" } else { "Manual" };
        let mut approval = json!({"mode": mode, "holdFor": format!("{}s", scene.hold),
            "expiresAfter": format!("{EXPIRES_AFTER}s")});
        if scene.destroys {
            approval["automaticWhen"] = json!({});
        }
        let spec = json!({"operation": scene.operation, "approval": approval});
        make(&alice(), name, json!({}), spec);
    };
    let controller = User::with("controller", &["create", names::VERB_CONTROL]);
    for number in 0..scene.crowd {
        let drift = json!({names::TRIGGER: "Drift"});
        make(
            &controller,
            &format!("drift-{number}"),
            drift,
            json!({"operation": "Plan"}),
        );
    }
    if scene.crowd > 0 {
        sleep(Duration::from_millis(1_500)).await;
    }
    of_person(FIRST, scene.automatic);
    if let Some(later) = scene.second {
        sleep(Duration::from_secs(later.into())).await;
        of_person(SECOND, scene.automatic != scene.rival);
    }
}

async fn due(shared: &Shared, when: When) {
    let (is, after): (fn(&TerraformRun) -> bool, u32) = match when {
        When::At(at) => {
            sleep(Duration::from_millis(at.into())).await;
            return;
        }
        When::Waits(after) => (|run| phase(run) == Some(Phase::AwaitingApproval), after),
        When::Applies(after) => (|run| phase(run) == Some(Phase::Apply), after),
        When::Ended(after) => (|run| phase(run).is_some_and(Phase::is_terminal), after),
        When::Unreachable(after) => (says_it_is_lost, after),
    };
    let changes = shared.changes();
    while !shared.lock().run(FIRST).is_some_and(|run| is(&run)) {
        changes.next().await;
    }
    sleep(Duration::from_millis(after.into())).await;
}

pub(crate) fn says_it_is_lost(run: &TerraformRun) -> bool {
    has_condition(run, (conditions::STALLED, "True", reason::NODE_UNREACHABLE))
}

fn phase(run: &TerraformRun) -> Option<Phase> {
    run.status.as_ref().and_then(|status| status.phase)
}

/// Performs one gesture at its time.
pub(crate) async fn gesture(shared: Shared, when: When, gesture: Gesture) {
    due(&shared, when).await;
    shared.act(|world| {
        world.note(&format!("   alice: {gesture:?}"));
        let said = carry_out(world, gesture);
        if let Err(refusal) = said {
            world.note(&format!("   refused: {}", refusal.message));
            if gesture == Gesture::ApproveWrong {
                world.watcher.refused_wrong = true;
            }
        } else if gesture == Gesture::ApproveWrong && !world.store.lacks_policies {
            world.violated("S3", "a wrong checksum was let through");
        }
    });
}

fn carry_out(world: &mut World, gesture: Gesture) -> Result<(), played::Refusal> {
    let key = Key::of(RUNS, NS, FIRST);
    let approval =
        |checksum: String| json!({names::APPROVE: checksum, names::APPROVED_BY: "alice"});
    let annotations = match gesture {
        Gesture::Approve => approval(waiting(world)),
        Gesture::ApproveWrong => approval(format!("sha256:{}", "f".repeat(64))),
        Gesture::Withdraw => {
            json!({names::APPROVE: null, names::APPROVED_BY: null, names::COMMENT: null})
        }
        Gesture::Deny => json!({names::DENY: "too much"}),
        Gesture::Cancel => json!({names::CANCEL: "not now"}),
        Gesture::Rerun => json!({names::RERUN: "true"}),
        Gesture::Abandon => {
            json!({names::ABANDON: "the machine is gone", names::ABANDONED_BY: "alice"})
        }
        Gesture::Delete => return world.delete(&key, None),
    };
    world.annotate(&alice(), &key, &annotations)
}

/// The checksum of the first run's plan.
fn waiting(world: &World) -> String {
    let status = world.run(FIRST).and_then(|run| run.status.clone());
    status
        .and_then(|status| status.plan)
        .unwrap_or_default()
        .checksum
}

/// While no policy prevents it, a user without the verbs approves in alice's name, and abandons an apply on a lost node.
fn forge(world: &mut World) {
    let is_lost = world.run(FIRST).as_deref().is_some_and(says_it_is_lost);
    let mut forged = json!({names::APPROVE: waiting(world), names::APPROVED_BY: "alice", names::COMMENT: FORGED});
    if is_lost {
        (forged[names::ABANDON], forged[names::ABANDONED_BY]) = (FORGED.into(), "alice".into());
    }
    let _ = world.annotate(
        &User::with("mallory", &[]),
        &Key::of(RUNS, NS, FIRST),
        &forged,
    );
}

/// The newest pod with a living process: of the first run, or of any run of a layer.
fn victim(world: &World) -> Option<(String, String)> {
    let of = format!("{}={FIRST}", names::LABEL_RUN);
    let pods = world.store.list(
        "pods",
        NS,
        if world.schedule.scene.layer.is_some() {
            ""
        } else {
            &of
        },
    );
    let lives = |uid: &str| {
        world
            .agents
            .get(uid)
            .into_iter()
            .flatten()
            .any(|process| !process.is_dead())
    };
    let mut pods = pods
        .iter()
        .rev()
        .map(|pod| (text(pod, "/metadata/name"), text(pod, "/metadata/uid")));
    pods.find(|(_, uid)| lives(uid))
        .map(|(name, uid)| (name.to_owned(), uid.to_owned()))
}

/// Performs one strike.
pub(crate) async fn strike(shared: Shared, at: u32, strike: Strike) {
    sleep(Duration::from_millis(at.into())).await;
    if let Strike::LoseNode(seconds, anew) = strike {
        lose_node(&shared, NODE_NAMES[0], seconds.into(), anew).await;
        return;
    }
    if let Strike::Freeze(seconds) = strike {
        freeze(&shared, seconds.into()).await;
        return;
    }
    if let Strike::Foreign(labelled, seconds) = strike {
        shared.act(|world| world.note(&format!("   strike: {strike:?}")));
        foreign::acts(shared, labelled, seconds).await;
        return;
    }
    let until = |seconds: u8| millis() + u64::from(seconds) * 1000;
    let lasting = shared.act(|world| {
        world.note(&format!("   strike: {strike:?}"));
        let victim = victim(world);
        match strike {
            Strike::Kill => {
                let all = victim.and_then(|(_, uid)| world.agents.get(&uid)).cloned();
                all.into_iter().flatten().for_each(|process| process.kill());
            }
            Strike::Evict => {
                if let Some((name, _)) = victim {
                    let grace = world
                        .pod(&name)
                        .and_then(|pod| pod["spec"]["terminationGracePeriodSeconds"].as_u64());
                    let _ = world.delete(&Key::of("pods", NS, &name), grace);
                }
            }
            Strike::ForceDelete(seconds) => {
                if let Some((name, uid)) = victim {
                    let key = Key::of("pods", NS, &name);
                    world.outlive.insert(uid, u64::from(seconds) * 1000);
                    let _ = world.delete(&key, Some(0));
                    let free = json!({"metadata": {"finalizers": []}});
                    let _ = world.merge(&alice(), &key, free);
                }
            }
            Strike::CutOff(seconds) => {
                let all = victim.and_then(|(_, uid)| world.agents.get(&uid)).cloned();
                for process in all.into_iter().flatten() {
                    world.cut_off.insert(process.name.clone(), until(seconds));
                }
            }
            Strike::Twice => {
                if let Some((_, uid)) = victim {
                    world.twice.insert(uid);
                    // The node checks its pods on every change.
                    world.changed.wake();
                }
            }
            // Handled above, because they take time.
            Strike::LoseNode(..) | Strike::Freeze(_) | Strike::Foreign(..) => {}
            Strike::KillController(index) => {
                if let Some(process) = world.controllers.get(&index) {
                    process.kill();
                }
            }
            Strike::KillSources => world.sources.iter().for_each(Process::kill),
            Strike::Lag(late, seconds) => {
                for index in [0, 1] {
                    world
                        .lag
                        .insert(index, (u64::from(late) * 1000, until(seconds)));
                }
            }
            Strike::LagOf(index, late, seconds) => {
                world
                    .lag
                    .insert(index, (u64::from(late) * 1000, until(seconds)));
            }
            Strike::Relist(index, watch, seconds) => {
                world.deaf.insert((index, watch), until(seconds));
                world.changed.wake();
            }
            Strike::Again(index, count) => {
                world.again.insert(index, count.into());
                world.changed.wake();
            }
            Strike::DatastoreAway(seconds) => world.data.away_until = until(seconds),
            Strike::ApiAway(seconds) => world.api_away_until = until(seconds),
            Strike::PoliciesAway(seconds) => {
                world.set_policies(true);
                return Some(seconds);
            }
        }
        None
    });
    if let Some(seconds) = lasting {
        sleep(Duration::from_secs(seconds.into())).await;
        shared.act(|world| {
            forge(world);
            world.forged_at.get_or_insert(millis());
            world.set_policies(false);
        });
    }
}

/// Freezes the namespace for `seconds`.
async fn freeze(shared: &Shared, seconds: u64) {
    let key = Key::of(NAMESPACES, "", NS);
    shared.act(|world| {
        world.note("   strike: frozen");
        let namespace = json!({"metadata": {"name": NS, "annotations": {names::FREEZE: "true"}}});
        let _ = world.create(&User::default(), NAMESPACES, namespace);
        layered::frozen(world, true);
    });
    sleep(Duration::from_secs(seconds)).await;
    shared.act(|world| {
        world.note("   no longer frozen");
        let _ = world.delete(&key, None);
        layered::frozen(world, false);
    });
}

/// Cuts off a node. The control plane notices after its usual delay; the pods go on or die.
async fn lose_node(shared: &Shared, node: &str, seconds: u64, anew: bool) {
    const NOTICED: u64 = 40;
    let until = shared.act(|world| {
        world.note(&format!("   strike: {node} is lost, anew: {anew}"));
        let until = millis() + seconds * 1000;
        world
            .lost
            .insert(node.to_owned(), until.max(world.lost_until(node)));
        for pod in world.store.list("pods", NS, "") {
            if text(&pod, "/spec/nodeName") != node {
                continue;
            }
            for process in world
                .agents
                .get(text(&pod, "/metadata/uid"))
                .cloned()
                .into_iter()
                .flatten()
            {
                if anew {
                    process.kill();
                } else {
                    world.cut_off.insert(process.name.clone(), until);
                }
            }
        }
        until
    });
    if seconds > NOTICED {
        sleep(Duration::from_secs(NOTICED)).await;
        shared.act(|world| {
            world.note(&format!("   {node} is not Ready"));
            world.tell_node(node, "Unknown");
        });
    }
    sleep(Duration::from_millis(until.saturating_sub(millis()))).await;
    shared.act(|world| {
        if anew {
            world.boots.insert(node.to_owned(), until);
        }
        // It may be lost again.
        if world.lost_until(node) <= millis() {
            world.note(&format!("   {node} is back"));
            world.tell_node(node, "True");
        }
    });
}
