//! Reads `show -json` as a stream: counts and a bounded list of changes, however large the plan is.

use std::{collections::BTreeSet, fmt, io::Read};

use crds::Changes;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

/// Lines that are kept of each kind of change.
const LINES: usize = 50;

/// What a plan says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanFacts {
    /// Counts.
    pub counts: Changes,
    /// Whether the plan is one of a planning that failed.
    pub errored: bool,
    /// Whether the tool says that there is something to apply; newer tools say it.
    pub applyable: Option<bool>,
    /// Those of the addresses that were asked about which the plan creates.
    pub created: BTreeSet<String>,
    watched: BTreeSet<String>,
    lists: [List; 6],
}

/// Lines of one kind, and how many there are in all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct List {
    lines: Vec<String>,
    count: usize,
}

/// The order in which a person wants to read: what is lost first.
#[derive(Clone, Copy)]
enum Kind {
    Destroy,
    Replace,
    Forget,
    Update,
    Create,
    Import,
}

impl PlanFacts {
    /// One line a resource, destroys and replaces first; the last line says how many more there are.
    pub fn lines(&self) -> Vec<String> {
        let all: usize = self.lists.iter().map(|list| list.count).sum();
        let mut lines: Vec<_> = self.lists.iter().flat_map(|list| list.lines.iter().cloned()).take(LINES).collect();
        if all > lines.len() {
            lines.push(format!("and {} more", all - lines.len()));
        }
        lines
    }

    /// Whether there is any change of a resource or of an output.
    pub fn has_changes(&self) -> bool {
        let c = self.counts;
        [c.add, c.change, c.destroy, c.import, c.replace, c.forget, c.outputs].iter().any(|count| *count > 0)
    }

    fn add(&mut self, kind: Kind, line: &str) {
        let list = &mut self.lists[kind as usize];
        list.count += 1;
        if list.lines.len() < LINES {
            list.lines.push(crds::termination::clip(line, 256));
        }
    }

    fn resource(&mut self, resource: &Resource) {
        let address = &resource.address;
        let has = |action: &str| resource.change.actions.iter().any(|a| a == action);
        let import = resource.change.importing.is_some();
        let c = &mut self.counts;
        c.import += u32::from(import);
        if has("create") && self.watched.contains(address) {
            self.created.insert(address.clone());
        }
        let suffix = if import { " (imported)" } else { "" };
        match (has("create"), has("delete"), has("update"), has("forget")) {
            (true, true, _, _) => {
                c.add += 1;
                c.destroy += 1;
                c.replace += 1;
                self.add(Kind::Replace, &format!("-/+ {address}{suffix}"));
            }
            (true, false, _, true) => {
                c.add += 1;
                c.forget += 1;
                self.add(Kind::Replace, &format!("./+ {address}"));
            }
            (true, false, _, false) => {
                c.add += 1;
                self.add(Kind::Create, &format!("+ {address}"));
            }
            (false, true, _, _) => {
                c.destroy += 1;
                self.add(Kind::Destroy, &format!("- {address}"));
            }
            (false, false, true, _) => {
                c.change += 1;
                self.add(Kind::Update, &format!("~ {address}{suffix}"));
            }
            (false, false, false, true) => {
                c.forget += 1;
                self.add(Kind::Forget, &format!(". {address} (forgotten)"));
            }
            (false, false, false, false) => {
                if import {
                    self.add(Kind::Import, &format!("= {address} (imported)"));
                }
            }
        }
    }
}

#[derive(Deserialize)]
struct Resource {
    #[serde(default)]
    address: String,
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

/// Reads a plan, and notes which of some addresses it creates.
///
/// # Errors
/// When it is no plan.
pub fn read_plan(from: impl Read, watched: BTreeSet<String>) -> serde_json::Result<PlanFacts> {
    let mut facts = PlanFacts { watched, ..PlanFacts::default() };
    let mut deserializer = serde_json::Deserializer::from_reader(std::io::BufReader::with_capacity(64 * 1024, from));
    Top(&mut facts).deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(facts)
}

struct Top<'a>(&'a mut PlanFacts);
struct Resources<'a>(&'a mut PlanFacts);
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
                "resource_changes" => map.next_value_seed(Resources(self.0))?,
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

