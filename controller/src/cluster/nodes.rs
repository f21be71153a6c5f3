//! Nodes: caches only the facts that tell whether a pod's node is reachable, or its processes have certainly ended.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use tokio::time::Instant;

use crds::{Attempt, text::clip};

/// Taint set by a person or a fencing agent: the node is shut down, and nothing runs on it.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    pub name: String,
    /// Whether its condition Ready is True.
    pub ready: bool,
    /// The transition time of that condition, by the clock of kubelet or control plane.
    pub since: Option<Timestamp>,
    /// The condition's message.
    pub said: String,
    /// Its kernel's boot ID, as last reported by the kubelet.
    pub boot_id: String,
    /// Whether it has the out-of-service taint.
    pub out_of_service: bool,
}

impl NodeView {
    pub fn of(node: &Node) -> Self {
        let status = node.status.as_ref();
        let ready = status
            .and_then(|status| status.conditions.as_ref())
            .and_then(|all| all.iter().find(|c| c.type_ == "Ready"));
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
        Self {
            name: node.name_any(),
            ready: ready.is_some_and(|c| c.status == "True"),
            since: ready
                .and_then(|c| c.last_transition_time.as_ref())
                .map(|at| at.0),
            said: clip(
                ready.and_then(|c| c.message.as_deref()).unwrap_or_default(),
                100,
            ),
            boot_id: status
                .and_then(|status| status.node_info.as_ref())
                .map(|info| info.boot_id.clone())
                .unwrap_or_default(),
            out_of_service: taints
                .is_some_and(|all| all.iter().any(|taint| taint.key == OUT_OF_SERVICE)),
        }
    }

    /// Whether it is Ready and not out of service.
    pub(super) fn is_well(&self) -> bool {
        self.ready && !self.out_of_service
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NodeState {
    /// Unknown: never requested, or not readable.
    #[default]
    Unknown,
    /// The API server has no node of this name.
    Gone(String),
    There(NodeView),
}

/// The boot ID of the node when it was lost.
pub(crate) fn boot_id<'a>(attempt: Option<&'a Attempt>, node: &str) -> Option<&'a str> {
    attempt
        .filter(|attempt| attempt.node_name.as_deref() == Some(node))
        .and_then(|attempt| attempt.boot_id.as_deref())
}

/// The proof that no process of a pod runs on a node any more: the node was deleted, is out of service, or was rebooted since the pod was
/// lost.
pub fn over(name: &str, attempt: Option<&Attempt>, node: &NodeState) -> Option<String> {
    match node {
        NodeState::Gone(of) if of == name => Some(format!("node {name} was deleted")),
        NodeState::There(node) if node.name == name && node.out_of_service => Some(format!(
            "node {name} has the taint node.kubernetes.io/out-of-service"
        )),
        NodeState::There(node) if node.name == name && !node.boot_id.is_empty() => {
            let anew = boot_id(attempt, name).is_some_and(|boot_id| boot_id != node.boot_id);
            anew.then(|| format!("node {name} was started anew"))
        }
        NodeState::Gone(_) | NodeState::There(_) | NodeState::Unknown => None,
    }
}

/// The cache of nodes, filled by one watch.
#[derive(Default)]
pub struct Nodes(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    known: HashMap<String, NodeView>,
    listed: bool,
    /// Since when this process has seen each node continuously Ready, with the condition's transition time.
    ready: HashMap<String, (Option<Timestamp>, Instant)>,
}

impl Nodes {
    /// How long this process has seen a just-read node continuously Ready.
    pub fn ready_for(&self, node: &NodeView) -> Option<Duration> {
        self.lock()
            .ready
            .get(&node.name)
            .filter(|(since, _)| *since == node.since)
            .map(|(_, seen)| seen.elapsed())
    }

    /// A node according to the cache.
    pub fn get(&self, name: &str) -> NodeState {
        let inner = self.lock();
        match inner.known.get(name) {
            _ if !inner.listed => NodeState::Unknown,
            None => NodeState::Gone(name.to_owned()),
            Some(node) => NodeState::There(node.clone()),
        }
    }

