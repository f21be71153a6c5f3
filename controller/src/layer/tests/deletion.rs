//! Deleted layers.

use super::*;
use crate::layer::conditions::READY;

fn destroying(remediation: &str) -> World {
    let patch =
        json!({"spec": {"deletionPolicy": "Destroy", "remediation": {"onDelete": remediation}}});
    let world = World::applied().with(&patch).settled();
    assert_eq!(world.layer.finalizers(), [names::LAYER_FINALIZER]);
    world
}

fn delete(world: &mut World) {
    world.change(&json!({"metadata": {"deletionTimestamp": world.now}}));
    world.settle();
}

#[test]
fn finalizer_follows_the_deletion_policy() {
    let mut world = destroying("Manual");
    assert_eq!(world.made.len(), 1, "the policy is no setting of runs");
    world.change(&json!({"spec": {"deletionPolicy": "Orphan"}}));
    world.settle();
    assert!(world.layer.finalizers().is_empty());
}

#[test]
fn finalizer_is_set_before_the_first_run() {
    let world = World::new()
        .commit(1, "a")
        .with(&json!({"spec": {"deletionPolicy": "Destroy"}}));
    assert!(matches!(
        world.decide().actions.as_slice(),
        [Action::AddFinalizer, Action::Create(_)]
    ));
}

#[test]
fn deleted_layer_is_released_after_its_destroy() {
    let mut world = destroying("Manual");
    world.pushed(2, "b").settle().planned();
    delete(&mut world);
    let run = world.open().unwrap().clone();
    assert_eq!(run.spec.operation, crds::Operation::Destroy);
    assert_eq!(world.trigger().as_str(), "Deletion");
    assert_eq!(revision(&run), sha(1), "what was applied");
    assert!(
        run.metadata.owner_references.is_none(),
        "or it would be deleted first, in the foreground"
    );
    world.planned();
    assert!(world.next_step().contains(names::APPROVE));
    assert_eq!(
        world.condition(READY),
        ("False".into(), "Destroying".into())
    );
    world.ends(RunResult::Destroyed).settle();
    assert!(world.layer.finalizers().is_empty());
}

#[test]
fn failed_or_denied_destroy_retains_the_layer() {
    let mut world = destroying("Automatic");
    delete(&mut world);
    assert_eq!(
        world.open().unwrap().spec.approval.mode,
        crds::ApprovalMode::Automatic
    );
    world.fails("Transient", "ProviderUnreachable").settle();
    world.later(2).settle();
    assert_eq!(world.made.len(), 3, "made again");
    world.fails("Configuration", "PlanFailed").settle();
    world.later(3000).settle();
    assert_eq!((world.made.len(), world.layer.finalizers().len()), (3, 1));
    world.annotate(names::PLAN, "now").settle();
    assert_eq!(world.made.len(), 4);
    assert_eq!(world.trigger().as_str(), "Deletion");
    world.ends(RunResult::Rejected).settle();
    assert!(world.next_step().contains("pawl.run/plan=now"));
}

#[test]
fn deletion_of_a_stopped_destroy_causes_no_other() {
    type End = fn(&mut World);
    let ends: [(&str, End); 4] = [
        ("denied", |world| {
            _ = world.waits(1).ends(RunResult::Rejected);
        }),
        ("expired", |world| {
            _ = world.waits(1).ends(RunResult::Expired);
        }),
        ("canceled", |world| _ = world.ends(RunResult::Canceled)),
        ("failed", |world| {
            _ = world.fails("Configuration", "PlanFailed");
        }),
    ];
    for (how, end) in ends {
        let mut world = destroying("Automatic");
        delete(&mut world);
        end(&mut world);
        world.settle();
        let gone = world.runs.pop().unwrap();
        assert_eq!(gone.spec.operation, crds::Operation::Destroy);
        world.settle().later(3000).settle();
        assert_eq!(
            (world.made.len(), world.layer.finalizers().len()),
            (2, 1),
            "{how}"
        );
        assert!(world.waits_for().contains("is gone"), "{how}");
        world.annotate(names::PLAN, "now").settle();
        assert_eq!(world.made.len(), 3, "{how}: a request");
    }
}

#[test]
fn layer_tells_that_its_owner_cannot_delete_it() {
    use crate::layer::conditions::DELETED_WITH_OWNER;
    let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "app", "uid": "u"}]);
    let mut world = destroying("Automatic");
    assert_eq!(world.condition(DELETED_WITH_OWNER), is("", ""), "no owner");
    world
        .change(&json!({"metadata": {"ownerReferences": owner}}))
        .settle();
    assert_eq!(
        world.condition(DELETED_WITH_OWNER),
        is("False", "OwnerMayNotDelete")
    );
    world.change(&json!({"spec": {"remediation": {"onDelete": "Manual"}}}));
    world.settle();
    assert_eq!(
        world.condition(DELETED_WITH_OWNER),
        is("", ""),
        "an approval is needed"
    );
}

