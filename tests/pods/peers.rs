//! Bugs that users of other projects met, played against Pawl. Each has its row in `design/peers-bugs.md`.

mod controller;

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use crds::{
    Changed, FailureClass, Phase, RunResult, TerraformRunStatus, conditions, names, reason,
};
use harness::wait;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, ResourceExt,
    api::{EvictParams, ListParams},
};
use ledger::what;
use serde_json::{Value, json};

use crate::{
    stored::{approve_waiting, released},
    suite::{LATER, SOON, Scene, Test, automatic, condition, gate, gated, holds, with},
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new(
            "peers::tofu_1129_approval_names_one_plan_not_a_commit",
            same_commit,
        ),
        Test::new(
            "peers::burrito_ended_run_frees_no_lease_of_another",
            first_end,
        ),
        Test::new(
            "peers::burrito_commit_during_a_plan_is_kept_for_the_next",
            mid_plan,
        ),
        Test::new("peers::argo_13581_runs_of_drained_pods_end", drained),
        Test::new("peers::gardener_426_evicted_apply_is_not_repeated", evicted),
    ]
}

/// Tests that stop the controller, or something that it needs.
pub(crate) fn alone() -> Vec<Test> {
    controller::tests()
}

/// The namespace of the controller.
const SYSTEM: &str = "pawl-system";

fn said(status: &TerraformRunStatus, type_: &str, reason: &str) -> bool {
    condition(status, type_, "False", reason).is_some()
}

fn created(scene: &Scene, name: &str) -> usize {
    ledger::select(&scene.ledger(name), what::RESOURCE, None).len()
}

async fn until_created(scene: &Scene, name: &str, count: usize) -> Result<()> {
    let look = async || Ok(created(scene, name) >= count);
    wait::until(
        format!("the apply of {name} has made {count} objects"),
        SOON,
        look,
    )
    .await
}

/// tofu-controller #1129 (and #1795): a plan was named by branch and commit and approved by a prefix of that name, so the approval of one
/// plan rolled out another of the same commit. In Pawl an approval is the whole checksum of exactly one plan.
async fn same_commit(scene: Scene) -> Result<()> {
    let main = "variable \"zone\" {}\nresource \"terraform_data\" \"a\" {\n  input = var.zone\n}\n";
    let (url, commit) = scene.repository("stack", &[("main.tf", main)])?;
    let spec = |zone: &str| {
        json!({"source": {"git": {"url": url, "revision": "main"}}, "tool": {"name": "OpenTofu", "version": "1.10.6"},
            "variables": [{"name": "zone", "value": zone}], "backend": scene.backend("shared")})
    };
    scene.create("north", spec("north")).await?;
    let old = scene
        .phase("north", Phase::AwaitingApproval)
        .await?
        .plan
        .context("no plan")?;
    scene.create("south", spec("south")).await?;
    let new = scene
        .phase("south", Phase::AwaitingApproval)
        .await?
        .plan
        .context("no plan")?;
    ensure!(
        old.revision.as_ref() == Some(&commit) && new.revision.as_ref() == Some(&commit),
        "{old:?} {new:?}"
    );
    ensure!(old.checksum != new.checksum, "two plans have one name");
    let bare = new.checksum.trim_start_matches("sha256:");
    let wrong = [
        old.checksum.clone(),
        commit.clone(),
        format!("plan-main-{}", &commit[..10]),
        format!("plan-main-{}", &commit[..8]),
        "auto".to_owned(),
        bare.to_owned(),
        bare[..8].to_owned(),
        new.checksum[..new.checksum.len() - 1].to_owned(),
        format!("{}0", new.checksum),
        new.checksum.to_uppercase(),
    ];
    for id in wrong {
        let said = scene.refused(&annotate(&scene, "south", &id))?;
        holds(
            &said,
            &format!(
                "the plan that waits is {}, not {id}; nothing was approved",
                new.checksum
            ),
        )?;
    }
    // The older plan of the same stack is superseded; no name can approve it.
    let status = scene.ends("north", RunResult::Superseded).await?;
    ensure!(
        status.claim.is_none() && status.approval.is_none(),
        "{status:?}"
    );
    scene
        .refused(&annotate(&scene, "north", &old.checksum))
        .context("a plan that was superseded")?;
    let status = scene.status("south").await?;
    ensure!(
        status.phase == Some(Phase::AwaitingApproval)
            && status.approval.is_none()
            && status.claim.is_none(),
        "{status:?}"
    );
    ensure!(scene.state("shared").is_err(), "something was applied");
    scene.approved("south").await?;
    let state = scene.state("shared")?.to_string();
    ensure!(
        state.contains("south") && !state.contains("north"),
        "{state}"
    );
    Ok(())
}

