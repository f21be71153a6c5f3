//! Files that plan-time code leaves for the apply: another tool, and configuration files at the paths that programs read.

use std::fs;

use crate::common::{Attempt, start_at};
use crds::{FailureClass, RunResult, reason};
use serde_json::{Value, json};

/// Replaces the tool by another executable. Uses a rename, because a shell reads a script while it runs it.
const REPLACE: &str = "printf '#!/bin/sh\\necho evil >> $LEDGER\\nexit 2\\n' > $TOOL.new && chmod 755 $TOOL.new && mv $TOOL.new $TOOL";

/// Starts an attempt whose tool knows its own path, and a world-writable directory.
fn with_places(more: &Value, env: &[(&str, &str)]) -> Attempt {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (tool, scratch) = (at("tools/opentofu/1.10.6/tofu"), at("scratch"));
    fs::create_dir(&scratch).unwrap();
    let mut env = env.to_vec();
    env.extend([("TOOL", tool.as_str()), ("SCRATCH", scratch.as_str())]);
    start_at(dir, more, &env, |settings, _| {
        settings.scratch = vec![scratch.clone().into()];
    })
}

#[tokio::test]
async fn tool_replaced_after_setup_is_not_started() {
    for (phase, ran) in [("INIT", vec!["init"]), ("PLAN", vec!["init", "plan"])] {
        for mode in ["Automatic", "Manual"] {
            let mut a = with_places(&json!({"approval": {"mode": mode}}), &[(phase, REPLACE)]);
            let failure = a
                .fails(FailureClass::Integrity, reason::TOOL_NOT_GENUINE)
                .await;
            assert!(
                failure
                    .message
                    .contains("OpenTofu 1.10.6 has changed since Setup"),
                "{}",
                failure.message
            );
            assert_eq!(a.ledger(), ran, "{phase} {mode}");
            assert!(a.api.status().claim.is_none());
        }
    }
}

#[tokio::test]
async fn touched_tool_is_started() {
    let mut a = with_places(
        &json!({}),
        &[("PLAN", "cp -p $TOOL $TOOL.new && mv $TOOL.new $TOOL")],
    );
    assert_eq!(a.ends(0).await.result, Some(RunResult::Applied));
}

#[tokio::test]
async fn planted_files_are_deleted_before_the_apply() {
    let plants = "mkdir -p $HOME/.aws $HOME/go/mod $SCRATCH/dir && echo evil > $HOME/.aws/config && echo evil > $HOME/go/mod/file \
                  && chmod 500 $HOME/go/mod && echo evil > $SCRATCH/dir/file && ln -s /etc $SCRATCH/etc && echo evil > $HOME/.tofurc \
                  && echo mine > mine && rm -rf $TMPDIR && ln -s $SCRATCH $TMPDIR && echo planted >> $LEDGER";
    let looks = "find $HOME $TMPDIR $SCRATCH -mindepth 1 >> $LEDGER; [ -d $TMPDIR ] && [ ! -L $TMPDIR ] && cat mine >> $LEDGER";
    for mode in ["Automatic", "Manual"] {
        let mut a = with_places(
            &json!({"approval": {"mode": mode}}),
            &[("PLAN", plants), ("APPLY", looks)],
        );
        a.approve_in(mode).await;
        assert_eq!(a.end().await, 0, "{mode}: {:#?}", a.api.status());
        // Files in the stack are part of the checksum, and stay.
        assert_eq!(
            a.ledger(),
            ["init", "plan", "planted", "show", "show", "apply", "mine"],
            "{mode}"
        );
    }
}

/// A test may run as root, who can read every directory; a path of this length is read by nobody.
#[tokio::test]
async fn unreadable_directory_is_the_codes_fault() {
    let plants = "name=$(printf %0200d 0); for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22; do mkdir $name && cd $name; done";
    let mut a = with_places(&json!({}), &[("PLAN", plants)]);
    let failure = a
        .fails(FailureClass::Configuration, reason::SOURCE_INVALID)
        .await;
    let named = failure.message.starts_with("cannot read ") && failure.message.contains("/0000");
    assert!(
        named
            && failure
                .message
                .contains("code of the stack or a hook made it so"),
        "{}",
        failure.message
    );
    let status = a.api.status();
    assert!(
        status
            .next_step
            .or(status.advice)
            .is_some_and(|step| !step.is_empty())
    );
}

#[tokio::test]
async fn file_of_any_size_is_not_read_for_the_checksum() {
    let mut a = with_places(&json!({}), &[("PLAN", "truncate -s 1T big")]);
    let failure = a
        .fails(FailureClass::Configuration, reason::SOURCE_INVALID)
        .await;
    let message = failure.message;
    assert!(
        message.contains("/big: with its 1099511627776 bytes the files have more than 16 GiB"),
        "{message}"
    );
}
