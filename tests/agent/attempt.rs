//! Attempts from their adoption to their end: the real driver and real processes, a scripted tool, a run in memory.

use std::{
    fs,
    time::{Duration, Instant},
};

use crate::common::{Fault, GATE, PATIENCE, start};
use crds::{Changed, FailureClass, Phase, RunResult, names, reason};
use runner_agent::settings::PROGRESS_EVERY;
use serde_json::json;

#[tokio::test]
async fn an_automatic_run_is_applied_with_six_writes() {
    let _one = crate::ONE.lock().await;
    let mut a = start(&json!({}), &[], |_, _| {});
    assert_eq!(a.end().await, 0);
    let status = a.api.status();
    assert_eq!((status.phase, status.result), (Some(Phase::Succeeded), Some(RunResult::Applied)));
    assert_eq!(a.ledger(), ["init", "plan", "show", "show", "apply"]);
    assert_eq!(a.api.writes(), 6, "{:#?}", a.api.state.lock().unwrap().writes);
    let plan = status.plan.unwrap();
    assert_eq!((plan.summary.as_str(), plan.tool.as_str()), ("+1 ~0 -0", "OpenTofu 1.10.6"));
    assert_eq!(status.claim.unwrap().checksum, plan.checksum);
    assert_eq!(plan.changes, ["+ a.b"]);
    let phases: Vec<_> = status.history.iter().map(|line| line.split("  ").nth(1).unwrap()).collect();
    assert_eq!(phases, ["Start", "Setup", "Init", "Plan", "Claimed", "Apply"], "{:#?}", status.history);
    let unlocked = "backend http (no lock: others may change the state during the apply), workspace default";
    assert!(status.history[2].ends_with(unlocked), "{}", status.history[2]);
    assert!(
        status.history[1].ends_with("inline, 1 file; OpenTofu 1.10.6, the newest at hand; OpenTofu by default"),
        "{}",
        status.history[1]
    );
    let steps: Vec<_> = status.steps.iter().map(|s| (s.name.as_str(), s.exit_code)).collect();
    assert_eq!(steps, [("init", Some(0)), ("plan", Some(2)), ("show", Some(0)), ("apply", Some(0))]);
    assert!(status.failure.is_none() && status.next_step.is_none() && status.completion_time.is_some());
    assert_eq!(a.message().unwrap().result, Some(RunResult::Applied));
    for line in ["a.b: Plan to create\n", "Terraform will perform", "a.b: Creation complete\n", "pawl: applied +1 ~0 -0\n"] {
        assert!(a.log().contains(line), "{line} in {}", a.log());
    }
    assert!(!a.log().contains("@message"));
}

#[tokio::test]
async fn an_approved_plan_goes_on_in_the_same_process() {
    let _one = crate::ONE.lock().await;
    let mut a = start(&json!({"approval": {"mode": "Manual"}}), &[], |_, _| {});
    a.api.until("a plan that waits", |s| s.phase == Some(Phase::AwaitingApproval)).await;
    let status = a.api.status();
    let checksum = status.plan.unwrap().checksum;
    let next = status.next_step.unwrap();
    assert!(next.starts_with(&format!(
        "kubectl annotate -n team --overwrite tfrun/vpc pawl.run/approve={checksum} pawl.run/approved-by="
    )));
    assert!(status.message.unwrap().contains("waits for approval until"));
    // An approval of another plan, one without the controller's record, and one that is taken back: nothing happens.
    a.api.annotate(names::APPROVE, &format!("sha256:{}", "0".repeat(64)));
    tokio::time::sleep(Duration::from_millis(50)).await;
    a.api.annotate(names::APPROVE, &checksum);
    tokio::time::sleep(Duration::from_millis(50)).await;
    a.api.change(|o| drop(o["metadata"]["annotations"].as_object_mut().unwrap().remove(names::APPROVE)));
    assert_eq!((a.ran("apply"), a.api.status().phase), (0, Some(Phase::AwaitingApproval)));
    // How soon it goes on is measured by `cargo bench-run --only approval`.
    a.api.approve();
    assert_eq!(a.end().await, 0);
    let status = a.api.status();
    assert_eq!(status.result, Some(RunResult::Applied));
    assert_eq!((a.ran("init"), a.ran("plan"), a.ran("apply")), (1, 1, 1));
    assert!(status.history.iter().any(|l| l.contains("  Approved  ") && l.ends_with("by alice")), "{:#?}", status.history);
}

