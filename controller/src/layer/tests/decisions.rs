//! Commits and settings, and the runs they cause.

use super::*;
use crate::layer::conditions::{APPLY_UP_TO_DATE, COMMIT_PLANNED, READY};

#[test]
fn no_run_before_the_first_revision() {
    let world = World::new().settled();
    assert!(world.made.is_empty());
    assert_eq!(world.state(), Some(LayerState::PlanNeeded));
    assert_eq!(world.condition(READY), is("False", "NoRevision"));
}

#[test]
fn commit_is_planned_approved_and_applied() {
    let mut world = World::begun();
    let run = world.open().unwrap();
    let repository = run.spec.source.repository.as_ref().unwrap();
    assert_eq!(repository.revision.as_str(), sha(1).as_str());
    assert_eq!(repository.path.as_str(), "live/net");
    assert_eq!(run.owner_references()[0].uid, "layer-uid");
    assert!(
        run.spec.stack.as_ref().unwrap().starts_with("net-"),
        "as a run by hand of the same directory"
    );
    assert_eq!(world.trigger().as_str(), "Commit");
    assert_eq!(world.state(), Some(LayerState::PlanNeeded));
    world.planned();
    let status = world.status();
    assert_eq!(status.state, Some(LayerState::ApplyNeeded));
    assert_eq!(status.last_result.as_deref(), Some("Planned +1 ~0 -0"));
    assert!(
        status
            .next_step
            .unwrap()
            .contains("pawl.run/approve=sha256:cc")
    );
    assert_eq!(status.pending.unwrap().run, world.open_name());
    world.ends(RunResult::Applied).settle();
    let status = world.status();
    assert_eq!(status.state, Some(LayerState::Idle));
    assert_eq!(status.revision.as_deref(), Some("010101010101"));
    assert_eq!(status.pending, None);
    assert_eq!(status.waits_for, None);
    assert_eq!(status.current_run, None);
    assert_eq!(world.condition(READY), is("True", "UpToDate"));
    assert_eq!(world.made.len(), 1);
}

#[test]
fn plan_takes_two_status_writes_idle_layer_none() {
    // Burrito 11.17: each reconcile wrote.
    let mut world = World::applied();
    world.pushed(2, "b");
    let before = world.writes;
    world.settle();
    world.begins().settle().ends(RunResult::NoChanges).settle();
    assert_eq!(world.writes - before, 2);
    world.later(5).settle();
    assert_eq!(world.writes - before, 2, "an idle layer costs none");
}

#[test]
fn repeated_decision_creates_one_run() {
    // Burrito 11.5, Burrito 11.6: a lost status write, or a stale cache, caused a second run.
    let mut world = World::new().commit(1, "a");
    let (one, two) = (world.decide(), world.decide());
    assert_eq!(one, two);
    let named = world.due();
    world.later(3);
    assert_eq!(world.due(), named, "whenever");
    world.act(one, usize::MAX);
    world.layer.status.as_mut().unwrap().current_run = None;
    world.layer.status.as_mut().unwrap().last_plan = None;
    world.act(two, usize::MAX);
    world.settle();
    assert_eq!(world.made.len(), 1);
}

#[test]
fn commit_during_a_plan_is_planned_after_it() {
    // Burrito 11.3: the plan of A was newer than B, and B counted as planned.
    for end in [RunResult::NoChanges, RunResult::Applied] {
        let mut world = World::begun();
        world.begins().pushed(2, "b").settle();
        assert_eq!(world.made.len(), 1, "what plans comes to its end");
        world.later(5).ends(end).settle();
        assert_eq!(world.content(), digest("b"));
    }
}

#[test]
fn newer_commit_supersedes_a_waiting_plan() {
    let mut world = World::begun();
    world.waits(1);
    let older = world.open_name();
    world.pushed(2, "b").settle();
    let run = world
        .runs
        .iter()
        .find(|run| run.name_any() == older)
        .unwrap();
    assert!(run.annotations()[names::CANCEL].contains("superseded for commit 020202020202"));
    assert_eq!(world.content(), digest("b"));
}

