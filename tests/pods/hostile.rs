//! Code of a stack attacks the agent while real OpenTofu plans, shows the plan and applies it: `fixtures/hostile`, with the suite's own
//! provider. Forbidden acts are refused by name, and permitted acts do not affect the approved and applied plan.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use crds::{FailureClass, Phase, RunResult, reason};
use harness::{
    cluster::gobuild::{IN_PODS, Toolset},
    reach,
};
use serde_json::{Value, json};
use servers::{auth::Access, repo::Change};
use tool_versions::Platform;

use crate::{
    releases::{CREDENTIALS, SECRET},
    stored::{approve_waiting, released},
    suite::{LATER, Scene, Test, holds, with},
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("hostile::attacks_of_the_stack_are_refused", attacks),
        Test::new("hostile::later_values_bring_no_code", later_values),
    ]
}

const MAIN: &str = include_str!("../fixtures/hostile/main.tf");
const ATTACK: &str = include_str!("../fixtures/hostile/attack.sh");
const PROVIDER: &str = include_str!("../fixtures/hostile/provider.sh");

/// A state that contains a secret, as a target.
const BEFORE: &str = "resource \"terraform_data\" \"before\" {\n  input = \"worth-stealing\"\n}\n";

/// The agent's secret files, and ways to read them.
const FILES: [&str; 4] = ["token", "datastore", "git", "mirror"];
const WAYS: [&str; 6] = [
    "",
    "_by_the_agents_root",
    "_by_its_own_root",
    "_in_a_user_namespace",
    "_from_its_directory",
    "_by_a_link",
];

/// Other acts that are refused in every phase.
const REFUSED: [&str; 24] = [
    "agents_environment",
    "agents_maps",
    "agents_memory",
    "agents_memory_for_writing",
    "agents_files",
    "message_for_the_kubelet",
    "state_read",
    "state_locked",
    "state_written",
    "state_written_with_that_id",
    "state_unlocked",
    "state_pulled_by_the_tools_file",
    "state_pushed_by_the_tools_file",
    "tool_removed",
    "tool_replaced",
    "tools_moved",
    "tool_planted",
    "provider_planted",
    "file_planted_in_the_cache",
    "tool_planted_in_the_image",
    "kept_plan_planted",
    "kept_plan_linked",
    "kept_configuration_changed",
    "kept_directory_moved",
];
/// Acts that succeed in every phase: they show that the attack itself works.
const DONE: [&str; 3] = ["own_file", "caches_are_there", "kept_directory_is_there"];
/// Acts that succeed during the plan and must have no effect.
const PLANTED: [&str; 10] = [
    "planted_aws_configuration",
    "planted_git_configuration",
    "planted_file_in_tmpdir",
    "planted_file_in_tmp",
    "planted_file_in_shm",
    "planted_file_above_the_source",
    "planted_process",
    "left_a_pipe",
    "left_an_outward_link",
    "left_a_closed_directory",
];
/// Signals to the agent: refused by Landlock since kernel 6.12, discarded by the kernel before, since the agent is PID 1.
const SIGNALS: [&str; 4] = [
    "signal_STOP",
    "signal_TSTP",
    "signal_KILL",
    "agent_signalled",
];
/// Traces of these acts that the apply finds.
const FOUND: [(&str, &str); 9] = [
    ("aws_configuration", "gone"),
    ("git_configuration", "gone"),
    ("file_in_tmpdir", "gone"),
    ("file_in_tmp", "gone"),
    ("file_in_shm", "gone"),
    ("file_above_the_source", "gone"),
    ("process", "gone"),
    // These are part of the stack, and so of the approved content.
    ("outward", "/bin/sh"),
    ("closed", "555"),
];

/// Further acts that are refused to hooks.
const REFUSED_TO_HOOKS: [&str; 2] = ["hook_script_changed", "hook_script_planted"];

/// Acts of a hook before Setup that must have no effect, and traces that a hook before `init` must not find.
const PLANTED_EARLY: [&str; 4] = [
    "planted_git_directory",
    "planted_git_helper",
    "planted_link",
    "planted_watcher",
];
const NOT_FOUND: [&str; 4] = [
    "planted_git_directory_is_there",
    "planted_link_is_there",
    "planted_watcher_is_there",
    "password_stolen",
];
/// Prefix of attacks on the managed state.
const ON_STATE: &str = "state_";

/// The same code as hooks. The first one runs before the source is fetched.
fn hooks() -> Value {
    let hook = |name: &str, when: &str| json!({"name": name, "when": when, "configMapKeyRef": {"name": "attack", "key": "attack.sh"}});
    json!([
        hook("early", "BeforeSetup"),
        hook("begun", "BeforeInit"),
        hook("hook", "AfterPlan"),
        hook("late", "BeforeApply"),
        hook("done", "AfterApply"),
        hook("end", "Always"),
    ])
}

