//! Deleted layers.

use super::*;
use crate::layer::conditions::READY;

fn destroying(remediation: &str) -> World {
    let patch = json!({"spec": {"deletionPolicy": "Destroy", "remediation": {"onDelete": remediation}}});
    let mut world = World::applied().with(&patch);
    world.settle();
    assert_eq!(world.layer.finalizers(), [names::LAYER_FINALIZER]);
    world
}

fn delete(world: &mut World) {
    world.change(&json!({"metadata": {"deletionTimestamp": world.now}}));
    world.settle();
}

#[test]
fn the_finalizer_follows_the_policy() {
    let mut world = destroying("Manual");
    assert_eq!(world.made.len(), 1, "the policy is no setting of runs");
    world.change(&json!({"spec": {"deletionPolicy": "Orphan"}}));
    world.settle();
    assert!(world.layer.finalizers().is_empty());
}

#[test]
fn the_finalizer_stands_before_the_first_run() {
    let world = World::new().commit(1, "a").with(&json!({"spec": {"deletionPolicy": "Destroy"}}));
    assert!(matches!(world.decide().actions.as_slice(), [Action::AddFinalizer, Action::Create(_)]));
}

#[test]
fn a_layer_goes_when_what_it_made_is_destroyed() {
    let mut world = destroying("Manual");
    world.pushed(2, "b");
    world.settle();
    world.waits(1);
    world.settle();
    delete(&mut world);
    let run = world.open().unwrap().clone();
    assert_eq!((run.spec.operation, world.trigger().as_str()), (crds::Operation::Destroy, "Deletion"));
    assert_eq!(run.spec.source.repository.unwrap().revision, sha(1), "what was applied");
    assert!(run.metadata.owner_references.is_none(), "or it would be deleted first, in the foreground");
    world.waits(1);
    world.settle();
    assert!(world.status().next_step.unwrap().contains(names::APPROVE));
    assert_eq!(world.condition(READY), ("False".into(), "Destroying".into()));
    world.ends(RunResult::Destroyed);
    world.settle();
    assert!(world.layer.finalizers().is_empty());
}

#[test]
fn what_was_not_destroyed_holds_the_layer() {
    let mut world = destroying("Automatic");
    delete(&mut world);
    assert_eq!(world.open().unwrap().spec.approval.mode, crds::ApprovalMode::Automatic);
    world.fails("Transient", "ProviderUnreachable");
    world.settle();
    world.later(2);
    world.settle();
    assert_eq!(world.made.len(), 3, "made again");
    world.fails("Configuration", "PlanFailed");
    world.settle();
    world.later(3000);
    world.settle();
    assert_eq!((world.made.len(), world.layer.finalizers().len()), (3, 1));
    world.annotate(names::PLAN, "now");
    world.settle();
    assert_eq!((world.made.len(), world.trigger().as_str()), (4, "Deletion"));
    world.ends(RunResult::Rejected);
    world.settle();
    assert!(world.status().next_step.unwrap().contains("pawl.run/plan=now"));
}

#[test]
fn dry_and_suspended_layers_wait() {
    let mut world = destroying("Dry");
    delete(&mut world);
    assert_eq!((world.made.len(), world.layer.finalizers().len()), (1, 1));
    assert!(world.status().next_step.unwrap().contains("Orphan"));
    world.change(&json!({"spec": {"suspend": true, "remediation": {"onDelete": "Manual"}}}));
    world.settle();
    assert_eq!(world.made.len(), 1);
    world.change(&json!({"spec": {"suspend": false}}));
    world.settle();
    assert_eq!(world.made.len(), 2);
}

#[test]
fn a_layer_is_orphaned_where_nothing_can_or_may_be_destroyed() {
    type Change = fn(&mut World);
    let cases: [(&str, Change); 3] = [
        ("its namespace goes", |world| world.namespace = Namespace::Goes),
        ("an older layer owns the state", |world| world.owner = Some(("team".into(), "older".into()))),
        ("the policy was changed", |world| world.change(&json!({"spec": {"deletionPolicy": "Orphan"}}))),
    ];
    for (why, change) in cases {
        let mut world = destroying("Manual");
        world.change(&json!({"metadata": {"deletionTimestamp": world.now}}));
        change(&mut world);
        world.settle();
        assert_eq!((world.made.len(), world.layer.finalizers().len()), (1, 0), "{why}");
    }
    let mut world = World::new().with(&json!({"spec": {"deletionPolicy": "Destroy"}}));
    world.repository = None;
    world.settle();
    delete(&mut world);
    assert!(world.layer.finalizers().is_empty(), "nothing was ever planned");
}

#[test]
fn a_repository_that_went_first_is_said() {
    let mut world = destroying("Manual");
    world.repository = None;
    delete(&mut world);
    assert_eq!(world.layer.finalizers().len(), 1);
    assert!(world.status().waits_for.unwrap().contains("is not destroyed"));
}

#[test]
fn a_path_that_went_first_hinders_nobody() {
    let mut world = destroying("Manual");
    world.change(&json!({"status": {"source": {"missing": "there is no directory live/net"}}}));
    delete(&mut world);
    assert_eq!(world.trigger(), "Deletion");
}

#[test]
fn an_apply_that_was_claimed_comes_to_its_end_first() {
    let mut world = destroying("Manual");
    world.pushed(2, "b");
    world.settle();
    world.waits(1);
    let claim = json!({"checksum": digest("c"), "attempt": 1, "podUID": "p", "nonce": "0".repeat(32), "at": world.now});
    world.merge_run(&world.open_name(), &json!({"status": {"phase": "Apply", "claim": claim}}));
    delete(&mut world);
    assert_eq!(world.made.len(), 2);
    world.ends(RunResult::Applied);
    world.settle();
    assert_eq!(world.open().unwrap().spec.source.repository.as_ref().unwrap().revision, sha(2));
}

#[test]
fn a_layer_that_orphans_needs_nothing() {
    let mut world = World::applied();
    delete(&mut world);
    assert_eq!((world.made.len(), world.writes), (1, World::applied().writes));
}
