//! Interrupted applies: the journal has the created objects, and after one recovery run every object was created exactly once.
//! `design/0011-journal-and-recovery.md` has the outcomes of other projects for the same faults.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use crds::{
    Changed, FailureClass, Phase, RunResult, TerraformRunStatus,
    apply_log::{Line, state},
    names, reason,
};
use harness::wait;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::suite::{GATE, LATER, SOON, Scene, Test, automatic, gate, holds, with};

pub(crate) fn tests() -> Vec<Test> {
    let table = |name, tool: &'static str, fault: Fault| {
        Test::new(name, move |scene| row(scene, tool, fault))
    };
    vec![
        table(
            "recovery::opentofu_recovers_after_its_pod_was_force_deleted",
            "OpenTofu",
            Fault::ForceDeleted,
        ),
        table(
            "recovery::opentofu_recovers_after_its_agent_was_killed",
            "OpenTofu",
            Fault::Killed,
        ),
        table(
            "recovery::terraform_recovers_after_its_pod_was_deleted",
            "Terraform",
            Fault::Deleted,
        ),
        table(
            "recovery::terraform_recovers_after_its_agent_was_killed",
            "Terraform",
            Fault::Killed,
        ),
        Test::new(
            "recovery::unimportable_objects_need_a_person",
            not_importable,
        ),
        Test::new("recovery::recovery_of_another_state_is_refused", refused),
        Test::new("recovery::unsaved_state_is_kept", errored_state),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    ForceDeleted,
    Deleted,
    Killed,
}

/// Three objects that are created at once, and one that waits at a gate. Each logs its creation. The three have no arguments:
/// `terraform_data` reads back only its id, so the import of one with an `input` would plan to set it again.
const STACK: &str = r#"
resource "terraform_data" "made" {
  for_each = toset(["one", "two", "three"])
  provisioner "local-exec" {
    command = "echo made-${each.key}"
  }
}
resource "terraform_data" "slow" {
  input      = "slow"
  depends_on = [terraform_data.made]
  provisioner "local-exec" {
    command = "echo slow-begun; GATE; echo slow-done"
  }
}
"#;

/// A run of a stack with a managed state.
async fn managed(scene: &Scene, name: &str, tool: &str, main: &str, more: Value) -> Result<()> {
    let version = if tool == "OpenTofu" {
        json!("1.10.6")
    } else {
        Value::Null
    };
    let files = json!({"main.tf": main.replace("GATE", GATE)});
    let spec = json!({"source": {"inline": {"files": files}}, "stack": "net", "backend": null,
        "tool": {"name": tool, "version": version}});
    scene
        .create(name, with(with(automatic(), spec), more))
        .await
        .map(drop)
}

/// A run whose agent was killed in its apply, on a state of its own, once a recovery is due.
pub(crate) async fn lost(scene: &Scene, name: &str, stack: &str) -> Result<()> {
    managed(scene, name, "OpenTofu", STACK, json!({"stack": stack})).await?;
    scene.phase(name, Phase::Apply).await?;
    until_created(scene, name, 3).await?;
    Scene::kill(&scene.pod(name).await?, "runner-agent")?;
    scene.closed(name).await?;
    let said = accounted(scene, name).await?;
    ensure!(said.wants_recovery(), "{said:?}");
    let released = |s: &TerraformRunStatus| s.lease.is_none();
    scene
        .until(name, "without its lease", LATER, released)
        .await
        .map(drop)
}

fn raw(scene: &Scene, name: &str, rest: &str) -> Result<String> {
    scene.read(&format!("terraformruns/{name}/{rest}"))
}

/// The journal of a run in the datastore.
fn journal(scene: &Scene, name: &str) -> Result<Vec<Line>> {
    let text = raw(scene, name, "journal")?;
    text.lines()
        .map(|line| {
            Line::parse(line.as_bytes()).with_context(|| format!("no line of a journal: {line}"))
        })
        .collect()
}

fn created(lines: &[Line]) -> Vec<(String, String)> {
    let of = |line: &Line| match line {
        Line::Complete(o) if o.action == crds::apply_log::Action::Create => {
            Some((o.address.clone(), o.id.clone().unwrap_or_default()))
        }
        _ => None,
    };
    lines.iter().filter_map(of).collect()
}

