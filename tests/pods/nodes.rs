//! A node whose kubelet is heard of no more. There is one node, so these tests take it from the whole cluster.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use crds::{Phase, RunResult, TerraformRun, conditions, names, reason};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tests::{
    cluster::node::{NODE, is_ready},
    ledger::what,
};

use crate::suite::{LATER, Scene, Test, gated, holds};

pub(crate) fn alone() -> Vec<Test> {
    vec![Test::new("nodes::a_lost_node_is_told_of_fenced_before_the_claim_and_given_up_behind_it", lost)]
}

/// What a run has to say, or to come to, once its node is lost.
const IN_TIME: Duration = Duration::from_secs(30);
const A_MINUTE: Duration = Duration::from_secs(60);

async fn until_node(scene: &Scene, ready: bool) -> Result<()> {
    let nodes: Api<Node> = Api::all(scene.suite.client.clone());
    let started = Instant::now();
    while is_ready(&nodes.get(NODE).await?) != ready {
        ensure!(started.elapsed() < LATER, "the node is not {} after {LATER:?}", if ready { "ready" } else { "lost" });
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

fn says(run: &TerraformRun) -> bool {
    let conditions = run.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    conditions.iter().any(|c| c.type_ == conditions::STALLED && c.status == "True" && c.reason == reason::NODE_UNREACHABLE)
}

/// The lock of a managed state.
fn lock(scene: &Scene, stack: &str) -> Result<Value> {
    Ok(serde_json::from_str::<Value>(&scene.read(&format!("states/{stack}"))?)?["lock"].clone())
}

/// How many versions a managed state has.
fn versions(scene: &Scene, stack: &str) -> Result<usize> {
    Ok(serde_json::from_str::<Value>(&scene.read(&format!("states/{stack}"))?)?["versions"].as_array().map_or(0, Vec::len))
}

const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// A run whose pod was taken away by force keeps its lease while its node is lost, against its own deletion; with the proof that the node is
/// off it goes, and leaves no lock behind.
async fn taken(scene: &Scene) -> Result<()> {
    let status = scene.ends_within("taken", RunResult::Indeterminate, 2 * A_MINUTE).await?;
    ensure!(status.lease.is_some() && !lock(scene, "taken")?.is_null(), "{:?}", status.lease);
    scene.kubectl(&["delete", "tfrun", "taken", "--wait=false"])?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    ensure!(scene.get("taken").await?.status.is_some_and(|status| status.lease.is_some()), "it went while its process may live");
    scene.suite.cluster.kubectl(&["taint", "node", NODE, &format!("{OUT_OF_SERVICE}=off:NoSchedule")])?;
    scene.gone("taken").await?;
    ensure!(lock(scene, "taken")?.is_null(), "a lock of a run that is gone is left: {}", lock(scene, "taken")?);
    Ok(())
}

async fn lost(scene: Scene) -> Result<()> {
    let short = |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5});
    let tolerations = json!([short("node.kubernetes.io/unreachable"), short("node.kubernetes.io/not-ready")]);
    let automatic = |more: Value| {
        let mut spec = json!({"approval": {"mode": "Automatic"}, "retry": {"limit": 0}});
        crate::suite::merge(&mut spec, more);
        spec
    };
    let hangs = json!({"commands": {"plan": [{"only": [1], "sleep_ms": 600_000}]}});
    scene.scripted("plans", hangs.clone(), automatic(json!({"runner": {"tolerations": tolerations}}))).await?;
    scene.scripted("cancelled", hangs, automatic(json!({}))).await?;
    // An account of the namespace, which outlives the attempt: so does the token of a pod that nobody can end.
    scene.kubectl(&["create", "serviceaccount", "deployer"])?;
    for (name, account) in [("applies", json!("deployer")), ("taken", Value::Null)] {
        let runner = json!({"terminationGracePeriodSeconds": 30, "serviceAccountName": account});
        let spec = automatic(json!({"stack": name, "backend": null, "runner": runner}));
        scene.scripted(name, json!({"resources": gated(2), "persist": "each"}), spec).await?;
    }
    scene.scripted("ended", json!({}), automatic(json!({}))).await?;
    for name in ["plans", "cancelled"] {
        scene.until_ledger(name, what::COMMAND_START, Some("plan")).await?;
    }
    for name in ["applies", "taken"] {
        let begun = Instant::now();
        while !scene.read(&format!("states/{name}")).is_ok_and(|state| state.contains("\"number\"")) {
            ensure!(begun.elapsed() < LATER, "the first object is not in the state of {name}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    scene.ends("ended", RunResult::Applied).await?;

    let kubelet = scene.suite.cluster.hold_kubelet()?;
    // One is taken away by force, and its process goes on.
    let pod = scene.pod("taken").await?.name_any();
    scene.kubectl(&["patch", "pod", &pod, "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#])?;
    scene.kubectl(&["delete", "pod", &pod, "--force", "--grace-period=0", "--wait=false"])?;
    until_node(&scene, false).await?;
    for name in ["plans", "cancelled", "applies"] {
        scene.until(name, "said to be on a lost node", IN_TIME, says).await?;
    }
    scene.annotate("cancelled", &[(names::CANCEL, Some("not now"))]).await?;
    scene.kubectl(&["delete", "tfrun", "ended", "--wait=false"])?;
    let second = |run: &TerraformRun| {
        run.status.as_ref().is_some_and(|s| s.attempt.as_ref().is_some_and(|a| a.number == 2 && a.tries == 1))
    };
    scene.until("plans", "at its second attempt, as its first try", A_MINUTE, second).await?;
    scene.ends_within("cancelled", RunResult::Canceled, A_MINUTE).await?;
    let started = Instant::now();
    while scene.runs().get_opt("ended").await?.is_some() {
        ensure!(started.elapsed() < A_MINUTE, "a run that has ended is not deleted while its node is lost");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let applies = scene.get("applies").await?;
    let status = applies.status.clone().context("no status")?;
    ensure!(status.phase == Some(Phase::Apply) && says(&applies), "{:?} {:?}", status.phase, status.conditions);
    let told = status.conditions.iter().find(|c| c.type_ == conditions::STALLED).map(|c| c.message.clone()).unwrap_or_default();
    let command = names::abandon_command(&scene.namespace, "applies");
    holds(&told, &command)?;
    let given_up = scene.paste(&command)?;
    ensure!(given_up.status.success(), "{}", crate::suite::stderr(&given_up));
    let status = scene.ends_within("applies", RunResult::Indeterminate, A_MINUTE).await?;
    holds(status.message.as_deref().unwrap_or_default(), "gave it up: REASON")?;
    let free = |run: &TerraformRun| run.status.as_ref().is_some_and(|status| status.lease.is_none());
    scene.until("applies", "without its lease", A_MINUTE, free).await?;
    ensure!(lock(&scene, "applies")?.is_null(), "{}", lock(&scene, "applies")?);
    let written = versions(&scene, "applies")?;
    // What it does from here on has no effect on its state; how it ended is told by the datastore.
    scene.open("applies").await?;
    let tainted = taken(&scene).await;
    let untainted = scene.suite.cluster.kubectl(&["taint", "node", NODE, &format!("{OUT_OF_SERVICE}-")]);
    tainted?;
    untainted?;
    let settled =
        scene.until("applies", "settled", LATER, |run| run.status.as_ref().is_some_and(|s| s.settled.is_some())).await?;
    let settled = settled.status.and_then(|status| status.settled).context("not settled")?;
    ensure!(settled.result == RunResult::Failed, "{settled:?}");
    ensure!(
        lock(&scene, "applies")?.is_null() && versions(&scene, "applies")? == written && written > 0,
        "its state was written"
    );

    drop(kubelet);
    until_node(&scene, true).await?;
    for deployment in ["deployment/pawl-controller", "deployment/pawl-datastore"] {
        scene.suite.cluster.kubectl(&["-n", "pawl-system", "rollout", "status", deployment, "--timeout=180s"])?;
    }
    scene.ends_within("plans", RunResult::Applied, LATER).await?;
    ensure!(scene.starts("plans", "apply") == 1 && scene.starts("applies", "apply") == 1);
    scene.kubectl(&["delete", "tfrun", "applies", "--wait=false"])?;
    scene.gone("applies").await
}
