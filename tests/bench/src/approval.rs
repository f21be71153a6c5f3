//! Measures from an approval to the start of `apply`: in a pod in its hold, and in a new pod after the hold.
//!
//! The approver of a held pod, and each client that annotates meanwhile, is a user with the chart's roles and its own connection, as in
//! production: the API server does not limit administrators.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use crds::{Phase, TerraformRun, names};
use jiff::Timestamp;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use super::lab::{Commands, Lab, Namespace, PATIENCE, Stack, run_waits, watched};
use super::table::{Limit, Table, Unit, median};
use harness::cluster::objects;
use harness::wait;
use ledger::what;

/// Number of clients that annotate a run in parallel during its approval.
const WRITERS: u32 = 30;
const APPROVER: &str = "approver";

/// Rate of their writes.
#[derive(Clone, Copy)]
enum Pace {
    /// No writes.
    Calm,
    /// Like loops that sleep for a second.
    EachSecond,
    /// Annotates as fast as the API server responds. The API server stores one write of an object at a time, so each write, ours included,
    /// waits for the others.
    Unresting,
}

/// Durations of an approval, in seconds.
struct Approved {
    since_sent: f64,
    since_acknowledged: f64,
    /// Median duration of the other clients' writes meanwhile.
    write: f64,
}

/// Users with the rights of their roles in a namespace.
struct People<'a> {
    namespace: Namespace<'a>,
    approver: Api<TerraformRun>,
    writers: Vec<Api<TerraformRun>>,
}

impl<'a> People<'a> {
    async fn of(lab: &'a Lab) -> Result<Self> {
        let namespace = lab.namespace().await?;
        let bind = |role: &str, whom: &str| {
            lab.cluster.kubectl(&[
                "create",
                "rolebinding",
                role,
                &format!("--clusterrole={role}"),
                whom,
                "-n",
                &namespace.name,
            ])
        };
        bind("pawl-author", "--group=team")?;
        bind("pawl-approver", &format!("--user={APPROVER}"))?;
        let mut writers = Vec::new();
        for index in 0..WRITERS {
            let client = lab
                .cluster
                .impersonate(
                    &format!("writer-{index}"),
                    &["team", "system:authenticated"],
                )
                .await?;
            writers.push(Api::namespaced(client, &namespace.name));
        }
        let client = lab
            .cluster
            .impersonate(APPROVER, &["system:authenticated"])
            .await?;
        Ok(Self {
            approver: Api::namespaced(client, &namespace.name),
            namespace,
            writers,
        })
    }
}

/// Measures one run after the other: without other writes, and while others annotate the run.
pub(super) async fn held(lab: &Lab, times: usize, table: &mut Table) -> Result<()> {
    const ACKNOWLEDGED: &str = "approval acknowledged to apply started, held pod";
    let people = People::of(lab).await?;
    let (mut each_second, mut unresting, mut writes) = (Vec::new(), Vec::new(), Vec::new());
    for n in 0..times {
        let calm = approved(lab, &people, &format!("held-{n}"), Pace::Calm).await?;
        table.sample(
            "approval sent to apply started, held pod",
            Unit::Millis,
            calm.since_sent,
        );
        table.sample(ACKNOWLEDGED, Unit::Millis, calm.since_acknowledged);
        each_second.push(
            approved(lab, &people, &format!("busy-{n}"), Pace::EachSecond)
                .await?
                .since_acknowledged,
        );
        let busiest = approved(lab, &people, &format!("busiest-{n}"), Pace::Unresting).await?;
        unresting.push(busiest.since_acknowledged);
        writes.push(busiest.write);
    }
    table.limit(ACKNOWLEDGED, Limit::Max(0.1));
    let calm = table.median(ACKNOWLEDGED);
    for (how, busy) in [("each second", each_second), ("without rest", unresting)] {
        let figure = format!("the same while {WRITERS} annotate the run {how}, beside calm");
        for busy in busy {
            table.sample(&figure, Unit::Ratio, busy / calm);
        }
        table.limit(&figure, Limit::Max(3.0));
    }
    let figure = "  what each write of theirs without rest takes";
    for write in writes {
        table.sample(figure, Unit::Seconds, write);
    }
    Ok(())
}

