//! The measurements at a number of layers: first plans, idle, a commit to many layers, and restarts.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::agents::{Agents, Ended};
use super::fleet::{self, Fleet};
use super::growth::{Figure, say};
use super::lab::{Lab, SLOTS};
use super::metrics::total;
use super::window::{Window, number};
use harness::cluster::report;

/// Limit of simulated first plans per step; further runs are ended directly.
const PLAYED: usize = 1_000;
/// Number of layers that a commit affects.
const AT_ONCE: usize = 1_000;
/// Duration of a plan while many wait.
const PLAN: Duration = Duration::from_secs(4);
/// How long idle layers are observed.
const REST: Duration = Duration::from_secs(30);
/// Stored ended runs per layer.
const STORED: usize = 2;
/// A longer wait for an end indicates a defect, not a slow machine.
const PATIENCE: Duration = Duration::from_secs(900);
/// A longer time without progress indicates a defect, not a slow machine.
const STANDSTILL: Duration = Duration::from_secs(120);
/// Interval at which the program checks whether the controller is at rest.
const LOOK: Duration = Duration::from_millis(500);
/// Number of idle looks after which it is at rest.
const QUIET: u32 = 6;
/// Minimum number of further runs that shows the cost of one.
const ENOUGH: usize = 1_000;

/// Grows to that many layers, and measures.
pub(super) async fn measure(
    lab: &mut Lab,
    agents: &Agents,
    fleet: &mut Fleet,
    repositories: usize,
    layers: usize,
) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    Box::pin(first_plans(lab, agents, fleet, (repositories, layers), &mut figures)).await?;
    at_rest(lab, agents, fleet, &mut figures).await?;
    Box::pin(many_at_once(lab, agents, fleet, &mut figures)).await?;
    Box::pin(restarts(lab, fleet, &mut figures)).await?;
    well(agents)?;
    Ok(figures)
}