#[test]
fn dry_or_suspended_layer_waits_to_destroy() {
    let mut world = destroying("Dry");
    delete(&mut world);
    assert_eq!((world.made.len(), world.layer.finalizers().len()), (1, 1));
    assert!(world.next_step().contains("Orphan"));
    world.change(&json!({"spec": {"suspend": true, "remediation": {"onDelete": "Manual"}}}));
    world.settle();
    assert_eq!(world.made.len(), 1);
    world.change(&json!({"spec": {"suspend": false}})).settle();
    assert_eq!(world.made.len(), 2);
}

type Change = fn(&mut World);

/// Each hold retains a deleted layer, and none retains its namespace.
#[test]
fn layer_of_a_deleted_namespace_is_released_despite_a_hold() {
    let holds: [(&str, Change); 9] = [
        ("the repository is gone", |world| world.repository = None),
        ("the repository admits no layer of its namespace", |world| {
            let repository = world.repository.as_mut().unwrap();
            repository.metadata.namespace = Some("other".into());
            world.change(&json!({"spec": {"repository": {"namespace": "other"}}}));
        }),
        ("nothing is destroyed by itself", |world| {
            world.change(&json!({"spec": {"remediation": {"onDelete": "Dry"}}}));
        }),
        ("it is suspended", |world| {
            world.change(&json!({"spec": {"suspend": true}}));
        }),
        ("it was frozen", |world| {
            let frozen = crate::cluster::freeze::Frozen::Namespace("team".into());
            world.namespace = Namespace::Frozen(frozen);
        }),
        ("its author is unverified", |world| {
            world.annotate(names::UNVERIFIED, "why");
        }),
        ("its destroy waits for an approval", |world| {
            delete(world);
            world.planned();
        }),
        ("its destroy was denied", |world| {
            delete(world);
            world.planned().ends(RunResult::Rejected);
        }),
        ("a newer version wrote it", |world| {
            world.change(&json!({"spec": {"deletionPolicy": "Later"}}));
        }),
    ];
    for (why, hold) in holds {
        let mut world = destroying("Manual");
        hold(&mut world);
        delete(&mut world);
        let (finalizers, made) = (world.layer.finalizers().len(), world.made.len());
        assert_eq!(finalizers, 1, "{why}");
        world.namespace = Namespace::Goes;
        world.settle();
        assert!(world.layer.finalizers().is_empty(), "{why}");
        assert_eq!(world.made.len(), made, "{why}");
    }
}

#[test]
fn layer_in_a_deleted_namespace_is_not_held_again() {
    let mut world = destroying("Automatic");
    world.namespace = Namespace::Goes;
    world.settle();
    assert!(world.layer.finalizers().is_empty(), "before its deletion");
    world.pushed(2, "b").settle();
    assert!(world.layer.finalizers().is_empty() && world.made.len() == 1);
}

#[test]
fn layer_that_cannot_or_may_not_destroy_is_orphaned() {
    let cases: [(&str, Change); 2] = [
        ("an older layer owns the state", |world| {
            world.owner = Some(("team".into(), "older".into()));
        }),
        ("the policy was changed", |world| {
            _ = world.change(&json!({"spec": {"deletionPolicy": "Orphan"}}));
        }),
    ];
    for (why, change) in cases {
        let mut world = destroying("Manual");
        world.change(&json!({"metadata": {"deletionTimestamp": world.now}}));
        change(&mut world);
        world.settle();
        assert_eq!(world.made.len(), 1, "{why}");
        assert_eq!(world.layer.finalizers().len(), 0, "{why}");
        assert_eq!(
            world
                .told
                .contains("the older layer older of team has the same state"),
            why.starts_with("an older"),
            "{}",
            world.told
        );
    }
    let mut world = World::new().with(&json!({"spec": {"deletionPolicy": "Destroy"}}));
    world.repository = None;
    world.settle();
    delete(&mut world);
    assert!(
        world.layer.finalizers().is_empty(),
        "nothing was ever planned"
    );
}

#[test]
fn missing_repository_retains_the_deleted_layer() {
    let mut world = destroying("Manual");
    world.repository = None;
    delete(&mut world);
    assert_eq!(world.layer.finalizers().len(), 1);
    assert!(world.waits_for().contains("are not destroyed"));
}

#[test]
fn missing_path_does_not_stop_the_destroy() {
    let mut world = destroying("Manual");
    world.change(&json!({"status": {"source": {"missing": "there is no directory live/net"}}}));
    delete(&mut world);
    assert_eq!(world.trigger(), "Deletion");
}

#[test]
fn deletion_waits_for_a_claimed_apply() {
    let mut world = destroying("Manual");
    world.pushed(2, "b").settle().waits(1).claims();
    delete(&mut world);
    assert_eq!(world.made.len(), 2);
    world.ends(RunResult::Applied).settle();
    assert_eq!(revision(world.open().unwrap()), sha(2));
}

#[test]
fn orphaning_layer_is_deleted_without_run_or_write() {
    let mut world = World::applied();
    delete(&mut world);
    assert_eq!(world.made.len(), 1);
    assert_eq!(world.writes, World::applied().writes);
}