#[tokio::test]
async fn plans_that_are_not_applied() {
    let _one = crate::ONE.lock().await;
    let rows = [
        (json!({}), vec![("PLAN_EXIT", "0"), ("PLAN_JSON", "{}")], RunResult::NoChanges),
        (json!({"operation": "Plan"}), vec![], RunResult::Planned),
        (json!({"operation": "RefreshOnly"}), vec![], RunResult::Drifted),
        (json!({"operation": "RefreshOnly"}), vec![("PLAN_EXIT", "0"), ("PLAN_JSON", "{}")], RunResult::NoChanges),
        (json!({"operation": "Destroy"}), vec![], RunResult::Destroyed),
    ];
    for (more, env, result) in rows {
        let mut a = start(&more, &env, |_, _| {});
        assert_eq!(a.end().await, 0, "{result}");
        let status = a.api.status();
        assert_eq!(status.result, Some(result), "{status:#?}");
        assert_eq!(a.ran("apply"), usize::from(result == RunResult::Destroyed));
        assert_eq!(status.plan.unwrap().attempt, 1);
        let of_an_apply = more.get("operation").is_none_or(|word| word == "Destroy");
        assert_eq!(status.history.iter().any(|line| line.contains("no lock")), of_an_apply, "of an apply only");
    }
}

#[tokio::test]
async fn people_end_a_run_before_its_claim() {
    let _one = crate::ONE.lock().await;
    let hang = "trap 'echo sigint >> $LEDGER; exit 1' INT; echo ready >> $LEDGER; while :; do sleep 0.05; done";
    type Act = fn(&crate::common::MemoryApi);
    let acts: [(&str, Act, RunResult, &str); 3] = [
        ("deny", |api| api.annotate(names::DENY, "too big"), RunResult::Rejected, "denied: too big; nothing was applied"),
        ("cancel", |api| api.annotate(names::CANCEL, "later"), RunResult::Canceled, "cancelled: later; nothing was applied"),
        (
            "delete",
            |api| api.change(|o| o["metadata"]["deletionTimestamp"] = json!("2026-11-21T10:00:00Z")),
            RunResult::Canceled,
            "the run is being deleted; nothing was applied",
        ),
    ];
    for (name, act, result, message) in acts {
        for held in [true, false] {
            let env = if held { vec![] } else { vec![("PLAN", hang)] };
            let mut a = start(&json!({"approval": {"mode": "Manual"}}), &env, |_, _| {});
            if held {
                a.api.until("the hold", |s| s.phase == Some(Phase::AwaitingApproval)).await;
            } else {
                a.until_ran("ready").await;
            }
            act(&a.api);
            assert_eq!(a.end().await, 3, "{name}");
            let status = a.api.status();
            assert_eq!((status.phase, status.result), (Some(Phase::Canceled), Some(result)), "{name}");
            assert_eq!(status.message.as_deref(), Some(message));
            assert_eq!(a.ran("sigint"), usize::from(!held), "{name}: {:?}", a.ledger());
            assert_eq!(a.ran("apply"), 0);
            assert!(status.claim.is_none());
        }
    }
}

#[tokio::test]
async fn a_plan_that_nobody_approves_expires() {
    let _one = crate::ONE.lock().await;
    let mut a = start(&json!({"approval": {"mode": "Manual", "expiresAfter": "1s"}}), &[], |_, _| {});
    assert_eq!(a.end().await, 3);
    assert_eq!(a.api.status().result, Some(RunResult::Expired));
}

#[tokio::test]
async fn a_phase_that_hangs_meets_its_deadline() {
    let _one = crate::ONE.lock().await;
    // It neither reacts to the signal nor lets its child end.
    let env = [("PLAN", "trap 'echo sigint >> $LEDGER' INT; while :; do sleep 0.05; done")];
    let mut a = start(&json!({"timeouts": {"plan": "3s"}}), &env, |s, _| s.grace = Duration::from_secs(6));
    assert_eq!(a.end().await, 1);
    let failure = a.api.status().failure.unwrap();
    assert_eq!(
        (failure.class, failure.reason.as_str(), failure.changes),
        (FailureClass::Timeout, reason::DEADLINE_EXCEEDED, Changed::None)
    );
    assert_eq!((a.ran("sigint"), a.ran("apply")), (1, 0));
    assert_eq!(a.api.status().result, Some(RunResult::Failed));
}

