//! The objects of a state, as `state pull` prints it and a backend stores it: version 4 of the tools' format. Values
//! other than IDs are skipped during deserialization.

use std::io::{BufRead as _, Read};

use serde::{
    Deserialize,
    de::{DeserializeOwned, IgnoredAny},
};
use serde_json::Value;

use super::address::quoted;

/// An object in a state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Its address.
    pub address: String,
    /// Its ID, if it has one and it is a string.
    pub id: Option<String>,
    /// It was replaced and still has to be destroyed.
    pub deposed: bool,
    /// Its creation failed, and the next plan replaces it.
    pub tainted: bool,
}

/// The relevant content of a state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateFacts {
    /// The tool's serial number; `None` before the first state.
    pub serial: Option<u64>,
    /// The managed objects.
    pub objects: Vec<Recorded>,
}

/// Why a state is unreadable.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The input ends too early or its source fails.
    #[error("the state cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// The input is not JSON, or is truncated.
    #[error("the state cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    /// The tool encrypted the state.
    #[error("the state is encrypted by the tool")]
    Encrypted,
    /// The state has an unknown format version.
    #[error("the state is of format {0}, which is not known")]
    Version(u64),
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    version: Option<u64>,
    #[serde(default)]
    serial: Option<u64>,
    #[serde(default)]
    encrypted_data: Option<IgnoredAny>,
    #[serde(default)]
    resources: Option<Vec<Resource>>,
}

#[derive(Deserialize)]
struct Resource {
    #[serde(default)]
    module: String,
    #[serde(default)]
    mode: String,
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    instances: Vec<Instance>,
}

#[derive(Deserialize)]
struct Instance {
    #[serde(default)]
    index_key: Option<Value>,
    #[serde(default)]
    deposed: Option<String>,
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    attributes: Option<Attributes>,
    #[serde(default)]
    attributes_flat: Option<Attributes>,
}

#[derive(Deserialize)]
struct Attributes {
    #[serde(default)]
    id: Option<Value>,
}

/// Reads a state. An empty input is the state before the first apply.
///
/// # Errors
/// When the input is not a readable state.
pub fn read(from: impl Read) -> Result<StateFacts, StateError> {
    let Some(file) = document::<File>(from)? else {
        return Ok(StateFacts::default());
    };
    match file.version {
        Some(4) => {}
        _ if file.encrypted_data.is_some() => return Err(StateError::Encrypted),
        other => return Err(StateError::Version(other.unwrap_or_default())),
    }
    let resources = file.resources.unwrap_or_default();
    let managed = resources
        .into_iter()
        .filter(|resource| resource.mode == "managed");
    Ok(StateFacts {
        serial: file.serial,
        objects: managed.flat_map(objects).collect(),
    })
}

/// The JSON document in a text, after any other output of the tool; `None` when the text has none.
///
/// # Errors
/// When the document is truncated or not JSON.
pub fn document<T: DeserializeOwned>(from: impl Read) -> Result<Option<T>, StateError> {
    let mut from = std::io::BufReader::with_capacity(64 << 10, from);
    loop {
        let next = from.fill_buf()?;
        let Some(at) = next.iter().position(|b| *b == b'{') else {
            let length = next.len();
            if length == 0 {
                return Ok(None);
            }
            from.consume(length);
            continue;
        };
        from.consume(at);
        break;
    }
    let document = T::deserialize(&mut serde_json::Deserializer::from_reader(&mut from))?;
    // Drain the rest (at least a line feed), so that the writer does not get a broken pipe.
    std::io::copy(&mut from, &mut std::io::sink())?;
    Ok(Some(document))
}

fn objects(resource: Resource) -> impl Iterator<Item = Recorded> {
    let Resource {
        module,
        kind,
        name,
        instances,
        ..
    } = resource;
    let stem = if module.is_empty() {
        format!("{kind}.{name}")
    } else {
        format!("{module}.{kind}.{name}")
    };
    instances.into_iter().map(move |instance| {
        let index = match &instance.index_key {
            Some(Value::String(key)) => format!("[{}]", quoted(key)),
            Some(Value::Number(number)) => format!("[{number}]"),
            _ => String::new(),
        };
        let id = [instance.attributes, instance.attributes_flat]
            .into_iter()
            .flatten()
            .find_map(|attributes| attributes.id);
        Recorded {
            address: format!("{stem}{index}"),
            id: id.and_then(|id| id.as_str().map(str::to_owned)),
            deposed: instance.deposed.is_some_and(|key| !key.is_empty()),
            tainted: instance.status.as_deref() == Some("tainted"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn state_objects_have_the_tools_addresses() {
        let state = json!({"version": 4, "terraform_version": "1.10.6", "serial": 7, "lineage": "x", "outputs": {}, "resources": [
            {"mode": "managed", "type": "t", "name": "a", "provider": "p", "instances": [
                {"schema_version": 0, "attributes": {"id": "1", "x": {"deep": [1, 2]}}},
                {"deposed": "00000001", "attributes": {"id": "0"}}]},
            {"module": "module.m[\"k\"]", "mode": "managed", "type": "t", "name": "b", "instances": [
                {"index_key": 0, "attributes": {"id": "2"}}, {"index_key": "a\"${b}", "attributes": {"id": 3}}]},
            {"mode": "data", "type": "t", "name": "d", "instances": [{"attributes": {"id": "4"}}]},
            {"mode": "managed", "type": "t", "name": "old", "instances": [{"attributes_flat": {"id": "5"}}]},
        ], "check_results": null});
        let facts = read(state.to_string().as_bytes()).unwrap();
        assert_eq!(facts.serial, Some(7));
        let object = |address: &str, id: Option<&str>, deposed| Recorded {
            address: address.into(),
            id: id.map(Into::into),
            deposed,
            ..Recorded::default()
        };
        assert_eq!(
            facts.objects,
            [
                object("t.a", Some("1"), false),
                object("t.a", Some("0"), true),
                object("module.m[\"k\"].t.b[0]", Some("2"), false),
                object("module.m[\"k\"].t.b[\"a\\\"$${b}\"]", None, false),
                object("t.old", Some("5"), false),
            ]
        );
    }

    #[test]
    fn empty_input_is_an_empty_state_and_garbage_an_error() {
        assert_eq!(read(&b" \n"[..]).unwrap(), StateFacts::default());
        let warned = read(&b"\nWarning: old\n\n{\"version\":4,\"serial\":2}\n"[..]).unwrap();
        assert_eq!(
            warned,
            StateFacts {
                serial: Some(2),
                objects: Vec::new()
            }
        );
        assert!(matches!(
            read(&br#"{"meta":{},"encrypted_data":"x","encryption_version":"v0"}"#[..]),
            Err(StateError::Encrypted)
        ));
        assert!(matches!(
            read(&br#"{"version":3}"#[..]),
            Err(StateError::Version(3))
        ));
        assert!(matches!(
            read(&b"{\"version\":4,"[..]),
            Err(StateError::Json(_))
        ));
    }
}
