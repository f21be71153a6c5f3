//! Runs and annotations while an admission policy is missing, and after its return. Uses a separate API server, because the tests remove
//! policies.

use anyhow::{Context as _, Result, ensure};
use crds::{
    RunResult, TerraformLayer, TerraformRun, TerraformRunStatus as Status, conditions, names,
    reason,
};
use harness::{cluster::objects, wait};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ObjectMeta, PostParams},
};
use serde_json::json;

use crate::{
    rig::{RUN, Rig, has, is_open, stalls},
    world::{PATIENCE, World, plan, run, sum, tests},
};

tests! {
    Bare: missing_policy_stops_runs_and_revokes_annotations,
}

async fn missing_policy_stops_runs_and_revokes_annotations(_: World) -> Result<()> {
    let (world, _plane) = World::start(true).await?;
    for policy in names::POLICIES {
        Box::pin(missing(&world, policy)).await.context(policy)?;
    }
    for looked_at in [true, false] {
        Box::pin(forged(&world, looked_at))
            .await
            .with_context(|| format!("looked at meanwhile: {looked_at}"))?;
    }
    Box::pin(created(&world)).await?;
    Box::pin(layer(&world)).await
}

async fn take_away(world: &World, policy: &str) -> Result<ValidatingAdmissionPolicyBinding> {
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(world.admin.clone());
    let mut binding = bindings.get(policy).await?;
    bindings.delete(policy, &DeleteParams::default()).await?;
    let ObjectMeta { name, labels, .. } = binding.metadata;
    binding.metadata = ObjectMeta {
        name,
        labels,
        ..ObjectMeta::default()
    };
    Ok(binding)
}

async fn put_back(world: &World, binding: &ValidatingAdmissionPolicyBinding) -> Result<()> {
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(world.admin.clone());
    bindings.create(&PostParams::default(), binding).await?;
    Ok(())
}

fn waits(status: &Status) -> bool {
    stalls(status, reason::POLICY_MISSING)
}

fn is_revoked(status: &Status) -> bool {
    has(status, conditions::APPROVED, "False", reason::UNVERIFIED)
}

/// Runs of both modes wait for the missing policy, whichever it is. When it returns, a Manual run begins, and an Automatic one is canceled,
/// since its author is unverified. The approval of a waiting plan is removed, and a run that was queued before stays queued.
async fn missing(world: &World, policy: &str) -> Result<()> {
    let manual = Rig::guarded(world.clone()).await?;
    manual.enforced().await?;
    let (automatic, waiting, queued) = (
        manual.beside().await?,
        manual.beside().await?,
        manual.beside().await?,
    );
    plans(&waiting).await?;
    let address = format!("http://state.example.com/{}", queued.namespace);
    let applies = json!({"approval": {"mode": "Automatic"}, "backend": {"type": "http", "config": {"address": address}}});
    let in_line = |status: &Status| {
        has(status, conditions::STATE_LEASED, "False", reason::QUEUED) && !waits(status)
    };
    world.create(&queued.namespace, "first", &applies).await?;
    queued.step_of("first").await?;
    queued.create(&applies).await?;
    queued.look("queued", in_line).await?;

    let binding = take_away(world, policy).await?;
    manual.create(&json!({})).await?;
    automatic
        .create(&json!({"approval": {"mode": "Automatic"}}))
        .await?;
    for rig in [&manual, &automatic] {
        let status = rig.look("stalled with PolicyMissing", waits).await?;
        let named = status
            .message
            .as_ref()
            .is_some_and(|message| message.contains(policy));
        ensure!(
            named && status.attempt.is_none(),
            "no policy is named, or an attempt was opened: {status:?}"
        );
    }
    queued.look("stalled with PolicyMissing", waits).await?;
    waiting.approve().await?;
    let status = waiting.look("stalled with PolicyMissing", waits).await?;
    ensure!(status.approval.is_none(), "recorded without the policy");

    put_back(world, &binding).await?;
    manual
        .look("opened", |status| is_open(1)(status) && !waits(status))
        .await?;
    // No policy checked its author.
    let status = automatic
        .look("ended", |status| status.result.is_some())
        .await?;
    ensure!(
        status.result == Some(RunResult::Canceled) && status.attempt.is_none(),
        "{status:?}"
    );
    waiting
        .look("told that the approval was removed", is_revoked)
        .await?;
    ensure!(
        !waiting
            .get()
            .await?
            .annotations()
            .contains_key(names::APPROVE)
    );
    queued
        .look("queued, and no longer stalled", in_line)
        .await
        .map(drop)
}

/// A Manual run with a waiting plan.
async fn plans(rig: &Rig) -> Result<()> {
    rig.create(&json!({})).await?;
    rig.look("opened", is_open(1)).await?;
    let agent = rig.token().await?;
    agent.plans(1).await?;
    agent
        .status(&json!({"phase": "AwaitingApproval", "plan": plan(1, 'a')}))
        .await
        .context("plan")?;
    rig.look("waiting", |status| {
        has(status, conditions::APPROVED, "False", reason::WAITING)
    })
    .await
    .map(drop)
}

