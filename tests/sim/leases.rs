//! The lease on a state: a write of the lease is delayed while another run takes the lease.

use libtest_mimic::Failed;

use crate::{
    life::fine,
    person::{FIRST, SECOND},
    schedule::{Fault, Gesture, Schedule, Strike},
    search::played,
};

/// Delay of the write, in seconds.
const SLOW: u8 = 3;

/// Simulates a run whose approval is withdrawn for some seconds. Before that, one of two controllers takes the lease, and its write of
/// lease and approval is delayed by [`SLOW`]. The other controller sees all changes two seconds late and gives the lease to a run that was
/// created meanwhile. The approval is set again before the delayed write takes effect. The write takes effect before the other run has a
/// plan, which would supersede the first one's.
fn life(seed: u64, waits: f64, slow: &[(u32, Fault)]) -> Schedule {
    let second = Some(u8::try_from(num(waits + 4.4)).unwrap());
    let life = Schedule::of(seed)
        .with(|s| (s.two, s.objects, s.rival, s.second) = (true, 20, true, second));
    let life = life
        .waits(3_000, Gesture::Approve)
        .waits(3_500, Gesture::Withdraw)
        .waits(5_700, Gesture::Approve);
    let life = life.strike(num((waits + 2.5) * 1_000.0), Strike::LagOf(1, 2, 9));
    Schedule {
        faults: slow.to_vec(),
        ..life
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "times of a life are small"
)]
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
        let waits = first
            .at(&[&format!("=> {FIRST}@"), "Some(AwaitingApproval)"])
            .unwrap();
        // The write of the lease follows on the approval.
        let plain = played(&life(seed, waits, &[]), true);
        let approved = plain.at(&["alice: Approve"]).unwrap();
        let (taken, _) = plain
            .line(approved, |line| line.contains("controller0: POST leases/"))
            .unwrap();
        let is_record = |line: &str| {
            line.contains("controller0: PATCH") && line.contains(&format!("/{FIRST}/status"))
        };
        let (_, record) = plain.line(taken, is_record).unwrap();
        let number = record
            .split_once('#')
            .unwrap()
            .1
            .split_whitespace()
            .next()
            .unwrap()
            .parse()
            .unwrap();
        let schedule = life(seed, waits, &[(number, Fault::Slow(SLOW))]);
        let report = fine(&schedule)?;
        let of = |run: &str, what: &str| report.at(&[&format!("=> {run}@"), what]);
        let landed = report.at(&["<- Slow"]).unwrap() + f64::from(SLOW);
        let (one, two) = (of(FIRST, "claim=true"), of(SECOND, "claim=true"));
        // Everything that the write tests is unchanged, except for the count.
        let again = report
            .line(approved + 1.0, |line| line.contains("alice: Approve"))
            .map(|(at, _)| at);
        let meanwhile = [of(SECOND, "a1 open"), again]
            .into_iter()
            .all(|at| at.is_some_and(|at| at < landed));
        if !meanwhile || two.is_none_or(|two| two < landed) {
            return Err(report.failed(
                "no run took the lease while its record was on its way",
                &schedule,
            ));
        }
        if one.zip(two).is_none_or(|(one, two)| one < two) {
            return Err(report.failed("both had it", &schedule));
        }
        lives += 1;
    }
    println!("sim: {lives} records of a lease came too late");
    Ok(())
}
