//! Parses `show -json` as a stream. Retains counts and a bounded list of changes, whatever the size of the plan.

use std::{collections::BTreeSet, fmt, io::Read};

use crds::Changes;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;

/// Maximum number of lines retained of each kind of change.
const LINES: usize = 50;
/// Maximum number of attributes named per resource.
const ATTRIBUTES: usize = 8;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanFacts {
    pub counts: Changes,
    /// Whether planning failed and the plan is partial.
    pub errored: bool,
    /// Whether the tool reports something to apply. Only newer tools report it.
    pub applyable: Option<bool>,
    /// The watched addresses that the plan creates.
    pub created: BTreeSet<String>,
    watched: BTreeSet<String>,
    lists: [List; 9],
}

/// Lines of one kind, and the number of all changes of that kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct List {
    lines: Vec<String>,
    count: usize,
}

/// Kinds of change in reading order: losses first.
#[derive(Clone, Copy)]
enum Kind {
    Destroy,
    Replace,
    Forget,
    Update,
    Create,
    Import,
    Move,
    Drift,
    Output,
}

impl PlanFacts {
    /// One line per change, destroys and replaces first; the last line counts the omitted ones. Outputs are listed by name only.
    pub fn lines(&self) -> Vec<String> {
        let all: usize = self.lists.iter().map(|list| list.count).sum();
        let mut lines: Vec<_> = self
            .lists
            .iter()
            .flat_map(|list| list.lines.iter().cloned())
            .take(LINES)
            .collect();
        if all > lines.len() {
            lines.push(format!("and {} more", all - lines.len()));
        }
        lines
    }

    /// Whether a resource, its address or an output changes. Drift alone is no change: a plan with nothing else is not applied.
    pub fn has_changes(&self) -> bool {
        let c = self.counts;
        [
            c.add, c.change, c.destroy, c.import, c.replace, c.forget, c.moved, c.outputs,
        ]
        .iter()
        .any(|count| *count > 0)
    }

    /// Clears the drift of a plan without changes. Such a plan is not applied, so the state takes in none of the drift.
    pub(super) fn forget_drift(&mut self) {
        self.counts.drifted = 0;
        self.lists[Kind::Drift as usize] = List::default();
    }

    fn add(&mut self, kind: Kind, line: &str) {
        let list = &mut self.lists[kind as usize];
        list.count += 1;
        if list.lines.len() < LINES {
            list.lines.push(crds::text::clip(line, 256));
        }
    }

    fn resource(&mut self, resource: &Resource) {
        let address = &resource.address;
        let has = |action: &str| resource.change.does(action);
        let import = resource.change.importing.is_some();
        let moved = resource
            .previous_address
            .as_ref()
            .filter(|from| *from != address);
        let c = &mut self.counts;
        c.import += u32::from(import);
        c.moved += u32::from(moved.is_some());
        if has("create") && self.watched.contains(address) {
            self.created.insert(address.clone());
        }
        let (kind, sign) = match (has("create"), has("delete"), has("update"), has("forget")) {
            (true, true, _, _) => {
                c.add += 1;
                c.destroy += 1;
                c.replace += 1;
                (Kind::Replace, "-/+")
            }
            (true, false, _, true) => {
                c.add += 1;
                c.forget += 1;
                (Kind::Replace, "./+")
            }
            (true, false, _, false) => {
                c.add += 1;
                (Kind::Create, "+")
            }
            (false, true, _, _) => {
                c.destroy += 1;
                (Kind::Destroy, "-")
            }
            (false, false, true, _) => {
                c.change += 1;
                (Kind::Update, "~")
            }
            (false, false, false, true) => {
                c.forget += 1;
                (Kind::Forget, ".")
            }
            (false, false, false, false) if import => (Kind::Import, "="),
            (false, false, false, false) if moved.is_some() => (Kind::Move, ">"),
            (false, false, false, false) => return,
        };
        let forgotten = if matches!(kind, Kind::Forget) {
            " (forgotten)"
        } else {
            ""
        };
        let imported = if import { " (imported)" } else { "" };
        let moved = moved
            .map(|from| format!(" (moved from {from})"))
            .unwrap_or_default();
        self.add(
            kind,
            &format!("{sign} {address}{forgotten}{imported}{moved}"),
        );
    }

