//! Cancels a run before its pod starts and during its apply. The agent's tests (`attempt`, `apply`) cover the phases before the claim, and an
//! apply that still succeeds.

use anyhow::{Context, Result, ensure};
use crds::{Changed, FailureClass, RunResult, names, reason};
use ledger::what;
use serde_json::json;

use crate::suite::{SOON, Scene, Test, automatic};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("cancel::cancel_in_apply_sends_one_interrupt", in_mid_apply),
        Test::new(
            "cancel::cancel_before_the_pod_starts_ends_the_run",
            before_the_pod,
        ),
    ]
}

async fn in_mid_apply(scene: Scene) -> Result<()> {
    // Far more than can be created before the interrupt.
    let script = json!({"resources": 60, "apply_ms": 1000});
    scene.scripted("a", script, automatic()).await?;
    scene.until_ledger("a", what::RESOURCE, None).await?;
    scene
        .annotate("a", &[(names::CANCEL, Some("stop"))])
        .await?;
    let status = scene.ends("a", RunResult::Failed).await?;
    let failure = status.failure.context("no failure")?;
    ensure!(
        failure.class == FailureClass::Interrupted && failure.reason == reason::APPLY_INTERRUPTED,
        "{failure:?}"
    );
    ensure!(failure.changes == Changed::Some, "{failure:?}");
    let ledger = scene.ledger("a");
    let signals = ledger::select(&ledger, what::SIGNAL, None);
    ensure!(signals.len() == 1, "{signals:?}");
    scene.saved("a")
}

async fn before_the_pod(scene: Scene) -> Result<()> {
    scene
        .scripted(
            "a",
            json!({}),
            json!({"runner": {"nodeSelector": {"no": "such-node"}}}),
        )
        .await?;
    scene
        .until("a", "attempted", SOON, |s| s.attempt.is_some())
        .await?;
    scene
        .annotate("a", &[(names::CANCEL, Some("never mind"))])
        .await?;
    scene.ends("a", RunResult::Canceled).await.map(drop)
}
