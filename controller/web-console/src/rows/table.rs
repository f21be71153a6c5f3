//! The rows of one kind.

use std::{collections::BTreeMap, sync::Arc};

use serde::Serialize;
use watching::{Key, Name};

/// A row of a table.
pub trait Row: Serialize + PartialEq + Clone + Send + Sync {
    /// The texts that a search reads.
    fn texts(&self) -> Vec<&str>;
}

/// A row, and its texts in lower case, one a line.
pub struct Held<R> {
    pub row: R,
    pub texts: Box<str>,
}

/// Rows by namespace and name.
pub struct Table<R> {
    by: BTreeMap<Key, Arc<Held<R>>>,
    /// Number of rows of each namespace.
    namespaces: BTreeMap<Box<str>, usize>,
}

impl<R> Default for Table<R> {
    fn default() -> Self {
        Self {
            by: BTreeMap::new(),
            namespaces: BTreeMap::new(),
        }
    }
}

impl<R: Row> Table<R> {
    pub fn get(&self, name: &Name) -> Option<&R> {
        self.by.get(name).map(|held| &held.row)
    }

    /// All rows, by namespace and name.
    pub fn rows(&self) -> impl Iterator<Item = &Held<R>> {
        self.by.values().map(|held| &**held)
    }

    /// The namespaces with rows.
    pub fn namespaces(&self) -> impl Iterator<Item = &str> {
        self.namespaces.keys().map(|name| &**name)
    }

    /// Whether the row is another one than before.
    pub(super) fn put(&mut self, key: &Key, row: R) -> bool {
        if self.get(key) == Some(&row) {
            return false;
        }
        let texts = row.texts().join("\n").to_lowercase().into();
        let held = Arc::new(Held { row, texts });
        if self.by.insert(key.clone(), held).is_none() {
            *self.namespaces.entry(key.0.clone()).or_default() += 1;
        }
        true
    }

    /// Whether there was such a row.
    pub(super) fn remove(&mut self, key: &Key) -> bool {
        let was = self.by.remove(key).is_some();
        if was && let Some(count) = self.namespaces.get_mut(&key.0) {
            *count -= 1;
            if *count == 0 {
                self.namespaces.remove(&key.0);
            }
        }
        was
    }
}
