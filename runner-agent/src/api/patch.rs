//! JSON Patches as an API server applies them, for a run that is kept elsewhere.

use serde_json::Value;

#[derive(Debug, thiserror::Error)]
pub enum PatchError {
    /// The operations are none.
    #[error(transparent)]
    Malformed(#[from] serde_json::Error),
    /// One of them does not apply.
    #[error(transparent)]
    Refused(#[from] json_patch::PatchError),
}

/// Applies a JSON Patch. To a `test`, a member that is not there is null, as it is to an API server: this is how a patch says that
/// something must not be there. Members of an object that is not there cannot be tested at all.
///
/// # Errors
/// When the operations are no patch, or one of them does not apply; the object may have been changed in part.
pub fn patch(object: &mut Value, mut operations: Vec<Value>) -> Result<(), PatchError> {
    operations.retain(|operation| !is_absent(object, operation));
    let operations: json_patch::Patch = serde_json::from_value(Value::Array(operations))?;
    Ok(json_patch::patch(object, &operations)?)
}

/// Whether an operation tests that a member is not there, and it is not.
fn is_absent(object: &Value, operation: &Value) -> bool {
    let path = operation["path"].as_str().unwrap_or_default();
    let parent = path.rsplit_once('/').and_then(|(parent, _)| object.pointer(parent));
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
    fn what_is_not_there_is_null_to_a_test() {
        let test = |path: &str, value: Value| {
            patch(&mut json!({"a": {"b/c": 1, "n": null}}), vec![json!({"op": "test", "path": path, "value": value})]).is_ok()
        };
        assert!(test("/a/b~1c", json!(1)) && test("/a/x", Value::Null) && test("/a/n", Value::Null) && test("/x", Value::Null));
        assert!(!test("/a/b~1c", Value::Null) && !test("/a/x", json!(1)), "it is there, or it is not");
        assert!(!test("/x/y", Value::Null), "of an object that is not there");
    }
}