#[tokio::test]
async fn an_apply_gets_one_signal_however_often_it_is_told() {
    let _one = crate::ONE.lock().await;
    let apply = format!("trap 'echo sigint >> $LEDGER' INT; echo ready >> $LEDGER; {GATE}; echo ended >> $LEDGER; exit 1");
    let mut a = start(&json!({}), &[("APPLY", &apply)], |_, _| {});
    a.until_ran("ready").await;
    a.stop.send(()).unwrap();
    a.until_ran("sigint").await;
    a.api.annotate(names::CANCEL, "stop");
    tokio::time::sleep(Duration::from_millis(100)).await;
    a.stop.send(()).unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    a.open();
    assert_eq!(a.end().await, 1);
    assert_eq!((a.ran("sigint"), a.ran("ended")), (1, 1), "{:?}", a.ledger());
    let status = a.api.status();
    let failure = status.failure.unwrap();
    assert_eq!((failure.class, failure.reason.as_str()), (FailureClass::Interrupted, reason::APPLY_INTERRUPTED));
    assert_eq!(failure.changes, Changed::Unknown, "it had begun one resource and said nothing of its end");
    assert_eq!((status.phase, status.result), (Some(Phase::Failed), Some(RunResult::Failed)));
    assert!(status.message.unwrap().contains("it is not known what was changed"));
}

#[tokio::test]
async fn an_apply_that_ends_well_is_applied_although_it_was_told_to_end() {
    let _one = crate::ONE.lock().await;
    let apply = format!("trap '' INT; echo ready >> $LEDGER; {GATE}");
    let mut a = start(&json!({}), &[("APPLY", &apply)], |_, _| {});
    a.until_ran("ready").await;
    a.api.annotate(names::CANCEL, "stop");
    tokio::time::sleep(Duration::from_millis(200)).await;
    a.open();
    assert_eq!(a.end().await, 0);
    assert_eq!(a.api.status().result, Some(RunResult::Applied));
}

/// A tool that is refused the lock until the attempt is opened.
const LOCKED: &str = r#"if [ ! -e $LEDGER.open ]; then
printf '%s\n' '{"@message":"Error","type":"diagnostic","diagnostic":{"severity":"error","summary":"Error acquiring the state lock","detail":"Lock Info:\n  ID:        l1\n  Who:       carol@laptop\n"}}'
exit 1
fi"#;

#[tokio::test]
async fn an_apply_waits_for_a_lock_and_its_plan_is_not_spent() {
    let _one = crate::ONE.lock().await;
    let mut a = start(&json!({}), &[("BEFORE_APPLY", LOCKED)], |_, _| {});
    a.api.until("a lock that is named", |s| s.state_lock.as_ref().is_some_and(|lock| lock.who == "carol@laptop")).await;
    let waits = a.api.status();
    assert_eq!(waits.phase, Some(Phase::Apply));
    assert!(waits.message.unwrap().starts_with("apply waits for the state, which is locked by carol@laptop"));
    a.open();
    assert_eq!(a.end().await, 0);
    let status = a.api.status();
    assert_eq!((status.result, status.state_lock, a.ran("plan")), (Some(RunResult::Applied), None, 1));
    let steps: Vec<_> = status.steps.iter().filter(|s| s.name == "apply").map(|s| s.exit_code).collect();
    assert_eq!(steps, [Some(0)], "tries of one step");
}

#[tokio::test]
async fn an_apply_that_never_gets_its_lock_names_who_has_it() {
    let _one = crate::ONE.lock().await;
    let mut a = start(&json!({"timeouts": {"apply": "3s"}}), &[("BEFORE_APPLY", LOCKED)], |_, _| {});
    assert_eq!(a.end().await, 1);
    let status = a.api.status();
    let failure = status.failure.unwrap();
    assert_eq!(
        (failure.class, failure.reason.as_str(), failure.changes),
        (FailureClass::StateLocked, reason::STATE_LOCKED, Changed::None)
    );
    assert!(failure.message.contains("apply failed: the state is locked by carol@laptop"), "{}", failure.message);
    assert_eq!(status.result, Some(RunResult::Failed));
}

#[tokio::test]
async fn a_deadline_that_falls_while_the_tool_waits_for_a_lock_names_its_holder() {
    let _one = crate::ONE.lock().await;
    // Refused once; the second time it waits in the tool, and when it is told to end it says nothing of a lock.
    let plan = format!(
        "if [ -e $LEDGER.refused ]; then trap 'exit 1' INT; while :; do sleep 0.05; done; fi\ntouch $LEDGER.refused\n{LOCKED}"
    );
    let mut a = start(&json!({"timeouts": {"plan": "8s"}}), &[("PLAN", &plan)], |_, _| {});
    assert_eq!(a.end().await, 1);
    let failure = a.api.status().failure.unwrap();
    assert_eq!((failure.class, failure.reason.as_str()), (FailureClass::StateLocked, reason::STATE_LOCKED));
    assert!(failure.message.contains("the state is locked by carol@laptop"), "{}", failure.message);
}

