//! Claims: their writer, their plan, and other changes in the same write.

use anyhow::{Context, Result};
use crds::names;
use harness::{cluster::objects, wait};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::{Api, api::PostParams};
use serde_json::{Value, json};

use crate::{
    fences::NOT_THE_POD,
    scene::{RUN, Scene, approval, record, withdrawal},
    world::{Agent, PATIENCE, World, plan, run, sum, tests},
};

tests! {
    Guarded: claim_needs_live_approval_of_this_plan,
    Guarded: restoring_attempt_writes_no_plan,
    Guarded: restored_plan_is_claimed_by_the_restoring_attempt,
    Guarded: only_the_adopted_process_claims,
    Guarded: cancelled_denied_or_deleted_run_claims_nothing,
    Guarded: automatic_run_claims_only_its_own_plan,
    Guarded: claim_needs_lease_on_the_state_of_its_plan,
    Guarded: plan_made_before_a_restore_is_not_claimed,
    Guarded: planning_account_does_not_apply,
    Guarded: run_without_apply_claims_nothing,
    Guarded: automatic_run_claims_within_its_bounds,
    Guarded: only_the_agent_writes_a_claim,
}

const LIVE: &str = "a claim needs a live approval of the plan";

async fn claim_needs_live_approval_of_this_plan(world: World) -> Result<()> {
    let mut scene = Scene::new(world, &[]).await?;
    let agent = scene.waiting(RUN, &json!({})).await?;
    let claim = |digit: char| agent.claim(1, '0', digit);
    let mut swapped = claim('a');
    swapped["plan"] = plan(1, 'b');
    let rows = json!([
        ["not approved", "run-a1", {"status": claim('a')}, LIVE],
        ["record", "admin", {"status": record('a')}, ""],
        ["a record without annotation", "run-a1", {"status": claim('a')}, LIVE],
        ["no record", "admin", {"status": {"approval": null}}, ""],
        ["annotation", "admin", {"annotate": approval("admin", 'a')}, ""],
        ["an annotation without record", "run-a1", {"status": claim('a')}, LIVE],
        ["record of another plan", "admin", {"status": record('b')}, ""],
        ["a record of another plan", "run-a1", {"status": claim('a')}, LIVE],
        ["record", "admin", {"status": record('a')}, ""],
        ["withdrawal", "admin", {"annotate": withdrawal()}, ""],
        ["withdrawn, with the record", "run-a1", {"status": claim('a')}, LIVE],
        ["annotation", "admin", {"annotate": approval("admin", 'a')}, ""],
        ["another plan", "run-a1", {"status": claim('b')}, LIVE],
        ["a plan changed in the same write", "run-a1", {"status": swapped}, "an attempt writes its plan once"],
        ["approved and recorded", "run-a1", {"status": claim('a')}, ""],
        ["twice, with another time", "run-a1", {"status": {"claim": {"at": "2027-01-01T00:00:00Z"}}}, "claim"],
        ["removed", "run-a1", {"status": {"claim": null}}, "claim"],
    ]);
    scene.rows(RUN, rows).await
}

/// Creates a run whose first attempt is closed while its plan waits, and whose second restores a plan and has adopted as its agent does.
async fn restoring(scene: &mut Scene, run: &str, of: u32, spec: &Value) -> Result<(Agent, Agent)> {
    let first = scene.waiting(run, spec).await?;
    scene
        .status(run, json!({"attempt": {"open": false}}))
        .await?;
    scene
        .status(run, json!({"attempt": {"restores": of}}))
        .await?;
    let second = scene.open(run, 2).await?;
    let mut adoption = second.adoption(2, '2');
    adoption["phase"] = "AwaitingApproval".into();
    second
        .status(&adoption)
        .await
        .context("adoption in AwaitingApproval")?;
    Ok((first, second))
}

async fn restoring_attempt_writes_no_plan(world: World) -> Result<()> {
    let mut scene = Scene::new(world, &[]).await?;
    restoring(&mut scene, RUN, 1, &json!({})).await?;
    let none = "one that restores a plan writes none";
    let by_controller = "written by the controller";
    let rows = json!([
        ["its own plan", "run-a2", {"status": {"plan": plan(2, 'b')}}, none],
        ["the same plan, as its own", "run-a2", {"status": {"plan": plan(2, 'a')}}, none],
        ["another plan as the old attempt", "run-a2", {"status": {"plan": plan(1, 'b')}}, none],
        ["no plan", "run-a2", {"status": {"plan": null}}, none],
        ["another bundle", "run-a2", {"status": {"plan": {"bundle": sum('c')}}}, none],
        ["restores nothing", "run-a2", {"status": {"attempt": {"restores": null}}}, by_controller],
        ["back to Setup", "run-a2", {"status": {"phase": "Setup"}}, "illegal change of phase"],
        ["a message", "run-a2", {"status": {"message": "restoring"}}, ""],
    ]);
    scene.rows(RUN, rows).await
}