/// An author approves in another user's name while the policy is missing. The controller revokes this approval, whether or not it
/// reconciled the run meanwhile.
async fn forged(world: &World, looked_at: bool) -> Result<()> {
    let rig = Rig::guarded(world.clone()).await?;
    rig.enforced().await?;
    plans(&rig).await?;
    let bob = world.person("bob", &rig.namespace, "pawl-author").await?;
    let binding = take_away(world, names::POLICY_APPROVAL).await?;
    let runs: Api<TerraformRun> = Api::namespaced(bob, &rig.namespace);
    let forged = json!({"metadata": {"annotations": {names::APPROVE: sum('a'), names::APPROVED_BY: "alice@example.com"}}});
    let patch = async || Ok(objects::merge(&runs, RUN, &forged).await);
    wait::until(
        "the policy is off, as it is a moment after its binding went",
        PATIENCE,
        patch,
    )
    .await?;
    if looked_at {
        let status = rig.look("stalled with PolicyMissing", waits).await?;
        ensure!(status.approval.is_none(), "recorded without the policy");
    }
    put_back(world, &binding).await?;
    rig.until("told that the approval was removed", is_revoked)
        .await?;
    rig.enforced().await?;
    let settled = |status: &Status| {
        is_revoked(status)
            && has(status, conditions::STALLED, "False", reason::PROGRESSING)
            && has(status, conditions::PLANNED, "True", reason::PLANNED)
    };
    let status = rig.look("no longer stalled", settled).await?;
    let message = status
        .conditions
        .iter()
        .find(|c| c.type_ == conditions::APPROVED)
        .map(|c| &c.message);
    ensure!(
        message.is_some_and(|text| text.starts_with("alice@example.com's approval was removed: ")),
        "{message:?}"
    );
    ensure!(
        status.approval.is_none() && status.claim.is_none(),
        "{status:?}"
    );
    let run = rig.get().await?;
    ensure!(
        !run.annotations().contains_key(names::APPROVE)
            && !run.annotations().contains_key(names::APPROVED_BY)
    );
    rig.rests("what was removed stays removed").await?;
    rig.approve().await?;
    rig.look("approved", |status| {
        status
            .approval
            .as_ref()
            .is_some_and(|approval| approval.by == "admin")
    })
    .await?;
    // The first proof of a new process revokes nothing.
    rig.again().await?.rests("after a restart").await
}

/// An author creates an Automatic run while the policy is missing.
async fn created(world: &World) -> Result<()> {
    let rig = Rig::guarded(world.clone()).await?;
    rig.enforced().await?;
    let bob = world.person("bob", &rig.namespace, "pawl-author").await?;
    let binding = take_away(world, names::POLICY_CREATION).await?;
    let runs: Api<TerraformRun> = Api::namespaced(bob, &rig.namespace);
    let automatic = run(RUN, &json!({"approval": {"mode": "Automatic"}}))?;
    wait::until("the creation is admitted", PATIENCE, async || {
        Ok(runs.create(&PostParams::default(), &automatic).await)
    })
    .await?;
    rig.look("stalled with PolicyMissing", waits).await?;
    put_back(world, &binding).await?;
    let status = rig.look("ended", Status::is_terminal).await?;
    ensure!(
        status.result == Some(RunResult::Canceled) && status.attempt.is_none(),
        "{status:?}"
    );
    ensure!(
        status
            .message
            .is_some_and(|message| message.contains("Create it again"))
    );
    Ok(())
}

/// An author creates an Automatic and a Manual layer while the policy is missing.
async fn layer(world: &World) -> Result<()> {
    let rig = Rig::guarded(world.clone()).await?;
    rig.enforced().await?;
    let bob = world.person("bob", &rig.namespace, "pawl-author").await?;
    let binding = take_away(world, names::POLICY_LAYER).await?;
    let layers: Api<TerraformLayer> = Api::namespaced(bob, &rig.namespace);
    let automatic = crate::layer_rights::layer(
        "automatic",
        &json!({"remediation": {"onDrift": "Automatic"}}),
    )?;
    wait::until("the creation is admitted", PATIENCE, async || {
        Ok(layers.create(&PostParams::default(), &automatic).await)
    })
    .await?;
    layers
        .create(
            &PostParams::default(),
            &crate::layer_rights::layer("manual", &json!({}))?,
        )
        .await?;
    rig.create(&json!({})).await?;
    rig.look("stalled with PolicyMissing", waits).await?;
    put_back(world, &binding).await?;
    rig.look("opened", is_open(1)).await?;
    ensure!(
        layers.get("automatic").await?.is_unverified()
            && !layers.get("manual").await?.is_unverified()
    );
    let off = json!({"metadata": {"annotations": {names::UNVERIFIED: null}}});
    let removed = objects::merge(&layers, "automatic", &off).await;
    crate::world::refused(
        "by who may not make it",
        removed,
        "needs the verb autoapprove",
    )?;
    let layers: Api<TerraformLayer> = Api::namespaced(world.admin.clone(), &rig.namespace);
    objects::merge(&layers, "automatic", &off)
        .await
        .context("by who may make it")?;
    // A confirmed layer stays confirmed.
    rig.again().await?.enforced().await?;
    ensure!(!layers.get("automatic").await?.is_unverified());
    Ok(())
}