/// The expected outcome of each attempt in a phase.
fn expected(phase: &str) -> BTreeMap<String, String> {
    let of_files = FILES.iter().flat_map(|file| {
        let ways = WAYS
            .iter()
            .map(move |way| (format!("{file}{way}"), "refused"));
        ways.chain([(format!("{file}_is_there"), "done")])
    });
    let is_hook = !matches!(phase, "plan" | "apply");
    let is_early = phase == "early";
    // Without a tool and a state, neither is attacked.
    let is_tried = |name: &&&str| match **name {
        "own_file" => true,
        name if name.starts_with(ON_STATE) => matches!(phase, "plan" | "apply" | "hook" | "late"),
        name => !is_early || name.starts_with("agents_") || name == "message_for_the_kubelet",
    };
    // Code may signal its siblings.
    let reached = ["tool", "agent"].into_iter().flat_map(|who| {
        let ways = reach::WAYS.iter().filter(|_| !is_hook);
        ways.map(move |way| (format!("{who}_{way}"), "refused"))
    });
    let reached = reached.map(|(name, end)| match name.as_str() {
        "tool_signalled" => (name, "done"),
        _ => (name, end),
    });
    let to_hooks = REFUSED_TO_HOOKS.iter().filter(|_| is_hook && !is_early);
    let refused = REFUSED
        .iter()
        .filter(is_tried)
        .chain(to_hooks)
        .chain(NOT_FOUND.iter().filter(|_| phase == "begun"));
    let refused = refused.map(|name| ((*name).to_owned(), "refused"));
    let planted = PLANTED
        .iter()
        .filter(|_| phase == "plan")
        .chain(PLANTED_EARLY.iter().filter(|_| is_early));
    let done = DONE
        .iter()
        .filter(is_tried)
        .chain(planted)
        .map(|name| ((*name).to_owned(), "done"));
    of_files
        .chain(reached)
        .chain(refused)
        .chain(done)
        .filter(|(name, _)| !SIGNALS.contains(&name.as_str()))
        .map(|(name, end)| (name, end.to_owned()))
        .collect()
}

/// Parses the lines `PHASE NAME: END` of a text, ignoring prefixes.
///
/// A provisioner's lines are joined first, since OpenTofu prints the beginning of a line as a line after 100 ms without its end.
fn said(text: &str, phase: &str) -> BTreeMap<String, String> {
    const PROVISIONER: &str = "(local-exec): ";
    let joined: String = text
        .lines()
        .filter_map(|line| Some(line.split_once(PROVISIONER)?.1))
        .collect();
    // It runs in the phase `apply`, where it reports what it looked at and its attacks.
    let joined = joined
        .replace("look ", "\nlook ")
        .replace("apply ", "\napply ");
    let read = |line: &str| {
        let (rest, end) = line.trim_end().rsplit_once(": ")?;
        let (before, name) = rest.rsplit_once(' ')?;
        (before.split(' ').next_back() == Some(phase) && !end.contains(' '))
            .then(|| (name.to_owned(), end.to_owned()))
    };
    text.lines()
        .filter(|line| !line.contains(PROVISIONER))
        .chain(joined.lines())
        .filter_map(read)
        .collect()
}

/// Fails unless the text contains all attempts of a phase with their expected outcomes.
fn fended_off(text: &str, phase: &str) -> Result<()> {
    let (mut said, expected) = (said(text, phase), expected(phase));
    said.retain(|name, end| {
        matches!(end.as_str(), "done" | "refused") && !SIGNALS.contains(&name.as_str())
    });
    let wrong: Vec<_> = expected
        .iter()
        .filter(|(name, end)| said.get(*name) != Some(end))
        .collect();
    let unknown: Vec<_> = said
        .keys()
        .filter(|name| !expected.contains_key(*name))
        .collect();
    ensure!(
        wrong.is_empty() && unknown.is_empty(),
        "{phase}: not {wrong:?}, and not expected {unknown:?}:\n{text}"
    );
    Ok(())
}

