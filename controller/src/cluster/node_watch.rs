//! The watch and live reads of nodes.

use std::{future::ready, sync::Arc};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, runtime::watcher};
use tokio::sync::watch;

use super::{
    context::Cluster,
    nodes::{NodeState, NodeView},
    watch::{objects, stopped},
};
use crate::error::{Error, ErrorKind};

/// Watches nodes until `stop`.
pub async fn run(ctx: Arc<Cluster>, stop: watch::Receiver<bool>) {
    let api: Api<Node> = Api::all(ctx.client.clone());
    let events = objects("nodes", api, watcher::Config::default());
    events
        .take_until(stopped(stop))
        .for_each(|event| {
            heard(&event, &ctx);
            ready(())
        })
        .await;
}

/// Applies an event of the watch, and wakes the runs whose pods are on that node.
pub fn heard(event: &watcher::Event<Node>, ctx: &Cluster) {
    let is_changed = ctx.nodes.apply(event);
    if !matches!(event, watcher::Event::Init | watcher::Event::InitApply(_)) {
        ctx.nodes.wake(&ctx.pods.on(is_changed));
    }
}

/// The current state of the node. Uses the cache while it shows a healthy node, because no decision depends on a healthy one.
///
/// # Errors
/// When a call fails. Without the right to read nodes, the state is unknown.
pub async fn live(name: &str, boot_id: Option<&str>, ctx: &Cluster) -> Result<NodeState, Error> {
    match ctx.nodes.get(name) {
        NodeState::There(node) if node.is_well() && boot_id.is_none_or(|boot_id| boot_id == node.boot_id) => {
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
