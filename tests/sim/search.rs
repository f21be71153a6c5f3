//! Selects the schedules: every crash point, every pair on the way to the apply, and random ones.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    life::{Report, play},
    schedule::{Failing, Fault, Gesture, Scene, Schedule, Strike, When},
};

/// Number of failures that ends a search: they usually have one or two causes.
const ENOUGH: usize = 20;
/// Interval of progress messages.
const TOLD: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct Found {
    pub played: u64,
    pub boundaries: u64,
    pub endings: BTreeMap<&'static str, u64>,
    pub failures: Vec<(Schedule, Vec<String>)>,
}

impl Found {
    fn add(&mut self, schedule: &Schedule, report: &Report) {
        self.played += 1;
        self.boundaries += u64::from(report.boundaries);
        for ending in &report.endings {
            *self.endings.entry(ending).or_default() += 1;
        }
        if !report.violations.is_empty() && self.failures.len() < ENOUGH {
            self.failures.push((schedule.clone(), report.violations.clone()));
        }
    }
}

/// Plays a schedule. A panic counts as a violation.
pub(crate) fn played(schedule: &Schedule, tracing: bool) -> Report {
    catch_unwind(AssertUnwindSafe(|| play(schedule, tracing))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned().or(panic.downcast_ref::<&str>().map(ToString::to_string));
        Report {
            boundaries: 0,
            applied_at: None,
            of_layers: Vec::new(),
            endings: std::collections::BTreeSet::new(),
            violations: vec![format!("panic: {}", text.unwrap_or_default())],
            second_pods: Vec::new(),
            trace: Vec::new(),
            print: (0, 0, 0),
        }
    })
}

/// Plays schedules on one thread per processor. `next` returns them by number until there is none. Prints a failure at once, and the
/// progress every [`TOLD`].
pub(crate) fn all(next: impl Fn(u64) -> Option<Schedule> + Sync) -> Found {
    let (shared, number) = (Mutex::new((Found::default(), Instant::now())), AtomicU64::new(0));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(schedule) = next(number.fetch_add(1, Ordering::Relaxed)) {
                    let report = played(&schedule, false);
                    let mut shared = shared.lock().unwrap();
                    let (found, told) = &mut *shared;
                    found.add(&schedule, &report);
                    if !report.violations.is_empty() {
                        eprintln!("failed: {:?}\n  {}", report.violations, schedule.line());
                    }
                    if told.elapsed() >= TOLD {
                        *told = Instant::now();
                        eprintln!("sim: {} schedules, {} failed", found.played, found.failures.len());
                    }
                    if found.failures.len() >= ENOUGH {
                        break;
                    }
                }
            });
        }
    });
    shared.into_inner().unwrap().0
}

