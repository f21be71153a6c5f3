//! Requests of people, and the remediation they allow.

use super::*;
use crate::layer::conditions::READY;

#[test]
fn on_commit_sets_operation_and_approval_of_the_run() {
    for (word, operation, mode) in [
        ("Dry", crds::Operation::Plan, crds::ApprovalMode::Manual),
        ("Manual", crds::Operation::Apply, crds::ApprovalMode::Manual),
        (
            "Automatic",
            crds::Operation::Apply,
            crds::ApprovalMode::Automatic,
        ),
    ] {
        let world = World::new()
            .commit(1, "a")
            .with(&json!({"spec": {"remediation": {"onCommit": word}}}))
            .settled();
        let spec = &world.open().unwrap().spec;
        assert_eq!(spec.operation, operation, "{word}");
        assert_eq!(spec.approval.mode, mode, "{word}");
    }
    let world = World::new()
        .commit(1, "a")
        .with(&json!({"spec": {"remediation": {"onCommit": "Newer"}}}))
        .settled();
    assert!(world.made.is_empty(), "a newer version's");
    assert!(world.status().state.is_none(), "a newer version's");
}

#[test]
fn dry_layer_plans_again_when_set_to_manual() {
    let mut world = World::new()
        .commit(1, "a")
        .with(&json!({"spec": {"remediation": {"onCommit": "Dry"}}}))
        .settled();
    world.waits(1).ends(RunResult::Planned).settle();
    assert_eq!(world.state(), Some(LayerState::ApplyNeeded));
    assert_eq!(world.condition(READY), is("True", "Planned"));
    let step = world.status().next_step.unwrap();
    let patch = step.split('\'').nth(1).unwrap();
    world.change(&serde_json::from_str(patch).unwrap());
    world.settle();
    assert_eq!(world.made.len(), 2);
}

#[test]
fn plan_request_creates_one_run() {
    let mut world = World::applied();
    world.annotate(names::PLAN, "now").settle();
    let token = world.layer.annotations()[names::PLAN].clone();
    assert_ne!(token, "now");
    assert_eq!(world.trigger().as_str(), "Person");
    assert_eq!(world.status().last_handled_plan, Some(token));
    world.ends(RunResult::NoChanges).settle();
    world.later(10).settle();
    assert_eq!(world.made.len(), 2);
    world.annotate(names::PLAN, "now").settle();
    assert_eq!(world.made.len(), 3, "and again");
}

#[test]
fn plan_request_during_a_run_is_answered_after_it() {
    let mut world = World::begun();
    world.begins().annotate(names::PLAN, "now").settle();
    assert_eq!(world.made.len(), 1);
    world.ends(RunResult::NoChanges).settle();
    assert_eq!((world.made.len(), world.trigger().as_str()), (2, "Person"));
}

#[test]
fn plan_request_before_a_crash_is_answered_once() {
    let mut world = World::applied();
    world.annotate(names::PLAN, "now");
    let decision = world.decide();
    world.act(decision, usize::MAX);
    // The run is created, and the process crashes before the status write. Meanwhile a commit arrives.
    let decision = world.decide();
    world.act(decision, usize::MAX);
    world.layer.status.as_mut().unwrap().last_handled_plan = None;
    world.ends(RunResult::NoChanges).pushed(1, "a").settle();
    assert_eq!(world.made.len(), 2);
}

#[test]
fn suspended_layer_creates_no_runs() {
    for (patch, undo) in [
        (
            json!({"spec": {"suspend": true}}),
            json!({"spec": {"suspend": false}}),
        ),
        (
            json!({"metadata": {"annotations": {names::SUSPEND: "true"}}}),
            json!({"metadata": {"annotations": {names::SUSPEND: null}}}),
        ),
    ] {
        let mut world = World::new().commit(1, "a").with(&patch);
        world.annotate(names::PLAN, "now").settle();
        assert!(world.made.is_empty());
        assert_eq!(world.condition(READY), is("False", "Suspended"));
        assert!(world.next_step().contains("suspend"));
        world.change(&undo).settle();
        assert_eq!(world.trigger(), "Person", "nothing was lost");
    }
}

#[test]
fn unverified_layer_creates_no_runs_until_confirmed() {
    let mut world = World::new()
        .with(&json!({"metadata": {"annotations": {names::UNVERIFIED: "why"}}}))
        .commit(1, "a")
        .settled();
    assert!(world.made.is_empty(), "{:?}", world.made);
    assert!(
        world
            .status()
            .next_step
            .unwrap()
            .ends_with("pawl.run/unverified-")
    );
    world.layer.metadata.annotations = None;
    world.settle();
    assert_eq!(world.made.len(), 1);
}

#[test]
fn layer_in_a_frozen_namespace_creates_no_runs() {
    let mut world = World::new().commit(1, "a");
    world.namespace = Namespace::Frozen(crate::cluster::freeze::Frozen::Namespace("team".into()));
    world.settle();
    assert!(world.made.is_empty());
    assert!(world.waits_for().contains("frozen"));
    world.namespace = Namespace::Stays;
    world.settle();
    assert_eq!(world.made.len(), 1);
}

#[test]
fn younger_layer_of_a_state_cancels_its_plan_and_waits() {
    let mut world = World::begun();
    world.waits(1);
    world.owner = Some(("team".into(), "older".into()));
    world.settle();
    assert!(world.open().is_none());
    assert_eq!(world.condition(READY), is("False", "StateOwned"));
    assert!(world.waits_for().contains("layer older"));
    world.owner = Some(("else".into(), "older".into()));
    world.settle();
    assert!(
        !world.waits_for().contains("layer older"),
        "what another namespace has is not said"
    );
    world.owner = None;
    world.settle();
    assert_eq!(world.made.len(), 2);
}
