//! An attempt while the API is overloaded, down or refuses its requests.

use std::time::Duration;

use crate::{
    common::{manual, start, start_with},
    memory_api::Fault,
};
use crds::{Phase, RunResult, names};
use serde_json::json;

#[tokio::test]
async fn failed_api_calls_change_no_decision() {
    for fault in [
        Fault::LandedLost,
        Fault::Lost,
        Fault::Refused(422),
        Fault::Refused(403),
        Fault::Refused(409),
        Fault::Refused(500),
    ] {
        for mode in ["Manual", "Automatic"] {
            let mut a = start_with(&json!({"approval": {"mode": mode}}), &[], |_, api| {
                api.fail(&[
                    Some(fault),
                    None,
                    Some(fault),
                    Some(fault),
                    None,
                    Some(fault),
                    None,
                    Some(fault),
                    Some(fault),
                ]);
            });
            if mode == "Manual" {
                a.waits().await;
                a.api.fail(&[Some(fault)]);
                a.api.approve();
            }
            assert_eq!(a.end().await, 0, "{fault:?} {mode}");
            assert_eq!(
                a.api.status().result,
                Some(RunResult::Applied),
                "{fault:?} {mode}"
            );
            assert_eq!(
                a.ledger(),
                ["init", "plan", "show", "show", "apply"],
                "{fault:?} {mode}"
            );
            assert_eq!(a.api.writes(), 6, "each landed once: {fault:?} {mode}");
        }
    }
}

#[tokio::test]
async fn retry_after_is_obeyed_until_the_claim() {
    let begun = std::time::Instant::now();
    let mut a = start_with(&manual(), &[], |_, api| api.fail(&[Some(Fault::Busy(1))]));
    a.waits().await;
    assert!(begun.elapsed() >= Duration::from_secs(1));
    a.api
        .fail(&[None, Some(Fault::Busy(3600)), None, Some(Fault::Busy(3600))]);
    let approved = std::time::Instant::now();
    a.api.approve();
    assert_eq!(a.ends(0).await.result, Some(RunResult::Applied));
    assert!(
        approved.elapsed() < runner_agent::ports::ApiError::LONGEST_WAIT,
        "what is claimed does not wait"
    );
}

#[tokio::test]
async fn apply_ends_while_the_api_is_down() {
    let mut a = start(&json!({}), &[("APPLY", "sleep 0.5")]);
    a.until_ran("apply").await;
    a.api.set_away(true);
    let api = a.api.clone();
    let back = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        assert_eq!(api.status().phase, Some(Phase::Apply));
        api.set_away(false);
    });
    assert_eq!(a.end().await, 0);
    back.await.unwrap();
    assert_eq!(a.api.status().result, Some(RunResult::Applied));
    assert_eq!(a.ran("apply"), 1);
}

/// Burrito 11.7: the result of an apply was written once, without a retry; if it was lost, the apply was repeated.
#[tokio::test]
async fn undelivered_result_is_in_the_termination_message() {
    let apply = "trap '' INT; echo ready >> $LEDGER; sleep 0.3";
    let mut a = start_with(&json!({}), &[("APPLY", apply)], |s, _| {
        s.grace = Duration::from_secs(3);
    });
    a.until_ran("ready").await;
    a.api.set_away(true);
    tokio::time::sleep(Duration::from_millis(600)).await;
    a.stop.send(()).unwrap();
    assert_eq!(a.end().await, 0);
    let message = a.message().unwrap();
    assert_eq!(
        (message.result, message.nonce.as_str()),
        (Some(RunResult::Applied), a.settings.nonce.as_str())
    );
    assert_eq!(a.api.status().phase, Some(Phase::Apply));
}

#[tokio::test]
async fn fenced_agent_stops_without_a_write() {
    let hang = "trap 'echo sigint >> $LEDGER; exit 1' INT; echo ready >> $LEDGER; while :; do sleep 0.05; done";
    let mut a = start(&json!({}), &[("PLAN", hang)]);
    a.until_ran("ready").await;
    let writes = a.api.writes();
    a.api
        .change(|o| o["status"]["attempt"]["open"] = json!(false));
    assert_eq!(a.end().await, 1);
    assert_eq!(
        (a.ran("sigint"), a.ran("apply"), a.api.writes()),
        (1, 0, writes)
    );
    // During the hold the attempt is given to another pod.
    let mut a = start(&manual(), &[]);
    a.waits().await;
    let writes = a.api.writes();
    a.api.change(|o| {
        o["status"]["attempt"] =
            json!({"number": 2, "podName": "vpc-xxxxx-a2", "podUID": "pod-2", "open": true});
    });
    assert_eq!(a.end().await, 1);
    assert_eq!(a.api.writes(), writes);
}

#[tokio::test]
async fn pod_waits_silently_until_its_attempt_is_recorded() {
    type Change = fn(&mut serde_json::Value);
    let before: [(&str, Change); 3] = [
        ("no attempt", |o| o["status"] = json!({"phase": "Pending"})),
        ("an older one", |o| {
            o["status"]["attempt"] =
                json!({"number": 0, "podName": "p", "podUID": "p0", "open": false, "tries": 1});
        }),
        ("its own without a pod", |o| {
            o["status"]["attempt"]["podUID"] = json!(null);
        }),
    ];
    let recorded = json!({"number": 1, "podName": "vpc-xxxxx-a1", "podUID": "pod-1", "open": true, "tries": 1});
    for (name, change) in before {
        let mut a = start_with(&json!({}), &[], |_, api| api.change(change));
        while a.api.gets() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!((a.api.writes(), a.ledger().len()), (0, 0), "{name}");
        a.api.change(|o| o["status"]["attempt"] = recorded.clone());
        assert_eq!(a.end().await, 0, "{name}");
        assert_eq!(a.ran("apply"), 1, "{name}");
    }
    // The controller records another pod: this one ends.
    let mut a = start_with(&json!({}), &[], |_, api| api.change(before[0].1));
    let mut others = recorded.clone();
    others["podUID"] = json!("pod-2");
    a.api.change(|o| o["status"]["attempt"] = others);
    assert_eq!(a.end().await, 1);
    assert_eq!((a.api.writes(), a.ledger().len()), (0, 0));
}

#[tokio::test]
async fn attempt_of_another_process_is_not_adopted() {
    type Change = fn(&mut serde_json::Value);
    let changes: [(&str, Change); 6] = [
        ("adopted", |o| {
            o["status"]["adopted"] =
                json!({"attempt": 1, "podUID": "pod-1", "nonce": "f".repeat(32)});
        }),
        ("closed", |o| o["status"]["attempt"]["open"] = json!(false)),
        ("of another pod of that name", |o| {
            o["status"]["attempt"]["podUID"] = json!("other");
        }),
        ("of another run", |o| o["metadata"]["uid"] = json!("other")),
        ("ended", |o| {
            o["status"]["phase"] = json!("Failed");
            o["status"]["result"] = json!("Failed");
        }),
        ("cancelled", |o| {
            o["metadata"]["annotations"][names::CANCEL] = json!("");
        }),
    ];
    for (name, change) in changes {
        let mut a = start_with(&json!({}), &[], |_, api| api.change(change));
        assert_eq!(a.end().await, 1, "{name}");
        assert_eq!((a.api.writes(), a.ledger().len()), (0, 0), "{name}");
    }
}
