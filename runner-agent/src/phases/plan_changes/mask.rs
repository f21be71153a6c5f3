//! The attributes that change, with sensitive values masked.
//!
//! A value is sensitive if the mark before or after the change is: the tools show neither then. Where the marks have another shape than
//! the value, it is masked.

use std::collections::BTreeSet;

use crds::changes::{Attribute, SENSITIVE, UNKNOWN};
use serde_json::{Map, Value};

use super::{
    Values,
    bounded::{LONGEST, Limited},
};
use crate::report::redact::Redactor;

/// The attributes that change; `None` if they are too large.
pub(super) fn attributes(change: &Values, redactor: &Redactor) -> Option<Vec<Attribute>> {
    let all = Value::Bool(true);
    let mark = |mark: &Option<Limited>| mark.as_ref().map_or(&all, |mark| &mark.value).clone();
    let marks = [&change.before_sensitive, &change.after_sensitive];
    let values = [&change.before, &change.after, &change.after_unknown];
    let is_whole = values.iter().all(|value| value.is_whole)
        && marks
            .iter()
            .all(|mark| mark.as_ref().is_none_or(|mark| mark.is_whole));
    if !is_whole {
        return None;
    }
    let marks = marks.map(mark);
    // An object that is created or destroyed has its attributes one by one.
    let empty = Value::Object(Map::new());
    let (mut before, mut after) = (&change.before.value, &change.after.value);
    if before.is_null() && (after.is_object() || change.after_unknown.value.is_object()) {
        before = &empty;
    }
    if after.is_null() && (before.is_object() || change.after_unknown.value.is_object()) {
        after = &empty;
    }
    let mut found = Vec::new();
    let node = Node {
        before,
        after,
        unknown: &change.after_unknown.value,
        marks: [&marks[0], &marks[1]],
    };
    node.differences(&mut Vec::new(), redactor, &mut found);
    Some(found)
}

static NULL: Value = Value::Null;
static NO: Value = Value::Bool(false);
static YES: Value = Value::Bool(true);

#[derive(Clone, Copy)]
struct Node<'a> {
    before: &'a Value,
    after: &'a Value,
    unknown: &'a Value,
    marks: [&'a Value; 2],
}

/// A segment of a path.
#[derive(Clone, Copy)]
enum At<'a> {
    Key(&'a str),
    Index(usize),
}

fn of<'a>(value: &'a Value, at: At<'_>) -> Option<&'a Value> {
    match at {
        At::Key(key) => value.get(key),
        At::Index(index) => value.get(index),
    }
}

/// The mark of a part of a value.
fn mark<'a>(marks: &'a Value, at: At<'_>) -> &'a Value {
    match (marks, at) {
        (Value::Bool(_), _) => marks,
        (Value::Object(_), At::Key(_)) | (Value::Array(_), At::Index(_)) => {
            of(marks, at).unwrap_or(&NO)
        }
        _ if marks.is_null() || has_true(marks) => &YES,
        _ => &NO,
    }
}

/// Which parts of a value are unknown.
fn unknown<'a>(unknown: &'a Value, at: At<'_>) -> &'a Value {
    of(unknown, at).unwrap_or(&NO)
}

