//! Outputs of a state, and where they are published.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read,
};

use serde::{Deserialize, Serialize, de::IgnoredAny};
use serde_json::Value;

use crate::{
    OutputItem, OutputRef, Outputs, OutputsObject,
    apply_log::state::{StateError, document},
    text::clip,
};

/// The type of Secrets with published outputs.
pub const SECRET_TYPE: &str = "pawl.run/outputs";
/// Label of objects with published outputs; the value is `true`.
pub const LABEL: &str = "pawl.run/outputs";
/// Annotation of such an object: the `STACK/WORKSPACE` that the outputs come from.
pub const OF: &str = "pawl.run/outputs-of";
/// Annotation of such an object: the run that last published them.
pub const BY: &str = "pawl.run/outputs-by";

/// Maximum bytes of outputs in a request to the datastore, and of the outputs that a run reads.
pub const MAX_OUTPUTS: u64 = 2 << 20;
/// Maximum bytes of an object's data. The API server limits the whole object to 1 MiB.
const MAX_OBJECT: usize = 900_000;
/// Bounds of outputs in a status: number of values, characters of one value, bytes in total.
const SHOWN: (usize, usize, usize) = (32, 256, 4096);

/// The state format version of the tools.
const FORMAT: u64 = 4;

/// An output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// Its value.
    pub value: Value,
    /// Whether only readers of Secrets may see it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sensitive: bool,
}

/// The outputs of a state, with the state's identity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateOutputs {
    /// The state format version.
    #[serde(default)]
    version: u64,
    /// The tool's lineage: the id shared by all versions of one state.
    #[serde(default)]
    pub lineage: String,
    /// The tool's serial number of the state.
    #[serde(default)]
    pub serial: u64,
    /// By name.
    #[serde(default)]
    pub outputs: BTreeMap<String, Output>,
    /// Names of the outputs that the code declares; `None` where they are not known. A state has no output that is null.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub declared: Option<BTreeSet<String>>,
    #[serde(default, skip_serializing)]
    encrypted_data: Option<Ignored>,
}

/// A value that is skipped during deserialization.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ignored;

impl<'de> Deserialize<'de> for Ignored {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(from).map(|_| Self)
    }
}

impl StateOutputs {
    /// Reads the outputs from a state, as `state pull` prints it and a backend stores it. An empty input is the state
    /// before the first apply.
    ///
    /// # Errors
    /// When the input is not a readable state.
    pub fn read(from: impl Read) -> Result<Self, StateError> {
        let Some(found) = document::<Self>(from)? else {
            return Ok(Self {
                version: FORMAT,
                ..Self::default()
            });
        };
        match found.version {
            FORMAT => Ok(found),
            _ if found.encrypted_data.is_some() => Err(StateError::Encrypted),
            other => Err(StateError::Version(other)),
        }
    }

    /// Whether this is of no state: the datastore has the state, and is told only what the code declares.
    pub const fn is_of_no_state(&self) -> bool {
        self.version == 0
    }
}

