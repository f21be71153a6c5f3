//! What people get wrong, and what fails them: each a named reason within its deadline, and nothing applied.

use anyhow::{Context, Result, ensure};
use crds::{FailureClass, conditions, reason};
use serde_json::{Value, json};
use tests::servers::{git::Failure, state::LockInfo};

use crate::suite::{LATER, SOON, Scene, Test, holds};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("failures::a_syntax_error_names_file_and_line", syntax),
        Test::new("failures::a_wrong_reference_names_file_and_line", reference),
        Test::new("failures::git_that_does_not_answer", unreachable),
        Test::new("failures::a_repository_a_branch_and_a_path_that_are_missing", missing),
        Test::new("failures::a_secret_and_a_key_that_are_missing", secret),
        Test::new("failures::a_tool_that_is_not_to_be_had", tool),
        Test::new("failures::an_image_that_is_not_to_be_had", image),
        Test::new("failures::a_quota_that_is_exceeded", quota),
        Test::new("failures::a_state_that_would_die_with_the_pod", state),
        Test::new("failures::a_state_that_somebody_locked", locked),
        Test::new("failures::a_plan_that_the_state_overtook", stale),
        Test::new("failures::a_phase_that_does_not_end", deadline),
        Test::new("failures::an_apply_that_fails_says_what_was_changed", apply),
        Test::new("failures::a_transient_failure_is_tried_again", transient),
        Test::new("failures::a_flood_of_output_harms_nobody", flood),
    ]
}

async fn syntax(scene: Scene) -> Result<()> {
    scene.real("a", "resource \"terraform_data\" \"a\" {\n  input = \n}\n", json!({})).await?;
    let status = scene.fails("a", FailureClass::Configuration, reason::INVALID_CONFIGURATION, SOON).await?;
    diagnosed(&scene, "a", status.failure, 2)
}

async fn reference(scene: Scene) -> Result<()> {
    scene.real("a", "resource \"terraform_data\" \"a\" {\n  input = var.nobody\n}\n", json!({})).await?;
    let status = scene.fails("a", FailureClass::Configuration, reason::INVALID_CONFIGURATION, SOON).await?;
    diagnosed(&scene, "a", status.failure, 2)
}

fn diagnosed(scene: &Scene, name: &str, failure: Option<crds::Failure>, line: u32) -> Result<()> {
    let failure = failure.context("no failure")?;
    let first = failure.diagnostics.first().context("no diagnostic")?;
    ensure!(first.file.as_deref() == Some("main.tf") && first.line == Some(line), "{failure:?}");
    ensure!(failure.changes == crds::Changed::None);
    holds(&scene.kubectl(&["describe", "terraformrun", name])?, &format!("main.tf:{line}"))
}

fn git(url: &str, revision: &str, path: &str) -> Value {
    json!({"source": {"git": {"url": url, "revision": revision, "path": path}}, "retry": {"limit": 0}})
}

async fn unreachable(scene: Scene) -> Result<()> {
    // Nobody listens on the discard port of the host.
    scene.create("closed", git(&format!("http://{}:9/r.git", scene.suite.cluster.host()), "main", ".")).await?;
    scene.fails("closed", FailureClass::Transient, reason::SOURCE_UNREACHABLE, LATER).await?;
    let (url, _) = scene.repository("hangs", &[("main.tf", "")])?;
    scene.suite.git.fail(&format!("{}/hangs", scene.namespace), Failure::Hang);
    let mut spec = git(&url, "main", ".");
    spec["timeouts"] = json!({"setup": "3s"});
    scene.create("hangs", spec).await?;
    scene.fails("hangs", FailureClass::Timeout, reason::DEADLINE_EXCEEDED, LATER).await?;
    let (url, _) = scene.repository("broken", &[("main.tf", "")])?;
    scene.suite.git.fail(&format!("{}/broken", scene.namespace), Failure::Status(500));
    scene.create("broken", git(&url, "main", ".")).await?;
    scene.fails("broken", FailureClass::Transient, reason::SOURCE_UNREACHABLE, LATER).await?;
    Ok(())
}

async fn missing(scene: Scene) -> Result<()> {
    let (url, _) = scene.repository("r", &[("main.tf", "")])?;
    let nowhere = format!("{}x", url.trim_end_matches(".git"));
    for (name, spec, why) in [
        ("repository", git(&nowhere, "main", "."), reason::REPOSITORY_NOT_FOUND),
        ("branch", git(&url, "nobody/here", "."), reason::REVISION_NOT_FOUND),
        ("commit", git(&url, &"0123456789".repeat(4), "."), reason::REVISION_NOT_FOUND),
        ("path", git(&url, "main", "no/such"), reason::PATH_NOT_FOUND),
    ] {
        scene.create(name, spec).await?;
        scene.fails(name, FailureClass::Configuration, why, SOON).await?;
    }
    Ok(())
}

async fn secret(scene: Scene) -> Result<()> {
    let variable =
        |name: &str, kind: &str| json!({"variables": [{"name": "x", "valueFrom": {kind: {"name": name, "key": "wanted"}}}]});
    scene.kubectl(&["create", "secret", "generic", "empty", "--from-literal=other=x"])?;
    for (run, object, kind, why) in [
        ("none", "absent", "secretKeyRef", reason::SECRET_NOT_FOUND),
        ("key", "empty", "secretKeyRef", reason::SECRET_NOT_FOUND),
        ("map", "absent", "configMapKeyRef", reason::CONFIG_MAP_NOT_FOUND),
    ] {
        scene.scripted(run, json!({}), variable(object, kind)).await?;
        let status = scene.fails(run, FailureClass::Configuration, why, SOON).await?;
        let message = status.failure.context("no failure")?.message;
        holds(&message, object)?;
        holds(&message, "wanted")?;
    }
    Ok(())
}

