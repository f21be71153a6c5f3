//! Hooks in real pods: the guide's, with a plan that another pod applies, and after an apply whose pod dies.

use anyhow::{Context, Result, ensure};
use crds::{Changed, FailureClass, HookWhen, RunResult, TerraformRun, reason};
use harness::{cluster::objects, wait};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{Api, ResourceExt, api::PostParams};
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
        Test::new("hooks::what_fails_stops_its_phase_and_takes_nothing_back", failed),
        Test::new("hooks::tasks_of_terraform_operator_run_in_their_order", tasks),
        Test::new("hooks::what_cannot_run_is_named_before_the_tool_starts", refused),
    ]
}

/// Creates the run of a block and returns its name.
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
        // Values handed over are masked even if they are not secret.
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
    // The approved plan keeps the script of its time.
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

/// A run with an endless hook after the apply.
pub(crate) async fn endless(scene: &Scene, name: &str) -> Result<()> {
    let hooks = json!([{"name": "endless", "when": "AfterApply", "inline": "exec sleep 100000"}]);
    scene.scripted(name, json!({"resources": 1}), json!({"hooks": hooks, "approval": {"mode": "Automatic"}})).await?;
    Ok(())
}

/// Waits until its hook runs, and returns its pod. By then the datastore has the result, and the run's status does not.
pub(crate) async fn in_its_hook(scene: &Scene, name: &str) -> Result<Pod> {
    let runs = |run: &TerraformRun| {
        let message = run.status.as_ref().and_then(|status| status.message.clone()).unwrap_or_default();
        message.ends_with("the hooks after it run")
    };
    scene.until(name, "in its hook", LATER, runs).await?;
    // The message precedes the hook, so check for its process.
    let look = async || {
        let pod = scene.pod(name).await?;
        Ok(Scene::processes(&pod)?.iter().any(|(_, line)| line.contains("sleep 100000")).then_some(pod))
    };
    wait::until("the hook runs", SOON, look).await
}

/// Force-deletes a pod without the finalizer that keeps it until its end is read.
pub(crate) fn take_away(scene: &Scene, pod: &Pod) -> Result<()> {
    let pod = pod.name_any();
    let free = json!({"metadata": {"finalizers": null}}).to_string();
    scene.kubectl(&["patch", "pod", &pod, "--type=merge", "-p", &free])?;
    scene.kubectl(&["delete", "pod", &pod, "--force", "--grace-period=0", "--wait=false"])?;
    Ok(())
}

/// Two cases: the agent is killed, and the pod's status has its termination message; or the pod is deleted with that message, and only the
/// datastore has the result.
async fn died(scene: Scene) -> Result<()> {
    for name in ["killed", "deleted"] {
        endless(&scene, name).await?;
    }
    Scene::kill(&in_its_hook(&scene, "killed").await?, "runner-agent")?;
    take_away(&scene, &in_its_hook(&scene, "deleted").await?)?;
    for name in ["killed", "deleted"] {
        let status = scene.ends_within(name, RunResult::Applied, LATER).await?;
        ensure!(scene.starts(name, "apply") == 1 && status.failure.is_none(), "{status:?}");
        ensure!(status.attempt.context("no attempt")?.number == 1);
    }
    ensure!(scene.pod_names("deleted").await?.is_empty(), "the pod is still there");
    Ok(())
}

const ONE: &str = "resource \"terraform_data\" \"a\" {}\n";

async fn failed(scene: Scene) -> Result<()> {
    let hook = |name: &str, when: &str, script: &str| json!({"name": name, "when": when, "inline": script});
    let mut passed = hook("passed", "BeforePlan", "echo passed over; exit 3");
    passed["onFailure"] = "Continue".into();
    let over = hook("over", "Always", "echo \"over: $PAWL_RESULT\"");
    let spec = |operation: &str, hooks: &[&serde_json::Value]| json!({"operation": operation, "stack": "a", "backend": scene.backend("a"), "approval": {"mode": "Automatic"}, "hooks": hooks});
    let late = hook("late", "AfterApply", "echo too late; exit 4");
    scene.real("a", ONE, spec("Apply", &[&passed, &late, &over])).await?;
    let status = scene.ends_within("a", RunResult::Applied, LATER).await?;
    let last = status.failed_hook.context("none failed")?;
    ensure!((last.name.as_str(), last.when) == ("late", HookWhen::AfterApply) && status.failure.is_none(), "{last:?}");
    holds(&last.message, "hook late (AfterApply) failed with 4: too late")?;
    holds(&status.message.context("no message")?, "applied +1 ~0 -0; hook late (AfterApply) failed with 4")?;
    holds(&status.history.join("\n"), "hook passed (BeforePlan) failed with 3: passed over")?;
    holds(&scene.log("a").await?, "over: Applied")?;

    let before = hook("before", "BeforeDestroy", "echo no; exit 5");
    scene.real("b", ONE, spec("Destroy", &[&before, &over])).await?;
    let status = scene.fails("b", FailureClass::Configuration, reason::HOOK_FAILED, LATER).await?;
    let failure = status.failure.context("no failure")?;
    holds(&failure.message, "hook before (BeforeDestroy) failed with 5: no")?;
    ensure!(failure.changes == Changed::None && status.claim.is_some(), "{failure:?}");
    holds(&scene.log("b").await?, "over: Failed")?;
    let state = scene.suite.state.current(&format!("{}/a", scene.namespace)).context("no state")?;
    ensure!(state["resources"].as_array().is_some_and(|all| all.len() == 1), "{state}");
    Ok(())
}

