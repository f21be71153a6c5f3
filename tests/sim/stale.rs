//! Controllers with stale caches: bugs reported by Tekton's users, played against Pawl (`design/peers-bugs.md`). A cached state may cause a
//! reconcile, but never an action by itself.

use libtest_mimic::Failed;

use crate::{
    schedule::{Gesture, Scene, Schedule, Strike, When},
    search::played,
};

fn scene(scene: Scene, strikes: &[(u32, Strike)]) -> Schedule {
    let person = if scene.automatic { vec![] } else { vec![(When::Waits(1_000), Gesture::Approve)] };
    Schedule { seed: 11, scene, person, faults: vec![], strikes: strikes.to_vec() }
}

fn failed(what: &str, schedule: &Schedule) -> Failed {
    let report = played(schedule, true);
    let from = report.trace.len().saturating_sub(150);
    format!("{what}: endings {:?}\n{}\n{}", report.endings, report.trace[from..].join("\n"), schedule.line()).into()
}

/// Tekton #4358: the informer did not show a created pod, so the `TaskRun` got a second one. In Pawl that would be a second process with a
/// right to the same plan. Pods are deleted while caches lag by up to 40 s from the first pod on. An attempt that a process has adopted
/// never gets another pod.
pub(crate) fn second_pods() -> Result<(), Failed> {
    let plain = Scene::default();
    let scenes = [
        Scene { automatic: true, ..plain.clone() },
        Scene { automatic: true, two: true, ..plain.clone() },
        Scene { automatic: true, flaky: 1, ..plain.clone() },
        Scene { two: true, ..plain.clone() },
        Scene { hold: 2, ..plain },
    ];
    let (mut lives, mut retried, mut applied) = (0, 0, 0);
    for what in scenes {
        for late in [2, 11, 40] {
            for at in [300, 700, 1_100, 1_600, 2_400, 3_500, 5_000] {
                for strike in [Strike::Kill, Strike::Evict, Strike::ForceDelete(0), Strike::ForceDelete(5)] {
                    let schedule = scene(what.clone(), &[(100, Strike::Lag(late, 120)), (at, strike)]);
                    let report = played(&schedule, false);
                    if !report.violations.is_empty() {
                        return Err(failed(&format!("{:?}", report.violations), &schedule));
                    }
                    if !report.second_pods.is_empty() {
                        return Err(failed(&format!("another pod of an adopted attempt: {:?}", report.second_pods), &schedule));
                    }
                    lives += 1;
                    retried += u32::from(report.endings.contains("retried"));
                    applied += u32::from(report.endings.contains("Applied"));
                }
            }
        }
    }
    println!("sim: {lives} lives under stale caches, {retried} with a further attempt, {applied} applied");
    if retried < lives / 10 || applied < lives / 10 {
        return Err(format!("hardly anything happened: {retried} and {applied} of {lives}").into());
    }
    Ok(())
}

/// Tekton #9467: a `TaskRun` with a transient failure was read from a stale cache and marked Failed for good. Attempts fail here, others
/// follow and apply, while one of two controllers lags by up to 45 s. It never marks the run failed.
pub(crate) fn failures() -> Result<(), Failed> {
    let mut lives = 0;
    for flaky in [1, 2] {
        for automatic in [true, false] {
            for late in [3, 11, 30, 45] {
                for (index, at) in [(0, 0), (0, 900), (0, 2_000), (1, 0), (1, 900), (1, 2_000)] {
                    let what = Scene { automatic, flaky, two: true, ..Scene::default() };
                    let schedule = scene(what, &[(at, Strike::LagOf(index, late, 240))]);
                    let report = played(&schedule, false);
                    if !report.violations.is_empty() {
                        return Err(failed(&format!("{:?}", report.violations), &schedule));
                    }
                    let bad = report.endings.iter().any(|ending| ending.starts_with("Failed") || *ending == "Indeterminate");
                    if bad || !report.endings.contains("Applied") || !report.endings.contains("retried") {
                        return Err(failed("a failure that was over was made final, or there was none", &schedule));
                    }
                    lives += 1;
                }
            }
        }
    }
    println!("sim: {lives} lives whose failures one controller saw too late");
    Ok(())
}
