//! Compares a bare pod with an Automatic run of the same stack: one at a time, from outside and from inside, and twenty in parallel.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::future::try_join_all;
use futures::{StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use kube::api::PostParams;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, ResourceExt};

use super::lab::{Commands, Lab, Object, Stack, Timing, pod_succeeded, run_succeeded};
use super::table::{Limit, Table, Unit};
use ledger::{Entry, what};

/// Number of runs, and of pods, in parallel.
const NUMBER: usize = 20;
const PATIENCE: Duration = Duration::from_secs(180);

/// Measures each stack. The first repetition is a warm-up: it unpacks images and fills caches.
pub(super) async fn measure(lab: &Lab, times: usize, table: &mut Table) -> Result<()> {
    for stack in [Stack::Tiny, Stack::Nothing, Stack::ThreeSeconds] {
        // The constant three seconds need fewer repetitions.
        let times = if stack == Stack::ThreeSeconds {
            times.div_ceil(2)
        } else {
            times
        };
        let namespace = lab.namespace().await?;
        for n in 0..=times {
            let pod = namespace.bare_pod(&format!("bare-{n}"), stack, Commands::Plain)?;
            let bare = namespace.time_pod(&pod).await?;
            settle().await;
            let run = namespace
                .time_run(&namespace.run(&format!("run-{n}"), stack, "Automatic")?)
                .await?;
            settle().await;
            let pod = namespace.bare_pod(&format!("show-{n}"), stack, Commands::WithShow)?;
            let show = namespace.time_pod(&pod).await?;
            settle().await;
            if n > 0 {
                add(lab, stack, [&bare, &run, &show], table);
            }
        }
        let limit = |table: &mut Table, figure: &str, limit| table.limit(&of(stack, figure), limit);
        if stack == Stack::ThreeSeconds {
            limit(table, AGAINST, Limit::Median(1.03));
        } else {
            // The bound is for a stack that takes no time; a longer stack brings both closer.
            limit(table, RUN_TO_BARE, Limit::Median(0.35));
        }
        limit(table, ADDS, Limit::Median(0.1));
        limit(table, ADDS_TO_SHOW, Limit::Median(0.1));
        table.close();
    }
    Ok(())
}

const RUN_TO_BARE: &str = "run / bare pod";
const ADDS: &str = "agent adds";
const ADDS_TO_SHOW: &str = "agent adds to a script that shows the plan";
const AGAINST: &str = "agent against script";

fn of(stack: Stack, figure: &str) -> String {
    format!("{}: {figure}", stack.name())
}

/// Waits until the kubelet has cleaned up, so that one does not slow down the other.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(1500)).await;
}

fn add(lab: &Lab, stack: Stack, [bare, run, show]: [&Timing; 3], table: &mut Table) {
    let of = |figure: &str| of(stack, figure);
    table.seconds(&of("bare pod, create to Succeeded"), bare.outside);
    table.seconds(&of("Automatic run, create to Succeeded"), run.outside);
    table.ratio(&of(RUN_TO_BARE), run.outside, bare.outside);
    table.millis(&of("create to container start, bare pod"), bare.before);
    table.millis(&of("create to container start, run"), run.before);
    table.millis(&of("in the container, script"), bare.inside);
    table.millis(&of("in the container, agent"), run.inside);
    let inside = run.inside.as_secs_f64();
    table.sample(&of(ADDS), Unit::Millis, inside - bare.inside.as_secs_f64());
    table.sample(
        &of(ADDS_TO_SHOW),
        Unit::Millis,
        inside - show.inside.as_secs_f64(),
    );
    if stack == Stack::ThreeSeconds {
        table.sample(
            &of(AGAINST),
            Unit::Percent,
            inside / bare.inside.as_secs_f64(),
        );
    }
    if stack != Stack::Tiny
        && let Some((number, parts)) = parts(&lab.state.ledger(), run)
    {
        let commands = format!("agent, in {number} commands");
        let figures = [
            "agent, start to first command",
            &commands,
            "agent, between commands",
            "agent, last command to end",
        ];
        for (figure, seconds) in figures.into_iter().zip(parts) {
            table.sample(&of(figure), Unit::Millis, seconds);
        }
    }
}

