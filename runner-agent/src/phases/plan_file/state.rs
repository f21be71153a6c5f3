//! The state in a plan file, from which an apply begins, beside the state before the plan.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read,
};

use crds::{
    Operation,
    apply_log::{
        address::quoted,
        state::{StateError, document},
    },
};
use serde::{Deserialize, Deserializer, de::IgnoredAny};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::{Checked, Refused, Unread};

pub(super) const STATE: &str = "tfstate";
/// The state before the refresh, which only `show` reads.
pub(super) const PRIOR: &str = "tfstate-prev";

/// Names of fields that are not compared. `Option` gives the values a size, as the lint on maps wants.
type Rest = BTreeMap<String, Option<IgnoredAny>>;

#[derive(Default, Deserialize)]
struct Document {
    version: u64,
    #[serde(default)]
    serial: u64,
    #[serde(default)]
    lineage: String,
    #[serde(default)]
    outputs: Option<BTreeMap<String, Output>>,
    #[serde(default)]
    resources: Option<Vec<Resource>>,
    #[serde(flatten)]
    rest: Rest,
}

#[derive(Deserialize)]
struct Output {
    value: Content,
    #[serde(rename = "type")]
    kind: Content,
    #[serde(flatten)]
    rest: Rest,
}

#[derive(Deserialize)]
struct Resource {
    #[serde(default)]
    module: String,
    mode: String,
    #[serde(rename = "type")]
    kind: String,
    name: String,
    #[serde(default)]
    instances: Vec<Instance>,
    #[serde(flatten)]
    rest: Rest,
}

#[derive(Deserialize)]
struct Instance {
    #[serde(default)]
    index_key: Option<Value>,
    #[serde(default)]
    deposed: String,
    #[serde(default)]
    status: String,
    #[serde(default)]
    schema_version: u64,
    #[serde(default)]
    attributes: Content,
    #[serde(default)]
    attributes_flat: Content,
    #[serde(flatten)]
    rest: Rest,
}

/// Digest of a value, without what is empty in it: another version of a provider adds attributes without a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Content([u8; 16]);

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Value::deserialize(from).map(Self::of)
    }
}

impl Content {
    pub(super) fn of(mut value: Value) -> Self {
        drop_empty(&mut value);
        let whole: [u8; 32] = Sha256::digest(value.to_string()).into();
        Self(std::array::from_fn(|at| whole[at]))
    }
}

fn drop_empty(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(drop_empty),
        Value::Object(values) => {
            values.values_mut().for_each(drop_empty);
            values.sort_keys();
            values.retain(|_, value| match value {
                Value::Null => false,
                Value::String(text) => !text.is_empty(),
                Value::Array(values) => !values.is_empty(),
                Value::Object(values) => !values.is_empty(),
                Value::Bool(_) | Value::Number(_) => true,
            });
        }
        _ => {}
    }
}

/// An object's address, and its key if it is deposed.
type Name = (String, String);

#[derive(Debug, PartialEq, Eq)]
struct Object {
    version: u64,
    tainted: bool,
    content: [Content; 2],
}

/// A state's managed objects and outputs.
#[derive(Debug, Default)]
pub(in crate::phases) struct State {
    pub(super) serial: u64,
    lineage: String,
    objects: BTreeMap<Name, Object>,
    outputs: BTreeMap<String, [Content; 2]>,
}

/// The changes of the state in the plan file that the tool's lists tell.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Previous addresses by the present one.
    pub(super) moved: BTreeMap<String, String>,
    /// Addresses of drift, by whether the object is gone.
    pub(super) drifted: BTreeSet<(String, bool)>,
    /// Objects that may be new in the state, since a line tells what becomes of them.
    pub(super) new: BTreeSet<Name>,
    pub(super) outputs: BTreeSet<String>,
}

/// Writes each character of an address as itself. The tools escape those that cannot be printed.
pub(super) fn canonical(address: &str) -> String {
    let (mut text, mut rest) = (String::new(), address);
    while let Some(at) = rest.find('\\') {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        let digits = match rest.as_bytes().get(1) {
            Some(b'u') => 4,
            Some(b'U') => 8,
            _ => 0,
        };
        let code = rest.get(2..2 + digits).filter(|_| digits > 0);
        let character = code.and_then(|code| char::from_u32(u32::from_str_radix(code, 16).ok()?));
        let length = if let Some(character) = character {
            text.push(character);
            2 + digits
        } else {
            let length = 1 + rest[1..].chars().next().map_or(0, char::len_utf8);
            text.push_str(&rest[..length]);
            length
        };
        rest = &rest[length..];
    }
    text + rest
}

/// The type in an address.
fn kind(address: &str) -> &str {
    let (_, rest) = super::super::plan_facts::modules(address);
    rest.split('.').next().unwrap_or_default()
}

