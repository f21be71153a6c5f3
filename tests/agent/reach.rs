//! Code of the stack beside the tool reaches for the tool and for the agent.

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt};

use crate::{
    common::{Attempt, alone, start_with},
    files::{has_landlock, in_a_thread, use_up_landlock},
};
use crds::RunResult;
use harness::reach::{self, WAYS};
use landlock::{CompatLevel, Compatible as _, Ruleset, RulesetAttr as _, Scope};
use serde_json::json;

/// Stands in the tool's place: before each command, a child reaches for this process, which becomes the tool, and for the agent.
const BESIDE: &str = r##"#!/bin/sh
(for who in tool:$$ agent:$AGENT; do $REACH ${who#*:} | sed "s/^/$1 ${who%:*} /"; done) >> $LEDGER.reach
exec $0.real "$@"
"##;
const STATE: &str =
    r#"echo '{"version": 4, "serial": 1, "lineage": "l", "outputs": {}, "resources": []}'"#;

/// Runs an attempt to its end. Returns for each command of the tool, target and way whether it was refused.
async fn reached() -> (Attempt, BTreeMap<(String, String, String), bool>) {
    alone();
    let (kept, built) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let program = reach::build(built.path()).unwrap().display().to_string();
    let agent = std::process::id().to_string();
    let mut a = start_with(
        &json!({"outputs": {"status": true}}),
        &[("REACH", &program), ("AGENT", &agent), ("STATE", STATE)],
        |settings, _| {
            kept.path().clone_into(&mut settings.kept);
            let tool = settings.tools[0].join("opentofu/1.10.6/tofu");
            fs::rename(&tool, tool.with_extension("real")).unwrap();
            fs::write(&tool, BESIDE).unwrap();
            fs::set_permissions(&tool, PermissionsExt::from_mode(0o755)).unwrap();
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
    found: &BTreeMap<(String, String, String), bool>,
    target: &str,
    is_refused: impl Fn(&str) -> bool,
) {
    for command in ["init", "plan", "show", "apply", "state"] {
        for way in WAYS {
            let key = (command.to_owned(), target.to_owned(), (*way).to_owned());
            assert_eq!(found.get(&key), Some(&is_refused(way)), "{key:?}");
        }
    }
}

fn has_scopes() -> bool {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    ruleset.scope(Scope::Signal).is_ok()
}

#[tokio::test]
async fn code_beside_the_tool_reaches_neither_tool_nor_agent() {
    let (a, found) = reached().await;
    if has_landlock(&a) {
        // A killed tool has not succeeded.
        assert_refused(&found, "tool", |way| way != "signalled");
        assert_refused(&found, "agent", |way| way != "signalled" || has_scopes());
    }
}

#[test]
fn unconfined_code_traces_no_tool_and_opens_no_output() {
    in_a_thread(|| async {
        use_up_landlock();
        let (_, found) = reached().await;
        // Only Landlock refuses these.
        let open = ["memory_opened", "settings_written", "signalled"];
        for ((command, target, way), refused) in &found {
            let is_tool = target == "tool" && !open.contains(&way.as_str());
            assert!(*refused || !is_tool, "{command} {way}");
        }
        assert!(!found.is_empty());
    });
}
