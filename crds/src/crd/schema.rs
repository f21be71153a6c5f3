//! Shared by all definitions: rules, and a bound for every string, list and map.

use serde_json::{Map, Value, json};

/// The message of a rule of runs and of layer templates.
pub(super) const NAMED: &str = "credentials of aws, gcp, azure and vault need runner.serviceAccountName: they are the account's, and who uses it needs the verb use";

/// Rules with the API server's messages for violations.
pub(super) fn rules(rules: &[(&str, &str)]) -> Value {
    rules
        .iter()
        .map(|(rule, message)| json!({"rule": rule, "message": message}))
        .collect()
}

/// The rule that `path` does not lead outside.
pub(super) fn inside(what: &str) -> Value {
    rules(&[(
        "!self.path.startsWith('/') && !self.path.split('/').exists(part, part == '..')",
        &format!("path stays inside {what}"),
    )])
}

/// Adds a bound to every string, list and map without one (Kubernetes' own types have none), and drops the long
/// descriptions of those types; `kubectl explain pod.spec` shows them.
pub(super) fn bound(schema: &mut Value, ours: bool) {
    let Some(object) = schema.as_object_mut() else {
        return;
    };
    if !ours {
        object.remove("description");
    }
    match object.get("type").and_then(Value::as_str) {
        Some("string") if !object.contains_key("enum") => default_to(object, "maxLength", 1024),
        Some("array") => default_to(object, "maxItems", 32),
        Some("object") if object.contains_key("additionalProperties") => {
            default_to(object, "maxProperties", 64);
        }
        _ => {}
    }
    if object.get("x-kubernetes-int-or-string").is_some() {
        default_to(object, "maxLength", 64);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = object.get_mut(key) {
            bound(inner, ours);
        }
    }
    if let Some(properties) = object.get_mut("properties").and_then(Value::as_object_mut) {
        for (name, inner) in properties {
            let foreign = matches!(
                name.as_str(),
                "affinity"
                    | "tolerations"
                    | "topologySpreadConstraints"
                    | "resources"
                    | "conditions"
            );
            let description = inner.get("description").cloned();
            bound(inner, ours && !foreign);
            if let (true, true, Some(text)) = (ours, foreign, description) {
                inner["description"] = text;
            }
        }
    }
}

fn default_to(object: &mut Map<String, Value>, key: &str, value: u32) {
    object.entry(key).or_insert_with(|| value.into());
}
