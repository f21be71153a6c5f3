//! Machines whose clocks are wrong by up to an hour, each differently. A wait that is stored in the API is measured by the API server's
//! clock, whichever process starts and ends it.

use std::time::Duration;

use libtest_mimic::Failed;

use crate::{
    person::{EXPIRES_AFTER, SECOND},
    schedule::{Scene, Schedule, Strike},
    search::played,
};

/// Each seed has other clocks.
const SEEDS: std::ops::Range<u64> = 20..32;
/// The time by which a wait may be too short, because of two estimates of the clock's offset, and of times in whole seconds.
const LESS: Duration = Duration::from_secs(4);

/// Plays a life and checks that `wait` seconds pass between the first trace line that contains `from` and the first that contains `to`. Up
/// to `more` seconds may pass until the next reconcile.
fn lasts(schedule: &Schedule, from: &str, to: [&str; 2], wait: u64, more: u64) -> Result<(), Failed> {
    let report = played(schedule, true);
    let at = |words: [&str; 2]| {
        let line = report.trace.iter().find(|line| words.iter().all(|word| line.contains(word)))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let wait = Duration::from_secs(wait);
    let lasted = at([from, ""]).zip(at(to)).map(|(begun, ended): (f64, f64)| Duration::from_secs_f64((ended - begun).max(0.0)));
    let is_right = lasted.is_some_and(|lasted| (wait.saturating_sub(LESS)..wait + Duration::from_secs(more)).contains(&lasted));
    if is_right && report.violations.is_empty() {
        return Ok(());
    }
    let what = format!("{lasted:?} and not {wait:?} from {from:?} to {to:?}");
    Err(format!("{what}: {:?}\n{}\n{}", report.violations, report.trace.join("\n"), schedule.line()).into())
}

/// A plan without approval expires on time: by its agent, by the controller, and by a controller on another machine.
pub(crate) fn expiry() -> Result<(), Failed> {
    for seed in SEEDS {
        for datastore in [true, false] {
            for strikes in [vec![], vec![(60_000, Strike::KillController(0))]] {
                let scene = Scene { datastore, ..Scene::default() };
                let schedule = Schedule { seed, scene, strikes, ..Schedule::default() };
                lasts(&schedule, "Some(AwaitingApproval)", ["Some(Expired)", ""], EXPIRES_AFTER, 10)?;
            }
        }
    }
    Ok(())
}

/// The pod of an apply is force-deleted while its process lives on. The next run begins after the pod's grace period and a minute, counted
/// from the end of the run, also by a controller on another machine, or from the return of the node, whatever time its kubelet reports.
pub(crate) fn leases() -> Result<(), Failed> {
    let wait = u64::try_from(crds::Runner::default().termination_grace_period_seconds).unwrap() + 60;
    let cases = [
        ("Some(Indeterminate)", [(9_000, Strike::ForceDelete(70)), (76_000, Strike::KillController(0))]),
        ("node-1 is back", [(9_000, Strike::LoseNode(400, false)), (60_000, Strike::ForceDelete(250))]),
    ];
    for seed in SEEDS {
        for (from, strikes) in &cases {
            let scene = Scene { automatic: true, objects: 84, second: Some(5), ..Scene::default() };
            let schedule = Schedule { seed, scene, strikes: strikes.to_vec(), ..Schedule::default() };
            lasts(&schedule, from, [SECOND, "\"a1 open\""], wait, 120)?;
        }
    }
    Ok(())
}
