//! Applies that are stopped, and applies that wait for a lock.

use std::time::Duration;

use crate::common::{GATE, STORED, UNLOCKED, start, start_with};
use crds::{Changed, FailureClass, Phase, RunResult, names, reason};
use serde_json::json;

#[tokio::test]
async fn repeated_stops_send_one_interrupt() {
    let apply = format!(
        "trap 'echo sigint >> $LEDGER' INT; echo ready >> $LEDGER; {GATE}; echo ended >> $LEDGER; exit 1"
    );
    let mut a = start(&json!({}), &[("APPLY", &apply)]);
    a.until_ran("ready").await;
    a.stop.send(()).unwrap();
    a.until_ran("sigint").await;
    a.api.annotate(names::CANCEL, "stop");
    tokio::time::sleep(Duration::from_millis(100)).await;
    a.stop.send(()).unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    a.open();
    let failure = a
        .fails(FailureClass::Interrupted, reason::APPLY_INTERRUPTED)
        .await;
    assert_eq!(
        (a.ran("sigint"), a.ran("ended")),
        (1, 1),
        "{:?}",
        a.ledger()
    );
    let status = a.api.status();
    assert_eq!(
        failure.changes,
        Changed::Unknown,
        "it had begun one resource and said nothing of its end"
    );
    assert_eq!(
        (status.phase, status.result),
        (Some(Phase::Failed), Some(RunResult::Failed))
    );
    assert!(
        status
            .message
            .unwrap()
            .contains("it is not known what was changed")
    );
}

#[tokio::test]
async fn interrupted_apply_that_succeeds_is_applied() {
    let apply = format!("trap '' INT; echo ready >> $LEDGER; {GATE}");
    let mut a = start(&json!({}), &[("APPLY", &apply)]);
    a.until_ran("ready").await;
    a.api.annotate(names::CANCEL, "stop");
    tokio::time::sleep(Duration::from_millis(200)).await;
    a.open();
    assert_eq!(a.ends(0).await.result, Some(RunResult::Applied));
}

/// A tool that is refused the lock until the gate is opened.
const LOCKED: &str = r#"if [ ! -e $LEDGER.open ]; then
printf '%s\n' '{"@message":"Error","type":"diagnostic","diagnostic":{"severity":"error","summary":"Error acquiring the state lock","detail":"Lock Info:\n  ID:        l1\n  Who:       carol@laptop\n"}}'
exit 1
fi"#;

#[tokio::test]
async fn apply_waits_for_a_lock_and_keeps_its_plan() {
    let mut a = start(&json!({}), &[("BEFORE_APPLY", LOCKED)]);
    a.api
        .until("a lock that is named", |s| {
            s.state_lock
                .as_ref()
                .is_some_and(|lock| lock.who == "carol@laptop")
        })
        .await;
    let waits = a.api.status();
    assert_eq!(waits.phase, Some(Phase::Apply));
    assert!(
        waits
            .message
            .unwrap()
            .starts_with("apply waits for the state, which is locked by carol@laptop")
    );
    a.open();
    let status = a.ends(0).await;
    assert_eq!(
        (status.result, status.state_lock, a.ran("plan")),
        (Some(RunResult::Applied), None, 1)
    );
    let steps: Vec<_> = status
        .steps
        .iter()
        .filter(|s| s.name == "apply")
        .map(|s| s.exit_code)
        .collect();
    assert_eq!(steps, [Some(0)], "tries of one step");
}

#[tokio::test]
async fn lock_of_a_state_that_does_not_exist_is_left_to_a_person() {
    // The words of the kubernetes backend: both commands open the state, and lock it while they create it.
    let refused = |heading: &str| {
        let told = format!(
            "{heading}: the state is already locked by another tofu client\\nLock Info:\\n  ID:        l1\\n  Who:       pawl@gone-a1\\n"
        );
        format!(
            r#"if [ ! -e $LEDGER.open ]; then
printf '%s\n' '{{"@message":"Error","type":"diagnostic","diagnostic":{{"severity":"error","summary":"{told}","detail":""}}}}'
exit 1
fi"#
        )
    };
    let init =
        r#"echo '{"backend":{"type":"kubernetes","config":{}}}' > .terraform/terraform.tfstate"#;
    let init = format!("{init}\n{}", refused("Error loading state"));
    let unlock = refused("Failed to load state");
    let mut a = start(&json!({}), &[("INIT", &init), ("UNLOCK", &unlock)]);
    a.api
        .until("a lock that is named", |s| s.state_lock.is_some())
        .await;
    let release = json!({"id": "l1", "holder": "team/gone, attempt 1"});
    a.api
        .change(|run| run["status"]["lockRelease"] = release.clone());
    a.until_said("a person has to remove the lock in the backend")
        .await;
    assert_eq!(a.ran("force-unlock"), 1);
    a.open();
    assert_eq!(a.ends(0).await.result, Some(RunResult::Applied));
}

#[tokio::test]
async fn apply_without_the_lock_names_its_holder() {
    let mut a = start(
        &json!({"timeouts": {"apply": "3s"}}),
        &[("BEFORE_APPLY", LOCKED)],
    );
    let failure = a
        .fails(FailureClass::StateLocked, reason::STATE_LOCKED)
        .await;
    assert!(
        failure
            .message
            .contains("apply failed: the state is locked by carol@laptop"),
        "{}",
        failure.message
    );
    assert_eq!(
        (failure.changes, a.api.status().result),
        (Changed::None, Some(RunResult::Failed))
    );
}

