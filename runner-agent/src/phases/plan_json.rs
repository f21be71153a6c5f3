//! Parses `show -json` as a stream: the tool's words about the plan.

use std::{collections::BTreeSet, fmt, io::Read};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;

use super::plan_facts::{Entry, Part, PlanFacts};

/// Maximum number of attributes named per resource.
const ATTRIBUTES: usize = 8;

/// Parts that an apply of this plan does not carry out by themselves, of Terraform up to 1.15 and OpenTofu up to 1.12.
const SILENT: [&str; 12] = [
    "format_version",
    "terraform_version",
    "variables",
    "planned_values",
    "prior_state",
    "configuration",
    "relevant_attributes",
    "checks",
    "timestamp",
    "complete",
    "deferred_changes",
    "deferred_action_invocations",
];

/// A change of a resource. Its values are parsed for drift only.
#[derive(Deserialize)]
#[serde(bound(deserialize = "V: Deserialize<'de> + Default"))]
struct Resource<V> {
    #[serde(default)]
    address: String,
    #[serde(default)]
    previous_address: String,
    #[serde(default)]
    deposed: String,
    #[serde(default)]
    action_reason: String,
    #[serde(default)]
    change: Change<V>,
}

#[derive(Deserialize, Default)]
#[serde(bound(deserialize = "V: Deserialize<'de> + Default"))]
struct Change<V> {
    #[serde(default)]
    actions: Vec<String>,
    #[serde(default)]
    importing: Option<IgnoredAny>,
    #[serde(default)]
    before: V,
    #[serde(default)]
    after: V,
}

/// An invocation of an action, which Terraform plans since 1.14.
#[derive(Deserialize)]
struct Invocation {
    #[serde(default)]
    address: String,
    #[serde(default)]
    lifecycle_action_trigger: Option<Trigger>,
}

#[derive(Deserialize, Default)]
struct Trigger {
    #[serde(default)]
    triggering_resource_address: String,
}

impl<V> Resource<V> {
    fn tell(&self, facts: &mut PlanFacts, part: Part, attributes: impl FnOnce() -> Vec<String>) {
        let actions = self.change.actions.join(",");
        let entry = Entry {
            part,
            address: &self.address,
            previous: &self.previous_address,
            deposed: &self.deposed,
            actions: &actions,
            reason: &self.action_reason,
            importing: self.change.importing.is_some(),
        };
        facts.take(entry, attributes);
    }
}

fn changed(facts: &mut PlanFacts, resource: &Resource<IgnoredAny>) {
    resource.tell(facts, Part::Resources, Vec::new);
}

fn drifted(facts: &mut PlanFacts, resource: &Resource<Value>) {
    let Change { before, after, .. } = &resource.change;
    resource.tell(facts, Part::Drift, || attributes(before, after));
}

fn invoked(facts: &mut PlanFacts, invocation: &Invocation) {
    let trigger = invocation.lifecycle_action_trigger.as_ref();
    let entry = Entry {
        address: &invocation.address,
        previous: trigger.map_or("", |by| &by.triggering_resource_address),
        ..Entry::of(Part::Invocations)
    };
    facts.take(entry, Vec::new);
}

/// Sorted paths of the attributes that differ, without values.
pub(super) fn attributes(before: &Value, after: &Value) -> Vec<String> {
    let mut paths = Vec::new();
    differing("", before, after, &mut paths);
    if paths.len() > ATTRIBUTES {
        let more = paths.len() - ATTRIBUTES;
        paths.truncate(ATTRIBUTES);
        paths.push(format!("and {more} more"));
    }
    paths
}

fn differing(path: &str, before: &Value, after: &Value, paths: &mut Vec<String>) {
    match (before, after) {
        (before, after) if before == after => {}
        (Value::Object(before), Value::Object(after)) => {
            let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
            for name in names {
                let of = |map: &serde_json::Map<String, Value>| {
                    map.get(name).cloned().unwrap_or_default()
                };
                let path = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                differing(&path, &of(before), &of(after), paths);
            }
        }
        (Value::Array(before), Value::Array(after)) if before.len() == after.len() => {
            for (i, (before, after)) in before.iter().zip(after).enumerate() {
                differing(&format!("{path}[{i}]"), before, after, paths);
            }
        }
        _ => paths.push(path.to_owned()),
    }
}

/// Parses a plan into `facts`.
///
/// # Errors
/// Invalid JSON, or JSON that is no plan.
pub(super) fn read_plan(
    from: impl Read,
    facts: impl Into<PlanFacts>,
) -> serde_json::Result<PlanFacts> {
    let mut facts = facts.into();
    let mut deserializer =
        serde_json::Deserializer::from_reader(std::io::BufReader::with_capacity(64 * 1024, from));
    Top(&mut facts).deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(facts)
}

struct Top<'a>(&'a mut PlanFacts);
struct Resources<'a, T>(&'a mut PlanFacts, fn(&mut PlanFacts, &T));
struct Outputs<'a>(&'a mut PlanFacts);

impl<'de> DeserializeSeed<'de> for Top<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Top<'_> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a plan")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "resource_changes" => map.next_value_seed(Resources(self.0, changed))?,
                "resource_drift" => map.next_value_seed(Resources(self.0, drifted))?,
                "action_invocations" => map.next_value_seed(Resources(self.0, invoked))?,
                "output_changes" => map.next_value_seed(Outputs(self.0))?,
                "errored" => self.0.errored = map.next_value()?,
                "applyable" => self.0.applyable = map.next_value()?,
                key => {
                    if !SILENT.contains(&key) {
                        self.0.meet(key);
                    }
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for Resources<'_, T> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Resources<'_, T> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("changes of resources")
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(resource) = list.next_element::<T>()? {
            (self.1)(self.0, &resource);
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Outputs<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Outputs<'_> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("changes of outputs")
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some((name, change)) = map.next_entry::<String, Change<IgnoredAny>>()? {
            let actions = change.actions.join(",");
            let entry = Entry {
                address: &name,
                actions: &actions,
                ..Entry::of(Part::Outputs)
            };
            self.0.take(entry, Vec::new);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
