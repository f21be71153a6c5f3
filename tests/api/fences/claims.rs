//! Claims: their writer, their plan, and other changes in the same write.

use anyhow::{Context, Result};
use crds::{TerraformRun, names};
use harness::{cluster::objects, wait};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::{NOT_THE_POD, RUN, Scene};
use crate::world::{Agent, PATIENCE, Test, World, plan, refused, run, sum};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("fences::a_claim_needs_a_live_approval_of_this_plan", true, claim),
        Test::new("fences::an_attempt_restores_the_plan_of_another_and_makes_none", true, restores),
        Test::new("fences::a_restored_plan_is_claimed_by_the_attempt_that_restores_it", true, claim_restored),
        Test::new("fences::a_claim_is_the_adopted_process_own", true, claim_of_another),
        Test::new("fences::nothing_is_claimed_when_cancelled_denied_or_deleted", true, claim_of_an_ended_run),
        Test::new("fences::an_automatic_run_claims_its_own_plan_only", true, claim_automatic),
        Test::new("fences::a_claim_needs_the_lease_on_the_state_of_its_plan", true, claim_leased),
        Test::new("fences::a_plan_of_before_a_restore_is_not_claimed", true, claim_before_restore),
        Test::new("fences::the_account_that_plans_does_not_apply", true, claim_apart),
        Test::new("fences::a_plan_only_run_claims_nothing", true, claim_plan_only),
        Test::new("fences::a_run_that_refreshes_claims_nothing", true, claim_refresh_only),
        Test::new("fences::an_automatic_run_claims_what_is_within_its_bounds", true, claim_harmless),
        Test::new("fences::nobody_else_writes_a_claim", true, claim_by_others),
    ]
}

async fn claim(world: World) -> Result<()> {
    let scene = Scene::new(world, json!({})).await?;
    let agent = scene.planned().await?;
    let text = "a claim needs a live approval";
    let claims = || agent.claims(1, '0', 'a');
    refused("nobody approved", claims().await, text)?;
    scene.record(Some('a')).await?;
    refused("a record without annotation", claims().await, text)?;
    scene.record(None).await?;
    scene.annotate(json!({names::APPROVE: sum('a'), names::APPROVED_BY: "admin"})).await?;
    refused("an annotation without record", claims().await, text)?;
    scene.record(Some('b')).await?;
    refused("a record of another plan", claims().await, text)?;
    scene.record(Some('a')).await?;
    scene.annotate(json!({names::APPROVE: null, names::APPROVED_BY: null})).await?;
    refused("withdrawn, the record still there", claims().await, text)?;
    scene.approve('a').await?;
    refused("another plan", agent.claims(1, '0', 'b').await, text)?;
    let mut swapped = agent.claim(1, '0', &sum('a'));
    swapped["plan"] = plan(1, 'b');
    refused("a plan changed in the same write", agent.status(&swapped).await, "an attempt writes its plan once")?;
    claims().await.context("approved and recorded")?;
    refused("twice, with another time", agent.status(&json!({"claim": {"at": "2027-01-01T00:00:00Z"}})).await, "claim")?;
    refused("removed", agent.status(&json!({"claim": null})).await, "claim")
}

/// Closes the attempt once its plan waits, and opens another that restores that plan and is adopted by its agent.
async fn restoring(scene: &Scene, of: u32) -> Result<(Agent, Agent)> {
    let first = scene.planned().await?;
    let attempt = |attempt: Value| json!({"attempt": attempt});
    scene.world.status(&scene.namespace, RUN, &attempt(json!({"open": false}))).await?;
    scene.world.status(&scene.namespace, RUN, &attempt(json!({"restores": of}))).await?;
    let second = scene.open(2).await?;
    let mut adoption = second.adoption(2, '2');
    adoption["phase"] = "AwaitingApproval".into();
    second.status(&adoption).await.context("adoption in AwaitingApproval")?;
    Ok((first, second))
}