/// Commits the stack with its provider to a password-protected repository and returns its URL.
fn commit(scene: &Scene) -> Result<String> {
    let tools = Toolset::ensure(IN_PODS)?;
    let real = std::fs::read(tools.path("terraform-provider-time")?)?;
    // The tool's default directory for providers next to the stack.
    let package = format!(
        "terraform.d/plugins/registry.opentofu.org/pawl/hostile/1.0.0/{}",
        Platform::here()
    );
    let built = tempfile::tempdir()?;
    let reach = std::fs::read(reach::build(built.path())?)?;
    let name = scene.path("hostile");
    scene.suite.git.create(&name)?.commit_changes(
        "main",
        &[
            Change::File("main.tf", MAIN.as_bytes()),
            Change::File("attack.sh", ATTACK.as_bytes()),
            Change::Executable("reach", &reach),
            Change::Executable(
                &format!("{package}/terraform-provider-hostile_v1.0.0"),
                PROVIDER.as_bytes(),
            ),
            Change::Executable(&format!("{package}/real-provider"), &real),
        ],
    )?;
    scene
        .suite
        .git
        .set_access(&name, Access::basic("me", "s3cret-word"));
    Ok(scene.suite.git.url(&name))
}

/// The agent's credentials, which code of the stack must not get.
fn secrets(scene: &Scene) -> Result<()> {
    for (name, (user, password)) in [("source", ("me", "s3cret-word")), (SECRET, CREDENTIALS)] {
        scene.secret(name, &[("username", user), ("password", password)])?;
    }
    Ok(())
}

/// A run of the hostile stack with a managed state, in the image without tools: the pod downloads OpenTofu and the provider.
async fn run(scene: &Scene, url: &str, name: &str, more: Value) -> Result<()> {
    let spec = json!({
        "source": {"git": {"url": url, "revision": "main", "secretRef": {"name": "source"}}},
        "tool": {"name": "OpenTofu", "version": "1.10.6"},
        "backend": null,
        "runner": {"image": scene.suite.releases.image, "imagePullPolicy": "Never"},
    });
    scene.create(name, with(spec, more)).await.map(drop)
}

async fn attacks(scene: Scene) -> Result<()> {
    // Where pods of a namespace may share a directory of the node, code can attack that as well.
    scene.kubectl(&[
        "label",
        "namespace",
        &scene.namespace,
        "pod-security.kubernetes.io/enforce=privileged",
        "--overwrite",
    ])?;
    secrets(&scene)?;
    scene.config_map("attack", &[("attack.sh", ATTACK)])?;
    let url = commit(&scene)?;
    scene
        .real(
            "before",
            BEFORE,
            json!({"backend": null, "stack": "net", "approval": {"mode": "Automatic"}}),
        )
        .await?;
    scene
        .ends_within("before", RunResult::Applied, LATER)
        .await?;
    let before = scene.read("states/net")?;
    holds(&before, "\"number\"")?;

    // A plan-only run.
    run(
        &scene,
        &url,
        "planned",
        json!({"stack": "net", "operation": "Plan", "hooks": hooks()}),
    )
    .await?;
    let status = scene
        .ends_within("planned", RunResult::Planned, LATER)
        .await?;
    ensure!(!status.unconfined && status.claim.is_none(), "{status:?}");
    let log = scene.log("planned").await?;
    for phase in ["early", "begun", "plan", "hook", "end"] {
        fended_off(&log, phase)?;
    }
    unchanged(&scene, &before)?;

    // One run waits in its pod; another pod applies the plan of the other.
    run(
        &scene,
        &url,
        "held",
        json!({"stack": "net", "hooks": hooks(), "approval": {"holdFor": "1h"}}),
    )
    .await?;
    run(
        &scene,
        &url,
        "kept",
        json!({"stack": "kept", "hooks": hooks(), "approval": {"holdFor": "0s"}}),
    )
    .await?;
    let held = scene.phase("held", Phase::AwaitingApproval).await?;
    unchanged(&scene, &before)?;
    ensure!(
        held.plan
            .context("no plan")?
            .changes
            .iter()
            .any(|line| line == "- terraform_data.before"),
        "{:?}",
        held.history
    );
    let kept = released(&scene, "kept").await?;
    for (name, more) in [
        ("held", "terraform_data.before will be destroyed"),
        ("kept", "time_static.hostile will be created"),
    ] {
        shown(&scene, name, more)?;
    }
    approve_waiting(&scene, &kept)?;
    scene.approve("held").await?;
    for (name, restores) in [("held", None), ("kept", Some(1))] {
        let status = scene.ends_within(name, RunResult::Applied, LATER).await?;
        ensure!(!status.unconfined, "{:?}", status.history);
        let attempt = status.attempt.context("no attempt")?;
        ensure!(
            attempt.restores == restores && attempt.tries == 1,
            "{name}: {attempt:?}"
        );
        let log = scene.log(name).await?;
        for phase in ["late", "apply", "done", "end"] {
            fended_off(&log, phase)?;
        }
        let found = FOUND.map(|(name, end)| (name.to_owned(), end.to_owned()));
        ensure!(
            said(&log, "look") == BTreeMap::from(found),
            "{name}: {:?}\n{log}",
            said(&log, "look")
        );
        ensure!(
            !log.contains("eyJ")
                && !scene
                    .read(&format!("terraformruns/{name}/log"))?
                    .contains("eyJ"),
            "{name}: a token"
        );
    }
    let state = scene.read("states/net/download")?;
    ensure!(
        state.contains("time_static")
            && !state.contains("worth-stealing")
            && !state.contains("\"forged\""),
        "{state}"
    );
    ensure!(
        std::fs::symlink_metadata(scene.suite.releases.cache.join("planted")).is_err(),
        "something was written into the cache that runs share"
    );
    Ok(())
}

