//! Merge patches (RFC 7396), the part of strategic merge patches that the controller sends, and a deviation of JSON Patch tests from RFC
//! 6902.

use serde_json::{Map, Value};

/// Prefix of the directive that removes values from a list in a strategic merge patch.
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";

pub fn merge(to: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *to = patch.clone();
        return;
    };
    if !to.is_object() {
        *to = Value::Object(Map::new());
    }
    let Some(target) = to.as_object_mut() else {
        return;
    };
    for (key, value) in patch {
        if let (Some(list), Some(gone)) = (key.strip_prefix(DELETE_FROM), value.as_array()) {
            if let Some(list) = target.get_mut(list).and_then(Value::as_array_mut) {
                list.retain(|item| !gone.contains(item));
            }
        } else if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

/// Whether a JSON Patch operation tests a missing member of an existing object for null. The API server lets such a test pass.
pub fn is_absent(object: &Value, operation: &Value) -> bool {
    let path = operation["path"].as_str().unwrap_or_default();
    let parent = path
        .rsplit_once('/')
        .and_then(|(parent, _)| object.pointer(parent));
    operation["op"] == "test"
        && operation["value"].is_null()
        && parent.is_some_and(Value::is_object)
        && object.pointer(path).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn merge_patch_removes_nulls_and_replaces_lists() {
        let mut value = json!({"a": {"b": 1, "c": [1, 2]}, "finalizers": ["x", "y"]});
        merge(
            &mut value,
            &json!({"a": {"b": null, "c": [3], "d": {"e": null}}, "$deleteFromPrimitiveList/finalizers": ["x"]}),
        );
        assert_eq!(
            value,
            json!({"a": {"c": [3], "d": {}}, "finalizers": ["y"]})
        );
    }
}
