//! State in format 4, as far as the fake tool needs it.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::address::Address;

/// What the state knows of one resource.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Known {
    pub(super) id: String,
    pub(super) input: Value,
}

/// A state in memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ToolState {
    /// Grows with each write; 0 before the first.
    pub(super) serial: u64,
    /// Drawn once; empty before the first write.
    pub(super) lineage: String,
    pub(super) resources: BTreeMap<String, Known>,
}

impl ToolState {
    /// Reads a state; none is the empty state.
    pub(super) fn from_json(state: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut resources = BTreeMap::new();
        for resource in state["resources"].as_array().into_iter().flatten() {
            let module = resource["module"].as_str().map(|module| format!("{module}.")).unwrap_or_default();
            let base = format!("{module}{}.{}", text(&resource["type"]), text(&resource["name"]));
            for instance in resource["instances"].as_array().into_iter().flatten() {
                let address = match instance.get("index_key") {
                    Some(key) => format!("{base}[{key}]"),
                    None => base.clone(),
                };
                let attributes = &instance["attributes"];
                resources.insert(address, Known { id: text(&attributes["id"]), input: unwrapped(&attributes["input"]) });
            }
        }
        Self { serial: state["serial"].as_u64().unwrap_or_default(), lineage: text(&state["lineage"]), resources }
    }

    /// The state as the tool of this version writes it.
    pub(super) fn to_json(&self, version: &str) -> Value {
        let mut grouped: BTreeMap<(String, String, String), Vec<Value>> = BTreeMap::new();
        for (address, known) in &self.resources {
            let Address { module, kind, name, key, .. } = Address::parse(address);
            let mut instance = Map::new();
            if !key.is_null() {
                instance.insert("index_key".to_owned(), key);
            }
            instance.insert("schema_version".to_owned(), json!(0));
            let input = wrapped(&known.input);
            let attributes = json!({"id": known.id, "input": input, "output": input, "triggers_replace": null});
            instance.insert("attributes".to_owned(), attributes);
            instance.insert("sensitive_attributes".to_owned(), json!([]));
            grouped.entry((module, kind, name)).or_default().push(Value::Object(instance));
        }
        let resources: Vec<Value> = grouped
            .into_iter()
            .map(|((module, kind, name), instances)| {
                let provider = Address::parse(&format!("{kind}.{name}")).provider_name();
                let mut resource = json!({
                    "mode": "managed", "type": kind, "name": name, "provider": format!("provider[\"{provider}\"]"),
                    "instances": instances,
                });
                if !module.is_empty() {
                    resource["module"] = json!(module);
                }
                resource
            })
            .collect();
        json!({
            "version": 4, "terraform_version": version, "serial": self.serial, "lineage": self.lineage,
            "outputs": {}, "resources": resources, "check_results": null,
        })
    }
}

/// A value of an attribute of any type, which `input` is: the state has its type beside it, or the real tools cannot read it.
fn wrapped(value: &Value) -> Value {
    json!({"value": value, "type": type_of(value)})
}

fn unwrapped(value: &Value) -> Value {
    value.get("value").filter(|_| value.get("type").is_some()).unwrap_or(value).clone()
}

/// A value's type in the notation of the state.
fn type_of(value: &Value) -> Value {
    match value {
        Value::Null => json!("dynamic"),
        Value::Bool(_) => json!("bool"),
        Value::Number(_) => json!("number"),
        Value::String(_) => json!("string"),
        Value::Array(items) => json!(["tuple", items.iter().map(type_of).collect::<Vec<_>>()]),
        Value::Object(fields) => {
            json!(["object", fields.iter().map(|(name, value)| (name.clone(), type_of(value))).collect::<Map<_, _>>()])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_survives_being_written_and_read() {
        let known = |id: &str| Known { id: id.to_owned(), input: json!({"a": 1}) };
        let addresses = ["terraform_data.r[0]", "terraform_data.r[1]", "module.m.terraform_data.s[\"k.x\"]", "time_sleep.t"];
        let state = ToolState {
            serial: 3,
            lineage: "l".to_owned(),
            resources: addresses.map(|address| (address.to_owned(), known(address))).into(),
        };
        let json = state.to_json("1.10.6");
        assert_eq!(ToolState::from_json(&json), state);
        assert_eq!(ToolState::from_json(&Value::Null), ToolState::default());
    }
}
