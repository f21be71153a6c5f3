//! A lost node: the reports of its runs, the fence before the claim, and the proof of an end after it.

use super::*;
use crate::cluster::nodes::NodeView;
use crds::{StateLease, datastore::StateId, names::lease_name, reason, state_key};

const NODE: &str = "n1";

fn view(ready: bool) -> NodeView {
    NodeView {
        name: NODE.into(),
        ready,
        since: Some(t0()),
        boot_id: "boot-1".into(),
        ..NodeView::default()
    }
}

impl World {
    /// Its pod is on that node.
    fn bound(mut self) -> Self {
        self.pod_mut().node = Some(NODE.into());
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
        self.annotate(names::ABANDON, "burned down")
            .annotate(names::ABANDONED_BY, "alice")
    }

    /// It holds the lease on its managed state.
    pub(super) fn leased(mut self) -> Self {
        self.settings.datastore_url = Some("https://x".into());
        let run = self.run.clone();
        let key = state_key::managed("team", &StateId::of("net", &run.spec));
        let status = self.status_mut();
        status.plan.as_mut().unwrap().state_key = Some(key.clone());
        status.lease = Some(StateLease {
            name: lease_name("team", &key),
            state_key: key,
            at: whole_seconds(t0()),
        });
        self
    }

    fn said(&self) -> String {
        self.status()
            .conditions
            .iter()
            .find(|c| c.type_ == STALLED)
            .map(|c| c.message.clone())
            .unwrap_or_default()
    }
}

/// An apply that holds its lease, on a lost node.
fn lost_apply() -> World {
    World::applying().leased().bound().lost()
}

fn rebooted() -> NodeView {
    NodeView {
        boot_id: "boot-2".into(),
        ..view(true)
    }
}

fn unreachable() -> (String, String) {
    is_true(reason::NODE_UNREACHABLE)
}

#[test]
fn lost_node_is_reported_once_and_cleared() {
    for world in [
        World::new().opened(),
        World::new().adopted(Phase::Plan),
        World::new().kept(),
        World::applying(),
    ] {
        let mut world = world.bound().settled();
        assert_ne!(world.condition(STALLED), unreachable());
        world = world.lost().settled();
        assert_eq!(
            world.condition(STALLED),
            unreachable(),
            "{:?}",
            world.phase()
        );
        has(&world.said(), "node n1 of pod ");
        has(&world.said(), "since ");
        assert_eq!(world.attempt().boot_id.as_deref(), Some("boot-1"));
        let (writes, events) = (world.writes.len(), world.events.len());
        world = world.later(20).settled();
        assert_eq!(world.writes.len(), writes, "it is said once");
        assert_eq!(world.events.len(), events, "it is said once");
        world = world.on(view(true)).settled();
        assert_eq!(
            world.condition(STALLED),
            is_false(reason::PROGRESSING),
            "{:?}",
            world.phase()
        );
        assert!(world.attempt().open);
    }
}

#[test]
fn lost_node_message_names_the_commands() {
    let before = World::new().adopted(Phase::Plan).bound().lost().settled();
    has(&before.said(), "uses up no retry");
    has(&before.said(), "pawl.run/cancel");
    let mut behind = before.claims();
    behind.settle();
    has(&behind.said(), "pawl.run/abandon=");
    has(&behind.said(), "out-of-service");
}

#[test]
fn node_lost_before_the_claim_uses_no_retry() {
    for phase in [None, Some(Phase::Setup), Some(Phase::Plan)] {
        let world = World::automatic();
        let mut world = phase
            .map_or_else(
                || world.clone().opened(),
                |phase| world.clone().adopted(phase),
            )
            .bound()
            .lost();
        let wait = world.settle();
        assert_eq!(wait, Some(300), "{phase:?}");
        world = world.later(299).settled();
        assert!(world.attempt().open && world.attempt().number == 1);
        world = world.later(2).settled();
        let attempt = world.attempt();
        assert_eq!(world.counts(), (2, 1, true), "{phase:?}");
        assert_eq!(attempt.node_name.as_deref(), None);
        assert_eq!(attempt.boot_id.as_deref(), None);
        assert!(
            world.status().failure.is_none()
                && world
                    .status()
                    .history
                    .iter()
                    .any(|line| line.contains("node n1"))
        );
    }
}