#[test]
fn irrelevant_commit_leaves_the_waiting_plan() {
    let mut world = World::begun();
    world.waits(1).pushed(2, "a").settle();
    assert_eq!(world.made.len(), 1);
    assert_eq!(world.condition(COMMIT_PLANNED), is("True", "CommitPlanned"));
}

#[test]
fn changed_settings_supersede_a_waiting_plan() {
    let mut world = World::begun();
    world.waits(1);
    world.change(&json!({"spec": {"template": {"workspace": "prod"}}}));
    world.settle();
    assert_eq!(world.made.len(), 2);
    assert_eq!(world.open().unwrap().spec.workspace.as_str(), "prod");
}

#[test]
fn approved_or_claimed_run_is_never_superseded() {
    let mut world = World::begun();
    world.waits(1).approved().pushed(2, "b").settle();
    assert_eq!(world.made.len(), 1);
    world.claims().settle();
    assert!(
        !world
            .open()
            .unwrap()
            .annotations()
            .contains_key(names::CANCEL)
    );
    world.ends(RunResult::Applied).settle();
    assert_eq!(world.content(), digest("b"));
}

#[test]
fn plan_without_changes_makes_the_layer_idle() {
    let mut world = World::new()
        .commit(1, "a")
        .with(&json!({"spec": {"remediation": {"onCommit": "Automatic"}}}))
        .settled();
    world.begins().ends(RunResult::NoChanges).settle();
    world.later(30).settle();
    assert_eq!(world.made.len(), 1);
    assert_eq!(world.state(), Some(LayerState::Idle));
    assert_eq!(world.condition(APPLY_UP_TO_DATE), is("True", "UpToDate"));
}

#[test]
fn looks_for_drift_and_failures_push_out_no_applied_run() {
    // First hour with Pawl, stumble 1: looks without changes deleted the last applied run with its approver, plan and log.
    let mut world = World::new()
        .commit(1, "a")
        .with(&json!({"spec": {"runHistory": 1, "appliedHistory": 2, "appliedHistoryAge": "20h"}}))
        .settled();
    world.ends(RunResult::Applied);
    for revision in 2..5 {
        world.later(60).pushed(revision, &format!("{revision:x}"));
        world.settle();
        world.waits(1);
        world.ends(RunResult::Applied);
        world.settle();
    }
    for revision in 5..9 {
        world.later(60).pushed(revision, &format!("{revision:x}"));
        world.settle();
        world.begins().ends(RunResult::NoChanges);
        world.settle();
    }
    let left = |world: &World| {
        world
            .runs
            .iter()
            .map(ResourceExt::name_any)
            .collect::<Vec<_>>()
    };
    let wanted = [2, 3, 7].map(|n: usize| world.made[n].clone());
    assert_eq!(left(&world), wanted, "two applied runs, one look");
    world.later(20 * 3600).settle();
    let left = left(&world);
    assert!(
        left.contains(&world.made[3]) && !left.contains(&world.made[2]),
        "the last applied run has no age: {left:?}"
    );
}

#[test]
fn history_limit_spares_applied_and_indeterminate_runs() {
    // Burrito 11.5: a lost status write made the controller forget a run in progress and delete it.
    let mut world = World::new()
        .commit(1, "a")
        .with(&json!({"spec": {"runHistory": 2}}))
        .settled();
    world.ends(RunResult::Applied);
    let applied = world.made[0].clone();
    for revision in 2..9 {
        world.later(1).pushed(revision, &format!("{revision:x}"));
        world.settle();
        world.waits(1);
        world.ends(if revision == 4 {
            RunResult::Indeterminate
        } else {
            RunResult::Rejected
        });
        world.settle();
    }
    let left: Vec<_> = world.runs.iter().map(ResourceExt::name_any).collect();
    assert_eq!(
        left,
        [
            applied,
            world.made[3].clone(),
            world.made[6].clone(),
            world.made[7].clone()
        ]
    );
}
