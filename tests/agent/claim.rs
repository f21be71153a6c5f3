//! Events between a plan and its claim.

use std::{fs, time::Duration};

use crate::common::{GATE, PATIENCE, manual, start, start_with};
use crds::{FailureClass, Phase, RunResult, names, reason};
use harness::wait;
use serde_json::json;

#[tokio::test]
async fn changed_plan_code_lock_file_or_tool_is_not_applied() {
    type Change = fn(&crate::common::Attempt);
    // Name, reason, change; the message contains the name.
    let changes: [(&str, &str, Change); 4] = [
        ("plan file", reason::CHECKSUM_MISMATCH, |a| {
            fs::write(a.settings.plan_file(), "another plan").unwrap();
        }),
        ("the code", reason::CHECKSUM_MISMATCH, |a| {
            fs::write(a.stack().join("main.tf"), "other").unwrap();
        }),
        ("lock file", reason::CHECKSUM_MISMATCH, |a| {
            fs::write(a.stack().join(".terraform.lock.hcl"), "other").unwrap();
        }),
        ("tool", reason::TOOL_NOT_GENUINE, |a| {
            fs::write(
                a.dir.path().join("tools/opentofu/1.10.6/tofu"),
                "#!/bin/sh\necho evil >> $LEDGER",
            )
            .unwrap();
        }),
    ];
    for (name, why, change) in changes {
        let mut a = start(&manual(), &[]);
        a.waits().await;
        change(&a);
        a.api.approve();
        let failure = a.fails(FailureClass::Integrity, why).await;
        assert!(
            failure.message.contains(name),
            "{name}: {}",
            failure.message
        );
        assert!(
            why != reason::CHECKSUM_MISMATCH || !failure.message.contains("sha256"),
            "{}",
            failure.message
        );
        assert_eq!((a.ran("apply"), a.ran("evil")), (0, 0));
        assert!(a.api.status().claim.is_none());
    }
}

#[tokio::test]
async fn held_plan_reports_a_changed_state() {
    let mut a = start(&manual(), &[]);
    a.api
        .until("the hold", |s| {
            s.next_step
                .as_ref()
                .is_some_and(|step| step.contains("pawl.run/approve="))
        })
        .await;
    let text = "run else/b applied to the same state";
    a.api.change(|o| {
        crate::memory_api::say(
            &mut o["status"],
            "Planned",
            "True",
            reason::STALE_PLAN,
            text,
        );
    });
    a.api
        .until("its message", |s| {
            s.message
                .as_ref()
                .is_some_and(|message| message.ends_with(text))
        })
        .await;
    let status = a.api.status();
    assert!(status.message.unwrap().contains("waits for approval until"));
    assert!(status.next_step.unwrap().ends_with("pawl.run/rerun=true"));
    // An approval is tried nevertheless.
    a.api.approve();
    assert_eq!(a.end().await, 0);
}

#[tokio::test]
async fn processes_of_a_plan_end_with_it() {
    let env = [(
        "PLAN",
        "setsid sh -c 'while :; do echo alive > alive; sleep 0.02; done' >/dev/null 2>&1 &",
    )];
    let mut a = start_with(&manual(), &env, |_, _| {
        // As in a pod, where PID 1 adopts orphans.
        nix::sys::prctl::set_child_subreaper(true).unwrap();
    });
    a.waits().await;
    let file = a.stack().join("alive");
    let _ = fs::remove_file(&file);
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert!(!file.exists(), "it is still there");
    a.api.annotate(names::DENY, "");
    a.end().await;
}

#[tokio::test]
async fn constant_annotations_do_not_delay_the_claim() {
    for mode in ["Manual", "Automatic"] {
        let mut writer = None;
        let mut a = start_with(
            &json!({"approval": {"mode": mode}}),
            &[("APPLY", GATE)],
            |_, api| {
                let api = api.clone();
                // Annotates faster than the API responds, so that the resourceVersion changes during every write.
                writer = Some(tokio::spawn(async move {
                    for n in 0_u64.. {
                        api.annotate("team/busy", &n.to_string());
                        tokio::time::sleep(Duration::from_micros(200)).await;
                    }
                }));
            },
        );
        a.approve_in(mode).await;
        a.until_ran("apply").await;
        let writer = writer.unwrap();
        assert!(!writer.is_finished(), "it has annotated all the time");
        writer.abort();
        a.open();
        assert_eq!(a.end().await, 0, "{mode}");
        assert_eq!(
            (a.api.status().result, a.ran("apply")),
            (Some(RunResult::Applied), 1),
            "{mode}"
        );
    }
}

