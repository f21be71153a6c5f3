//! A run recreated from a backup does not apply by itself.

use anyhow::{Context, Result, ensure};
use crds::{RunResult, names};
use serde_json::{Value, json};

use crate::suite::{LATER, Scene, Test, automatic, holds};

pub(crate) fn tests() -> Vec<Test> {
    vec![Test::new(
        "again::run_recreated_from_a_backup_applies_nothing",
        backup,
    )]
}

/// Creates an object like a backup tool: without its status and the fields that the API server sets.
fn restore(scene: &Scene, mut object: Value) -> Result<()> {
    for key in [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "generation",
        "managedFields",
        "deletionTimestamp",
    ] {
        object["metadata"]
            .as_object_mut()
            .map(|metadata| metadata.remove(key));
    }
    object.as_object_mut().map(|object| object.remove("status"));
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), object.to_string())?;
    scene.kubectl(&["create", "-f", &file.path().display().to_string()])?;
    Ok(())
}

async fn backup(scene: Scene) -> Result<()> {
    scene.scripted("a", json!({}), automatic()).await?;
    scene.ends("a", RunResult::Applied).await?;
    let saved: Value = serde_json::from_str(&scene.kubectl(&["get", "tfrun", "a", "-o", "json"])?)?;
    let uid = saved["metadata"]["uid"].as_str().context("no UID")?;
    ensure!(
        saved["metadata"]["annotations"][names::LIFE] == uid,
        "{}",
        saved["metadata"]
    );
    scene.kubectl(&["delete", "tfrun", "a"])?;
    scene.gone("a").await?;
    restore(&scene, saved.clone())?;
    let status = scene.ends("a", RunResult::Canceled).await?;
    holds(
        status.message.as_deref().unwrap_or_default(),
        &format!("made again from the run of UID {uid}"),
    )?;
    ensure!(
        scene.starts("a", "plan") == 1
            && scene.starts("a", "apply") == 1
            && scene.pod_names("a").await?.is_empty()
    );
    // The next step is one command that reruns it.
    scene.paste(&status.next_step.context("no next step")?)?;
    let again = scene.rerun_of("a").await?;
    scene
        .ends_within(&again, RunResult::NoChanges, LATER)
        .await
        .map(drop)
}
