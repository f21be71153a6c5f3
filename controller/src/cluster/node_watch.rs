//! The watch and live reads of nodes.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::{Api, runtime::watcher};
use tokio::sync::watch;
use watching::{Index, Key, follow};

use super::{
    context::Cluster,
    nodes::{NodeState, NodeView},
    watch::until,
};
use crate::error::{Error, ErrorKind};

/// Fills the cache of nodes, and wakes the runs whose pods are on a changed node.
pub struct Watched(pub Arc<Cluster>);

impl Watched {
    fn wake(&self, is_node: impl Fn(&str) -> bool) {
        for (namespace, run) in self.0.pods.on(is_node) {
            self.0.wakers.send(&namespace, &run);
        }
    }
}

impl Index<Node> for Watched {
    fn apply(&self, key: &Key, node: &Node) {
        if self.0.nodes.put(&NodeView::of(node)) {
            self.wake(|of| *of == *key.1);
        }
    }

    fn delete(&self, key: &Key) {
        self.0.nodes.remove(&key.1);
        self.wake(|of| *of == *key.1);
    }

    /// A node that the first listing did not show is gone, and one that it showed was unknown until now.
    fn reset(&self) {
        self.0.nodes.listed();
        self.wake(|of| !matches!(self.0.nodes.get(of), NodeState::There(node) if node.is_well()));
    }
}

/// Watches nodes until `stop`.
pub async fn run(ctx: Arc<Cluster>, stop: watch::Receiver<bool>) {
    let api: Api<Node> = Api::all(ctx.client.clone());
    until(
        stop,
        follow("nodes", api, watcher::Config::default(), Watched(ctx)),
    )
    .await;
}

/// The current state of the node. Uses the cache while it shows a healthy node, because no decision depends on a healthy one.
///
/// # Errors
/// When a call fails. Without the right to read nodes, the state is unknown.
pub async fn live(name: &str, boot_id: Option<&str>, ctx: &Cluster) -> Result<NodeState, Error> {
    match ctx.nodes.get(name) {
        NodeState::There(node)
            if node.is_well() && boot_id.is_none_or(|boot_id| boot_id == node.boot_id) =>
        {
            Ok(NodeState::There(node))
        }
        NodeState::There(_) | NodeState::Gone(_) | NodeState::Unknown => read(name, ctx).await,
    }
}

/// Reads a node live.
///
/// # Errors
/// When a call fails.
pub async fn read(name: &str, ctx: &Cluster) -> Result<NodeState, Error> {
    let api: Api<Node> = Api::all(ctx.client.clone());
    match ctx.call_opt("read node", api.get(name)).await {
        Ok(Some(node)) => Ok(NodeState::There(NodeView::of(&node))),
        Ok(None) => Ok(NodeState::Gone(name.to_owned())),
        Err(error) if error.kind() == ErrorKind::Forbidden => Ok(NodeState::Unknown),
        Err(error) => Err(error),
    }
}
