//! What is decided, a case each. Numbers are those of Burrito's weak points (`design/peers-bugs.md` has none of them twice).

use super::*;
use crate::layer::conditions::{APPLY_UP_TO_DATE, COMMIT_PLANNED, READY};

fn is(status: &str, reason: &str) -> (String, String) {
    (status.into(), reason.into())
}

#[test]
fn nothing_is_made_before_somebody_looked() {
    let mut world = World::new();
    world.settle();
    assert!(world.made.is_empty());
    assert_eq!((world.state(), world.condition(READY)), (Some(LayerState::PlanNeeded), is("False", "NoRevision")));
}

#[test]
fn a_commit_is_planned_waits_and_is_applied() {
    let mut world = World::new().commit(1, "a");
    world.settle();
    let run = world.open().unwrap();
    let repository = run.spec.source.repository.as_ref().unwrap();
    assert_eq!((repository.revision.as_str(), repository.path.as_str()), (sha(1).as_str(), "live/net"));
    assert_eq!(run.owner_references()[0].uid, "layer-uid");
    assert!(run.spec.stack.as_ref().unwrap().starts_with("net-"), "as a run by hand of the same directory");
    assert_eq!((world.trigger().as_str(), world.state()), ("Commit", Some(LayerState::PlanNeeded)));
    world.waits(1);
    world.settle();
    let status = world.status();
    assert_eq!((status.state, status.last_result.as_deref()), (Some(LayerState::ApplyNeeded), Some("Planned +1 ~0 -0")));
    assert!(status.next_step.unwrap().contains("pawl.run/approve=sha256:cc"));
    assert_eq!(status.pending.unwrap().run, world.open_name());
    world.ends(RunResult::Applied);
    world.settle();
    let status = world.status();
    assert_eq!((status.state, status.revision.as_deref()), (Some(LayerState::Idle), Some("010101010101")));
    assert_eq!((status.pending, status.waits_for, status.current_run), (None, None, None));
    assert_eq!(world.condition(READY), is("True", "UpToDate"));
    assert_eq!(world.made.len(), 1);
}

#[test]
fn a_plan_costs_two_writes_of_the_status() {
    // Weak point 17: a write for each look.
    let mut world = World::applied();
    world.pushed(2, "b");
    let before = world.writes;
    world.settle();
    world.begins();
    world.settle();
    world.ends(RunResult::NoChanges);
    world.settle();
    assert_eq!(world.writes - before, 2);
    world.later(5);
    world.settle();
    assert_eq!(world.writes - before, 2, "an idle layer costs none");
}

#[test]
fn the_same_look_twice_makes_one_run() {
    // Weak points 5 and 6: a lost write of the status, or a cache that is late, made a second run.
    let mut world = World::new().commit(1, "a");
    let (one, two) = (world.decide(), world.decide());
    assert_eq!(one, two);
    world.later(3);
    let names = |decision: &Decision| {
        decision
            .actions
            .iter()
            .filter_map(|a| if let Action::Create(run) = a { Some(run.name.clone()) } else { None })
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&one), names(&world.decide()), "whenever");
    world.act(one, usize::MAX);
    world.layer.status.as_mut().unwrap().current_run = None;
    world.layer.status.as_mut().unwrap().last_plan = None;
    world.act(two, usize::MAX);
    world.settle();
    assert_eq!(world.made.len(), 1);
}

#[test]
fn a_commit_that_arrives_during_a_plan_is_planned_after_it() {
    // Weak point 3: the plan of A was newer than B, and B counted as planned.
    for end in [RunResult::NoChanges, RunResult::Applied] {
        let mut world = World::new().commit(1, "a");
        world.settle();
        world.begins();
        world.pushed(2, "b");
        world.settle();
        assert_eq!(world.made.len(), 1, "what plans comes to its end");
        world.later(5);
        world.ends(end);
        world.settle();
        assert_eq!(world.open().unwrap().annotations()[names::CONTENT], digest("b"));
    }
}

