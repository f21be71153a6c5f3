//! An agent beside another version: the real driver on a run with words and fields that this version does not know, and under a
//! definition that does not know this version's (`design/0014-upgrades.md`).

use crate::{
    common::{PATIENCE, start},
    memory_api::{Fault, MemoryApi},
};
use crds::{FailureClass, Phase, RunResult};
use harness::wait;
use serde_json::json;

fn gets(api: &MemoryApi) -> u32 {
    api.state.lock().unwrap().gets
}

#[tokio::test]
async fn a_run_with_a_word_of_a_newer_version_is_not_adopted_until_the_word_is_gone() {
    for (pointer, word, known) in [
        ("/status/phase", "Paused", "Pending"),
        ("/spec/operation", "Refresh", "Apply"),
        ("/spec/approval/mode", "TwoPeople", "Automatic"),
        ("/spec/tool", "", ""),
    ] {
        let put = |api: &MemoryApi, to: &str| {
            api.change(|run| match pointer {
                "/spec/tool" if to.is_empty() => run["spec"]["tool"] = json!({"name": "Another"}),
                "/spec/tool" => run["spec"]["tool"] = json!({}),
                _ => {
                    let (parent, field) = pointer.rsplit_once('/').unwrap();
                    run.pointer_mut(parent).unwrap()[field] = to.into();
                }
            });
        };
        let mut a = start(&json!({}), &[], |_, api| put(api, word));
        let looked = async || Ok(gets(&a.api) >= 4);
        wait::until(format!("{pointer}: it looks again"), PATIENCE, looked).await.unwrap();
        assert_eq!((a.api.writes(), a.ledger().len()), (0, 0), "{pointer}");
        assert!(a.api.status().adopted.is_none(), "{pointer}");
        put(&a.api, if pointer == "/spec/tool" { "known" } else { known });
        assert_eq!(a.end().await, 0, "{pointer}");
        assert_eq!(a.api.status().result, Some(RunResult::Applied), "{pointer}");
    }
}

#[tokio::test]
async fn nothing_is_claimed_behind_a_word_of_a_newer_version() {
    let mut a = start(&json!({"approval": {"mode": "Manual"}}), &[], |_, _| {});
    a.waits().await;
    a.api.change(|run| run["status"]["phase"] = "Paused".into());
    a.api.approve();
    assert_eq!(a.end().await, 1);
    assert_eq!((a.ran("apply"), a.api.status().claim), (0, None));
    assert_eq!(a.api.state.lock().unwrap().object["status"]["phase"], "Paused", "it is written by nobody else");
    assert!(a.message().is_none(), "an attempt that is in other hands says nothing of its run");
}

#[tokio::test]
async fn what_a_newer_version_wrote_is_there_after_every_write() {
    let scan =
        json!({"name": "scan", "attempt": 0, "startedAt": "2026-11-21T10:00:00Z", "exitCode": 0, "newer": {"found": [1, 2]}});
    let line = "10:00:00  Scan  0.1s  a phase of a newer version";
    let mut a = start(&json!({"newer": "x"}), &[], |_, api| {
        api.change(|run| {
            let status = &mut run["status"];
            status["newer"] = json!({"word": "x", "list": [{"a": 1}]});
            status["attempt"]["newer"] = "x".into();
            status["steps"] = json!([scan]);
            status["history"] = json!([line]);
        });
    });
    assert_eq!(a.ends(0).await.result, Some(RunResult::Applied));
    let run = a.api.state.lock().unwrap().object.clone();
    for (pointer, wanted) in [
        ("/spec/newer", json!("x")),
        ("/status/newer", json!({"word": "x", "list": [{"a": 1}]})),
        ("/status/attempt/newer", json!("x")),
        ("/status/steps/0", scan),
        ("/status/history/0", json!(line)),
    ] {
        assert_eq!(run.pointer(pointer), Some(&wanted), "{pointer}");
    }
    // And no write of its own named any of it but the lists, which are written whole.
    let writes = a.api.state.lock().unwrap().writes.clone();
    let paths: Vec<&str> = writes.iter().flat_map(|w| w.as_array().unwrap()).filter_map(|o| o["path"].as_str()).collect();
    assert!(paths.iter().all(|path| !path.contains("newer") && *path != "/status/attempt" && *path != "/status"), "{paths:?}");
}

/// What an agent writes and the first definitions did not have.
const YOUNGER: &[&str] = &[
    "/status/adopted/speaks",
    "/status/adopted/nodeName",
    "/status/plan/stateKey",
    "/status/plan/changes",
    "/status/plan/platform",
    "/status/failure/diagnostics",
    "/status/failedHook",
    "/status/history",
    "/status/journal",
    "/status/nextStep",
    "/status/progress",
    "/status/stateLock",
    "/status/steps",
    "/status/unconfined",
];

/// The chart was not upgraded and the image was, or the definition was put back: what is pruned from a write has landed all the same.
#[tokio::test]
async fn what_an_older_definition_prunes_keeps_no_run_from_its_end() {
    // Each write is answered; each answer is lost, so that the agent reads what became of it.
    for fault in [None, Some(Fault::LandedLost)] {
        for (mode, apply, code, result) in [
            ("Automatic", "", 0, RunResult::Applied),
            ("Manual", "", 0, RunResult::Applied),
            ("Automatic", "exit 1", 1, RunResult::Failed),
        ] {
            let mut a = start(&json!({"approval": {"mode": mode}}), &[("APPLY", apply)], |_, api| {
                api.state.lock().unwrap().pruned = YOUNGER;
                api.fail(&[fault, None, fault, None, fault, None, fault, None, fault, None, fault, None, fault]);
            });
            if mode == "Manual" {
                a.api.until("the hold", |s| s.phase == Some(Phase::AwaitingApproval)).await;
                a.api.approve();
            }
            let what = format!("{fault:?} {mode} {apply}");
            assert_eq!(a.end().await, code, "{what}: {:#?}", a.api.status());
            let status = a.api.status();
            assert_eq!((status.result, a.ran("apply"), a.ran("plan")), (Some(result), 1, 1), "{what}");
            assert_eq!(status.failure.map(|failure| failure.class), (code == 1).then_some(FailureClass::Configuration), "{what}");
            assert!(status.history.is_empty() && status.steps.is_empty() && status.plan.unwrap().state_key.is_none(), "{what}");
            assert_eq!(a.message().unwrap().result, Some(result), "{what}: its kubelet knows as well");
        }
    }
}
