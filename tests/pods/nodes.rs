//! A node whose kubelet is lost. There is only one node, so these tests take it from the whole cluster.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::{Phase, RunResult, TerraformRunStatus, conditions, names, reason};
use harness::{
    cluster::node::{NODE, is_ready},
    wait,
};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use ledger::what;
use serde_json::{Value, json};

use crate::suite::{LATER, Scene, TIMEOUT, Test, automatic, condition, gated, holds, with};

pub(crate) fn alone() -> Vec<Test> {
    vec![Test::new(
        "nodes::lost_node_is_reported_fenced_and_abandoned",
        lost,
    )]
}

/// Time limits of the reports and results after the loss.
const IN_TIME: Duration = Duration::from_secs(30);
const A_MINUTE: Duration = Duration::from_secs(60);

async fn until_node(scene: &Scene, ready: bool) -> Result<()> {
    let nodes: Api<Node> = Api::all(scene.suite.client.clone());
    let what = if ready { "ready" } else { "lost" };
    wait::object(&nodes, NODE, what, LATER, |node| is_ready(node) == ready)
        .await
        .map(drop)
}

fn says(status: &TerraformRunStatus) -> bool {
    condition(
        status,
        conditions::STALLED,
        "True",
        reason::NODE_UNREACHABLE,
    )
    .is_some()
}

async fn lost(scene: Scene) -> Result<()> {
    let short = |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5});
    let tolerations = json!([
        short("node.kubernetes.io/unreachable"),
        short("node.kubernetes.io/not-ready")
    ]);
    let once = |more: Value| with(automatic(), with(json!({"retry": {"limit": 0}}), more));
    let hangs = json!({"commands": {"plan": [{"only": [1], "sleep_ms": 600_000}]}});
    scene
        .scripted(
            "plans",
            hangs.clone(),
            once(json!({"runner": {"tolerations": tolerations}})),
        )
        .await?;
    scene.scripted("cancelled", hangs, once(json!({}))).await?;
    scene
        .scripted(
            "applies",
            json!({"resources": gated(2)}),
            once(json!({"runner": {"terminationGracePeriodSeconds": 30}})),
        )
        .await?;
    scene.scripted("ended", json!({}), once(json!({}))).await?;
    for name in ["plans", "cancelled"] {
        scene
            .until_ledger(name, what::COMMAND_START, Some("plan"))
            .await?;
    }
    scene.until_ledger("applies", what::RESOURCE, None).await?;
    scene.ends("ended", RunResult::Applied).await?;

    let kubelet = scene.suite.cluster.hold_kubelet()?;
    until_node(&scene, false).await?;
    for name in ["plans", "cancelled", "applies"] {
        scene
            .until(name, "said to be on a lost node", IN_TIME, says)
            .await?;
    }
    scene
        .annotate("cancelled", &[(names::CANCEL, Some("not now"))])
        .await?;
    scene.kubectl(&["delete", "tfrun", "ended", "--wait=false"])?;
    let second = |s: &TerraformRunStatus| {
        s.attempt
            .as_ref()
            .is_some_and(|attempt| attempt.number == 2 && attempt.tries == 1)
    };
    scene
        .until(
            "plans",
            "at its second attempt, as its first try",
            A_MINUTE,
            second,
        )
        .await?;
    scene
        .ends_within("cancelled", RunResult::Canceled, A_MINUTE)
        .await?;
    wait::gone(&scene.runs(), "ended", A_MINUTE)
        .await
        .context("a run that has ended is not deleted while its node is lost")?;
    let status = scene.status("applies").await?;
    let told = condition(
        &status,
        conditions::STALLED,
        "True",
        reason::NODE_UNREACHABLE,
    )
    .context("it is no longer stalled")?;
    ensure!(status.phase == Some(Phase::Apply), "{:?}", status.phase);
    let command = names::abandon_command(&scene.namespace, "applies");
    holds(&told.message, &command)?;
    scene.paste(&command)?;
    let status = scene
        .ends_within("applies", RunResult::Indeterminate, A_MINUTE)
        .await?;
    holds(
        status.message.as_deref().unwrap_or_default(),
        "abandoned the apply: REASON",
    )?;
    scene
        .until("applies", "without its lease", A_MINUTE, |s| {
            s.lease.is_none()
        })
        .await?;

    drop(kubelet);
    until_node(&scene, true).await?;
    for deployment in ["deployment/pawl-controller", "deployment/pawl-datastore"] {
        scene.suite.cluster.kubectl(&[
            "-n",
            "pawl-system",
            "rollout",
            "status",
            deployment,
            TIMEOUT,
        ])?;
    }
    scene
        .ends_within("plans", RunResult::Applied, LATER)
        .await?;
    ensure!(scene.starts("plans", "apply") == 1 && scene.starts("applies", "apply") == 1);
    scene.kubectl(&["delete", "tfrun", "applies", "--wait=false"])?;
    scene.gone("applies").await
}