async fn tool(scene: Scene) -> Result<()> {
    scene.real("a", "", json!({"tool": {"version": "9.9.9"}})).await?;
    let status = scene.fails("a", FailureClass::Configuration, reason::TOOL_NOT_FOUND, SOON).await?;
    let message = status.failure.context("no failure")?.message;
    holds(&message, "9.9.9")?;
    holds(&message, "1.10.6")
}

async fn image(scene: Scene) -> Result<()> {
    let spec = json!({"runner": {"image": "localhost/no-such-image:1", "imagePullPolicy": "Never"}, "timeouts": {"start": "8s"}});
    scene.scripted("a", json!({}), spec).await?;
    let named = |r: &crds::TerraformRun| {
        r.status.as_ref().is_some_and(|s| {
            s.is_terminal()
                || s.conditions
                    .iter()
                    .any(|c| c.type_ == conditions::STALLED && c.status == "True" && c.reason == reason::IMAGE_NOT_AVAILABLE)
        })
    };
    scene.until("a", "named as stalled", SOON, named).await?;
    scene.fails("a", FailureClass::Configuration, reason::IMAGE_NOT_AVAILABLE, SOON).await?;
    Ok(())
}

async fn quota(scene: Scene) -> Result<()> {
    scene.kubectl(&["create", "quota", "none", "--hard=pods=0"])?;
    // The quota counts once its controller has seen it.
    for _ in 0..100 {
        if scene.kubectl(&["get", "quota", "none", "-o", "jsonpath={.status.hard.pods}"])? == "0" {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    scene.scripted("a", json!({}), json!({"timeouts": {"start": "6s"}})).await?;
    let status = scene.fails("a", FailureClass::Timeout, reason::QUOTA_EXCEEDED, SOON).await?;
    holds(&status.failure.context("no failure")?.message, "exceeded quota")
}

async fn state(scene: Scene) -> Result<()> {
    let main = "terraform {\n  backend \"local\" {\n    path = \"/tmp/x.tfstate\"\n  }\n}\n";
    let run = crds::TerraformRun::new("a", serde_json::from_value(json!({"source": {"inline": {"files": {"main.tf": main}}}}))?);
    scene.runs().create(&kube::api::PostParams::default(), &run).await?;
    let status = scene.fails("a", FailureClass::Configuration, reason::NO_DURABLE_STATE, SOON).await?;
    ensure!(status.plan.is_none() && !status.steps.iter().any(|s| s.name == "plan"), "it was planned all the same");
    Ok(())
}

async fn locked(scene: Scene) -> Result<()> {
    let path = format!("{}/a", scene.namespace);
    ensure!(scene.suite.state.hold_lock(&path, LockInfo::stranger("11111111-2222", "carol@laptop"))?);
    scene.real("a", "resource \"terraform_data\" \"a\" {}\n", json!({"timeouts": {"plan": "14s"}})).await?;
    let status = scene.fails("a", FailureClass::StateLocked, reason::STATE_LOCKED, LATER).await?;
    holds(&status.failure.context("no failure")?.message, "carol@laptop")?;
    ensure!(scene.suite.state.lock(&path).is_some_and(|l| l.who == "carol@laptop"), "somebody's lock was removed");
    Ok(())
}

async fn stale(scene: Scene) -> Result<()> {
    scene.real("a", "resource \"terraform_data\" \"a\" {}\n", json!({"backend": scene.backend("stack")})).await?;
    scene.phase("a", crds::Phase::AwaitingApproval).await?;
    // Somebody who works with the tool by hand.
    let state =
        json!({"version": 4, "terraform_version": "1.10.6", "serial": 7, "lineage": "by-hand", "outputs": {}, "resources": []});
    scene.suite.state.write(&format!("{}/stack", scene.namespace), &state)?;
    ensure!(scene.approve("a").await?.status.success());
    let status = scene.fails("a", FailureClass::StalePlan, reason::STALE_PLAN, SOON).await?;
    ensure!(status.failure.context("no failure")?.changes == crds::Changed::None);
    Ok(())
}

async fn deadline(scene: Scene) -> Result<()> {
    for (name, command) in [("init", "init"), ("plan", "plan")] {
        let script = json!({"commands": {command: ["ignore_interrupts", "hang"]}});
        scene.scripted(name, script, json!({"timeouts": {name: "3s"}})).await?;
        let status = scene.fails(name, FailureClass::Timeout, reason::DEADLINE_EXCEEDED, SOON).await?;
        ensure!(status.failure.context("no failure")?.changes == crds::Changed::None);
    }
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
    Ok(())
}

async fn flood(scene: Scene) -> Result<()> {
    let script = json!({"resources": 1, "commands": {"plan": [{"flood_mb": 40}, "default"]}});
    scene.scripted("a", script, json!({"operation": "Plan"})).await?;
    scene.ends_within("a", crds::RunResult::Planned, LATER).await?;
    Ok(())
}