#[tokio::test]
async fn cancel_or_deny_during_the_claim_refuses_it() {
    for (mode, name) in [
        ("Manual", names::CANCEL),
        ("Manual", names::DENY),
        ("Automatic", names::CANCEL),
        ("Automatic", names::DENY),
    ] {
        let mut a = start_with(&json!({"approval": {"mode": mode}}), &[], |_, api| {
            api.state.lock().unwrap().overtaken_by = Some(name);
        });
        a.approve_in(mode).await;
        let claims = async || Ok(a.api.state.lock().unwrap().overtaken.is_some());
        wait::until(format!("{mode} {name}: it claims"), PATIENCE, claims)
            .await
            .unwrap();
        let result = if name == names::DENY {
            RunResult::Rejected
        } else {
            RunResult::Canceled
        };
        a.end().await;
        let status = a.api.status();
        assert_eq!(
            a.api.state.lock().unwrap().overtaken,
            Some(false),
            "{mode} {name}: the claim landed"
        );
        assert_eq!(
            (status.result, status.claim, a.ran("apply")),
            (Some(result), None, 0),
            "{mode} {name}"
        );
    }
}

#[tokio::test]
async fn second_process_of_the_pod_does_not_apply() {
    let a = start(&json!({}), &[("PLAN", "sleep 0.5")]);
    a.until_ran("plan").await;
    // The kubelet restarts the container: same pod, another nonce.
    let again = runner_agent::settings::Settings {
        nonce: runner_agent::settings::nonce(),
        ..(*a.settings).clone()
    };
    let again = std::sync::Arc::new(again);
    let log = runner_agent::process::Log::to(std::io::sink());
    let host = std::sync::Arc::new(runner_agent::host::Pod::new(again.clone()));
    let work = runner_agent::phases::PhaseRunner::new(
        again.clone(),
        host,
        runner_agent::process::Children::default(),
        log,
    );
    let (_stop, stops) = tokio::sync::mpsc::unbounded_channel();
    let driver = runner_agent::driver::Driver::new(
        std::sync::Arc::new(a.api.clone()),
        std::sync::Arc::new(work),
        runner_agent::ports::SystemClock,
        again,
    );
    assert_eq!(driver.run(stops).await, 1);
    let mut a = a;
    assert_eq!(a.end().await, 0);
    assert_eq!(a.ran("apply"), 1);
}

#[tokio::test]
async fn stop_before_the_claim_leaves_the_run_open() {
    let mut a = start(&manual(), &[]);
    a.waits().await;
    a.stop.send(()).unwrap();
    a.fails(FailureClass::Interrupted, reason::TERMINATED).await;
    let status = a.api.status();
    assert_eq!(
        (status.phase, status.result),
        (Some(Phase::AwaitingApproval), None)
    );
    assert_eq!(a.message().unwrap().result, None);
}

#[tokio::test]
async fn automatic_run_without_the_lease_ends_its_attempt() {
    let mut a = start_with(&json!({}), &[], |_, api| {
        api.behind(Some("else/b, in place 1"));
    });
    let status = a.ends(0).await;
    assert_eq!(
        (status.phase, status.result),
        (Some(Phase::Plan), None),
        "the controller goes on from here"
    );
    assert!(status.claim.is_none() && status.failure.is_none() && a.ran("apply") == 0);
    let message = status.message.unwrap();
    assert!(
        message.contains("behind else/b, in place 1; it plans anew when it is its turn"),
        "{message}"
    );
    let said = a.message().unwrap();
    assert!(
        said.result.is_none() && said.failure.is_none(),
        "nothing failed: {said:?}"
    );
}

#[tokio::test]
async fn approved_plan_waits_for_the_lease_and_names_its_holder() {
    let manual = json!({"approval": {"mode": "Manual", "expiresAfter": "5s"}});
    let mut a = start_with(&manual, &[], |_, api| api.behind(Some("else/b")));
    a.approve().await;
    let says = |s: &crds::TerraformRunStatus| {
        s.message.as_deref().is_some_and(|m| {
            m.contains("is approved; waits for its turn on the state behind else/b")
        })
    };
    a.api
        .until("the message of a run that waits for its turn", says)
        .await;
    // A recorded approval does not expire.
    tokio::time::sleep(Duration::from_millis(5500)).await;
    assert_eq!(
        (a.ran("apply"), a.api.status().phase),
        (0, Some(Phase::AwaitingApproval))
    );
    a.api.behind(None);
    assert_eq!(a.end().await, 0);
    assert_eq!(
        (a.api.status().result, a.ran("apply"), a.ran("plan")),
        (Some(RunResult::Applied), 1, 1)
    );
}

#[tokio::test]
async fn cancel_and_deny_end_a_wait_for_the_lease() {
    for (annotation, result) in [
        (names::CANCEL, RunResult::Canceled),
        (names::DENY, RunResult::Rejected),
    ] {
        let manual = json!({"approval": {"mode": "Manual"}});
        let mut a = start_with(&manual, &[], |_, api| api.behind(Some("else/b")));
        a.approve().await;
        a.api.annotate(annotation, "no");
        a.end().await;
        assert_eq!((a.api.status().result, a.ran("apply")), (Some(result), 0));
    }
}