#[test]
fn toleration_shortens_the_wait_for_a_lost_node() {
    let mut world = World::automatic().adopted(Phase::Plan).bound().lost();
    world.pod_mut().tolerates = Some(5);
    assert_eq!(world.settle(), Some(5));
    world = world.later(6).settled();
    assert_eq!(world.attempt().number, 2);
}

#[test]
fn stored_plan_survives_its_node() {
    let world = World::new()
        .kept()
        .bound()
        .lost()
        .settled()
        .later(301)
        .settled();
    assert_eq!(world.at(), (Some(Phase::AwaitingApproval), false));
    has(world.message(), "waits for approval");
    // The node is lost while the plan is restored: the next attempt restores it, as the same try.
    let world = world.annotate(names::APPROVE, SUM).pod_gone().settled();
    assert_eq!(world.counts(), (2, 1, true));
    assert_eq!(world.attempt().restores, Some(1));
    let world = world.bound().lost().settled().later(301).settled();
    assert_eq!(world.counts(), (3, 1, true));
    assert_eq!(world.attempt().restores, Some(1));
}

#[test]
fn claimed_run_on_a_lost_node_ends_only_on_proof() {
    let mut world = World::applying().bound().lost().settled();
    world = world.later(100_000).settled();
    assert_eq!(world.at(), (Some(Phase::Apply), true));
    for proof in [
        NodeState::Gone(NODE.into()),
        NodeState::There(rebooted()),
        NodeState::There(NodeView {
            out_of_service: true,
            ..view(false)
        }),
    ] {
        let mut world = world.clone();
        world.o.node = proof.clone();
        world.settle();
        assert_eq!(
            world.condition(STALLED),
            is_true(reason::POD_GONE),
            "a moment for the kubelet's word: {proof:?}"
        );
        world = world.later(61).settled();
        assert_eq!(world.result(), Some(RunResult::Indeterminate), "{proof:?}");
        assert!(world.message().contains("node n1"), "{}", world.message());
    }
    // Its kubelet is back and reports.
    let mut world = world.on(rebooted()).settled();
    world = world.reports(RunResult::Applied).settled();
    assert_eq!(world.result(), Some(RunResult::Applied));
}

#[test]
fn state_of_another_node_is_ignored() {
    let mut world = World::applying()
        .bound()
        .on(NodeView {
            name: "n2".into(),
            out_of_service: true,
            ..view(false)
        })
        .settled();
    assert_ne!(world.condition(STALLED), unreachable());
    world.o.node = NodeState::Gone("n2".into());
    world = world.later(1000).settled();
    assert_eq!(world.phase(), Some(Phase::Apply));
}

/// The pod was gone before a controller saw it or recorded its node.
#[test]
fn node_of_a_missing_pod_is_the_one_its_agent_recorded() {
    let mut world = World::applying().leased();
    world.status_mut().adopted.as_mut().unwrap().node_name = Some(NODE.into());
    world = world.pod_gone();
    assert_eq!(world.seen().node_name(), Some(NODE));
    world.settle();
    world = world.later(61);
    world.o.node = NodeState::Gone(NODE.into());
    world.settle();
    assert_eq!(world.result(), Some(RunResult::Indeterminate));
    assert!(!world.has_lease());
    // The previous attempt's node is not this attempt's.
    world.status_mut().attempt.as_mut().unwrap().number = 2;
    assert_eq!(world.seen().node_name(), None);
}

#[test]
fn node_recorded_by_the_agent_is_not_written_again() {
    let written = |said: Option<&str>| {
        let mut world = World::applying();
        world.status_mut().adopted.as_mut().unwrap().node_name = said.map(str::to_owned);
        let world = world.bound().later(3).settled();
        world.attempt().node_name.clone()
    };
    assert_eq!(written(Some(NODE)), None);
    assert_eq!(written(None), Some(NODE.into()));
    // A loss is recorded with the boot ID of the lost node.
    let mut world = World::applying();
    world.status_mut().adopted.as_mut().unwrap().node_name = Some(NODE.into());
    let world = world.bound().lost().settled();
    let attempt = world.attempt();
    assert_eq!(attempt.node_name.as_deref(), Some(NODE));
    assert_eq!(attempt.boot_id.as_deref(), Some("boot-1"));
}