/// Approves a waiting plan, and waits for the start of `apply`.
async fn approved(lab: &Lab, people: &People<'_>, name: &str, pace: Pace) -> Result<Approved> {
    let run = people.namespace.run(name, Stack::Nothing, "Manual")?;
    let (_, _, run) = watched(&people.namespace.runs, &run, run_waits).await?;
    let status = run.status.unwrap_or_default();
    let (plan, attempt) = (
        status.plan.context("no plan")?,
        status.attempt.context("no attempt")?,
    );
    let (count, rest) = match pace {
        Pace::Calm => (0, Duration::ZERO),
        Pace::EachSecond => (people.writers.len(), Duration::from_secs(1)),
        Pace::Unresting => (people.writers.len(), Duration::ZERO),
    };
    let taken = Arc::new(Mutex::new(Vec::new()));
    let writers = (0_u32..).zip(&people.writers[..count]).map(|(index, runs)| {
        let (runs, name, taken) = (runs.clone(), name.to_owned(), taken.clone());
        tokio::spawn(async move {
            // Spread their writes.
            tokio::time::sleep(rest / WRITERS * index).await;
            for n in 0_u64.. {
                let patch = json!({"metadata": {"annotations": {format!("team/{index}"): n.to_string()}}});
                let begun = Instant::now();
                let _ = objects::merge(&runs, &name, &patch).await;
                taken.lock().unwrap_or_else(PoisonError::into_inner).push(begun.elapsed().as_secs_f64());
                tokio::time::sleep(rest).await;
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    // A person needs more than this second. The controller's proof of the policies may be up to a minute old here, as in production.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let sent = Timestamp::now();
    Lab::approve(&people.approver, name, &plan.checksum, APPROVER).await?;
    let acknowledged = Timestamp::now();
    let applied = apply_start(lab, &attempt.pod_name).await;
    writers.iter().for_each(tokio::task::JoinHandle::abort);
    let (applied, taken) = (
        applied?,
        taken.lock().unwrap_or_else(PoisonError::into_inner),
    );
    Ok(Approved {
        since_sent: applied.duration_since(sent).as_secs_f64(),
        since_acknowledged: applied.duration_since(acknowledged).as_secs_f64(),
        write: median(&taken),
    })
}

/// When the tool of a pod began its apply, by its own clock, which is this machine's.
async fn apply_start(lab: &Lab, pod: &str) -> Result<Timestamp> {
    let look = async || {
        let of_pod: Vec<_> = lab
            .state
            .ledger()
            .into_iter()
            .filter(|entry| entry.who == pod)
            .collect();
        let begun = ledger::select(&of_pod, what::COMMAND_START, Some("apply"));
        Ok(begun.first().map(|entry| entry.at.clone()))
    };
    let at = wait::until(format!("{pod} applies after its approval"), PATIENCE, look).await?;
    at.parse().context("an entry without a time")
}

/// Measures an approval after the hold, and the start of a bare pod, alternately.
pub(super) async fn late(lab: &Lab, times: usize, table: &mut Table) -> Result<()> {
    const RATIO: &str = "  ratio to the bare pod's start";
    let namespace = lab.namespace().await?;
    let runs = &namespace.runs;
    for n in 0..times {
        let name = format!("late-{n}");
        let mut run = namespace.run(&name, Stack::Nothing, "Manual")?;
        run.spec.approval.hold_for = "0s".parse().map_err(|error| anyhow!("{error}"))?;
        runs.create(&PostParams::default(), &run).await?;
        let is_released = |run: &TerraformRun| {
            let status = run
                .status
                .as_ref()
                .filter(|status| status.phase == Some(Phase::AwaitingApproval));
            status
                .and_then(|status| status.attempt.as_ref())
                .is_some_and(|attempt| !attempt.open)
        };
        let run = wait::object(
            runs,
            &name,
            "waiting without a pod",
            Duration::from_secs(60),
            is_released,
        )
        .await?;
        let status = run.status.unwrap_or_default();
        let (plan, attempt) = (
            status.plan.context("no plan")?,
            status.attempt.context("no attempt")?,
        );
        tokio::time::sleep(Duration::from_secs(1)).await;
        let sent = Timestamp::now();
        let run = Lab::approve(runs, &name, &plan.checksum, "admin").await?;
        let pod = names::attempt_name(
            &name,
            run.metadata.uid.as_deref().unwrap_or_default(),
            attempt.number + 1,
        );
        let applied = Duration::try_from(apply_start(lab, &pod).await?.duration_since(sent))?;
        let bare = namespace.bare_pod(&format!("bare-{n}"), Stack::Nothing, Commands::Plain)?;
        let started = namespace.time_pod(&bare).await?.before;
        table.millis("bare pod created to its container started", started);
        table.millis(
            "approval after the hold sent to apply started, new pod",
            applied,
        );
        table.ratio(RATIO, applied, started);
    }
    table.limit(RATIO, Limit::Median(1.6));
    Ok(())
}
