//! Positions in a sorted list. A cursor names the last row of a page, so it remains right while rows come and go.

use std::{borrow::Cow, cmp::Ordering};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};

/// The value of a field that rows are sorted by.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(untagged)]
pub enum Value<'a> {
    Number(i64),
    Text(Cow<'a, str>),
}

/// A row's place in a sorted list; no two rows have the same.
#[derive(Clone, Debug)]
pub struct Place<'a> {
    /// `None`: the row has no such value, and is last in both directions.
    pub value: Option<Value<'a>>,
    pub namespace: &'a str,
    pub name: &'a str,
}

impl Place<'_> {
    pub fn order(&self, other: &Place<'_>, descends: bool) -> Ordering {
        let values = match (&self.value, &other.value) {
            (Some(one), Some(two)) if descends => two.cmp(one),
            (Some(one), Some(two)) => one.cmp(two),
            (one, two) => one.is_none().cmp(&two.is_none()),
        };
        values.then_with(|| (self.namespace, self.name).cmp(&(other.namespace, other.name)))
    }
}

/// The last row of a page.
#[derive(Serialize, Deserialize, Debug)]
pub struct Cursor {
    /// The sort that it belongs to.
    pub sort: String,
    value: Option<Value<'static>>,
    namespace: String,
    name: String,
}

impl Cursor {
    pub fn of(sort: String, place: &Place<'_>) -> Self {
        let value = place.value.clone().map(|value| match value {
            Value::Number(number) => Value::Number(number),
            Value::Text(text) => Value::Text(text.into_owned().into()),
        });
        Self {
            sort,
            value,
            namespace: place.namespace.into(),
            name: place.name.into(),
        }
    }

    pub fn place(&self) -> Place<'_> {
        Place {
            value: self.value.clone(),
            namespace: &self.namespace,
            name: &self.name,
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok()
    }

    pub fn text(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }
}