async fn restores(world: World) -> Result<()> {
    let scene = Scene::new(world, json!({})).await?;
    let (_, agent) = restoring(&scene, 1).await?;
    let text = "one that restores a plan writes none";
    refused("a plan of its own", agent.status(&json!({"plan": plan(2, 'b')})).await, text)?;
    refused("the same plan, as its own", agent.status(&json!({"plan": plan(2, 'a')})).await, text)?;
    refused("another plan as the old attempt", agent.status(&json!({"plan": plan(1, 'b')})).await, text)?;
    refused("none", agent.status(&json!({"plan": null})).await, text)?;
    let bundle = json!({"plan": {"bundle": sum('c')}});
    refused("another bundle", agent.status(&bundle).await, text)?;
    refused("restores nothing", agent.status(&json!({"attempt": {"restores": null}})).await, "written by the controller")?;
    refused("back to Setup", agent.status(&json!({"phase": "Setup"})).await, "illegal change of phase")?;
    agent.status(&json!({"message": "restoring"})).await?;
    Ok(())
}

async fn claim_restored(world: World) -> Result<()> {
    let text = "a claim needs a live approval of the plan";
    let other = Scene::new(world.clone(), json!({})).await?;
    let (_, agent) = restoring(&other, 7).await?;
    other.approve('a').await?;
    refused("the plan of an attempt that it does not restore", agent.claims(2, '2', 'a').await, text)?;

    let scene = Scene::new(world, json!({})).await?;
    let (first, agent) = restoring(&scene, 1).await?;
    refused("nobody approved", agent.claims(2, '2', 'a').await, text)?;
    scene.approve('a').await?;
    refused("in the name of the attempt that planned", agent.claims(1, '2', 'a').await, "a claim is written once")?;
    refused("the attempt that planned", first.claims(1, '0', 'a').await, NOT_THE_POD)?;
    refused("another plan", agent.claims(2, '2', 'b').await, text)?;
    scene.annotate(json!({names::APPROVE: null, names::APPROVED_BY: null})).await?;
    refused("withdrawn, the record still there", agent.claims(2, '2', 'a').await, text)?;
    scene.approve('a').await?;
    agent.claims(2, '2', 'a').await.context("approved, recorded and restored")?;
    Ok(())
}

async fn claim_of_another(world: World) -> Result<()> {
    let scene = Scene::new(world, json!({})).await?;
    let agent = scene.planned().await?;
    scene.approve('a').await?;
    let text = "a claim is written once, by the process that adopted";
    refused("another process of the pod", agent.claims(1, '1', 'a').await, text)?;
    refused("another attempt", agent.claims(2, '0', 'a').await, text)?;
    let mut foreign = agent.claim(1, '0', &sum('a'));
    foreign["claim"]["podUID"] = "other".into();
    refused("another pod's UID", agent.status(&foreign).await, text)?;
    let mut quiet = agent.claim(1, '0', &sum('a'));
    quiet.as_object_mut().map(|q| q.remove("phase"));
    refused("without its phase", agent.status(&quiet).await, text)?;
    let other = scene.world.pod(&scene.namespace, "another-pod", "run-a1", RUN).await?;
    refused("another pod", other.status(&agent.claim(1, '0', &sum('a'))).await, NOT_THE_POD)?;
    // The approval of an attempt's plan ends with the attempt, since the next attempt has other bytes on its disk.
    scene.world.status(&scene.namespace, RUN, &json!({"phase": "Pending", "attempt": {"open": false}})).await?;
    let next = scene.open(2).await?;
    next.status(&next.adoption(2, '1')).await.context("second adoption")?;
    for phase in ["Init", "Plan", "AwaitingApproval"] {
        next.status(&json!({"phase": phase})).await?;
    }
    refused("a plan of the attempt before", next.claims(2, '1', 'a').await, "that this attempt made")
}

async fn claim_of_an_ended_run(world: World) -> Result<()> {
    for key in [names::DENY, names::CANCEL, "deletion"] {
        let scene = Scene::new(world.clone(), json!({})).await?;
        let agent = scene.planned().await?;
        scene.approve('a').await?;
        if key == "deletion" {
            let runs = scene.world.runs(&scene.namespace);
            objects::merge(&runs, RUN, &json!({"metadata": {"finalizers": [names::RUN_FINALIZER]}})).await?;
            runs.delete(RUN, &DeleteParams::default()).await?;
        } else {
            scene.annotate(json!({key: "no"})).await?;
        }
        refused(key, agent.claims(1, '0', 'a').await, "cancelled, denied or being deleted")?;
        agent.status(&json!({"phase": "Canceled", "result": "Canceled"})).await.context("but it may say how it ended")?;
    }
    Ok(())
}

