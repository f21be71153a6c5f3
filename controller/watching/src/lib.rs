//! Watches of the API server's objects, and the indexes that they fill. Knows no object of Pawl.
//!
//! One loop, [`follow`], feeds all indexes of a watch. It restarts the watch with backoff and skips objects that this
//! version cannot parse. [`Feed`] turns events into calls of [`Index`]: it deletes what a new listing does not show, and
//! the predecessor of an object that was recreated, so no index handles listings by itself.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    hash::{DefaultHasher, Hash, Hasher},
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::StreamExt as _;
use kube::{
    Api, Client, Resource, ResourceExt,
    core::{DeserializeGuard, NamespaceResourceScope},
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Config, Event, watcher},
    },
};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

/// Page size of listings. Each object is large, little of it is cached, and all objects of a page are in memory at
/// once.
const PAGE: u32 = 100;

/// Namespace and name of an object; the namespace is empty for an object of the cluster.
pub type Name = (Box<str>, Box<str>);
/// A name, allocated once for all indexes that have the object.
pub type Key = Arc<Name>;

/// The name of an object.
pub fn name_of(object: &impl ResourceExt) -> Name {
    (
        object.namespace().unwrap_or_default().into(),
        object.name_any().into(),
    )
}

/// The API for a kind in a namespace, or in all.
pub fn scoped<K>(client: &Client, scope: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    scope.map_or_else(
        || Api::all(client.clone()),
        |namespace| Api::namespaced(client.clone(), namespace),
    )
}

/// An index of watched objects. Several watches of one kind, each of another namespace, may fill it.
pub trait Index<K>: Send + Sync {
    /// A watch shows an object: new, changed, or listed again.
    fn apply(&self, key: &Key, object: &K);
    /// An object was deleted. The index may not know it.
    fn delete(&self, key: &Key);
    /// A listing has ended. What it did not show has been deleted.
    fn reset(&self) {}
}

impl<K, I: Index<K> + ?Sized> Index<K> for Arc<I> {
    fn apply(&self, key: &Key, object: &K) {
        (**self).apply(key, object);
    }

    fn delete(&self, key: &Key) {
        (**self).delete(key);
    }

    fn reset(&self) {
        (**self).reset();
    }
}

/// Indexes that one watch fills, in order.
pub type Indexes<K> = Vec<Arc<dyn Index<K>>>;

impl<K> Index<K> for Indexes<K> {
    fn apply(&self, key: &Key, object: &K) {
        for index in self {
            index.apply(key, object);
        }
    }

    fn delete(&self, key: &Key) {
        for index in self {
            index.delete(key);
        }
    }

    fn reset(&self) {
        for index in self {
            index.reset();
        }
    }
}

/// A watched form of an object.
pub trait Shows<K> {
    /// The object; `None` if this version cannot parse it.
    fn shown(&self) -> Option<&K>;
}

impl<K> Shows<K> for K {
    fn shown(&self) -> Option<&K> {
        Some(self)
    }
}

impl<K: Resource<DynamicType = ()>> Shows<K> for DeserializeGuard<K> {
    fn shown(&self) -> Option<&K> {
        let read = self.0.as_ref().inspect_err(|invalid| {
            let (kind, meta) = (K::kind(&()), &invalid.metadata);
            let (namespace, name) = (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
            tracing::warn!(%kind, namespace, name, error = %invalid, "an object that this version cannot parse is skipped");
        });
        read.ok()
    }
}

/// The objects that one watch has shown.
#[derive(Debug, Default)]
pub struct Feed {
    shown: BTreeMap<Key, Mark>,
    listing: u32,
}

#[derive(Debug)]
struct Mark {
    /// Hash of the UID.
    uid: u64,
    /// The listing that the object was last shown in or after.
    listing: u32,
}

impl Feed {
    /// Passes an event of the watch to an index. Objects known before remain during a listing. An object that cannot be
    /// parsed remains as it was shown last.
    pub fn event<K, O>(&mut self, event: &Event<O>, index: &(impl Index<K> + ?Sized))
    where
        O: Resource<DynamicType = ()> + Shows<K>,
    {
        match event {
            Event::Init => self.listing = self.listing.wrapping_add(1),
            Event::Apply(object) | Event::InitApply(object) => self.apply(object, index),
            Event::Delete(object) => {
                // Not its successor of that name, if the watch repeats events.
                let (name, uid) = (name_of(object), uid(object));
                if self.shown.get(&name).is_some_and(|mark| mark.uid == uid)
                    && let Some((key, _)) = self.shown.remove_entry(&name)
                {
                    index.delete(&key);
                }
            }
            Event::InitDone => {
                let gone = self
                    .shown
                    .iter()
                    .filter(|(_, mark)| mark.listing != self.listing)
                    .map(|(key, _)| key.clone());
                for key in gone.collect::<Vec<_>>() {
                    self.shown.remove(&key);
                    index.delete(&key);
                }
                index.reset();
            }
        }
    }

