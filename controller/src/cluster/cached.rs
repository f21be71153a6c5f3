//! The cached objects of one watch: stored whole, or packed while they are idle. Most stored objects are idle, and an object is large even
//! if only a small part of it is needed.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use jiff::Timestamp;
use serde::{
    Serialize,
    de::{DeserializeOwned, IgnoredAny},
};
use watching::{Key, Name};

use super::{
    packed::{Alike, Packed},
    watch::Wake,
};

/// A cached object.
#[derive(Debug)]
pub struct Cached<K> {
    form: Form<K>,
    wakes: u64,
    due: Option<Timestamp>,
}

#[derive(Debug)]
enum Form<K> {
    Whole(Arc<K>),
    /// The object and additional data, as packed JSON.
    Packed(Packed),
}

impl<K: Serialize + DeserializeOwned> Cached<K> {
    /// Caches an object whole; `wakes` is a hash of the parts whose change triggers a reconcile.
    pub(crate) fn whole(object: K, wakes: u64) -> Self {
        Self {
            form: Form::Whole(Arc::new(object)),
            wakes,
            due: None,
        }
    }

    /// Caches an object packed, with additional data. Keeps it unpacked if packing fails.
    pub(crate) fn packed(
        object: K,
        more: &impl Serialize,
        alike: &'static Alike,
        wakes: u64,
    ) -> Self {
        match alike.keep(&(&object, more)) {
            Ok(text) => Self {
                form: Form::Packed(text),
                wakes,
                due: None,
            },
            Err(_) => Self::whole(object, wakes),
        }
    }

    /// Sets the time at which the object is due for deletion.
    pub(crate) fn until(self, due: Option<Timestamp>) -> Self {
        Self { due, ..self }
    }

    /// The object; `None` when unpacking fails.
    pub(crate) fn object(&self) -> Option<Arc<K>> {
        match &self.form {
            Form::Whole(object) => Some(object.clone()),
            Form::Packed(text) => text
                .read::<(K, IgnoredAny)>()
                .map(|(object, _)| Arc::new(object)),
        }
    }

    /// The object, if it is not packed.
    pub(crate) fn at_hand(&self) -> Option<&K> {
        match &self.form {
            Form::Whole(object) => Some(object),
            Form::Packed(_) => None,
        }
    }

    /// The packed object and its additional data, if it is packed.
    pub(crate) fn text(&self) -> Option<&Packed> {
        match &self.form {
            Form::Whole(_) => None,
            Form::Packed(text) => Some(text),
        }
    }

    /// When it is due for deletion.
    pub(crate) fn due(&self) -> Option<Timestamp> {
        self.due
    }
}

/// The cached objects of one watch.
#[derive(Debug)]
pub struct Store<K> {
    objects: Mutex<BTreeMap<Key, Cached<K>>>,
    wake: Wake,
}

impl<K: Serialize + DeserializeOwned> Store<K> {
    /// `wake` receives the objects whose change triggers a reconcile.
    pub fn new(wake: Wake) -> Arc<Self> {
        Arc::new(Self {
            objects: Mutex::default(),
            wake,
        })
    }

    pub fn put(&self, key: &Key, object: Cached<K>) {
        let wakes = object.wakes;
        if self
            .lock()
            .insert(key.clone(), object)
            .is_none_or(|before| before.wakes != wakes)
        {
            self.wake(key);
        }
    }

    /// Removes an object and returns it; `None` if there was none, or unpacking fails.
    pub fn remove(&self, key: &Key) -> Option<Arc<K>> {
        self.lock().remove(key)?.object()
    }

    /// An object; `None` if there is none, or unpacking fails.
    pub fn get(&self, name: &Name) -> Option<Arc<K>> {
        self.lock().get(name)?.object()
    }

    /// Wakes an object.
    pub fn wake(&self, key: &Key) {
        // The receiver is gone when the controller shuts down.
        let _ = self.wake.unbounded_send(key.clone());
    }

    /// Whether an object is cached unpacked and satisfies a condition.
    pub(crate) fn is(&self, name: &Name, is: impl Fn(&K) -> bool) -> bool {
        self.lock()
            .get(name)
            .and_then(Cached::at_hand)
            .is_some_and(is)
    }

    /// The names of the objects that satisfy a condition.
    pub(crate) fn all(&self, is: impl Fn(&Cached<K>) -> bool) -> Vec<Key> {
        self.lock()
            .iter()
            .filter(|(_, object)| is(object))
            .map(|(key, _)| key.clone())
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Cached<K>>> {
        // Consistent between any two events, so a poisoned lock still holds a valid value.
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures::channel::mpsc::unbounded;

    use super::*;
    use crate::testing;

    #[test]
    fn only_relevant_changes_wake_an_object() {
        let (wake, mut woken) = unbounded();
        let (store, key) = (Store::new(wake), Key::new(("team".into(), "net".into())));
        let mut put = |wakes| {
            store.put(&key, Cached::whole(testing::run(), wakes));
            woken.try_recv().is_ok()
        };
        assert!(put(1) && !put(1) && put(2) && !put(2));
        store.remove(&key);
        assert!(put(2), "another of that name");
    }
}
