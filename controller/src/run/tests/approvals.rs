//! Approvals, withdrawals, and approvals of another plan.

use super::*;

fn waiting() -> World {
    let mut world = World::new().adopted(Phase::AwaitingApproval);
    world.settle();
    assert_eq!(world.condition(conditions::PLANNED), is_true("Planned"));
    assert_eq!(world.condition(conditions::APPROVED), is_false("WaitingForApproval"));
    assert!(world.events.contains(&"PlanReady"));
    world
}

fn approved() -> World {
    let mut world = waiting().annotate(names::APPROVE, SUM).annotate(names::APPROVED_BY, "alice").annotate(names::COMMENT, "ok");
    world.settle();
    world
}

#[test]
fn approval_of_the_waiting_plan_is_recorded() {
    let world = approved();
    let record = world.status().approval.clone().unwrap();
    assert_eq!((record.checksum.as_deref(), record.by.as_str(), record.comment.as_deref()), (Some(SUM), "alice", Some("ok")));
    assert_eq!(world.condition(conditions::APPROVED), is_true("Approved"));
    assert_eq!(world.events.last(), Some(&"Approved"));
    assert_eq!(world.writes.iter().filter(|kind| **kind == Kind::Approval).count(), 2, "that it waits, and that it does not");
}

#[test]
fn approval_is_recorded_without_a_live_read() {
    let mut world = waiting().annotate(names::APPROVE, SUM);
    (world.o.run_live, world.o.pod_live) = (false, false);
    assert!(!world.decide().needs_live());
}

#[test]
fn no_approval_is_recorded_until_policies_are_proven() {
    let mut world = waiting().annotate(names::APPROVE, SUM).annotate(names::APPROVED_BY, "alice");
    world.o.policies = Enforcement::Unknown;
    assert_eq!(world.decide().actions, [Action::ProbePolicies]);
    let retry_at = world.now.checked_add(SignedDuration::from_secs(5)).unwrap();
    world.o.policies = Enforcement::NotEnforced { missing: Missing::policy("an approval was not refused"), retry_at };
    assert_eq!(world.settle(), Some(5));
    assert!(world.status().approval.is_none());
    assert_eq!(world.condition(STALLED), is_true("PolicyMissing"));
    world = world.later(5);
    world.settle();
    assert!(world.status().approval.is_some());
    assert_eq!(world.condition(STALLED), is_false("Progressing"));
}

#[test]
fn withdrawal_removes_the_recorded_approval() {
    let mut world = approved().with(|run| run.metadata.annotations = None);
    world.settle();
    assert!(world.status().approval.is_none());
    assert_eq!(world.condition(conditions::APPROVED), is_false("Withdrawn"));
    assert_eq!(world.events.last(), Some(&"Withdrawn"));
    let writes = world.writes.len();
    world.settle();
    assert_eq!(world.writes.len(), writes);
}

#[test]
fn approval_of_another_plan_is_stale() {
    let mut world = waiting().annotate(names::APPROVE, OTHER);
    world.settle();
    assert!(world.status().approval.is_none());
    assert_eq!(world.condition(conditions::APPROVED), is_false("StaleApproval"));
    assert_eq!(world.events.last(), Some(&"StaleApproval"));
    let mut changed = approved().annotate(names::APPROVE, OTHER);
    changed.settle();
    assert!(changed.status().approval.is_none(), "changed before the claim");
}

#[test]
fn second_approver_replaces_the_recorded_one() {
    let mut world = approved().annotate(names::APPROVED_BY, "bob");
    world.settle();
    assert_eq!(world.status().approval.as_ref().unwrap().by, "bob");
}

#[test]
fn approval_record_is_immutable_after_the_claim() {
    let mut world = approved();
    let record = world.status().approval.clone();
    let at = whole_seconds(world.now);
    let status = world.status_mut();
    status.phase = Some(Phase::Apply);
    status.claim = Some(Claim { checksum: SUM.into(), attempt: 1, pod_uid: POD.into(), nonce: NONCE.into(), at });
    let mut world = world.with(|run| run.metadata.annotations = None).later(100);
    world.settle();
    assert_eq!(world.status().approval, record);
    assert_eq!(world.condition(conditions::APPROVED), is_true("Approved"));
}

#[test]
fn approval_of_a_plan_of_another_attempt_is_ignored() {
    let mut world = World::new().adopted(Phase::AwaitingApproval).annotate(names::APPROVE, SUM);
    world.status_mut().plan.as_mut().unwrap().attempt = 7;
    world.settle();
    assert!(world.status().approval.is_none());
}

#[test]
fn approval_before_the_plan_is_not_recorded() {
    for phase in [Phase::Setup, Phase::Init, Phase::Plan] {
        let mut world = World::new().adopted(phase).annotate(names::APPROVE, SUM);
        world.settle();
        assert!(world.status().approval.is_none());
    }
}

#[test]
fn lost_plan_loses_its_approval() {
    let mut world = approved().pod_ended(None);
    assert_eq!(world.settle(), Some(10));
    assert!(world.status().approval.is_none());
    world = world.later(10);
    world.o.pod = PodState::Absent;
    world = world.adopted(Phase::AwaitingApproval);
    world.status_mut().plan.as_mut().unwrap().checksum = OTHER.into();
    world.settle();
    assert_eq!(world.condition(conditions::APPROVED), is_false("StaleApproval"));
    assert!(world.status().approval.is_none());
}

#[test]
fn automatic_run_that_asks_a_person_retains_its_lease() {
    let asks = |run: &mut TerraformRun| run.spec.approval.automatic_when = Some(crds::AutomaticWhen::default());
    let mut world = World::automatic().with(asks).adopted(Phase::AwaitingApproval).leased();
    world.settle();
    assert!(world.status().lease.is_some(), "it has had it since its attempt was opened");
    assert_eq!(world.condition(conditions::APPROVED), is_false("WaitingForApproval"));
    world = world.annotate(names::APPROVE, SUM).annotate(names::APPROVED_BY, "alice");
    world.settle();
    assert_eq!(world.status().approval.as_ref().and_then(|record| record.checksum.as_deref()), Some(SUM));
    assert!(world.status().lease.is_some());
}