#[tokio::test]
async fn refused_client_is_no_holder() {
    // The server's refusal names the refused client.
    let init = r#"echo '{"backend":{"type":"pg","config":{"conn_str":"postgres://state/x"}}}' > .terraform/terraform.tfstate"#;
    // After more than half of the timeout there is no further wait.
    let late = format!("sleep 6.5\n{LOCKED}");
    let mut a = start(
        &json!({"timeouts": {"apply": "12s"}}),
        &[("INIT", init), ("BEFORE_APPLY", &late)],
    );
    let failure = a
        .fails(FailureClass::StateLocked, reason::STATE_LOCKED)
        .await;
    assert!(
        failure.message.contains("its backend does not say by whom")
            && !failure.message.contains("carol"),
        "{}",
        failure.message
    );
}

#[tokio::test]
async fn deadline_in_a_wait_for_a_lock_names_its_holder() {
    // The first call is refused the lock. The second waits inside the tool, and prints nothing of a lock when it is stopped.
    let plan = format!(
        "if [ -e $LEDGER.refused ]; then trap 'exit 1' INT; while :; do sleep 0.05; done; fi\ntouch $LEDGER.refused\n{LOCKED}"
    );
    let mut a = start(&json!({"timeouts": {"plan": "8s"}}), &[("PLAN", &plan)]);
    let failure = a
        .fails(FailureClass::StateLocked, reason::STATE_LOCKED)
        .await;
    assert!(
        failure
            .message
            .contains("the state is locked by carol@laptop"),
        "{}",
        failure.message
    );
}

#[tokio::test]
async fn overwritten_state_is_indeterminate() {
    let other = STORED.replace("\"name\":\"b\"", "\"name\":\"of_another\"");
    let mut a = start(&json!({}), &[("INIT", UNLOCKED), ("STATE", &other)]);
    a.end().await;
    let status = a.api.status();
    let failure = status.failure.unwrap();
    assert_eq!(
        (status.result, failure.reason.as_str(), failure.changes),
        (
            Some(RunResult::Indeterminate),
            reason::STATE_OVERWRITTEN,
            Changed::Some
        )
    );
    assert_eq!(status.journal.unwrap().not_recorded, ["a.b"]);
    // The state that the apply wrote is gone.
    let mut a = start(&json!({}), &[("INIT", UNLOCKED), ("STATE", "true")]);
    a.end().await;
    let failure = a.api.status().failure.unwrap();
    assert_eq!(failure.reason, reason::STATE_OVERWRITTEN);
    assert!(failure.message.contains("there is no state"), "{failure:?}");
    let mut a = start(&json!({}), &[("INIT", UNLOCKED), ("STATE", STORED)]);
    assert_eq!(a.ends(0).await.result, Some(RunResult::Applied));
}

#[tokio::test]
async fn state_that_cannot_be_read_back_is_told() {
    // Only after the apply, and again or once.
    let fails = |times: u32| {
        format!(
            "if grep -q '^apply' $LEDGER && [ $(grep -c refused $LEDGER) -lt {times} ]; then echo refused >> $LEDGER; exit 1; fi\n{STORED}"
        )
    };
    let mut a = start(&json!({}), &[("INIT", UNLOCKED), ("STATE", &fails(9))]);
    let status = a.ends(0).await;
    assert_eq!(status.result, Some(RunResult::Applied));
    let message = status.message.unwrap();
    assert!(message.contains("the state was not read back"), "{message}");
    let mut a = start(&json!({}), &[("INIT", UNLOCKED), ("STATE", &fails(1))]);
    let message = a.ends(0).await.message.unwrap();
    assert!(!message.contains("read back"), "{message}");
    assert_eq!(a.ran("refused"), 1, "{:?}", a.ledger());
}

#[tokio::test]
async fn providers_are_killed_and_then_the_tool() {
    // The tool waits for a hanging provider. Once the provider is killed, it saves its state and ends.
    let hangs = "trap : INT; echo ready >> $LEDGER; sh -c 'trap \"\" INT; sleep 600'; echo saved >> $LEDGER; exit 1";
    let mut a = start_with(&json!({}), &[("APPLY", hangs)], |s, _| {
        s.grace = Duration::from_secs(9);
    });
    a.until_ran("ready").await;
    a.stop.send(()).unwrap();
    assert_eq!(a.end().await, 1);
    assert_eq!(a.ran("saved"), 1, "{:?}", a.ledger());
    // A tool that does not end even then.
    let env = [("APPLY", "trap '' INT; while :; do sleep 0.1; done")];
    let mut a = start_with(&json!({}), &env, |s, _| s.grace = Duration::from_secs(9));
    a.until_ran("apply").await;
    // `driver::deadlines` tests, without a clock, that this happens before the end of the pod's grace period.
    a.stop.send(()).unwrap();
    assert_eq!(
        a.fails(FailureClass::Interrupted, reason::APPLY_INTERRUPTED)
            .await
            .changes,
        Changed::Unknown
    );
}
