//! What code of the stack leaves in the agent's way: links, pipes, and other plans in place of the one that is shown.

use std::fs;

use crate::common::{Attempt, start};
use crds::{FailureClass, Phase, RunResult, reason};
use serde_json::{Value, json};

/// An attempt whose plan is kept in a directory of its own, as in a pod; none where the kernel cannot keep code from it.
fn attempt(more: &Value, env: &[(&str, &str)], kept: &tempfile::TempDir) -> Attempt {
    start(more, env, |settings, _| kept.path().clone_into(&mut settings.kept))
}

fn has_landlock(a: &Attempt) -> bool {
    let without = a.log().contains("this node has no Landlock");
    assert!(!without || std::env::var_os("CI").is_none(), "{}", a.log());
    !without
}

#[tokio::test]
async fn the_plan_that_is_shown_and_applied_is_out_of_the_codes_reach() {
    let _one = crate::ONE.lock().await;
    let kept = tempfile::tempdir().unwrap();
    let apply = "for way in 'echo evil > $KEPT/tfplan' 'rm -f $KEPT/tfplan' 'ln -sf /etc/hostname $KEPT/tfplan' 'touch $KEPT/new'; do \
                 sh -c \"$way\" 2>/dev/null && echo \"could $way\" >> $LEDGER; done; cp $KEPT/tfplan copy && echo read >> $LEDGER; \
                 [ -e $OUT ] && echo there-still >> $LEDGER; true";
    // Another plan where the tool had written it: nobody looks there any more.
    let place = kept.path().display().to_string();
    let mut a = start(&json!({}), &[("APPLY", apply), ("KEPT", &place), ("OUT", "../out/tfplan")], |settings, _| {
        settings.kept = kept.path().to_owned();
    });
    assert_eq!(a.end().await, 0, "{}", a.log());
    let status = a.api.status();
    assert_eq!(status.result, Some(RunResult::Applied));
    if !has_landlock(&a) {
        assert!(status.history.iter().any(|line| line.contains("not confined")), "{:?}", status.history);
        return;
    }
    assert_eq!(a.ledger(), ["init", "plan", "show", "show", "apply", "read"]);
    assert!(!status.history.iter().any(|line| line.contains("not confined")), "{:?}", status.history);
}

#[tokio::test]
async fn a_plan_or_lock_file_that_is_a_link_is_refused_before_anybody_approves() {
    let _one = crate::ONE.lock().await;
    for (plan, class, why, says) in [
        ("ln -sf /etc/passwd $out", FailureClass::Internal, reason::PLAN_UNREADABLE, "out/tfplan is a link"),
        ("ln $out $out.2", FailureClass::Internal, reason::PLAN_UNREADABLE, "out/tfplan has 2 names"),
        ("mv ../out ../far; ln -s far ../out", FailureClass::Internal, reason::PLAN_UNREADABLE, "or one leads to it"),
        (
            "ln -sf /etc/passwd .terraform.lock.hcl",
            FailureClass::Configuration,
            reason::SOURCE_INVALID,
            "leads out of the source",
        ),
    ] {
        let kept = tempfile::tempdir().unwrap();
        let mut a = attempt(&json!({"approval": {"mode": "Manual"}}), &[("PLAN", plan)], &kept);
        assert_eq!(a.end().await, 1, "{plan}");
        let failure = a.api.status().failure.unwrap();
        assert_eq!((failure.class, failure.reason.as_str()), (class, why), "{plan}: {}", failure.message);
        assert!(failure.message.contains(says), "{plan}: {}", failure.message);
        assert!(a.api.status().plan.is_none() && a.ran("apply") == 0);
    }
}

#[tokio::test]
async fn links_pipes_and_closed_directories_of_a_plan_are_applied_with_it() {
    let _one = crate::ONE.lock().await;
    // A lock file that stacks share, a link outward, a directory that nothing can be added to, a pipe.
    let plan = "mv .terraform.lock.hcl shared; ln -s shared .terraform.lock.hcl; ln -s /bin/sh l; mkdir ro; touch ro/x; chmod 555 ro; \
                mkfifo p";
    let kept = tempfile::tempdir().unwrap();
    let mut a = attempt(&json!({"approval": {"mode": "Manual"}}), &[("PLAN", plan)], &kept);
    a.api.until("the hold", |s| s.phase == Some(Phase::AwaitingApproval)).await;
    // What a pod that restores the plan has, and has not.
    fs::remove_file(a.stack().join("p")).unwrap();
    a.api.approve();
    assert_eq!(a.end().await, 0, "{}", a.log());
    assert_eq!(a.api.status().result, Some(RunResult::Applied));
}
