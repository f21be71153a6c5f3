//! Nodes, and of each only what says whether a pod on it is heard of, or has ended for certain.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::{StreamExt, channel::mpsc::UnboundedSender};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    runtime::{WatchStreamExt, reflector::ObjectRef, watcher},
};
use tokio::{sync::watch, time::Instant};

use crds::{TerraformRun, text::clip};

use crate::{
    error::{Error, ErrorKind},
    run::{Context, NodeState},
    watch::{backoff, loud},
};

/// Set by a person, or by what fences machines: the node is off, and nothing runs there.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// Nodes of one answer: each of them is large, and little of it is kept.
const PAGE: u32 = 50;

/// What matters of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    /// Name.
    pub name: String,
    /// Its condition Ready is True.
    pub ready: bool,
    /// Since when that is as it is, by the clock of its kubelet or of the control plane.
    pub since: Option<Timestamp>,
    /// What the condition says.
    pub said: String,
    /// Its kernel's boot ID, as its kubelet said last.
    pub boot_id: String,
    /// It is tainted as out of service.
    pub out_of_service: bool,
}

impl NodeView {
    /// Reads a node.
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

    /// Whether it is Ready and nothing else is to be thought of it.
    fn is_well(&self) -> bool {
        self.ready && !self.out_of_service
    }
}

/// The cache of nodes, filled by one watch.
#[derive(Default)]
pub struct Nodes(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// None until they were listed once.
    known: Option<HashMap<String, NodeView>>,
    fresh: HashMap<String, NodeView>,
    /// Since when this process has seen each node Ready without a break, and what the condition said of its beginning.
    ready: HashMap<String, (Option<Timestamp>, Instant)>,
    wakers: Vec<(Option<String>, UnboundedSender<ObjectRef<TerraformRun>>)>,
}

impl Inner {
    /// A node that was Ready again in between has another time in its condition, whatever its clock says.
    fn saw(&mut self, node: &NodeView) {
        if !node.ready {
            self.ready.remove(&node.name);
        } else if self.ready.get(&node.name).is_none_or(|(since, _)| *since != node.since) {
            self.ready.insert(node.name.clone(), (node.since, Instant::now()));
        }
    }
}

impl Nodes {
    /// For how long this process has seen a node Ready that was read just now, without a break.
    pub fn ready_for(&self, node: &NodeView) -> Option<Duration> {
        self.lock().ready.get(&node.name).filter(|(since, _)| *since == node.since).map(|(_, seen)| seen.elapsed())
    }

    /// `wake` is told of the runs of a namespace, or of all, whose node has changed.
    pub fn wakes(&self, scope: Option<String>, wake: UnboundedSender<ObjectRef<TerraformRun>>) {
        self.lock().wakers.push((scope, wake));
    }

    /// A node, as far as the watch has come.
    pub fn get(&self, name: &str) -> NodeState {
        match &self.lock().known {
            None => NodeState::Unknown,
            Some(known) => known.get(name).cloned().map_or_else(|| NodeState::Gone(name.to_owned()), NodeState::There),
        }
    }

    /// Takes an event of the watch. Returns whether the runs on that node have to be looked at.
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
        // A node that is not in the list is gone.
        move |name| changed.get(name).copied().unwrap_or(listed)
    }

    /// Has the runs of these pods looked at.
    fn wake(&self, runs: &[ObjectRef<TerraformRun>]) {
        let inner = self.lock();
        for (scope, wake) in &inner.wakers {
            for run in runs.iter().filter(|run| scope.is_none() || *scope == run.namespace) {
                // Nobody listens any more when the controller ends.
                let _ = wake.unbounded_send(run.clone());
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        // Whole between any two events.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether anything rests on the difference.
fn is_news(old: Option<&NodeView>, new: &NodeView) -> bool {
    let matters = |node: &NodeView| (node.is_well(), node.out_of_service, node.boot_id.clone());
    old.map_or_else(|| !new.is_well(), |old| matters(old) != matters(new))
}

/// Watches nodes until `stop` says otherwise.
pub async fn run(ctx: Arc<Context>, mut stop: watch::Receiver<bool>) {
    let api: Api<Node> = Api::all(ctx.client.clone());
    let events = watcher(api, watcher::Config::default().page_size(PAGE)).backoff(backoff());
    let mut events = std::pin::pin!(events.filter_map(|event| async move { loud("nodes", event) }));
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(event) => heard(&event, &ctx),
                None => return,
            },
            _ = stop.wait_for(|stop| *stop) => return,
        }
    }
}

/// Takes an event of the watch, and has the runs looked at whose pods are on that node.
pub fn heard(event: &watcher::Event<Node>, ctx: &Context) {
    let is_changed = ctx.nodes.apply(event);
    if !matches!(event, watcher::Event::Init | watcher::Event::InitApply(_)) {
        ctx.nodes.wake(&ctx.pods.on(is_changed));
    }
}

/// The node as it is now: from the cache while that says that it is well, since nothing rests on it then.
///
/// # Errors
/// When an answer says nothing. A controller without the right to nodes knows nothing of them.
pub async fn live(name: &str, boot_id: Option<&str>, ctx: &Context) -> Result<NodeState, Error> {
    match ctx.nodes.get(name) {
        NodeState::There(node) if node.is_well() && boot_id.is_none_or(|boot_id| boot_id == node.boot_id) => {
            Ok(NodeState::There(node))
        }
        NodeState::There(_) | NodeState::Gone(_) | NodeState::Unknown => read(name, ctx).await,
    }
}

/// Reads a node.
///
/// # Errors
/// When an answer says nothing.
pub async fn read(name: &str, ctx: &Context) -> Result<NodeState, Error> {
    let api: Api<Node> = Api::all(ctx.client.clone());
    match ctx.call_opt("read node", api.get(name)).await {
        Ok(Some(node)) => Ok(NodeState::There(NodeView::of(&node))),
        Ok(None) => Ok(NodeState::Gone(name.to_owned())),
        Err(error) if error.kind() == ErrorKind::Forbidden => Ok(NodeState::Unknown),
        Err(error) => Err(error),
    }
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
    fn only_a_node_that_changed_is_a_reason_to_look() {
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
    fn ready_counts_from_when_this_process_saw_it_and_anew_after_every_break() {
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
    fn a_node_is_read() {
        let mut wanted = node("a", "Unknown", "boot");
        wanted.spec =
            serde_json::from_value(serde_json::json!({"taints": [{"key": OUT_OF_SERVICE, "effect": "NoExecute"}]})).unwrap();
        let view = NodeView::of(&wanted);
        assert!(!view.ready && view.out_of_service && view.since.is_some());
        assert_eq!((view.boot_id.as_str(), view.said.as_str()), ("boot", "m"));
    }
}
