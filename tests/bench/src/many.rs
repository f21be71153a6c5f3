//! Compares twenty parallel runs with twenty bare pods.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::future::try_join_all;
use futures::{StreamExt as _, TryStreamExt as _};
use kube::api::PostParams;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, ResourceExt};

use super::lab::{Lab, pod_succeeded, run_succeeded};
use super::samples::{Samples, Unit};
use super::stacks::{Commands, Stack};
use super::table::Table;

const NUMBER: usize = 20;
const PATIENCE: Duration = Duration::from_secs(180);

/// Measures both alternately.
pub(super) async fn measure(lab: &Lab, times: usize, table: &mut Table) -> Result<()> {
    let (mut bare, mut runs, mut ratio) = (Samples::default(), Samples::default(), Samples::default());
    for _ in 0..times {
        let namespace = lab.namespace().await?;
        let pods: Vec<_> = (0..NUMBER)
            .map(|n| lab.bare_pod(&namespace, &format!("bare-{n}"), Stack::Tiny, Commands::Plain))
            .collect::<Result<_>>()?;
        let alone = all_seen(lab.pods(&namespace), &pods, pod_succeeded).await?;
        rest().await;
        let objects: Vec<_> =
            (0..NUMBER).map(|n| lab.run(&namespace, &format!("run-{n}"), Stack::Tiny, "Automatic")).collect::<Result<_>>()?;
        let ours = all_seen(lab.runs(&namespace), &objects, run_succeeded).await?;
        rest().await;
        bare.seconds(alone);
        runs.seconds(ours);
        ratio.push(ours.as_secs_f64() / alone.as_secs_f64());
    }
    table.plain("twenty bare pods at once, create to all Succeeded", bare.spread(Unit::Seconds));
    table.plain("twenty runs at once, create to all Succeeded", runs.spread(Unit::Seconds));
    table.bound("twenty runs / twenty bare pods", ratio.spread(Unit::Ratio), "at most 1.00", ratio.median() <= 1.0);
    Ok(())
}

/// Waits until the kubelet has cleaned up, so that one batch does not slow down the next.
async fn rest() {
    tokio::time::sleep(Duration::from_secs(8)).await;
}

/// Creates all objects under an established watch, and waits until the success of each is observed.
async fn all_seen<K>(api: Api<K>, objects: &[K], done: fn(&K) -> Result<bool>) -> Result<Duration>
where
    K: kube::Resource<DynamicType = ()>
        + Clone
        + serde::de::DeserializeOwned
        + serde::Serialize
        + std::fmt::Debug
        + Send
        + 'static,
{
    let names: BTreeSet<String> = objects.iter().map(ResourceExt::name_any).collect();
    let mut stream = watcher(api.clone(), watcher::Config::default()).default_backoff().boxed();
    loop {
        if matches!(stream.next().await.context("the watch ended")?, Ok(watcher::Event::InitDone)) {
            break;
        }
    }
    let begun = Instant::now();
    let parameters = PostParams::default();
    let create = try_join_all(objects.iter().map(|object| api.create(&parameters, object)));
    let wait = async {
        let mut seen = BTreeSet::new();
        while seen.len() < names.len() {
            let event = stream.try_next().await;
            let Ok(Some(watcher::Event::Apply(object) | watcher::Event::InitApply(object))) = event else { continue };
            if names.contains(&object.name_any()) && done(&object)? {
                seen.insert(object.name_any());
            }
        }
        anyhow::Ok(begun.elapsed())
    };
    let both = async {
        let (created, waited) = tokio::join!(create, wait);
        created.context("cannot create all of them")?;
        waited
    };
    tokio::time::timeout(PATIENCE, both).await.with_context(|| format!("not all succeeded within {PATIENCE:?}"))?
}
