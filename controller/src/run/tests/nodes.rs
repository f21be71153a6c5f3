//! A lost node: the reports of its runs, the fence before the claim, and the proof of an end after it.

use super::*;
use crate::cluster::nodes::NodeView;
use crds::{StateLease, datastore::StateId, names::lease_name, reason, state_key};

const NODE: &str = "n1";

fn view(ready: bool) -> NodeView {
    NodeView { name: NODE.into(), ready, since: Some(t0()), boot_id: "boot-1".into(), ..NodeView::default() }
}

impl World {
    /// Its pod is on that node.
    fn bound(mut self) -> Self {
        if let PodState::Present(pod) = &mut self.o.pod {
            pod.node = Some(NODE.into());
        }
        self.on(view(true))
    }

    fn on(mut self, node: NodeView) -> Self {
        self.o.node = NodeState::There(node);
        self
    }

    fn lost(self) -> Self {
        self.on(view(false))
    }

    fn abandoned(self) -> Self {
        self.annotate(names::ABANDON, "burned down").annotate(names::ABANDONED_BY, "alice")
    }

    /// It holds the lease on its managed state.
    pub(super) fn leased(mut self) -> Self {
        self.settings.datastore_url = Some("https://x".into());
        let run = self.run.clone();
        let key = state_key::managed("team", &StateId::of("net", &run.spec));
        let status = self.status_mut();
        status.plan.as_mut().unwrap().state_key = Some(key.clone());
        status.lease = Some(StateLease { name: lease_name("team", &key), state_key: key, at: whole_seconds(t0()) });
        self
    }

    fn said(&self) -> String {
        self.status().conditions.iter().find(|c| c.type_ == STALLED).map(|c| c.message.clone()).unwrap_or_default()
    }
}

fn unreachable() -> (String, String) {
    is_true(reason::NODE_UNREACHABLE)
}

#[test]
fn lost_node_is_reported_once_and_cleared() {
    for world in [World::new().opened(), World::new().adopted(Phase::Plan), World::new().kept(), World::automatic().claimed()] {
        let mut world = world.bound();
        world.settle();
        assert_ne!(world.condition(STALLED), unreachable());
        world = world.lost();
        world.settle();
        assert_eq!(world.condition(STALLED), unreachable(), "{:?}", world.status().phase);
        assert!(world.said().contains("node n1 of pod ") && world.said().contains("since "), "{}", world.said());
        assert_eq!(world.attempt().boot_id.as_deref(), Some("boot-1"));
        let (writes, events) = (world.writes.len(), world.events.len());
        world = world.later(20);
        world.settle();
        assert_eq!((world.writes.len(), world.events.len()), (writes, events), "it is said once");
        world = world.on(view(true));
        world.settle();
        assert_eq!(world.condition(STALLED), is_false(reason::PROGRESSING), "{:?}", world.status().phase);
        assert!(world.attempt().open);
    }
}

#[test]
fn lost_node_message_names_the_commands() {
    let mut before = World::new().adopted(Phase::Plan).bound().lost();
    before.settle();
    assert!(before.said().contains("uses up no retry") && before.said().contains("pawl.run/cancel"), "{}", before.said());
    let mut behind = before;
    let at = whole_seconds(behind.now);
    let status = behind.status_mut();
    status.phase = Some(Phase::Apply);
    status.claim = Some(Claim { checksum: SUM.into(), attempt: 1, pod_uid: POD.into(), nonce: NONCE.into(), at });
    behind.settle();
    assert!(behind.said().contains("pawl.run/abandon=") && behind.said().contains("out-of-service"), "{}", behind.said());
}

#[test]
fn node_lost_before_the_claim_uses_no_retry() {
    for phase in [None, Some(Phase::Setup), Some(Phase::Plan)] {
        let world = World::automatic();
        let mut world = phase.map_or_else(|| world.clone().opened(), |phase| world.clone().adopted(phase)).bound().lost();
        let wait = world.settle();
        assert_eq!(wait, Some(300), "{phase:?}");
        world = world.later(299);
        world.settle();
        assert!(world.attempt().open && world.attempt().number == 1);
        world = world.later(2);
        world.settle();
        let attempt = world.attempt();
        assert_eq!((attempt.number, attempt.tries, attempt.open), (2, 1, true), "{phase:?}: at once, and as the first try");
        assert_eq!((attempt.node_name.as_deref(), attempt.boot_id.as_deref()), (None, None));
        assert!(world.status().failure.is_none() && world.status().history.iter().any(|line| line.contains("node n1")));
    }
}

#[test]
fn toleration_shortens_the_wait_for_a_lost_node() {
    let mut world = World::automatic().adopted(Phase::Plan).bound().lost();
    if let PodState::Present(pod) = &mut world.o.pod {
        pod.tolerates = Some(5);
    }
    assert_eq!(world.settle(), Some(5));
    world = world.later(6);
    world.settle();
    assert_eq!(world.attempt().number, 2);
}