async fn restored_plan_is_claimed_by_the_restoring_attempt(world: World) -> Result<()> {
    let mut scene = Scene::new(world, &[]).await?;
    let (_, agent) = restoring(&mut scene, "other", 7, &json!({})).await?;
    scene.approve("other").await?;
    let rows =
        json!([["not the restored plan", "other-a2", {"status": agent.claim(2, '2', 'a')}, LIVE]]);
    scene.rows("other", rows).await?;

    let (first, agent) = restoring(&mut scene, RUN, 1, &json!({})).await?;
    let claim = |digit: char| agent.claim(2, '2', digit);
    let rows = json!([["not approved", "run-a2", {"status": claim('a')}, LIVE]]);
    scene.rows(RUN, rows).await?;
    scene.approve(RUN).await?;
    let rows = json!([
        ["as the planning attempt", "run-a2", {"status": agent.claim(1, '2', 'a')}, "a claim is written once"],
        ["the planning attempt", "run-a1", {"status": first.claim(1, '0', 'a')}, NOT_THE_POD],
        ["another plan", "run-a2", {"status": claim('b')}, LIVE],
        ["withdrawal", "admin", {"annotate": withdrawal()}, ""],
        ["withdrawn, with the record", "run-a2", {"status": claim('a')}, LIVE],
        ["annotation", "admin", {"annotate": approval("admin", 'a')}, ""],
        ["approved, recorded and restored", "run-a2", {"status": claim('a')}, ""],
    ]);
    scene.rows(RUN, rows).await
}

async fn only_the_adopted_process_claims(world: World) -> Result<()> {
    let mut scene = Scene::new(world, &[]).await?;
    let agent = scene.waiting(RUN, &json!({})).await?;
    scene.pod("another-pod", "run-a1", RUN).await?;
    scene.approve(RUN).await?;
    let once = "a claim is written once, by the process that adopted";
    let mut foreign = agent.claim(1, '0', 'a');
    foreign["claim"]["podUID"] = "other".into();
    let mut quiet = agent.claim(1, '0', 'a');
    quiet.as_object_mut().map(|q| q.remove("phase"));
    let rows = json!([
        ["another process of the pod", "run-a1", {"status": agent.claim(1, '1', 'a')}, once],
        ["another attempt", "run-a1", {"status": agent.claim(2, '0', 'a')}, once],
        ["another pod's UID", "run-a1", {"status": foreign}, once],
        ["without its phase", "run-a1", {"status": quiet}, once],
        ["another pod", "another-pod", {"status": agent.claim(1, '0', 'a')}, NOT_THE_POD],
    ]);
    scene.rows(RUN, rows).await?;
    // The plan of an attempt ends with it, and so does its approval: the next has other bytes on its disk.
    scene.close(RUN).await?;
    let next = scene.open(RUN, 2).await?;
    let rows = json!([
        ["adoption", "run-a2", {"status": next.adoption(2, '1')}, ""],
        ["Init", "run-a2", {"status": {"phase": "Init"}}, ""],
        ["Plan", "run-a2", {"status": {"phase": "Plan"}}, ""],
        ["AwaitingApproval", "run-a2", {"status": {"phase": "AwaitingApproval"}}, ""],
        ["the former plan", "run-a2", {"status": next.claim(2, '1', 'a')}, "that this attempt made"],
    ]);
    scene.rows(RUN, rows).await
}

async fn cancelled_denied_or_deleted_run_claims_nothing(world: World) -> Result<()> {
    let mut scene = Scene::new(world, &[]).await?;
    let finalizer = json!({"finalizers": [names::RUN_FINALIZER]});
    for (name, stop) in [
        ("denied", json!({"annotate": {names::DENY: "no"}})),
        ("cancelled", json!({"annotate": {names::CANCEL: "no"}})),
        ("deleted", json!({"delete": ""})),
    ] {
        let (agent, pod) = (scene.waiting(name, &json!({})).await?, format!("{name}-a1"));
        scene.approve(name).await?;
        let end = json!({"phase": "Canceled", "result": "Canceled"});
        let stopped = "cancelled, denied or being deleted";
        let rows = json!([
            ["finalizer", "admin", {"merge": {"metadata": finalizer}}, ""],
            [name, "admin", stop, ""],
            ["claim", pod, {"status": agent.claim(1, '0', 'a')}, stopped],
            ["end", pod, {"status": end}, ""],
        ]);
        scene.rows(name, rows).await?;
    }
    Ok(())
}

fn automatic() -> Value {
    json!({"approval": {"mode": "Automatic"}})
}

