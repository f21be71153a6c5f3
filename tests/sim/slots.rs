//! Slots and freezes: the order of runs, that a waiting run blocks no other, and that all runs end.

use crds::Operation;
use libtest_mimic::Failed;

use crate::{
    life::Report,
    schedule::{Gesture, Scene, Schedule, Strike, When},
    search::played,
};

/// Time in seconds of the first trace line that contains all words.
fn at(report: &Report, words: &[&str]) -> Option<f64> {
    let line = report.trace.iter().find(|line| words.iter().all(|word| line.contains(word)))?;
    line.split_whitespace().next()?.parse().ok()
}

fn failed(what: &str, report: &Report, schedule: &Schedule) -> Failed {
    format!("{what}: endings {:?}, {:?}\n{}\n{}", report.endings, report.violations, report.trace.join("\n"), schedule.line())
        .into()
}

/// Plays a schedule, and fails on violations.
fn fine(schedule: &Schedule) -> Result<Report, Failed> {
    let report = played(schedule, true);
    if report.violations.is_empty() { Ok(report) } else { Err(failed("violations", &report, schedule)) }
}

/// When the first attempt of a run was opened.
fn opened(report: &Report, run: &str) -> Option<f64> {
    at(report, &[&format!("=> {run}@"), "a1 open"])
}

/// Runs that a schedule made wait for one slot; a later run of a person goes first.
pub(crate) fn line() -> Result<(), Failed> {
    for (automatic, slots, crowd) in [(true, 1, 4), (false, 1, 4), (true, 2, 6)] {
        let scene = Scene { automatic, slots, crowd, ..Scene::default() };
        let schedule = Schedule { seed: 11, scene, person: vec![(When::Waits(1_000), Gesture::Approve)], ..Schedule::default() };
        let report = fine(&schedule)?;
        let of_schedule: Vec<f64> = (0..crowd).filter_map(|number| opened(&report, &format!("drift-{number}"))).collect();
        let (asked, person) = (at(&report, &["=> net@", "waits for a slot, 0 before it"]), opened(&report, "net"));
        let passed = |other: &f64| asked.is_none_or(|asked| asked < *other) && person.is_none_or(|person| *other < person);
        let all = of_schedule.len() == usize::from(crowd) && person.is_some() && report.endings.contains("Applied");
        if !all || of_schedule.iter().any(passed) {
            return Err(failed(
                &format!("{of_schedule:?}, the person's in the line at {asked:?}, {person:?}"),
                &report,
                &schedule,
            ));
        }
    }
    Ok(())
}

/// In a frozen namespace open attempts continue, no attempt is opened, and no apply of an approved plan begins. After the freeze both do.
pub(crate) fn frozen() -> Result<(), Failed> {
    const SECONDS: u8 = 60;
    let plain = Scene::default();
    let scenes = [
        Scene { automatic: true, ..plain.clone() },
        plain.clone(),
        Scene { hold: 2, ..plain.clone() },
        Scene { datastore: false, ..plain.clone() },
        Scene { slots: 1, crowd: 1, ..plain },
    ];
    let (mut waited, mut went_on) = (0, 0);
    for scene in scenes {
        for moment in [0, 50, 300, 700, 1_100, 1_600, 2_400, 3_500, 6_000] {
            let schedule = Schedule {
                seed: 11,
                scene: scene.clone(),
                person: vec![(When::Waits(4_000), Gesture::Approve)],
                strikes: vec![(moment, Strike::Freeze(SECONDS))],
                ..Schedule::default()
            };
            let report = fine(&schedule)?;
            let begun = f64::from(moment) / 1_000.0;
            // A watch lags by some milliseconds, and a write may be in flight.
            let while_frozen = |at: f64| (begun + 0.2..begun + f64::from(SECONDS)).contains(&at);
            let claimed = at(&report, &["=> net@", "claim=true"]).ok_or_else(|| failed("no claim", &report, &schedule))?;
            // An approval recorded before the freeze took the lease in the same write.
            let approved = at(&report, &["=> net@", "approved=true"]).is_some_and(|at| at < begun + 0.2);
            if opened(&report, "net").is_none_or(while_frozen) || (!scene.automatic && !approved && while_frozen(claimed)) {
                return Err(failed("something began", &report, &schedule));
            }
            if claimed > begun + f64::from(SECONDS) { waited += 1 } else { went_on += 1 }
        }
    }
    println!("sim: {waited} lives waited until their namespace was no longer frozen, {went_on} went on");
    if waited < 20 || went_on < 3 { Err(format!("{waited} and {went_on}").into()) } else { Ok(()) }
}

/// A pod has the only slot while it waits for a person or for the lease, and runs with the lease wait for the slot. All of them must end.
pub(crate) fn circles() -> Result<(), Failed> {
    let plain = Scene { slots: 1, ..Scene::default() };
    let mut lives = 0;
    for datastore in [true, false] {
        for automatic in [true, false] {
            for rival in [true, false] {
                for hold in [2, 120] {
                    for (second, approve) in [(0, 500), (1, 8_000), (5, 40_000), (20, 500)] {
                        let scene = Scene { datastore, automatic, rival, hold, second: Some(second), crowd: 2, ..plain.clone() };
                        let person = vec![(When::Waits(approve), Gesture::Approve)];
                        let schedule = Schedule { seed: 3 + lives, scene, person, ..Schedule::default() };
                        let report = fine(&schedule)?;
                        if !report.endings.contains("waited for a slot") {
                            return Err(failed("nothing waited", &report, &schedule));
                        }
                        // With a datastore, a pod that is held for a person yields its slot to waiting runs, because the plan is stored.
                        let last = at(&report, &["=> drift-1@", "Succeeded"]);
                        if datastore && !automatic && last.is_none_or(|last| last > 35.0) {
                            return Err(failed("a pod that only waited kept its slot", &report, &schedule));
                        }
                        lives += 1;
                    }
                }
            }
        }
    }
    let scene = Scene { operation: Operation::Plan, crowd: 6, ..plain };
    fine(&Schedule { seed: 11, scene, ..Schedule::default() }).map(drop)
}
