//! The lease on a state: a write of the lease is delayed while another run takes the lease.

use libtest_mimic::Failed;

use crate::{
    life::Report,
    person::{FIRST, SECOND},
    schedule::{Fault, Gesture, Scene, Schedule, Strike, When},
    search::played,
};

/// The first trace line after `behind` that contains all words.
fn line<'a>(report: &'a Report, behind: f64, words: &[&str]) -> Option<(f64, &'a str)> {
    let lines = report.trace.iter().filter(|line| words.iter().all(|word| line.contains(word)));
    let timed = |line: &'a String| Some((line.split_whitespace().next()?.parse::<f64>().ok()?, line.as_str()));
    lines.filter_map(timed).find(|(at, _)| *at > behind)
}

fn at(report: &Report, words: &[&str]) -> Option<f64> {
    line(report, 0.0, words).map(|(at, _)| at)
}

fn failed(what: &str, report: &Report, schedule: &Schedule) -> Failed {
    format!("{what}: endings {:?}, {:?}\n{}\n{}", report.endings, report.violations, report.trace.join("\n"), schedule.line())
        .into()
}

/// Delay of the write, in seconds.
const SLOW: u8 = 3;

/// Simulates a run whose approval is withdrawn for some seconds. Before that, one of two controllers takes the lease, and its write of
/// lease and approval is delayed by [`SLOW`]. The other controller sees all changes two seconds late and gives the lease to a run that was
/// created meanwhile. The approval is set again before the delayed write takes effect. The write takes effect before the other run has a
/// plan, which would supersede the first one's.
fn life(seed: u64, waits: f64, slow: &[(u32, Fault)]) -> Schedule {
    let millis = |seconds: f64| num(seconds * 1_000.0);
    Schedule {
        seed,
        scene: Scene {
            two: true,
            objects: 20,
            rival: true,
            second: Some(u8::try_from(num(waits + 4.4)).unwrap()),
            ..Scene::default()
        },
        person: vec![
            (When::Waits(3_000), Gesture::Approve),
            (When::Waits(3_500), Gesture::Withdraw),
            (When::Waits(5_700), Gesture::Approve),
        ],
        faults: slow.to_vec(),
        strikes: vec![(millis(waits + 2.5), Strike::LagOf(1, 2, 9))],
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "times of a life are small")]
fn num(of: f64) -> u32 {
    of as u32
}

/// A run that was approved, withdrawn and approved again looks the same as when its lease was taken. Only `passedOver` shows that another
/// run has the lease now.
pub(crate) fn passed_over() -> Result<(), Failed> {
    let mut lives = 0;
    for seed in 11..23 {
        // The approval comes only after the run waits for it.
        let first = played(&life(seed, 100.0, &[]), true);
        let waits = at(&first, &[&format!("=> {FIRST}@"), "Some(AwaitingApproval)"]).unwrap();
        // The write of the lease follows on the approval.
        let plain = played(&life(seed, waits, &[]), true);
        let approved = at(&plain, &["alice: Approve"]).unwrap();
        let (taken, _) = line(&plain, approved, &["controller0: POST leases/"]).unwrap();
        let (_, record) = line(&plain, taken, &["controller0: PATCH", &format!("/{FIRST}/status")]).unwrap();
        let number = record.split_once('#').unwrap().1.split_whitespace().next().unwrap().parse().unwrap();
        let schedule = life(seed, waits, &[(number, Fault::Slow(SLOW))]);
        let report = played(&schedule, true);
        let of = |run: &str, what: &str| at(&report, &[&format!("=> {run}@"), what]);
        let landed = at(&report, &["<- Slow"]).unwrap() + f64::from(SLOW);
        let (one, two) = (of(FIRST, "claim=true"), of(SECOND, "claim=true"));
        // Everything that the write tests is unchanged, except for the count.
        let again = line(&report, approved + 1.0, &["alice: Approve"]).map(|(at, _)| at);
        let meanwhile = [of(SECOND, "a1 open"), again].into_iter().all(|at| at.is_some_and(|at| at < landed));
        if !meanwhile || two.is_none_or(|two| two < landed) {
            return Err(failed("nobody took the lease while its record was on its way", &report, &schedule));
        }
        if !report.violations.is_empty() || one.zip(two).is_none_or(|(one, two)| one < two) {
            return Err(failed("both had it", &report, &schedule));
        }
        lives += 1;
    }
    println!("sim: {lives} records of a lease came too late");
    Ok(())
}