/// The converter's output for such tasks (`fixtures/convert/terraform-operator/tasks.yaml`), unchanged.
async fn tasks(scene: Scene) -> Result<()> {
    let converted = include_str!("../fixtures/convert/terraform-operator/tasks.expected.yaml");
    let script = "#!/bin/bash\necho \"$PAWL_HOOK of $PAWL_RUN\"\n";
    scene.kubectl(&["create", "configmap", "scripts", &format!("--from-literal=tell.sh={script}")])?;
    let mut run: TerraformRun = serde_saphyr::from_str(converted)?;
    run.metadata.namespace = None;
    run.spec.backend = Some(serde_json::from_value(scene.backend("tasks"))?);
    scene.runs().create(&PostParams::default(), &run).await?;
    let status = scene.ends_within("tasks", RunResult::Applied, LATER).await?;
    ensure!(status.failed_hook.is_none(), "{status:?}");
    let log = scene.log("tasks").await?;
    let wanted = ["preinit", "postinit", "preplan", "postplan", "preapply", "postapply"].map(|task| format!("{task} of tasks"));
    let said: Vec<_> = log.lines().filter(|line| line.ends_with(" of tasks")).collect();
    ensure!(said == wanted, "{said:?}:\n{log}");
    Ok(())
}

async fn refused(scene: Scene) -> Result<()> {
    // Covers 5 MB from the source, which no ConfigMap can hold; a missing key; bytes that are not text; and an expired token.
    let (url, _) = scene.repository("stack", &[("main.tf", ""), ("huge.sh", &"#".repeat(5 << 20))])?;
    let of = |hook: serde_json::Value| {
        let mut hook = hook;
        hook["name"] = "x".into();
        hook["when"] = "AfterApply".into();
        json!({"source": {"git": {"url": url.clone(), "revision": "main"}}, "hooks": [hook], "approval": {"mode": "Automatic"}})
    };
    scene.create("huge", of(json!({"path": "huge.sh"}))).await?;
    scene.create("none", of(json!({"configMapKeyRef": {"name": "gone", "key": "k"}}))).await?;
    let map = json!({"metadata": {"name": "latin"}, "binaryData": {"k": "ZWNobyDpCg=="}});
    objects::create(&Api::<ConfigMap>::namespaced(scene.suite.client.clone(), &scene.namespace), map).await?;
    scene.create("latin", of(json!({"configMapKeyRef": {"name": "latin", "key": "k"}}))).await?;
    // `{"alg":"RS256"}`, `{"exp":1000000000}`, and a placeholder for the signature.
    let token = "eyJhbGciOiJSUzI1NiJ9.eyJleHAiOjEwMDAwMDAwMDB9.c2lnbmF0dXJl";
    scene.kubectl(&["create", "secret", "generic", "old", &format!("--from-literal=token={token}")])?;
    let mut expired = of(json!({"inline": "exit 0"}));
    expired["credentials"] = json!({"registries": [{"host": "r.example.com", "secretKeyRef": {"name": "old", "key": "token"}}]});
    scene.create("expired", expired).await?;
    let huge = scene.fails("huge", FailureClass::Configuration, reason::HOOK_INVALID, LATER).await?;
    holds(&huge.failure.context("no failure")?.message, "hook x has more than 256 KiB")?;
    scene.fails("none", FailureClass::Configuration, reason::CONFIG_MAP_NOT_FOUND, LATER).await?;
    let latin = scene.fails("latin", FailureClass::Configuration, reason::HOOK_INVALID, LATER).await?;
    holds(&latin.failure.context("no failure")?.message, "hook x is not UTF-8 text")?;
    let expired = scene.fails("expired", FailureClass::Credentials, reason::CREDENTIALS_EXPIRED, LATER).await?;
    let said = "the token of credentials.registries of r.example.com expired at 2001-09-09T01:46:40Z";
    holds(&expired.failure.context("no failure")?.message, said)?;
    ensure!(expired.steps.is_empty(), "nothing was fetched: {:?}", expired.steps);
    Ok(())
}