async fn claim_automatic(world: World) -> Result<()> {
    let scene = Scene::new(world, json!({"approval": {"mode": "Automatic"}})).await?;
    let agent = scene.open(1).await?;
    agent.plans(1).await?;
    let text = "a claim needs a live approval of the plan";
    refused("before there is a plan", agent.claims(1, '0', 'a').await, text)?;
    let mut both = agent.claim(1, '0', &sum('a'));
    both["plan"] = plan(1, 'a');
    refused("with the plan in one write", agent.status(&both).await, text)?;
    agent.status(&json!({"plan": plan(1, 'a')})).await?;
    refused("another plan", agent.claims(1, '0', 'b').await, text)?;
    agent.claims(1, '0', 'a').await?;
    Ok(())
}

async fn claim_apart(world: World) -> Result<()> {
    let spec = json!({"runner": {"planServiceAccountName": "reader"}});
    let scene = Scene::new(world.clone(), spec.clone()).await?;
    let agent = scene.planned().await?;
    scene.approve('a').await?;
    let text = "a plan is applied by an attempt that restores it";
    refused("the pod that made the plan", agent.claims(1, '0', 'a').await, text)?;
    let scene = Scene::new(world.clone(), spec.clone()).await?;
    let (_, agent) = restoring(&scene, 1).await?;
    scene.approve('a').await?;
    agent.claims(2, '2', 'a').await.context("a pod that restores it")?;
    let mut automatic = spec;
    automatic["approval"] = json!({"mode": "Automatic"});
    let namespace = world.namespace().await?;
    let created = world.runs(&namespace).create(&PostParams::default(), &run(RUN, &automatic)?).await;
    refused("of what nobody approves", created, "planServiceAccountName needs approval.mode Manual")
}

async fn claim_leased(world: World) -> Result<()> {
    let scene = Scene::new(world, json!({"approval": {"mode": "Automatic"}})).await?;
    let agent = scene.open(1).await?;
    agent.plans(1).await?;
    let mut planned = plan(1, 'a');
    planned["stateKey"] = sum('c').into();
    agent.status(&json!({"plan": planned})).await?;
    let lease = |digit: char| json!({"lease": {"stateKey": sum(digit), "name": names::lease_name(&scene.namespace, &sum(digit)), "at": "2026-01-01T00:00:00Z"}});
    let text = "a claim needs the lease on the state of its plan";
    let claims = || agent.claims(1, '0', 'a');
    refused("without a lease", claims().await, text)?;
    refused("one that it gives itself", agent.status(&lease('c')).await, "written by the controller")?;
    let mut both = agent.claim(1, '0', &sum('a'));
    both["lease"] = lease('c')["lease"].clone();
    refused("in the same write", agent.status(&both).await, "written by the controller")?;
    scene.world.status(&scene.namespace, RUN, &lease('d')).await?;
    refused("the lease on another state", claims().await, text)?;
    scene.world.status(&scene.namespace, RUN, &json!({"lease": null})).await?;
    refused("given back", claims().await, text)?;
    scene.world.status(&scene.namespace, RUN, &lease('c')).await?;
    claims().await.context("with the lease")?;
    Ok(())
}

/// Installs the chart's policy with a restore date, in addition to the one that all tests share, for the runs of these scenes.
async fn policy_of_a_restore(scenes: &[Scene], at: &str) -> Result<()> {
    const NAME: &str = "pawl-status-restored";
    let all = crate::chart::render(&[&format!("controller.refusePlansBefore={at:?}")])?;
    let renamed = |kind: &str| -> Result<Value> {
        let mut object = crate::chart::get(&all, kind, "pawl-status")?.clone();
        object["metadata"]["labels"] = Value::Null;
        Ok(serde_json::from_str(&object.to_string().replace("pawl-status", NAME))?)
    };
    let mut binding = renamed("ValidatingAdmissionPolicyBinding")?;
    let names: Vec<_> = scenes.iter().map(|scene| scene.namespace.as_str()).collect();
    let here = json!([{"key": "kubernetes.io/metadata.name", "operator": "In", "values": names}]);
    binding["spec"]["matchResources"] = json!({"namespaceSelector": {"matchExpressions": here}});
    let scene = scenes.first().context("no scene")?;
    let admin = &scene.world.admin;
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(admin.clone());
    objects::create(&policies, renamed("ValidatingAdmissionPolicy")?).await?;
    objects::create(&Api::<ValidatingAdmissionPolicyBinding>::all(admin.clone()), binding).await?;
    // It refuses a probe of its name, like the chart's policy.
    let mut probe = run("probe", &json!({}))?;
    probe.metadata.annotations = Some([("pawl.run/probe".to_owned(), NAME.to_owned())].into());
    let (params, runs) = (PostParams { dry_run: true, ..PostParams::default() }, scene.world.runs(&scene.namespace));
    wait::until("the policy is in force", PATIENCE, async || Ok(runs.create(&params, &probe).await.is_err())).await
}

