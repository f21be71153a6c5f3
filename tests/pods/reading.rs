//! Users with RBAC read plans and logs through the API server, even after the pods are gone.

use std::{
    io::{BufRead, BufReader},
    process::Stdio,
};

use anyhow::{Context, Result, ensure};
use crds::{Phase, RunResult};
use serde_json::json;

use crate::suite::{LATER, SOON, Scene, Test, automatic, gate, holds, stderr};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new(
            "reading::plan_and_log_outlive_the_pod_for_who_may_read",
            outlive,
        ),
        Test::new("reading::log_is_followed_during_the_apply", followed),
    ]
}

fn path(scene: &Scene, name: &str, rest: &str) -> String {
    format!(
        "/apis/read.pawl.run/v1alpha1/namespaces/{}/terraformruns/{name}/{rest}",
        scene.namespace
    )
}

/// Burrito 11.15: a pod that was deleted before its end was seen took its log with it.
async fn outlive(scene: Scene) -> Result<()> {
    let main = "resource \"terraform_data\" \"words\" {\n  input = \"hello\"\n}\n";
    scene
        .real("a", main, json!({"approval": {"holdFor": "0s"}}))
        .await?;
    let waiting = super::stored::released(&scene, "a").await?;
    rights(&scene)?;
    let plan = scene.kubectl(&["get", "--raw", &path(&scene, "a", "plan")])?;
    holds(&plan, "terraform_data.words")?;
    super::stored::approve_waiting(&scene, &waiting)?;
    scene.ends_within("a", RunResult::Applied, LATER).await?;
    scene.log("a").await?;
    for pod in scene.pod_names("a").await? {
        scene.kubectl(&["delete", "pod", &pod])?;
    }
    let log = scene.kubectl(&["get", "--raw", &path(&scene, "a", "log?phase=apply")])?;
    holds(&log, "Creation complete")?;
    ensure!(!log.contains("Initializing"), "{log}");
    let whole = scene.kubectl(&["get", "--raw", &path(&scene, "a", "log")])?;
    holds(&whole, "Creation complete")?;
    holds(&whole, "Plan: 1 to add")?;
    let json = scene.kubectl(&["get", "--raw", &path(&scene, "a", "planjson?attempt=1")])?;
    ensure!(serde_json::from_str::<serde_json::Value>(&json)?["resource_changes"].is_array());
    Ok(())
}

async fn followed(scene: Scene) -> Result<()> {
    let script = json!({"resources": [{"address": "terraform_data.first"}, {"address": "terraform_data.slow", "steps": [gate()]}]});
    scene.scripted("a", script, automatic()).await?;
    scene.phase("a", Phase::Apply).await?;
    let mut follow = scene
        .suite
        .cluster
        .kubectl_command(&[
            "get",
            "--raw",
            &path(&scene, "a", "log?follow=true&phase=apply"),
        ])
        .stdout(Stdio::piped())
        .spawn()?;
    let out = BufReader::new(follow.stdout.take().context("no output")?);
    let (sender, mut lines) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        out.lines()
            .map_while(Result::ok)
            .all(|line| sender.send(line).is_ok())
    });
    let mut seen = Vec::new();
    while !seen
        .iter()
        .any(|line: &String| line.contains("terraform_data.first: Creation complete"))
    {
        let line = tokio::time::timeout(SOON, lines.recv())
            .await
            .context("no line")?;
        seen.push(line.with_context(|| format!("the log ended early: {seen:?}"))?);
    }
    // Visible during the apply, not after it.
    ensure!(scene.status("a").await?.phase == Some(Phase::Apply));
    scene.open("a").await?;
    scene.ends("a", RunResult::Applied).await?;
    // The follow ends by itself.
    while let Some(line) = tokio::time::timeout(SOON, lines.recv())
        .await
        .context("the follow does not end")?
    {
        seen.push(line);
    }
    ensure!(
        seen.iter()
            .any(|line| line.contains("terraform_data.slow: Creation complete")),
        "{seen:?}"
    );
    ensure!(
        tokio::task::spawn_blocking(move || follow.wait())
            .await??
            .success()
    );
    Ok(())
}

/// A viewer of the namespace reads the plan of the run `a`, and nothing else.
fn rights(scene: &Scene) -> Result<()> {
    let namespace = &scene.namespace;
    scene.kubectl(&[
        "create",
        "rolebinding",
        "viewer",
        "--clusterrole=pawl-viewer",
        "--user=viewer",
    ])?;
    let as_user = |user: &str, rest: &str| {
        scene
            .suite
            .cluster
            .kubectl_command(&["get", "--raw", &path(scene, "a", rest), "--as", user])
            .output()
    };
    for rest in ["plan", "changes"] {
        let read = as_user("viewer", rest)?;
        ensure!(read.status.success(), "{rest}: {}", stderr(&read));
    }
    for (user, rest) in [
        ("stranger", "plan"),
        ("stranger", "log"),
        ("stranger", "changes"),
        ("viewer", "planjson"),
    ] {
        let output = as_user(user, rest)?;
        ensure!(!output.status.success(), "{user} read the {rest}");
        holds(&stderr(&output), "orbidden")?;
    }
    let other =
        format!("/apis/read.pawl.run/v1alpha1/namespaces/{namespace}-other/terraformruns/a/plan");
    let output = scene
        .suite
        .cluster
        .kubectl_command(&["get", "--raw", &other, "--as", "viewer"])
        .output()?;
    ensure!(!output.status.success());
    Ok(())
}
