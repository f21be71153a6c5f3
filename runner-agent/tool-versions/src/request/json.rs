//! The configuration language in JSON.

use std::slice;

use serde_json::Value;

/// The blocks of a type: the tools take an object or a list of objects for them.
pub const fn blocks(value: &Value) -> &[Value] {
    match value {
        Value::Array(values) => values.as_slice(),
        Value::Null => &[],
        value => slice::from_ref(value),
    }
}
