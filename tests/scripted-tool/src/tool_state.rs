//! State in format 4, as far as the scripted tool needs it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::resource::Address;

/// A state in memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ToolState {
    /// Increases with each write; 0 before the first.
    pub(super) serial: u64,
    /// Random, constant after the first write; empty before.
    pub(super) lineage: String,
    /// Ids by address.
    pub(super) resources: BTreeMap<String, String>,
}

impl ToolState {
    /// Parses a state; null is the empty state.
    pub(super) fn from_json(state: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut resources = BTreeMap::new();
        for resource in state["resources"].as_array().into_iter().flatten() {
            let base = format!("{}.{}", text(&resource["type"]), text(&resource["name"]));
            for instance in resource["instances"].as_array().into_iter().flatten() {
                let key = instance
                    .get("index_key")
                    .map(|key| format!("[{key}]"))
                    .unwrap_or_default();
                resources.insert(format!("{base}{key}"), text(&instance["attributes"]["id"]));
            }
        }
        Self {
            serial: state["serial"].as_u64().unwrap_or_default(),
            lineage: text(&state["lineage"]),
            resources,
        }
    }

    /// The state in the format of this tool version.
    pub(super) fn to_json(&self, version: &str) -> Value {
        // A value of dynamic type needs its type next to it, or the real tools cannot read the state.
        let input = json!({"value": "x", "type": "string"});
        let mut grouped: BTreeMap<(&str, &str), Vec<Value>> = BTreeMap::new();
        for (address, id) in &self.resources {
            let Address { kind, name, key } = Address::parse(address);
            let mut instance = json!({
                "schema_version": 0, "sensitive_attributes": [],
                "attributes": {"id": id, "input": input, "output": input, "triggers_replace": null},
            });
            if !key.is_null() {
                instance["index_key"] = key;
            }
            grouped.entry((kind, name)).or_default().push(instance);
        }
        let resource = |((kind, name), instances): ((&str, &str), Vec<Value>)| {
            json!({"mode": "managed", "type": kind, "name": name, "instances": instances,
                "provider": "provider[\"terraform.io/builtin/terraform\"]"})
        };
        json!({
            "version": 4, "terraform_version": version, "serial": self.serial, "lineage": self.lineage,
            "outputs": {}, "resources": grouped.into_iter().map(resource).collect::<Vec<_>>(), "check_results": null,
        })
    }
}
