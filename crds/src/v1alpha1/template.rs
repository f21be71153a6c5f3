//! Settings in a layer and its repository for the runs created from them.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Fields of a run's spec as written. Unset fields are absent, so that two templates can be merged field by field. The
/// CRD's schema for it is derived from the run's (`crd::template`).
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(transparent)]
pub struct RunTemplate(pub Map<String, Value>);

impl RunTemplate {
    /// Whether no field is set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Merges field by field; this template overrides `defaults`. Objects are merged, lists and scalars are replaced.
    #[must_use]
    pub fn over(&self, defaults: &Self) -> Self {
        let mut merged = defaults.0.clone();
        merge(&mut merged, &self.0);
        Self(merged)
    }
}

fn merge(into: &mut Map<String, Value>, over: &Map<String, Value>) {
    for (field, value) in over {
        match (into.get_mut(field), value) {
            (Some(Value::Object(there)), Value::Object(parts)) => merge(there, parts),
            _ => {
                into.insert(field.clone(), value.clone());
            }
        }
    }
}

impl JsonSchema for RunTemplate {
    fn schema_name() -> Cow<'static, str> {
        "RunTemplate".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "object"})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_wins_and_objects_merge() {
        let of = |text: &str| serde_json::from_str::<RunTemplate>(text).unwrap();
        let template = of(r#"{"runner": {"labels": {"a": "1"}}, "targets": ["x"]}"#);
        let defaults = of(
            r#"{"runner": {"labels": {"a": "2", "b": "2"}}, "targets": ["y"], "workspace": "w"}"#,
        );
        let merged = of(
            r#"{"runner": {"labels": {"a": "1", "b": "2"}}, "targets": ["x"], "workspace": "w"}"#,
        );
        assert_eq!(template.over(&defaults), merged);
    }
}
