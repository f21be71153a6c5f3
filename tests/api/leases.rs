//! Leases on states, as Lease objects of a real API server: whose runs know of each other.

use anyhow::{Context, Result, ensure};
use crds::{StateLease, TerraformRun, conditions, reason};
use serde_json::json;

use crate::{
    rig::{RUN, Rig},
    world::{Test, World},
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("leases::namespaces_that_do_not_share_have_leases_of_their_own", true, apart),
        Test::new("leases::namespaces_that_share_have_one_lease_on_a_state", true, together),
    ]
}

fn lease(run: &TerraformRun) -> Option<&StateLease> {
    run.status.as_ref()?.lease.as_ref()
}

/// A run that applies without being asked to a state that both of two namespaces name.
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