#[test]
fn a_newer_commit_takes_the_place_of_a_plan_that_waits() {
    let mut world = World::new().commit(1, "a");
    world.settle();
    world.waits(1);
    let older = world.open_name();
    world.pushed(2, "b");
    world.settle();
    let run = world.runs.iter().find(|run| run.name_any() == older).unwrap();
    assert!(run.annotations()[names::CANCEL].contains("commit 020202020202 took its place"));
    assert_eq!(world.open().unwrap().annotations()[names::CONTENT], digest("b"));
}

#[test]
fn a_commit_that_matters_not_takes_nobodys_place() {
    let mut world = World::new().commit(1, "a");
    world.settle();
    world.waits(1);
    world.pushed(2, "a");
    world.settle();
    assert_eq!(world.made.len(), 1);
    assert_eq!(world.condition(COMMIT_PLANNED), is("True", "CommitPlanned"));
}

#[test]
fn other_settings_take_the_place_of_a_plan_that_waits() {
    let mut world = World::new().commit(1, "a");
    world.settle();
    world.waits(1);
    world.change(&json!({"spec": {"template": {"workspace": "prod"}}}));
    world.settle();
    assert_eq!((world.made.len(), world.open().unwrap().spec.workspace.as_str()), (2, "prod"));
}

#[test]
fn what_is_approved_or_claimed_comes_to_its_end() {
    let mut world = World::new().commit(1, "a");
    world.settle();
    world.waits(1);
    world.approved();
    world.pushed(2, "b");
    world.settle();
    assert_eq!(world.made.len(), 1);
    let claim = json!({"checksum": digest("c"), "attempt": 1, "podUID": "p", "nonce": "0".repeat(32), "at": world.now});
    world.merge_run(&world.open_name(), &json!({"status": {"phase": "Apply", "claim": claim}}));
    world.settle();
    assert!(!world.open().unwrap().annotations().contains_key(names::CANCEL));
    world.ends(RunResult::Applied);
    world.settle();
    assert_eq!(world.open().unwrap().annotations()[names::CONTENT], digest("b"));
}

#[test]
fn a_commit_that_comes_back_is_planned_again() {
    let mut world = World::new().commit(1, "a");
    world.settle();
    world.waits(1);
    world.pushed(2, "b");
    let decision = world.decide();
    world.act(decision, usize::MAX);
    world.pushed(1, "a");
    world.settle();
    let run = world.open().unwrap();
    assert_eq!(run.annotations()[names::CONTENT], digest("a"), "the run of it was taken back");
    world.waits(1);
    world.ends(RunResult::Applied);
    world.pushed(2, "b");
    world.settle();
    world.ends(RunResult::Applied);
    world.pushed(1, "a");
    world.settle();
    assert_eq!(world.open().unwrap().annotations()[names::CONTENT], digest("a"), "by a push by force");
    assert_eq!(world.made.len(), 4);
}

#[test]
fn what_a_person_does_not_want_is_not_planned_again_at_once() {
    for end in [RunResult::Rejected, RunResult::Expired, RunResult::Canceled, RunResult::Superseded] {
        let mut world = World::new().commit(1, "a");
        world.settle();
        world.waits(1);
        world.ends(end);
        world.settle();
        world.later(60);
        world.settle();
        assert_eq!((world.made.len(), world.state()), (1, Some(LayerState::ApplyNeeded)), "{end}");
        assert!(world.status().waits_for.unwrap().contains(end.as_str()), "{end}");
        let asks = |world: &mut World| {
            world.settle();
            world.made.len()
        };
        world.annotate(names::PLAN, "now");
        assert_eq!(asks(&mut world), 2, "{end}: a gesture");
        world.ends(RunResult::NoChanges);
        world.settle();
        assert_eq!(world.state(), Some(LayerState::Idle));
    }
}

