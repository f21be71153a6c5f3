//! Parses documents and tracks which fields have been taken.

use std::collections::BTreeSet;

use anyhow::{Context as _, ensure};
use serde_json::{Map, Value};

pub(super) struct Document {
    /// Its position among the documents, from 1.
    pub(super) number: usize,
    pub(super) group: String,
    pub(super) kind: String,
    pub(super) metadata: Map<String, Value>,
    pub(super) spec: Fields,
    /// The data, if it is a ConfigMap.
    pub(super) data: Map<String, Value>,
}

impl Document {
    pub(super) fn name(&self) -> String {
        self.metadata
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    }

    pub(super) fn namespace(&self) -> String {
        self.metadata
            .get("namespace")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    }
}

/// The documents of a text, including items of lists.
pub(super) fn documents(text: &str) -> anyhow::Result<Vec<Document>> {
    let values: Vec<Value> = serde_saphyr::from_multiple(text).context("this is not YAML")?;
    let mut found = Vec::new();
    for value in values {
        match value {
            Value::Null => {}
            Value::Object(mut list) if list.get("kind").and_then(Value::as_str) == Some("List") => {
                found.extend(
                    list.remove("items")
                        .and_then(|items| items.as_array().cloned())
                        .unwrap_or_default(),
                );
            }
            other => found.push(other),
        }
    }
    ensure!(!found.is_empty(), "there is no manifest to convert");
    Ok(found
        .into_iter()
        .enumerate()
        .map(|(n, value)| document(n + 1, value))
        .collect())
}

fn document(number: usize, mut value: Value) -> Document {
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let version = text(&value, "apiVersion");
    let map = |value: Value| {
        if let Value::Object(map) = value {
            map
        } else {
            Map::new()
        }
    };
    Document {
        number,
        group: version
            .split_once('/')
            .map_or("", |(group, _)| group)
            .to_owned(),
        kind: text(&value, "kind"),
        metadata: map(value
            .get_mut("metadata")
            .map(Value::take)
            .unwrap_or_default()),
        spec: Fields::of(
            "spec",
            value.get_mut("spec").map(Value::take).unwrap_or_default(),
        ),
        data: map(value.get_mut("data").map(Value::take).unwrap_or_default()),
    }
}

/// Warnings about a document.
pub(super) struct Notes {
    of: String,
    pub(super) lines: Vec<String>,
}

impl Notes {
    pub(super) fn of(document: &Document) -> Self {
        let (namespace, name) = (document.namespace(), document.name());
        let place = if namespace.is_empty() {
            name
        } else {
            format!("{namespace}/{name}")
        };
        Self {
            of: format!("{} {place}", document.kind),
            lines: Vec::new(),
        }
    }

    pub(super) fn say(&mut self, field: &str, text: &str) {
        self.lines
            .push(format!("{}: {field} {text}", self.of).replace(":  ", ": "));
    }
}

/// Fields of an object, by dotted paths; those left at the end have no counterpart.
#[derive(Clone)]
pub(super) struct Fields {
    at: String,
    rest: Map<String, Value>,
    /// Objects of which a field was asked for: what is left of them is said field by field.
    entered: BTreeSet<String>,
}

impl Fields {
    pub(super) fn of(at: &str, value: Value) -> Self {
        let rest = if let Value::Object(rest) = value {
            rest
        } else {
            Map::new()
        };
        Self {
            at: at.to_owned(),
            rest,
            entered: BTreeSet::new(),
        }
    }

    /// Takes a field of any type.
    pub(super) fn any(&mut self, name: &str) -> Option<Value> {
        self.when(name, |_| true)
            .filter(|value| !says_nothing(value))
    }

    fn when(&mut self, name: &str, is: fn(&Value) -> bool) -> Option<Value> {
        let mut map = &mut self.rest;
        let mut key = name;
        for (dot, _) in name.match_indices('.') {
            self.entered.insert(name[..dot].to_owned());
        }
        while let Some((parent, rest)) = key.split_once('.') {
            map = map.get_mut(parent)?.as_object_mut()?;
            key = rest;
        }
        if map.get(key).is_some_and(is) {
            map.remove(key)
        } else {
            None
        }
    }

    /// Takes a string or number; an empty one counts as unset.
    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        let value = self.when(name, |value| value.is_string() || value.is_number())?;
        let text = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        Some(text).filter(|text| !text.is_empty())
    }

    pub(super) fn flag(&mut self, name: &str) -> Option<bool> {
        self.when(name, Value::is_boolean)?.as_bool()
    }

    pub(super) fn number(&mut self, name: &str) -> Option<u64> {
        self.when(name, Value::is_u64)?.as_u64()
    }

    pub(super) fn list(&mut self, name: &str) -> Vec<Value> {
        self.when(name, Value::is_array)
            .and_then(|list| list.as_array().cloned())
            .unwrap_or_default()
    }

    pub(super) fn map(&mut self, name: &str) -> Map<String, Value> {
        if let Some(Value::Object(map)) = self.when(name, Value::is_object) {
            map
        } else {
            Map::new()
        }
    }

    /// Takes the strings of a list; skips other items.
    pub(super) fn words(&mut self, name: &str) -> Vec<String> {
        self.list(name)
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        let mut keys = name.split('.');
        let first = keys.next().and_then(|key| self.rest.get(key));
        first
            .and_then(|value| keys.try_fold(value, |value, key| value.get(key)))
            .is_some_and(|value| !says_nothing(value))
    }

    /// Sets a field if it is unset.
    pub(super) fn inherit(&mut self, name: &str, value: &Value) {
        if self.rest.get(name).is_none_or(says_nothing) {
            self.rest.insert(name.to_owned(), value.clone());
        }
    }

    /// Takes the fields of a nested object.
    pub(super) fn within(&mut self, name: &str) -> Self {
        Self::of(&self.path(name), Value::Object(self.map(name)))
    }

    /// Takes the objects of a list.
    pub(super) fn items(&mut self, name: &str) -> Vec<Self> {
        let at = self.path(name);
        self.list(name)
            .into_iter()
            .enumerate()
            .map(|(n, value)| Self::of(&format!("{at}[{n}]"), value))
            .collect()
    }

    /// The path of a field, for people.
    pub(super) fn path(&self, name: &str) -> String {
        format!("{}.{name}", self.at)
    }

    /// Warns about all fields that are left, with a hint for the replacement, by a path's end.
    pub(super) fn end(self, hints: &[(&str, &str)], notes: &mut Notes) {
        self.left(&self.rest, "", hints, notes);
    }

    fn left(
        &self,
        of: &Map<String, Value>,
        prefix: &str,
        hints: &[(&str, &str)],
        notes: &mut Notes,
    ) {
        for (name, value) in of {
            let name = format!("{prefix}{name}");
            match value {
                Value::Object(inner) if self.entered.contains(&name) => {
                    self.left(inner, &format!("{name}."), hints, notes);
                }
                value if says_nothing(value) => {}
                _ => {
                    let fits = |field: &str| {
                        name.strip_suffix(field)
                            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
                    };
                    let hint = hints
                        .iter()
                        .find(|(field, _)| fits(field))
                        .map(|(_, hint)| format!(": {hint}"));
                    notes.say(
                        &self.path(&name),
                        &format!("has no counterpart{}", hint.unwrap_or_default()),
                    );
                }
            }
        }
    }
}

/// Whether a value counts as unset.
fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}
