//! The requesters that a layer's runs name, for namespaces with four eyes.

use super::*;

/// A person changes the layer and names himself.
fn changes(world: &mut World, who: &str, patch: &Value) {
    let mut named = json!({"metadata": {"annotations": {names::REQUESTED_BY: who}}});
    merge(&mut named, patch);
    world.change(&named).settle();
}

fn workspace(name: &str) -> Value {
    json!({"spec": {"template": {"workspace": name}}})
}

fn asks() -> Value {
    json!({"metadata": {"annotations": {names::PLAN: "now"}}})
}

fn named(world: &World) -> &str {
    let run = world.open().expect("no run is under way");
    run.annotations()
        .get(names::REQUESTED_BY)
        .map_or("", String::as_str)
}

#[test]
fn run_names_all_whose_changes_are_not_applied() {
    let mut world = World::new().commit(1, "a");
    changes(&mut world, "ada", &workspace("a"));
    assert_eq!(named(&world), "ada");
    assert_eq!(world.status().requested_by, ["ada"]);
    world.waits(1);
    changes(&mut world, "bob", &workspace("b"));
    assert_eq!((named(&world), world.made.len()), ("ada\nbob", 2));
    world.waits(1).ends(RunResult::Rejected).settle();
    changes(&mut world, "ada", &workspace("c"));
    assert_eq!(named(&world), "bob\nada");
    world.waits(1).ends(RunResult::Applied).settle();
    assert!(world.status().requested_by.is_empty(), "another approved");
    changes(&mut world, "bob", &workspace("d"));
    assert_eq!(named(&world), "bob", "the changes of ada are applied");
}

/// The content stays the same, so no person approves a run of it.
#[test]
fn requester_is_kept_until_his_change_is_applied_or_undone() {
    let mut world = World::new().commit(1, "a");
    changes(&mut world, "ada", &workspace("a"));
    world.waits(1).ends(RunResult::Applied).settle();
    let follows = |world: &mut World, who: &str, branch: &str, content: &str| {
        changes(world, who, &json!({"spec": {"ref": branch}}));
        let source = json!({"of": format!("{branch}\nlive/net\n-"), "revision": sha(1), "content": digest(content)});
        world
            .change(&json!({"status": {"source": source}}))
            .settle();
    };
    follows(&mut world, "bob", "mine", "a");
    assert_eq!(world.status().requested_by, ["bob"]);
    changes(&mut world, "ada", &asks());
    assert_eq!(named(&world), "bob\nada");
    world.ends(RunResult::NoChanges).settle();
    assert_eq!(world.status().requested_by, ["bob", "ada"]);
    follows(&mut world, "ada", "main", "a");
    assert!(world.status().requested_by.is_empty(), "undone");
    follows(&mut world, "bob", "mine", "a");
    changes(&mut world, "ada", &asks());
    world.ends(RunResult::NoChanges).settle();
    follows(&mut world, "ada", "mine", "b");
    assert_eq!(named(&world), "bob\nada");
    world.waits(1).ends(RunResult::Rejected).settle();
    assert_eq!(world.status().requested_by, ["bob", "ada"]);
    changes(&mut world, "ada", &asks());
    world.waits(1).ends(RunResult::Applied).settle();
    assert!(world.status().requested_by.is_empty(), "applied");
    // Its run is gone.
    world.runs.clear();
    world.settle().later(60 * 27).settle();
    assert_eq!((world.trigger().as_str(), named(&world)), ("Drift", "ada"));
}

#[test]
fn run_of_a_commit_or_drift_names_the_last_requester() {
    let mut world = World::new().commit(1, "a");
    changes(&mut world, "ada", &workspace("a"));
    world.waits(1).ends(RunResult::Applied).settle();
    world.pushed(2, "b").settle();
    assert_eq!(named(&world), "ada");
    world.ends(RunResult::NoChanges).settle();
    world.later(60 * 27).settle();
    assert_eq!((world.trigger().as_str(), named(&world)), ("Drift", "ada"));
}