/// Splits the time of a container by its tool's entries; `who` of an entry is the pod. Returns the number of commands, and the seconds
/// before the first, in all, between them, and after the last.
fn parts(entries: &[Entry], timing: &Timing) -> Option<(usize, [f64; 4])> {
    let of_pod: Vec<Entry> = entries
        .iter()
        .filter(|entry| entry.who == timing.pod)
        .cloned()
        .collect();
    let times = |what: &str| -> Vec<Timestamp> {
        ledger::select(&of_pod, what, None)
            .iter()
            .filter_map(|entry| entry.at.parse().ok())
            .collect()
    };
    let (starts, ends) = (times(what::COMMAND_START), times(what::COMMAND_END));
    let seconds = |from: Timestamp, to: Timestamp| to.duration_since(from).as_secs_f64();
    let (first, last) = (*starts.first()?, *ends.last()?);
    let commands: f64 = starts
        .iter()
        .zip(&ends)
        .map(|(start, end)| seconds(*start, *end))
        .sum();
    let between = seconds(first, last) - commands;
    Some((
        starts.len(),
        [
            seconds(timing.start, first),
            commands,
            between,
            seconds(last, timing.end),
        ],
    ))
}

/// Measures twenty runs and twenty bare pods alternately.
pub(super) async fn many(lab: &Lab, times: usize, table: &mut Table) -> Result<()> {
    const RATIO: &str = "twenty runs / twenty bare pods";
    for _ in 0..times {
        let namespace = lab.namespace().await?;
        let pod = |n| namespace.bare_pod(&format!("bare-{n}"), Stack::Tiny, Commands::Plain);
        let bare = all_seen(&namespace.pods, pod, pod_succeeded).await?;
        let run = |n| namespace.run(&format!("run-{n}"), Stack::Tiny, "Automatic");
        let ours = all_seen(&namespace.runs, run, run_succeeded).await?;
        table.seconds("twenty bare pods at once, create to all Succeeded", bare);
        table.seconds("twenty runs at once, create to all Succeeded", ours);
        table.ratio(RATIO, ours, bare);
    }
    table.limit(RATIO, Limit::Median(1.0));
    Ok(())
}

/// Creates all objects under an established watch, and waits until the success of each is observed.
async fn all_seen<K: Object>(
    api: &Api<K>,
    make: impl Fn(usize) -> Result<K>,
    done: fn(&K) -> Result<bool>,
) -> Result<Duration> {
    let objects: Vec<K> = (0..NUMBER).map(make).collect::<Result<_>>()?;
    let names: BTreeSet<String> = objects.iter().map(ResourceExt::name_any).collect();
    let mut stream = watcher(api.clone(), watcher::Config::default())
        .default_backoff()
        .boxed();
    while !matches!(
        stream.next().await.context("the watch ended")?,
        Ok(watcher::Event::InitDone)
    ) {}
    let begun = Instant::now();
    let parameters = PostParams::default();
    let create = try_join_all(objects.iter().map(|object| api.create(&parameters, object)));
    let wait = async {
        let mut seen = BTreeSet::new();
        while seen.len() < names.len() {
            let event = stream.try_next().await;
            let Ok(Some(watcher::Event::Apply(object) | watcher::Event::InitApply(object))) = event
            else {
                continue;
            };
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
    let within = tokio::time::timeout(PATIENCE, both)
        .await
        .with_context(|| format!("not all succeeded within {PATIENCE:?}"))?;
    // Until the kubelet has cleaned up, so that one batch does not slow down the next.
    tokio::time::sleep(Duration::from_secs(8)).await;
    within
}
