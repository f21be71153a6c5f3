//! Obstacles that code of the stack leaves for the agent: links, pipes, and other plans instead of the shown one.

use std::fs;

use crate::common::{Attempt, manual, start_with};
use crds::{FailureClass, RunResult, reason, tools::ToolSettings};
use landlock::{
    AccessFs, CompatLevel, Compatible as _, PathBeneath, PathFd, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetError,
};
use serde_json::{Value, json};

/// An attempt whose plan is stored in a separate directory, as in a pod. Without Landlock the agent uses none.
fn attempt(more: &Value, env: &[(&str, &str)], kept: &tempfile::TempDir) -> Attempt {
    start_with(more, env, |settings, _| {
        kept.path().clone_into(&mut settings.kept);
    })
}

pub(crate) fn has_landlock(a: &Attempt) -> bool {
    let without = a.log().contains("this node has no Landlock");
    assert!(!without || std::env::var_os("CI").is_none(), "{}", a.log());
    !without
}

#[tokio::test]
async fn kept_plan_is_read_only_for_code() {
    let kept = tempfile::tempdir().unwrap();
    let apply = "for way in 'echo evil > $KEPT/tfplan' 'rm -f $KEPT/tfplan' 'ln -sf /etc/hostname $KEPT/tfplan' 'touch $KEPT/new'; do \
                 sh -c \"$way\" 2>/dev/null && echo \"could $way\" >> $LEDGER; done; cp $KEPT/tfplan copy && echo read >> $LEDGER; \
                 [ -e $OUT ] && echo there-still >> $LEDGER; true";
    // The code may put another plan at the tool's output path: the agent no longer reads it.
    let place = kept.path().display().to_string();
    let mut a = start_with(
        &json!({}),
        &[("APPLY", apply), ("KEPT", &place), ("OUT", "../out/tfplan")],
        |settings, _| {
            settings.kept = kept.path().to_owned();
        },
    );
    let status = a.ends(0).await;
    assert_eq!(status.result, Some(RunResult::Applied));
    if !has_landlock(&a) {
        assert!(status.unconfined, "{:?}", status.history);
        return;
    }
    assert_eq!(
        a.ledger(),
        ["init", "plan", "show", "show", "apply", "read"]
    );
    assert!(
        !status.unconfined
            && !status
                .history
                .iter()
                .any(|line| line.contains("not confined")),
        "{:?}",
        status.history
    );
}

/// Prevents further Landlock rulesets in this thread and its children: the kernel stacks at most 16, and these restrict nothing.
pub(crate) fn use_up_landlock() {
    let one_more = || -> Result<(), RulesetError> {
        let all = PathBeneath::new(PathFd::new("/").unwrap(), AccessFs::Refer);
        let ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::Refer)?;
        ruleset.create()?.add_rule(all)?.restrict_self().map(drop)
    };
    for _ in 0..16 {
        // Ignored without Landlock.
        let _ = one_more();
    }
}

async fn confined_or_not() {
    let required = || {
        start_with(&json!({}), &[], |settings, _| {
            settings.require_confinement = true;
        })
    };
    let mut a = required();
    let code = a.end().await;
    if has_landlock(&a) {
        assert_eq!((code, a.api.status().unconfined), (0, false), "{}", a.log());
    }

    use_up_landlock();
    let mut a = required();
    let failure = a.fails(FailureClass::Policy, reason::NO_CONFINEMENT).await;
    let status = a.api.status();
    assert!(
        failure.message.contains("no Landlock")
            && status.step().unwrap().contains("runner.requireConfinement")
    );
    assert!(
        a.ledger().is_empty() && !a.stack().exists() && !status.unconfined,
        "{:?}",
        a.ledger()
    );

    // The status reports the missing confinement before code of the stack runs. Shared directories are not used, because code could write
    // to them.
    let shared = tempfile::tempdir().unwrap();
    let [tools, providers] = ["tools", "providers"].map(|name| shared.path().join(name));
    fs::create_dir(&tools).unwrap();
    let mut a = start_with(
        &json!({}),
        &[("INIT", crate::common::GATE)],
        |settings, _| {
            settings.tool_settings = Some(ToolSettings {
                offline: true,
                ..ToolSettings::default()
            });
            (settings.cache, settings.provider_cache) =
                (Some(tools.clone()), Some(providers.clone()));
        },
    );
    a.until_ran("init").await;
    let status = a.api.status();
    assert!(
        status.unconfined
            && status
                .history
                .iter()
                .any(|line| line.contains("not confined")),
        "{:?}",
        status.history
    );
    a.open();
    assert_eq!(a.end().await, 0, "{}", a.log());
    assert_eq!(
        (a.api.status().result, a.api.status().unconfined),
        (Some(RunResult::Applied), true)
    );
    for text in [
        "the shared cache of tools is not used: code of the stack could write",
        "nor is the cache of providers used",
    ] {
        assert!(a.log().contains(text), "{}", a.log());
    }
    for dir in [tools, providers] {
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "{}", dir.display());
    }
}

/// Runs a test in a thread of its own, because Landlock restrictions are permanent.
pub(crate) fn in_a_thread<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let thread = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(test());
    });
    thread.join().unwrap();
}

#[test]
fn unconfined_code_is_reported_or_refused() {
    in_a_thread(confined_or_not);
}

#[tokio::test]
async fn linked_plan_or_lock_file_is_refused() {
    for (plan, class, why, says) in [
        (
            "ln -sf /etc/passwd $out",
            FailureClass::Internal,
            reason::PLAN_UNREADABLE,
            "out/tfplan is a link",
        ),
        (
            "ln $out $out.2",
            FailureClass::Internal,
            reason::PLAN_UNREADABLE,
            "out/tfplan has 2 names",
        ),
        (
            "mv ../out ../far; ln -s far ../out",
            FailureClass::Internal,
            reason::PLAN_UNREADABLE,
            "or one leads to it",
        ),
        (
            "ln -sf /etc/passwd .terraform.lock.hcl",
            FailureClass::Configuration,
            reason::SOURCE_INVALID,
            "leads out of the source",
        ),
    ] {
        let kept = tempfile::tempdir().unwrap();
        let mut a = attempt(&manual(), &[("PLAN", plan)], &kept);
        let failure = a.fails(class, why).await;
        assert!(
            failure.message.contains(says),
            "{plan}: {}",
            failure.message
        );
        assert!(a.api.status().plan.is_none() && a.ran("apply") == 0);
    }
}

#[tokio::test]
async fn links_pipes_and_closed_directories_are_applied() {
    // A shared lock file, a link outward, a read-only directory, a pipe.
    let plan = "mv .terraform.lock.hcl shared; ln -s shared .terraform.lock.hcl; ln -s /bin/sh l; mkdir ro; touch ro/x; chmod 555 ro; \
                mkfifo p";
    let kept = tempfile::tempdir().unwrap();
    let mut a = attempt(&manual(), &[("PLAN", plan)], &kept);
    a.waits().await;
    // A pod that restores the plan has all of these but the pipe.
    fs::remove_file(a.stack().join("p")).unwrap();
    a.api.approve();
    assert_eq!(a.ends(0).await.result, Some(RunResult::Applied));
}
