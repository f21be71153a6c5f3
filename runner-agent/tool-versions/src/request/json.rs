//! The configuration language in JSON.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// The blocks of a type: the tools take an object, or lists of objects, for them.
pub fn blocks(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(values) => values.iter().flat_map(blocks).collect(),
        Value::Null => Vec::new(),
        value => vec![value],
    }
}

/// Parses a file: an object, or a list of objects that count as one. The values of a key that occurs again are a list.
///
/// # Errors
/// The syntax error, or that it has another root.
pub fn code(text: &str) -> Result<Value, String> {
    let Code(root) = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let mut all = Map::new();
    for object in blocks(&root) {
        let fields = object.as_object().ok_or("its root is no object")?;
        for (key, value) in fields {
            add(&mut all, key.clone(), value.clone());
        }
    }
    Ok(Value::Object(all))
}

fn add(all: &mut Map<String, Value>, key: String, value: Value) {
    let value = match all.remove(&key) {
        Some(before) => Value::Array(vec![before, value]),
        None => value,
    };
    all.insert(key, value);
}

/// A value in which no key replaces another one.
struct Code(Value);

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader).map(Self)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(Code(value)) = values.next_element()? {
            all.push(value);
        }
        Ok(all.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some((key, Code(value))) = fields.next_entry()? {
            add(&mut all, key, value);
        }
        Ok(all.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn all_blocks_of_a_type_are_found() {
        for text in [
            r#"{"module": {"a": 1, "b": 2}}"#,
            r#"[{"module": {"a": 1}}, {"module": {"b": 2}}]"#,
            r#"{"module": {"a": 1}, "module": {"b": 2}}"#,
            r#"[[{"module": [[{"a": 1}]]}], {"module": null}, {"module": {"b": 2}}]"#,
        ] {
            let code = code(text).unwrap();
            let named = blocks(&code["module"]).into_iter();
            let named = named.flat_map(|block| block.as_object().unwrap().clone());
            let named: Map<_, _> = named.collect();
            assert_eq!(Value::Object(named), json!({"a": 1, "b": 2}), "{text}");
        }
        for text in ["[1]", "\"a\"", "{", "{} {}"] {
            assert!(code(text).is_err(), "{text}");
        }
    }
}
