//! An object as a cache of the runtime keeps it: as it is, or packed where nothing is under way with it. Most of what is stored rests, and
//! an object is large however little of it is left.

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

/// What is kept so.
pub(crate) trait Kind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Default + DeserializeOwned
{
}

impl<K> Kind for K where K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Default + DeserializeOwned
{}

/// An object as the cache keeps it.
#[derive(Clone, Debug)]
pub(crate) struct Cached<K> {
    whole: Option<Arc<K>>,
    packed: Option<Rest>,
    wakes: u64,
    due: Option<Timestamp>,
}

#[derive(Debug)]
struct Rest {
    /// The object and what belongs to it, as JSON.
    text: Packed,
    /// Name and namespace, once somebody has asked.
    meta: OnceLock<Box<ObjectMeta>>,
}

impl<K: Kind> Cached<K> {
    /// Keeps an object as it is; `wakes` is a hash of what is a reason to look at it.
    pub(crate) fn whole(object: K, wakes: u64) -> Self {
        Self { whole: Some(Arc::new(object)), packed: None, wakes, due: None }
    }

    /// Keeps an object packed, with what belongs to it. It stays as it is when it cannot be packed.
    pub(crate) fn packed(object: K, more: &impl Serialize, alike: &'static Alike, wakes: u64) -> Self
    where
        K: Serialize,
    {
        let Ok(text) = alike.keep(&(&object, more)) else { return Self::whole(object, wakes) };
        let rest = Rest { text, meta: OnceLock::from(Box::new(named(object.meta()))) };
        Self { whole: None, packed: Some(rest), wakes, due: None }
    }

    /// The same of one that goes at a time.
    pub(crate) fn until(self, due: Option<Timestamp>) -> Self {
        Self { due, ..self }
    }

    /// The object; `None` when one cannot be read that was packed by this process.
    pub(crate) fn object(&self) -> Option<Arc<K>> {
        self.whole.clone().or_else(|| self.packed.as_ref()?.read().map(Arc::new))
    }

    /// The object where it is not packed.
    pub(crate) fn at_hand(&self) -> Option<&K> {
        self.whole.as_deref()
    }

    /// The object and what belongs to it where they are packed.
    pub(crate) fn text(&self) -> Option<&Packed> {
        self.packed.as_ref().map(|rest| &rest.text)
    }

    /// When it goes.
    pub(crate) fn due(&self) -> Option<Timestamp> {
        self.due
    }
}

impl Rest {
    fn read<K: DeserializeOwned>(&self) -> Option<K> {
        self.text.read::<(K, IgnoredAny)>().map(|(object, _)| object)
    }
}

/// The cache keeps a clone, under a key of its own. So what the key has as well is not cloned: it is read again where somebody asks.
impl Clone for Rest {
    fn clone(&self) -> Self {
        Self { text: self.text.clone(), meta: OnceLock::new() }
    }
}

/// Name and namespace, by which an object is found.
fn named(meta: &ObjectMeta) -> ObjectMeta {
    ObjectMeta { name: meta.name.clone(), namespace: meta.namespace.clone(), ..ObjectMeta::default() }
}

/// An object by the name under which the cache has it.
pub(crate) fn in_cache<K: Kind>(object: &ObjectRef<K>) -> ObjectRef<Cached<K>> {
    let found = ObjectRef::new(&object.name);
    match &object.namespace {
        Some(namespace) => found.within(namespace),
        None => found,
    }
}

/// What was last a reason to look at each object: two numbers for each, as there are many.
pub(crate) struct Heard<K: Kind> {
    now: HashMap<u64, u64>,
    listing: HashMap<u64, u64>,
    /// What the listing that is under way has shown: the cache has it at the end of it.
    shown: Vec<ObjectRef<Cached<K>>>,
}

impl<K: Kind> Default for Heard<K> {
    fn default() -> Self {
        Self { now: HashMap::new(), listing: HashMap::new(), shown: Vec::new() }
    }
}

impl<K: Kind> Heard<K> {
    /// Objects that the cache has now, and that there is a reason to look at.
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

/// As the API server sends it.
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
    fn what_is_no_news_is_no_reason_to_look_however_often_it_is_listed() {
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