#[test]
fn stored_plan_survives_its_node() {
    let mut world = World::new().kept().bound().lost();
    world.settle();
    world = world.later(301);
    world.settle();
    assert_eq!((world.status().phase, world.attempt().open), (Some(Phase::AwaitingApproval), false));
    assert!(world.status().message.as_ref().unwrap().contains("waits for approval"), "{:?}", world.status().message);
    // The node is lost while the plan is restored: the next attempt restores it, as the same try.
    let mut world = world.annotate(names::APPROVE, SUM);
    world.o.pod = PodState::Absent;
    world.settle();
    assert_eq!((world.attempt().number, world.attempt().restores, world.attempt().tries), (2, Some(1), 1));
    let mut world = world.bound().lost();
    world.settle();
    world = world.later(301);
    world.settle();
    assert_eq!((world.attempt().number, world.attempt().restores, world.attempt().tries), (3, Some(1), 1));
}

#[test]
fn stop_request_on_a_lost_node_ends_within_a_minute() {
    for ask in [|w: World| w.annotate(names::CANCEL, "x"), |w: World| w.annotate(names::DENY, "x"), World::deleted] {
        for phase in [Phase::Plan, Phase::AwaitingApproval] {
            let mut world = ask(World::new().adopted(phase).bound().lost());
            world.settle();
            for _ in 0..6 {
                world = world.later(10);
                world.settle();
            }
            assert!(world.status().phase == Some(Phase::Canceled) || world.gone, "{:?}", world.status());
        }
    }
}

#[test]
fn claimed_run_on_a_lost_node_ends_only_on_proof() {
    let mut world = World::automatic().claimed().bound().lost();
    world.settle();
    world = world.later(100_000);
    world.settle();
    assert_eq!((world.status().phase, world.attempt().open), (Some(Phase::Apply), true));
    for proof in [
        NodeState::Gone(NODE.into()),
        NodeState::There(NodeView { boot_id: "boot-2".into(), ..view(true) }),
        NodeState::There(NodeView { out_of_service: true, ..view(false) }),
    ] {
        let mut world = world.clone();
        world.o.node = proof.clone();
        world.settle();
        assert_eq!(world.condition(STALLED), is_true(reason::POD_GONE), "a moment for the kubelet's word: {proof:?}");
        world = world.later(61);
        world.settle();
        assert_eq!(world.status().result, Some(RunResult::Indeterminate), "{proof:?}");
        assert!(world.status().message.as_ref().unwrap().contains("node n1"), "{:?}", world.status().message);
    }
    // Its kubelet is back and reports.
    let mut world = world.on(NodeView { boot_id: "boot-2".into(), ..view(true) });
    world.settle();
    world = world.pod_ended(Some(message(Some(RunResult::Applied), None)));
    world.settle();
    assert_eq!(world.status().result, Some(RunResult::Applied));
}

#[test]
fn state_of_another_node_is_ignored() {
    let mut world = World::automatic().claimed().bound().on(NodeView { name: "n2".into(), out_of_service: true, ..view(false) });
    world.settle();
    assert_ne!(world.condition(STALLED), unreachable());
    world.o.node = NodeState::Gone("n2".into());
    world = world.later(1000);
    world.settle();
    assert_eq!(world.status().phase, Some(Phase::Apply));
}

/// The pod was gone before a controller saw it or recorded its node.
#[test]
fn node_of_a_missing_pod_is_the_one_its_agent_recorded() {
    let mut world = World::automatic().claimed().leased();
    world.status_mut().adopted.as_mut().unwrap().node_name = Some(NODE.into());
    world = world.pod_gone();
    assert_eq!(world.seen().node_name(), Some(NODE));
    world.settle();
    world = world.later(61);
    world.o.node = NodeState::Gone(NODE.into());
    world.settle();
    assert_eq!((world.status().result, world.status().lease.is_none()), (Some(RunResult::Indeterminate), true));
    // The previous attempt's node is not this attempt's.
    world.status_mut().attempt.as_mut().unwrap().number = 2;
    assert_eq!(world.seen().node_name(), None);
}

#[test]
fn node_recorded_by_the_agent_is_not_written_again() {
    let written = |said: Option<&str>| {
        let mut world = World::automatic().claimed();
        world.status_mut().adopted.as_mut().unwrap().node_name = said.map(str::to_owned);
        let mut world = world.bound().later(3);
        world.settle();
        world.attempt().node_name.clone()
    };
    assert_eq!((written(Some(NODE)), written(None)), (None, Some(NODE.into())));
    // A loss is recorded with the boot ID of the lost node.
    let mut world = World::automatic().claimed();
    world.status_mut().adopted.as_mut().unwrap().node_name = Some(NODE.into());
    let mut world = world.bound().lost();
    world.settle();
    let attempt = world.attempt();
    assert_eq!((attempt.node_name.as_deref(), attempt.boot_id.as_deref()), (Some(NODE), Some("boot-1")));
}

