//! In-memory notes on objects, by UID.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Notes on active objects. An object without notes has the default.
#[derive(Default)]
pub struct Memory<N>(Mutex<HashMap<String, N>>);

impl<N: Clone + Default + PartialEq> Memory<N> {
    pub fn get(&self, uid: &str) -> N {
        self.lock().get(uid).cloned().unwrap_or_default()
    }

    /// Changes the notes on an object. Removes empty notes.
    pub fn update<T>(&self, uid: &str, change: impl FnOnce(&mut N) -> T) -> T {
        let mut all = self.lock();
        let notes = all.entry(uid.to_owned()).or_default();
        let changed = change(notes);
        if *notes == N::default() {
            all.remove(uid);
        }
        changed
    }

    pub fn forget(&self, uid: &str) {
        self.lock().remove(uid);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, N>> {
        // Each change leaves the notes complete, so a poisoned lock does no harm.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
