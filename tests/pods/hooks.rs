//! Hooks in real pods: as the guide has them, for a plan that another pod applies, and behind an apply whose pod dies.

use anyhow::{Context, Result, ensure};
use crds::{FailureClass, RunResult, TerraformRun, reason};
use serde_json::json;

use crate::{
    guide::Reader,
    stored::{approve_waiting, released},
    suite::{LATER, SOON, Scene, Test, holds},
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("hooks::those_of_the_guide_run_as_it_says", guided),
        Test::new("hooks::a_new_pod_repeats_those_of_setup_and_init_as_they_were", restored),
        Test::new("hooks::a_pod_that_dies_in_a_hook_behind_its_apply_has_applied", died),
        Test::new("hooks::what_cannot_run_is_named_before_the_tool_starts", refused),
    ]
}

/// Creates the run of such a block, and gives its name.
fn create(scene: &Scene, name: &str) -> Result<String> {
    let reader = Reader::new(scene)?;
    let file = reader.dir.path().join("run.yaml");
    std::fs::write(&file, reader.here(name)?)?;
    let made = scene.kubectl(&["create", "-o", "name", "-f", &file.display().to_string()])?;
    Ok(made.trim().rsplit('/').next().unwrap_or_default().to_owned())
}

async fn guided(scene: Scene) -> Result<()> {
    for name in ["make scripts", "make teardown"] {
        let reader = Reader::new(&scene)?;
        reader.paste(&reader.here(name)?)?;
    }
    let runs = [
        ("hooks.yaml", vec!["/hooked: Applied"]),
        ("tasks.yaml", vec!["postapply of from-tasks: Applied"]),
        // What is handed over is masked, also where it is no secret.
        ("scripts.yaml", vec!["made in (sensitive value)", "smoke test in (sensitive value)"]),
    ];
    let mut names = Vec::new();
    for (file, lines) in runs {
        names.push((create(&scene, file)?, lines));
    }
    for (name, lines) in names {
        let status = scene.ends_within(&name, RunResult::Applied, LATER).await?;
        ensure!(status.failed_hook.is_none() && status.steps.iter().any(|step| step.name.starts_with("hook ")), "{status:?}");
        let log = scene.log(&name).await?;
        lines.into_iter().try_for_each(|line| holds(&log, line))?;
    }
    let name = create(&scene, "teardown.yaml")?;
    scene.ends_within(&name, RunResult::Destroyed, LATER).await?;
    holds(&scene.log(&name).await?, "Destroyed: the name is free again")
}

async fn restored(scene: Scene) -> Result<()> {
    let script = "echo \"$PAWL_HOOK_WHEN of attempt $PAWL_ATTEMPT ($PAWL_HOOK_RESTORES) as planned\"\n";
    scene.kubectl(&[
        "create",
        "configmap",
        "script",
        &format!("--from-literal=run={script}echo TOKEN=hunter22 > $PAWL_HOOK_VALUES"),
    ])?;
    let moments =
        ["BeforeSetup", "AfterSetup", "BeforeInit", "AfterInit", "BeforePlan", "AfterPlan", "BeforeApply", "AfterApply"];
    let hooks: Vec<_> = moments
        .iter()
        .map(|when| {
            let mut hook = json!({"name": when.to_lowercase(), "when": when, "inline": script});
            if *when == "BeforeInit" {
                hook = json!({"name": "login", "when": when, "configMapKeyRef": {"name": "script", "key": "run"}});
            }
            hook
        })
        .collect();
    let main =
        "resource \"terraform_data\" \"a\" {\n  provisioner \"local-exec\" {\n    command = \"test $TOKEN = hunter22\"\n  }\n}\n";
    scene.real("a", main, json!({"hooks": hooks, "approval": {"holdFor": "0s"}})).await?;
    let waiting = released(&scene, "a").await?;
    let first = scene.log("a").await?;
    // What was approved stays what it was.
    scene.kubectl(&["delete", "configmap", "script"])?;
    approve_waiting(&scene, &waiting)?;
    let status = scene.ends_within("a", RunResult::Applied, LATER).await?;
    ensure!(
        status.attempt.as_ref().is_some_and(|attempt| attempt.restores == Some(1)) && status.failed_hook.is_none(),
        "{status:?}"
    );
    let second = scene.log("a").await?;
    for (when, in_first, in_second) in moments.iter().enumerate().map(|(n, when)| (when, n < 6, !(4..6).contains(&n))) {
        let said = |log: &str, attempt: u8| log.contains(&format!("{when} of attempt {attempt} ({}) as planned", attempt == 2));
        ensure!((said(&first, 1), said(&second, 2)) == (in_first, in_second), "{when}:\n{first}\n{second}");
    }
    ensure!(!format!("{first}{second}{status:?}").contains("hunter22"));
    Ok(())
}

async fn died(scene: Scene) -> Result<()> {
    let hooks = json!([{"name": "endless", "when": "AfterApply", "inline": "exec sleep 100000"}]);
    scene.scripted("a", json!({"resources": 1}), json!({"hooks": hooks, "approval": {"mode": "Automatic"}})).await?;
    let runs = |run: &TerraformRun| {
        let message = run.status.as_ref().and_then(|status| status.message.clone()).unwrap_or_default();
        message.ends_with("the hooks after it run")
    };
    scene.until("a", "in its hook", LATER, runs).await?;
    // The message comes before the hook does: that it runs is seen at its process.
    let started = std::time::Instant::now();
    loop {
        let pod = scene.pod("a").await?;
        if Scene::processes(&pod)?.iter().any(|(_, line)| line.contains("sleep 100000")) {
            Scene::kill(&pod, "runner-agent")?;
            break;
        }
        ensure!(started.elapsed() < SOON, "the hook does not run");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let status = scene.ends_within("a", RunResult::Applied, LATER).await?;
    ensure!(scene.starts("a", "apply") == 1 && status.failure.is_none(), "{status:?}");
    ensure!(status.attempt.context("no attempt")?.number == 1);
    Ok(())
}

async fn refused(scene: Scene) -> Result<()> {
    // 5 MB of the source, which no ConfigMap holds; and a key that is not there.
    let (url, _) = scene.repository("stack", &[("main.tf", ""), ("huge.sh", &"#".repeat(5 << 20))])?;
    let of = |hook: serde_json::Value| {
        let mut hook = hook;
        hook["name"] = "x".into();
        hook["when"] = "AfterApply".into();
        json!({"source": {"git": {"url": url.clone(), "revision": "main"}}, "hooks": [hook], "approval": {"mode": "Automatic"}})
    };
    scene.create("huge", of(json!({"path": "huge.sh"}))).await?;
    scene.create("none", of(json!({"configMapKeyRef": {"name": "gone", "key": "k"}}))).await?;
    let huge = scene.fails("huge", FailureClass::Configuration, reason::HOOK_INVALID, LATER).await?;
    holds(&huge.failure.context("no failure")?.message, "hook x has more than 256 KiB")?;
    scene.fails("none", FailureClass::Configuration, reason::CONFIG_MAP_NOT_FOUND, LATER).await?;
    Ok(())
}
