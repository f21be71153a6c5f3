//! The node of a run's pod: lost, or over for certain (`design/0020-lost-nodes.md`). No other node counts for the run.

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

/// Annotations that give an apply up, and with it what keeps another from its state.
pub(in crate::run) const ABANDONS: [&str; 2] = [names::ABANDON, names::ABANDONED_BY];
/// How long an attempt without a claim waits for its node, unless its pod tolerates less: as long as Kubernetes does.
const NODE_WAIT: SignedDuration = SignedDuration::from_mins(5);

/// The node that the status has to record; with `boot`, which start of it as well. Only for a write that does not close the attempt.
pub(super) fn record(s: &Situation<'_>, boot: bool) -> Option<NodeRecord> {
    let (name, attempt) = (s.node_name?, s.status().attempt.as_ref()?);
    if let NodeState::There(node) = s.node
        && boot
        && lost_since(s).is_none()
        && node.name == name
        && !node.boot_id.is_empty()
        && boot_id(Some(attempt), name).is_none()
    {
        return Some(NodeRecord { name: name.to_owned(), boot_id: Some(node.boot_id.clone()) });
    }
    let is_new = !is_recorded(s) && s.notes.node_told != Some(attempt.number);
    is_new.then(|| NodeRecord { name: name.to_owned(), boot_id: None })
}

/// Whether the status records on which node the pod is.
pub(super) fn is_recorded(s: &Situation<'_>) -> bool {
    let said = s.status().attempt.as_ref().and_then(|attempt| attempt.node(s.status().adopted.as_ref()));
    said.is_some() && said == s.node_name
}

/// Since when the run tells that its node is lost.
fn lost_since(s: &Situation<'_>) -> Option<Timestamp> {
    s.status().stalled_since(reason::NODE_UNREACHABLE)
}

/// When an attempt without a claim is given up.
pub(super) fn due(s: &Situation<'_>, pod: &PodView) -> Timestamp {
    let wait = pod.tolerates.map_or(NODE_WAIT, |seconds| SignedDuration::from_secs(seconds).min(NODE_WAIT));
    after(lost_since(s).unwrap_or(s.now), wait)
}

/// The node is lost; `None` when the run tells so already.
pub(super) fn not_ready(s: &Situation<'_>, pod: &PodView, node: &NodeView) -> Option<Action> {
    let (retry_at, record) = (due(s, pod), record(s, true));
    let outcome = Outcome::NodeNotReady { node: node.clone(), pod: pod.name.clone(), retry_at, record };
    say::news(s.run, s.now, outcome)
}

/// The person who gives the apply up, and why.
fn abandoned(run: &RunView) -> Option<(&str, &str)> {
    let why = run.annotations().get(names::ABANDON)?;
    let by = run.annotations().get(names::ABANDONED_BY).map_or("unknown", String::as_str);
    Some((by, why))
}

/// The effect of a person who gives the apply up.
pub(super) enum Abandon {
    /// None: it is not given up, or its node is Ready.
    No,
    /// None before the admission policies are in force.
    Waits(Decision),
    Yes(Unconfirmed),
}

/// Whether a person gave up an apply whose node is not Ready.
pub(super) fn abandon(s: &Situation<'_>) -> Abandon {
    let (Some((by, why)), Fate::Lost(node)) = (abandoned(s.run), &s.fate) else { return Abandon::No };
    // The policies verify the author of the annotation, and only while they are in force.
    match unproven(s) {
        None => Abandon::Yes(Unconfirmed::Abandoned { node: node.name.clone(), by: by.to_owned(), why: why.to_owned() }),
        Some(decision) => Abandon::Waits(decision),
    }
}

/// Whether a person gives up an apply whose node is Ready. The annotations are taken off then, so that they have no effect when the node is
/// lost some other time.
pub(super) fn refuses(s: &Situation<'_>) -> bool {
    s.status().claim.is_some() && abandoned(s.run).is_some() && matches!(s.fate, Fate::Ready)
}

/// Whether the run tells already that giving it up was refused.
pub(super) fn told_refusal(s: &Situation<'_>) -> bool {
    s.status().condition(conditions::STALLED, reason::ABANDON_REFUSED).is_some()
}