/// The text of a value in an object and in a status: strings as they are, other values as JSON.
pub fn text(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

/// The keys and values of an object, and descriptions of the outputs that were left out.
pub fn data(
    found: &StateOutputs,
    object: &OutputsObject,
    takes_sensitive: bool,
) -> (BTreeMap<String, String>, Vec<String>) {
    let outputs = &found.outputs;
    let all: Vec<OutputItem>;
    let items = if object.items.is_empty() {
        let shown = outputs
            .iter()
            .filter(|(_, output)| takes_sensitive || !output.sensitive);
        all = shown
            .map(|(name, _)| OutputItem {
                output: name.clone(),
                key: None,
            })
            .collect();
        &all
    } else {
        &object.items
    };
    let (mut data, mut left, mut size) = (BTreeMap::new(), Vec::new(), 0);
    for item in items {
        let name = &item.output;
        let Some(output) = outputs.get(name) else {
            let why = match Missing::of(name, found.declared.as_ref()) {
                Missing::Null => "is null",
                Missing::Absent => "the stack does not have",
                _ => "is null or which the stack does not have",
            };
            left.push(format!("{name}, which {why}"));
            continue;
        };
        if output.sensitive && !takes_sensitive {
            left.push(format!("{name}, which is sensitive, from the ConfigMap"));
            continue;
        }
        // The tools allow letters of any language in names, Kubernetes keys do not.
        let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        if !item.key().bytes().all(legal) {
            left.push(format!("{name}, which is no key: give it one"));
            continue;
        }
        let value = text(&output.value);
        size += item.key().len() + value.len();
        if size > MAX_OBJECT {
            left.push(format!("{name}, for which {} has no room", object.name));
            size -= item.key().len() + value.len();
            continue;
        }
        data.insert(item.key().to_owned(), value);
    }
    (data, left)
}

/// The outputs that are published to some object and that others may read.
pub fn published(outputs: &BTreeMap<String, Output>, wanted: &Outputs) -> BTreeMap<String, Output> {
    let in_object = |object: &Option<OutputsObject>, name: &str, takes: bool| {
        object.as_ref().is_some_and(|object| {
            takes
                && (object.items.is_empty() || object.items.iter().any(|item| item.output == name))
        })
    };
    let chosen = |name: &str, output: &Output| {
        in_object(&wanted.config_map, name, !output.sensitive)
            || in_object(&wanted.secret, name, true)
    };
    outputs
        .iter()
        .filter(|(name, output)| chosen(name, output))
        .map(|(name, output)| (name.clone(), output.clone()))
        .collect()
}

/// The outputs for a status: those that are not sensitive and short enough, and the number of the others.
pub fn shown(outputs: &BTreeMap<String, Output>) -> (BTreeMap<String, String>, usize) {
    let (count, longest, bytes) = SHOWN;
    let (mut values, mut left, mut size) = (BTreeMap::new(), 0, 0);
    for (name, output) in outputs.iter().filter(|(_, output)| !output.sensitive) {
        let value = text(&output.value);
        let fits = values.len() < count
            && value.chars().count() <= longest
            && size + name.len() + value.len() <= bytes;
        if fits {
            size += name.len() + value.len();
            values.insert(name.clone(), value);
        } else {
            left += 1;
        }
    }
    (values, left)
}

/// The list of left-out outputs as the end of a sentence; empty when there are none.
pub fn left_out(left: &[String]) -> String {
    if left.is_empty() {
        String::new()
    } else {
        clip(&format!("; left out: {}", left.join("; ")), 300)
    }
}

/// An output that a run reads, with its current value in the datastore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// The reference.
    pub of: OutputRef,
    /// `None` when it is not published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Output>,
    /// Why it is not published.
    #[serde(default)]
    pub missing: Missing,
}

/// Why there is no output of a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Missing {
    /// The stack has published nothing.
    Unpublished,
    /// The stack does not have it.
    Absent,
    /// It is null.
    Null,
    /// The stack has it, and publishes it in no object.
    Withheld,
    /// Not known.
    #[default]
    #[serde(other)]
    Unknown,
}

