//! Slots and freezes: which runs wait, how they report it, and that no run holds one resource while it waits for another.

use super::*;
use crate::{
    cluster::freeze::Frozen,
    slots::{Class, admission::Scope},
    state_queue::lease::Taken,
};

const KEY: &str = "sha256:3333333333333333333333333333333333333333333333333333333333333333";

fn full(class: Class, open: u32) -> Full {
    Full {
        class,
        scope: Scope::Whole,
        open,
        bound: 4,
    }
}

/// A world with bounded slots: `open` attempts are open, or (`None`) a slot is free.
fn bounded(mut world: World, class: Class, open: Option<u32>) -> World {
    world.o.slot = Slot::Unasked;
    world.full = open.map(|open| full(class, open));
    world
}

fn frozen(mut world: World, is: bool) -> World {
    world.o.frozen = is.then(|| Frozen::Namespace("team".into()));
    world
}

/// The next reconcile.
fn again(mut world: World, open: Option<u32>) -> World {
    world.o.slot = open.map_or(Slot::Unasked, |open| Slot::Full(full(Class::Plan, open)));
    world.full = None;
    world
}

fn plan_waits() -> World {
    World::new().kept().planned_on(KEY)
}

/// The same without a pod, approved.
fn approved_without_a_pod() -> World {
    let world = plan_waits().unheld();
    world.annotate(names::APPROVE, SUM)
}

fn succeeded(world: &World) -> (String, String) {
    let said = world.whole_condition(SUCCEEDED);
    (said.reason.clone(), said.message.clone())
}

fn asks(world: &World) -> bool {
    world
        .decide()
        .actions
        .iter()
        .any(|action| matches!(action, Action::TakeSlot { .. }))
}

#[test]
fn run_without_a_slot_waits_podless_and_reports_it_once() {
    let mut world = bounded(World::new(), Class::Plan, Some(8));
    assert_eq!(world.settle(), None, "whoever frees a slot wakes it");
    assert_eq!(world.phase(), Some(Phase::Pending));
    assert!(world.status().attempt.is_none());
    let text = "waits for a slot: 8 of 4 attempts are open";
    assert_eq!(succeeded(&world), ("SlotsFull".into(), text.into()));
    assert_eq!(world.message(), text);
    assert_eq!(world.events, ["SlotsFull"]);
    let writes = world.writes.len();
    for open in [7, 1, 0, 9] {
        world = again(world, Some(open));
        world.o.run_live = false;
        world.settle();
        assert_eq!(world.writes.len(), writes, "{open} are open");
    }
    let world = again(world, None).settled();
    assert!(world.attempt().open);
    assert_eq!(succeeded(&world).0, "Running");
}

#[test]
fn run_without_its_lease_requests_no_slot() {
    let mut world = bounded(World::automatic(), Class::Plan, None).with(|run| {
        run.spec.backend =
            serde_json::from_value(json!({"type": "http", "config": {"address": "http://s/a"}}))
                .unwrap();
    });
    world.lease = Taken::Behind("else/b".into());
    world.settle();
    assert!(world.status().attempt.is_none(), "{:?}", world.o.slot);
    assert!(world.o.slot == Slot::Unasked, "{:?}", world.o.slot);
    world.lease = Taken::Yes;
    world.full = Some(full(Class::Plan, 1));
    world = world.later(11).settled();
    assert!(world.status().attempt.is_none());
    assert!(world.o.taken.is_some());
    let world = again(world, None).settled();
    assert!(world.attempt().open && world.has_lease());
}

#[test]
fn approved_plan_gets_its_lease_before_its_slot() {
    let mut world = bounded(approved_without_a_pod(), Class::Apply, Some(1));
    world.lease = Taken::Behind("else/b".into());
    world.settle();
    assert!(world.is_approved() && world.o.slot == Slot::Unasked);
    world.lease = Taken::Yes;
    world = world.later(11).settled();
    assert!(world.has_lease() && !world.attempt().open);
    let said = world.message();
    has(
        said,
        "is approved; waits for a slot: 1 of 4 approved applies are open; no pod is held",
    );
    let world = again(world, None).settled();
    assert!(world.attempt().open);
    assert_eq!(world.attempt().restores, Some(1));
    assert_eq!(succeeded(&world).0, "Running");
}

#[test]
fn held_pod_continues_only_with_an_apply_slot() {
    let mut world = bounded(
        plan_waits().annotate(names::APPROVE, SUM),
        Class::Apply,
        Some(1),
    )
    .settled();
    assert!(world.is_approved(), "the claim needs both");
    assert!(!world.has_lease(), "the claim needs both");
    assert_eq!(world.condition(STATE_LEASED), is_false("SlotsFull"));
    let writes = world.writes.len();
    for open in [3, 0] {
        world.o.slot = Slot::Full(full(Class::Apply, open));
        world.settle();
        assert_eq!(world.writes.len(), writes, "{open} are open");
    }
    world.full = None;
    world.o.slot = Slot::Unasked;
    world.settle();
    assert_eq!(world.condition(STATE_LEASED), is_true("Leased"));
    assert!(world.has_lease());
    assert!(world.o.slot == Slot::Taken(Class::Apply));
}