/// Code that calls Git, which reads its configuration from the environment.
const CALLS_GIT: &str = "resource \"terraform_data\" \"a\" {\n  provisioner \"local-exec\" {\n    command = \"git status || true\"\n  }\n}\n";
/// A value by which OpenTofu runs a command.
const ENCRYPTION: &str = r#"{"key_provider":{"external":{"k":{"command":["/bin/sh","-c","echo ran-by-value >&2; exit 1"]}}},"method":{"aes_gcm":{"m":{"keys":"${key_provider.external.k}"}}},"state":{"method":"method.aes_gcm.m"}}"#;

/// Values that change after the plan, in a Secret and from a hook, would run commands in the approved apply.
async fn later_values(scene: Scene) -> Result<()> {
    scene.secret("rotated", &[("HARMLESS", "1")])?;
    scene
        .real(
            "secret",
            CALLS_GIT,
            json!({"envFrom": [{"secretRef": {"name": "rotated"}}],
                "approval": {"holdFor": "0s", "allowRotation": true}}),
        )
        .await?;
    let config = "GIT_CONFIG_COUNT=1\nGIT_CONFIG_KEY_0=core.fsmonitor\nGIT_CONFIG_VALUE_0=echo ran-by-value >&2; false";
    let hooks = [
        (
            "encryption",
            format!("TF_ENCRYPTION={ENCRYPTION}"),
            "TF_ENCRYPTION",
        ),
        ("git", config.to_owned(), "GIT_CONFIG_COUNT"),
    ];
    for (name, values, _) in &hooks {
        let script = format!("cat > \"$PAWL_HOOK_VALUES\" <<'EOF'\n{values}\nEOF\n");
        let hook = json!({"name": "late", "when": "BeforeApply", "inline": script});
        scene
            .real(name, CALLS_GIT, json!({"hooks": [hook]}))
            .await?;
    }
    let waiting = released(&scene, "secret").await?;
    let patch = json!({"stringData": {"TF_ENCRYPTION": ENCRYPTION}}).to_string();
    scene.kubectl(&["patch", "secret", "rotated", "--type=merge", "-p", &patch])?;
    approve_waiting(&scene, &waiting)?;
    for (name, _, refused) in &hooks {
        scene.approve(name).await?;
        let status = scene
            .fails(
                name,
                FailureClass::Configuration,
                reason::HOOK_INVALID,
                LATER,
            )
            .await?;
        let message = status.failure.context("no failure")?.message;
        holds(
            &message,
            &format!("it hands over {refused}, which would run another program"),
        )?;
    }
    let status = scene
        .fails(
            "secret",
            FailureClass::StalePlan,
            reason::INPUTS_CHANGED,
            LATER,
        )
        .await?;
    ensure!(status.claim.is_none(), "{:?}", status.claim);
    let message = status.failure.context("no failure")?.message;
    holds(
        &message,
        "env TF_ENCRYPTION changed since the plan and would bring code",
    )?;
    for name in ["secret", "encryption", "git"] {
        let log = scene.log(name).await?;
        // The hook's own output is masked.
        ensure!(
            !log.contains("\nran-by-value") && !log.contains(": ran-by-value"),
            "{log}"
        );
    }
    Ok(())
}

/// The state's head is unchanged: the same versions and notes, and no lock.
fn unchanged(scene: &Scene, before: &str) -> Result<()> {
    let now = scene.read("states/net")?;
    ensure!(now == before, "{before}\nbecame\n{now}");
    Ok(())
}

/// The approver's text is of the run's plan and contains no token.
fn shown(scene: &Scene, name: &str, part: &str) -> Result<()> {
    let text = scene.read(&format!("terraformruns/{name}/plan"))?;
    holds(&text, part)?;
    fended_off(&text, "plan")?;
    ensure!(
        !text.contains("eyJ") && !text.contains("No changes"),
        "{text}"
    );
    let json = scene.read(&format!("terraformruns/{name}/planjson"))?;
    ensure!(
        json.contains("resource_changes") && !json.contains("eyJ"),
        "{json}"
    );
    Ok(())
}