async fn automatic_run_claims_only_its_own_plan(world: World) -> Result<()> {
    let mut scene = Scene::new(world, &[]).await?;
    let agent = scene.planning(RUN, &automatic()).await?;
    let claim = |digit: char| agent.claim(1, '0', digit);
    let mut both = claim('a');
    both["plan"] = plan(1, 'a');
    let rows = json!([
        ["no plan", "run-a1", {"status": claim('a')}, LIVE],
        ["with the plan in one write", "run-a1", {"status": both}, LIVE],
        ["plan", "run-a1", {"status": {"plan": plan(1, 'a')}}, ""],
        ["another plan", "run-a1", {"status": claim('b')}, LIVE],
        ["its plan", "run-a1", {"status": claim('a')}, ""],
    ]);
    scene.rows(RUN, rows).await
}

async fn planning_account_does_not_apply(world: World) -> Result<()> {
    let mut scene = Scene::new(world, &[]).await?;
    let mut spec = json!({"runner": {"planServiceAccountName": "reader"}});
    let agent = scene.waiting(RUN, &spec).await?;
    scene.approve(RUN).await?;
    let restores = "a plan is applied by an attempt that restores it";
    let rows =
        json!([["the planning pod", "run-a1", {"status": agent.claim(1, '0', 'a')}, restores]]);
    scene.rows(RUN, rows).await?;
    let (_, agent) = restoring(&mut scene, "restored", 1, &spec).await?;
    scene.approve("restored").await?;
    let rows =
        json!([["a restoring pod", "restored-a2", {"status": agent.claim(2, '2', 'a')}, ""]]);
    scene.rows("restored", rows).await?;
    spec["approval"] = json!({"mode": "Automatic"});
    let manual = "planServiceAccountName needs approval.mode Manual";
    let rows = json!([["not approved", "admin", {"create": {"spec": spec}}, manual]]);
    scene.rows("automatic", rows).await
}

async fn claim_needs_lease_on_the_state_of_its_plan(world: World) -> Result<()> {
    let mut scene = Scene::new(world, &[]).await?;
    let agent = scene.planning(RUN, &automatic()).await?;
    let mut planned = plan(1, 'a');
    planned["stateKey"] = sum('c').into();
    let lease = |digit: char| {
        let name = names::lease_name(&scene.namespace, &sum(digit));
        json!({"stateKey": sum(digit), "name": name, "at": "2026-01-01T00:00:00Z"})
    };
    let needs = "a claim needs the lease on the state of its plan";
    let by_controller = "written by the controller";
    let claim = agent.claim(1, '0', 'a');
    let mut both = claim.clone();
    both["lease"] = lease('c');
    let rows = json!([
        ["plan", "run-a1", {"status": {"plan": planned}}, ""],
        ["no lease", "run-a1", {"status": claim}, needs],
        ["its own lease", "run-a1", {"status": {"lease": lease('c')}}, by_controller],
        ["its own lease in the same write", "run-a1", {"status": both}, by_controller],
        ["lease on another state", "admin", {"status": {"lease": lease('d')}}, ""],
        ["another state", "run-a1", {"status": claim}, needs],
        ["no lease", "admin", {"status": {"lease": null}}, ""],
        ["released", "run-a1", {"status": claim}, needs],
        ["lease", "admin", {"status": {"lease": lease('c')}}, ""],
        ["with the lease", "run-a1", {"status": claim}, ""],
    ]);
    scene.rows(RUN, rows).await
}

/// Installs the chart's policy with a restore date, in addition to the one that all tests share, for the runs of this namespace.
async fn policy_of_a_restore(scene: &Scene, at: &str) -> Result<()> {
    const NAME: &str = "pawl-status-restored";
    let all = crate::chart::render(&json!({"controller.refusePlansBefore": at}))?;
    let renamed = |kind: &str| -> Result<Value> {
        let mut object = crate::chart::get(&all, &format!("{kind}/pawl-status"))?.clone();
        object["metadata"]["labels"] = Value::Null;
        Ok(serde_json::from_str(
            &object.to_string().replace("pawl-status", NAME),
        )?)
    };
    let mut binding = renamed("ValidatingAdmissionPolicyBinding")?;
    let here = json!({"kubernetes.io/metadata.name": scene.namespace});
    binding["spec"]["matchResources"] = json!({"namespaceSelector": {"matchLabels": here}});
    let admin = &scene.world.admin;
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(admin.clone());
    objects::create(&policies, renamed("ValidatingAdmissionPolicy")?).await?;
    objects::create(
        &Api::<ValidatingAdmissionPolicyBinding>::all(admin.clone()),
        binding,
    )
    .await?;
    // It refuses a probe of its name, like the chart's policy.
    let mut probe = run("probe", &json!({}))?;
    probe.metadata.annotations = Some([("pawl.run/probe".to_owned(), NAME.to_owned())].into());
    let (params, runs) = (
        PostParams {
            dry_run: true,
            ..PostParams::default()
        },
        scene.world.runs(&scene.namespace),
    );
    wait::until("the policy is in force", PATIENCE, async || {
        Ok(runs.create(&params, &probe).await.is_err())
    })
    .await
}

