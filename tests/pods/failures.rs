//! Pods that cannot start, or start without their Secrets: each has a named reason within its deadline, and nothing is applied.

use anyhow::{Context, Result, ensure};
use crds::{FailureClass, TerraformRunStatus, conditions, reason};
use serde_json::json;

use crate::suite::{SOON, Scene, Test, condition, holds};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("failures::missing_secrets_are_named", secret),
        Test::new("failures::missing_image_stalls_then_fails", image),
        Test::new("failures::missing_account_is_named_and_waited_for", account),
        Test::new("failures::exceeded_quota_fails_the_run", quota),
    ]
}

async fn secret(scene: Scene) -> Result<()> {
    let variable = |object: &str, kind: &str| json!({"name": object, "valueFrom": {kind: {"name": object, "key": "wanted"}}});
    scene.secret("empty", &[("other", "x")])?;
    // The pod starts without these objects and reports first which are missing.
    let lacks = [
        variable("empty", "secretKeyRef"),
        variable("absent", "secretKeyRef"),
        variable("nowhere", "configMapKeyRef"),
    ];
    scene
        .scripted("a", json!({}), json!({"variables": lacks}))
        .await?;
    let status = scene
        .fails(
            "a",
            FailureClass::Configuration,
            reason::SECRET_NOT_FOUND,
            SOON,
        )
        .await?;
    let message = status.failure.context("no failure")?.message;
    holds(&message, "Secret empty")?;
    holds(&message, "wants empty/wanted")
}

async fn image(scene: Scene) -> Result<()> {
    let spec = json!({"runner": {"image": "localhost/no-such-image:1", "imagePullPolicy": "Never"}, "timeouts": {"start": "30s"}});
    scene.scripted("a", json!({}), spec).await?;
    let named = |s: &TerraformRunStatus| {
        s.is_terminal()
            || s.failure
                .as_ref()
                .is_some_and(|failure| failure.reason == reason::IMAGE_NOT_AVAILABLE)
                && condition(s, conditions::STALLED, "True", reason::IMAGE_NOT_AVAILABLE).is_some()
    };
    scene.until("a", "named as stalled", SOON, named).await?;
    scene
        .fails(
            "a",
            FailureClass::Configuration,
            reason::IMAGE_NOT_AVAILABLE,
            SOON,
        )
        .await
        .map(drop)
}

async fn account(scene: Scene) -> Result<()> {
    // The wait does not time out within this test, which checks only that the run reports the problem at once and continues after the
    // correction.
    let spec = json!({"runner": {"serviceAccountName": "deployer"}, "approval": {"mode": "Automatic"}, "timeouts": {"start": "24h"}});
    scene.scripted("a", json!({}), spec).await?;
    let status = scene
        .until("a", "named as held up", SOON, |s| s.failure.is_some())
        .await?;
    let failure = status.failure.context("no failure")?;
    ensure!(
        failure.reason == reason::SERVICE_ACCOUNT_NOT_FOUND
            && failure.class == FailureClass::Configuration,
        "{failure:?}"
    );
    ensure!(status.result.is_none() && failure.changes == crds::Changed::None);
    holds(
        &status.message.context("no message")?,
        "there is no ServiceAccount deployer in namespace",
    )?;
    holds(
        &scene.kubectl(&["get", "tfrun", "a"])?,
        "ServiceAccountNotFound",
    )?;
    let step = status.next_step.context("no next step")?;
    scene.paste(&step)?;
    let status = scene.ends("a", crds::RunResult::Applied).await?;
    ensure!(
        status.failure.is_none() && status.next_step.is_none(),
        "{status:?}"
    );
    ensure!(
        status.attempt.is_some_and(|attempt| attempt.number == 1),
        "it is the same attempt that goes on"
    );
    Ok(())
}

async fn quota(scene: Scene) -> Result<()> {
    scene.kubectl(&["create", "quota", "none", "--hard=pods=0"])?;
    // The quota takes effect once its controller has seen it.
    let seconds = format!("--timeout={}s", SOON.as_secs());
    scene.kubectl(&[
        "wait",
        "--for=jsonpath={.status.hard.pods}=0",
        &seconds,
        "quota/none",
    ])?;
    scene
        .scripted("a", json!({}), json!({"timeouts": {"start": "20s"}}))
        .await?;
    let status = scene
        .fails("a", FailureClass::Timeout, reason::QUOTA_EXCEEDED, SOON)
        .await?;
    holds(
        &status.failure.context("no failure")?.message,
        "exceeded quota",
    )
}