    fn apply<K, O>(&mut self, object: &O, index: &(impl Index<K> + ?Sized))
    where
        O: Resource<DynamicType = ()> + Shows<K>,
    {
        let (name, uid) = (name_of(object), uid(object));
        let key = match self.shown.get_key_value(&name) {
            None => Key::new(name),
            Some((key, mark)) => {
                if mark.uid != uid {
                    index.delete(key);
                }
                key.clone()
            }
        };
        self.shown.insert(
            key.clone(),
            Mark {
                uid,
                listing: self.listing,
            },
        );
        if let Some(object) = object.shown() {
            index.apply(&key, object);
        }
    }
}

/// A hash of the UID.
fn uid(object: &impl Resource) -> u64 {
    let mut hasher = DefaultHasher::new();
    object.meta().uid.hash(&mut hasher);
    hasher.finish()
}

/// Passes what a watch shows to an index, forever.
pub async fn follow<K, O>(what: &'static str, api: Api<O>, config: Config, index: impl Index<K>)
where
    O: Resource<DynamicType = ()> + Shows<K> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let (mut events, mut feed) = (
        pin!(watcher(api, config.page_size(PAGE)).backoff(backoff())),
        Feed::default(),
    );
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => feed.event(&event, &index),
            // An error shows nothing, that of a lacking right included: the first listing is still awaited.
            Err(error) => tracing::warn!(what, %error, "a watch failed; it restarts"),
        }
    }
}

/// Backoff of a failing watch. A process that starts before its rights or its CRDs are installed must not wait for a
/// minute.
fn backoff() -> watcher::ExponentialBackoff {
    backon::ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(200))
        .with_max_delay(Duration::from_secs(5))
        .without_max_times()
        .with_jitter()
        .into()
}

/// The number of watches that have not listed yet.
#[derive(Clone, Debug)]
pub struct Listings(watch::Sender<usize>);

impl Default for Listings {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

impl Listings {
    /// Awaits the first listing of one more watch: the last of the indexes that it fills.
    pub fn add<K>(&self) -> Arc<dyn Index<K>> {
        self.0.send_modify(|unlisted| *unlisted += 1);
        let unlisted = self.0.clone();
        first(move || {
            unlisted.send_modify(|unlisted| *unlisted -= 1);
        })
    }

    /// Whether every watch has listed once.
    pub fn is_ready(&self) -> bool {
        *self.0.borrow() == 0
    }