#[tokio::test]
async fn providers_are_killed_and_then_the_tool() {
    let _one = crate::ONE.lock().await;
    // The tool waits for a provider that hangs; freed of it, it saves its state and ends.
    let hangs = "trap : INT; echo ready >> $LEDGER; sh -c 'trap \"\" INT; sleep 600'; echo saved >> $LEDGER; exit 1";
    let mut a = start(&json!({}), &[("APPLY", hangs)], |s, _| s.grace = Duration::from_secs(9));
    a.until_ran("ready").await;
    a.stop.send(()).unwrap();
    assert_eq!(a.end().await, 1);
    assert_eq!(a.ran("saved"), 1, "{:?}", a.ledger());
    // And one that does not end even so.
    let env = [("APPLY", "trap '' INT; while :; do sleep 0.1; done")];
    let mut a = start(&json!({}), &env, |s, _| s.grace = Duration::from_secs(9));
    a.until_ran("apply").await;
    // That this is before the pod's grace is over, `driver::deadlines` says without a clock.
    a.stop.send(()).unwrap();
    assert_eq!(a.end().await, 1);
    let failure = a.api.status().failure.unwrap();
    assert_eq!((failure.reason.as_str(), failure.changes), (reason::APPLY_INTERRUPTED, Changed::Unknown));
}

#[tokio::test]
async fn what_was_changed_while_it_waited_is_not_applied() {
    let _one = crate::ONE.lock().await;
    type Change = fn(&crate::common::Attempt);
    // Name, reason, change; the message says the name.
    let changes: [(&str, &str, Change); 4] = [
        ("plan file", reason::CHECKSUM_MISMATCH, |a| fs::write(a.settings.plan_file(), "another plan").unwrap()),
        ("the code", reason::CHECKSUM_MISMATCH, |a| fs::write(a.stack().join("main.tf"), "other").unwrap()),
        ("lock file", reason::CHECKSUM_MISMATCH, |a| fs::write(a.stack().join(".terraform.lock.hcl"), "other").unwrap()),
        ("tool", reason::TOOL_NOT_GENUINE, |a| {
            fs::write(a.dir.path().join("tools/opentofu/1.10.6/tofu"), "#!/bin/sh\necho evil >> $LEDGER").unwrap();
        }),
    ];
    for (name, why, change) in changes {
        let mut a = start(&json!({"approval": {"mode": "Manual"}}), &[], |_, _| {});
        a.api.until("the hold", |s| s.phase == Some(Phase::AwaitingApproval)).await;
        change(&a);
        a.api.approve();
        assert_eq!(a.end().await, 1, "{name}");
        let failure = a.api.status().failure.unwrap();
        assert_eq!((failure.class, failure.reason.as_str()), (FailureClass::Integrity, why), "{name}");
        assert!(failure.message.contains(name), "{name}: {}", failure.message);
        assert!(why != reason::CHECKSUM_MISMATCH || !failure.message.contains("sha256"), "{}", failure.message);
        assert_eq!((a.ran("apply"), a.ran("evil")), (0, 0));
        assert!(a.api.status().claim.is_none());
    }
}

#[tokio::test]
async fn a_plan_whose_state_has_changed_says_so_while_its_pod_holds_it() {
    let _one = crate::ONE.lock().await;
    let mut a = start(&json!({"approval": {"mode": "Manual"}}), &[], |_, _| {});
    a.api.until("the hold", |s| s.next_step.as_ref().is_some_and(|step| step.contains("pawl.run/approve="))).await;
    let text = "run else/b applied to the same state";
    a.api.change(|o| crate::common::say(&mut o["status"], "Planned", "True", reason::STALE_PLAN, text));
    a.api.until("its message", |s| s.message.as_ref().is_some_and(|message| message.ends_with(text))).await;
    let status = a.api.status();
    assert!(status.message.unwrap().contains("waits for approval until"));
    assert!(status.next_step.unwrap().ends_with("pawl.run/rerun=true"));
    // Who approves it all the same has it tried.
    a.api.approve();
    assert_eq!(a.end().await, 0);
}

#[tokio::test]
async fn nothing_that_a_plan_started_outlives_it() {
    let _one = crate::ONE.lock().await;
    let env = [("PLAN", "setsid sh -c 'while :; do echo alive > alive; sleep 0.02; done' >/dev/null 2>&1 &")];
    let mut a = start(&json!({"approval": {"mode": "Manual"}}), &env, |_, _| {
        // As in a pod, where orphans come to PID 1.
        nix::sys::prctl::set_child_subreaper(true).unwrap();
    });
    a.api.until("the hold", |s| s.phase == Some(Phase::AwaitingApproval)).await;
    let file = a.stack().join("alive");
    let _ = fs::remove_file(&file);
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert!(!file.exists(), "it is still there");
    a.api.annotate(names::DENY, "");
    a.end().await;
}