/// Waits until the journal in the datastore has `count` created objects.
pub(crate) async fn until_created(scene: &Scene, name: &str, count: usize) -> Result<Vec<Line>> {
    let look = async || match journal(scene, name) {
        Ok(lines) if created(&lines).len() >= count => Ok(Ok(lines)),
        less => Ok(Err(format!("{less:?}"))),
    };
    wait::until(
        format!("the journal of {name} has {count} objects"),
        SOON,
        look,
    )
    .await
}

/// Waits until the status accounts for the objects.
pub(crate) async fn accounted(scene: &Scene, name: &str) -> Result<crds::Journal> {
    scene
        .until(name, "accounted for", LATER, |s| s.journal.is_some())
        .await?
        .journal
        .context("no journal")
}

/// Runs the command of the next step; returns the recovery run.
async fn recover(scene: &Scene, name: &str) -> Result<String> {
    let step = scene
        .status(name)
        .await?
        .next_step
        .context("no next step")?;
    ensure!(
        step == names::recover_command(&scene.namespace, name),
        "{step}"
    );
    scene.paste(&step)?;
    scene.recovery_of(name).await
}

/// The lock of the managed state; null if free.
fn lock(scene: &Scene) -> Result<Value> {
    Ok(serde_json::from_str::<Value>(&scene.read("states/net")?)?["lock"].clone())
}

