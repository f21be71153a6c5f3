//! A cache of the pods that still have the attempt finalizer, with only the facts that decisions need. Ended and
//! released pods remain in the cluster for a while, but are not cached.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use jiff::Timestamp;
use watching::{Key, Name};

use crate::runner_pod::status::PodView;

/// The cache of pods.
#[derive(Default)]
pub struct Pods {
    held: Mutex<BTreeMap<Key, PodView>>,
    /// The first release since this was last taken.
    released: Mutex<Option<Timestamp>>,
}

impl Pods {
    /// Caches a pod if it is held.
    pub fn put(&self, key: &Key, view: Option<PodView>) {
        match view.filter(|view| view.held) {
            Some(view) => self.lock().insert(key.clone(), view),
            None => self.lock().remove(key),
        };
    }

    /// Removes a pod. Returns it if it was held.
    pub fn remove(&self, key: &Key) -> Option<PodView> {
        self.lock().remove(key)
    }

    /// The held pod according to the cache.
    pub fn get(&self, namespace: &str, name: &str) -> Option<PodView> {
        self.lock().get(&(namespace.into(), name.into())).cloned()
    }

    /// Namespace and name of the runs of the held pods on these nodes.
    pub fn on(&self, is_node: impl Fn(&str) -> bool) -> Vec<Name> {
        let held = self.lock();
        let there = held
            .iter()
            .filter(|(_, view)| view.node.as_deref().is_some_and(&is_node));
        there
            .map(|(key, view)| (key.0.clone(), view.run.as_str().into()))
            .collect()
    }

    /// The held pods of a run.
    pub fn of_run(&self, run: &Name) -> Vec<PodView> {
        let held = self.lock();
        let of_namespace = held
            .range((run.0.clone(), Box::default())..)
            .take_while(|(key, _)| key.0 == run.0);
        of_namespace
            .filter(|(_, view)| *view.run == *run.1)
            .map(|(_, view)| view.clone())
            .collect()
    }

    /// Records a release before the watch shows it, to prevent a second one.
    pub fn release(&self, namespace: &str, name: &str, uid: &str, now: Timestamp) {
        self.first_release().get_or_insert(now);
        let (mut held, key): (_, Name) = (self.lock(), (namespace.into(), name.into()));
        if held.get(&key).is_some_and(|view| view.uid == uid) {
            held.remove(&key);
        }
    }

    /// Time of the first release since this was last taken.
    pub(crate) fn first_release(&self) -> MutexGuard<'_, Option<Timestamp>> {
        self.released.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, PodView>> {
        // Consistent between any two events, so a poisoned lock still holds a valid value.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_has_only_held_pods() {
        let pods = Pods::default();
        let put = |namespace: &str, name: &str, held| {
            let (run, uid) = (format!("run-{name}"), name.to_owned());
            let view = PodView {
                name: name.to_owned(),
                held,
                run,
                uid,
                node: Some("n".into()),
                ..PodView::default()
            };
            pods.put(&Key::new((namespace.into(), name.into())), Some(view));
        };
        for (namespace, name, held) in [("ns", "a", true), ("ns", "b", false), ("other", "a", true)]
        {
            put(namespace, name, held);
        }
        assert!(pods.get("ns", "a").is_some());
        assert!(pods.get("ns", "b").is_none());
        let of_run =
            |namespace: &str, run: &str| pods.of_run(&(namespace.into(), run.into())).len();
        assert_eq!(
            (
                of_run("ns", "run-a"),
                of_run("ns", "run-b"),
                of_run("x", "run-a")
            ),
            (1, 0, 0)
        );
        assert_eq!(
            pods.on(|node| node == "n"),
            [
                ("ns".into(), "run-a".into()),
                ("other".into(), "run-a".into())
            ]
        );
        put("ns", "a", false);
        assert!(pods.get("ns", "a").is_none(), "released");
        put("ns", "d", true);
        pods.release("ns", "d", "another", Timestamp::UNIX_EPOCH);
        assert!(pods.get("ns", "d").is_some(), "another pod of the name");
        pods.release("ns", "d", "d", Timestamp::UNIX_EPOCH);
        assert!(pods.get("ns", "d").is_none(), "released by ourselves");
    }
}