    /// Adds a resource that changed since the last apply. The tools also list pure moves there, without an action; those count as changes
    /// of the plan instead. The tools' text omits drift that no other change refers to, even if the drift causes a replacement. This list
    /// is complete, like the tools' event stream, since an apply takes all of it into the state.
    fn drift(&mut self, resource: &Drifted) {
        let does = |action: &str| resource.change.actions.iter().any(|a| a == action);
        let how = match (does("delete"), does("update")) {
            (true, _) => "deleted outside of the code".to_owned(),
            (false, true) => match resource.change.attributes().as_slice() {
                [] => "changed outside of the code".to_owned(),
                some => format!("changed outside of the code: {}", some.join(", ")),
            },
            (false, false) => return,
        };
        self.counts.drifted += 1;
        self.add(Kind::Drift, &format!("! {} ({how})", resource.address));
    }

    fn output(&mut self, name: &str, change: &Change) {
        let sign = match (
            change.does("create"),
            change.does("delete"),
            change.does("update"),
        ) {
            (true, false, _) => "+",
            (false, true, _) => "-",
            (true, true, _) | (false, false, true) => "~",
            (false, false, false) => return,
        };
        self.counts.outputs += 1;
        self.add(Kind::Output, &format!("{sign} output.{name}"));
    }
}

#[derive(Deserialize)]
struct Resource {
    #[serde(default)]
    address: String,
    #[serde(default)]
    previous_address: Option<String>,
    #[serde(default)]
    change: Change,
}

#[derive(Deserialize, Default)]
struct Change {
    #[serde(default)]
    actions: Vec<String>,
    #[serde(default)]
    importing: Option<IgnoredAny>,
}

/// A resource that changed since the last apply. Values are parsed for these only.
#[derive(Deserialize)]
struct Drifted {
    #[serde(default)]
    address: String,
    change: Values,
}

#[derive(Deserialize)]
struct Values {
    #[serde(default)]
    actions: Vec<String>,
    #[serde(default)]
    before: Value,
    #[serde(default)]
    after: Value,
}

impl Values {
    /// Sorted paths of the differing attributes, without values.
    fn attributes(&self) -> Vec<String> {
        let mut paths = Vec::new();
        differing("", &self.before, &self.after, &mut paths);
        if paths.len() > ATTRIBUTES {
            let more = paths.len() - ATTRIBUTES;
            paths.truncate(ATTRIBUTES);
            paths.push(format!("and {more} more"));
        }
        paths
    }
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

impl Change {
    fn does(&self, action: &str) -> bool {
        self.actions.iter().any(|a| a == action)
    }
}

/// Parses a plan, and collects the `watched` addresses that it creates.
///
/// # Errors
/// Invalid JSON, or JSON that is no plan.
pub fn read_plan(from: impl Read, watched: BTreeSet<String>) -> serde_json::Result<PlanFacts> {
    let mut facts = PlanFacts {
        watched,
        ..PlanFacts::default()
    };
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
                "resource_changes" => {
                    map.next_value_seed(Resources(self.0, PlanFacts::resource))?;
                }
                "resource_drift" => map.next_value_seed(Resources(self.0, PlanFacts::drift))?,
                "output_changes" => map.next_value_seed(Outputs(self.0))?,
                "errored" => self.0.errored = map.next_value()?,
                "applyable" => self.0.applyable = map.next_value()?,
                _ => {
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
        while let Some((name, change)) = map.next_entry::<String, Change>()? {
            self.0.output(&name, &change);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