impl Node<'_> {
    fn child(self, at: At<'_>) -> Self {
        Self {
            before: of(self.before, at).unwrap_or(&NULL),
            after: of(self.after, at).unwrap_or(&NULL),
            unknown: unknown(self.unknown, at),
            marks: self.marks.map(|marks| mark(marks, at)),
        }
    }

    fn differences(self, path: &mut Vec<Value>, redactor: &Redactor, found: &mut Vec<Attribute>) {
        let is_unknown = *self.unknown == YES;
        if self.before == self.after && !has_true(self.unknown) {
            return;
        }
        let is_sensitive = self.marks.iter().any(|marks| hides(marks, self.before))
            || self.marks.iter().any(|marks| hides(marks, self.after));
        let mut into = |at: At<'_>, segment: Value| {
            path.push(segment);
            self.child(at).differences(path, redactor, found);
            path.pop();
        };
        match (self.before, self.after) {
            _ if is_sensitive || is_unknown => {}
            (Value::Object(before), Value::Object(after)) => {
                let unknown = self.unknown.as_object().into_iter().flat_map(Map::keys);
                let keys: BTreeSet<&String> =
                    before.keys().chain(after.keys()).chain(unknown).collect();
                for key in keys {
                    into(At::Key(key), cleaned(&key.as_str().into(), redactor));
                }
                return;
            }
            (Value::Array(before), Value::Array(after)) if before.len() == after.len() => {
                (0..before.len()).for_each(|index| into(At::Index(index), index.into()));
                return;
            }
            _ => {}
        }
        let shown = |value: &Value, unknown: &Value| {
            (!is_sensitive && !value.is_null())
                .then(|| masked(value, unknown, self.marks, redactor))
        };
        found.push(Attribute {
            path: path.clone(),
            before: shown(self.before, &NO),
            after: shown(self.after, self.unknown).filter(|_| !is_unknown),
            sensitive: is_sensitive,
            unknown: is_unknown,
        });
    }
}

/// Whether the marks hide the value as a whole: by `true`, or because they are of another shape.
fn hides(marks: &Value, value: &Value) -> bool {
    match (marks, value) {
        (Value::Bool(is), _) => *is,
        (Value::Object(_), Value::Object(_))
        | (Value::Array(_), Value::Array(_))
        | (_, Value::Null) => false,
        (marks, _) => marks.is_null() || has_true(marks),
    }
}

fn has_true(value: &Value) -> bool {
    match value {
        Value::Bool(is) => *is,
        Value::Array(all) => all.iter().any(has_true),
        Value::Object(all) => all.values().any(has_true),
        Value::Null | Value::Number(_) | Value::String(_) => false,
    }
}

fn masked(value: &Value, unknown: &Value, marks: [&Value; 2], redactor: &Redactor) -> Value {
    if marks.iter().any(|marks| hides(marks, value)) {
        return SENSITIVE.into();
    }
    if *unknown == YES {
        return UNKNOWN.into();
    }
    let part = |value: &Value, at: At<'_>| {
        masked(
            value,
            self::unknown(unknown, at),
            marks.map(|marks| mark(marks, at)),
            redactor,
        )
    };
    match value {
        Value::Object(all) => {
            let missing = unknown.as_object().into_iter().flatten();
            let missing = missing.filter(|(key, is)| **is == YES && !all.contains_key(*key));
            all.iter()
                .map(|(key, value)| (key, part(value, At::Key(key))))
                .chain(missing.map(|(key, _)| (key, part(&NULL, At::Key(key)))))
                .map(|(key, value)| (redactor.redact(key).into_owned(), value))
                .collect::<Map<_, _>>()
                .into()
        }
        Value::Array(all) => all
            .iter()
            .enumerate()
            .map(|(index, value)| part(value, At::Index(index)))
            .collect(),
        leaf => cleaned(leaf, redactor),
    }
}

/// A value without the values of Secrets.
pub(super) fn cleaned(value: &Value, redactor: &Redactor) -> Value {
    match value {
        // A cut string may end within a secret.
        Value::String(text) if text.len() > LONGEST => match text.rsplit_once('…') {
            Some((head, end)) => format!("{}…{end}", redactor.redact_cut(head)).into(),
            None => redactor.redact(text).into_owned().into(),
        },
        Value::String(text) => redactor.redact(text).into_owned().into(),
        Value::Number(number) => {
            let text = number.to_string();
            if redactor.redact(&text) == text {
                value.clone()
            } else {
                SENSITIVE.into()
            }
        }
        Value::Array(all) => all.iter().map(|value| cleaned(value, redactor)).collect(),
        Value::Object(all) => all
            .iter()
            .map(|(key, value)| (redactor.redact(key).into_owned(), cleaned(value, redactor)))
            .collect::<Map<_, _>>()
            .into(),
        Value::Null | Value::Bool(_) => value.clone(),
    }
}