#[tokio::test]
async fn errors_of_the_api_are_no_evidence() {
    let _one = crate::ONE.lock().await;
    for fault in
        [Fault::LandedLost, Fault::Lost, Fault::Refused(422), Fault::Refused(403), Fault::Refused(409), Fault::Refused(500)]
    {
        for mode in ["Manual", "Automatic"] {
            let mut a = start(&json!({"approval": {"mode": mode}}), &[], |_, api| {
                api.fail(&[Some(fault), None, Some(fault), Some(fault), None, Some(fault), None, Some(fault), Some(fault)]);
            });
            if mode == "Manual" {
                a.api.until("the hold", |s| s.phase == Some(Phase::AwaitingApproval)).await;
                a.api.fail(&[Some(fault)]);
                a.api.approve();
            }
            assert_eq!(a.end().await, 0, "{fault:?} {mode}");
            assert_eq!(a.api.status().result, Some(RunResult::Applied), "{fault:?} {mode}");
            assert_eq!(a.ledger(), ["init", "plan", "show", "show", "apply"], "{fault:?} {mode}");
            assert_eq!(a.api.writes(), 6, "each landed once: {fault:?} {mode}");
        }
    }
}

#[tokio::test]
async fn a_busy_api_is_left_alone_until_the_claim() {
    let _one = crate::ONE.lock().await;
    let begun = std::time::Instant::now();
    let mut a = start(&json!({"approval": {"mode": "Manual"}}), &[], |_, api| api.fail(&[Some(Fault::Busy(1))]));
    a.api.until("the hold", |s| s.phase == Some(Phase::AwaitingApproval)).await;
    assert!(begun.elapsed() >= Duration::from_secs(1));
    a.api.fail(&[None, Some(Fault::Busy(3600)), None, Some(Fault::Busy(3600))]);
    let approved = std::time::Instant::now();
    a.api.approve();
    assert_eq!(a.end().await, 0);
    assert_eq!(a.api.status().result, Some(RunResult::Applied));
    assert!(approved.elapsed() < runner_agent::ports::ApiError::LONGEST_WAIT, "what is claimed does not wait");
}

#[tokio::test]
async fn whoever_annotates_keeps_no_plan_from_being_claimed() {
    let _one = crate::ONE.lock().await;
    for mode in ["Manual", "Automatic"] {
        let mut writer = None;
        let mut a = start(&json!({"approval": {"mode": mode}}), &[("APPLY", GATE)], |_, api| {
            let api = api.clone();
            // Sooner than any answer of the API comes, so that no version is ever the newest for long enough.
            writer = Some(tokio::spawn(async move {
                for n in 0_u64.. {
                    api.annotate("team/busy", &n.to_string());
                    tokio::time::sleep(Duration::from_micros(200)).await;
                }
            }));
        });
        if mode == "Manual" {
            a.api.until("the hold", |s| s.phase == Some(Phase::AwaitingApproval)).await;
            a.api.approve();
        }
        a.until_ran("apply").await;
        let writer = writer.unwrap();
        assert!(!writer.is_finished(), "it has annotated all the time");
        writer.abort();
        a.open();
        assert_eq!(a.end().await, 0, "{mode}");
        assert_eq!((a.api.status().result, a.ran("apply")), (Some(RunResult::Applied), 1), "{mode}");
    }
}

