//! What a layer and its repository say about the runs that are made of them.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Fields of a run's spec, as they were written: a field that nobody set is absent, so that two templates can be merged field by field.
/// Its schema in the definition is made from the run's own (`crd::template`).
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(transparent)]
pub struct RunTemplate(pub Map<String, Value>);

impl RunTemplate {
    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
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