    /// Waits until every watch has listed once.
    pub async fn ready(&self) {
        // The sender lives as long as `self`.
        let _ = self.0.subscribe().wait_for(|unlisted| *unlisted == 0).await;
    }
}

/// Calls `then` after the first listing of a watch.
pub fn first<K>(then: impl FnOnce() + Send + 'static) -> Arc<dyn Index<K>> {
    Arc::new(First(Mutex::new(Some(Box::new(then)))))
}

struct First(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl<K> Index<K> for First {
    fn apply(&self, _: &Key, _: &K) {}

    fn delete(&self, _: &Key) {}

    fn reset(&self) {
        let then = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(then) = then {
            then();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::{Value, json};

    use super::*;

    /// The calls since the last look.
    #[derive(Default)]
    struct Calls(Mutex<Vec<String>>);

    impl Index<ConfigMap> for Calls {
        fn apply(&self, key: &Key, object: &ConfigMap) {
            self.0.lock().unwrap().push(format!(
                "+{} {}",
                key.1,
                object.metadata.uid.as_deref().unwrap_or_default()
            ));
        }

        fn delete(&self, key: &Key) {
            self.0.lock().unwrap().push(format!("-{}", key.1));
        }

        fn reset(&self) {
            self.0.lock().unwrap().push("reset".into());
        }
    }

    fn object(name: &str, uid: &str) -> ConfigMap {
        serde_json::from_value(json!({"metadata": {"name": name, "namespace": "x", "uid": uid}}))
            .unwrap()
    }

    #[test]
    fn listing_deletes_what_it_does_not_show() {
        use Event::{Apply, Delete, Init, InitApply, InitDone};
        let (mut feed, mut other, calls) = (Feed::default(), Feed::default(), Calls::default());
        let told = |feed: &mut Feed, event| {
            feed.event(&event, &calls);
            std::mem::take(&mut *calls.0.lock().unwrap())
        };
        assert_eq!(told(&mut other, Apply(object("other", "1"))), ["+other 1"]);
        assert!(told(&mut feed, Init).is_empty());
        assert_eq!(told(&mut feed, InitApply(object("a", "1"))), ["+a 1"]);
        assert_eq!(told(&mut feed, InitApply(object("b", "1"))), ["+b 1"]);
        assert_eq!(told(&mut feed, InitDone), ["reset"]);
        assert_eq!(told(&mut feed, Apply(object("c", "1"))), ["+c 1"]);
        assert!(
            told(&mut feed, Init).is_empty(),
            "known until the listing has ended"
        );
        assert_eq!(told(&mut feed, InitApply(object("b", "1"))), ["+b 1"]);
        assert_eq!(
            told(&mut feed, InitDone),
            ["-a", "-c", "reset"],
            "and nothing of another watch"
        );
        assert_eq!(
            told(&mut feed, Apply(object("b", "2"))),
            ["-b", "+b 2"],
            "another object of that name"
        );
        assert!(
            told(&mut feed, Delete(object("b", "1"))).is_empty(),
            "repeated"
        );
        assert_eq!(told(&mut feed, Delete(object("b", "2"))), ["-b"]);
        assert!(told(&mut feed, Delete(object("b", "2"))).is_empty());
    }

    #[test]
    fn unparsable_object_remains_until_it_is_deleted() {
        let (mut feed, calls) = (Feed::default(), Calls::default());
        let of = |data: Value| -> DeserializeGuard<ConfigMap> {
            serde_json::from_value(
                json!({"metadata": {"name": "a", "namespace": "x", "uid": "1"}, "data": data}),
            )
            .unwrap()
        };
        for event in [
            Event::Init,
            Event::InitApply(of(json!({"k": "v"}))),
            Event::InitDone,
            Event::Init,
            Event::InitApply(of(json!(7))),
            Event::InitDone,
            Event::Apply(of(json!(7))),
            Event::Delete(of(json!(7))),
        ] {
            feed.event(&event, &calls);
        }
        assert_eq!(*calls.0.lock().unwrap(), ["+a 1", "reset", "reset", "-a"]);
    }

    #[test]
    fn ready_when_every_watch_has_listed() {
        let listings = Listings::default();
        assert!(listings.ready().now_or_never().is_some(), "without a watch");
        let [one, other] = [(); 2].map(|()| listings.add::<ConfigMap>());
        let list = |index: &Arc<dyn Index<ConfigMap>>| {
            Feed::default().event::<ConfigMap, ConfigMap>(&Event::InitDone, index);
        };
        list(&one);
        list(&one);
        assert!(!listings.is_ready() && listings.ready().now_or_never().is_none());
        list(&other);
        assert!(listings.is_ready() && listings.ready().now_or_never().is_some());
    }
}