impl State {
    /// Reads the output of `state pull`. An empty one is the state before the first apply.
    ///
    /// # Errors
    /// It is no state.
    pub(in crate::phases) fn pulled(from: std::fs::File) -> Result<Self, StateError> {
        let Some(document) = document::<Document>(from)? else {
            return Ok(Self::default());
        };
        Self::of(document).map_err(|why| StateError::Io(std::io::Error::other(why.0)))
    }

    /// Lineage and serial number; neither before the first apply.
    pub(in crate::phases) fn identity(&self) -> (Option<String>, Option<u64>) {
        let lineage = Some(&self.lineage).filter(|lineage| !lineage.is_empty());
        (lineage.cloned(), lineage.map(|_| self.serial))
    }

    pub(in crate::phases) fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    pub(super) fn kept(from: impl Read) -> Result<Self, Unread> {
        let document = serde_json::from_reader(from);
        Self::of(document.map_err(|error| Unread(format!("its state cannot be read: {error}")))?)
    }

    fn of(document: Document) -> Result<Self, Unread> {
        if document.version != 4 {
            return Err(Unread(format!(
                "its state has version {}, and this release reads 4",
                document.version
            )));
        }
        // The tools do not tell capitals from small letters here, and take the last of two fields.
        let is_plain = |rest: &Rest| {
            let mut letters = rest.keys().flat_map(|key| key.bytes());
            letters.all(|b| matches!(b, b'a'..=b'z' | b'_'))
        };
        let mut plain = is_plain(&document.rest);
        let mut state = Self {
            serial: document.serial,
            lineage: document.lineage,
            ..Self::default()
        };
        for (name, output) in document.outputs.unwrap_or_default() {
            plain &= is_plain(&output.rest);
            state.outputs.insert(name, [output.value, output.kind]);
        }
        for resource in document.resources.unwrap_or_default() {
            plain &= is_plain(&resource.rest);
            let dot = if resource.module.is_empty() { "" } else { "." };
            let stem = format!(
                "{}{dot}{}.{}",
                resource.module, resource.kind, resource.name
            );
            for instance in resource.instances {
                plain &= is_plain(&instance.rest);
                if resource.mode != "managed" {
                    continue;
                }
                let index = match &instance.index_key {
                    Some(Value::String(key)) => format!("[{}]", quoted(key)),
                    Some(Value::Number(number)) => format!("[{number}]"),
                    _ => String::new(),
                };
                let name = (canonical(&format!("{stem}{index}")), instance.deposed);
                let object = Object {
                    version: instance.schema_version,
                    tainted: instance.status == "tainted",
                    content: [instance.attributes, instance.attributes_flat],
                };
                if let Some((name, _)) = state.objects.insert(name.clone(), object).map(|_| name) {
                    return Err(Unread(format!("its state has {name} twice")));
                }
            }
        }
        if plain {
            Ok(state)
        } else {
            Err(Unread::of("its state has fields that no tool writes"))
        }
    }

    /// Compares the plan file's state with the one before the plan. Returns the objects that an apply would drop or change in the state
    /// and that no list of the tool tells, with how: the tools list no drift of deposed objects, nor any when they destroy.
    pub(super) fn compare(
        self,
        mut before: Self,
        told: &Told,
        operation: Operation,
    ) -> Checked<Vec<(String, &'static str)>> {
        // A backend without serial numbers has none in the plan file either.
        let numbered = self.serial != 0 || !self.lineage.is_empty();
        if numbered && self.serial != before.serial {
            return Err(Refused::Stale);
        }
        let differs = |what: String| Err(Refused::Contradicted(what));
        for name in self.outputs.keys().chain(before.outputs.keys()) {
            if self.outputs.get(name) != before.outputs.get(name) && !told.outputs.contains(name) {
                return differs(format!(
                    "a value of output.{name} that the state did not have, and no change of it"
                ));
            }
        }
        let mut untold = Vec::new();
        for ((address, deposed), object) in self.objects {
            let from = told.moved.get(&address).unwrap_or(&address);
            let Some(old) = before.objects.remove(&(from.clone(), deposed.clone())) else {
                if told.new.contains(&(address.clone(), deposed)) {
                    continue;
                }
                return differs(format!(
                    "{address} in its state, which was not in the state"
                ));
            };
            let comparable = old.version == object.version && kind(from) == kind(&address);
            if old != object && comparable && !told.drifted.contains(&(address.clone(), false)) {
                untold.push((address, "changed in the state"));
            }
        }
        for (address, deposed) in before.objects.into_keys() {
            let is_told = deposed.is_empty() && told.drifted.contains(&(address.clone(), true));
            match operation {
                _ if is_told => {}
                _ if !deposed.is_empty() => {
                    untold.push((address, "deposed object gone from the state"));
                }
                Operation::Destroy => untold.push((address, "gone from the state")),
                _ => {
                    return differs(format!(
                        "no {address} in its state, and no change or drift of it"
                    ));
                }
            }
        }
        Ok(untold)
    }
}
