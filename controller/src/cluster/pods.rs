//! A cache of the pods that still have the attempt finalizer, with only the facts that decisions need. Ended and
//! released pods remain in the cluster for a while, but are not cached.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crds::TerraformRun;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    runtime::{reflector::ObjectRef, watcher},
};

use super::index::{Feed, Feeds, Index};
use crate::runner_pod::status::PodView;

type Key = (String, String);

/// The cache of pods, by namespace and name.
#[derive(Default)]
pub struct Pods {
    held: Mutex<Index<Key, PodView>>,
    /// The first release since this was last taken.
    released: Mutex<Option<Timestamp>>,
    feeds: Feeds,
}

impl Pods {
    /// Registers a watch of one namespace or of all.
    pub fn feed(&self) -> Feed {
        self.feeds.add()
    }

    /// The held pod according to the cache.
    pub fn get(&self, namespace: &str, name: &str) -> Option<PodView> {
        self.lock().get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// The runs of the held pods on these nodes.
    pub fn on(&self, is_node: impl Fn(&str) -> bool) -> Vec<ObjectRef<TerraformRun>> {
        let held = self.lock();
        let there = held.iter().filter(|(_, view)| view.node.as_deref().is_some_and(&is_node));
        there.map(|((namespace, _), view)| ObjectRef::new(&view.run).within(namespace)).collect()
    }

    /// The held pods of a namespace, or of all, with their namespaces.
    pub fn held(&self, scope: Option<&str>) -> Vec<(String, PodView)> {
        let held = self.lock();
        let of_scope = held.iter().filter(|((namespace, _), _)| scope.is_none_or(|scope| scope == namespace));
        of_scope.map(|((namespace, _), view)| (namespace.clone(), view.clone())).collect()
    }

    /// Records a release before the watch shows it, to prevent a second one.
    pub fn release(&self, namespace: &str, name: &str, uid: &str, now: Timestamp) {
        self.first_release().get_or_insert(now);
        let mut held = self.lock();
        let key = (namespace.to_owned(), name.to_owned());
        if held.get(&key).is_some_and(|view| view.uid == uid) {
            held.remove(&key);
        }
    }

    /// Time of the first release since this was last taken.
    pub(crate) fn first_release(&self) -> MutexGuard<'_, Option<Timestamp>> {
        self.released.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until every watch has listed its pods once.
    pub async fn ready(&self) {
        self.feeds.ready().await;
    }

    /// Applies an event of a watch. Returns whether it completed the first listing.
    pub fn apply(&self, feed: &mut Feed, event: &watcher::Event<Pod>) -> bool {
        feed.hears(event);
        let mut held = self.lock();
        match event {
            watcher::Event::Apply(pod) | watcher::Event::InitApply(pod) => {
                match PodView::of(pod).filter(|view| view.held) {
                    Some(view) => held.put(feed.seen(), key(pod), view),
                    None => held.remove(&key(pod)),
                };
            }
            watcher::Event::Delete(pod) => {
                held.remove(&key(pod));
            }
            watcher::Event::Init => {}
            watcher::Event::InitDone => {
                held.end_listing(feed.seen());
                return self.feeds.listed(feed);
            }
        }
        false
    }

    fn lock(&self) -> MutexGuard<'_, Index<Key, PodView>> {
        // Consistent between any two events, so a poisoned lock still holds a valid value.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(pod: &Pod) -> Key {
    (pod.namespace().unwrap_or_default(), pod.name_any())
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn pod(name: &str, held: bool) -> Pod {
        let finalizers: Vec<&str> = if held { vec!["pawl.run/attempt"] } else { vec![] };
        serde_json::from_value(serde_json::json!({"metadata": {
            "name": name, "namespace": "ns", "uid": name, "labels": {"pawl.run/attempt": "1", "pawl.run/run": format!("run-{name}")},
            "finalizers": finalizers}}))
        .unwrap()
    }

    #[tokio::test]
    async fn cache_has_only_held_pods() {
        let pods = Pods::default();
        let mut feed = pods.feed();
        assert!(!pods.apply(&mut feed, &watcher::Event::Init));
        pods.apply(&mut feed, &watcher::Event::InitApply(pod("a", true)));
        pods.apply(&mut feed, &watcher::Event::InitApply(pod("b", false)));
        assert!(pods.ready().now_or_never().is_none(), "not before the list is complete");
        assert!(pods.apply(&mut feed, &watcher::Event::InitDone));
        pods.ready().await;
        assert!(pods.get("ns", "a").is_some() && pods.get("ns", "b").is_none());
        pods.apply(&mut feed, &watcher::Event::Apply(pod("a", false)));
        assert!(pods.get("ns", "a").is_none(), "released");
        pods.apply(&mut feed, &watcher::Event::Apply(pod("c", true)));
        pods.apply(&mut feed, &watcher::Event::Init);
        assert!(pods.get("ns", "c").is_some(), "kept while the watch lists anew");
        assert_eq!((pods.held(None).len(), pods.held(Some("ns")).len(), pods.held(Some("other")).len()), (1, 1, 0));
        assert!(!pods.apply(&mut feed, &watcher::Event::InitDone));
        assert!(pods.get("ns", "c").is_none(), "gone in the meantime");
        pods.apply(&mut feed, &watcher::Event::Apply(pod("d", true)));
        pods.release("ns", "d", "another", Timestamp::UNIX_EPOCH);
        assert!(pods.get("ns", "d").is_some(), "another pod of the name");
        pods.release("ns", "d", "d", Timestamp::UNIX_EPOCH);
        assert!(pods.get("ns", "d").is_none(), "released by ourselves");
    }
}
