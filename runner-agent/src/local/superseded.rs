//! Ends waiting plans that a newer apply of the same stack made stale.

use std::io;

use crds::{Changed, RunResult, TerraformRun, whole_seconds};
use jiff::Timestamp;

use super::{api::FileApi, checksum_of, folder::Folder};

/// Ends each waiting plan if a run was applied after it was made. The tool would refuse it too, but only after the claim.
pub(super) fn end(folder: &Folder) -> io::Result<()> {
    let all = folder.all();
    for (dir, run) in folder.waiting() {
        let Some((_, newer)) = all.iter().find(|(_, other)| overtakes(other, &run)) else {
            continue;
        };
        let name = newer.metadata.name.clone().unwrap_or_default();
        FileApi::create(&dir.join("run.json"), run)?.change(|run| {
            let status = run.status.get_or_insert_default();
            let result = RunResult::Superseded;
            (status.phase, status.result) = (Some(result.phase()), Some(result));
            status.completion_time = Some(whole_seconds(Timestamp::now()));
            status.next_step = None;
            status.message =
                Some(format!("the apply of {name} changed the state after it was planned; nothing of it was applied"));
        })?;
    }
    Ok(())
}

/// Why the plan with this checksum no longer waits, if so.
pub(super) fn why(folder: &Folder, checksum: &str) -> Option<String> {
    let overtaken = |run: &TerraformRun| {
        run.status
            .as_ref()
            .is_some_and(|s| s.result == Some(RunResult::Superseded))
    };
    let found = folder
        .all()
        .into_iter()
        .find(|(_, run)| checksum_of(run) == checksum && overtaken(run));
    found.and_then(|(_, run)| run.status?.message)
}

/// Whether a run changed the state of the same stack after a plan of it was made. Records of several git URLs are in the same folder.
fn overtakes(other: &TerraformRun, plan: &TerraformRun) -> bool {
    let state = |run: &TerraformRun| (run.spec.source.clone(), run.spec.workspace.clone());
    let Some(status) = &other.status else {
        return false;
    };
    let Some(claim) = &status.claim else {
        return false;
    };
    if state(other) != state(plan)
        || status
            .failure
            .as_ref()
            .is_some_and(|failure| failure.changes == Changed::None)
    {
        return false;
    }
    // True for a run that started after the plan, since runs of a folder follow each other; and for one that started before it and was
    // claimed after it.
    let made = plan.plan().and_then(|plan| plan.created_at.clone());
    other.metadata.name > plan.metadata.name || made.is_some_and(|made| claim.at.0 > made.0)
}

#[cfg(test)]
mod tests {
    use crds::PlanStatus;
    use serde_json::json;

    use super::*;

    fn run(name: &str, status: &serde_json::Value) -> TerraformRun {
        let mut run =
            TerraformRun::new(name, serde_json::from_value(json!({"source": {}})).unwrap());
        run.status = Some(serde_json::from_value(status.clone()).unwrap());
        run
    }

    #[test]
    fn only_a_later_apply_makes_a_waiting_plan_stale() {
        let made = "2026-01-01T10:00:05Z".parse::<Timestamp>().unwrap();
        let plan = PlanStatus {
            created_at: Some(whole_seconds(made)),
            ..PlanStatus::default()
        };
        let plan = run(
            "20260101-100000",
            &json!({"phase": "AwaitingApproval", "plan": plan}),
        );
        let at = |second: &str| {
            let at = format!("2026-01-01T{second}Z");
            json!({"phase": "Failed", "claim": {"checksum": "sha256:b", "attempt": 1, "podUID": "local", "nonce": "n", "at": at}})
        };
        let failed = |changes: &str| {
            let mut status = at("10:00:12");
            status["failure"] = json!({"class": "Configuration", "reason": "ApplyFailed", "message": "m", "changes": changes});
            status
        };
        let (newer, older) = ("20260101-100010", "20260101-090000");
        let rows = [
            (newer, at("10:00:12"), true),
            (newer, json!({"phase": "Succeeded"}), false),
            (newer, failed("Some"), true),
            (newer, failed("None"), false),
            (older, at("10:00:09"), true),
            (older, at("09:00:01"), false),
        ];
        for (name, status, wanted) in rows {
            assert_eq!(
                overtakes(&run(name, &status), &plan),
                wanted,
                "{name} {status}"
            );
        }
        let mut elsewhere = run(newer, &at("10:00:12"));
        elsewhere.spec.workspace = "staging".into();
        assert!(!overtakes(&elsewhere, &plan));
    }
}