async fn plan_made_before_a_restore_is_not_claimed(world: World) -> Result<()> {
    let mut scene = Scene::new(world, &[]).await?;
    policy_of_a_restore(&scene, "2026-11-22T05:13:16Z").await?;
    let older = "the plan was made before 2026-11-22T05:13:16Z, when the cluster was restored";
    for (name, made, message) in [
        ("undated", None, older),
        ("before", Some("2026-11-22T05:13:15Z"), older),
        ("then", Some("2026-11-22T05:13:16Z"), ""),
        ("after", Some("2026-11-22T07:00:00Z"), ""),
    ] {
        let (agent, pod) = (
            scene.planning(name, &json!({})).await?,
            format!("{name}-a1"),
        );
        let mut planned = plan(1, 'a');
        planned["createdAt"] = made.into();
        agent
            .status(&json!({"phase": "AwaitingApproval", "plan": planned}))
            .await
            .context("plan")?;
        scene.approve(name).await?;
        let rows = json!([["claim", pod, {"status": agent.claim(1, '0', 'a')}, message]]);
        scene.rows(name, rows).await?;
    }
    Ok(())
}

async fn run_without_apply_claims_nothing(world: World) -> Result<()> {
    let mut scene = Scene::new(world, &[]).await?;
    for (name, operation) in [("plan", "Plan"), ("refresh", "RefreshOnly")] {
        let spec = json!({"operation": operation, "approval": {"mode": "Automatic"}});
        let (agent, pod) = (scene.waiting(name, &spec).await?, format!("{name}-a1"));
        let rows = json!([[operation, pod, {"status": agent.claim(1, '0', 'a')}, LIVE]]);
        scene.rows(name, rows).await?;
    }
    Ok(())
}

async fn automatic_run_claims_within_its_bounds(world: World) -> Result<()> {
    let mut scene = Scene::new(world, &[]).await?;
    let spec = json!({"approval": {"mode": "Automatic", "automaticWhen": {"maxReplace": 1}}});
    // Of two that are destroyed, one is replaced: one more is destroyed than allowed.
    for (name, destroy, replace, message) in [
        ("destroys", 2, 1, LIVE),
        ("replaces", 2, 2, LIVE),
        ("within", 1, 1, ""),
    ] {
        let (agent, pod) = (scene.planning(name, &spec).await?, format!("{name}-a1"));
        let mut plan = plan(1, 'a');
        (plan["destroy"], plan["replace"]) = (destroy.into(), replace.into());
        let rows = json!([
            ["plan", pod, {"status": {"plan": plan}}, ""],
            ["claim", pod, {"status": agent.claim(1, '0', 'a')}, message],
        ]);
        scene.rows(name, rows).await?;
    }
    // Beyond any bounds, and without them: the agent could not read the plan file, or its state is not that of the last apply. Actions have a
    // bound of their own, 0 where others are given.
    let unbound = json!({"approval": {"mode": "Automatic"}});
    let invoking = json!({"approval": {"mode": "Automatic", "automaticWhen": {"maxInvoke": 1}}});
    for (name, spec, field, value, message) in [
        ("unread", &unbound, "unread", json!(true), LIVE),
        ("unread-within", &spec, "unread", json!(true), LIVE),
        ("elsewhere", &unbound, "otherState", json!(true), LIVE),
        ("elsewhere-within", &spec, "otherState", json!(true), LIVE),
        ("invokes", &spec, "invoke", json!(1), LIVE),
        ("invokes-more", &invoking, "invoke", json!(2), LIVE),
        ("invokes-within", &invoking, "invoke", json!(1), ""),
        ("invokes-unbound", &unbound, "invoke", json!(1), ""),
    ] {
        let (agent, pod) = (scene.planning(name, spec).await?, format!("{name}-a1"));
        let mut plan = plan(1, 'a');
        plan[field] = value;
        let rows = json!([
            ["plan", pod, {"status": {"plan": plan}}, ""],
            ["claim", pod, {"status": agent.claim(1, '0', 'a')}, message],
        ]);
        scene.rows(name, rows).await?;
    }
    Ok(())
}

async fn only_the_agent_writes_a_claim(world: World) -> Result<()> {
    let mut scene = Scene::new(world, &[]).await?;
    let agent = scene.waiting(RUN, &json!({})).await?;
    scene.approve(RUN).await?;
    let once = "a claim is written once, by the process";
    let rows = json!([
        ["claim", "admin", {"status": agent.claim(1, '0', 'a')}, once],
        ["claim", "controller", {"status": agent.claim(1, '0', 'a')}, once],
    ]);
    scene.rows(RUN, rows).await
}