#[test]
fn what_was_cancelled_before_its_plan_waits_as_well() {
    let mut world = World::new().commit(1, "a");
    world.settle();
    world.begins();
    world.ends(RunResult::Canceled);
    world.settle();
    world.later(3000);
    world.settle();
    assert_eq!(world.made.len(), 1);
    assert_eq!(world.status().failures.unwrap().reason, "Canceled");
    world.pushed(2, "b");
    world.settle();
    assert_eq!(world.made.len(), 2);
}

#[test]
fn the_look_for_drift_brings_back_what_was_denied_and_approves_nothing_by_it() {
    let remediation = json!({"spec": {"remediation": {"onCommit": "Manual", "onDrift": "Automatic"}}});
    let mut world = World::new().with(&remediation).commit(1, "a");
    world.settle();
    world.waits(1);
    world.ends(RunResult::Rejected);
    world.settle();
    world.later(60 * 27);
    world.settle();
    assert_eq!((world.trigger().as_str(), world.made.len()), ("Drift", 2));
    assert_eq!(world.open().unwrap().spec.approval.mode, crds::ApprovalMode::Manual);
}

#[test]
fn a_failure_is_tried_again_where_that_may_help_and_after_its_end() {
    // Weak point 8: every failure was tried again, from the start of the one before.
    let mut world = World::new().commit(1, "a").with(&json!({"spec": {"maxRetries": 2}}));
    world.settle();
    let mut waits = Vec::new();
    for round in 1.. {
        world.begins();
        world.later(120);
        world.fails("Transient", "ProviderUnreachable");
        world.settle();
        let failures = world.status().failures.unwrap();
        assert_eq!((failures.times, failures.run.as_str()), (round, world.made.last().unwrap().as_str()));
        let Some(at) = failures.retry_at else { break };
        waits.push(at.0.duration_since(world.now).as_secs());
        let before = world.made.len();
        world.later(0);
        world.settle();
        assert_eq!(world.made.len(), before, "not before its time");
        world.now = at.0;
        world.settle();
        assert_eq!((world.made.len(), world.trigger().as_str()), (before + 1, "Retry"));
    }
    assert_eq!((waits, world.made.len()), (vec![60, 120], 3));
    assert_eq!(world.condition(READY), is("False", "RunFailed"));
    world.later(60 * 100);
    world.settle();
    assert_eq!(world.made.len(), 3, "only a commit or a person");
    world.annotate(names::PLAN, "now");
    world.settle();
    world.fails("Transient", "ProviderUnreachable");
    world.settle();
    assert_eq!(world.status().failures.unwrap().times, 1, "a person begins anew");
}

#[test]
fn what_no_try_helps_waits_for_a_commit() {
    for class in ["Configuration", "Policy", "Integrity", "Internal"] {
        let mut world = World::new().commit(1, "a");
        world.settle();
        world.begins();
        world.fails(class, "InvalidConfiguration");
        world.settle();
        world.later(60 * 100);
        world.settle();
        assert_eq!((world.made.len(), world.state()), (1, Some(LayerState::PlanNeeded)), "{class}");
        world.pushed(2, "b");
        world.settle();
        assert_eq!((world.made.len(), world.trigger().as_str()), (2, "Commit"));
        assert!(world.status().next_step.is_none());
    }
}

#[test]
fn a_plan_without_changes_leads_to_no_apply() {
    let mut world = World::new().commit(1, "a").with(&json!({"spec": {"remediation": {"onCommit": "Automatic"}}}));
    world.settle();
    world.begins();
    world.ends(RunResult::NoChanges);
    world.settle();
    world.later(30);
    world.settle();
    assert_eq!((world.made.len(), world.state()), (1, Some(LayerState::Idle)));
    assert_eq!(world.condition(APPLY_UP_TO_DATE), is("True", "UpToDate"));
}