/// The command that a person pastes, with the supposed name of the plan.
fn annotate(scene: &Scene, run: &str, id: &str) -> String {
    format!(
        "kubectl annotate -n {} --overwrite tfrun/{run} {}='{id}' {}=\"$(kubectl auth whoami -o jsonpath='{{.status.userInfo.username}}')\"",
        scene.namespace,
        names::APPROVE,
        names::APPROVED_BY
    )
}

/// Burrito 11.2: it deletes the lock of a layer by name, whoever holds it, so the run that ended first freed the lock of the other. In Pawl
/// a waiting run may be cancelled or deleted with all its objects, and the lease stays with the applying run.
async fn first_end(scene: Scene) -> Result<()> {
    let backend = json!({"backend": scene.backend("shared")});
    scene
        .scripted(
            "holds",
            json!({"resources": gated(2)}),
            with(automatic(), backend.clone()),
        )
        .await?;
    scene.until_ledger("holds", what::RESOURCE, None).await?;
    let run = scene.get("holds").await?;
    let lease = run
        .status
        .as_ref()
        .and_then(|status| status.lease.clone())
        .context("no lease")?;
    let leases: Api<Lease> = Api::namespaced(scene.suite.client.clone(), SYSTEM);
    let holder = format!(
        "{}/holds/{}",
        scene.namespace,
        run.uid().unwrap_or_default()
    );
    for name in ["cancelled", "deleted", "next"] {
        scene
            .scripted(
                name,
                json!({"resources": 3}),
                with(automatic(), backend.clone()),
            )
            .await?;
        scene
            .until(name, "queued", SOON, |s| {
                said(s, conditions::STATE_LEASED, reason::QUEUED)
            })
            .await?;
    }
    let third = |s: &TerraformRunStatus| {
        s.message
            .as_ref()
            .is_some_and(|message| message.contains("in place 3"))
    };
    scene.until("next", "third in line", SOON, third).await?;
    scene
        .annotate("cancelled", &[(names::CANCEL, Some("not needed"))])
        .await?;
    scene.ends("cancelled", RunResult::Canceled).await?;
    scene.kubectl(&["delete", "tfrun", "deleted", "--wait=false"])?;
    scene.gone("deleted").await?;
    let object = leases.get(&lease.name).await?;
    ensure!(
        object
            .spec
            .as_ref()
            .and_then(|spec| spec.holder_identity.as_deref())
            == Some(&holder),
        "{object:?}"
    );
    let (status, waits) = (scene.status("holds").await?, scene.status("next").await?);
    ensure!(status.phase == Some(Phase::Apply), "{status:?}");
    ensure!(
        status.lease.as_ref().is_some_and(|l| l.name == lease.name),
        "{status:?}"
    );
    ensure!(
        waits.lease.is_none()
            && waits.attempt.is_none()
            && scene.pod_names("next").await?.is_empty(),
        "{waits:?}"
    );
    scene.open("holds").await?;
    let first = scene
        .ends("holds", RunResult::Applied)
        .await?
        .completion_time
        .context("no time")?;
    let next = scene.ends_within("next", RunResult::Applied, LATER).await?;
    ensure!(
        next.start_time.context("no time")?.0 >= first.0
            && next.plan.context("no plan")?.counts.add == 1
    );
    Ok(())
}