#[test]
fn abandon_on_a_lost_node_ends_the_apply() {
    let mut world = lost_apply().settled();
    world = world.abandoned().settled();
    assert_eq!(world.end(), (Some(RunResult::Indeterminate), false));
    has(world.message(), "alice abandoned the apply: burned down");
    assert!(!world.has_lease(), "the lock first, then the lease");
    assert_eq!(world.unlocks, 1, "the lock first, then the lease");
    assert!(!world.pod().held, "{:?}", world.o.pod);
    assert!(world.pod().deleting, "{:?}", world.o.pod);
    // Late proof settles it.
    world.stored = Some(message(Some(RunResult::Applied), None));
    world = world.later(20).settled();
    assert_eq!(
        world
            .status()
            .settled
            .as_ref()
            .map(|settled| settled.result),
        Some(RunResult::Applied)
    );
    let world = world.deleted().settled();
    assert!(world.gone);
}

#[test]
fn abandon_on_a_ready_node_is_refused() {
    let world = World::applying().bound().abandoned().settled();
    assert_eq!(world.phase(), Some(Phase::Apply));
    assert_eq!(world.condition(STALLED), is_false(reason::ABANDON_REFUSED));
    assert!(world.events.contains(&reason::ABANDON_REFUSED));
    world.later(1).settled_silently();
}

#[test]
fn abandon_without_enforced_policies_is_ignored() {
    let mut world = World::applying().bound().lost().abandoned();
    world = world.not_enforced(Missing::policy("x")).settled();
    assert_eq!(world.phase(), Some(Phase::Apply));
}

#[test]
fn retained_lease_names_the_abandon_command() {
    let world = lost_apply().settled();
    let world = world.pod_gone().settled().later(61).settled();
    assert_eq!(world.result(), Some(RunResult::Indeterminate));
    assert!(world.has_lease());
    let condition = world.whole_condition(STATE_LEASED);
    has(
        &condition.message,
        "kubectl annotate -n team tfrun.pawl.run/net pawl.run/abandon=",
    );
    let world = world.abandoned().settled();
    assert!(!world.has_lease());
}

#[test]
fn failed_lock_release_retains_the_lease_and_is_reported() {
    let mut world = lost_apply().abandoned();
    world.unlock = Err("the datastore does not answer".into());
    assert!(world.settle().is_some());
    assert!(world.has_lease());
    let condition = world.whole_condition(STATE_LEASED);
    has(&condition.message, "the datastore does not answer");
    world.unlock = Ok(());
    world = world.later(11).settled();
    assert!(!world.has_lease());
}

#[test]
fn unfinished_apply_releases_the_lock_of_a_managed_state() {
    for (said, result, unlocks) in [
        (None, RunResult::Indeterminate, 1),
        (Some(RunResult::Failed), RunResult::Failed, 1),
        (Some(RunResult::Applied), RunResult::Applied, 0),
    ] {
        let ended = |applying: World| {
            said.map_or(applying.clone(), |said| applying.finished(said))
                .pod_ended(None)
                .settled()
        };
        let applying = World::applying().leased().bound();
        // Not if the state is stored elsewhere: no run may release that lock.
        let mut foreign = applying.clone();
        foreign.status_mut().plan.as_mut().unwrap().state_key = Some(OTHER.into());
        let (own, foreign) = (ended(applying), ended(foreign));
        assert_eq!(own.result(), Some(result));
        assert!(!own.has_lease());
        assert_eq!(own.unlocks, unlocks);
        assert!(!foreign.has_lease(), "{result}");
        assert_eq!(foreign.unlocks, 0, "{result}");
    }
}

#[test]
fn deletion_of_a_failed_apply_waits_for_its_lock() {
    let mut world = World::applying()
        .leased()
        .bound()
        .finished(RunResult::Failed)
        .pod_ended(None)
        .deleted();
    world.unlock = Err("the datastore does not answer".into());
    assert!(world.settle().is_some());
    assert!(world.has_lease() && !world.gone);
    world.unlock = Ok(());
    let world = world.later(11).settled();
    assert!(world.gone, "{:?}", world.status());
}

#[test]
fn ended_run_is_deleted_while_its_node_is_lost() {
    let mut world = World::applying()
        .bound()
        .finished(RunResult::Applied)
        .lost()
        .deleted()
        .settled();
    world = world.later(31).settled();
    assert!(world.gone, "{:?}", world.status());
}
