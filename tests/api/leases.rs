//! Leases on states, as Lease objects of a real API server, among runs that share states.

use anyhow::{Context, Result, ensure};
use crds::{StateLease, TerraformRun, conditions, names, reason, whole_seconds};
use harness::wait;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;

use crate::{
    rig::{RUN, Rig},
    world::{PATIENCE, Test, World, plan, sum},
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("leases::namespaces_that_do_not_share_have_leases_of_their_own", true, apart),
        Test::new("leases::namespaces_that_share_have_one_lease_on_a_state", true, together),
        Test::new("leases::a_run_that_the_lease_names_is_not_waited_for_by_whom_it_waits_for", true, named),
    ]
}

fn lease(run: &TerraformRun) -> Option<&StateLease> {
    run.status.as_ref()?.lease.as_ref()
}

/// An automatic run on a state that both namespaces reference.
async fn created(rig: &Rig, address: &str) -> Result<()> {
    let spec = json!({"approval": {"mode": "Automatic"}, "backend": {"type": "http", "config": {"address": address}}});
    rig.world.create(&rig.namespace, RUN, &spec).await.map(drop)
}

async fn apart(world: World) -> Result<()> {
    let (a, b) = (Rig::new(world.clone()).await?, Rig::new(world).await?);
    let address = format!("http://state.example.com/{}", a.namespace);
    let mut leases = Vec::new();
    for rig in [&a, &b] {
        created(rig, &address).await?;
        let run = rig.look("opened with its lease", |run| lease(run).is_some()).await?;
        leases.push(lease(&run).context("no lease")?.clone());
    }
    ensure!(leases[0].state_key == leases[1].state_key && leases[0].name != leases[1].name, "{leases:?}");
    Ok(())
}

async fn together(world: World) -> Result<()> {
    let (a, b) = Rig::pair(world).await?;
    let address = format!("http://state.example.com/{}", a.namespace);
    created(&a, &address).await?;
    a.look("opened with its lease", |run| lease(run).is_some()).await?;
    created(&b, &address).await?;
    let behind = format!("behind {}/{RUN}, in place 1", a.namespace);
    let queued = |run: &TerraformRun| {
        let conditions = run.status.iter().flat_map(|status| &status.conditions);
        conditions
            .into_iter()
            .any(|c| c.type_ == conditions::STATE_LEASED && c.reason == reason::QUEUED && c.message.contains(&behind))
    };
    let waits = b.look("queued", queued).await?;
    ensure!(lease(&waits).is_none() && waits.status.is_some_and(|status| status.attempt.is_none()), "it waits without a pod");
    Ok(())
}

/// A run took the Lease, but its approval was withdrawn before the status recorded it, and renewed after another run's approval. The Lease
/// names the first run, but the other run is ahead in the queue.
async fn named(world: World) -> Result<()> {
    const OTHER: &str = "other";
    let rig = Rig::new(world.clone()).await?;
    let mut made = plan(1, 'a');
    (made["stateKey"], made["bundle"]) = (sum('c').into(), sum('b').into());
    made["createdAt"] = whole_seconds(Timestamp::now()).0.to_string().into();
    for (name, at) in [(OTHER, 20), (RUN, 10)] {
        world.create(&rig.namespace, name, &json!({})).await?;
        let attempt = json!({"number": 1, "podName": format!("{name}-a1"), "open": false, "tries": 1});
        world.status(&rig.namespace, name, &json!({"phase": "Pending", "attempt": attempt})).await?;
        for phase in ["Setup", "Init", "Plan"] {
            world.status(&rig.namespace, name, &json!({"phase": phase})).await?;
        }
        world.status(&rig.namespace, name, &json!({"phase": "AwaitingApproval", "plan": made})).await?;
        let approved = Patch::Merge(json!({"metadata": {"finalizers": [names::RUN_FINALIZER],
            "annotations": {names::APPROVE: sum('a'), names::APPROVED_BY: "admin"}}}));
        world.runs(&rig.namespace).patch(name, &PatchParams::default(), &approved).await?;
        let at = whole_seconds(Timestamp::now() - SignedDuration::from_secs(at));
        let record = json!({"checksum": sum('a'), "by": "admin", "at": at});
        world.status(&rig.namespace, name, &json!({"approval": record})).await?;
    }
    let uid = rig.get().await?.uid().context("no UID")?;
    let lease_name = names::lease_name(&rig.namespace, &sum('c'));
    let taken: Lease = serde_json::from_value(json!({"metadata": {"name": lease_name, "labels": {names::LABEL_RUN_UID: uid}},
        "spec": {"holderIdentity": format!("{}/{RUN}/{uid}", rig.namespace)}}))?;
    kube::Api::namespaced(world.admin.clone(), "pawl-system").create(&PostParams::default(), &taken).await?;
    rig.watched().await?;
    wait::until("one of both has it", PATIENCE, async || {
        rig.step_of(OTHER).await?;
        rig.step().await?;
        let run = rig.get().await?;
        Ok(lease(&run).map(drop).ok_or_else(|| format!("{:?}", run.status)))
    })
    .await?;
    let other = world.runs(&rig.namespace).get(OTHER).await?;
    ensure!(lease(&other).is_none(), "both have it: {other:?}");
    Ok(())
}
