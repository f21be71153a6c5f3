//! Leases on states, as Lease objects of a real API server, among runs that share states.

use anyhow::{Context, Result, ensure};
use crds::{conditions, names, reason, whole_seconds};
use harness::wait;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;

use crate::{
    rig::{RUN, Rig, has},
    world::{PATIENCE, World, plan, sum, tests},
};

tests! {
    Guarded: separate_namespaces_have_separate_leases,
    Guarded: sharing_namespaces_have_one_lease_per_state,
    Guarded: run_named_by_the_lease_does_not_deadlock,
    Guarded: lease_made_by_others_holds_no_state,
}

/// An automatic run on a state that both namespaces reference.
async fn created(rig: &Rig, address: &str) -> Result<()> {
    let spec = json!({"approval": {"mode": "Automatic"}, "backend": {"type": "http", "config": {"address": address}}});
    rig.create(&spec).await.map(drop)
}

async fn separate_namespaces_have_separate_leases(world: World) -> Result<()> {
    let (a, b) = (Rig::new(world.clone()).await?, Rig::new(world).await?);
    let address = format!("http://state.example.com/{}", a.namespace);
    let mut leases = Vec::new();
    for rig in [&a, &b] {
        created(rig, &address).await?;
        let status = rig
            .look("opened with its lease", |status| status.lease.is_some())
            .await?;
        leases.push(status.lease.context("no lease")?);
    }
    ensure!(
        leases[0].state_key == leases[1].state_key && leases[0].name != leases[1].name,
        "{leases:?}"
    );
    Ok(())
}

async fn sharing_namespaces_have_one_lease_per_state(world: World) -> Result<()> {
    let (a, b) = Rig::pair(world).await?;
    let address = format!("http://state.example.com/{}", a.namespace);
    created(&a, &address).await?;
    a.look("opened with its lease", |status| status.lease.is_some())
        .await?;
    created(&b, &address).await?;
    let behind = format!("behind {}/{RUN}, in place 1", a.namespace);
    let waits = b
        .look("queued", |status| {
            has(status, conditions::STATE_LEASED, "False", reason::QUEUED)
        })
        .await?;
    ensure!(
        waits
            .conditions
            .iter()
            .any(|condition| condition.message.contains(&behind)),
        "{waits:?}"
    );
    ensure!(
        waits.lease.is_none() && waits.attempt.is_none(),
        "it waits without a pod"
    );
    Ok(())
}

/// Somebody made the Lease in the state's name beforehand, with labels of Pawl and a holder of his own choice.
async fn lease_made_by_others_holds_no_state(world: World) -> Result<()> {
    let first = Rig::new(world.clone()).await?;
    let address = format!("http://state.example.com/{}", first.namespace);
    created(&first, &address).await?;
    let status = first
        .look("opened with its lease", |status| status.lease.is_some())
        .await?;
    let key = status.lease.context("no lease")?.state_key;
    for holder in ["", "somebody", "{namespace}/none/0b9c1a4e"] {
        let rig = Rig::new(world.clone()).await?;
        let holder = holder.replace("{namespace}", &rig.namespace);
        let labels =
            json!({names::LABEL_MANAGED_BY: names::MANAGED_BY, names::LABEL_RUN_UID: "0b9c1a4e"});
        let foreign: Lease = serde_json::from_value(
            json!({"metadata": {"name": names::lease_name(&rig.namespace, &key), "labels": labels},
            "spec": {"holderIdentity": holder}}),
        )?;
        kube::Api::namespaced(world.admin.clone(), "pawl-system")
            .create(&PostParams::default(), &foreign)
            .await?;
        created(&rig, &address).await?;
        rig.look(&format!("opened in spite of {holder:?}"), |status| {
            status.lease.is_some()
        })
        .await?;
    }
    Ok(())
}

/// A run took the Lease, but its approval was withdrawn before the status recorded it, and renewed after another run's approval. The Lease
/// names the first run, but the other run is ahead in the queue.
async fn run_named_by_the_lease_does_not_deadlock(world: World) -> Result<()> {
    const OTHER: &str = "other";
    let rig = Rig::new(world.clone()).await?;
    let mut made = plan(1, 'a');
    (made["stateKey"], made["bundle"]) = (sum('c').into(), sum('b').into());
    made["createdAt"] = whole_seconds(Timestamp::now()).0.to_string().into();
    for (name, at) in [(OTHER, 20), (RUN, 10)] {
        world.create(&rig.namespace, name, &json!({})).await?;
        let attempt =
            json!({"number": 1, "podName": format!("{name}-a1"), "open": false, "tries": 1});
        world
            .status(
                &rig.namespace,
                name,
                &json!({"phase": "Pending", "attempt": attempt}),
            )
            .await?;
        for phase in ["Setup", "Init", "Plan"] {
            world
                .status(&rig.namespace, name, &json!({"phase": phase}))
                .await?;
        }
        world
            .status(
                &rig.namespace,
                name,
                &json!({"phase": "AwaitingApproval", "plan": made}),
            )
            .await?;
        let approved = Patch::Merge(json!({"metadata": {"finalizers": [names::RUN_FINALIZER],
            "annotations": {names::APPROVE: sum('a'), names::APPROVED_BY: "admin"}}}));
        world
            .runs(&rig.namespace)
            .patch(name, &PatchParams::default(), &approved)
            .await?;
        let at = whole_seconds(Timestamp::now() - SignedDuration::from_secs(at));
        let record = json!({"checksum": sum('a'), "by": "admin", "at": at});
        world
            .status(&rig.namespace, name, &json!({"approval": record}))
            .await?;
    }
    let uid = rig.get().await?.uid().context("no UID")?;
    let lease_name = names::lease_name(&rig.namespace, &sum('c'));
    let taken: Lease = serde_json::from_value(
        json!({"metadata": {"name": lease_name, "labels": {names::LABEL_RUN_UID: uid}},
        "spec": {"holderIdentity": format!("{}/{RUN}/{uid}", rig.namespace)}}),
    )?;
    kube::Api::namespaced(world.admin.clone(), "pawl-system")
        .create(&PostParams::default(), &taken)
        .await?;
    rig.watched().await?;
    wait::until("one of both has it", PATIENCE, async || {
        rig.step_of(OTHER).await?;
        rig.step().await?;
        let status = rig.status().await?;
        Ok(if status.lease.is_some() {
            Ok(())
        } else {
            Err(format!("{status:?}"))
        })
    })
    .await?;
    let other = world.runs(&rig.namespace).get(OTHER).await?;
    ensure!(
        other
            .status
            .as_ref()
            .is_some_and(|status| status.lease.is_none()),
        "both have it: {other:?}"
    );
    Ok(())
}