async fn claim_before_restore(world: World) -> Result<()> {
    let plans = [
        (None, false),
        (Some("2026-11-22T05:13:15Z"), false),
        (Some("2026-11-22T05:13:16Z"), true),
        (Some("2026-11-22T07:00:00Z"), true),
    ];
    let mut scenes = Vec::new();
    for _ in plans {
        scenes.push(Scene::new(world.clone(), json!({})).await?);
    }
    policy_of_a_restore(&scenes, "2026-11-22T05:13:16Z").await?;
    for (scene, (made, may)) in scenes.iter().zip(plans) {
        let agent = scene.open(1).await?;
        agent.plans(1).await?;
        let mut planned = plan(1, 'a');
        planned["createdAt"] = made.into();
        agent.status(&json!({"phase": "AwaitingApproval", "plan": planned})).await.context("plan")?;
        scene.approve('a').await?;
        let claimed = agent.claims(1, '0', 'a').await;
        if may {
            claimed.with_context(|| format!("a plan of {made:?}"))?;
        } else {
            let text = "the plan was made before 2026-11-22T05:13:16Z, when the cluster was restored";
            refused(&format!("a plan of {made:?}"), claimed, text)?;
        }
    }
    Ok(())
}

async fn claim_plan_only(world: World) -> Result<()> {
    claims_nothing(world, "Plan").await
}

async fn claim_refresh_only(world: World) -> Result<()> {
    claims_nothing(world, "RefreshOnly").await
}

async fn claims_nothing(world: World, operation: &str) -> Result<()> {
    let scene = Scene::new(world, json!({"operation": operation, "approval": {"mode": "Automatic"}})).await?;
    let agent = scene.planned().await?;
    refused(operation, agent.claims(1, '0', 'a').await, "a claim needs a live approval of the plan")
}

async fn claim_harmless(world: World) -> Result<()> {
    let approval = json!({"mode": "Automatic", "automaticWhen": {"maxReplace": 1}});
    let scene = Scene::new(world, json!({"approval": approval})).await?;
    let text = "a claim needs a live approval of the plan";
    // Two are destroyed, one of them replaced: one more than allowed.
    let (mut number, mut rows) = (0, vec![(2, 1), (2, 2), (1, 1)]);
    while let Some((destroy, replace)) = rows.first().copied() {
        rows.remove(0);
        number += 1;
        let agent = scene.open(number).await?;
        agent.plans(number).await?;
        let mut plan = plan(number, 'a');
        plan["destroy"] = destroy.into();
        plan["replace"] = replace.into();
        agent.status(&json!({"plan": plan})).await?;
        let claimed = agent.claims(number, '0', 'a').await;
        if rows.is_empty() {
            claimed.context("one replaced, none destroyed for good")?;
        } else {
            refused(&format!("{destroy} destroyed, {replace} replaced"), claimed, text)?;
            scene.world.status(&scene.namespace, RUN, &json!({"phase": "Pending", "attempt": {"open": false}})).await?;
        }
    }
    Ok(())
}

async fn claim_by_others(world: World) -> Result<()> {
    let scene = Scene::new(world, json!({})).await?;
    let agent = scene.planned().await?;
    scene.approve('a').await?;
    let body = Patch::Merge(json!({"status": agent.claim(1, '0', &sum('a'))}));
    let controller = scene.world.access.impersonate("system:serviceaccount:pawl-system:pawl-controller", &[]).await?;
    for (who, client) in [("administrator", scene.world.admin.clone()), ("controller", controller)] {
        let runs: Api<TerraformRun> = Api::namespaced(client, &scene.namespace);
        refused(who, runs.patch_status(RUN, &PatchParams::default(), &body).await, "a claim is written once, by the process")?;
    }
    Ok(())
}
