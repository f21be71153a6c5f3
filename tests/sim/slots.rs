//! Slots and freezes: the order of runs, that a waiting run blocks no other, and that all runs end.

use crds::Operation;
use libtest_mimic::Failed;

use crate::{
    life::{Report, fine},
    schedule::{Gesture, Scene, Schedule, Strike},
};

/// When the first attempt of a run was opened.
fn opened(report: &Report, run: &str) -> Option<f64> {
    report.at(&[&format!("=> {run}@"), "a1 open"])
}

/// Runs that a schedule made wait for one slot; a later run of a person goes first.
pub(crate) fn line() -> Result<(), Failed> {
    for (automatic, slots, crowd) in [(true, 1, 4), (false, 1, 4), (true, 2, 6)] {
        let scene = |s: &mut Scene| (s.automatic, s.slots, s.crowd) = (automatic, slots, crowd);
        let schedule = Schedule::of(11).with(scene).waits(1_000, Gesture::Approve);
        let report = fine(&schedule)?;
        let of_schedule: Vec<f64> = (0..crowd)
            .filter_map(|number| opened(&report, &format!("drift-{number}")))
            .collect();
        let (asked, person) = (
            report.at(&["=> net@", "waits for a slot"]),
            opened(&report, "net"),
        );
        let passed = |other: &f64| {
            asked.is_none_or(|asked| asked < *other) && person.is_none_or(|person| *other < person)
        };
        let all = of_schedule.len() == usize::from(crowd)
            && person.is_some()
            && report.endings.contains("Applied");
        if !all || of_schedule.iter().any(passed) {
            return Err(report.failed(
                &format!("{of_schedule:?}, the person's in the line at {asked:?}, {person:?}"),
                &schedule,
            ));
        }
    }
    Ok(())
}

/// In a frozen namespace open attempts continue, no attempt is opened, and no apply of an approved plan begins. After the freeze both do.
pub(crate) fn frozen() -> Result<(), Failed> {
    const SECONDS: u8 = 60;
    let scenes: [fn(&mut Scene); 5] = [
        |s| s.automatic = true,
        |_| {},
        |s| s.hold = 2,
        |s| s.datastore = false,
        |s| (s.slots, s.crowd) = (1, 1),
    ];
    let (mut waited, mut went_on) = (0, 0);
    for scene in scenes {
        for moment in [0, 50, 300, 700, 1_100, 1_600, 2_400, 3_500, 6_000] {
            let life = Schedule::of(11).with(scene).waits(4_000, Gesture::Approve);
            let schedule = life.strike(moment, Strike::Freeze(SECONDS));
            let report = fine(&schedule)?;
            let begun = f64::from(moment) / 1_000.0;
            // A watch lags by some milliseconds, and a write may be in flight.
            let while_frozen = |at: f64| (begun + 0.2..begun + f64::from(SECONDS)).contains(&at);
            let claimed = report
                .at(&["=> net@", "claim=true"])
                .ok_or_else(|| report.failed("no claim", &schedule))?;
            // An approval recorded before the freeze took the lease in the same write.
            let approved = report
                .at(&["=> net@", "approved=true"])
                .is_some_and(|at| at < begun + 0.2);
            if opened(&report, "net").is_none_or(while_frozen)
                || (!schedule.scene.automatic && !approved && while_frozen(claimed))
            {
                return Err(report.failed("something began", &schedule));
            }
            if claimed > begun + f64::from(SECONDS) {
                waited += 1;
            } else {
                went_on += 1;
            }
        }
    }
    println!(
        "sim: {waited} lives waited until their namespace was no longer frozen, {went_on} went on"
    );
    if waited < 20 || went_on < 3 {
        Err(format!("{waited} and {went_on}").into())
    } else {
        Ok(())
    }
}

/// A pod has the only slot while it waits for a person or for the lease, and runs with the lease wait for the slot. All of them must end.
pub(crate) fn circles() -> Result<(), Failed> {
    let mut lives = 0;
    for combination in 0..16 {
        let is = |bit: u32| combination & (1 << bit) == 0;
        let (datastore, automatic, rival, hold) =
            (is(3), is(2), is(1), if is(0) { 2 } else { 120 });
        for (second, approve) in [(0, 500), (1, 8_000), (5, 40_000), (20, 500)] {
            let life = Schedule::of(3 + lives)
                .with(|s| (s.slots, s.crowd, s.second) = (1, 2, Some(second)));
            let scene = |s: &mut Scene| {
                (s.datastore, s.automatic, s.rival, s.hold) = (datastore, automatic, rival, hold);
            };
            let schedule = life.with(scene).waits(approve, Gesture::Approve);
            let report = fine(&schedule)?;
            if !report.endings.contains("waited for a slot") {
                return Err(report.failed("nothing waited", &schedule));
            }
            // With a datastore, a pod that is held for a person yields its slot to waiting runs, because the plan is stored.
            let last = report.at(&["=> drift-1@", "Succeeded"]);
            if datastore && !automatic && last.is_none_or(|last| last > 35.0) {
                return Err(report.failed("a pod that only waited kept its slot", &schedule));
            }
            lives += 1;
        }
    }
    fine(&Schedule::of(11).with(|s| (s.slots, s.crowd, s.operation) = (1, 6, Operation::Plan)))
        .map(drop)
}
