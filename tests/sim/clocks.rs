//! Machines whose clocks are wrong by up to an hour, each differently. A wait that is stored in the API is measured by the API server's
//! clock, whichever process starts and ends it.

use std::time::Duration;

use libtest_mimic::Failed;

use crate::{
    life::fine,
    person::{EXPIRES_AFTER, SECOND},
    schedule::{Scene, Schedule, Strike},
};

/// Each seed has other clocks.
const SEEDS: std::ops::Range<u64> = 20..32;
/// The time by which a wait may be too short, because of two estimates of the clock's offset, and of times in whole seconds.
const LESS: Duration = Duration::from_secs(4);

/// Plays a life and checks that `wait` seconds pass between the first trace line that contains `from` and the first that contains `to`. Up
/// to `more` seconds may pass until the next reconcile.
fn lasts(
    schedule: &Schedule,
    from: &str,
    to: [&str; 2],
    wait: u64,
    more: u64,
) -> Result<(), Failed> {
    let report = fine(schedule)?;
    let wait = Duration::from_secs(wait);
    let lasted = report
        .at(&[from])
        .zip(report.at(&to))
        .map(|(begun, ended)| Duration::from_secs_f64((ended - begun).max(0.0)));
    if lasted.is_some_and(|lasted| {
        (wait.saturating_sub(LESS)..wait + Duration::from_secs(more)).contains(&lasted)
    }) {
        return Ok(());
    }
    Err(report.failed(
        &format!("{lasted:?} and not {wait:?} from {from:?} to {to:?}"),
        schedule,
    ))
}

/// A plan without approval expires on time: by its agent, by the controller, and by a controller on another machine.
pub(crate) fn expiry() -> Result<(), Failed> {
    for seed in SEEDS {
        for datastore in [true, false] {
            for strikes in [vec![], vec![(60_000, Strike::KillController(0))]] {
                let schedule = Schedule {
                    strikes,
                    ..Schedule::of(seed).with(|s| s.datastore = datastore)
                };
                lasts(
                    &schedule,
                    "Some(AwaitingApproval)",
                    ["Some(Expired)", ""],
                    EXPIRES_AFTER,
                    10,
                )?;
            }
        }
    }
    Ok(())
}

/// The pod of an apply is force-deleted while its process lives on. The next run begins after the pod's grace period and a minute, counted
/// from the end of the run, also by a controller on another machine, or from the return of the node, whatever time its kubelet reports.
pub(crate) fn leases() -> Result<(), Failed> {
    let wait =
        u64::try_from(crds::Runner::default().termination_grace_period_seconds).unwrap() + 60;
    let cases = [
        (
            "Some(Indeterminate)",
            [
                (9_000, Strike::ForceDelete(70)),
                (76_000, Strike::KillController(0)),
            ],
        ),
        (
            "node-1 is back",
            [
                (9_000, Strike::LoseNode(400, false)),
                (60_000, Strike::ForceDelete(250)),
            ],
        ),
    ];
    for seed in SEEDS {
        for (from, strikes) in &cases {
            let scene = |s: &mut Scene| (s.automatic, s.objects, s.second) = (true, 84, Some(5));
            let schedule = Schedule {
                strikes: strikes.to_vec(),
                ..Schedule::of(seed).with(scene)
            };
            lasts(&schedule, from, [SECOND, "\"a1 open\""], wait, 120)?;
        }
    }
    Ok(())
}