/// Burrito 11.3: it treated a commit during the plan of another as planned, and its apply of the older plan recorded the newer commit: B
/// was never planned and counted as applied. In Pawl a plan belongs to the commit that was fetched for it, reports that, and is applied
/// unchanged; the next run plans the newer commit.
async fn mid_plan(scene: Scene) -> Result<()> {
    let script = |name: &str, resources: u32, steps: &[Value]| {
        scene
            .script(
                name,
                json!({"resources": resources, "commands": {"plan": steps}}),
            )
            .to_string()
    };
    let repository = scene.path("stack");
    let repo = scene.suite.git.create(&repository)?;
    let commit = |script: &str| {
        repo.commit(
            "main",
            &[
                ("main.tf", "# played by a script\n"),
                ("pawl-script.json", script),
            ],
        )
    };
    let spec = json!({"source": {"git": {"url": scene.suite.git.url(&repository), "revision": "main"}},
        "tool": {"name": "OpenTofu", "version": "0.0.1"}, "backend": scene.backend("shared")});
    let first = commit(&script("a", 1, &[gate()]))?;
    scene.create("a", spec.clone()).await?;
    scene
        .until_ledger("a", what::COMMAND_START, Some("plan"))
        .await?;
    let second = commit(&script("b", 3, &[]))?;
    ensure!(
        scene.status("a").await?.plan.is_none(),
        "the commit came after the plan"
    );
    scene.open("a").await?;
    let plan = scene
        .phase("a", Phase::AwaitingApproval)
        .await?
        .plan
        .context("no plan")?;
    ensure!(
        plan.revision.as_ref() == Some(&first) && plan.counts.add == 1,
        "{plan:?}"
    );
    let status = scene.approved("a").await?;
    let (plan, claim) = (
        status.plan.context("no plan")?,
        status.claim.context("no claim")?,
    );
    ensure!(
        plan.revision.as_ref() == Some(&first) && claim.checksum == plan.checksum,
        "{plan:?} {claim:?}"
    );
    ensure!(
        created(&scene, "a") == 1 && scene.ledger("b").is_empty(),
        "something of the other commit ran"
    );
    scene.create("b", spec).await?;
    let plan = scene
        .phase("b", Phase::AwaitingApproval)
        .await?
        .plan
        .context("no plan")?;
    ensure!(
        plan.revision.as_ref() == Some(&second) && plan.counts.add == 2,
        "the commit was lost: {plan:?}"
    );
    scene.approved("b").await?;
    ensure!(created(&scene, "b") == 2);
    Ok(())
}

/// Argo #13581 (and #12993, #13152, #13533): a drained node removed pods before they had reported, and their workflows stayed Running
/// forever. In Pawl a run whose pod is removed during the plan, the hold or the apply goes on or ends, and retains no lock.
async fn drained(scene: Scene) -> Result<()> {
    for name in ["lost", "plans"] {
        let script = json!({"commands": {"plan": [{"only": [1], "sleep_ms": 600_000}]}});
        scene.scripted(name, script, automatic()).await?;
    }
    scene
        .scripted("waits", json!({}), json!({"approval": {"holdFor": "1h"}}))
        .await?;
    for name in ["lost", "plans"] {
        scene
            .until_ledger(name, what::COMMAND_START, Some("plan"))
            .await?;
    }
    scene.phase("waits", Phase::AwaitingApproval).await?;
    // Far more than can be created before the pod is removed.
    scene
        .scripted(
            "applies",
            json!({"resources": 150, "apply_ms": 500}),
            automatic(),
        )
        .await?;
    scene.until_ledger("applies", what::RESOURCE, None).await?;
    for name in ["plans", "waits", "applies"] {
        scene
            .pods()
            .evict(&scene.pod(name).await?.name_any(), &EvictParams::default())
            .await?;
    }
    // As for a node that disappears at once.
    scene.delete_by_force("lost").await?;
    let waiting = released(&scene, "waits").await?;
    approve_waiting(&scene, &waiting)?;
    for (name, plans) in [("lost", 2), ("plans", 2), ("waits", 1)] {
        let status = scene.ends_within(name, RunResult::Applied, LATER).await?;
        ensure!(status.attempt.context("no attempt")?.number == 2, "{name}");
        ensure!(
            scene.starts(name, "plan") == plans && scene.starts(name, "apply") == 1,
            "{name}"
        );
    }
    let failure = scene
        .ends_within("applies", RunResult::Failed, LATER)
        .await?
        .failure
        .context("no failure")?;
    ensure!(
        failure.class == FailureClass::Interrupted && failure.changes == Changed::Some,
        "{failure:?}"
    );
    for name in ["lost", "plans", "waits", "applies"] {
        scene.closed(name).await?;
        ensure!(
            scene.lock(name).is_none(),
            "the lock of {name} is still held"
        );
    }
    let look = async || {
        let pods = scene.pods().list(&ListParams::default()).await?;
        let held = pods
            .iter()
            .filter(|pod| pod.finalizers().iter().any(|f| f == names::POD_FINALIZER));
        let held: Vec<_> = held.map(ResourceExt::name_any).collect();
        Ok(if held.is_empty() {
            Ok(())
        } else {
            Err(format!("{held:?}"))
        })
    };
    wait::until("no pod that ended is held", SOON, look).await
}