    /// Stores a node. Returns whether a decision depends on the difference.
    pub(super) fn put(&self, node: &NodeView) -> bool {
        let mut inner = self.lock();
        // A node that became Ready again has another transition time, whatever its clock shows.
        if !node.ready {
            inner.ready.remove(&node.name);
        } else if inner
            .ready
            .get(&node.name)
            .is_none_or(|(since, _)| *since != node.since)
        {
            inner
                .ready
                .insert(node.name.clone(), (node.since, Instant::now()));
        }
        let old = inner.known.insert(node.name.clone(), node.clone());
        is_news(old.as_ref(), node)
    }

    pub(super) fn remove(&self, name: &str) {
        let mut inner = self.lock();
        inner.known.remove(name);
        inner.ready.remove(name);
    }

    /// A listing has ended.
    pub(super) fn listed(&self) {
        self.lock().listed = true;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        // Consistent between any two events, so a poisoned lock still holds a valid value.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a decision depends on the difference.
fn is_news(old: Option<&NodeView>, new: &NodeView) -> bool {
    let matters = |node: &NodeView| (node.is_well(), node.out_of_service, node.boot_id.clone());
    old.map_or_else(|| !new.is_well(), |old| matters(old) != matters(new))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, ready: &str, boot: &str) -> Node {
        serde_json::from_value(serde_json::json!({"metadata": {"name": name}, "status": {
            "nodeInfo": {"architecture": "", "bootID": boot, "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
                "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": ""},
            "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z", "message": "m"}]}}))
        .unwrap()
    }

    #[test]
    fn only_relevant_changes_of_nodes_are_news() {
        let nodes = Nodes::default();
        let put = |name: &str, ready: &str, boot: &str| {
            nodes.put(&NodeView::of(&node(name, ready, boot)))
        };
        assert!(!put("a", "True", "1") && put("b", "False", "1"));
        assert_eq!(
            nodes.get("a"),
            NodeState::Unknown,
            "not before the list is complete"
        );
        nodes.listed();
        assert!(matches!(nodes.get("a"), NodeState::There(_)));
        assert_eq!(nodes.get("gone"), NodeState::Gone("gone".into()));
        assert!(!put("a", "True", "1"), "a heartbeat");
        assert!(put("a", "Unknown", "1"));
        assert!(put("a", "True", "1"));
        assert!(put("a", "True", "2"));
        nodes.remove("b");
        assert_eq!(nodes.get("b"), NodeState::Gone("b".into()));
    }

    #[test]
    fn ready_time_restarts_after_every_break() {
        let nodes = Nodes::default();
        let sees = |ready: &str, since: &str| {
            let mut seen = node("a", ready, "1");
            let at = since.parse().unwrap();
            for condition in seen
                .status
                .iter_mut()
                .flat_map(|status| status.conditions.iter_mut().flatten())
            {
                condition.last_transition_time = Some(crds::whole_seconds(at));
            }
            nodes.put(&NodeView::of(&seen));
            nodes.lock().ready.get("a").map(|(_, since)| *since)
        };
        let (long_ago, later) = ("2020-01-01T00:00:00Z", "2020-01-01T00:01:00Z");
        let begun = Instant::now();
        let first = sees("True", long_ago).unwrap();
        assert!(first >= begun, "its kubelet's clock says nothing");
        assert_eq!(sees("True", long_ago), Some(first), "a heartbeat");
        assert_eq!(sees("Unknown", later), None);
        let again = sees("True", long_ago).unwrap();
        std::thread::sleep(Duration::from_millis(2));
        let of = |since: &str| NodeView {
            name: "a".into(),
            since: Some(since.parse().unwrap()),
            ..NodeView::default()
        };
        assert_eq!(
            nodes.ready_for(&of(later)),
            None,
            "what was read live is ahead of the watch"
        );
        assert!(nodes.ready_for(&of(long_ago)).is_some());
        assert!(
            sees("True", later).unwrap() > again,
            "lost and back, and nobody saw it"
        );
    }

    #[test]
    fn node_view_has_condition_taint_and_boot_id() {
        let mut wanted = node("a", "Unknown", "boot");
        wanted.spec = serde_json::from_value(
            serde_json::json!({"taints": [{"key": OUT_OF_SERVICE, "effect": "NoExecute"}]}),
        )
        .unwrap();
        let view = NodeView::of(&wanted);
        assert!(!view.ready && view.out_of_service && view.since.is_some());
        assert_eq!((view.boot_id.as_str(), view.said.as_str()), ("boot", "m"));
    }
}
