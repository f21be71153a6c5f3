//! Normalises states and outputs: removes values that differ in every apply.

use std::sync::LazyLock;

use regex_lite::{Captures, Regex};
use serde_json::Value;

/// Attributes with a new value in each resource, by provider type. Values in the form of a UUID or of a time are recognised everywhere, so
/// functions such as `uuid()` and `timestamp()` are not listed.
const NEW_EACH_TIME: &[(&str, &[&str])] = &[
    ("null_resource", &["id"]),
    ("random_id", &["b64_std", "b64_url", "dec", "hex", "id"]),
    ("random_integer", &["id", "result"]),
    ("random_password", &["bcrypt_hash", "id", "result"]),
    ("random_pet", &["id"]),
    ("random_shuffle", &["result"]),
    ("random_string", &["id", "result"]),
    (
        "time_offset",
        &[
            "base_unix",
            "day",
            "hour",
            "minute",
            "month",
            "second",
            "unix",
            "year",
        ],
    ),
    (
        "time_rotating",
        &["day", "hour", "minute", "month", "second", "unix", "year"],
    ),
    (
        "time_static",
        &["day", "hour", "minute", "month", "second", "unix", "year"],
    ),
];

/// A changing value of at least this length is also replaced inside other values. A shorter match may be a coincidence.
const TELLING: usize = 6;

/// Makes a state and outputs comparable. Replaces new values at their source and in all other places; omits `serial` and `lineage`.
pub fn normal(mut state: Value, mut outputs: Value) -> (Value, Value) {
    let mut known = Vec::new();
    if let Some(top) = state.as_object_mut() {
        top.shift_remove("serial");
        top.shift_remove("lineage");
        if let Some(results) = top.get_mut("check_results") {
            sorted(results);
        }
    }
    for resource in list(&mut state, "resources") {
        let kind = resource["type"].as_str().unwrap_or_default().to_owned();
        let listed = NEW_EACH_TIME
            .iter()
            .find(|(name, _)| *name == kind)
            .map(|(_, names)| *names)
            .unwrap_or_default();
        for instance in list(resource, "instances") {
            if let Some(sensitive) = instance.get_mut("sensitive_attributes") {
                sorted(sensitive);
            }
            for name in listed {
                let value = instance
                    .get_mut("attributes")
                    .and_then(|attributes| attributes.get_mut(*name));
                let Some(value) = value.filter(|value| !value.is_null()) else {
                    continue;
                };
                let word = format!("<{kind}.{name}>");
                let text = value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_owned);
                if text.len() >= TELLING {
                    known.push((text, word.clone()));
                }
                *value = Value::String(word);
            }
        }
    }
    // The longest first: one may be a part of another.
    known.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
    for value in [&mut state, &mut outputs] {
        each(value, &|text| {
            known
                .iter()
                .fold(text.to_owned(), |text, (new, word)| text.replace(new, word))
        });
        each(value, &shapeless);
    }
    (state, outputs)
}

/// The items of an object's list; none if it does not exist.
fn list<'a>(value: &'a mut Value, name: &str) -> impl Iterator<Item = &'a mut Value> {
    value
        .get_mut(name)
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
}

/// Sorts lists that the tools write in any order.
fn sorted(value: &mut Value) {
    if let Some(list) = value.as_array_mut() {
        list.sort_by_key(ToString::to_string);
    }
}

/// Changes every string and number.
fn each(value: &mut Value, change: &impl Fn(&str) -> String) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(|value| each(value, change)),
        Value::Object(object) => object.values_mut().for_each(|value| each(value, change)),
        Value::String(text) => *text = change(text),
        Value::Number(number) => {
            let (old, new) = (number.to_string(), change(&number.to_string()));
            if old != new {
                *value = Value::String(new);
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
}

/// A text without UUIDs and times.
fn shapeless(text: &str) -> String {
    static SHAPES: LazyLock<Option<Regex>> = LazyLock::new(|| {
        let (uuid, time) = (
            r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
            r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d",
        );
        Regex::new(&format!(r"(?<uuid>{uuid})|{time}[.\d]*(Z|[+-]\d\d:\d\d)?")).ok()
    });
    let word = |found: &Captures<'_>| {
        if found.name("uuid").is_some() {
            "<uuid>"
        } else {
            "<time>"
        }
    };
    SHAPES.as_ref().map_or_else(
        || text.to_owned(),
        |shapes| shapes.replace_all(text, word).into_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn state(id: &str, uuid: &str, word: &str) -> Value {
        json!({"version": 4, "serial": 3, "lineage": uuid, "resources": [
            {"type": "null_resource", "instances": [{"attributes": {"id": id}}]},
            {"type": "terraform_data", "instances": [{
                "attributes": {"id": uuid, "input": format!("of {id}: {word}")},
                "sensitive_attributes": if id.ends_with('0') { json!(["a", "b"]) } else { json!(["b", "a"]) },
            }]},
        ]})
    }

    #[test]
    fn only_new_values_are_normalised() {
        let one = |id: &str, uuid: &str, word: &str| {
            normal(
                state(id, uuid, word),
                json!({"id": id, "at": "2026-11-21T10:00:00.25+01:00", "many": [uuid, 5]}),
            )
        };
        let first = one(
            "5577006791947779410",
            "d5b3b9c5-467c-7b45-1f16-dd62302ec137",
            "word",
        );
        assert_eq!(
            first,
            one(
                "8674665223082153551",
                "00000000-467c-7b45-1f16-dd62302ec137",
                "word"
            )
        );
        assert_eq!(
            first.1,
            json!({"id": "<null_resource.id>", "at": "<time>", "many": ["<uuid>", 5]})
        );
        let input =
            |state: &Value| state["resources"][1]["instances"][0]["attributes"]["input"].clone();
        assert_eq!(input(&first.0), "of <null_resource.id>: word");
        assert_ne!(
            first,
            one(
                "5577006791947779410",
                "d5b3b9c5-467c-7b45-1f16-dd62302ec137",
                "ward"
            )
        );
        assert!(first.0.get("serial").is_none() && first.0["version"] == 4);
    }

    #[test]
    fn only_whole_shapes_are_replaced() {
        assert_eq!(shapeless("at 2026-11-21T10:00:00Z, ö"), "at <time>, ö");
        assert_eq!(
            shapeless("2026-11-21 and d5b3b9c5-467c"),
            "2026-11-21 and d5b3b9c5-467c"
        );
        for odd in [
            Value::Null,
            json!("cannot be read"),
            json!({"resources": [5, {"type": "random_id", "instances": [{}]}]}),
        ] {
            assert_eq!(normal(odd.clone(), json!({})), (odd, json!({})));
        }
    }
}