/// gardener #426: the Job of an apply whose pod was evicted started a second pod, which applied again and wrote its state over that of the
/// first. In Pawl a claimed plan has exactly one pod; its state is saved, and only a new plan continues from there.
async fn evicted(scene: Scene) -> Result<()> {
    scene
        .scripted("a", json!({"resources": 30, "apply_ms": 500}), automatic())
        .await?;
    until_created(&scene, "a", 2).await?;
    let pod = scene.pod("a").await?.name_any();
    scene.pods().evict(&pod, &EvictParams::default()).await?;
    scene.closed("a").await?;
    let status = scene.ends("a", RunResult::Failed).await?;
    let failure = status.failure.context("no failure")?;
    ensure!(
        failure.class == FailureClass::Interrupted && failure.changes == Changed::Some,
        "{failure:?}"
    );
    scene.saved("a")?;
    let before = created(&scene, "a");
    ensure!(
        (2..30).contains(&before),
        "the apply was not cut off: {before}"
    );
    // The rerun is a run with its own plan. Until it has ended, a retry of the first would have begun.
    let again = scene.rerun("a").await?;
    let status = scene.ends_within(&again, RunResult::Applied, LATER).await?;
    let left = u32::try_from(30 - before)?;
    ensure!(
        status
            .plan
            .as_ref()
            .is_some_and(|plan| plan.counts.add == left),
        "{:?}",
        status.plan
    );
    // Both runs use one script, so they share a ledger.
    let entries = scene.ledger("a");
    let applies = ledger::select(&entries, what::APPLY, None);
    let by: Vec<&str> = applies.iter().map(|entry| entry.who.as_str()).collect();
    ensure!(
        by.len() == 2 && by[0] == pod && by[1] != pod,
        "applied by {by:?}"
    );
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    for entry in ledger::select(&entries, what::RESOURCE, None) {
        *times
            .entry(entry.text("address").unwrap_or_default())
            .or_default() += 1;
    }
    ensure!(
        times.len() == 30 && times.values().all(|made| *made == 1),
        "made more than once, or not at all: {times:?}"
    );
    let versions: Vec<Value> = scene.suite.state.versions(&scene.path("a"));
    let lineages = versions
        .iter()
        .filter(|version| version["lineage"] == versions[0]["lineage"])
        .count();
    ensure!(
        lineages == versions.len(),
        "a state was begun anew: {versions:?}"
    );
    ensure!(
        versions
            .iter()
            .map(|version| version["serial"].as_u64())
            .is_sorted_by(|a, b| a < b),
        "{versions:?}"
    );
    ensure!(ledger::forgotten(&entries, versions.last().context("no state")?).is_empty());
    let names = scene.pod_names("a").await?;
    ensure!(
        names.iter().all(|name| *name == pod),
        "a second pod of a claimed plan: {names:?}"
    );
    ensure!(
        scene
            .status("a")
            .await?
            .attempt
            .is_some_and(|attempt| attempt.number == 1)
    );
    Ok(())
}
