//! Slots and freezes: which runs wait, how they report it, and that no run holds one resource while it waits for another.

use super::*;
use crate::{
    cluster::freeze::Frozen,
    slots::{Class, admission::Scope},
    state_queue::lease::Taken,
};

const KEY: &str = "sha256:3333333333333333333333333333333333333333333333333333333333333333";

fn full(class: Class, before: usize) -> Full {
    Full { class, scope: Scope::Whole, open: 4, bound: 4, before }
}

/// A world with bounded slots: `before` runs wait ahead of it, or (`None`) a slot is free.
fn bounded(mut world: World, class: Class, before: Option<usize>) -> World {
    world.o.slot = Slot::Unasked;
    world.full = before.map(|before| full(class, before));
    world
}

fn frozen(mut world: World, is: bool) -> World {
    world.o.frozen = is.then(|| Frozen::Namespace("team".into()));
    world
}

/// The next reconcile.
fn again(mut world: World, before: Option<usize>) -> World {
    world.o.slot = before.map_or(Slot::Unasked, |before| Slot::Full(full(Class::Plan, before)));
    world.full = None;
    world
}

fn plan_waits() -> World {
    let mut world = World::new().kept();
    world.status_mut().plan.as_mut().unwrap().state_key = Some(KEY.into());
    world
}

/// The same without a pod, approved.
fn approved_without_a_pod() -> World {
    let mut world = plan_waits().pod_ended(Some(message(None, None)));
    world.settle();
    world.o.pod = PodState::Absent;
    world.annotate(names::APPROVE, SUM)
}

fn succeeded(world: &World) -> (String, String) {
    let said = world.status().conditions.iter().find(|c| c.type_ == conditions::SUCCEEDED).unwrap();
    (said.reason.clone(), said.message.clone())
}

fn asks(world: &World) -> bool {
    world.decide().actions.iter().any(|action| matches!(action, Action::TakeSlot { .. }))
}

#[test]
fn run_without_a_slot_waits_podless_and_reports_it_once() {
    let mut world = bounded(World::new(), Class::Plan, Some(8));
    assert_eq!(world.settle(), None, "whoever frees a slot wakes it");
    assert_eq!(world.status().phase, Some(Phase::Pending));
    assert!(world.status().attempt.is_none());
    let text = "waits for a slot, 8 before it when it began to wait: 4 of 4 attempts are open";
    assert_eq!(succeeded(&world), ("SlotsFull".into(), text.into()));
    assert_eq!(world.status().message.as_deref(), Some(text));
    assert_eq!(world.events, ["SlotsFull"]);
    let writes = world.writes.len();
    for before in [7, 1, 0, 9] {
        world = again(world, Some(before));
        world.o.run_live = false;
        world.settle();
        assert_eq!(world.writes.len(), writes, "{before} before it");
    }
    let mut world = again(world, None);
    world.settle();
    assert!(world.attempt().open);
    assert_eq!(succeeded(&world).0, "Running");
}

#[test]
fn run_without_its_lease_requests_no_slot() {
    let mut world = bounded(World::automatic(), Class::Plan, None).with(|run| {
        run.spec.backend = serde_json::from_value(json!({"type": "http", "config": {"address": "http://s/a"}})).unwrap();
    });
    world.lease = Taken::Behind("else/b".into());
    world.settle();
    assert!(world.status().attempt.is_none() && world.o.slot == Slot::Unasked, "{:?}", world.o.slot);
    world.lease = Taken::Yes;
    world.full = Some(full(Class::Plan, 1));
    world = world.later(11);
    world.settle();
    assert!(world.status().attempt.is_none() && world.o.taken.is_some(), "and with the lease it waits for one");
    let mut world = again(world, None);
    world.settle();
    assert!(world.attempt().open && world.status().lease.is_some());
}

#[test]
fn approved_plan_gets_its_lease_before_its_slot() {
    let mut world = bounded(approved_without_a_pod(), Class::Apply, Some(1));
    world.lease = Taken::Behind("else/b".into());
    world.settle();
    assert!(world.status().approval.is_some() && world.o.slot == Slot::Unasked);
    world.lease = Taken::Yes;
    world = world.later(11);
    world.settle();
    assert!(world.status().lease.is_some() && !world.attempt().open);
    let said = world.status().message.clone().unwrap();
    assert!(
        said.contains(
            "is approved; waits for a slot, 1 before it when it began to wait: 4 of 4 approved applies are open; no pod is held"
        ),
        "{said}"
    );
    let mut world = again(world, None);
    world.settle();
    assert_eq!((world.attempt().open, world.attempt().restores), (true, Some(1)));
    assert_eq!(succeeded(&world).0, "Running");
}

