//! A lost node: when its runs report it, and what follows before and after the claim.

use libtest_mimic::Failed;

use crate::{
    life::Report,
    schedule::{Gesture, Scene, Schedule, Strike, When},
    search::played,
};

/// Time in seconds of the first trace line after `moment` for which `is` holds.
fn after(report: &Report, moment: f64, is: impl Fn(&str) -> bool) -> Option<f64> {
    let lines = report.trace.iter().filter(|line| is(line));
    lines.filter_map(|line| line.split_whitespace().next()?.parse().ok()).find(|at| *at > moment)
}

/// Time in seconds of the first trace line that contains `words`.
fn at(report: &Report, words: &str) -> Option<f64> {
    after(report, 0.0, |line| line.contains(words))
}

fn failed(what: &str, report: &Report, schedule: &Schedule) -> Failed {
    format!("{what}: endings {:?}, {:?}\n{}\n{}", report.endings, report.violations, report.trace.join("\n"), schedule.line())
        .into()
}

/// The run reports the loss within 30 s of its node's Ready condition. Before the claim another attempt follows 5 min later, as the same
/// try. After the claim none follows, and the run ends when the node returns and reports the result.
pub(crate) fn lost() -> Result<(), Failed> {
    let plain = Scene::default();
    let scenes = [
        (Scene { automatic: true, ..plain.clone() }, vec![]),
        (Scene { automatic: true, objects: 42, ..plain.clone() }, vec![]),
        (plain.clone(), vec![(When::Waits(20_000), Gesture::Approve)]),
        (Scene { hold: 2, ..plain }, vec![(When::Waits(12_000), Gesture::Approve)]),
    ];
    let (mut fenced, mut waited) = (0, 0);
    for (scene, person) in scenes {
        for moment in [300, 700, 1_100, 1_600, 2_400, 3_500, 15_000] {
            for anew in [false, true] {
                let strikes = vec![(moment, Strike::LoseNode(700, anew))];
                let schedule = Schedule { seed: 11, scene: scene.clone(), person: person.clone(), faults: vec![], strikes };
                let report = played(&schedule, true);
                if !report.violations.is_empty() {
                    return Err(failed("violations", &report, &schedule));
                }
                let Some(told) = at(&report, "the run says NodeUnreachable") else { continue };
                let Some(left) = at(&report, "is not Ready") else {
                    return Err(failed("told without a reason", &report, &schedule));
                };
                if told < left || told > left + 30.0 {
                    return Err(failed("told too late", &report, &schedule));
                }
                let claimed = at(&report, "claim=true").is_some_and(|claimed| claimed < told);
                let closed = after(&report, told, |line| line.contains("\"a1\"") || line.contains("\"a2\""));
                match closed {
                    _ if claimed => waited += 1,
                    // Times are in whole seconds, by a clock that may be behind by one.
                    Some(closed) if (298.0..=310.0).contains(&(closed - told)) => fenced += 1,
                    _ => return Err(failed("not fenced after 5 min", &report, &schedule)),
                }
                let known = ["Applied", "Indeterminate", "Failed behind the claim"];
                if !report.endings.iter().any(|ending| if claimed { known.contains(ending) } else { *ending == "Applied" }) {
                    return Err(failed("no good end", &report, &schedule));
                }
            }
        }
    }
    println!("sim: {fenced} lives fenced on a lost node, {waited} waited behind their claim");
    if fenced < 8 || waited < 4 {
        return Err(format!("hardly anything happened: {fenced} and {waited}").into());
    }
    Ok(())
}

/// Cancel, deny and delete end a run without a claim within 60 s, even though its pod cannot be ended.
pub(crate) fn canceled() -> Result<(), Failed> {
    for gesture in [Gesture::Cancel, Gesture::Deny, Gesture::Delete] {
        for moment in [700, 1_600, 3_500] {
            let schedule = Schedule {
                seed: 11,
                scene: Scene { hold: 120, ..Scene::default() },
                person: vec![(When::At(60_000), gesture)],
                faults: vec![],
                strikes: vec![(moment, Strike::LoseNode(900, false))],
            };
            let report = played(&schedule, true);
            let ended = at(&report, "Some(Canceled)");
            if !report.violations.is_empty() || !ended.is_some_and(|ended| ended < 121.0) {
                return Err(failed("not ended within a minute", &report, &schedule));
            }
        }
    }
    Ok(())
}

/// A person abandons an apply on a lost node: its run ends at once, and the next run of its state applies while that node is away.
pub(crate) fn given_up() -> Result<(), Failed> {
    for datastore in [true, false] {
        for seed in 11..15 {
            let schedule = Schedule {
                seed,
                scene: Scene { automatic: true, datastore, objects: 20, second: Some(5), ..Scene::default() },
                person: vec![(When::Unreachable(5_000), Gesture::Abandon)],
                faults: vec![],
                strikes: vec![(3_500, Strike::LoseNode(700, false))],
            };
            let report = played(&schedule, true);
            let told = at(&report, "the run says NodeUnreachable");
            let ended = at(&report, "Some(Indeterminate)");
            let next = after(&report, ended.unwrap_or(0.0), |line| line.contains("=> net-later@") && line.contains("claim=true"));
            let soon =
                |at: Option<f64>, from: Option<f64>, within: f64| at.zip(from).is_some_and(|(at, from)| at < from + within);
            // Pawl cannot take over a lock outside the datastore.
            let is_free = !datastore || soon(next, ended, 60.0);
            if !report.violations.is_empty() || !soon(ended, told, 10.0) || !is_free {
                return Err(failed("not given up", &report, &schedule));
            }
        }
    }
    Ok(())
}