/// The scenes in which every crash point is tried.
pub(crate) fn scenes() -> Vec<(&'static str, Schedule)> {
    let scene =
        |scene: Scene, person: &[(When, Gesture)]| Schedule { seed: 7, scene, person: person.to_vec(), ..Schedule::default() };
    let plain = Scene::default();
    let failing = |what| Scene { automatic: true, hooks: true, hook_fails: Some(what), objects: 1, ..Scene::default() };
    let held = [(When::Waits(1_000), Gesture::Approve)];
    vec![
        ("automatic", scene(Scene { automatic: true, ..plain.clone() }, &[])),
        ("held", scene(plain.clone(), &held)),
        ("held without a datastore", scene(Scene { datastore: false, ..plain.clone() }, &held)),
        ("restored", scene(Scene { hold: 2, ..plain.clone() }, &[(When::Waits(12_000), Gesture::Approve)])),
        ("automatic, and a person is asked", scene(Scene { automatic: true, destroys: true, ..plain.clone() }, &held)),
        ("no changes", scene(Scene { automatic: true, changes: false, ..plain.clone() }, &[])),
        ("plan only", scene(Scene { operation: crds::Operation::Plan, ..plain.clone() }, &[])),
        ("apply fails", scene(Scene { automatic: true, fails: true, ..plain.clone() }, &[])),
        ("denied", scene(plain.clone(), &[(When::Waits(1_000), Gesture::Deny)])),
        ("deleted while it waits", scene(plain.clone(), &[(When::Waits(1_000), Gesture::Delete)])),
        ("deleted in mid-apply", scene(plain.clone(), &[held[0], (When::Applies(1_000), Gesture::Delete)])),
        ("cancelled in mid-apply", scene(plain.clone(), &[held[0], (When::Applies(1_000), Gesture::Cancel)])),
        (
            "withdrawn and approved again",
            scene(plain.clone(), &[held[0], (When::Waits(1_002), Gesture::Withdraw), (When::Waits(4_000), Gesture::Approve)]),
        ),
        ("cancelled at once", scene(plain.clone(), &[(When::At(900), Gesture::Cancel)])),
        ("hooks", scene(Scene { automatic: true, hooks: true, ..plain.clone() }, &[])),
        ("hooks without a datastore", scene(Scene { hooks: true, datastore: false, ..plain.clone() }, &held)),
        ("a hook that changes the code", scene(Scene { hooks: true, hook_tampers: true, ..plain.clone() }, &held)),
        (
            "restored with hooks",
            scene(Scene { hooks: true, hold: 2, objects: 1, ..plain.clone() }, &[(When::Waits(12_000), Gesture::Approve)]),
        ),
        ("a hook before the apply fails", scene(failing(Failing::BeforeApply), &[])),
        ("a hook behind the apply fails", scene(failing(Failing::AfterApply), &[])),
        (
            "the datastore takes no result, and hooks are left out",
            Schedule {
                strikes: vec![(3_800, Strike::DatastoreAway(60))],
                ..scene(Scene { automatic: true, hooks: true, ..plain.clone() }, &[])
            },
        ),
        (
            "cancelled among the hooks",
            scene(Scene { hooks: true, ..plain.clone() }, &[held[0], (When::Applies(200), Gesture::Cancel)]),
        ),
        ("one slot", scene(Scene { slots: 1, crowd: 1, second: Some(1), rival: true, ..plain.clone() }, &held)),
        ("two controllers", scene(Scene { two: true, ..plain.clone() }, &held)),
        (
            "two controllers and two runs of one state",
            scene(Scene { two: true, automatic: true, second: Some(1), objects: 1, ..plain.clone() }, &[]),
        ),
        (
            "two controllers, withdrawn and approved again",
            scene(
                Scene { two: true, ..plain.clone() },
                &[held[0], (When::Waits(1_002), Gesture::Withdraw), (When::Waits(4_000), Gesture::Approve)],
            ),
        ),
        (
            "two controllers, cancelled and deleted in mid-apply",
            scene(
                Scene { two: true, ..plain },
                &[held[0], (When::Applies(500), Gesture::Cancel), (When::Applies(900), Gesture::Delete)],
            ),
        ),
    ]
}

/// Faults tried alone at each boundary.
pub(crate) const SINGLE: [Fault; 9] = [
    Fault::CrashBefore,
    Fault::CrashAfter,
    Fault::Lost,
    Fault::ReplyLost,
    Fault::Late(3),
    Fault::Refused(403),
    Fault::Refused(409),
    Fault::Refused(503),
    Fault::Slow(12),
];
/// Faults tried in pairs.
const PAIR: [Fault; 3] = [Fault::CrashBefore, Fault::CrashAfter, Fault::ReplyLost];

/// Every fault at every boundary of every scene.
pub(crate) fn singles() -> Vec<Schedule> {
    let mut all = Vec::new();
    for (name, scene) in scenes() {
        let report = played(&scene, false);
        assert!(report.violations.is_empty(), "{name}: {:?}", report.violations);
        for at in 0..report.boundaries {
            all.extend(SINGLE.iter().map(|fault| Schedule { faults: vec![(at, *fault)], ..scene.clone() }));
        }
        all.push(scene);
    }
    all
}

/// The first fault of each pair on the way to the apply. The second faults depend on how far the simulation comes with the first.
pub(crate) fn firsts() -> Vec<Schedule> {
    let ways = ["automatic", "held", "restored"];
    let mut all = Vec::new();
    for (_, scene) in scenes().into_iter().filter(|(name, _)| ways.contains(name)) {
        let until = played(&scene, false).applied_at.unwrap();
        for at in 0..until {
            all.extend(PAIR.iter().map(|fault| Schedule { faults: vec![(at, *fault)], ..scene.clone() }));
        }
    }
    all
}

/// All pairs that begin with this fault.
pub(crate) fn pairs_of(first: &Schedule) -> Vec<Schedule> {
    let report = played(first, false);
    let (at, fault) = first.faults[0];
    let until = report.applied_at.unwrap_or(report.boundaries);
    let mut all = Vec::new();
    for later in at + 1..until {
        all.extend(PAIR.iter().map(|second| Schedule { faults: vec![(at, fault), (later, *second)], ..first.clone() }));
    }
    all
}

/// Shrinks a failing schedule: removes events as long as it still fails.
pub(crate) fn shrink(schedule: &Schedule) -> Schedule {
    let mut best = schedule.clone();
    loop {
        let fails = |less: &Schedule| !played(less, false).violations.is_empty();
        match best.smaller().into_iter().find(fails) {
            Some(less) => best = less,
            None => return best,
        }
    }
}
