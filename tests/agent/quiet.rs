//! A silent tool: the status reports it once, and resets it at the next activity. The real driver and real processes, a scripted tool, an
//! in-memory run.

use std::time::Duration;

use crate::{
    common::{Attempt, GATE, manual, start_with},
    memory_api::MemoryApi,
};
use crds::{Changed, FailureClass, Phase, RunResult, TerraformRunStatus, reason};
use runner_agent::settings::Settings;
use serde_json::{Value, json};

const HEARTBEAT: &str = r#"echo '{"@message":"a.b: Still creating... [10s elapsed]","type":"apply_progress","hook":{"resource":{"addr":"a.b"},"action":"create"}}'"#;

fn impatient(settings: &mut Settings, _: &MemoryApi) {
    settings.stall_after = Duration::from_secs(1);
    settings.progress_every = Duration::from_millis(100);
}

fn is_quiet(status: &TerraformRunStatus) -> bool {
    status
        .progress
        .as_ref()
        .is_some_and(|progress| progress.quiet_since.is_some())
}

/// All values written to `progress`, in order; null where it was removed.
fn written(a: &Attempt) -> Vec<Value> {
    let state = a.api.state.lock().unwrap();
    let operations = state
        .writes
        .iter()
        .flat_map(|write| write.as_array().unwrap());
    operations
        .filter(|o| o["path"] == "/status/progress")
        .map(|o| o["value"].clone())
        .collect()
}

#[tokio::test]
async fn silence_is_reported_once_and_cleared() {
    // Heartbeats, then a line, and then the end before it is silent for long again.
    let apply =
        format!("until [ -e $LEDGER.heard ]; do {HEARTBEAT}; sleep 0.1; done; echo a word; {GATE}");
    let after = 4;
    let mut a = start_with(
        &json!({"timeouts": {"apply": "1h"}}),
        &[("APPLY", &apply)],
        |settings, api| {
            impatient(settings, api);
            settings.stall_after = Duration::from_secs(after);
        },
    );
    a.api.until("silence", is_quiet).await;
    let (status, seen) = (a.api.status(), jiff::Timestamp::now());
    std::fs::write(a.dir.path().join("ledger.heard"), "").unwrap();
    let message = status.message.unwrap();
    assert!(
        message.starts_with("apply has printed nothing new since ")
            && message.contains(", at a.b; "),
        "{message}"
    );
    assert!(message.contains("it ends at the deadline at "), "{message}");
    let progress = status.progress.unwrap();
    assert_eq!(
        (progress.current.as_deref(), progress.done),
        (Some("a.b"), 0),
        "what it said before is kept"
    );
    let claimed = status.claim.unwrap().at.0;
    let since = progress.quiet_since.unwrap().0;
    // Counted from the claim and not from a heartbeat; both are in whole seconds.
    let lasted = seen.duration_since(since).as_secs();
    let least = i64::try_from(after).unwrap() - 1;
    assert!(
        since >= claimed && lasted >= least,
        "{since} after a claim at {claimed}, for {lasted} s"
    );
    a.api.until("its end", |s| !is_quiet(s)).await;
    let status = a.api.status();
    assert_eq!(
        (status.phase, status.message.as_deref()),
        (Some(Phase::Apply), Some("apply runs"))
    );
    a.open();
    assert_eq!(a.end().await, 0);
    let quiet: Vec<bool> = written(&a)
        .iter()
        .map(|progress| !progress["quietSince"].is_null())
        .collect();
    // One write for the start, one for silence, one for its end; then the end of the run.
    assert_eq!(quiet.iter().filter(|quiet| **quiet).count(), 1, "{quiet:?}");
    assert_eq!(quiet, [false, true, false, false], "{:#?}", written(&a));
    assert!(!is_quiet(&a.api.status()));
}

#[tokio::test]
async fn hanging_plan_is_reported_and_ends_at_its_deadline() {
    // Like a provider with expired credentials: it reports the error and retries forever.
    let plan = "echo 'ExpiredToken: the token is expired' >&2; trap 'echo sigint >> $LEDGER' INT; while :; do sleep 0.05; done";
    let mut a = start_with(
        &json!({"timeouts": {"plan": "8s"}}),
        &[("PLAN", plan)],
        |settings, api| {
            impatient(settings, api);
            settings.grace = Duration::from_secs(6);
        },
    );
    a.api.until("silence", is_quiet).await;
    let message = a.api.status().message.unwrap();
    assert!(
        message.starts_with("plan has printed nothing new since ")
            && message.contains("at the deadline at"),
        "{message}"
    );
    let failure = a
        .fails(FailureClass::Timeout, reason::DEADLINE_EXCEEDED)
        .await;
    let status = a.api.status();
    assert_eq!(
        (failure.changes, status.result),
        (Changed::None, Some(RunResult::Failed))
    );
    for part in [
        "phase Plan passed its deadline after ",
        "; nothing had happened for ",
        "ExpiredToken",
    ] {
        assert!(
            failure.message.contains(part),
            "{part} in {}",
            failure.message
        );
    }
    assert!(!is_quiet(&status) && !status.message.unwrap().contains("nothing new"));
    assert_eq!((a.ran("sigint"), a.ran("apply")), (1, 0));
    assert_eq!(
        written(&a)
            .iter()
            .filter(|progress| !progress["quietSince"].is_null())
            .count(),
        1
    );
}

#[tokio::test]
async fn interrupted_apply_announces_the_kill() {
    let apply = "trap : INT; echo ready >> $LEDGER; sh -c 'trap \"\" INT; sleep 600'; echo saved >> $LEDGER; exit 1";
    let mut a = start_with(&json!({}), &[("APPLY", apply)], |settings, api| {
        impatient(settings, api);
        settings.grace = Duration::from_secs(18);
    });
    a.until_ran("ready").await;
    a.stop.send(()).unwrap();
    let says = |s: &TerraformRunStatus| {
        s.message.as_deref().is_some_and(|m| {
            m.contains("it was asked to stop, and the blocking process is killed at ")
        })
    };
    a.api.until("that it is being ended", says).await;
    assert_eq!(a.end().await, 1);
    assert_eq!(a.ran("saved"), 1, "the tool itself was not killed");
    assert_eq!(
        a.api.status().failure.unwrap().reason,
        reason::APPLY_INTERRUPTED
    );
}

#[tokio::test]
async fn lost_report_of_silence_is_retried() {
    let mut a = start_with(&json!({}), &[("APPLY", GATE)], |settings, api| {
        impatient(settings, api);
        settings.stall_after = Duration::from_secs(3);
    });
    a.until_ran("apply").await;
    a.api.set_away(true);
    tokio::time::sleep(Duration::from_millis(3_600)).await;
    assert!(!is_quiet(&a.api.status()));
    a.api.set_away(false);
    a.api.until("silence", is_quiet).await;
    a.open();
    assert_eq!(a.end().await, 0);
}

#[tokio::test]
async fn waiting_plan_is_not_silent() {
    let mut a = start_with(&manual(), &[], |settings, _| {
        settings.stall_after = Duration::from_millis(200);
    });
    a.waits().await;
    let writes = a.api.writes();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!is_quiet(&a.api.status()));
    assert_eq!(
        a.api.writes(),
        writes,
        "{:#?}",
        a.api.state.lock().unwrap().writes
    );
    a.stop.send(()).unwrap();
    a.end().await;
}
