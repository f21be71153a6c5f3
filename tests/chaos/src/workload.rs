//! Runs of many kinds, one after the other, each struck at least once.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Result;
use crds::{TerraformRun, TerraformRunStatus};
use kube::api::PostParams;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use serde_json::json;

use super::{
    kinds::Kind,
    lab::{Lab, merge, runner},
    person,
    states::Place,
    strikes::Aim,
};

/// Time limit of a run after its last strike. It covers every wait of Pawl: backoff, and lost pods.
const PATIENCE: Duration = Duration::from_secs(300);
/// Interval between checks of a run, which read the watch's cache and send no requests.
const LOOK: Duration = Duration::from_millis(60);

/// Runs that did not end, each with its status.
pub(super) type Stuck = Vec<(String, String)>;

pub(super) async fn work(lab: Arc<Lab>, seed: u64, number: u64) -> Result<Stuck> {
    let mut random = StdRng::seed_from_u64(seed.wrapping_mul(1_000_003) ^ number);
    let mut stuck = Vec::new();
    let mut nth = 0;
    // Spread the first runs.
    tokio::time::sleep(Duration::from_millis(number * 400)).await;
    while !lab.over.load(Ordering::Relaxed) {
        nth += 1;
        let name = format!("w{number}-{nth}");
        let (run, out_of_memory) = draw(&lab, &name, &mut random)?;
        if lab
            .runs()
            .create(&PostParams::default(), &run)
            .await
            .is_err()
            && !is_there(&lab, &name).await
        {
            continue;
        }
        if let Some(text) = accompany(&lab, &name, out_of_memory, &mut random).await? {
            stuck.push((format!("{}/{name}", lab.namespace), text));
        }
    }
    Ok(stuck)
}

/// Follows a run until it has ended and its attempt is closed. Returns its status otherwise.
async fn accompany(
    lab: &Lab,
    name: &str,
    out_of_memory: bool,
    random: &mut StdRng,
) -> Result<Option<String>> {
    let intent = person::Intent::draw(random);
    let mut aims: Vec<Aim> = (0..random.random_range(1..=3))
        .map(|_| Aim::draw(random))
        .collect();
    let (mut done, mut missing) = (false, 0);
    let mut quiet = Instant::now();
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(run) = lab.run(name) else {
            missing += 1;
            // Deleted, or not in the watch cache yet.
            if missing > 200 {
                if !is_there(lab, name).await {
                    return Ok(None);
                }
                missing = 0;
            }
            continue;
        };
        let status = run.status.clone().unwrap_or_default();
        if status.is_terminal() && status.attempt.as_ref().is_none_or(|attempt| !attempt.open) {
            let reason = status
                .failure
                .map(|failure| failure.reason)
                .unwrap_or_default();
            if out_of_memory && reason == crds::reason::TOOL_KILLED {
                let phase = if status.claim.is_some() {
                    "Apply"
                } else {
                    "Plan"
                };
                lab.record.add(Kind::OutOfMemory, Some(phase.to_owned()));
            }
            lab.keep(name).await;
            return Ok(None);
        }
        if !done {
            done = person::act(lab, &run, intent, random).await;
        }
        if let Some(aim) = aims.last()
            && !lab.over.load(Ordering::Relaxed)
            && aim.strike(lab, &run).await?
        {
            aims.pop();
            quiet = Instant::now();
        }
        if quiet.elapsed() > PATIENCE && lab.over.load(Ordering::Relaxed) {
            return Ok(Some(said(&status)));
        }
    }
}

/// Whether a run is stored. Retries errors, because a run that no task follows would wait for its person forever.
async fn is_there(lab: &Lab, name: &str) -> bool {
    loop {
        match lab.runs().get_opt(name).await {
            Ok(there) => return there.is_some(),
            Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
        }
    }
}

fn said(status: &TerraformRunStatus) -> String {
    format!(
        "it did not end: {:?} {:?} {:?} {:?}",
        status.phase, status.result, status.message, status.attempt
    )
}

/// Draws a run: its tool sleeps at random steps, and its approval is manual or automatic.
fn draw(lab: &Lab, name: &str, random: &mut StdRng) -> Result<(TerraformRun, bool)> {
    let automatic = random.random_bool(0.5);
    let out_of_memory = random.random_bool(0.05);
    let place = Place::draw(random);
    // Some last long enough to send much of their journal before a strike.
    let apply_ms = if random.random_bool(0.2) {
        600..1200
    } else {
        50..500
    };
    let mut commands = json!({
        "init": [{"sleep_ms": random.random_range(0..800)}],
        // It prints everything that plan-time code can read.
        "plan": [{"sleep_ms": random.random_range(0..1500)}, {"exec": ["sh", "-c", "env; cat ./*.tfvars* 2>&1; true"]}],
    });
    if out_of_memory {
        let command = if random.random_bool(0.5) {
            "plan"
        } else {
            "apply"
        };
        commands[command] = json!([{"allocate_mb": 400}]);
    }
    let script = json!({
        "resources": place.resources(name, random.random_range(2..9)), "apply_ms": random.random_range(apply_ms),
        "persist": if random.random_bool(0.7) { "end" } else { "each" },
        "commands": commands,
    });
    let hold = if random.random_bool(0.4) { "0s" } else { "1h" };
    let secret = json!({"secretKeyRef": {"name": "password", "key": "value"}});
    let mut spec = json!({
        "approval": {"mode": if automatic { "Automatic" } else { "Manual" }, "holdFor": hold},
        "variables": [{"name": "password", "valueFrom": secret}],
        "runner": runner(out_of_memory),
        "ttlSecondsAfterFinished": 60,
    });
    merge(&mut spec, &place.spec(lab, name));
    let run = lab.scripted(name, "variable \"password\" {}\n", &script, &spec)?;
    Ok((run, out_of_memory))
}
