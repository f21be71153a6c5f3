//! A lost node: when its runs report it, and what follows before and after the claim.

use libtest_mimic::Failed;

use crate::{
    life::fine,
    schedule::{Gesture, Scene, Schedule, Strike, When},
};

const TOLD: &[&str] = &["the run says NodeUnreachable"];

/// The run reports the loss within 30 s of its node's Ready condition. Before the claim another attempt follows 5 min later, as the same
/// try. After the claim none follows, and the run ends when the node returns and reports the result.
pub(crate) fn lost() -> Result<(), Failed> {
    let automatic = || Schedule::of(11).with(|s| s.automatic = true);
    let lives = [
        automatic(),
        automatic().with(|s| s.objects = 42),
        Schedule::of(11).waits(20_000, Gesture::Approve),
        Schedule::of(11)
            .with(|s| s.hold = 2)
            .waits(12_000, Gesture::Approve),
    ];
    let (mut fenced, mut waited) = (0, 0);
    for life in lives {
        for moment in [300, 700, 1_100, 1_600, 2_400, 3_500, 15_000] {
            for anew in [false, true] {
                let schedule = life.clone().strike(moment, Strike::LoseNode(700, anew));
                let report = fine(&schedule)?;
                let Some(told) = report.at(TOLD) else {
                    continue;
                };
                if report
                    .at(&["is not Ready"])
                    .is_none_or(|left| told < left || told > left + 30.0)
                {
                    return Err(report.failed("told too late, or without a reason", &schedule));
                }
                let claimed = report
                    .at(&["claim=true"])
                    .is_some_and(|claimed| claimed < told);
                let is_closed = |line: &str| line.contains("\"a1\"") || line.contains("\"a2\"");
                let closed = report.line(told, is_closed).map(|(at, _)| at);
                match closed {
                    _ if claimed => waited += 1,
                    // Times are in whole seconds, by a clock that may be behind by one.
                    Some(closed) if (298.0..=310.0).contains(&(closed - told)) => fenced += 1,
                    _ => return Err(report.failed("not fenced after 5 min", &schedule)),
                }
                let known = ["Applied", "Indeterminate", "Failed behind the claim"];
                if !report.endings.iter().any(|ending| {
                    if claimed {
                        known.contains(ending)
                    } else {
                        *ending == "Applied"
                    }
                }) {
                    return Err(report.failed("no good end", &schedule));
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
            let life = Schedule::of(11)
                .with(|s| s.hold = 120)
                .gesture(When::At(60_000), gesture);
            let schedule = life.strike(moment, Strike::LoseNode(900, false));
            let report = fine(&schedule)?;
            if report
                .at(&["Some(Canceled)"])
                .is_none_or(|ended| ended >= 121.0)
            {
                return Err(report.failed("not ended within a minute", &schedule));
            }
        }
    }
    Ok(())
}

/// A person abandons an apply on a lost node: its run ends at once, and the next run of its state applies while that node is away.
pub(crate) fn given_up() -> Result<(), Failed> {
    for datastore in [true, false] {
        for seed in 11..15 {
            let scene = |s: &mut Scene| {
                (s.automatic, s.datastore, s.objects, s.second) = (true, datastore, 20, Some(5));
            };
            let life = Schedule::of(seed)
                .with(scene)
                .gesture(When::Unreachable(5_000), Gesture::Abandon);
            let schedule = life.strike(3_500, Strike::LoseNode(700, false));
            let report = fine(&schedule)?;
            let (told, ended) = (report.at(TOLD), report.at(&["Some(Indeterminate)"]));
            let is_next =
                |line: &str| line.contains("=> net-later@") && line.contains("claim=true");
            let next = report.line(ended.unwrap_or(0.0), is_next).map(|(at, _)| at);
            let soon = |at: Option<f64>, from: Option<f64>, within: f64| {
                at.zip(from).is_some_and(|(at, from)| at < from + within)
            };
            // Pawl cannot take over a lock outside the datastore.
            let is_free = !datastore || soon(next, ended, 60.0);
            if !soon(ended, told, 10.0) || !is_free {
                return Err(report.failed("not given up", &schedule));
            }
        }
    }
    Ok(())
}