impl Missing {
    /// Why a state has no output of a name, by the names that the code declares.
    pub fn of(name: &str, declared: Option<&BTreeSet<String>>) -> Self {
        match declared {
            None => Self::Unknown,
            Some(declared) if declared.contains(name) => Self::Null,
            Some(_) => Self::Absent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn outputs(of: &Value) -> BTreeMap<String, Output> {
        serde_json::from_value(of.clone()).unwrap()
    }

    fn some() -> BTreeMap<String, Output> {
        outputs(&json!({
            "id": {"value": "vpc-1", "type": "string"}, "zones": {"value": ["a", "b"], "type": ["list", "string"]},
            "password": {"value": "hunter22", "type": "string", "sensitive": true},
        }))
    }

    fn state(outputs: BTreeMap<String, Output>) -> StateOutputs {
        StateOutputs {
            outputs,
            ..StateOutputs::default()
        }
    }

    fn object(items: &[(&str, Option<&str>)]) -> OutputsObject {
        let items = items.iter().map(|(output, key)| OutputItem {
            output: (*output).into(),
            key: key.map(Into::into),
        });
        OutputsObject {
            name: "net".into(),
            items: items.collect(),
        }
    }

    #[test]
    fn only_outputs_are_read_from_a_state() {
        let state = json!({"version": 4, "serial": 7, "lineage": "l", "outputs": {"a": {"value": {"b": 1}, "type": ["object", {}]},
            "s": {"value": "x", "type": "string", "sensitive": true}}, "resources": [{"mode": "managed"}]});
        let read = StateOutputs::read(format!("a warning\n{state}\n").as_bytes()).unwrap();
        assert_eq!(
            (read.serial, read.lineage.as_str(), read.outputs.len()),
            (7, "l", 2)
        );
        assert!(read.outputs["s"].sensitive && read.outputs["a"].value == json!({"b": 1}));
        let sent = serde_json::to_vec(&read).unwrap();
        assert_eq!(
            StateOutputs::read(sent.as_slice()).unwrap(),
            read,
            "the agent sends what the datastore reads"
        );
        assert!(
            StateOutputs::read(b"".as_slice())
                .unwrap()
                .outputs
                .is_empty()
        );
        assert!(StateOutputs::read(br#"{"version": 3}"#.as_slice()).is_err());
        let sealed = StateOutputs::read(
            br#"{"serial": 1, "lineage": "l", "encrypted_data": "x"}"#.as_slice(),
        );
        assert!(matches!(sealed, Err(StateError::Encrypted)));
    }

    #[test]
    fn sensitive_outputs_are_written_to_secrets_only() {
        let (map, left) = data(&state(some()), &object(&[]), false);
        assert_eq!(
            (map, left.is_empty()),
            (
                [("id", "vpc-1"), ("zones", r#"["a","b"]"#)]
                    .map(|(k, v)| (k.into(), v.into()))
                    .into(),
                true
            )
        );
        let names = ["password", "gone", "none"];
        for (declared, gone, none) in [
            (
                None,
                "is null or which the stack does not have",
                "is null or which the stack does not have",
            ),
            (
                Some(["password", "gone"]),
                "is null",
                "the stack does not have",
            ),
        ] {
            let found = StateOutputs {
                declared: declared.map(|names| names.map(str::to_owned).into()),
                ..state(some())
            };
            let (map, left) = data(&found, &object(&names.map(|name| (name, None))), false);
            assert!(map.is_empty());
            assert_eq!(
                left_out(&left),
                format!(
                    "; left out: password, which is sensitive, from the ConfigMap; gone, which {gone}; none, which {none}"
                )
            );
        }
        let (secret, left) = data(
            &state(some()),
            &object(&[("password", Some("PGPASSWORD"))]),
            true,
        );
        assert_eq!(
            (secret["PGPASSWORD"].as_str(), left_out(&left)),
            ("hunter22", String::new())
        );
        assert_eq!(shown(&some()).0.keys().collect::<Vec<_>>(), ["id", "zones"]);
    }

    #[test]
    fn unpublished_outputs_cannot_be_taken() {
        let names = |config_map: Option<OutputsObject>, secret: Option<OutputsObject>| {
            let found = published(
                &some(),
                &Outputs {
                    config_map,
                    secret,
                    ..Outputs::default()
                },
            );
            found.into_keys().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(Some(object(&[])), None), "id zones");
        assert_eq!(
            names(Some(object(&[("id", None), ("password", None)])), None),
            "id"
        );
        assert_eq!(
            names(
                Some(object(&[("id", None)])),
                Some(object(&[("password", Some("x"))]))
            ),
            "id password"
        );
        assert_eq!(
            (
                names(None, Some(object(&[]))).as_str(),
                names(None, None).as_str()
            ),
            ("id password zones", "")
        );
    }

    #[test]
    fn long_values_are_left_out() {
        let large = |count: usize, length: usize| {
            (0..count)
                .map(|n| {
                    (
                        format!("o{n}"),
                        Output {
                            value: "x".repeat(length).into(),
                            sensitive: false,
                        },
                    )
                })
                .collect()
        };
        let (values, left) = shown(&large(40, 10));
        assert_eq!((values.len(), left), (32, 8));
        assert_eq!(
            (shown(&large(1, 257)).1, shown(&large(20, 256)).0.len()),
            (1, 15)
        );
        let (data, left) = data(&state(large(3, 400_000)), &object(&[]), false);
        assert_eq!(
            (data.len(), left),
            (2, vec!["o2, for which net has no room".to_owned()])
        );
        let (_, left) = super::data(&state(large(1, 1)), &object(&[("größe", None)]), false);
        assert_eq!(left.len(), 1);
    }
}