async fn row(scene: Scene, tool: &'static str, fault: Fault) -> Result<()> {
    // A force-deleted pod may not have had time to release its lock; it counts as ended after its grace period.
    let spec = match fault {
        Fault::ForceDeleted => json!({"runner": {"terminationGracePeriodSeconds": 30}}),
        Fault::Deleted | Fault::Killed => json!({}),
    };
    managed(&scene, "a", tool, STACK, spec).await?;
    scene.phase("a", Phase::Apply).await?;
    let before = until_created(&scene, "a", 3).await?;
    tokio::time::sleep(Duration::from_secs(8)).await;
    let look = async || {
        Ok(raw(&scene, "a", "log?phase=apply").is_ok_and(|log| log.contains("slow-begun")))
    };
    wait::until("the log says that the last object is begun", SOON, look).await?;
    let pod = scene.pod("a").await?;
    let begun = Instant::now();
    match fault {
        Fault::ForceDeleted => {
            scene.delete_by_force("a").await?;
        }
        Fault::Deleted => {
            scene.kubectl(&["delete", "pod", &pod.name_any(), "--wait=false"])?;
        }
        Fault::Killed => Scene::kill(&pod, "runner-agent")?,
    }
    let status = scene.closed("a").await?;
    let took = begun.elapsed();
    // The result must be true: it never reports that nothing changed, and it reports an end only if the agent observed it.
    let failure = status.failure.clone().context("no failure")?;
    match (fault, status.result) {
        (Fault::Deleted | Fault::ForceDeleted, Some(RunResult::Failed)) => {
            ensure!(
                failure.class == FailureClass::Interrupted && failure.changes == Changed::Some,
                "{failure:?}"
            );
        }
        (Fault::Killed | Fault::ForceDeleted, Some(RunResult::Indeterminate)) => {
            ensure!(failure.changes == Changed::Unknown, "{failure:?}");
        }
        other => anyhow::bail!("{other:?}: {failure:?}"),
    }
    let said = accounted(&scene, "a").await?;
    if status.result == Some(RunResult::Indeterminate) {
        // Its writers are fenced: the lock on its state is released with its lease.
        scene
            .until("a", "without its lease", LATER, |s| s.lease.is_none())
            .await?;
        ensure!(
            lock(&scene)?.is_null(),
            "the lock is held: {}",
            lock(&scene)?
        );
    }
    // Journal and log of the apply are complete.
    let lines = journal(&scene, "a")?;
    ensure!(
        created(&lines).starts_with(&created(&before)) && created(&before).len() == 3,
        "{lines:?}"
    );
    let log = raw(&scene, "a", "log?phase=apply")?;
    for word in ["made-one", "made-two", "made-three", "slow-begun"] {
        holds(&log, word)?;
    }
    ensure!(said.compared, "{said:?}");
    let known = usize::try_from(said.recorded)? + said.not_recorded.len();
    // The object with the interrupted script exists as well. The state has it as tainted if the tool recorded its failure.
    let (whole, failed) = (
        created(&lines).len(),
        lines
            .iter()
            .filter(|line| matches!(line, Line::Errored(_)))
            .count(),
    );
    ensure!(
        (whole..=whole + failed).contains(&known),
        "{whole} objects are created, {failed} failed, the status says {said:?}"
    );
    println!(
        "    {tool}, {fault:?}: {:?} after {:.1} s; {}; lock {}",
        status.result.context("no result")?,
        took.as_secs_f64(),
        said.summary,
        if lock(&scene)?.is_null() {
            "free"
        } else {
            "held"
        },
    );
    let again = if said.wants_recovery() {
        let again = recover(&scene, "a").await?;
        let waits =
            |s: &TerraformRunStatus| s.is_terminal() || s.phase == Some(Phase::AwaitingApproval);
        let waiting = scene.until(&again, "planned", LATER, waits).await?;
        let plan = waiting
            .plan
            .clone()
            .with_context(|| format!("no plan: {:?}", waiting.failure))?;
        let imports = u32::try_from(said.not_recorded.len())?;
        ensure!(
            plan.counts.import == imports && plan.counts.destroy == 0,
            "{plan:?}"
        );
        if imports == 3 {
            ensure!(plan.summary == "+1 ~0 -0, 3 imported", "{plan:?}");
            // A begun creation is shown as possibly existing.
            holds(&plan.changes[0], "+ terraform_data.slow (may exist already")?;
            holds(
                waiting.message.as_deref().unwrap_or_default(),
                "may exist already",
            )?;
        }
        scene.approve(&again).await?;
        scene.open(&again).await?;
        again
    } else {
        managed(&scene, "again", tool, STACK, json!({})).await?;
        scene.open("again").await?;
        "again".to_owned()
    };
    scene.ends_within(&again, RunResult::Applied, LATER).await?;
    // Every object was created exactly once: the state has the objects of the first run, and the log shows no second creation.
    let base = format!(
        "/apis/read.pawl.run/v1alpha1/namespaces/{}/states/net",
        scene.namespace
    );
    let facts = state::read(
        scene
            .kubectl(&["get", "--raw", &format!("{base}/download")])?
            .as_bytes(),
    )?;
    ensure!(facts.objects.len() == 4, "{facts:?}");
    for (address, id) in created(&lines) {
        ensure!(
            facts
                .objects
                .iter()
                .any(|o| o.address == address && o.id.as_deref() == Some(&id)),
            "{address} {id}: {facts:?}"
        );
    }
    let second = raw(&scene, &again, "log?phase=apply")?;
    for word in ["made-one", "made-two", "made-three", "slow-done"] {
        let times = [&log, &second]
            .iter()
            .map(|log| log.lines().filter(|line| line.ends_with(word)).count())
            .sum::<usize>();
        ensure!(times == 1, "{word} is said {times} times:\n{log}\n{second}");
    }
    ensure!(
        lock(&scene)?.is_null(),
        "the lock is held: {}",
        lock(&scene)?
    );
    managed(&scene, "last", tool, STACK, json!({})).await?;
    scene
        .ends_within("last", RunResult::NoChanges, LATER)
        .await
        .map(drop)
}

/// A resource of the `time` provider that cannot be imported by the ID that it prints.
const NOT_IMPORTABLE: &str = r#"
terraform {
  required_providers {
    time = {
      source = "hashicorp/time"
    }
  }
}
resource "time_sleep" "odd" {
  create_duration = "1s"
}
resource "terraform_data" "made" {
  input = "made"
}
resource "terraform_data" "gone" {
  count = var.with ? 1 : 0
}
variable "with" {
  default = true
}
resource "terraform_data" "slow" {
  depends_on = [time_sleep.odd, terraform_data.made, terraform_data.gone]
  provisioner "local-exec" {
    command = "sleep 600"
  }
}
"#;