#[tokio::test]
async fn what_stops_a_run_while_its_claim_is_on_the_way_refuses_the_claim() {
    let _one = crate::ONE.lock().await;
    for (mode, name) in
        [("Manual", names::CANCEL), ("Manual", names::DENY), ("Automatic", names::CANCEL), ("Automatic", names::DENY)]
    {
        let mut a = start(&json!({"approval": {"mode": mode}}), &[], |_, api| {
            api.state.lock().unwrap().overtaken_by = Some(name);
        });
        if mode == "Manual" {
            a.api.until("the hold", |s| s.phase == Some(Phase::AwaitingApproval)).await;
            a.api.approve();
        }
        let begun = Instant::now();
        while a.api.state.lock().unwrap().overtaken.is_none() {
            assert!(begun.elapsed() < PATIENCE, "{mode} {name}: it never claims");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let result = if name == names::DENY { RunResult::Rejected } else { RunResult::Canceled };
        a.end().await;
        let status = a.api.status();
        assert_eq!(a.api.state.lock().unwrap().overtaken, Some(false), "{mode} {name}: the claim landed");
        assert_eq!((status.result, status.claim, a.ran("apply")), (Some(result), None, 0), "{mode} {name}");
    }
}

#[tokio::test]
async fn the_api_may_be_away_behind_the_claim() {
    let _one = crate::ONE.lock().await;
    let mut a = start(&json!({}), &[("APPLY", "sleep 0.5")], |_, _| {});
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

/// Burrito 11.7: an apply that had ended was one write, tried once; without it the apply was made again.
#[tokio::test]
async fn an_end_that_cannot_be_delivered_is_with_the_pod() {
    let _one = crate::ONE.lock().await;
    let apply = "trap '' INT; echo ready >> $LEDGER; sleep 0.3";
    let mut a = start(&json!({}), &[("APPLY", apply)], |s, _| s.grace = Duration::from_secs(3));
    a.until_ran("ready").await;
    a.api.set_away(true);
    tokio::time::sleep(Duration::from_millis(600)).await;
    a.stop.send(()).unwrap();
    assert_eq!(a.end().await, 0);
    let message = a.message().unwrap();
    assert_eq!((message.result, message.nonce.as_str()), (Some(RunResult::Applied), a.settings.nonce.as_str()));
    assert_eq!(a.api.status().phase, Some(Phase::Apply));
}

#[tokio::test]
async fn a_fenced_agent_does_nothing_more() {
    let _one = crate::ONE.lock().await;
    let hang = "trap 'echo sigint >> $LEDGER; exit 1' INT; echo ready >> $LEDGER; while :; do sleep 0.05; done";
    let mut a = start(&json!({}), &[("PLAN", hang)], |_, _| {});
    a.until_ran("ready").await;
    let writes = a.api.writes();
    a.api.change(|o| o["status"]["attempt"]["open"] = json!(false));
    assert_eq!(a.end().await, 1);
    assert_eq!((a.ran("sigint"), a.ran("apply"), a.api.writes()), (1, 0, writes));
    // While it holds: the attempt is given to another pod.
    let mut a = start(&json!({"approval": {"mode": "Manual"}}), &[], |_, _| {});
    a.api.until("the hold", |s| s.phase == Some(Phase::AwaitingApproval)).await;
    let writes = a.api.writes();
    a.api.change(|o| o["status"]["attempt"] = json!({"number": 2, "podName": "vpc-xxxxx-a2", "open": true}));
    assert_eq!(a.end().await, 1);
    assert_eq!(a.api.writes(), writes);
}

#[tokio::test]
async fn an_attempt_that_is_not_to_be_had_is_left_alone() {
    let _one = crate::ONE.lock().await;
    type Change = fn(&mut serde_json::Value);
    let changes: [(&str, Change); 6] = [
        ("adopted", |o| o["status"]["adopted"] = json!({"attempt": 1, "podUID": "pod-1", "nonce": "f".repeat(32)})),
        ("closed", |o| o["status"]["attempt"]["open"] = json!(false)),
        ("of another pod", |o| o["status"]["attempt"]["podName"] = json!("other")),
        ("of another run", |o| o["metadata"]["uid"] = json!("other")),
        ("ended", |o| {
            o["status"]["phase"] = json!("Failed");
            o["status"]["result"] = json!("Failed");
        }),
        ("cancelled", |o| o["metadata"]["annotations"][names::CANCEL] = json!("")),
    ];
    for (name, change) in changes {
        let mut a = start(&json!({}), &[], |_, api| api.change(change));
        assert_eq!(a.end().await, 1, "{name}");
        assert_eq!((a.api.writes(), a.ledger().len()), (0, 0), "{name}");
    }
}

#[tokio::test]
async fn a_second_process_of_the_pod_does_not_apply() {
    let _one = crate::ONE.lock().await;
    let a = start(&json!({}), &[("PLAN", "sleep 0.5")], |_, _| {});
    a.until_ran("plan").await;
    // The kubelet starts the container again: same pod, another nonce.
    let again = runner_agent::settings::Settings { nonce: runner_agent::settings::nonce(), ..(*a.settings).clone() };
    let again = std::sync::Arc::new(again);
    let log = runner_agent::process::Log::to(std::io::sink());
    let host = std::sync::Arc::new(runner_agent::host::Pod::new(again.clone()));
    let work = runner_agent::phases::PhaseRunner::new(again.clone(), host, runner_agent::process::Children::default(), log);
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
async fn a_stop_before_the_claim_leaves_the_run_to_another_attempt() {
    let _one = crate::ONE.lock().await;
    let mut a = start(&json!({"approval": {"mode": "Manual"}}), &[], |_, _| {});
    a.api.until("the hold", |s| s.phase == Some(Phase::AwaitingApproval)).await;
    a.stop.send(()).unwrap();
    assert_eq!(a.end().await, 1);
    let status = a.api.status();
    assert_eq!((status.phase, status.result), (Some(Phase::AwaitingApproval), None));
    let failure = status.failure.unwrap();
    assert_eq!((failure.class, failure.reason.as_str()), (FailureClass::Interrupted, reason::TERMINATED));
    assert_eq!(a.message().unwrap().result, None);
}

#[tokio::test]
async fn failures_say_their_class() {
    let _one = crate::ONE.lock().await;
    let error = |summary: &str, detail: &str, range: &str| {
        format!(
            "echo '{{\"@level\":\"error\",\"@message\":\"Error\",\"type\":\"diagnostic\",\"diagnostic\":{{\"severity\":\"error\",\"summary\":\"{summary}\",\"detail\":\"{detail}\"{range}}}}}'; exit 1"
        )
    };
    let range = ",\"range\":{\"filename\":\"main.tf\",\"start\":{\"line\":7}}";
    let (network, code, kill) = (
        error("Failed to query", "dial tcp: no such host", ""),
        error("Unsupported argument", "No.", range),
        "kill -9 $$".to_owned(),
    );
    // (where, what, class, reason, whether the run ends)
    let rows = [
        ("INIT", &network, FailureClass::Transient, reason::PROVIDER_UNREACHABLE, false),
        ("PLAN", &network, FailureClass::Transient, reason::PROVIDER_UNREACHABLE, false),
        ("PLAN", &code, FailureClass::Configuration, reason::INVALID_CONFIGURATION, true),
        ("PLAN", &kill, FailureClass::Interrupted, reason::TOOL_KILLED, false),
        ("APPLY", &network, FailureClass::Transient, reason::PROVIDER_UNREACHABLE, true),
    ];
    for (at, script, class, reason, ends) in rows {
        let mut a = start(&json!({}), &[(at, script)], |_, _| {});
        assert_eq!(a.end().await, 1);
        let status = a.api.status();
        let failure = status.failure.unwrap();
        assert_eq!((failure.class, failure.reason.as_str()), (class, reason), "{at}");
        assert_eq!(status.result.is_some(), ends, "{at} {reason}");
        assert_eq!(status.phase.unwrap().is_terminal(), ends);
        assert_eq!(failure.changes, if at == "APPLY" { Changed::Unknown } else { Changed::None });
        if script == &code {
            assert_eq!((failure.diagnostics[0].file.as_deref(), failure.diagnostics[0].line), (Some("main.tf"), Some(7)));
            // The code is in the spec.
            assert!(status.next_step.unwrap().starts_with("create a run with corrected spec.source.inline.files"));
        }
    }
}

#[tokio::test]
async fn a_state_that_would_die_with_the_pod_is_refused_before_the_plan() {
    let _one = crate::ONE.lock().await;
    let mut a = start(&json!({"operation": "Plan"}), &[("INIT", "rm .terraform/terraform.tfstate")], |_, _| {});
    assert_eq!(a.end().await, 1);
    assert_eq!(a.api.status().failure.unwrap().reason, reason::NO_DURABLE_STATE);
    assert_eq!(a.ledger(), ["init"]);
}

#[tokio::test]
async fn exit_code_two_without_a_plan_is_no_plan() {
    let _one = crate::ONE.lock().await;
    let rows = [
        ("PLAN", "rm \"$out\"; echo 'fatal error: concurrent map writes' >&2", "{}", reason::PLAN_FAILED),
        ("NONE", "", "{\"errored\":true}", reason::PLAN_FAILED),
        ("NONE", "", "{\"resource_changes\":[", reason::PLAN_UNREADABLE),
    ];
    for (name, script, json, reason) in rows {
        let mut a = start(&json!({}), &[(name, script), ("PLAN_JSON", json)], |_, _| {});
        assert_eq!(a.end().await, 1);
        assert_eq!(a.api.status().failure.unwrap().reason, reason);
        assert_eq!(a.ran("apply"), 0);
    }
}

#[tokio::test]
async fn secrets_show_nowhere() {
    let _one = crate::ONE.lock().await;
    let more = json!({
        "variables": [{"name": "p", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}}],
        "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "db", "key": "token"}}}],
    });
    let plan = "cat zz_pawl.auto.tfvars.json; echo; echo $TOKEN >&2; printf %s \"$TOKEN\" | base64; \
                echo \"{\\\"type\\\":\\\"diagnostic\\\",\\\"diagnostic\\\":{\\\"severity\\\":\\\"error\\\",\\\"summary\\\":\\\"bad $TOKEN\\\"}}\"; exit 1";
    // Hidden from code, with what is made beside it later.
    let secrets = tempfile::tempdir().unwrap();
    let mut a = start(&more, &[("PLAN", plan)], |s, _| {
        s.secrets = secrets.path().join("mounted");
        fs::create_dir_all(s.secrets.join("db")).unwrap();
        fs::write(s.secrets.join("db/password"), "hunter22").unwrap();
        fs::write(s.secrets.join("db/token"), "t0k3n-of-mine").unwrap();
    });
    assert_eq!(a.end().await, 1);
    let texts = [
        a.log(),
        a.api.state.lock().unwrap().object["status"].to_string(),
        fs::read_to_string(&a.settings.termination_log).unwrap(),
    ];
    for text in texts {
        for secret in ["hunter22", "t0k3n-of-mine", "dDBrM24tb2YtbWluZQ"] {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
        assert!(text.contains("(sensitive value)"), "{text}");
    }
}

#[tokio::test]
async fn progress_is_written_seldom_and_only_in_long_phases() {
    let _one = crate::ONE.lock().await;
    let beat = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo '{\"@message\":\"x\",\"type\":\"apply_start\",\"hook\":{\"resource\":{\"addr\":\"a.c\"},\"action\":\"create\"}}'; sleep 0.5; done";
    let begun = std::time::Instant::now();
    let mut a = start(&json!({}), &[("APPLY", beat)], |settings, _| settings.progress_every = PROGRESS_EVERY);
    assert_eq!(a.end().await, 0);
    let most = begun.elapsed().as_secs() / PROGRESS_EVERY.as_secs();
    let state = a.api.state.lock().unwrap();
    let progress: Vec<_> =
        state.writes.iter().filter(|w| w.as_array().unwrap().iter().all(|o| o["path"] != "/status/phase")).collect();
    // The plan's own write has no phase either; the apply lasts for six seconds at least.
    assert!(progress.len() >= 2 && progress.len() as u64 <= 1 + most, "{progress:#?}");
    assert_eq!(progress[1][0]["path"], "/status/progress");
}

#[tokio::test]
async fn the_work_directory_is_empty_afterwards() {
    let _one = crate::ONE.lock().await;
    let mut a = start(&json!({}), &[], |_, _| {});
    assert_eq!(a.end().await, 0);
    a.work.clean();
    assert_eq!(fs::read_dir(&a.settings.work).unwrap().count(), 0);
}

#[tokio::test]
async fn an_automatic_run_without_the_lease_ends_its_attempt_in_peace() {
    let _one = crate::ONE.lock().await;
    let mut a = start(&json!({}), &[], |_, api| api.behind(Some("else/b, in place 1")));
    assert_eq!(a.end().await, 0);
    let status = a.api.status();
    assert_eq!((status.phase, status.result), (Some(Phase::Plan), None), "the controller goes on from here");
    assert!(status.claim.is_none() && status.failure.is_none() && a.ran("apply") == 0);
    let message = status.message.unwrap();
    assert!(message.contains("behind else/b, in place 1; it plans anew when it is its turn"), "{message}");
    let said = a.message().unwrap();
    assert!(said.result.is_none() && said.failure.is_none(), "nothing failed: {said:?}");
}

#[tokio::test]
async fn an_approved_plan_waits_for_its_turn_and_says_behind_whom() {
    let _one = crate::ONE.lock().await;
    let manual = json!({"approval": {"mode": "Manual", "expiresAfter": "5s"}});
    let mut a = start(&manual, &[], |_, api| api.behind(Some("else/b")));
    a.api.until("a plan that waits", |s| s.phase == Some(Phase::AwaitingApproval)).await;
    a.api.approve();
    let says = |s: &crds::TerraformRunStatus| {
        s.message.as_deref().is_some_and(|m| m.contains("is approved; waits for its turn on the state behind else/b"))
    };
    a.api.until("the message of a run that waits for its turn", says).await;
    // An approval that is recorded does not expire.
    tokio::time::sleep(Duration::from_millis(5500)).await;
    assert_eq!((a.ran("apply"), a.api.status().phase), (0, Some(Phase::AwaitingApproval)));
    a.api.behind(None);
    assert_eq!(a.end().await, 0);
    assert_eq!((a.api.status().result, a.ran("apply"), a.ran("plan")), (Some(RunResult::Applied), 1, 1));
}

#[tokio::test]
async fn what_ends_a_run_ends_one_that_waits_for_its_turn() {
    let _one = crate::ONE.lock().await;
    for (annotation, result) in [(names::CANCEL, RunResult::Canceled), (names::DENY, RunResult::Rejected)] {
        let manual = json!({"approval": {"mode": "Manual"}});
        let mut a = start(&manual, &[], |_, api| api.behind(Some("else/b")));
        a.api.until("a plan that waits", |s| s.phase == Some(Phase::AwaitingApproval)).await;
        a.api.approve();
        a.api.annotate(annotation, "no");
        a.end().await;
        assert_eq!((a.api.status().result, a.ran("apply")), (Some(result), 0));
    }
}
