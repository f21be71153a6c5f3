//! Plays one life: a schedule, from the creation of the run until nothing remains to happen.

use std::{collections::BTreeSet, time::Duration};

use libtest_mimic::Failed;
use tokio::time::sleep;

use crate::{
    controller, invariants, kubelet, layered, layers, person,
    schedule::Schedule,
    search::played,
    sources,
    world::{self, Shared},
};

/// The longest life, in seconds: more than all deadlines, grace periods and backoffs of its runs together.
const LONGEST: u64 = 3_600;
/// The most requests of a life. More indicates a busy loop.
const MOST_REQUESTS: u32 = 6_000;

#[derive(Default)]
pub(crate) struct Report {
    pub boundaries: u32,
    /// The boundary at which the first apply began.
    pub applied_at: Option<u32>,
    /// Boundaries of the controller that concern layers.
    pub of_layers: Vec<u32>,
    pub endings: BTreeSet<&'static str>,
    pub violations: Vec<String>,
    /// Pods created for an attempt that was already adopted.
    pub second_pods: Vec<String>,
    pub trace: Vec<String>,
    /// A fingerprint of the life: versions of the store, and requests.
    pub print: (u64, u32, u64),
}

impl Report {
    /// Time in seconds and text of the first trace line after `moment` for which `is` holds.
    pub(crate) fn line(&self, moment: f64, is: impl Fn(&str) -> bool) -> Option<(f64, &str)> {
        let lines = self.trace.iter().filter(|line| is(line));
        let mut timed = lines.filter_map(|line| {
            Some((line.split_whitespace().next()?.parse().ok()?, line.as_str()))
        });
        timed.find(|(at, _)| *at > moment)
    }

    /// Time in seconds of the first trace line that contains all words.
    pub(crate) fn at(&self, words: &[&str]) -> Option<f64> {
        self.line(-1.0, |line| words.iter().all(|word| line.contains(word)))
            .map(|(at, _)| at)
    }

    /// The failure of a life, with its trace and schedule.
    pub(crate) fn failed(&self, what: &str, schedule: &Schedule) -> Failed {
        let Self {
            endings,
            violations,
            trace,
            ..
        } = self;
        format!(
            "{what}: endings {endings:?}, {violations:?}\n{}\n{}",
            trace.join("\n"),
            schedule.line()
        )
        .into()
    }
}

/// Plays a life with its trace. Fails on violations.
pub(crate) fn fine(schedule: &Schedule) -> Result<Report, Failed> {
    let report = played(schedule, true);
    if report.violations.is_empty() {
        Ok(report)
    } else {
        Err(report.failed("violations", schedule))
    }
}

pub(crate) fn play(schedule: &Schedule, tracing: bool) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let shared = runtime.block_on(live(schedule, tracing));
    // Stops all tasks without their shutdown.
    drop(runtime);
    let mut world = shared.lock();
    Report {
        boundaries: world.boundaries,
        applied_at: world.applied_at,
        of_layers: std::mem::take(&mut world.of_layers),
        endings: std::mem::take(&mut world.watcher.endings),
        violations: std::mem::take(&mut world.watcher.violations),
        second_pods: std::mem::take(&mut world.watcher.second_pods),
        trace: std::mem::take(&mut world.trace),
        print: (world.store.version(), world.requests, world.chance.0),
    }
}

async fn live(schedule: &Schedule, tracing: bool) -> Shared {
    world::begin();
    let shared = Shared::new(schedule, tracing);
    for name in world::NODE_NAMES {
        shared.act(|world| world.tell_node(name, "True"));
    }
    tokio::spawn(kubelet::run(shared.clone()));
    for index in 0..=u8::from(schedule.scene.two) {
        tokio::spawn(controller::supervise(shared.clone(), index));
    }
    let is_of_layers = schedule.scene.layer.is_some();
    let made = if is_of_layers {
        tokio::spawn(layers::live(shared.clone()))
    } else {
        tokio::spawn(person::create(shared.clone()))
    };
    let mut pending = vec![made];
    if is_of_layers {
        pending.push(tokio::spawn(layers::answer(shared.clone())));
        pending.push(tokio::spawn(layers::collect(shared.clone())));
        pending.push(tokio::spawn(sources::supervise(shared.clone())));
    }
    for (when, gesture) in schedule.person.clone() {
        pending.push(tokio::spawn(person::gesture(shared.clone(), when, gesture)));
    }
    for (at, strike) in schedule.strikes.clone() {
        pending.push(tokio::spawn(person::strike(shared.clone(), at, strike)));
    }
    let (mut quiet, mut before) = (0, 0);
    let mut rested = false;
    let longest = if is_of_layers {
        layers::LONGEST
    } else {
        LONGEST
    };
    while world::millis() < longest * 1000 {
        sleep(Duration::from_secs(1)).await;
        let world = shared.lock();
        if world.requests > MOST_REQUESTS {
            break;
        }
        let made = pending[0].is_finished();
        // Ends waits for a phase that never comes, but not those for a time.
        let version = world.store.version();
        let calm = std::mem::replace(&mut before, version) == version;
        quiet = if made && calm && invariants::at_rest(&world) && layered::is_at_rest(&world) {
            quiet + 1
        } else {
            0
        };
        let late = schedule
            .strikes
            .iter()
            .map(|(at, _)| u64::from(*at))
            .max()
            .unwrap_or(0);
        if quiet > 12 && world::millis() > late {
            rested = true;
            break;
        }
    }
    // Faults of the schedule end here.
    shared.lock().schedule.faults.clear();
    if rested && invariants::has_litter(&shared.lock()) {
        controller::sweep(&shared).await;
    }
    shared.act(|world| {
        if world.requests > MOST_REQUESTS {
            world.violated("L1", &format!("more than {MOST_REQUESTS} requests"));
        }
        invariants::judge(world, rested);
        layered::judge(world, rested);
    });
    for task in pending {
        task.abort();
    }
    shared
}
