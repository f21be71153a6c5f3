//! Attempts from adoption to end: the real driver and real processes, a scripted tool, an in-memory run.

use std::{fs, time::Duration};

use crate::common::{STORED, UNLOCKED, manual, start, start_with};
use crds::{Phase, RunResult, names};
use runner_agent::settings::PROGRESS_EVERY;
use serde_json::json;

#[tokio::test]
async fn automatic_run_is_applied_with_six_writes() {
    let mut a = start(&json!({}), &[("INIT", UNLOCKED), ("STATE", STORED)]);
    let status = a.ends(0).await;
    assert_eq!(
        (status.phase, status.result),
        (Some(Phase::Succeeded), Some(RunResult::Applied))
    );
    // Such a state is read back.
    let ran = ["init", "plan", "show", "show", "apply", "state"];
    assert_eq!(a.ledger(), ran);
    assert_eq!(
        a.api.writes(),
        6,
        "{:#?}",
        a.api.state.lock().unwrap().writes
    );
    let plan = status.plan.unwrap();
    assert_eq!(
        (plan.summary.as_str(), plan.tool.as_str()),
        ("+1 ~0 -0", "OpenTofu 1.10.6")
    );
    assert_eq!(status.claim.unwrap().checksum, plan.checksum);
    assert_eq!(plan.changes, ["+ a.b"]);
    let phases: Vec<_> = status
        .history
        .iter()
        .map(|line| line.split("  ").nth(1).unwrap())
        .collect();
    assert_eq!(
        phases,
        ["Start", "Setup", "Init", "Plan", "Claimed", "Apply"],
        "{:#?}",
        status.history
    );
    let unlocked =
        "backend http (no lock: others may change the state during the apply), workspace default";
    assert!(
        status.history[2].ends_with(unlocked),
        "{}",
        status.history[2]
    );
    assert!(
        status.history[1]
            .ends_with("inline, 1 file; OpenTofu 1.10.6, the newest at hand; OpenTofu by default"),
        "{}",
        status.history[1]
    );
    let steps: Vec<_> = status
        .steps
        .iter()
        .map(|s| (s.name.as_str(), s.exit_code))
        .collect();
    assert_eq!(
        steps,
        [
            ("init", Some(0)),
            ("plan", Some(2)),
            ("show", Some(0)),
            ("apply", Some(0))
        ]
    );
    assert!(
        status.failure.is_none() && status.next_step.is_none() && status.completion_time.is_some()
    );
    assert_eq!(a.message().unwrap().result, Some(RunResult::Applied));
    for line in [
        "a.b: Plan to create\n",
        "Terraform will perform",
        "a.b: Creation complete\n",
        "pawl: applied +1 ~0 -0\n",
    ] {
        assert!(a.log().contains(line), "{line} in {}", a.log());
    }
    assert!(!a.log().contains("@message"));
}

#[tokio::test]
async fn approved_plan_is_applied_by_the_same_process() {
    let mut a = start(&manual(), &[]);
    a.waits().await;
    let status = a.api.status();
    let checksum = status.plan.unwrap().checksum;
    let next = status.next_step.unwrap();
    assert!(next.starts_with(&format!(
        "kubectl annotate -n team --overwrite tfrun.pawl.run/vpc pawl.run/approve={checksum} pawl.run/approved-by="
    )));
    assert!(status.message.unwrap().contains("waits for approval until"));
    // An approval of another plan, one without the controller's record, and a withdrawn one have no effect.
    a.api
        .annotate(names::APPROVE, &format!("sha256:{}", "0".repeat(64)));
    tokio::time::sleep(Duration::from_millis(50)).await;
    a.api.annotate(names::APPROVE, &checksum);
    tokio::time::sleep(Duration::from_millis(50)).await;
    a.api.change(|o| {
        drop(
            o["metadata"]["annotations"]
                .as_object_mut()
                .unwrap()
                .remove(names::APPROVE),
        );
    });
    assert_eq!(
        (a.ran("apply"), a.api.status().phase),
        (0, Some(Phase::AwaitingApproval))
    );
    // `cargo bench-run --only approval` measures the delay.
    a.api.approve();
    let status = a.ends(0).await;
    assert_eq!(status.result, Some(RunResult::Applied));
    assert_eq!((a.ran("init"), a.ran("plan"), a.ran("apply")), (1, 1, 1));
    assert!(
        status
            .history
            .iter()
            .any(|l| l.contains("  Approved  ") && l.ends_with("by alice")),
        "{:#?}",
        status.history
    );
}