/// A run that asks a person after all retains its lease meanwhile.
#[test]
fn approval_of_a_leased_run_waits_for_the_slot() {
    let mut world = plan_waits();
    world.status_mut().lease = Some(crds::StateLease {
        state_key: KEY.into(),
        name: "n".into(),
        at: whole_seconds(t0()),
    });
    let mut world = bounded(world.annotate(names::APPROVE, SUM), Class::Apply, Some(1)).settled();
    assert!(!world.is_approved());
    assert_eq!(world.condition(APPROVED), is_false("SlotsFull"));
    world.full = None;
    world.o.slot = Slot::Unasked;
    world.settle();
    assert!(world.is_approved());
}

#[test]
fn held_pod_ends_its_hold_when_its_slot_is_wanted() {
    let told = |world: &World| world.attempt().end_hold;
    let mut world = plan_waits().settled();
    assert!(!told(&world));
    world.o.slot_wanted = true;
    world.settle();
    assert!(told(&world) && world.attempt().open, "its agent ends it");
    world = world.settled_silently();
    // The next attempt begins without the order to end its hold.
    let mut world = world.exits();
    world.o.slot_wanted = false;
    world.settle();
    let world = world.pod_gone().annotate(names::APPROVE, SUM).settled();
    assert!(world.attempt().open && !told(&world));
    // A pod that continues at once gets no such order.
    for change in [
        |_: &mut World| {},
        |world: &mut World| world.status_mut().plan.as_mut().unwrap().bundle = None,
    ] {
        let mut world = plan_waits().annotate(names::APPROVE, SUM).settled();
        change(&mut world);
        world.o.slot_wanted = true;
        world.settle();
        assert!(!told(&world));
    }
}

#[test]
fn frozen_namespace_starts_nothing_and_stops_nothing() {
    let mut world = frozen(World::new(), true);
    assert_eq!(world.settle(), None);
    assert!(world.status().attempt.is_none());
    assert_eq!(succeeded(&world).0, "Frozen");
    let message = world.message();
    has(
        message,
        "namespace team is frozen by its annotation pawl.run/freeze",
    );
    has(
        &world.next_step(),
        "kubectl annotate namespace team pawl.run/freeze-",
    );
    let writes = world.writes.len();
    world.o.run_live = false;
    world.settle();
    assert_eq!(world.writes.len(), writes, "it is said once");
    let world = frozen(world, false).settled();
    assert!(world.attempt().open && succeeded(&world).0 == "Running");
    let world = frozen(world, true).settled();
    assert!(world.attempt().open, "it goes on");
    assert!(!asks(&world));
}

#[test]
fn frozen_namespace_records_approvals_but_gives_no_lease() {
    for world in [
        plan_waits().annotate(names::APPROVE, SUM),
        approved_without_a_pod(),
    ] {
        let held = world.attempt().open;
        let world = frozen(world, true).settled();
        assert!(world.is_approved(), "the policy asks for the lease");
        assert!(!world.has_lease(), "the policy asks for the lease");
        assert_eq!(world.condition(STATE_LEASED), is_false("Frozen"));
        assert_eq!(world.attempt().open, held);
        let step = world.status().next_step.clone().unwrap_or_default();
        // While an attempt is open, its agent owns the next step.
        assert_eq!(step.contains("pawl.run/freeze"), !held, "{step}");
        let world = frozen(world, false).settled();
        assert!(world.has_lease() && world.attempt().open);
    }
}

#[test]
fn waiting_plan_names_the_freeze_while_it_lasts() {
    let world = frozen(plan_waits(), true).settled();
    let approved = world.whole_condition(APPROVED);
    assert_eq!(
        (approved.status.as_str(), approved.reason.as_str()),
        ("False", "Frozen")
    );
    assert!(
        approved.message.contains("namespace team is frozen"),
        "{}",
        approved.message
    );
    let writes = world.writes.len();
    let world = world.later(60).settled();
    assert_eq!(world.writes.len(), writes, "written once");
    let world = frozen(world, false).settled();
    assert_eq!(world.whole_condition(APPROVED).reason, "WaitingForApproval");
    let world = frozen(plan_waits().settled(), true).settled();
    let world = frozen(world.annotate(names::APPROVE, SUM).settled(), false).settled();
    assert_eq!(world.whole_condition(APPROVED).status, "True");
}