#[test]
fn abandon_on_a_lost_node_ends_the_apply() {
    let mut world = World::automatic().claimed().leased().bound().lost();
    world.settle();
    world = world.abandoned();
    world.settle();
    assert_eq!((world.status().result, world.attempt().open), (Some(RunResult::Indeterminate), false));
    assert!(
        world.status().message.as_ref().unwrap().contains("alice abandoned the apply: burned down"),
        "{:?}",
        world.status().message
    );
    assert_eq!((world.status().lease.is_none(), world.unlocks), (true, 1), "the lock first, then the lease");
    assert!(matches!(&world.o.pod, PodState::Present(pod) if !pod.held && pod.deleting), "{:?}", world.o.pod);
    // Late proof settles it.
    world.stored = Some(message(Some(RunResult::Applied), None));
    world = world.later(20);
    world.settle();
    assert_eq!(world.status().settled.as_ref().map(|settled| settled.result), Some(RunResult::Applied));
    let mut world = world.deleted();
    world.settle();
    assert!(world.gone);
}

#[test]
fn abandon_on_a_ready_node_is_refused() {
    let mut world = World::automatic().claimed().bound().abandoned();
    world.settle();
    assert_eq!((world.status().phase, world.condition(STALLED)), (Some(Phase::Apply), is_false(reason::ABANDON_REFUSED)));
    assert!(world.events.contains(&reason::ABANDON_REFUSED));
    let writes = world.writes.len();
    world = world.later(1);
    world.settle();
    assert_eq!(world.writes.len(), writes, "once");
}

#[test]
fn abandon_without_enforced_policies_is_ignored() {
    let mut world = World::automatic().claimed().bound().lost().abandoned();
    let retry_at = world.now.checked_add(SignedDuration::from_secs(5)).unwrap();
    world.o.policies = Enforcement::NotEnforced { missing: Missing::policy("x"), retry_at };
    world.settle();
    assert_eq!(world.status().phase, Some(Phase::Apply));
}

#[test]
fn retained_lease_names_the_abandon_command() {
    let mut world = World::automatic().claimed().leased().bound().lost();
    world.settle();
    let mut world = world.pod_gone();
    world.settle();
    world = world.later(61);
    world.settle();
    assert_eq!((world.status().result, world.status().lease.is_some()), (Some(RunResult::Indeterminate), true));
    let condition = world.status().conditions.iter().find(|c| c.type_ == conditions::STATE_LEASED).unwrap();
    assert!(condition.message.contains("kubectl annotate -n team tfrun.pawl.run/net pawl.run/abandon="), "{}", condition.message);
    let mut world = world.abandoned();
    world.settle();
    assert!(world.status().lease.is_none());
}

#[test]
fn failed_lock_release_retains_the_lease_and_is_reported() {
    let mut world = World::automatic().claimed().leased().bound().lost().abandoned();
    world.unlock = Err("the datastore does not answer".into());
    assert!(world.settle().is_some());
    assert!(world.status().lease.is_some());
    let condition = world.status().conditions.iter().find(|c| c.type_ == conditions::STATE_LEASED).unwrap();
    assert!(condition.message.contains("the datastore does not answer"), "{}", condition.message);
    world.unlock = Ok(());
    world = world.later(11);
    world.settle();
    assert!(world.status().lease.is_none());
}

#[test]
fn unfinished_apply_releases_the_lock_of_a_managed_state() {
    for (said, result, unlocks) in [
        (None, RunResult::Indeterminate, 1),
        (Some(RunResult::Failed), RunResult::Failed, 1),
        (Some(RunResult::Applied), RunResult::Applied, 0),
    ] {
        let ended = |applying: World| {
            let mut world = said.map_or(applying.clone(), |said| applying.finished(said)).pod_ended(None);
            world.settle();
            world
        };
        let applying = World::automatic().claimed().leased().bound();
        // Not if the state is stored elsewhere: no run may release that lock.
        let mut foreign = applying.clone();
        foreign.status_mut().plan.as_mut().unwrap().state_key = Some(OTHER.into());
        let (own, foreign) = (ended(applying), ended(foreign));
        assert_eq!((own.status().result, own.status().lease.is_none(), own.unlocks), (Some(result), true, unlocks));
        assert_eq!((foreign.status().lease.is_none(), foreign.unlocks), (true, 0), "{result}");
    }
}

#[test]
fn deletion_of_a_failed_apply_waits_for_its_lock() {
    let mut world = World::automatic().claimed().leased().bound().finished(RunResult::Failed).pod_ended(None).deleted();
    world.unlock = Err("the datastore does not answer".into());
    assert!(world.settle().is_some());
    assert!(world.status().lease.is_some() && !world.gone);
    world.unlock = Ok(());
    let mut world = world.later(11);
    world.settle();
    assert!(world.gone, "{:?}", world.status());
}

#[test]
fn ended_run_is_deleted_while_its_node_is_lost() {
    let mut world = World::automatic().claimed().bound().finished(RunResult::Applied).lost().deleted();
    world.settle();
    world = world.later(31);
    world.settle();
    assert!(world.gone, "{:?}", world.status());
}