#[test]
fn run_of_a_request_names_who_asked_and_who_changed() {
    let mut world = World::new().commit(1, "a");
    changes(&mut world, "ada", &workspace("a"));
    world.waits(1).ends(RunResult::Applied).settle();
    changes(&mut world, "bob", &asks());
    assert_eq!((world.trigger().as_str(), named(&world)), ("Person", "bob"));
    world.ends(RunResult::NoChanges).settle();
    assert!(world.status().requested_by.is_empty());
    // A request that cannot be answered yet is remembered, whoever changes the layer in between.
    world.change(&json!({"spec": {"suspend": true}})).settle();
    changes(&mut world, "bob", &asks());
    assert_eq!(world.status().requested_by, ["bob"]);
    changes(&mut world, "ada", &workspace("b"));
    world.change(&json!({"spec": {"suspend": false}})).settle();
    assert_eq!(named(&world), "bob\nada");
}

#[test]
fn request_is_recorded_before_the_layer_takes_it() {
    let mut world = World::applied();
    world.change(
        &json!({"metadata": {"annotations": {names::PLAN: "now", names::REQUESTED_BY: "ada"}}}),
    );
    let decision = world.decide();
    assert!(matches!(
        decision.actions.as_slice(),
        [Action::TakeAsk { .. }]
    ));
    assert_eq!(decision.status.requested_by, ["ada"]);
}

#[test]
fn destroy_names_who_changed_and_who_deleted() {
    let mut world = World::new().commit(1, "a");
    changes(&mut world, "ada", &workspace("a"));
    world.waits(1).ends(RunResult::Applied).settle();
    changes(
        &mut world,
        "bob",
        &json!({"spec": {"deletionPolicy": "Destroy"}}),
    );
    changes(&mut world, "ada", &json!({}));
    world.change(&json!({"metadata": {"deletionTimestamp": world.now}}));
    world.settle();
    assert_eq!(
        (world.trigger().as_str(), named(&world)),
        ("Deletion", "bob\nada")
    );
}

#[test]
fn deletion_that_waits_keeps_its_requester() {
    let mut world = World::new().commit(1, "a");
    let destroys = json!({"spec": {"deletionPolicy": "Destroy", "suspend": true}});
    changes(&mut world, "ada", &destroys);
    changes(&mut world, "ada", &json!({"spec": {"suspend": false}}));
    world.waits(1).ends(RunResult::Applied).settle();
    world.change(&json!({"spec": {"suspend": true}})).settle();
    changes(&mut world, "bob", &json!({}));
    world.change(&json!({"metadata": {"deletionTimestamp": world.now}}));
    world.settle();
    changes(&mut world, "ada", &json!({"spec": {"suspend": false}}));
    assert_eq!(named(&world), "bob\nada");
}

#[test]
fn unnamed_layer_makes_unnamed_runs() {
    let mut world = World::new().commit(1, "a").settled();
    assert!(
        !world
            .open()
            .unwrap()
            .annotations()
            .contains_key(names::REQUESTED_BY)
    );
    world.waits(1);
    assert!(world.status().requested_by.is_empty());
}

#[test]
fn more_requesters_than_a_run_may_have_stay_too_many() {
    let mut world = World::new().commit(1, "a");
    let lines = |world: &World| named(world).lines().count();
    for number in 0..names::MAX_REQUESTERS {
        let who = format!("user-{number}");
        changes(&mut world, &who, &workspace(&who));
    }
    assert_eq!(lines(&world), names::MAX_REQUESTERS);
    for who in ["one", "two", "user-9"] {
        changes(&mut world, who, &workspace(who));
        assert_eq!(lines(&world), names::MAX_REQUESTERS + 1, "{who}");
    }
    assert_eq!(world.status().requested_by.len(), names::MAX_REQUESTERS + 1);
}
