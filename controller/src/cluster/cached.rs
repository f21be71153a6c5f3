//! Objects in the runtime's cache: stored whole, or packed while they are idle. Most stored objects are idle, and an object is large even
//! if only a small part of it is needed.

use std::{
    borrow::Cow,
    collections::HashMap,
    fmt::Debug,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, OnceLock},
};

use jiff::Timestamp;
use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Resource,
    runtime::{reflector::ObjectRef, watcher::Event},
};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{DeserializeOwned, IgnoredAny},
};

use super::packed::{Alike, Packed};

/// The kinds that are cached this way.
pub(crate) trait Kind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Default + DeserializeOwned
{
}

impl<K> Kind for K where K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Default + DeserializeOwned
{}

/// A cached object.
#[derive(Clone, Debug)]
pub(crate) struct Cached<K> {
    whole: Option<Arc<K>>,
    packed: Option<Rest>,
    wakes: u64,
    due: Option<Timestamp>,
}

#[derive(Debug)]
struct Rest {
    /// The object and additional data, as packed JSON.
    text: Packed,
    /// Name and namespace, filled on first use.
    meta: OnceLock<Box<ObjectMeta>>,
}

impl<K: Kind> Cached<K> {
    /// Caches an object whole; `wakes` is a hash of the parts whose change triggers a reconcile.
    pub(crate) fn whole(object: K, wakes: u64) -> Self {
        Self { whole: Some(Arc::new(object)), packed: None, wakes, due: None }
    }

    /// Caches an object packed, with additional data. Keeps it unpacked if packing fails.
    pub(crate) fn packed(object: K, more: &impl Serialize, alike: &'static Alike, wakes: u64) -> Self
    where
        K: Serialize,
    {
        let Ok(text) = alike.keep(&(&object, more)) else { return Self::whole(object, wakes) };
        let rest = Rest { text, meta: OnceLock::from(Box::new(named(object.meta()))) };
        Self { whole: None, packed: Some(rest), wakes, due: None }
    }

    /// Sets the time at which the object is due for deletion.
    pub(crate) fn until(self, due: Option<Timestamp>) -> Self {
        Self { due, ..self }
    }

    /// The object; `None` when unpacking fails.
    pub(crate) fn object(&self) -> Option<Arc<K>> {
        self.whole.clone().or_else(|| self.packed.as_ref()?.read().map(Arc::new))
    }

    /// The object, if it is not packed.
    pub(crate) fn at_hand(&self) -> Option<&K> {
        self.whole.as_deref()
    }

    /// The packed object and its additional data, if it is packed.
    pub(crate) fn text(&self) -> Option<&Packed> {
        self.packed.as_ref().map(|rest| &rest.text)
    }

    /// When it is due for deletion.
    pub(crate) fn due(&self) -> Option<Timestamp> {
        self.due
    }
}

impl Rest {
    fn read<K: DeserializeOwned>(&self) -> Option<K> {
        self.text.read::<(K, IgnoredAny)>().map(|(object, _)| object)
    }
}

/// The cache stores a clone under its own key. The clone drops the metadata, which the key duplicates; it is unpacked
/// again on use.
impl Clone for Rest {
    fn clone(&self) -> Self {
        Self { text: self.text.clone(), meta: OnceLock::new() }
    }
}

/// Name and namespace, which identify an object.
fn named(meta: &ObjectMeta) -> ObjectMeta {
    ObjectMeta { name: meta.name.clone(), namespace: meta.namespace.clone(), ..ObjectMeta::default() }
}

/// The reference under which the cache has an object.
pub(crate) fn in_cache<K: Kind>(object: &ObjectRef<K>) -> ObjectRef<Cached<K>> {
    let found = ObjectRef::new(&object.name);
    match &object.namespace {
        Some(namespace) => found.within(namespace),
        None => found,
    }
}

/// The last trigger hash of each object: two numbers each, because there are many objects.
pub(crate) struct Heard<K: Kind> {
    now: HashMap<u64, u64>,
    listing: HashMap<u64, u64>,
    /// Objects shown by the current listing. The cache has them when the listing ends.
    shown: Vec<ObjectRef<Cached<K>>>,
}

impl<K: Kind> Default for Heard<K> {
    fn default() -> Self {
        Self { now: HashMap::new(), listing: HashMap::new(), shown: Vec::new() }
    }
}

impl<K: Kind> Heard<K> {
    /// The objects in the cache that need a reconcile.
    pub(crate) fn news(&mut self, event: Event<Cached<K>>) -> Vec<ObjectRef<Cached<K>>> {
        let key = |object: &Cached<K>| {
            let mut hasher = DefaultHasher::new();
            (&object.meta().namespace, &object.meta().name).hash(&mut hasher);
            hasher.finish()
        };
        match event {
            Event::Apply(object) if self.now.insert(key(&object), object.wakes) != Some(object.wakes) => {
                vec![ObjectRef::from_obj(&object)]
            }
            Event::Apply(_) => Vec::new(),
            Event::InitApply(object) => {
                let key = key(&object);
                self.listing.insert(key, object.wakes);
                if self.now.get(&key) != Some(&object.wakes) {
                    self.shown.push(ObjectRef::from_obj(&object));
                }
                Vec::new()
            }
            Event::Delete(object) => {
                self.now.remove(&key(&object));
                Vec::new()
            }
            Event::Init => {
                (self.listing, self.shown) = (HashMap::new(), Vec::new());
                Vec::new()
            }
            Event::InitDone => {
                self.now = std::mem::take(&mut self.listing);
                self.now.shrink_to_fit();
                std::mem::take(&mut self.shown)
            }
        }
    }
}

impl<K: Kind> Resource for Cached<K> {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        K::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        K::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        K::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        K::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        static NONE: OnceLock<ObjectMeta> = OnceLock::new();
        match (&self.whole, &self.packed) {
            (Some(object), _) => object.meta(),
            (None, Some(rest)) => {
                rest.meta.get_or_init(|| Box::new(rest.read().map(|object: K| named(object.meta())).unwrap_or_default()))
            }
            (None, None) => NONE.get_or_init(ObjectMeta::default),
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        let object = self.object().unwrap_or_default();
        self.packed = None;
        Arc::make_mut(self.whole.insert(object)).meta_mut()
    }
}

/// Deserializes the API server's form.
impl<'de, K: Kind> Deserialize<'de> for Cached<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        K::deserialize(deserializer).map(|object| Self::whole(object, 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use crds::TerraformRun;

    #[test]
    fn unchanged_objects_in_listings_wake_nothing() {
        use Event::{Apply, Delete, Init, InitApply, InitDone};
        let of = |wakes| Cached::whole(testing::run(), wakes);
        let mut heard = Heard::default();
        let mut news = |event: Event<Cached<TerraformRun>>| !heard.news(event).is_empty();
        assert!(!news(Init) && !news(InitApply(of(1))) && news(InitDone), "not before the cache has it");
        assert!(!news(Apply(of(1))) && news(Apply(of(2))) && !news(Apply(of(2))));
        assert!(!news(Init) && !news(InitApply(of(2))) && !news(InitDone), "listed again");
        assert!(!news(Delete(of(2))) && news(Apply(of(2))), "another of that name");
        assert!(!news(Init) && !news(InitDone) && news(Apply(of(2))), "gone while nobody watched");
    }
}