#[tokio::test]
async fn plans_without_an_apply_have_their_result() {
    const DRIFT: &str = r#"{"resource_drift":[{"address":"a.b","change":{"actions":["delete"]}}]}"#;
    const OUTPUT: &str = r#"{"output_changes":{"o":{"actions":["create"]}}}"#;
    let rows = [
        (
            json!({}),
            vec![("PLAN_EXIT", "0"), ("PLAN_JSON", "{}")],
            RunResult::NoChanges,
        ),
        (json!({"operation": "Plan"}), vec![], RunResult::Planned),
        (
            json!({"operation": "RefreshOnly"}),
            vec![("PLAN_JSON", DRIFT)],
            RunResult::Drifted,
        ),
        (
            json!({"operation": "RefreshOnly"}),
            vec![("PLAN_JSON", OUTPUT)],
            RunResult::NoChanges,
        ),
        (
            json!({"operation": "RefreshOnly"}),
            vec![("PLAN_EXIT", "0"), ("PLAN_JSON", "{}")],
            RunResult::NoChanges,
        ),
        (
            json!({"operation": "Destroy"}),
            vec![],
            RunResult::Destroyed,
        ),
    ];
    for (more, mut env, result) in rows {
        env.extend([("INIT", UNLOCKED), ("STATE", STORED)]);
        let mut a = start(&more, &env);
        assert_eq!(a.end().await, 0, "{result}");
        let status = a.api.status();
        assert_eq!(status.result, Some(result), "{status:#?}");
        assert_eq!(a.ran("apply"), usize::from(result == RunResult::Destroyed));
        assert_eq!(status.plan.unwrap().attempt, 1);
        let of_an_apply = more.get("operation").is_none_or(|word| word == "Destroy");
        assert_eq!(
            status.history.iter().any(|line| line.contains("no lock")),
            of_an_apply,
            "of an apply only"
        );
    }
}

#[tokio::test]
async fn deny_cancel_and_delete_end_a_run_before_its_claim() {
    let hang = "trap 'echo sigint >> $LEDGER; exit 1' INT; echo ready >> $LEDGER; while :; do sleep 0.05; done";
    type Act = fn(&crate::memory_api::MemoryApi);
    let acts: [(&str, Act, RunResult, &str); 3] = [
        (
            "deny",
            |api| api.annotate(names::DENY, "too big"),
            RunResult::Rejected,
            "denied: too big; nothing was applied",
        ),
        (
            "cancel",
            |api| api.annotate(names::CANCEL, "later"),
            RunResult::Canceled,
            "cancelled: later; nothing was applied",
        ),
        (
            "delete",
            |api| {
                api.change(|o| o["metadata"]["deletionTimestamp"] = json!("2026-11-21T10:00:00Z"));
            },
            RunResult::Canceled,
            "the run is being deleted; nothing was applied",
        ),
    ];
    for (name, act, result, message) in acts {
        for held in [true, false] {
            let env = if held { vec![] } else { vec![("PLAN", hang)] };
            let mut a = start(&manual(), &env);
            if held {
                a.waits().await;
            } else {
                a.until_ran("ready").await;
            }
            act(&a.api);
            assert_eq!(a.end().await, 0, "{name}");
            let status = a.api.status();
            assert_eq!(
                (status.phase, status.result),
                (Some(Phase::Canceled), Some(result)),
                "{name}"
            );
            assert_eq!(status.message.as_deref(), Some(message));
            assert_eq!(
                a.ran("sigint"),
                usize::from(!held),
                "{name}: {:?}",
                a.ledger()
            );
            assert_eq!(a.ran("apply"), 0);
            assert!(status.claim.is_none());
        }
    }
}

#[tokio::test]
async fn automatic_claim_has_its_own_time() {
    let mut a = start(&json!({}), &[("PLAN", "sleep 0.3")]);
    let history = a.ends(0).await.history;
    let line = history.iter().find(|line| line.contains("  Claimed  "));
    assert!(
        line.is_some_and(|line| line.ends_with("  Claimed  0.0s  automatic")),
        "{history:#?}"
    );
}

#[tokio::test]
async fn unapproved_plan_expires() {
    let mut a = start(
        &json!({"approval": {"mode": "Manual", "expiresAfter": "1s"}}),
        &[],
    );
    assert_eq!(a.ends(0).await.result, Some(RunResult::Expired));
}

