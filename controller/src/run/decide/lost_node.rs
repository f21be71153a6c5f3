//! The node of a run's pod: lost, or over for certain (`design/0020-lost-nodes.md`). Other nodes do not matter to the run.

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use super::policies::unproven;
use crate::{
    cluster::nodes::{NodeState, NodeView, boot_id},
    run::{
        outcome::{Action, Decision, NodeRecord, Outcome, Unconfirmed},
        run_view::RunView,
        say,
        situation::{Fate, Situation},
        timing::after,
    },
    runner_pod::status::PodView,
};
use crds::{conditions, names, reason};

/// Annotations that abandon an apply, and with it the lease that blocks other applies to its state.
pub(in crate::run) const ABANDONS: [&str; 2] = [names::ABANDON, names::ABANDONED_BY];
/// How long an unclaimed attempt waits for its lost node at most, as Kubernetes does by default. A pod that tolerates less shortens it.
const NODE_WAIT: SignedDuration = SignedDuration::from_mins(5);

/// The node that the status has yet to record, with its boot ID if `boot`. Only for a write that leaves the attempt open.
pub(super) fn record(s: &Situation<'_>, boot: bool) -> Option<NodeRecord> {
    let (name, attempt) = (s.node_name?, s.status().attempt.as_ref()?);
    if let NodeState::There(node) = s.node
        && boot
        && lost_since(s).is_none()
        && node.name == name
        && !node.boot_id.is_empty()
        && boot_id(Some(attempt), name).is_none()
    {
        return Some(NodeRecord {
            name: name.to_owned(),
            boot_id: Some(node.boot_id.clone()),
        });
    }
    let is_new = !is_recorded(s) && s.notes.node_told != Some(attempt.number);
    is_new.then(|| NodeRecord {
        name: name.to_owned(),
        boot_id: None,
    })
}

/// Whether the status records the node of the pod.
pub(super) fn is_recorded(s: &Situation<'_>) -> bool {
    let said = s
        .status()
        .attempt
        .as_ref()
        .and_then(|attempt| attempt.node(s.status().adopted.as_ref()));
    said.is_some() && said == s.node_name
}

/// Since when the status reports the node as lost.
fn lost_since(s: &Situation<'_>) -> Option<Timestamp> {
    s.status().stalled_since(reason::NODE_UNREACHABLE)
}

/// The time at which an unclaimed attempt on a lost node is closed.
pub(super) fn due(s: &Situation<'_>, pod: &PodView) -> Timestamp {
    let wait = pod.tolerates.map_or(NODE_WAIT, |seconds| {
        SignedDuration::from_secs(seconds).min(NODE_WAIT)
    });
    after(lost_since(s).unwrap_or(s.now), wait)
}

/// Reports a lost node; `None` if the status reports it already.
pub(super) fn not_ready(s: &Situation<'_>, pod: &PodView, node: &NodeView) -> Option<Action> {
    let (retry_at, record) = (due(s, pod), record(s, true));
    let outcome = Outcome::NodeNotReady {
        node: node.clone(),
        pod: pod.name.clone(),
        retry_at,
        record,
    };
    say::news(s.run, s.now, outcome)
}

/// The person who abandons the apply, and the reason.
fn abandoned(run: &RunView) -> Option<(&str, &str)> {
    let why = run.annotations().get(names::ABANDON)?;
    let by = run
        .annotations()
        .get(names::ABANDONED_BY)
        .map_or("unknown", String::as_str);
    Some((by, why))
}

/// The effect of the abandon annotation.
pub(super) enum Abandon {
    /// None: there is no annotation, or the node is not lost.
    No,
    /// None until the admission policies are enforced.
    Waits(Decision),
    Yes(Unconfirmed),
}

/// Whether a person abandoned an apply whose node is not Ready.
pub(super) fn abandon(s: &Situation<'_>) -> Abandon {
    let (Some((by, why)), Fate::Lost(node)) = (abandoned(s.run), &s.fate) else {
        return Abandon::No;
    };
    // The annotation's author is verified only while the policies are enforced.
    match unproven(s) {
        None => Abandon::Yes(Unconfirmed::Abandoned {
            node: node.name.clone(),
            by: by.to_owned(),
            why: why.to_owned(),
        }),
        Some(decision) => Abandon::Waits(decision),
    }
}

/// Whether a person abandons an apply whose node is Ready. The annotations are then removed, so that they have no effect when the node is
/// lost later.
pub(super) fn refuses(s: &Situation<'_>) -> bool {
    s.status().claim.is_some() && abandoned(s.run).is_some() && matches!(s.fate, Fate::Ready)
}

/// Whether the status reports the refusal to abandon already.
pub(super) fn told_refusal(s: &Situation<'_>) -> bool {
    s.status()
        .condition(conditions::STALLED, reason::ABANDON_REFUSED)
        .is_some()
}
