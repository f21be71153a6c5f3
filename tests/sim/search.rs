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
            self.failures
                .push((schedule.clone(), report.violations.clone()));
        }
    }
}

/// Plays a schedule. A panic counts as a violation.
pub(crate) fn played(schedule: &Schedule, tracing: bool) -> Report {
    catch_unwind(AssertUnwindSafe(|| play(schedule, tracing))).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or(panic.downcast_ref::<&str>().map(ToString::to_string));
        Report {
            violations: vec![format!("panic: {}", text.unwrap_or_default())],
            ..Report::default()
        }
    })
}

/// Plays schedules on one thread per processor. `next` returns them by number until there is none. Prints a failure at once, and the
/// progress every [`TOLD`].
pub(crate) fn all(next: impl Fn(u64) -> Option<Schedule> + Sync) -> Found {
    let (shared, number) = (
        Mutex::new((Found::default(), Instant::now())),
        AtomicU64::new(0),
    );
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
                        eprintln!(
                            "sim: {} schedules, {} failed",
                            found.played,
                            found.failures.len()
                        );
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
    use Gesture::{Approve, Cancel, Delete, Deny, Withdraw};
    let plain = || Schedule::of(7);
    let automatic = || plain().with(|s| s.automatic = true);
    let held = || plain().waits(1_000, Approve);
    // The hold is over, so the plan is restored.
    let late = || plain().with(|s| s.hold = 2).waits(12_000, Approve);
    let hooks = || automatic().with(|s| s.hooks = true);
    let failing = |what| hooks().with(|s| (s.hook_fails, s.objects) = (Some(what), 1));
    let two = || held().with(|s| s.two = true);
    let again = |life: Schedule| life.waits(1_002, Withdraw).waits(4_000, Approve);
    let hooked = || held().with(|s| s.hooks = true);
    let crowded = |s: &mut Scene| (s.slots, s.crowd, s.second, s.rival) = (1, 1, Some(1), true);
    let both = |s: &mut Scene| (s.two, s.second, s.objects) = (true, Some(1), 1);
    let applies = |life: Schedule, after, gesture| life.gesture(When::Applies(after), gesture);
    vec![
        ("automatic", automatic()),
        ("held", held()),
        (
            "held without a datastore",
            held().with(|s| s.datastore = false),
        ),
        ("restored", late()),
        (
            "automatic, and a person is asked",
            held().with(|s| (s.automatic, s.destroys) = (true, true)),
        ),
        ("no changes", automatic().with(|s| s.changes = false)),
        (
            "plan only",
            plain().with(|s| s.operation = crds::Operation::Plan),
        ),
        ("apply fails", automatic().with(|s| s.fails = true)),
        ("denied", plain().waits(1_000, Deny)),
        ("deleted while it waits", plain().waits(1_000, Delete)),
        ("deleted in mid-apply", applies(held(), 1_000, Delete)),
        ("cancelled in mid-apply", applies(held(), 1_000, Cancel)),
        ("withdrawn and approved again", again(held())),
        ("cancelled at once", plain().gesture(When::At(900), Cancel)),
        ("hooks", hooks()),
        (
            "hooks without a datastore",
            hooked().with(|s| s.datastore = false),
        ),
        (
            "a hook that changes the code",
            hooked().with(|s| s.hook_tampers = true),
        ),
        (
            "restored with hooks",
            late().with(|s| (s.hooks, s.objects) = (true, 1)),
        ),
        (
            "a hook before the apply fails",
            failing(Failing::BeforeApply),
        ),
        (
            "a hook behind the apply fails",
            failing(Failing::AfterApply),
        ),
        (
            "hooks left out without a datastore",
            hooks().strike(3_800, Strike::DatastoreAway(60)),
        ),
        ("cancelled among the hooks", applies(hooked(), 200, Cancel)),
        ("one slot", held().with(crowded)),
        ("two controllers", two()),
        (
            "two controllers and two runs of one state",
            automatic().with(both),
        ),
        (
            "two controllers, withdrawn and approved again",
            again(two()),
        ),
        (
            "two controllers, cancelled and deleted",
            applies(applies(two(), 500, Cancel), 900, Delete),
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
        assert!(
            report.violations.is_empty(),
            "{name}: {:?}",
            report.violations
        );
        for at in 0..report.boundaries {
            all.extend(SINGLE.iter().map(|fault| scene.fault(at, *fault)));
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
            all.extend(PAIR.iter().map(|fault| scene.fault(at, *fault)));
        }
    }
    all
}

/// All pairs that begin with this fault.
pub(crate) fn pairs_of(first: &Schedule) -> Vec<Schedule> {
    let report = played(first, false);
    let until = report.applied_at.unwrap_or(report.boundaries);
    let later = first.faults[0].0 + 1..until;
    later
        .flat_map(|at| PAIR.iter().map(move |second| first.fault(at, *second)))
        .collect()
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