#[tokio::test]
async fn without_a_datastore_the_pod_holds_its_plan() {
    let manual = json!({"approval": {"mode": "Manual", "holdFor": "0s", "expiresAfter": "3s"}});
    let mut a = start(&manual, &[]);
    a.api
        .until("the hold", |s| s.phase == Some(Phase::AwaitingApproval))
        .await;
    let waits = a.api.status().message.unwrap();
    assert!(
        waits.ends_with("; without a datastore its pod is held as long"),
        "{waits}"
    );
    // The process that planned observes the expiry.
    assert_eq!(a.end().await, 0);
    assert_eq!(
        (a.api.status().result, a.ran("plan")),
        (Some(RunResult::Expired), 1)
    );
}

#[tokio::test]
async fn secrets_are_masked_everywhere() {
    let more = json!({
        "variables": [{"name": "p", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}}],
        "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "db", "key": "token"}}}],
    });
    let plan = "cat zz_pawl.auto.tfvars.json; echo; echo $TOKEN >&2; printf %s \"$TOKEN\" | base64; \
                echo \"{\\\"type\\\":\\\"diagnostic\\\",\\\"diagnostic\\\":{\\\"severity\\\":\\\"error\\\",\\\"summary\\\":\\\"bad $TOKEN\\\"}}\"; exit 1";
    // Separate from the work directory, so that code cannot read it nor later files beside it.
    let secrets = tempfile::tempdir().unwrap();
    let mut a = start_with(&more, &[("PLAN", plan)], |s, _| {
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
async fn progress_is_written_at_its_interval() {
    crate::common::alone();
    let beat = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo '{\"@message\":\"x\",\"type\":\"apply_start\",\"hook\":{\"resource\":{\"addr\":\"a.c\"},\"action\":\"create\"}}'; sleep 0.5; done";
    let begun = std::time::Instant::now();
    let mut a = start_with(&json!({}), &[("APPLY", beat)], |settings, _| {
        settings.progress_every = PROGRESS_EVERY;
    });
    assert_eq!(a.end().await, 0);
    let most = begun.elapsed().as_secs() / PROGRESS_EVERY.as_secs();
    let state = a.api.state.lock().unwrap();
    let progress: Vec<_> = state
        .writes
        .iter()
        .filter(|w| {
            w.as_array()
                .unwrap()
                .iter()
                .all(|o| o["path"] != "/status/phase")
        })
        .collect();
    // The write of the plan has no phase either; the apply lasts at least 6 s.
    assert!(
        progress.len() >= 2 && progress.len() as u64 <= 1 + most,
        "{progress:#?}"
    );
    assert_eq!(progress[1][0]["path"], "/status/progress");
}

#[tokio::test]
async fn work_directory_is_emptied() {
    let mut a = start(&json!({}), &[]);
    assert_eq!(a.end().await, 0);
    a.work.clean();
    assert_eq!(fs::read_dir(&a.settings.work).unwrap().count(), 0);
}

const OUTPUTS: &str =
    r#"{"errored":false,"resource_changes":[],"output_changes":{"t":{"actions":["update"]}}}"#;

/// A clock in an output would be applied with each look.
#[tokio::test]
async fn outputs_alone_are_no_drift() {
    for (applied, result) in [
        (None, RunResult::Applied),
        (Some("none"), RunResult::NoChanges),
    ] {
        let mut a = start_with(&json!({}), &[("PLAN_JSON", OUTPUTS)], |_, api| {
            if let Some(applied) = applied {
                api.annotate(names::APPLIED, applied);
            }
        });
        let status = a.ends(0).await;
        assert_eq!(status.result, Some(result), "{applied:?}: {}", a.log());
        assert_eq!(
            a.log().contains("only outputs differ, which is no drift"),
            applied.is_some()
        );
    }
}

#[tokio::test]
async fn changes_that_come_again_wait_for_a_person() {
    let own = crds::changes_digest(&["+ a.b".to_owned()]).unwrap();
    for (applied, waits) in [("none", false), ("0011223344556677", false), (&*own, true)] {
        let mut a = start_with(&json!({}), &[], |_, api| {
            api.annotate(names::APPLIED, applied);
        });
        if waits {
            a.waits().await;
            let plan = a.api.status().plan.unwrap();
            assert_eq!(
                (plan.counts.again, &*plan.summary),
                (true, "+1 ~0 -0, again")
            );
            assert_eq!(plan.changes_digest.as_ref(), Some(&own));
            a.api.approve();
        }
        assert_eq!(
            a.ends(0).await.result,
            Some(RunResult::Applied),
            "{applied}"
        );
    }
}
