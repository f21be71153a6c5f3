//! Pods at work, and their nodes.

use jiff::Timestamp;
use kube::ResourceExt as _;
use serde_json::json;

use super::{
    attempt,
    patch::{StatusPatch, operation},
};
use crate::{
    cluster::nodes::NodeView,
    run::{
        outcome::{NodeRecord, Working},
        timing::GONE_WAIT,
    },
};
use crds::{conditions, names, reason, text::clip};

/// Records the node in the attempt. Only for a write that does not close the attempt.
fn record(patch: &mut StatusPatch<'_>, record: Option<&NodeRecord>) {
    match record {
        Some(NodeRecord {
            name,
            boot_id: None,
        }) => patch.set("attempt", json!({"nodeName": name})),
        Some(NodeRecord {
            name,
            boot_id: Some(boot),
        }) => patch.set("attempt", json!({"nodeName": name, "bootID": boot})),
        None => patch,
    };
}

/// The agent works, and nothing blocks it. Reports to a person who abandoned the apply that the node was Ready.
pub(super) fn working(patch: &mut StatusPatch<'_>, working: &Working) {
    let status = patch.status();
    if working.abandon_refused {
        let text = "pawl.run/abandon has no effect while the node of the pod is Ready, and was removed: the apply continues, and \
                    pawl.run/cancel asks it to end";
        patch.condition(
            conditions::STALLED,
            Some(false),
            reason::ABANDON_REFUSED,
            text,
        );
        patch.note(reason::ABANDON_REFUSED, true, text);
    } else if status
        .condition(conditions::STALLED, reason::ABANDON_REFUSED)
        .is_none()
    {
        patch.condition_if_new(conditions::STALLED, Some(false), reason::PROGRESSING, "");
    }
    if let (true, Some(plan)) = (working.planned, &status.plan) {
        patch.condition(
            conditions::PLANNED,
            Some(true),
            reason::PLANNED,
            &plan.summary,
        );
    }
    record(patch, working.record.as_ref());
}

/// The datastore is away while the agent works, or is back. The message belongs to the agent, so a condition has it.
pub(super) fn datastore(patch: &mut StatusPatch<'_>, away: Option<&str>) {
    let Some(why) = away else {
        attempt::unblocked(patch);
        return;
    };
    let waits = if patch.status().claim.is_some() {
        "the apply continues, and its log and its result are stored once the datastore is back"
    } else {
        "the plan and its log cannot be stored until it is back, and nothing is applied before"
    };
    let text = format!(
        "the datastore does not respond: {why}; {waits}: make sure that it runs and can be reached"
    );
    patch.condition_if_new(
        conditions::SUCCEEDED,
        None,
        reason::DATASTORE_UNAVAILABLE,
        &text,
    );
    patch.note(reason::DATASTORE_UNAVAILABLE, true, text);
}

/// Tells the agent to end as soon as its plan is in the datastore.
pub(super) fn hold_ends(patch: &mut StatusPatch<'_>) {
    patch.set("attempt", json!({"endHold": true}));
}

/// The node is not Ready: since when, the wait, and the options of a person.
pub(super) fn not_ready(
    patch: &mut StatusPatch<'_>,
    node: &NodeView,
    pod: &str,
    retry_at: Timestamp,
    noted: Option<&NodeRecord>,
) {
    let (run, status) = (patch.run(), patch.status());
    let clock = |at: Timestamp| at.strftime("%H:%M:%S UTC").to_string();
    let since = node
        .since
        .map(|at| format!(" since {}", clock(at)))
        .unwrap_or_default();
    let what = format!("node {} of pod {pod} is not Ready{since}", node.name);
    let text = if status.claim.is_some() {
        format!(
            "{what}; the apply may go on there. Waits for the node, or for proof of the end: the node restarted, deleted or, once it is \
             off for certain, tainted node.kubernetes.io/out-of-service. To abandon the apply: {}",
            names::abandon_command(&run.namespace().unwrap_or_default(), &run.name_any())
        )
    } else {
        format!(
            "{what}; nothing is applied. Unless it comes back, another attempt begins at {} and uses up no retry; pawl.run/cancel, \
             pawl.run/deny or a deletion end the run within a minute",
            clock(retry_at)
        )
    };
    patch.condition_since(
        conditions::STALLED,
        Some(true),
        reason::NODE_UNREACHABLE,
        &text,
    );
    // The text changes with the claim.
    patch.condition(
        conditions::STALLED,
        Some(true),
        reason::NODE_UNREACHABLE,
        &text,
    );
    record(patch, noted);
    if !patch.is_empty() && status.stalled_since(reason::NODE_UNREACHABLE).is_none() {
        patch.note(
            reason::NODE_UNREACHABLE,
            true,
            clip(&format!("{text} ({})", node.said), 900),
        );
    }
}

/// The pod of a claimed attempt is gone.
pub(super) fn pod_gone(
    patch: &mut StatusPatch<'_>,
    node: Option<&str>,
    noted: Option<&NodeRecord>,
) {
    let text = format!(
        "{}, in the middle of its {}; without proof of its end within {} s, the run ends Indeterminate",
        gone(patch, node),
        operation(patch.run()),
        GONE_WAIT.as_secs()
    );
    patch.condition_since(conditions::STALLED, Some(true), reason::POD_GONE, &text);
    record(patch, noted);
    patch.note(reason::POD_GONE, true, text);
}

/// How the attempt's pod vanished: by itself, or with its node.
pub(super) fn gone(patch: &StatusPatch<'_>, node: Option<&str>) -> String {
    let pod = patch
        .status()
        .attempt
        .as_ref()
        .map_or("", |attempt| &attempt.pod_name);
    node.map_or_else(
        || format!("pod {pod} is gone"),
        |why| format!("{why}, with pod {pod}"),
    )
}
