//! Users' mistakes and other failures: each gets a named reason within its deadline, and nothing is applied.

use anyhow::{Context, Result, ensure};
use crds::{FailureClass, conditions, reason};
use harness::wait;
use serde_json::json;
use servers::git::Failure;

use crate::suite::{LATER, SOON, Scene, Test, holds};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("failures::a_syntax_error_names_file_and_line", syntax),
        Test::new("failures::git_that_does_not_answer", unreachable),
        Test::new("failures::a_secret_and_a_key_that_are_missing", secret),
        Test::new("failures::an_image_that_is_not_to_be_had", image),
        Test::new("failures::a_service_account_that_is_missing", account),
        Test::new("failures::a_quota_that_is_exceeded", quota),
        Test::new("failures::a_plan_that_the_state_overtook", stale),
        Test::new("failures::an_apply_that_fails_says_what_was_changed", apply),
        Test::new("failures::a_transient_failure_is_tried_again", transient),
    ]
}

async fn syntax(scene: Scene) -> Result<()> {
    scene.real("a", "resource \"terraform_data\" \"a\" {\n  input = \n}\n", json!({})).await?;
    let status = scene.fails("a", FailureClass::Configuration, reason::INVALID_CONFIGURATION, SOON).await?;
    let failure = status.failure.context("no failure")?;
    let first = failure.diagnostics.first().context("no diagnostic")?;
    ensure!(first.file.as_deref() == Some("main.tf") && first.line == Some(2), "{failure:?}");
    ensure!(failure.changes == crds::Changed::None);
    holds(&scene.kubectl(&["describe", "terraformrun", "a"])?, "main.tf line 2")
}

async fn unreachable(scene: Scene) -> Result<()> {
    let (url, _) = scene.repository("stack", &[("main.tf", "")])?;
    scene.suite.git.fail(&format!("{}/stack", scene.namespace), Failure::Hang);
    let spec = json!({"source": {"git": {"url": url, "revision": "main"}}, "timeouts": {"setup": "3s"}, "retry": {"limit": 0}});
    scene.create("a", spec).await?;
    scene.fails("a", FailureClass::Timeout, reason::DEADLINE_EXCEEDED, LATER).await.map(drop)
}

async fn secret(scene: Scene) -> Result<()> {
    let variable = |object: &str, kind: &str| json!({"name": object, "valueFrom": {kind: {"name": object, "key": "wanted"}}});
    scene.kubectl(&["create", "secret", "generic", "empty", "--from-literal=other=x"])?;
    // The pod starts without these objects and reports first which are missing.
    let lacks = [variable("empty", "secretKeyRef"), variable("absent", "secretKeyRef"), variable("nowhere", "configMapKeyRef")];
    scene.scripted("a", json!({}), json!({"variables": lacks})).await?;
    let status = scene.fails("a", FailureClass::Configuration, reason::SECRET_NOT_FOUND, SOON).await?;
    let message = status.failure.context("no failure")?.message;
    holds(&message, "Secret empty")?;
    holds(&message, "wants empty/wanted")
}

async fn image(scene: Scene) -> Result<()> {
    let spec =
        json!({"runner": {"image": "localhost/no-such-image:1", "imagePullPolicy": "Never"}, "timeouts": {"start": "30s"}});
    scene.scripted("a", json!({}), spec).await?;
    let named = |r: &crds::TerraformRun| {
        r.status.as_ref().is_some_and(|s| {
            s.is_terminal()
                || s.failure.as_ref().is_some_and(|failure| failure.reason == reason::IMAGE_NOT_AVAILABLE)
                    && s.conditions
                        .iter()
                        .any(|c| c.type_ == conditions::STALLED && c.status == "True" && c.reason == reason::IMAGE_NOT_AVAILABLE)
        })
    };
    scene.until("a", "named as stalled", SOON, named).await?;
    scene.fails("a", FailureClass::Configuration, reason::IMAGE_NOT_AVAILABLE, SOON).await.map(drop)
}

