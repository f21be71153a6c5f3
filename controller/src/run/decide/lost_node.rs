//! The node of a run's pod: lost, or over for certain (`design/0020-lost-nodes.md`). No other node says anything of the run.

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use kube::ResourceExt;
use serde_json::json;

use super::{draft::Draft, policies::unproven};
use crate::{
    cluster::nodes::{NodeState, NodeView, boot_id, over},
    run::{
        decision::{Decision, Kind, Write},
        observed::Observed,
        run_view::RunView,
        timing::after,
    },
    runner_pod::status::PodView,
};
use crds::{conditions, names, reason, text::clip};

/// Annotations that give an apply up, and with it what keeps another from its state.
pub(in crate::run) const ABANDONS: [&str; 2] = [names::ABANDON, names::ABANDONED_BY];
/// How long an attempt without a claim waits for its node, unless its pod tolerates less: as long as Kubernetes does.
const NODE_WAIT: SignedDuration = SignedDuration::from_mins(5);

/// What the node of a pod says of it.
pub(super) enum Fate<'a> {
    Unknown,
    /// It is Ready, and its kubelet tells of the pod.
    Ready,
    /// It is not Ready, and the pod may run or not.
    Lost(&'a NodeView),
    /// No process of the pod runs any more; why.
    Over(String),
}

pub(super) fn fate(o: &Observed) -> Fate<'_> {
    let Some(name) = o.node_name() else { return Fate::Unknown };
    if let Some(why) = over(name, o.status().attempt.as_ref(), &o.node) {
        return Fate::Over(why);
    }
    match &o.node {
        NodeState::There(node) if node.name == name && node.ready => Fate::Ready,
        NodeState::There(node) if node.name == name => Fate::Lost(node),
        NodeState::There(_) | NodeState::Gone(_) | NodeState::Unknown => Fate::Unknown,
    }
}

/// Notes on which node the pod is; with `boot`, which start of it as well. Only for a write that does not close the attempt.
pub(super) fn record(draft: &mut Draft<'_>, o: &Observed, boot: bool) {
    let (Some(name), Some(attempt)) = (o.node_name(), o.status().attempt.as_ref()) else { return };
    let mut fields = json!({});
    if !is_recorded(o) && o.notes.node_told != Some(attempt.number) {
        fields["nodeName"] = name.into();
    }
    if let NodeState::There(node) = &o.node
        && boot
        && said_since(o).is_none()
        && node.name == name
        && !node.boot_id.is_empty()
        && boot_id(Some(attempt), name).is_none()
    {
        fields = json!({"nodeName": name, "bootID": node.boot_id});
    }
    if fields.as_object().is_some_and(|fields| !fields.is_empty()) {
        draft.set("attempt", fields);
    }
}

/// Whether the status says on which node the pod is.
pub(super) fn is_recorded(o: &Observed) -> bool {
    let said = o.status().attempt.as_ref().and_then(|attempt| attempt.node(o.status().adopted.as_ref()));
    said.is_some() && said == o.node_name()
}

/// Since when the run says that its node is lost.
fn said_since(o: &Observed) -> Option<Timestamp> {
    let told = o.status().condition(conditions::STALLED, reason::NODE_UNREACHABLE);
    told.filter(|c| c.status == "True").map(|c| c.last_transition_time.0)
}

/// When an attempt without a claim is given up.
pub(super) fn due(o: &Observed, pod: &PodView, now: Timestamp) -> Timestamp {
    let wait = pod.tolerates.map_or(NODE_WAIT, |seconds| SignedDuration::from_secs(seconds).min(NODE_WAIT));
    after(said_since(o).unwrap_or(now), wait)
}

/// Says that the node is lost, since when, what is waited for, and what a person may do; `None` when the run says so already.
pub(super) fn says(o: &Observed, pod: &PodView, node: &NodeView, now: Timestamp) -> Option<Write> {
    let (run, status) = (&o.run, o.status());
    let clock = |at: Timestamp| at.to_zoned(TimeZone::UTC).strftime("%H:%M:%S UTC").to_string();
    let since = node.since.map(|at| format!(" since {}", clock(at))).unwrap_or_default();
    let what = format!("node {} of pod {} is not Ready{since}", node.name, pod.name);
    let text = if status.claim.is_some() {
        format!(
            "{what}; the apply may go on there. Waits for the node, or for proof of the end: the node restarted, deleted or, once it is \
             off for certain, tainted node.kubernetes.io/out-of-service. To give the apply up: {}",
            names::abandon_command(&run.namespace().unwrap_or_default(), &run.name_any())
        )
    } else {
        let due = clock(due(o, pod, now));
        format!(
            "{what}; nothing is applied. Unless it comes back, another attempt begins at {due} and uses up no retry; pawl.run/cancel, \
             pawl.run/deny or a deletion end the run within a minute"
        )
    };
    let mut draft = Draft::new(run, now);
    draft.condition_since(conditions::STALLED, Some(true), reason::NODE_UNREACHABLE, &text);
    // Behind the claim it is another text.
    draft.condition(conditions::STALLED, Some(true), reason::NODE_UNREACHABLE, &text);
    record(&mut draft, o, true);
    if draft.is_empty() {
        return None;
    }
    if said_since(o).is_none() {
        draft.note(reason::NODE_UNREACHABLE, true, clip(&format!("{text} ({})", node.said), 900));
    }
    Some(draft.finish(Kind::Gone))
}

/// Who gives the apply up, and why.
fn abandoned(run: &RunView) -> Option<String> {
    let why = run.annotations().get(names::ABANDON)?;
    let by = run.annotations().get(names::ABANDONED_BY).map_or("unknown", String::as_str);
    Some(format!("{} gave it up: {}", clip(by, 100), clip(why, 200)))
}

/// What a person who gives the apply up has come to.
pub(super) enum Abandon {
    /// Nobody does, or not while its node is Ready.
    No,
    /// Not before the admission policies stand.
    Waits(Decision),
    Yes(String),
}

/// Whether a person gave up an apply whose node is not Ready.
pub(super) fn abandon(o: &Observed, now: Timestamp) -> Abandon {
    let (Some(text), Fate::Lost(node)) = (abandoned(&o.run), fate(o)) else { return Abandon::No };
    // Who set it was asked who he is only while the policies stood.
    match unproven(o, now) {
        None => Abandon::Yes(format!("node {} is not Ready, and {text}", node.name)),
        Some(decision) => Abandon::Waits(decision),
    }
}

/// Whether a person gives up an apply whose node is Ready.
pub(super) fn refuses(o: &Observed) -> bool {
    o.status().claim.is_some() && abandoned(&o.run).is_some() && matches!(fate(o), Fate::Ready)
}

/// Nothing is held up, as far as the node goes. A person who gave the apply up under a node that is Ready is told so; the annotations
/// are taken off then, so that they are not acted upon when the node is lost some other time.
pub(super) fn goes_on(draft: &mut Draft<'_>, o: &Observed) {
    let told = o.status().condition(conditions::STALLED, reason::ABANDON_REFUSED).is_some();
    if refuses(o) && !told {
        let text = "pawl.run/abandon has no effect while the node of the pod is Ready, and was taken away: the apply goes on, and \
                    pawl.run/cancel asks it to end";
        draft.condition(conditions::STALLED, Some(false), reason::ABANDON_REFUSED, text);
        draft.note(reason::ABANDON_REFUSED, true, text);
    } else if !told {
        draft.condition_if_new(conditions::STALLED, Some(false), reason::PROGRESSING, "");
    }
}
