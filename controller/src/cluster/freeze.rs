//! Frozen namespaces: an annotation on a namespace, or a chart value, prevents anything new from starting; work in
//! progress continues. Everything that starts work checks here first.

use std::{
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
};

use k8s_openapi::api::core::v1::Namespace;
use kube::{ResourceExt, core::PartialObjectMeta, runtime::watcher};

use super::index::{Feed, Feeds, Index};
use crds::names;

/// Why nothing starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frozen {
    /// The operator froze everything.
    Whole,
    /// The namespace has the annotation.
    Namespace(String),
}

impl fmt::Display for Frozen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str("nothing new begins: the operator froze all namespaces (controller.freeze of the chart)"),
            Self::Namespace(name) => {
                write!(f, "nothing new begins: namespace {name} is frozen by its annotation {}", names::FREEZE)
            }
        }
    }
}

impl Frozen {
    /// How to end the freeze.
    pub fn next_step(&self) -> String {
        match self {
            Self::Whole => {
                "ask the operator of Pawl why, and when controller.freeze is off again the run goes on by itself".into()
            }
            Self::Namespace(name) => {
                format!(
                    "see who froze the namespace, and why; then the run goes on by itself: kubectl annotate namespace {name} {}-",
                    names::FREEZE
                )
            }
        }
    }
}

/// The freezes, from a watch of namespaces.
#[derive(Debug)]
pub struct Freezes {
    whole: bool,
    namespaces: Mutex<Index<String, ()>>,
    feeds: Feeds,
}

impl Freezes {
    /// Starts with everything frozen, or with no namespace frozen.
    pub fn new(whole: bool) -> Self {
        Self { whole, namespaces: Mutex::default(), feeds: Feeds::default() }
    }

    /// Whether and why nothing starts in a namespace.
    pub fn of(&self, namespace: &str) -> Option<Frozen> {
        if self.whole {
            return Some(Frozen::Whole);
        }
        self.lock().get(namespace).map(|()| Frozen::Namespace(namespace.to_owned()))
    }

    /// Registers a watch of namespaces.
    pub fn feed(&self) -> Feed {
        self.feeds.add()
    }

    /// Waits until the watch has listed once, or cannot list.
    pub async fn ready(&self) {
        self.feeds.ready().await;
    }

    /// Records that the watch lacks the right to list namespaces, so that it is not waited for.
    pub fn does_without(&self, feed: &mut Feed) {
        self.feeds.listed(feed);
    }

    /// Applies an event of the watch. Returns the namespaces whose answer changed.
    pub fn apply(&self, feed: &mut Feed, event: &watcher::Event<PartialObjectMeta<Namespace>>) -> Vec<String> {
        feed.hears(event);
        let mut namespaces = self.lock();
        match event {
            watcher::Event::Apply(namespace) | watcher::Event::InitApply(namespace) => {
                let name = namespace.name_any();
                let before = if namespace.annotations().get(names::FREEZE).is_some_and(|value| value == "true") {
                    namespaces.put(feed.seen(), name.clone(), ()).is_none()
                } else {
                    namespaces.remove(&name).is_some()
                };
                if before { vec![name] } else { Vec::new() }
            }
            watcher::Event::Delete(namespace) => {
                let name = namespace.name_any();
                namespaces.remove(&name).map(|()| name).into_iter().collect()
            }
            watcher::Event::Init => Vec::new(),
            watcher::Event::InitDone => {
                let gone = namespaces.end_listing(feed.seen());
                self.feeds.listed(feed);
                gone.into_iter().map(|(name, ())| name).collect()
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Index<String, ()>> {
        // Consistent between any two events, so a poisoned lock still holds a valid value.
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};

    fn namespace(name: &str, value: Option<&str>) -> PartialObjectMeta<Namespace> {
        let annotations = value.map(|value| serde_json::json!({names::FREEZE: value}));
        serde_json::from_value(serde_json::json!({"metadata": {"name": name, "annotations": annotations}})).unwrap()
    }

    #[test]
    fn annotation_freezes_its_namespace_until_removed() {
        let freezes = Freezes::new(false);
        let mut feed = freezes.feed();
        let mut apply = |event| freezes.apply(&mut feed, &event);
        assert!(apply(Init).is_empty() && apply(InitApply(namespace("a", None))).is_empty());
        assert_eq!(apply(InitApply(namespace("b", Some("true")))), ["b"]);
        assert!(apply(InitDone).is_empty());
        assert_eq!((freezes.of("a"), freezes.of("b")), (None, Some(Frozen::Namespace("b".into()))));
        assert!(apply(Apply(namespace("b", Some("true")))).is_empty() && apply(Apply(namespace("a", Some("false")))).is_empty());
        assert_eq!(apply(Apply(namespace("b", None))), ["b"]);
        assert_eq!(freezes.of("b"), None);
        assert_eq!(apply(Apply(namespace("b", Some("true")))), ["b"]);
        assert_eq!(apply(Delete(namespace("b", Some("true")))), ["b"], "and one that is made again begins anew");
        assert_eq!(apply(Apply(namespace("c", Some("true")))), ["c"]);
        assert!(apply(Init).is_empty());
        assert_eq!(apply(InitDone), ["c"], "gone while nobody watched");
        assert_eq!(freezes.of("c"), None);
    }

    #[test]
    fn operator_setting_freezes_all_namespaces() {
        assert_eq!(Freezes::new(true).of("a"), Some(Frozen::Whole));
    }
}