async fn account(scene: Scene) -> Result<()> {
    // The wait does not time out within this test, which checks only that the run reports the problem at once and continues after the
    // correction.
    let spec =
        json!({"runner": {"serviceAccountName": "deployer"}, "approval": {"mode": "Automatic"}, "timeouts": {"start": "24h"}});
    scene.scripted("a", json!({}), spec).await?;
    let named = |run: &crds::TerraformRun| run.status.as_ref().is_some_and(|status| status.failure.is_some());
    let status = scene.until("a", "named as held up", SOON, named).await?.status.context("no status")?;
    let failure = status.failure.context("no failure")?;
    ensure!(failure.reason == reason::SERVICE_ACCOUNT_NOT_FOUND && failure.class == FailureClass::Configuration, "{failure:?}");
    ensure!(status.result.is_none() && failure.changes == crds::Changed::None);
    holds(&status.message.context("no message")?, "there is no ServiceAccount deployer in namespace")?;
    holds(&scene.kubectl(&["get", "tfrun", "a"])?, "ServiceAccountNotFound")?;
    let step = status.next_step.context("no next step")?;
    let command = step.split_once("goes on by itself: ").context("no command")?.1;
    scene.paste(command)?;
    let status = scene.ends("a", crds::RunResult::Applied).await?;
    ensure!(status.failure.is_none() && status.next_step.is_none(), "{status:?}");
    ensure!(status.attempt.is_some_and(|attempt| attempt.number == 1), "it is the same attempt that goes on");
    Ok(())
}

async fn quota(scene: Scene) -> Result<()> {
    scene.kubectl(&["create", "quota", "none", "--hard=pods=0"])?;
    // The quota takes effect once its controller has seen it.
    let seconds = format!("--timeout={}s", SOON.as_secs());
    scene.kubectl(&["wait", "--for=jsonpath={.status.hard.pods}=0", &seconds, "quota/none"])?;
    scene.scripted("a", json!({}), json!({"timeouts": {"start": "20s"}})).await?;
    let status = scene.fails("a", FailureClass::Timeout, reason::QUOTA_EXCEEDED, SOON).await?;
    holds(&status.failure.context("no failure")?.message, "exceeded quota")
}

async fn stale(scene: Scene) -> Result<()> {
    scene.real("a", "resource \"terraform_data\" \"a\" {}\n", json!({"backend": scene.backend("stack")})).await?;
    scene.phase("a", crds::Phase::AwaitingApproval).await?;
    // Someone uses the tool by hand.
    let state =
        json!({"version": 4, "terraform_version": "1.10.6", "serial": 7, "lineage": "by-hand", "outputs": {}, "resources": []});
    scene.suite.state.write(&format!("{}/stack", scene.namespace), &state);
    scene.approve("a").await?;
    let status = scene.fails("a", FailureClass::StalePlan, reason::STALE_PLAN, SOON).await?;
    ensure!(status.failure.context("no failure")?.changes == crds::Changed::None);
    Ok(())
}

async fn apply(scene: Scene) -> Result<()> {
    let script = json!({"resources": [
        {"address": "terraform_data.a"},
        {"address": "terraform_data.b", "steps": [{"diagnostic": {"summary": "the cloud said no", "file": "main.tf", "line": 1, "address": "terraform_data.b"}}]},
    ]});
    scene.scripted("a", script, json!({"approval": {"mode": "Automatic"}})).await?;
    let status = scene.ends("a", crds::RunResult::Failed).await?;
    let failure = status.failure.context("no failure")?;
    ensure!(failure.changes == crds::Changed::Some, "{failure:?}");
    let first = failure.diagnostics.first().context("no diagnostic")?;
    ensure!(first.summary == "the cloud said no" && first.address.as_deref() == Some("terraform_data.b"), "{failure:?}");
    ensure!(scene.starts("a", "apply") == 1 && scene.pod_names("a").await?.len() == 1, "a failed apply was tried again");
    Ok(())
}

async fn transient(scene: Scene) -> Result<()> {
    let diagnostic = json!({"only": [1], "diagnostic": {"summary": "Failed to query available provider packages",
        "detail": "could not connect to registry: failed to request discovery document: net/http: TLS handshake timeout"}});
    let script = json!({"commands": {"init": [diagnostic]}});
    scene.scripted("a", script, json!({"approval": {"mode": "Automatic"}})).await?;
    let status = scene.ends_within("a", crds::RunResult::Applied, LATER).await?;
    ensure!(
        status.attempt.context("no attempt")?.number == 2 && scene.starts("a", "init") == 2 && scene.starts("a", "apply") == 1
    );
    ensure!(status.failure.is_none(), "a run that succeeded shows an old failure: {:?}", status.failure);
    // Each attempt has its own Event. Events are published asynchronously.
    let look = async || {
        let told = scene.kubectl(&["describe", "terraformrun", "a"])?;
        let both = (1..=2).all(|n| told.contains(&format!("attempt {n} of at most 4: pod a-")));
        Ok(if both { Ok(()) } else { Err(told) })
    };
    wait::until("each attempt has an Event of its own", SOON, look).await
}
