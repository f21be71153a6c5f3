//! Hooks: when each runs, its inputs and outputs, and the effect of its failure.

mod refused;

use std::{fs, future::ready, pin::pin};

use crds::{Changed, FailureClass, HookWhen, Phase, RunResult, names, reason};
use runner_agent::process::{Command, Sink, Source};
use serde_json::{Value, json};

use crate::common::{Attempt, GATE, start, start_with};

/// Default script of a hook: it records when it ran.
const TELL: &str = r#"echo "$PAWL_HOOK_WHEN" >> "$LEDGER""#;

fn hook(when: &str, script: &str) -> Value {
    json!({"name": when.to_lowercase(), "when": when, "inline": format!("{TELL}\n{script}")})
}

fn hooks(all: &[(&str, &str)]) -> Value {
    json!({"hooks": all.iter().map(|(when, script)| hook(when, script)).collect::<Vec<_>>()})
}

fn with(mut spec: Value, name: &str, value: Value) -> Value {
    spec[name] = value;
    spec
}

/// All hooks and tool commands that ran.
fn ran(a: &Attempt) -> String {
    a.ledger().join(" ")
}

#[tokio::test]
async fn hooks_run_in_order_and_hand_values_on() {
    let hand = r#"echo TOKEN=hunter22-x > "$PAWL_HOOK_VALUES""#;
    let spec = hooks(&[
        (
            "BeforeSetup",
            "[ -z \"$PAWL_STACK_DIR\" ] && touch \"$HOME/made\"",
        ),
        (
            "AfterSetup",
            "[ -e main.tf ] && [ -e \"$HOME/made\" ] && command -v tofu",
        ),
        ("BeforeInit", hand),
        ("AfterInit", "[ -e .terraform.lock.hcl ]"),
        (
            "BeforePlan",
            r#"echo "the token is $TOKEN"; echo TF_VAR_a=b > "$PAWL_HOOK_VALUES""#,
        ),
        (
            "AfterPlan",
            "[ \"$PAWL_PLAN_CHANGES $TF_VAR_a\" = 'true b' ] && grep -q plan \"$PAWL_PLAN_FILE\" && echo made > by-a-hook",
        ),
        (
            "BeforeApply",
            "case $PAWL_PLAN_CHECKSUM in sha256:*) echo LATE=1 > \"$PAWL_HOOK_VALUES\";; *) exit 9;; esac",
        ),
        ("AfterApply", "[ \"$PAWL_RESULT $LATE\" = 'Applied 1' ]"),
        ("BeforeDestroy", ""),
        ("AfterDestroy", ""),
        ("Always", "[ \"$PAWL_RESULT\" = Applied ]"),
    ]);
    let apply = r#"echo "apply has $TOKEN $TF_VAR_a$LATE" | sed 's/hunter22/seen/' >> "$LEDGER"; [ -e by-a-hook ] || echo lost >> "$LEDGER""#;
    let mut a = start(
        &spec,
        &[
            ("PLAN", r#"echo "plan has $TF_VAR_a" >> "$LEDGER""#),
            ("BEFORE_APPLY", apply),
        ],
    );
    let status = a.ends(0).await;
    assert_eq!(
        (status.result, &status.failed_hook, &status.failure),
        (Some(RunResult::Applied), &None, &None)
    );
    assert_eq!(
        ran(&a),
        "BeforeSetup AfterSetup BeforeInit init AfterInit BeforePlan plan plan has b AfterPlan show show BeforeApply apply apply has \
         seen-x 1 AfterApply Always"
    );
    let steps: Vec<_> = status.steps.iter().map(|step| step.name.as_str()).collect();
    let wanted = [
        "beforesetup",
        "aftersetup",
        "beforeinit",
        "",
        "afterinit",
        "beforeplan",
        "",
        "afterplan",
        "",
        "beforeapply",
        "",
    ];
    let wanted = wanted.iter().map(|name| {
        if name.is_empty() {
            String::new()
        } else {
            format!("hook {name}")
        }
    });
    for (step, wanted) in steps.iter().zip(wanted) {
        assert!(
            wanted.is_empty() && !step.starts_with("hook ") || *step == wanted,
            "{steps:?}"
        );
    }
    assert!(
        status
            .steps
            .iter()
            .all(|step| step.finished_at.is_some() && step.exit_code.is_some())
    );
    assert!(
        a.log().contains("the token is (sensitive value)") && !a.log().contains("hunter22"),
        "{}",
        a.log()
    );
    let all = serde_json::to_string(&*a.api.state.lock().unwrap().writes).unwrap();
    assert!(!all.contains("hunter22"), "{all}");
}

/// With `set -x` a shell prints a value before it is in the file of values.
#[tokio::test]
async fn values_are_masked_even_if_printed_before() {
    for (script, code, said) in [
        (
            "set -x\nTOKEN=hunter22\nsleep 0.3\necho TOKEN=$TOKEN > \"$PAWL_HOOK_VALUES\"",
            0,
            "+ echo (sensitive value)",
        ),
        (
            "echo hunter22\necho TOKEN=hunter22 > \"$PAWL_HOOK_VALUES\"; echo no hunter22; exit 3",
            1,
            "no (sensitive value)",
        ),
        (
            "echo hunter22\necho TOKEN=hunter22 > $HOME/x; ln -sf $HOME/x \"$PAWL_HOOK_VALUES\"",
            1,
            "output is not shown",
        ),
        (
            "echo hunter22\necho TOKEN=hunter22 > \"$PAWL_HOOK_VALUES\"; kill -9 $$",
            1,
            "(sensitive value)",
        ),
        (
            "echo hunter22\nrm \"$PAWL_HOOK_VALUES\" && mkfifo \"$PAWL_HOOK_VALUES\"",
            1,
            "cannot be read",
        ),
        (
            "echo hunter22\nhead -c 100000 /dev/zero | tr '\\0' x > \"$PAWL_HOOK_VALUES\"",
            1,
            "cannot be read",
        ),
    ] {
        let mut a = start(
            &hooks(&[("BeforeInit", script), ("AfterApply", "echo has $TOKEN")]),
            &[],
        );
        assert_eq!(a.end().await, code, "{script}: {:#?}", a.api.status());
        let seen = format!(
            "{}{}",
            a.log(),
            serde_json::to_string(&*a.api.state.lock().unwrap().writes).unwrap()
        );
        assert!(
            seen.contains(said) && !seen.contains("hunter22"),
            "{script}: {seen}"
        );
    }
}

/// A hook without a file of values hands over nothing, and its output is shown at once.
#[tokio::test]
async fn hook_without_values_is_logged_as_it_runs() {
    let guess = format!(
        "env | grep -c ^PAWL_HOOK_V; echo TOKEN=guessed > \"$TMPDIR/hook-values\"; echo at work; {GATE}"
    );
    let mut a = start(
        &hooks(&[
            ("BeforeInit", &guess),
            ("AfterInit", "echo \"has $TOKEN.\""),
        ]),
        &[],
    );
    a.until_ran("BeforeInit").await;
    a.until_said("at work").await;
    assert!(a.log().contains("\n0\nat work"), "{}", a.log());
    a.open();
    a.ends(0).await;
    assert!(a.log().contains("has ."), "{}", a.log());
}

#[tokio::test]
async fn files_of_a_hook_before_setup_are_deleted() {
    let leave = "cd \"$PAWL_SOURCE_DIR\" && mkdir .git && ln -s \"$HOME/elsewhere\" main.tf\n\
        setsid sleep 600 >/dev/null 2>&1 &\necho $! > \"$HOME/pid\"";
    let look = "cd \"$PAWL_SOURCE_DIR\" && [ ! -e .git ] && [ ! -L main.tf ] && [ -s main.tf ] && [ ! -e \"$HOME/elsewhere\" ] \
        && ! kill -0 \"$(cat \"$HOME/pid\")\"";
    let mut a = start_with(
        &hooks(&[("BeforeSetup", leave), ("AfterSetup", look)]),
        &[],
        |_, _| {
            // As in a pod, where PID 1 adopts orphans.
            nix::sys::prctl::set_child_subreaper(true).unwrap();
        },
    );
    a.ends(0).await;
}

#[tokio::test]
async fn hooks_match_operation_and_changes() {
    let all = hooks(&[
        ("BeforeApply", ""),
        ("AfterApply", ""),
        ("BeforeDestroy", ""),
        ("AfterDestroy", ""),
        ("Always", "echo \"$PAWL_RESULT\" >> \"$LEDGER\""),
    ]);
    for (spec, env, wanted) in [
        (
            with(all.clone(), "operation", json!("Destroy")),
            vec![],
            "init plan show show BeforeDestroy apply AfterDestroy Always Destroyed",
        ),
        (
            all.clone(),
            vec![("PLAN_EXIT", "0"), ("PLAN_JSON", "{}")],
            "init plan show Always NoChanges",
        ),
        (
            with(all.clone(), "operation", json!("Plan")),
            vec![],
            "init plan show show Always Planned",
        ),
        (all.clone(), vec![("INIT", "exit 1")], "init Always Failed"),
    ] {
        let mut a = start(&spec, &env);
        a.end().await;
        assert_eq!(ran(&a), wanted, "{:#?}", a.api.status());
        assert!(a.api.status().failed_hook.is_none());
    }
}

#[tokio::test]
async fn failed_hook_stops_its_phase_unless_continue() {
    for (when, wanted) in [
        ("BeforeSetup", "BeforeSetup"),
        ("AfterSetup", "AfterSetup"),
        ("BeforeInit", "BeforeInit"),
        ("AfterInit", "init AfterInit"),
        ("BeforePlan", "init BeforePlan"),
        ("AfterPlan", "init plan AfterPlan"),
        ("BeforeApply", "init plan show show BeforeApply"),
        ("BeforeDestroy", "init plan show show BeforeDestroy"),
    ] {
        let is_late = wanted.contains("show");
        let operation = if when == "BeforeDestroy" {
            "Destroy"
        } else {
            "Apply"
        };
        let mut spec = with(
            hooks(&[(when, "echo it is not to be; exit 3")]),
            "operation",
            json!(operation),
        );
        let mut a = start(&spec, &[]);
        let failure = a
            .fails(FailureClass::Configuration, reason::HOOK_FAILED)
            .await;
        let status = a.api.status();
        let said = format!(
            "hook {} ({when}) failed with 3: it is not to be",
            when.to_lowercase()
        );
        assert_eq!(
            (failure.message, failure.changes),
            (said.clone(), Changed::None)
        );
        assert_eq!(
            (status.result, status.claim.is_some()),
            (Some(RunResult::Failed), is_late)
        );
        assert!(
            status
                .step()
                .unwrap()
                .starts_with("read the hook's output in the log")
        );
        assert_eq!(ran(&a), wanted);

        spec["hooks"][0]["onFailure"] = json!("Continue");
        let mut a = start(&spec, &[]);
        assert_eq!(a.end().await, 0, "{when}");
        let status = a.api.status();
        let failed = status.failed_hook.unwrap();
        assert_eq!((failed.message, failed.when.as_str()), (said, when));
        assert!(
            status.failure.is_none() && status.history.iter().any(|line| line.contains("  Hook  ")),
            "{:#?}",
            status.history
        );
        assert_eq!((a.ran(when), a.ran("apply")), (1, 1));
    }
}

/// A hook after the apply reverts nothing: the datastore has the result before it begins.
#[tokio::test]
async fn result_precedes_hooks_after_the_apply() {
    let mut a = start(
        &hooks(&[("AfterApply", &format!("{GATE}\nexit 4")), ("Always", "")]),
        &[],
    );
    a.until_ran("AfterApply").await;
    let said = "applied +1 ~0 -0; the hooks after it run";
    a.api
        .until("a word of the hooks", |s| {
            s.message.as_deref() == Some(said)
        })
        .await;
    assert_eq!(
        (a.api.status().phase, a.api.status().result),
        (Some(Phase::Apply), None)
    );
    assert_eq!(a.message().unwrap().result, Some(RunResult::Applied));
    a.open();
    let status = a.ends(0).await;
    assert_eq!(
        (status.phase, status.result),
        (Some(Phase::Succeeded), Some(RunResult::Applied))
    );
    assert!(status.failure.is_none());
    let failed = status.failed_hook.unwrap();
    assert_eq!(
        (failed.when, failed.message.as_str()),
        (
            HookWhen::AfterApply,
            "hook afterapply (AfterApply) failed with 4"
        )
    );
    assert_eq!(
        status.message.as_deref(),
        Some("applied +1 ~0 -0; hook afterapply (AfterApply) failed with 4")
    );
    assert!(status.next_step.unwrap().contains("logs"));
    assert_eq!(a.ran("Always"), 1, "whatever became of the one before");
    assert_eq!(a.message().unwrap().result, Some(RunResult::Applied));
}

/// If only the pod has the result, a pod that dies in a hook would lose it.
#[tokio::test]
async fn hooks_at_the_end_need_a_stored_result() {
    let store = crate::repository::Datastore::start();
    let mut spec = hooks(&[("AfterApply", ""), ("Always", "")]);
    spec["backend"] = json!({"type": "http", "config": {"address": "http://state/x"}});
    let mut a = start_with(&spec, &[("BEFORE_APPLY", GATE)], |settings, api| {
        store.give(settings, api);
    });
    a.until_ran("apply").await;
    store.forget();
    a.open();
    let status = a.ends(0).await;
    assert_eq!(
        (status.result, &status.failure),
        (Some(RunResult::Applied), &None)
    );
    let failed = status.failed_hook.unwrap();
    let said =
        "the hooks at the end were not run: the result could not be left with the datastore before";
    assert_eq!(
        (failed.when, failed.message.as_str()),
        (HookWhen::AfterApply, said)
    );
    assert!(status.message.unwrap().ends_with(said));
    assert_eq!((a.ran("AfterApply"), a.ran("Always")), (0, 0));
}

#[tokio::test]
async fn cancel_after_the_apply_ends_only_the_hook() {
    let mut a = start(
        &hooks(&[("AfterApply", "while :; do sleep 0.05; done")]),
        &[],
    );
    a.until_ran("AfterApply").await;
    a.api.annotate(names::CANCEL, "enough");
    let status = a.ends(0).await;
    assert_eq!(status.result, Some(RunResult::Applied));
    assert_eq!(
        status.failed_hook.unwrap().message,
        "hook afterapply (AfterApply) did not end, and was stopped"
    );
    assert!(status.steps.last().unwrap().finished_at.is_some());
}

#[tokio::test]
async fn cancel_in_a_hook_before_the_apply_applies_nothing() {
    let hang = "trap 'echo told >> $LEDGER; exit 1' INT; echo ready >> $LEDGER; while :; do sleep 0.05; done";
    let mut a = start(&hooks(&[("BeforeApply", hang), ("Always", "")]), &[]);
    a.until_ran("ready").await;
    a.api.annotate(names::CANCEL, "no");
    assert_eq!(
        a.fails(FailureClass::Interrupted, reason::APPLY_INTERRUPTED)
            .await
            .changes,
        Changed::None
    );
    assert_eq!(
        (a.api.status().result, a.ran("told"), a.ran("apply")),
        (Some(RunResult::Failed), 1, 0)
    );
    assert_eq!(a.ran("Always"), 1, "also of a run that was stopped");
}

#[tokio::test]
async fn change_by_a_hook_after_the_approval_is_refused() {
    let mut a = start(&hooks(&[("BeforeApply", "echo '# more' >> main.tf")]), &[]);
    let failure = a
        .fails(FailureClass::Integrity, reason::CHECKSUM_MISMATCH)
        .await;
    let status = a.api.status();
    assert!(
        failure.message.contains("the code") && failure.changes == Changed::None,
        "{}",
        failure.message
    );
    assert_eq!(
        (status.result, a.ran("apply")),
        (Some(RunResult::Failed), 0)
    );
    assert!(
        status.claim.is_some(),
        "it was claimed, and is not claimed again"
    );
}

/// Discards the output.
struct Nobody;
impl Sink for Nobody {
    fn line(&mut self, _: Source, _: &str, _: u64) {}
    async fn chunk(&mut self) {}
}

/// A surviving process could still change what is applied.
#[tokio::test]
async fn process_left_by_a_hook_prevents_the_apply() {
    let mut a = start(&hooks(&[("BeforeApply", GATE), ("Always", "")]), &[]);
    a.until_ran("BeforeApply").await;
    // It is not reaped before the run is over, so the agent sees it as a zombie all the time.
    let lasting = Command {
        program: "/bin/sleep".into(),
        args: vec!["600".into()],
        dir: "/".into(),
        ..Command::default()
    };
    let (children, mut nobody) = (a.children.clone(), Nobody);
    let mut left = pin!(children.run(&lasting, &mut nobody));
    tokio::select! {
        biased;
        exit = &mut left => panic!("it ended by itself: {exit:?}"),
        () = ready(()) => {}
    }
    a.open();
    let failure = a
        .fails(FailureClass::Configuration, reason::HOOK_FAILED)
        .await;
    assert_eq!(failure.changes, Changed::None);
    assert_eq!(
        failure.message,
        "what the hooks before the apply left does not end; nothing was applied"
    );
    let status = a.api.status();
    assert_eq!(
        (status.result, status.claim.is_some(), a.ran("apply")),
        (Some(RunResult::Failed), true, 0)
    );
    assert_eq!((a.ran("BeforeApply"), a.ran("Always")), (1, 1));
    assert_eq!(left.await.unwrap().signal, Some(9), "it was asked to stop");
}

/// Code of the stack may change files, but a hook's script is fixed beforehand.
#[tokio::test]
async fn script_is_fixed_at_setup() {
    let files = json!({"inline": {"files": {"main.tf": "", "scripts/late.sh": "#!/bin/sh\necho early >> \"$LEDGER\"\n"}}});
    let hooks = json!([{"name": "late", "when": "BeforeApply", "path": "scripts/late.sh"}]);
    let spec = with(with(json!({}), "hooks", hooks), "source", files);
    let change = r#"echo 'echo evil >> "$LEDGER"' > scripts/late.sh; find "$PWD/../.." -path '*hooks/late*' -exec sh -c 'echo "echo evil" > {}' \;"#;
    let mut a = start(&spec, &[("PLAN", change)]);
    a.ends(0).await;
    assert_eq!(ran(&a), "init plan show show early apply");
}