impl<'de> DeserializeSeed<'de> for Resources<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Resources<'_> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("changes of resources")
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(resource) = list.next_element::<Resource>()? {
            self.0.resource(&resource);
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
        while let Some((_, change)) = map.next_entry::<IgnoredAny, Change>()? {
            self.0.counts.outputs += u32::from(change.actions.iter().any(|a| a != "no-op" && a != "read"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn change(address: &str, actions: &[&str], importing: bool) -> serde_json::Value {
        let mut value = json!({"address": address, "mode": "managed", "change": {
            "actions": actions, "before": null, "after": {"x": [1, {"secret": "deep"}]}, "after_unknown": true}});
        if importing {
            value["change"]["importing"] = json!({"id": "i-1"});
        }
        value
    }

    #[test]
    fn changes_are_counted_as_the_tools_count() {
        let plan = json!({
            "format_version": "1.2", "errored": false, "applyable": true, "planned_values": {"a": [1, 2, 3]},
            "resource_changes": [
                change("a.create", &["create"], false), change("a.update", &["update"], true), change("a.old", &["delete"], false),
                change("a.replaced", &["delete", "create"], false), change("a.swapped", &["create", "delete"], false),
                change("a.same", &["no-op"], false), change("data.x", &["read"], false), change("a.taken", &["no-op"], true),
                change("a.left", &["forget"], false),
            ],
            "output_changes": {"o": {"actions": ["create"]}, "p": {"actions": ["no-op"]}},
        });
        let facts = read_plan(plan.to_string().as_bytes(), BTreeSet::new()).unwrap();
        let counts = Changes { add: 3, change: 1, destroy: 3, import: 2, replace: 2, forget: 1, outputs: 1 };
        assert_eq!(facts.counts, counts);
        assert_eq!(
            facts.lines(),
            [
                "- a.old",
                "-/+ a.replaced",
                "-/+ a.swapped",
                ". a.left (forgotten)",
                "~ a.update (imported)",
                "+ a.create",
                "= a.taken (imported)",
            ]
        );
        assert!(facts.has_changes() && !facts.errored && facts.applyable == Some(true));
    }

    #[test]
    fn destroys_come_first_however_many_there_are() {
        let mut list: Vec<_> = (0..300).map(|i| change(&format!("a.new[{i}]"), &["create"], false)).collect();
        list.push(change("a.old", &["delete"], false));
        let facts = read_plan(json!({"resource_changes": list}).to_string().as_bytes(), BTreeSet::new()).unwrap();
        let lines = facts.lines();
        assert_eq!((lines.len(), lines[0].as_str(), lines[50].as_str()), (51, "- a.old", "and 251 more"));
    }

    #[test]
    fn output_changes_alone_are_changes_and_garbage_is_none() {
        let facts =
            read_plan(&br#"{"resource_changes":null,"output_changes":{"o":{"actions":["update"]}}}"#[..], BTreeSet::new())
                .unwrap();
        assert!(facts.has_changes());
        assert!(!read_plan(&b"{}"[..], BTreeSet::new()).unwrap().has_changes());
        for text in ["", "[]", r#"{"resource_changes":[{"address":"a"#, "{}x"] {
            assert!(read_plan(text.as_bytes(), BTreeSet::new()).is_err(), "{text}");
        }
    }

    #[test]
    fn a_large_plan_is_read_as_it_comes() {
        // 100 MB that never are in memory at once: the reader makes them up.
        struct Huge(usize, Vec<u8>);
        impl Read for Huge {
            fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                if self.1.is_empty() {
                    match self.0 {
                        0 => return Ok(0),
                        1 => self.1 = b"]}".to_vec(),
                        n => {
                            let comma = if n == 2 { "" } else { "," };
                            self.1 = format!(
                                "{}{comma}",
                                change("a.b", &["create"], false).to_string().replace("deep", &"x".repeat(100_000))
                            )
                            .into_bytes();
                        }
                    }
                    self.0 -= 1;
                }
                let count = buffer.len().min(self.1.len());
                buffer[..count].copy_from_slice(&self.1[..count]);
                self.1.drain(..count);
                Ok(count)
            }
        }
        let facts = read_plan(Huge(1_001, br#"{"resource_changes":["#.to_vec()), BTreeSet::new()).unwrap();
        assert_eq!(facts.counts.add, 1_000);
    }
}
