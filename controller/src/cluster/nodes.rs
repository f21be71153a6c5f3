//! Nodes: caches only the facts that tell whether a pod's node is reachable, or its processes have certainly ended.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use futures::channel::mpsc::UnboundedSender;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{
    ResourceExt,
    runtime::{reflector::ObjectRef, watcher},
};
use tokio::time::Instant;

use crds::{Attempt, TerraformRun, text::clip};

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
        let ready = status.and_then(|status| status.conditions.as_ref()).and_then(|all| all.iter().find(|c| c.type_ == "Ready"));
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
        Self {
            name: node.name_any(),
            ready: ready.is_some_and(|c| c.status == "True"),
            since: ready.and_then(|c| c.last_transition_time.as_ref()).map(|at| at.0),
            said: clip(ready.and_then(|c| c.message.as_deref()).unwrap_or_default(), 100),
            boot_id: status.and_then(|status| status.node_info.as_ref()).map(|info| info.boot_id.clone()).unwrap_or_default(),
            out_of_service: taints.is_some_and(|all| all.iter().any(|taint| taint.key == OUT_OF_SERVICE)),
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
    attempt.filter(|attempt| attempt.node_name.as_deref() == Some(node)).and_then(|attempt| attempt.boot_id.as_deref())
}

/// The proof that no process of a pod runs on a node any more: the node was deleted, is out of service, or was rebooted since the pod was
/// lost.
pub fn over(name: &str, attempt: Option<&Attempt>, node: &NodeState) -> Option<String> {
    match node {
        NodeState::Gone(of) if of == name => Some(format!("node {name} was deleted")),
        NodeState::There(node) if node.name == name && node.out_of_service => {
            Some(format!("node {name} has the taint node.kubernetes.io/out-of-service"))
        }
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
    /// `None` until the first listing.
    known: Option<HashMap<String, NodeView>>,
    fresh: HashMap<String, NodeView>,
    /// Since when this process has seen each node continuously Ready, with the condition's transition time.
    ready: HashMap<String, (Option<Timestamp>, Instant)>,
    wakers: Vec<(Option<String>, UnboundedSender<ObjectRef<TerraformRun>>)>,
}

impl Inner {
    /// A node that became Ready again has another transition time, whatever its clock shows.
    fn saw(&mut self, node: &NodeView) {
        if !node.ready {
            self.ready.remove(&node.name);
        } else if self.ready.get(&node.name).is_none_or(|(since, _)| *since != node.since) {
            self.ready.insert(node.name.clone(), (node.since, Instant::now()));
        }
    }
}

impl Nodes {
    /// How long this process has seen a just-read node continuously Ready.
    pub fn ready_for(&self, node: &NodeView) -> Option<Duration> {
        self.lock().ready.get(&node.name).filter(|(since, _)| *since == node.since).map(|(_, seen)| seen.elapsed())
    }

    /// Registers a sender for the runs in a namespace, or in all, whose node has changed.
    pub fn wakes(&self, scope: Option<String>, wake: UnboundedSender<ObjectRef<TerraformRun>>) {
        self.lock().wakers.push((scope, wake));
    }

    /// A node according to the cache.
    pub fn get(&self, name: &str) -> NodeState {
        match &self.lock().known {
            None => NodeState::Unknown,
            Some(known) => known.get(name).cloned().map_or_else(|| NodeState::Gone(name.to_owned()), NodeState::There),
        }
    }

    /// Applies an event of the watch. Returns a predicate that selects the nodes whose runs need a reconcile.
    pub fn apply(&self, event: &watcher::Event<Node>) -> impl Fn(&str) -> bool + use<> {
        let mut inner = self.lock();
        let mut changed: HashMap<String, bool> = HashMap::new();
        let mut listed = false;
        match event {
            watcher::Event::Apply(node) => {
                let fresh = NodeView::of(node);
                inner.saw(&fresh);
                let name = fresh.name.clone();
                let old = inner.known.get_or_insert_default().insert(name.clone(), fresh.clone());
                changed.insert(name, is_news(old.as_ref(), &fresh));
            }
            watcher::Event::Delete(node) => {
                inner.known.get_or_insert_default().remove(&node.name_any());
                inner.ready.remove(&node.name_any());
                changed.insert(node.name_any(), true);
            }
            watcher::Event::Init => inner.fresh.clear(),
            watcher::Event::InitApply(node) => {
                let fresh = NodeView::of(node);
                inner.saw(&fresh);
                inner.fresh.insert(fresh.name.clone(), fresh);
            }
            watcher::Event::InitDone => {
                let fresh = std::mem::take(&mut inner.fresh);
                inner.ready.retain(|name, _| fresh.contains_key(name));
                let old = inner.known.take().unwrap_or_default();
                changed = fresh.iter().map(|(name, node)| (name.clone(), is_news(old.get(name), node))).collect();
                inner.known = Some(fresh);
                listed = true;
            }
        }
        // A node that the list does not contain is gone.
        move |name| changed.get(name).copied().unwrap_or(listed)
    }

    /// Wakes the runs of these pods.
    pub(super) fn wake(&self, runs: &[ObjectRef<TerraformRun>]) {
        let inner = self.lock();
        for (scope, wake) in &inner.wakers {
            for run in runs.iter().filter(|run| scope.is_none() || *scope == run.namespace) {
                // The receiver is gone when the controller shuts down.
                let _ = wake.unbounded_send(run.clone());
            }
        }
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
    fn only_changed_nodes_wake_runs() {
        let nodes = Nodes::default();
        assert_eq!(nodes.get("a"), NodeState::Unknown);
        for event in [
            watcher::Event::Init,
            watcher::Event::InitApply(node("a", "True", "1")),
            watcher::Event::InitApply(node("b", "False", "1")),
        ] {
            drop(nodes.apply(&event));
        }
        assert_eq!(nodes.get("a"), NodeState::Unknown, "not before the list is complete");
        let changed = nodes.apply(&watcher::Event::InitDone);
        assert!(!changed("a") && changed("b") && changed("gone"));
        assert_eq!(nodes.get("gone"), NodeState::Gone("gone".into()));
        assert!(!nodes.apply(&watcher::Event::Apply(node("a", "True", "1")))("a"), "a heartbeat");
        for (event, of) in [
            (watcher::Event::Apply(node("a", "Unknown", "1")), "a"),
            (watcher::Event::Apply(node("a", "True", "1")), "a"),
            (watcher::Event::Apply(node("a", "True", "2")), "a"),
            (watcher::Event::Delete(node("b", "False", "1")), "b"),
        ] {
            let changed = nodes.apply(&event);
            assert!(changed(of) && !changed("other"), "{event:?}");
        }
    }

    #[test]
    fn ready_time_restarts_after_every_break() {
        let nodes = Nodes::default();
        let sees = |ready: &str, since: &str| {
            let mut seen = node("a", ready, "1");
            let at = since.parse().unwrap();
            for condition in seen.status.iter_mut().flat_map(|status| status.conditions.iter_mut().flatten()) {
                condition.last_transition_time = Some(crds::whole_seconds(at));
            }
            drop(nodes.apply(&watcher::Event::Apply(seen)));
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
        let of = |since: &str| NodeView { name: "a".into(), since: Some(since.parse().unwrap()), ..NodeView::default() };
        assert_eq!(nodes.ready_for(&of(later)), None, "what was read live is ahead of the watch");
        assert!(nodes.ready_for(&of(long_ago)).is_some());
        assert!(sees("True", later).unwrap() > again, "lost and back, and nobody saw it");
    }

    #[test]
    fn node_view_has_readiness_boot_id_and_taints() {
        let mut wanted = node("a", "Unknown", "boot");
        wanted.spec =
            serde_json::from_value(serde_json::json!({"taints": [{"key": OUT_OF_SERVICE, "effect": "NoExecute"}]})).unwrap();
        let view = NodeView::of(&wanted);
        assert!(!view.ready && view.out_of_service && view.since.is_some());
        assert_eq!((view.boot_id.as_str(), view.said.as_str()), ("boot", "m"));
    }
}