async fn first_plans(
    lab: &mut Lab,
    agents: &Agents,
    fleet: &mut Fleet,
    (repositories, layers): (usize, usize),
    figures: &mut Vec<Figure>,
) -> Result<()> {
    let (runs, ended, new) = (fleet::runs(&lab.admin).await?, agents.count(), layers.saturating_sub(fleet.layers()));
    agents.plans_take(Duration::ZERO);
    let window = Window::begin(lab, agents)?;
    let interval = match repositories {
        0..=10 => "30s",
        11..=100 => "1m",
        _ => "5m",
    };
    fleet.grow(lab, repositories, layers, interval).await?;
    let played = new.min(PLAYED);
    until(lab, agents, "first plans have ended", async |_| Ok((agents.count() - ended, played))).await?;
    let spent = window.end(lab, agents)?;
    let first = agents.ended(ended);
    figures.push(say(layers, Figure::plain("repositories", fleet.repositories().to_string())));
    figures.push(say(
        layers,
        Figure::plain("first plans: runs per minute", format!("{:.0}", 60.0 * per_second(&first, |run| run.at))),
    ));
    figures.push(say(layers, Figure::plain("  requests per second", spent.rates())));
    let each = number(spent.of("controller").len()) / number(first.len().max(1));
    figures.push(say(layers, Figure::plain("  requests of the controller for each run that ended", format!("{each:.1}"))));
    figures.push(say(
        layers,
        Figure::plain(
            "  CPU seconds of the controller for each",
            format!("{:.3}", spent.controller / number(first.len().max(1))),
        ),
    ));
    spent.details("first plans");
    if new > played {
        agents.pause(true);
        until(lab, agents, "runs are made", async |lab| Ok((fleet::runs(&lab.admin).await?.saturating_sub(runs), new))).await?;
        lab.stop_controller().await?;
        agents.pause(false);
        let mut before = usize::MAX;
        while agents.count() != before {
            before = agents.count();
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        if let Some(like) = agents.ended(ended).first() {
            let step = report::step("scale", "the other first plans are ended by hand");
            fleet::store(lab, Some((&like.namespace, &like.run)), 0).await?;
            step.done();
        }
        lab.start_controller().await?;
    }
    come_to_rest(lab, agents, layers).await
}

async fn at_rest(lab: &mut Lab, agents: &Agents, fleet: &Fleet, figures: &mut Vec<Figure>) -> Result<()> {
    let layers = fleet.layers();
    let looks = total(&lab.sources_metrics().await?, "pawl_sources_looks_total", "");
    let window = Window::begin(lab, agents)?;
    tokio::time::sleep(REST).await;
    let spent = window.end(lab, agents)?;
    let looks = total(&lab.sources_metrics().await?, "pawl_sources_looks_total", "") - looks;
    let asked = spent.count();
    let words = format!("{asked} in {} s", REST.as_secs());
    figures.push(say(layers, Figure::goal("at rest: requests of controller, sources and datastore", words, "none", asked == 0)));
    let minute = 60.0 * spent.controller / spent.seconds;
    figures.push(say(layers, Figure::plain("  CPU seconds of the controller in a minute", format!("{minute:.2}"))));
    let each = if looks > 0.0 { spent.sources / looks } else { 0.0 };
    let all = format!("{:.1} ({looks:.0} looks seen)", each * number(fleet.repositories()));
    figures.push(say(layers, Figure::plain("  CPU seconds of sources with git for one look at all repositories", all)));
    spent.details("at rest");
    let (controller, sources) = (lab.controller()?.memory()?, lab.sources.memory()?);
    let most = format!("{} (peak {})", mib(controller.resident), mib(controller.peak));
    figures
        .push(say(layers, Figure::goal("  memory of the controller", most, "at most 150 MiB", controller.resident <= 150 << 10)));
    figures.push(say(layers, Figure::plain("  memory of sources", mib(sources.resident))));
    Ok(())
}

async fn many_at_once(lab: &mut Lab, agents: &Agents, fleet: &mut Fleet, figures: &mut Vec<Figure>) -> Result<()> {
    let layers = fleet.layers();
    let ended = agents.count();
    agents.plans_take(PLAN);
    let begun = Instant::now();
    let window = Window::begin(lab, agents)?;
    let concerned = fleet.commit(lab, AT_ONCE.min(layers)).await?;
    let (quarter, all) = (concerned / 4, concerned + 1);
    until(lab, agents, "runs of a commit have ended", async |_| Ok((agents.count() - ended, quarter))).await?;
    let waited = fleet::person(&lab.admin, &format!("person-{layers}")).await?;
    until(lab, agents, "runs of a commit have ended", async |_| Ok((agents.count() - ended, all))).await?;
    let spent = window.end(lab, agents)?;
    let runs = agents.ended(ended);
    figures.push(say(layers, Figure::plain("a commit to so many layers at once", concerned.to_string())));
    let of_a_run = runs.iter().map(|run| run.at - run.seen).sum::<Duration>().as_secs_f64() / number(runs.len().max(1));
    let limit = f64::from(SLOTS) / of_a_run.max(0.001);
    let rate = format!("{:.1} of {limit:.1}", per_second(&runs, |run| run.seen));
    figures.push(say(layers, Figure::plain("  runs that begin per second, of those that the slots allow", rate)));
    let used = busy(&runs);
    let words = format!("{:.0} % of {SLOTS}", 100.0 * used);
    figures.push(say(layers, Figure::goal("  slots with a working pod while others wait", words, "at least 80 %", used >= 0.8)));
    let last = runs.iter().map(|run| run.seen).max().map_or(0.0, |at| (at - begun).as_secs_f64());
    figures.push(say(layers, Figure::plain("  the last of them begins after", format!("{last:.1} s"))));
    let met = waited.as_secs_f64() <= of_a_run + 1.0;
    let words = format!("{:.1} s, where a run takes {of_a_run:.1} s", waited.as_secs_f64());
    figures.push(say(layers, Figure::goal("  a person's run among them waits", words, "no longer than one run", met)));
    figures.push(say(layers, Figure::plain("  requests per second", spent.rates())));
    spent.details("a commit");
    come_to_rest(lab, agents, layers).await
}

async fn restarts(lab: &mut Lab, fleet: &Fleet, figures: &mut Vec<Figure>) -> Result<()> {
    let layers = fleet.layers();
    let few = fleet::runs(&lab.admin).await?;
    restart(lab).await?;
    let before = lab.controller()?.memory()?;
    lab.stop_controller().await?;
    let step = report::step("scale", "runs that ended long ago are stored");
    let many = fleet::store(lab, None, (STORED * layers).max(few + ENOUGH)).await?;
    step.done();
    lab.start_controller().await?;
    at_work(lab).await?;
    let (ready, settled) = restart(lab).await?;
    let after = lab.controller()?.memory()?;
    figures.push(say(layers, Figure::plain("stored runs, all ended", many.to_string())));
    let words = format!("{:.1} s (ready after {:.1} s)", settled.as_secs_f64(), ready.as_secs_f64());
    figures.push(say(
        layers,
        Figure::goal("  a controller that is started comes to rest after", words, "at most 60 s", settled.as_secs() < 60),
    ));
    let most = format!("{} (peak {})", mib(after.resident), mib(after.peak));
    figures
        .push(say(layers, Figure::goal("  memory of the controller then", most, "at most 150 MiB", after.resident <= 150 << 10)));
    let more = many - few;
    let each = 1024.0 * (signed(after.own) - signed(before.own)) / number(more.max(1));
    let words = format!("{:.2} KiB, of {more} more", each / 1024.0);
    figures.push(say(layers, Figure::goal("  of it for each stored run", words, "at most 1.5 KiB", each <= 1536.0)));
    Ok(())
}

/// Fails if an agent could not complete its simulated run.
fn well(agents: &Agents) -> Result<()> {
    let failed = agents.failed();
    ensure!(failed.is_empty(), "{} played agents failed, among them that of {}", failed.len(), failed[0]);
    Ok(())
}

/// Restarts the controller; returns the times until it was ready, and until it was at rest.
async fn restart(lab: &mut Lab) -> Result<(Duration, Duration)> {
    lab.stop_controller().await?;
    let begun = Instant::now();
    let ready = lab.start_controller().await?;
    let rested = at_work(lab).await?;
    Ok((ready, rested - begun))
}

/// Waits until the controller is idle; returns since when.
async fn at_work(lab: &mut Lab) -> Result<Instant> {
    let begun = Instant::now();
    let (mut since, mut quiet, mut before) = (begun, 0, lab.controller()?.work()?.cpu);
    while quiet < QUIET {
        tokio::time::sleep(LOOK).await;
        lab.check()?;
        let work = lab.controller()?.work()?;
        // On a busy machine it may wait for a processor without using any.
        if work.runs || work.cpu.saturating_sub(before) > Duration::from_millis(20) {
            (since, quiet) = (Instant::now(), 0);
        } else {
            quiet += 1;
        }
        before = work.cpu;
        ensure!(begun.elapsed() < PATIENCE, "the controller comes to no rest");
    }
    Ok(since)
}

/// Waits until every layer is planned, and the controller is idle.
async fn come_to_rest(lab: &mut Lab, agents: &Agents, layers: usize) -> Result<()> {
    until(lab, agents, "layers are at rest", async |lab| {
        let idle = total(&lab.controller_metrics().await?, "pawl_layers", "\"Idle\"");
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it counts whole layers")]
        let idle = idle as usize;
        Ok((idle, layers))
    })
    .await?;
    at_work(lab).await.map(drop)
}

/// Waits until the count is reached, and prints the progress.
async fn until(lab: &mut Lab, agents: &Agents, what: &str, count: impl AsyncFn(&Lab) -> Result<(usize, usize)>) -> Result<()> {
    let (mut said, mut changed, mut before) = (Instant::now(), Instant::now(), usize::MAX);
    loop {
        lab.check()?;
        let (there, wanted) = count(lab).await?;
        if there >= wanted {
            return Ok(());
        }
        if there != before {
            (changed, before) = (Instant::now(), there);
        }
        well(agents)?;
        ensure!(changed.elapsed() < STANDSTILL, "{there} of {wanted} {what}, and for {} s no more", STANDSTILL.as_secs());
        if said.elapsed() > Duration::from_secs(10) {
            report::note("scale", &format!("{there} of {wanted} {what}"));
            said = Instant::now();
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

/// Rate per second, from the first to the last.
fn per_second(runs: &[Ended], at: impl Fn(&Ended) -> Instant) -> f64 {
    let (Some(first), Some(last)) = (runs.iter().map(&at).min(), runs.iter().map(&at).max()) else { return 0.0 };
    number(runs.len() - 1) / (last - first).as_secs_f64().max(0.001)
}

/// The share of slots in use until the last run began.
fn busy(runs: &[Ended]) -> f64 {
    let (Some(first), Some(last)) = (runs.iter().map(|run| run.seen).min(), runs.iter().map(|run| run.seen).max()) else {
        return 0.0;
    };
    let worked: Duration = runs.iter().map(|run| run.at.min(last) - run.seen).sum();
    worked.as_secs_f64() / (f64::from(SLOTS) * (last - first).as_secs_f64()).max(0.001)
}

/// Formats KiB for people.
fn mib(kib: u64) -> String {
    format!("{:.1} MiB", signed(kib) / 1024.0)
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn signed(kib: u64) -> f64 {
    kib as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(begun: Instant, seen: u64, at: u64) -> Ended {
        let after = |millis| begun + Duration::from_millis(millis);
        Ended { namespace: "n".into(), run: "r".into(), seen: after(seen), at: after(at) }
    }

    #[test]
    fn slots_count_as_used_until_the_last_run_begins() {
        let begun = Instant::now();
        let mut runs: Vec<Ended> = (0..SLOTS).map(|_| run(begun, 0, 1_000)).collect();
        runs.push(run(begun, 2_000, 9_000));
        assert!((busy(&runs) - 0.5).abs() < 1e-6, "half of the two seconds: {}", busy(&runs));
        assert!((per_second(&runs, |run| run.seen) - f64::from(SLOTS) / 2.0).abs() < 1e-6);
        assert!(per_second(&[], |run| run.at).abs() < 1e-9 && busy(&[]).abs() < 1e-9);
    }
}
