//! Code of the stack beside the tool reaches for the tool and for the agent.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
};

use crate::{
    common::{Attempt, alone, start_with},
    files::{has_landlock, in_a_thread, use_up_landlock},
};
use crds::RunResult;
use harness::{
    cluster::gobuild::Toolset,
    reach::{self, WAYS},
};
use landlock::{CompatLevel, Compatible as _, Ruleset, RulesetAttr as _, Scope};
use runner_agent::settings::Settings;
use serde_json::{Value, json};
use servers::state::StateServer;
use tool_versions::Platform;

/// Stands in the tool's place: before each command, a child reaches for this process, which becomes the tool, and for the agent.
const BESIDE: &str = r#"#!/bin/sh
(for who in tool:$$ agent:$AGENT; do $REACH ${who#*:} | sed "s/^/$1 ${who%:*} /"; done) >> $LEDGER.reach
exec $0.real "$@"
"#;
const STATE: &str =
    r#"echo '{"version": 4, "serial": 1, "lineage": "l", "outputs": {}, "resources": []}'"#;

/// A provider that does the same and then serves, and its code.
const PROVIDER: &str = r#"#!/bin/bash
command=$(tr '\0' '\n' < /proc/$PPID/cmdline | sed -n 2p)
(for who in tool:$PPID agent:$AGENT; do $REACH ${who#*:} | sed "s/^/$command ${who%:*} /"; done) >> $LEDGER.reach
exec "${0%/*}/real-provider"
"#;
const CODE: &str = r#"terraform {
  required_providers {
    hostile = { source = "pawl/hostile" }
  }
}
resource "time_static" "hostile" {
  provider = hostile
}
"#;

/// For each command of the tool, target and way: whether it was refused.
type Found = BTreeMap<(String, String, String), bool>;

fn script(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

fn tool(settings: &Settings) -> std::path::PathBuf {
    settings.tools[0].join("opentofu/1.10.6/tofu")
}

fn beside(settings: &Settings) {
    let tool = tool(settings);
    fs::rename(&tool, tool.with_extension("real")).unwrap();
    script(&tool, BESIDE);
}

/// Runs an attempt to its end. `place` puts the code that reaches.
async fn reached(more: &Value, place: impl FnOnce(&Settings)) -> (Attempt, Found) {
    alone();
    let (kept, built) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let program = reach::build(built.path()).unwrap().display().to_string();
    let agent = std::process::id().to_string();
    let mut a = start_with(
        more,
        &[("REACH", &program), ("AGENT", &agent), ("STATE", STATE)],
        |settings, _| {
            kept.path().clone_into(&mut settings.kept);
            place(settings);
        },
    );
    let status = a.ends(0).await;
    assert_eq!(status.result, Some(RunResult::Applied), "{}", a.log());
    let text = fs::read_to_string(a.dir.path().join("ledger.reach")).unwrap();
    let of = |line: &str| {
        let (way, end) = line.split_once(": ")?;
        let mut words = way.split(' ').map(str::to_owned);
        let key = (words.next()?, words.next()?, words.next()?);
        Some((key, end == "refused"))
    };
    (a, text.lines().filter_map(of).collect())
}

/// Asserts that these ways to a target are refused beside every command of the tool, and all others are not.
fn assert_refused(
    found: &Found,
    commands: &[&str],
    target: &str,
    is_refused: impl Fn(&str) -> bool,
) {
    for command in commands {
        for way in WAYS {
            let key = ((*command).to_owned(), target.to_owned(), (*way).to_owned());
            assert_eq!(found.get(&key), Some(&is_refused(way)), "{key:?}");
        }
    }
}

fn has_scopes() -> bool {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    ruleset.scope(Scope::Signal).is_ok()
}

/// The acts that a child of the tool may do with Landlock. A tool that it kills has not succeeded.
fn assert_out_of_reach((a, found): &(Attempt, Found), commands: &[&str]) {
    if has_landlock(a) {
        assert_refused(found, commands, "tool", |way| way != "signalled");
        let is_refused = |way: &str| way != "signalled" || has_scopes();
        assert_refused(found, commands, "agent", is_refused);
    }
}

#[tokio::test]
async fn code_beside_the_tool_reaches_neither_tool_nor_agent() {
    let reached = reached(&json!({"outputs": {"status": true}}), beside).await;
    assert_out_of_reach(&reached, &["init", "plan", "show", "apply", "state"]);
}

#[tokio::test]
async fn provider_of_opentofu_reaches_neither_tool_nor_agent() {
    const TIME: &str = "terraform-provider-time";
    let Some(tools) = Toolset::of_suite(&["tofu", TIME]).unwrap() else {
        return;
    };
    let states = StateServer::start("127.0.0.1:0".parse().unwrap());
    let states = states.await.unwrap();
    let more = json!({
        "source": {"inline": {"files": {"main.tf": CODE}}},
        "backend": {"type": "http", "config": states.backend_config("net")},
    });
    let place = |settings: &Settings| {
        fs::remove_file(tool(settings)).unwrap();
        symlink(tools.path("tofu").unwrap(), tool(settings)).unwrap();
        let package = format!(
            "registry.opentofu.org/pawl/hostile/1.0.0/{}",
            Platform::here()
        );
        let package = settings.providers.join(package);
        fs::create_dir_all(&package).unwrap();
        fs::copy(tools.path(TIME).unwrap(), package.join("real-provider")).unwrap();
        script(&package.join("terraform-provider-hostile_v1.0.0"), PROVIDER);
    };
    let reached = reached(&more, place).await;
    assert_out_of_reach(&reached, &["plan", "show", "apply"]);
    assert!(states.current("net").is_some());
}

#[test]
fn unconfined_code_traces_no_tool_and_opens_no_output() {
    in_a_thread(|| async {
        use_up_landlock();
        let (_, found) = reached(&json!({"outputs": {"status": true}}), beside).await;
        // Only Landlock refuses these.
        let open = ["memory_opened", "settings_written", "signalled"];
        for ((command, target, way), refused) in &found {
            let is_tool = target == "tool" && !open.contains(&way.as_str());
            assert!(*refused || !is_tool, "{command} {way}");
        }
        assert!(!found.is_empty());
    });
}