#[test]
fn remediation_decides_what_a_run_may() {
    for (word, operation, mode) in [
        ("Dry", crds::Operation::Plan, crds::ApprovalMode::Manual),
        ("Manual", crds::Operation::Apply, crds::ApprovalMode::Manual),
        ("Automatic", crds::Operation::Apply, crds::ApprovalMode::Automatic),
    ] {
        let mut world = World::new().commit(1, "a").with(&json!({"spec": {"remediation": {"onCommit": word}}}));
        world.settle();
        let spec = &world.open().unwrap().spec;
        assert_eq!((spec.operation, spec.approval.mode), (operation, mode), "{word}");
    }
    let mut world = World::new().commit(1, "a").with(&json!({"spec": {"remediation": {"onCommit": "Newer"}}}));
    world.settle();
    assert!(world.made.is_empty() && world.status().state.is_none(), "a newer version's");
}

#[test]
fn dry_is_shown_and_changing_it_plans_anew() {
    let mut world = World::new().commit(1, "a").with(&json!({"spec": {"remediation": {"onCommit": "Dry"}}}));
    world.settle();
    world.waits(1);
    world.ends(RunResult::Planned);
    world.settle();
    assert_eq!((world.state(), world.condition(READY)), (Some(LayerState::ApplyNeeded), is("True", "Planned")));
    world.change(&json!({"spec": {"remediation": {"onCommit": "Manual"}}}));
    world.settle();
    assert_eq!(world.made.len(), 2);
}

#[test]
fn a_person_asks_once_and_is_answered_once() {
    let mut world = World::applied();
    world.annotate(names::PLAN, "now");
    world.settle();
    let token = world.layer.annotations()[names::PLAN].clone();
    assert_ne!(token, "now");
    assert_eq!((world.trigger().as_str(), world.status().last_handled_plan), ("Person", Some(token)));
    world.ends(RunResult::NoChanges);
    world.settle();
    world.later(10);
    world.settle();
    assert_eq!(world.made.len(), 2);
    world.annotate(names::PLAN, "now");
    world.settle();
    assert_eq!(world.made.len(), 3, "and again");
}

#[test]
fn a_person_who_asks_while_a_run_is_under_way_is_answered_after_it() {
    let mut world = World::new().commit(1, "a");
    world.settle();
    world.begins();
    world.annotate(names::PLAN, "now");
    world.settle();
    assert_eq!(world.made.len(), 1);
    world.ends(RunResult::NoChanges);
    world.settle();
    assert_eq!((world.made.len(), world.trigger().as_str()), (2, "Person"));
}

#[test]
fn a_request_of_before_a_crash_is_answered_once() {
    let mut world = World::applied();
    world.annotate(names::PLAN, "now");
    let decision = world.decide();
    world.act(decision, usize::MAX);
    // The run is made, and the process dies before it says so; meanwhile a commit arrives.
    let decision = world.decide();
    world.act(decision, usize::MAX);
    world.layer.status.as_mut().unwrap().last_handled_plan = None;
    world.ends(RunResult::NoChanges);
    world.pushed(1, "a");
    world.settle();
    assert_eq!(world.made.len(), 2);
}

#[test]
fn a_suspended_layer_makes_no_runs() {
    for (patch, undo) in [
        (json!({"spec": {"suspend": true}}), json!({"spec": {"suspend": false}})),
        (
            json!({"metadata": {"annotations": {names::SUSPEND: "true"}}}),
            json!({"metadata": {"annotations": {names::SUSPEND: null}}}),
        ),
    ] {
        let mut world = World::new().commit(1, "a").with(&patch);
        world.annotate(names::PLAN, "now");
        world.settle();
        assert!(world.made.is_empty());
        assert_eq!(world.condition(READY), is("False", "Suspended"));
        assert!(world.status().next_step.unwrap().contains("suspend"));
        world.change(&undo);
        world.settle();
        assert_eq!(world.trigger(), "Person", "nothing was lost");
    }
}