async fn not_importable(scene: Scene) -> Result<()> {
    managed(&scene, "a", "OpenTofu", NOT_IMPORTABLE, json!({})).await?;
    until_created(&scene, "a", 3).await?;
    Scene::kill(&scene.pod("a").await?, "runner-agent")?;
    scene
        .ends_within("a", RunResult::Indeterminate, LATER)
        .await?;
    accounted(&scene, "a").await?;
    // An automatic run creates nothing that may exist.
    managed(
        &scene,
        "automatic",
        "OpenTofu",
        NOT_IMPORTABLE,
        json!({"recover": {"fromRun": "a"}}),
    )
    .await?;
    let status = scene
        .fails(
            "automatic",
            FailureClass::Policy,
            reason::RECOVERY_UNCERTAIN,
            LATER,
        )
        .await?;
    ensure!(status.claim.is_none(), "it was applied");
    holds(
        &status.failure.context("no failure")?.message,
        "terraform_data.slow (may exist already",
    )?;
    let more = json!({"recover": {"fromRun": "a"}, "approval": {"mode": "Manual"}, "variables": [{"name": "with", "value": false}]});
    managed(&scene, "b", "OpenTofu", NOT_IMPORTABLE, more).await?;
    let status = scene.phase("b", Phase::AwaitingApproval).await?;
    let plan = status.plan.context("no plan")?;
    ensure!(plan.counts.import == 1, "{plan:?}");
    let history = status.history.join("\n");
    // One type cannot be imported by that ID; one address is no longer in the code.
    holds(&history, "not imported: time_sleep.odd")?;
    holds(&history, "not imported: terraform_data.gone[0]")?;
    ensure!(
        plan.changes
            .iter()
            .any(|line| line.starts_with("+ time_sleep.odd (may exist already: run a made it id=")),
        "{plan:?}"
    );
    holds(
        status.message.as_deref().unwrap_or_default(),
        "may exist already",
    )?;
    Ok(())
}

async fn refused(scene: Scene) -> Result<()> {
    scene.scripted("good", json!({}), automatic()).await?;
    scene.ends("good", RunResult::Applied).await?;
    let annotated = scene
        .annotate("good", &[(names::RECOVER, Some("true"))])
        .await;
    holds(
        &format!("{annotated:?}"),
        "a recovery needs a run that failed after its apply began",
    )?;
    let missing = reason::JOURNAL_MISSING;
    recovers_nothing(&scene, "none", "nobody", missing, "there is no run nobody").await?;
    scene
        .scripted(
            "busy",
            json!({"commands": {"apply": [gate()]}}),
            automatic(),
        )
        .await?;
    scene.phase("busy", Phase::Apply).await?;
    recovers_nothing(&scene, "early", "busy", missing, "has not ended").await?;
    scene.open("busy").await?;
    // The other run has its own backend, and so another state.
    let (invalid, text) = (reason::INVALID_SPEC, "applied to another state");
    recovers_nothing(&scene, "other", "good", invalid, text).await
}

/// Creates a run that recovers from another one, and waits until it is refused.
async fn recovers_nothing(
    scene: &Scene,
    name: &str,
    from: &str,
    reason: &str,
    text: &str,
) -> Result<()> {
    let spec = json!({"recover": {"fromRun": from}});
    scene.scripted(name, json!({}), spec).await?;
    let class = FailureClass::Configuration;
    let status = scene.fails(name, class, reason, SOON).await?;
    holds(&status.failure.context("no failure")?.message, text)
}

async fn errored_state(scene: Scene) -> Result<()> {
    let path = scene.path("a");
    scene.suite.state.fail_writes(&path, 100);
    scene
        .scripted("a", json!({"resources": 2}), automatic())
        .await?;
    let status = scene
        .fails("a", FailureClass::Transient, reason::STATE_NOT_SAVED, LATER)
        .await?;
    let failure = status.failure.context("no failure")?;
    let command = names::errored_state_command(&scene.namespace, "a");
    holds(&failure.message, &command)?;
    let facts = state::read(scene.paste(&command)?.as_bytes())?;
    ensure!(facts.objects.len() == 2, "{facts:?}");
    // Encrypted, like all objects in the store.
    for file in scene.suite.stored(&[
        &scene.get("a").await?.uid().unwrap_or_default(),
        "erroredstate",
    ])? {
        let bytes = std::fs::read(&file)?;
        ensure!(
            !String::from_utf8_lossy(&bytes).contains("terraform_data"),
            "{} is not encrypted",
            file.display()
        );
    }
    let journal = status.journal.context("no journal")?;
    ensure!(
        journal.compared && journal.not_recorded.len() == 2,
        "{journal:?}"
    );
    ensure!(status.next_step == Some(names::recover_command(&scene.namespace, "a")));
    Ok(())
}
