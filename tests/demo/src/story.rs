//! The story: a run, and then a layer that applies a directory of the repository.

use std::time::Instant;

use anyhow::Result;
use crds::RunResult;
use kube::{Client, ResourceExt as _};

use super::act::{Act, Ended};
use super::screen::{self, Step};
use super::servers::Servers;
use super::stack::{self, NAMESPACE};
use super::{Approval, ENV, layer};
use harness::cluster::{Cluster, report};

pub(super) async fn tell(
    cluster: &Cluster,
    servers: &Servers,
    approval: Approval,
    begun: Instant,
) -> Result<u8> {
    let client = cluster.client().await?;
    let act = Act::new(cluster, client.clone(), approval, servers.web);
    let mut ended = run(&act, &client, servers).await?;
    if ended == Ended::Applied {
        ended = layer::play(&act, &client, servers).await?;
    }
    if ended != Ended::Left {
        screen::say(&format!(
            "All of it took {}. The cluster stays up: {ENV}; kubectl get tfrun,tfl,tfrepo -A.   End it: cargo demo --down",
            report::duration(begun.elapsed())
        ));
    }
    Ok(ended.code())
}

/// One run: created, planned, approved or denied, applied.
async fn run(act: &Act<'_>, client: &Client, servers: &Servers) -> Result<Ended> {
    let step = Step::begin(4, "run");
    stack::namespace(client).await?;
    let number = stack::next_number(client).await?;
    let commit = stack::commit(servers, number)?;
    let run = stack::create_run(client, servers, number).await?;
    let name = run.name_any();
    step.done(&format!(
        "{NAMESPACE}/{name} created, for {} at {}",
        stack::origin(servers),
        &commit[..8]
    ));
    let ended = act.play(&run, 5).await?;
    if ended == Ended::Applied {
        let step = Step::begin(6, "outputs");
        let outputs = stack::outputs(act.cluster, &act.runs.get(&name).await?)?;
        let all: Vec<_> = outputs
            .iter()
            .map(|(name, value)| format!("{name} = {value}"))
            .collect();
        step.done(&format!("{}: {}", RunResult::Applied, all.join("  ")));
    }
    if ended != Ended::Left {
        act.describe("terraformrun", &name)?;
    }
    Ok(ended)
}
