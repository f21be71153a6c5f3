//! Compares a bare pod with an Automatic run of the same stack, from outside and from inside.

use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;

use super::lab::{Lab, Timing};
use super::samples::{Samples, Unit};
use super::stacks::{Commands, Stack};
use super::table::Table;
use ledger::{Entry, what};

/// The samples of a stack.
#[derive(Debug, Default)]
struct Pairs {
    bare: Samples,
    run: Samples,
    ratio: Samples,
    bare_before: Samples,
    run_before: Samples,
    bare_inside: Samples,
    run_inside: Samples,
    /// Seconds by which the agent's container lives longer than the script's.
    added: Samples,
    /// The same against the script that also shows the plan, as the agent does.
    added_to_show: Samples,
    inside_ratio: Samples,
    own: Vec<Parts>,
}

/// The parts of a container's time, from the ledger of the scripted tool.
#[derive(Clone, Copy, Debug, Default)]
struct Parts {
    before: f64,
    commands: f64,
    between: f64,
    after: f64,
    number: usize,
}

pub(super) async fn measure(lab: &Lab, times: usize, table: &mut Table) -> Result<()> {
    for stack in [Stack::Tiny, Stack::Nothing, Stack::ThreeSeconds] {
        // The constant three seconds need fewer repetitions.
        let times = if stack == Stack::ThreeSeconds { times.div_ceil(2) } else { times };
        let pairs = Box::pin(repeat(lab, stack, times)).await?;
        rows(stack, &pairs, table);
    }
    Ok(())
}

async fn repeat(lab: &Lab, stack: Stack, times: usize) -> Result<Pairs> {
    let namespace = lab.namespace().await?;
    let mut pairs = Pairs::default();
    // The first repetition is a warm-up: it unpacks images and fills caches.
    for n in 0..=times {
        let pod = lab.bare_pod(&namespace, &format!("bare-{n}"), stack, Commands::Plain)?;
        let bare = lab.time_pod(&pod).await?;
        settle().await;
        let run = lab.time_run(&lab.run(&namespace, &format!("run-{n}"), stack, "Automatic")?).await?;
        settle().await;
        let pod = lab.bare_pod(&namespace, &format!("show-{n}"), stack, Commands::WithShow)?;
        let show = lab.time_pod(&pod).await?;
        settle().await;
        if n > 0 {
            pairs.add(&bare, &run, &show);
            if stack != Stack::Tiny {
                pairs.own.extend(parts(&lab.state.ledger(), &run));
            }
        }
    }
    Ok(pairs)
}

/// Waits until the kubelet has cleaned up, so that one does not slow down the other.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(1500)).await;
}

impl Pairs {
    fn add(&mut self, bare: &Timing, run: &Timing, show: &Timing) {
        self.bare.seconds(bare.outside);
        self.run.seconds(run.outside);
        self.ratio.push(run.outside.as_secs_f64() / bare.outside.as_secs_f64());
        self.bare_before.seconds(bare.before);
        self.run_before.seconds(run.before);
        self.bare_inside.seconds(bare.inside);
        self.run_inside.seconds(run.inside);
        self.added.push(run.inside.as_secs_f64() - bare.inside.as_secs_f64());
        self.added_to_show.push(run.inside.as_secs_f64() - show.inside.as_secs_f64());
        self.inside_ratio.push(run.inside.as_secs_f64() / bare.inside.as_secs_f64());
    }
}

fn rows(stack: Stack, pairs: &Pairs, table: &mut Table) {
    let name = stack.name();
    table.plain(&format!("{name}: bare pod, create to Succeeded"), pairs.bare.spread(Unit::Seconds));
    table.plain(&format!("{name}: Automatic run, create to Succeeded"), pairs.run.spread(Unit::Seconds));
    let ratio = pairs.ratio.spread(Unit::Ratio);
    let figure = format!("{name}: run / bare pod");
    // The bound is for a stack that takes no time; a longer stack brings both closer.
    if stack == Stack::ThreeSeconds {
        table.plain(&figure, ratio);
    } else {
        table.bound(&figure, ratio, "at most 0.35", pairs.ratio.median() <= 0.35);
    }
    table.plain(&format!("{name}: create to container start, bare pod"), pairs.bare_before.spread(Unit::Millis));
    table.plain(&format!("{name}: create to container start, run"), pairs.run_before.spread(Unit::Millis));
    table.plain(&format!("{name}: in the container, script"), pairs.bare_inside.spread(Unit::Millis));
    table.plain(&format!("{name}: in the container, agent"), pairs.run_inside.spread(Unit::Millis));
    let met = |samples: &Samples| samples.median() <= 0.100;
    let added = pairs.added.spread(Unit::Millis);
    table.bound(&format!("{name}: agent adds"), added, "at most 100 ms", met(&pairs.added));
    let added = pairs.added_to_show.spread(Unit::Millis);
    table.bound(
        &format!("{name}: agent adds to a script that shows the plan"),
        added,
        "at most 100 ms",
        met(&pairs.added_to_show),
    );
    if stack == Stack::ThreeSeconds {
        let ratio = &pairs.inside_ratio;
        table.bound(
            &format!("{name}: agent against script"),
            ratio.spread(Unit::Percent),
            "at most +3 %",
            ratio.median() <= 1.03,
        );
    }
    if !pairs.own.is_empty() {
        let part = |of: fn(&Parts) -> f64| pairs.own.iter().map(of).collect::<Samples>().spread(Unit::Millis);
        table.plain(&format!("{name}: agent, start to first command"), part(|p| p.before));
        let number = pairs.own.first().map_or(0, |p| p.number);
        table.plain(&format!("{name}: agent, in {number} commands"), part(|p| p.commands));
        table.plain(&format!("{name}: agent, between commands"), part(|p| p.between));
        table.plain(&format!("{name}: agent, last command to end"), part(|p| p.after));
    }
}

/// Splits the time of a container by its tool's entries; `who` of an entry is the pod.
fn parts(entries: &[Entry], timing: &Timing) -> Option<Parts> {
    let of_pod: Vec<Entry> = entries.iter().filter(|entry| entry.who == timing.pod).cloned().collect();
    let at = |entry: &&Entry| entry.at.parse::<Timestamp>().ok();
    let starts: Vec<_> = ledger::select(&of_pod, what::COMMAND_START, None).iter().filter_map(at).collect();
    let ends: Vec<_> = ledger::select(&of_pod, what::COMMAND_END, None).iter().filter_map(at).collect();
    let seconds = |from: Timestamp, to: Timestamp| to.duration_since(from).as_secs_f64();
    let (first, last) = (*starts.first()?, *ends.last()?);
    let commands = starts.iter().zip(&ends).map(|(start, end)| seconds(*start, *end)).sum();
    Some(Parts {
        before: seconds(timing.start, first),
        commands,
        between: seconds(first, last) - commands,
        after: seconds(last, timing.end),
        number: starts.len(),
    })
}
