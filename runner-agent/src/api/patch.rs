//! Applies JSON Patches like an API server, for a run that is stored in a file.

use serde_json::Value;

#[derive(Debug, thiserror::Error)]
pub enum PatchError {
    /// The value is no JSON Patch.
    #[error(transparent)]
    Malformed(#[from] serde_json::Error),
    /// An operation does not apply.
    #[error(transparent)]
    Refused(#[from] json_patch::PatchError),
}

/// Applies a JSON Patch. As for an API server, a missing member equals null in a `test`: a patch tests for absence this way.
/// Members of a missing object cannot be tested.
///
/// # Errors
/// The operations are no patch, or one does not apply. The object may have been changed in part.
pub fn patch(object: &mut Value, mut operations: Vec<Value>) -> Result<(), PatchError> {
    operations.retain(|operation| !is_absent(object, operation));
    let operations: json_patch::Patch = serde_json::from_value(Value::Array(operations))?;
    Ok(json_patch::patch(object, &operations)?)
}

/// Whether an operation tests for the absence of a member that is missing.
fn is_absent(object: &Value, operation: &Value) -> bool {
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
    fn missing_member_equals_null_in_a_test() {
        let test = |path: &str, value: Value| {
            patch(
                &mut json!({"a": {"b/c": 1, "n": null}}),
                vec![json!({"op": "test", "path": path, "value": value})],
            )
            .is_ok()
        };
        assert!(
            test("/a/b~1c", json!(1))
                && test("/a/x", Value::Null)
                && test("/a/n", Value::Null)
                && test("/x", Value::Null)
        );
        assert!(
            !test("/a/b~1c", Value::Null) && !test("/a/x", json!(1)),
            "it is there, or it is not"
        );
        assert!(!test("/x/y", Value::Null), "of an object that is not there");
    }
}