#[test]
fn held_pod_continues_only_with_an_apply_slot() {
    let mut world = bounded(plan_waits().annotate(names::APPROVE, SUM), Class::Apply, Some(1));
    world.settle();
    assert!(world.status().approval.is_some() && world.status().lease.is_none(), "the claim needs both");
    assert_eq!(world.condition(conditions::STATE_LEASED), is_false("SlotsFull"));
    let writes = world.writes.len();
    for before in [3, 0] {
        world.o.slot = Slot::Full(full(Class::Apply, before));
        world.settle();
        assert_eq!(world.writes.len(), writes, "{before} before it");
    }
    world.full = None;
    world.o.slot = Slot::Unasked;
    world.settle();
    assert_eq!(world.condition(conditions::STATE_LEASED), is_true("Leased"));
    assert!(world.status().lease.is_some() && world.o.slot == Slot::Taken(Class::Apply));
}

/// A run that asks a person after all retains its lease meanwhile.
#[test]
fn approval_of_a_leased_run_waits_for_the_slot() {
    let mut world = plan_waits();
    world.status_mut().lease = Some(crds::StateLease { state_key: KEY.into(), name: "n".into(), at: whole_seconds(t0()) });
    let mut world = bounded(world.annotate(names::APPROVE, SUM), Class::Apply, Some(1));
    world.settle();
    assert!(world.status().approval.is_none());
    assert_eq!(world.condition(conditions::APPROVED), is_false("SlotsFull"));
    world.full = None;
    world.o.slot = Slot::Unasked;
    world.settle();
    assert!(world.status().approval.is_some());
}

#[test]
fn held_pod_ends_its_hold_when_its_slot_is_wanted() {
    let told = |world: &World| world.attempt().end_hold;
    let mut world = plan_waits();
    world.settle();
    assert!(!told(&world));
    world.o.slot_wanted = true;
    world.settle();
    assert!(told(&world) && world.attempt().open, "its agent ends it");
    let writes = world.writes.len();
    world.settle();
    assert_eq!(world.writes.len(), writes, "it is told once");
    // The next attempt begins without the order to end its hold.
    let mut world = world.pod_ended(Some(message(None, None)));
    world.o.slot_wanted = false;
    world.settle();
    world.o.pod = PodState::Absent;
    let mut world = world.annotate(names::APPROVE, SUM);
    world.settle();
    assert!(world.attempt().open && !told(&world));
    // A pod that continues at once gets no such order.
    for change in [|_: &mut World| {}, |world: &mut World| world.status_mut().plan.as_mut().unwrap().bundle = None] {
        let mut world = plan_waits().annotate(names::APPROVE, SUM);
        world.settle();
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
    let message = world.status().message.clone().unwrap();
    assert!(message.contains("namespace team is frozen by its annotation pawl.run/freeze"), "{message}");
    assert!(world.status().next_step.as_ref().unwrap().contains("kubectl annotate namespace team pawl.run/freeze-"));
    let writes = world.writes.len();
    world.o.run_live = false;
    world.settle();
    assert_eq!(world.writes.len(), writes, "it is said once");
    let mut world = frozen(world, false);
    world.settle();
    assert!(world.attempt().open && succeeded(&world).0 == "Running");
    let mut world = frozen(world, true);
    world.settle();
    assert!(world.attempt().open, "it goes on");
    assert!(!asks(&world));
}

#[test]
fn frozen_namespace_records_approvals_but_gives_no_lease() {
    for world in [plan_waits().annotate(names::APPROVE, SUM), approved_without_a_pod()] {
        let held = world.attempt().open;
        let mut world = frozen(world, true);
        world.settle();
        assert!(world.status().approval.is_some() && world.status().lease.is_none(), "the policy asks for the lease");
        assert_eq!(world.condition(conditions::STATE_LEASED), is_false("Frozen"));
        assert_eq!(world.attempt().open, held);
        let mut world = frozen(world, false);
        world.settle();
        assert!(world.status().lease.is_some() && world.attempt().open);
    }
}
