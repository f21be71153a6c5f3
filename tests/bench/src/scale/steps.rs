//! The measurements at a number of layers: first plans, idle, a commit to many layers, and restarts.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::agents::{Agents, Ended};
use super::fleet::{self, Fleet};
use super::lab::{Lab, SLOTS};
use super::window::Window;
use crate::table::{Table, mib, number};
use crate::usage::{Memory, total};
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

/// The measured system, and its figures.
pub(super) struct Steps<'a> {
    pub(super) agents: Agents,
    pub(super) fleet: Fleet,
    pub(super) lab: Lab,
    pub(super) table: &'a mut Table,
}

impl Steps<'_> {
    /// Grows to that many layers, and measures.
    pub(super) async fn measure(&mut self, repositories: usize, layers: usize) -> Result<()> {
        self.table.head(layers);
        Box::pin(self.first_plans(repositories, layers)).await?;
        self.at_rest().await?;
        Box::pin(self.many_at_once()).await?;
        Box::pin(self.restarts()).await?;
        self.well()
    }

    async fn first_plans(&mut self, repositories: usize, layers: usize) -> Result<()> {
        let (runs, ended) = (fleet::runs(&self.lab.admin).await?, self.agents.count());
        let new = layers.saturating_sub(self.fleet.layers());
        self.agents.plans_take(Duration::ZERO);
        let window = Window::begin(&self.lab, &self.agents)?;
        let interval = match repositories {
            0..=10 => "30s",
            11..=100 => "1m",
            _ => "5m",
        };
        self.fleet
            .grow(&self.lab, repositories, layers, interval)
            .await?;
        let played = new.min(PLAYED);
        self.until_ended("first plans have ended", ended, played)
            .await?;
        let spent = window.end(&self.lab, &self.agents)?;
        let first = self.agents.ended(ended);
        let of_each = |total: f64| total / number(first.len().max(1) as u64);
        let table = &mut *self.table;
        table.plain("repositories", self.fleet.repositories());
        let rate = 60.0 * per_second(&first, |run| run.at);
        table.plain("first plans: runs per minute", format!("{rate:.0}"));
        table.plain("  requests per second", spent.rates());
        let requests = of_each(number(spent.of("controller").len() as u64));
        let figure = "  requests of the controller for each run that ended";
        table.plain(figure, format!("{requests:.1}"));
        let seconds = of_each(spent.controller);
        table.plain(
            "  CPU seconds of the controller for each",
            format!("{seconds:.3}"),
        );
        spent.details("first plans");
        if new > played {
            self.agents.pause(true);
            let made =
                async |steps: &Self| Ok(fleet::runs(&steps.lab.admin).await?.saturating_sub(runs));
            self.until("runs are made", new, made).await?;
            self.lab.stop_controller().await?;
            self.agents.pause(false);
            let mut before = usize::MAX;
            while self.agents.count() != before {
                before = self.agents.count();
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
            if let Some(like) = self.agents.ended(ended).first() {
                let step = report::step("scale", "the other first plans are ended by hand");
                fleet::store(&self.lab, Some((&like.namespace, &like.run)), 0).await?;
                step.done();
            }
            self.lab.start_controller().await?;
        }
        self.come_to_rest().await
    }

    async fn at_rest(&mut self) -> Result<()> {
        let looks = self.lab.looks().await?;
        let window = Window::begin(&self.lab, &self.agents)?;
        tokio::time::sleep(REST).await;
        let spent = window.end(&self.lab, &self.agents)?;
        let looks = self.lab.looks().await? - looks;
        let asked = spent.count();
        let words = format!("{asked} in {} s", REST.as_secs());
        let figure = "at rest: requests of controller, sources and datastore";
        self.table.bound(figure, words, "none", asked == 0);
        let minute = 60.0 * spent.controller / spent.seconds;
        self.table.plain(
            "  CPU seconds of the controller in a minute",
            format!("{minute:.2}"),
        );
        let each = if looks > 0.0 {
            spent.sources / looks
        } else {
            0.0
        };
        let all = each * number(self.fleet.repositories() as u64);
        let figure = "  CPU seconds of sources with git for one look at all repositories";
        self.table
            .plain(figure, format!("{all:.1} ({looks:.0} looks seen)"));
        spent.details("at rest");
        self.controller_memory("  memory of the controller")?;
        let sources = self.lab.sources.memory()?;
        self.table
            .plain("  memory of sources", mib(sources.resident));
        Ok(())
    }

    /// Adds the controller's memory. Returns it.
    fn controller_memory(&mut self, figure: &str) -> Result<Memory> {
        let memory = self.lab.controller()?.memory()?;
        let most = format!("{} (peak {})", mib(memory.resident), mib(memory.peak));
        self.table.bound(
            figure,
            most,
            "at most 150 MiB",
            memory.resident <= 150 << 10,
        );
        Ok(memory)
    }

    async fn many_at_once(&mut self) -> Result<()> {
        let layers = self.fleet.layers();
        let ended = self.agents.count();
        self.agents.plans_take(PLAN);
        let begun = Instant::now();
        let window = Window::begin(&self.lab, &self.agents)?;
        let concerned = self.fleet.commit(&self.lab, AT_ONCE.min(layers)).await?;
        let what = "runs of a commit have ended";
        self.until_ended(what, ended, concerned / 4).await?;
        let waited = fleet::person(&self.lab.admin, &format!("person-{layers}")).await?;
        self.until_ended(what, ended, concerned + 1).await?;
        let spent = window.end(&self.lab, &self.agents)?;
        let runs = self.agents.ended(ended);
        let table = &mut *self.table;
        table.plain("a commit to so many layers at once", concerned);
        let took: Duration = runs.iter().map(|run| run.at - run.seen).sum();
        let of_a_run = took.as_secs_f64() / number(runs.len().max(1) as u64);
        let limit = f64::from(SLOTS) / of_a_run.max(0.001);
        let rate = format!("{:.1} of {limit:.1}", per_second(&runs, |run| run.seen));
        table.plain(
            "  runs that begin per second, of those that the slots allow",
            rate,
        );
        let used = busy(&runs);
        let words = format!("{:.0} % of {SLOTS}", 100.0 * used);
        let figure = "  slots with a working pod while others wait";
        table.bound(figure, words, "at least 80 %", used >= 0.8);
        let last = runs.iter().map(|run| run.seen).max();
        let last = last.map_or(0.0, |at| (at - begun).as_secs_f64());
        table.plain("  the last of them begins after", format!("{last:.1} s"));
        let waited = waited.as_secs_f64();
        let words = format!("{waited:.1} s, where a run takes {of_a_run:.1} s");
        let figure = "  a person's run among them waits";
        table.bound(
            figure,
            words,
            "no longer than one run",
            waited <= of_a_run + 1.0,
        );
        table.plain("  requests per second", spent.rates());
        spent.details("a commit");
        self.come_to_rest().await
    }

    async fn restarts(&mut self) -> Result<()> {
        let layers = self.fleet.layers();
        let few = fleet::runs(&self.lab.admin).await?;
        self.restart().await?;
        let before = self.lab.controller()?.memory()?;
        self.lab.stop_controller().await?;
        let step = report::step("scale", "runs that ended long ago are stored");
        let many = (STORED * layers).max(few + ENOUGH);
        let many = fleet::store(&self.lab, None, many).await?;
        step.done();
        self.lab.start_controller().await?;
        self.at_work().await?;
        let (ready, settled) = self.restart().await?;
        self.table.plain("stored runs, all ended", many);
        let (ready, settled) = (ready.as_secs_f64(), settled.as_secs_f64());
        let words = format!("{settled:.1} s (ready after {ready:.1} s)");
        let figure = "  a controller that is started comes to rest after";
        self.table
            .bound(figure, words, "at most 60 s", settled < 60.0);
        let after = self.controller_memory("  memory of the controller then")?;
        let more = many - few;
        let each = (number(after.own) - number(before.own)) / number(more.max(1) as u64);
        let words = format!("{each:.2} KiB, of {more} more");
        self.table.bound(
            "  of it for each stored run",
            words,
            "at most 1.5 KiB",
            each <= 1.5,
        );
        Ok(())
    }

    /// Fails if an agent could not complete its simulated run.
    fn well(&self) -> Result<()> {
        let failed = self.agents.failed();
        ensure!(
            failed.is_empty(),
            "{} played agents failed, among them that of {}",
            failed.len(),
            failed[0]
        );
        Ok(())
    }

    /// Restarts the controller; returns the times until it was ready, and until it was at rest.
    async fn restart(&mut self) -> Result<(Duration, Duration)> {
        self.lab.stop_controller().await?;
        let begun = Instant::now();
        let ready = self.lab.start_controller().await?;
        let rested = self.at_work().await?;
        Ok((ready, rested - begun))
    }

    /// Waits until the controller is idle; returns since when.
    async fn at_work(&mut self) -> Result<Instant> {
        let begun = Instant::now();
        let (mut since, mut quiet) = (begun, 0);
        let mut before = self.lab.controller()?.work()?.cpu;
        while quiet < QUIET {
            tokio::time::sleep(LOOK).await;
            self.lab.check()?;
            let work = self.lab.controller()?.work()?;
            // On a busy machine it may wait for a processor without using any.
            let used = work.cpu.saturating_sub(before);
            quiet = if work.runs || used > Duration::from_millis(20) {
                0
            } else {
                quiet + 1
            };
            if quiet == 0 {
                since = Instant::now();
            }
            before = work.cpu;
            ensure!(
                begun.elapsed() < PATIENCE,
                "the controller comes to no rest"
            );
        }
        Ok(since)
    }

    /// Waits until every layer is planned, and the controller is idle.
    async fn come_to_rest(&mut self) -> Result<()> {
        let idle = async |steps: &Self| {
            let metrics = steps.lab.controller_metrics().await?;
            let idle = total(&metrics, "pawl_layers", "\"Idle\"");
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "it counts whole layers"
            )]
            let idle = idle as usize;
            Ok(idle)
        };
        self.until("layers are at rest", self.fleet.layers(), idle)
            .await?;
        self.at_work().await.map(drop)
    }

    /// Waits until this many more runs have ended.
    async fn until_ended(&mut self, what: &str, before: usize, more: usize) -> Result<()> {
        self.until(what, more, async |steps: &Self| {
            Ok(steps.agents.count() - before)
        })
        .await
    }

    /// Waits until the count is reached, and prints the progress.
    async fn until(
        &mut self,
        what: &str,
        wanted: usize,
        count: impl AsyncFn(&Self) -> Result<usize>,
    ) -> Result<()> {
        let (mut said, mut changed, mut before) = (Instant::now(), Instant::now(), usize::MAX);
        loop {
            self.lab.check()?;
            let there = count(self).await?;
            if there >= wanted {
                return Ok(());
            }
            if there != before {
                (changed, before) = (Instant::now(), there);
            }
            self.well()?;
            let seconds = changed.elapsed().as_secs();
            ensure!(
                changed.elapsed() < STANDSTILL,
                "{there} of {wanted} {what}, and for {seconds} s no more"
            );
            if said.elapsed() > Duration::from_secs(10) {
                report::note("scale", &format!("{there} of {wanted} {what}"));
                said = Instant::now();
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }
}

/// Rate per second, from the first to the last.
fn per_second(runs: &[Ended], at: impl Fn(&Ended) -> Instant) -> f64 {
    let (first, last) = (runs.iter().map(&at).min(), runs.iter().map(&at).max());
    let lasted = last
        .zip(first)
        .map(|(last, first)| (last - first).as_secs_f64());
    lasted.map_or(0.0, |lasted| {
        number(runs.len() as u64 - 1) / lasted.max(0.001)
    })
}

/// The share of slots in use until the last run began.
fn busy(runs: &[Ended]) -> f64 {
    let seen = || runs.iter().map(|run| run.seen);
    let (Some(first), Some(last)) = (seen().min(), seen().max()) else {
        return 0.0;
    };
    let worked: Duration = runs.iter().map(|run| run.at.min(last) - run.seen).sum();
    worked.as_secs_f64() / (f64::from(SLOTS) * (last - first).as_secs_f64()).max(0.001)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(begun: Instant, seen: u64, at: u64) -> Ended {
        let after = |millis| begun + Duration::from_millis(millis);
        Ended {
            namespace: "n".into(),
            run: "r".into(),
            seen: after(seen),
            at: after(at),
        }
    }

    #[test]
    fn slots_count_as_used_until_the_last_run_begins() {
        let begun = Instant::now();
        let mut runs: Vec<Ended> = (0..SLOTS).map(|_| run(begun, 0, 1_000)).collect();
        runs.push(run(begun, 2_000, 9_000));
        assert!(
            (busy(&runs) - 0.5).abs() < 1e-6,
            "half of the two seconds: {}",
            busy(&runs)
        );
        assert!((per_second(&runs, |run| run.seen) - f64::from(SLOTS) / 2.0).abs() < 1e-6);
        assert!(per_second(&[], |run| run.at).abs() < 1e-9 && busy(&[]).abs() < 1e-9);
    }
}