#[test]
fn a_void_layer_makes_no_runs_until_somebody_looked_at_it() {
    let mut world = World::new().with(&json!({"metadata": {"annotations": {names::VOID: "why"}}})).commit(1, "a");
    world.settle();
    assert!(world.made.is_empty(), "{:?}", world.made);
    assert!(world.status().next_step.unwrap().ends_with("pawl.run/void-"));
    world.layer.metadata.annotations = None;
    world.settle();
    assert_eq!(world.made.len(), 1);
}

#[test]
fn a_frozen_namespace_lets_nothing_begin() {
    let mut world = World::new().commit(1, "a");
    world.namespace = Namespace::Frozen;
    world.settle();
    assert!(world.made.is_empty() && world.status().waits_for.unwrap().contains("frozen"));
    world.namespace = Namespace::Stays;
    world.settle();
    assert_eq!(world.made.len(), 1);
}

#[test]
fn the_younger_of_two_layers_of_a_state_makes_no_runs_and_gives_its_plan_back() {
    let mut world = World::new().commit(1, "a");
    world.settle();
    world.waits(1);
    world.owner = Some(("team".into(), "older".into()));
    world.settle();
    assert!(world.open().is_none());
    assert_eq!(world.condition(READY), is("False", "StateOwned"));
    assert!(world.status().waits_for.unwrap().contains("layer older"));
    world.owner = Some(("else".into(), "older".into()));
    world.settle();
    assert!(!world.status().waits_for.unwrap().contains("layer older"), "what another namespace has is not said");
    world.owner = None;
    world.settle();
    assert_eq!(world.made.len(), 2);
}

#[test]
fn a_refused_run_is_said_and_tried_again() {
    let mut world = World::new().commit(1, "a");
    let later = world.now + SignedDuration::from_mins(1);
    world.refused = Some(Refused { run: "net-x".into(), text: "quota exceeded".into(), retry_at: later });
    world.settle();
    assert!(world.made.is_empty());
    assert_eq!(world.condition(READY), is("False", "RunRefused"));
    assert!(world.decide().requeue.is_some());
    world.later(1);
    world.settle();
    assert_eq!(world.made.len(), 1);
}

#[test]
fn history_keeps_what_is_needed() {
    // Weak point 5: a run that worked was deleted, since a lost write had forgotten it.
    let mut world = World::new().commit(1, "a").with(&json!({"spec": {"runHistory": 2}}));
    world.settle();
    world.ends(RunResult::Applied);
    let applied = world.made[0].clone();
    for revision in 2..9 {
        world.later(1);
        world.pushed(revision, &format!("{revision:x}"));
        world.settle();
        world.waits(1);
        world.ends(if revision == 4 { RunResult::Indeterminate } else { RunResult::Rejected });
        world.settle();
    }
    let left: Vec<_> = world.runs.iter().map(ResourceExt::name_any).collect();
    assert_eq!(left, [applied, world.made[3].clone(), world.made[6].clone(), world.made[7].clone()]);
}

#[test]
fn a_failed_plan_says_so_and_nobody_waits_for_it() {
    // Weak point 13: what failed to plan was "still planning" for ever.
    let mut world = World::new().commit(1, "a");
    world.settle();
    world.fails("Configuration", "InvalidConfiguration");
    world.settle();
    let status = world.status();
    assert_eq!((status.current_run, status.last_result.as_deref()), (None, Some("Failed InvalidConfiguration")));
    assert!(status.waits_for.unwrap().contains("InvalidConfiguration"));
}

#[test]
fn an_apply_of_which_nobody_knows_is_looked_at_by_a_person() {
    let mut world = World::new().commit(1, "a");
    world.settle();
    world.waits(1);
    world.ends(RunResult::Indeterminate);
    world.settle();
    world.later(60 * 60);
    world.settle();
    assert_eq!((world.made.len(), world.condition(READY)), (1, is("False", "RunFailed")));
    let settled = json!({"result": "Applied", "message": "m", "at": world.now});
    world.merge_run(&world.made[0].clone(), &json!({"status": {"settled": settled}}));
    world.settle();
    assert_eq!(world.state(), Some(LayerState::Idle), "the proof arrived");
}
