//! Hooks and values that are refused.

use super::*;

#[tokio::test]
async fn invalid_hooks_fail_before_the_tool_starts() {
    let of_map = |key: &str| json!({"configMapKeyRef": {"name": "scripts", "key": key}});
    let rows = [
        (
            json!({"inline": "#!/opt/none\n"}),
            reason::HOOK_INVALID,
            "hook x: its #! line wants /opt/none, which is not there",
        ),
        (
            json!({"inline": "#!/usr/bin/env no-such-thing\n"}),
            reason::HOOK_INVALID,
            "hook x: its #! line wants no-such-thing, which is not there",
        ),
        (
            of_map("latin"),
            reason::HOOK_INVALID,
            "hook x is not UTF-8 text",
        ),
        (
            of_map("huge"),
            reason::HOOK_INVALID,
            "hook x has more than 256 KiB",
        ),
        (
            of_map("none"),
            reason::CONFIG_MAP_NOT_FOUND,
            "ConfigMap scripts has no key none; hook x wants scripts/none",
        ),
        (
            json!({"configMapKeyRef": {"name": "gone", "key": "k"}}),
            reason::CONFIG_MAP_NOT_FOUND,
            "ConfigMap gone does not exist or is empty; hook x wants gone/k",
        ),
        (
            json!({"path": "none.sh"}),
            reason::HOOK_INVALID,
            "hook x: none.sh is not in the source",
        ),
        (
            json!({"path": "../../../ledger"}),
            reason::HOOK_INVALID,
            "hook x: ../../../ledger is not in the source",
        ),
        (
            json!({"path": ".."}),
            reason::HOOK_INVALID,
            "hook x: .. leads out of the source",
        ),
        (
            json!({}),
            reason::INVALID_SPEC,
            "hook x needs exactly one of inline, configMapKeyRef and path",
        ),
    ];
    for (source, reason, message) in rows {
        let mut hook = json!({"name": "x", "when": "AfterPlan"});
        hook.as_object_mut()
            .unwrap()
            .extend(source.as_object().unwrap().clone());
        let mut a = start_with(&json!({"hooks": [hook]}), &[], |settings, _| {
            let dir = settings.config_maps.join("scripts");
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("latin"), b"echo \xe9\n").unwrap();
            fs::write(dir.join("huge"), vec![b'#'; 5 << 20]).unwrap();
        });
        assert_eq!(
            a.fails(FailureClass::Configuration, reason).await.message,
            message
        );
        assert!(a.ledger().is_empty(), "{message}");
    }
}

#[tokio::test]
async fn steering_or_late_values_are_refused() {
    for (when, value, said) in [
        (
            "BeforeInit",
            "TF_CLI_ARGS_plan=-destroy",
            "it hands over TF_CLI_ARGS_plan, which would steer",
        ),
        (
            "BeforeInit",
            "LD_PRELOAD=/evil.so",
            "it hands over LD_PRELOAD, which would steer",
        ),
        (
            "BeforeInit",
            "PAWL_HOOK_WHEN=x",
            "it hands over PAWL_HOOK_WHEN, which would steer",
        ),
        (
            "BeforeApply",
            "BASH_ENV=/evil.sh",
            "it hands over BASH_ENV, which would load other code than is approved",
        ),
        (
            "BeforeApply",
            "TF_REATTACH_PROVIDERS={}",
            "it hands over TF_REATTACH_PROVIDERS, which would load other code",
        ),
        (
            "AfterPlan",
            "TF_VAR_a=1",
            "it hands over TF_VAR_a, but a variable of the stack counts only before the plan",
        ),
        (
            "BeforePlan",
            "hunter22 without a name",
            "line 1 of what it hands over is not NAME=value",
        ),
    ] {
        let mut a = start(
            &hooks(&[(when, &format!("echo '{value}' > \"$PAWL_HOOK_VALUES\""))]),
            &[],
        );
        let failure = a
            .fails(FailureClass::Configuration, reason::HOOK_INVALID)
            .await;
        assert!(
            failure.message.contains(said) && !failure.message.contains("hunter22"),
            "{}",
            failure.message
        );
        assert_eq!(a.ran("apply"), 0);
    }
}
