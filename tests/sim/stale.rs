//! Controllers with stale caches: bugs reported by Tekton's users, played against Pawl (`design/peers-bugs.md`). A cached state may cause a
//! reconcile, but never an action by itself.

use libtest_mimic::Failed;

use crate::{
    life::{Report, fine},
    schedule::{Gesture, Scene, Schedule, Strike},
    search::played,
};

/// A life in a scene, with an approval if the run needs one.
fn life(scene: impl FnOnce(&mut Scene)) -> Schedule {
    let life = Schedule::of(11).with(scene);
    if life.scene.automatic {
        life
    } else {
        life.waits(1_000, Gesture::Approve)
    }
}

/// Plays a schedule. Fails on violations, and where `wrong` says so.
fn checked(
    schedule: &Schedule,
    wrong: impl Fn(&Report) -> Option<&'static str>,
) -> Result<Report, Failed> {
    let report = played(schedule, false);
    if let Some(what) = wrong(&report) {
        return Err(played(schedule, true).failed(what, schedule));
    }
    if report.violations.is_empty() {
        Ok(report)
    } else {
        fine(schedule)
    }
}

/// Tekton #4358: the informer did not show a created pod, so the `TaskRun` got a second one. In Pawl that would be a second process with a
/// right to the same plan. Pods are deleted while caches lag by up to 40 s from the first pod on. An attempt that a process has adopted
/// never gets another pod.
pub(crate) fn second_pods() -> Result<(), Failed> {
    let scenes: [fn(&mut Scene); 5] = [
        |s| s.automatic = true,
        |s| (s.automatic, s.two) = (true, true),
        |s| (s.automatic, s.flaky) = (true, 1),
        |s| s.two = true,
        |s| s.hold = 2,
    ];
    let (mut lives, mut retried, mut applied) = (0, 0, 0);
    for scene in scenes {
        for late in [2, 11, 40] {
            for at in [300, 700, 1_100, 1_600, 2_400, 3_500, 5_000] {
                for strike in [
                    Strike::Kill,
                    Strike::Evict,
                    Strike::ForceDelete(0),
                    Strike::ForceDelete(5),
                ] {
                    let schedule = life(scene)
                        .strike(100, Strike::Lag(late, 120))
                        .strike(at, strike);
                    let wrong = |report: &Report| {
                        (!report.second_pods.is_empty())
                            .then_some("another pod of an adopted attempt")
                    };
                    let report = checked(&schedule, wrong)?;
                    lives += 1;
                    retried += u32::from(report.endings.contains("retried"));
                    applied += u32::from(report.endings.contains("Applied"));
                }
            }
        }
    }
    println!(
        "sim: {lives} lives under stale caches, {retried} with a further attempt, {applied} applied"
    );
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
                    let scene =
                        |s: &mut Scene| (s.automatic, s.flaky, s.two) = (automatic, flaky, true);
                    let schedule = life(scene).strike(at, Strike::LagOf(index, late, 240));
                    checked(&schedule, |report| {
                        let bad = report
                            .endings
                            .iter()
                            .any(|end| end.starts_with("Failed") || *end == "Indeterminate");
                        let all = report.endings.contains("Applied")
                            && report.endings.contains("retried");
                        (bad || !all)
                            .then_some("a failure that was over was made final, or there was none")
                    })?;
                    lives += 1;
                }
            }
        }
    }
    println!("sim: {lives} lives whose failures one controller saw too late");
    Ok(())
}
