//! Approvals, withdrawals, and approvals of another plan.

use super::*;

fn waiting() -> World {
    let world = World::new().adopted(Phase::AwaitingApproval).settled();
    assert_eq!(world.condition(PLANNED), is_true("Planned"));
    assert_eq!(world.condition(APPROVED), is_false("WaitingForApproval"));
    assert!(world.events.contains(&"PlanReady"));
    world
}

fn approved() -> World {
    waiting().approve().annotate(names::COMMENT, "ok").settled()
}

#[test]
fn approval_of_the_waiting_plan_is_recorded() {
    let world = approved();
    let record = world.status().approval.clone().unwrap();
    assert_eq!(record.checksum.as_deref(), Some(SUM));
    assert_eq!(record.by.as_str(), "alice");
    assert_eq!(record.comment.as_deref(), Some("ok"));
    assert_eq!(world.condition(APPROVED), is_true("Approved"));
    assert_eq!(world.events.last(), Some(&"Approved"));
    assert_eq!(
        world.written(Kind::Approval),
        2,
        "that it waits, and that it does not"
    );
}

#[test]
fn approval_is_recorded_without_a_live_read() {
    let mut world = waiting().annotate(names::APPROVE, SUM);
    (world.o.run_live, world.o.pod_live) = (false, false);
    assert!(!world.decide().needs_live());
}

#[test]
fn no_approval_is_recorded_until_policies_are_proven() {
    let mut world = waiting().approve();
    world.o.policies = Enforcement::Unknown;
    assert_eq!(world.decide().actions, [Action::ProbePolicies]);
    world = world.not_enforced(Missing::policy("an approval was not refused"));
    assert_eq!(world.settle(), Some(5));
    assert!(!world.is_approved());
    assert_eq!(world.condition(STALLED), is_true("PolicyMissing"));
    world = world.later(5).settled();
    assert!(world.is_approved());
    assert_eq!(world.condition(STALLED), is_false("Progressing"));
}

#[test]
fn withdrawal_removes_the_recorded_approval() {
    let world = approved().withdrawn().settled();
    assert!(!world.is_approved());
    assert_eq!(world.condition(APPROVED), is_false("Withdrawn"));
    assert_eq!(world.events.last(), Some(&"Withdrawn"));
    world.settled_silently();
}

#[test]
fn approval_of_another_plan_is_stale() {
    let world = waiting().annotate(names::APPROVE, OTHER).settled();
    assert!(!world.is_approved());
    assert_eq!(world.condition(APPROVED), is_false("StaleApproval"));
    assert_eq!(world.events.last(), Some(&"StaleApproval"));
    let changed = approved().annotate(names::APPROVE, OTHER).settled();
    assert!(!changed.is_approved(), "changed before the claim");
}

#[test]
fn second_approver_replaces_the_recorded_one() {
    let world = approved().annotate(names::APPROVED_BY, "bob").settled();
    assert_eq!(world.status().approval.as_ref().unwrap().by, "bob");
}

#[test]
fn approval_record_is_immutable_after_the_claim() {
    let mut world = approved();
    let record = world.status().approval.clone();
    world = world.claims();
    let world = world.withdrawn().later(100).settled();
    assert_eq!(world.status().approval, record);
    assert_eq!(world.condition(APPROVED), is_true("Approved"));
}

#[test]
fn approval_of_a_plan_of_another_attempt_is_ignored() {
    let mut world = World::new()
        .adopted(Phase::AwaitingApproval)
        .annotate(names::APPROVE, SUM);
    world.status_mut().plan.as_mut().unwrap().attempt = 7;
    world.settle();
    assert!(!world.is_approved());
}

#[test]
fn approval_before_the_plan_is_not_recorded() {
    for phase in [Phase::Setup, Phase::Init, Phase::Plan] {
        let world = World::new()
            .adopted(phase)
            .annotate(names::APPROVE, SUM)
            .settled();
        assert!(!world.is_approved());
    }
}

#[test]
fn lost_plan_loses_its_approval() {
    let mut world = approved().pod_ended(None);
    assert_eq!(world.settle(), Some(10));
    assert!(!world.is_approved());
    world = world.later(10).pod_gone().adopted(Phase::AwaitingApproval);
    world.status_mut().plan.as_mut().unwrap().checksum = OTHER.into();
    world.settle();
    assert_eq!(world.condition(APPROVED), is_false("StaleApproval"));
    assert!(!world.is_approved());
}

#[test]
fn automatic_run_that_asks_a_person_retains_its_lease() {
    let asks = |run: &mut TerraformRun| {
        run.spec.approval.automatic_when = Some(crds::AutomaticWhen::default());
    };
    let mut world = World::automatic()
        .with(asks)
        .adopted(Phase::AwaitingApproval)
        .leased()
        .settled();
    assert!(
        world.has_lease(),
        "it has had it since its attempt was opened"
    );
    assert_eq!(world.condition(APPROVED), is_false("WaitingForApproval"));
    world = world.approve().settled();
    assert_eq!(
        world
            .status()
            .approval
            .as_ref()
            .and_then(|record| record.checksum.as_deref()),
        Some(SUM)
    );
    assert!(world.has_lease());
}

#[test]
fn automatic_run_with_an_unread_plan_waits_for_a_person() {
    let mut world = World::automatic().adopted(Phase::AwaitingApproval);
    let record = json!({"by": "automatic", "at": "2026-01-01T00:00:00Z"});
    world.status_mut().approval = Some(serde_json::from_value(record).unwrap());
    world.status_mut().plan.as_mut().unwrap().counts.unread = true;
    world = world.leased().settled();
    assert_eq!(world.condition(APPROVED), is_false("WaitingForApproval"));
    assert_eq!(world.status().approval, None);
    world = world.approve().settled();
    let record = world.status().approval.as_ref();
    assert_eq!(
        record.and_then(|record| record.checksum.as_deref()),
        Some(SUM)
    );
}
