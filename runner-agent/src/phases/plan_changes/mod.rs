//! Makes the changes of a plan, without sensitive values, from `show -json` in one pass ([`crds::changes`]).
//!
//! Memory is bounded by one resource: long strings are cut, and of a resource that is larger than [`bounded::MOST`] the attributes are
//! left out.

mod bounded;
mod mask;

use std::{
    fmt,
    io::{self, Read, Write},
};

use crds::{
    Changes,
    changes::{Change, ChangeOf, Head},
};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;

use crate::report::redact::Redactor;
use bounded::{Cut, Limited};

#[derive(Deserialize)]
struct Resource {
    #[serde(default)]
    address: String,
    #[serde(default)]
    module_address: String,
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    deposed: String,
    #[serde(default)]
    previous_address: String,
    #[serde(default)]
    action_reason: String,
    #[serde(default)]
    change: Values,
    #[serde(default)]
    lifecycle_action_trigger: Option<Trigger>,
}

#[derive(Deserialize, Default)]
struct Trigger {
    #[serde(default)]
    triggering_resource_address: String,
}

/// The values of a change. The marks of sensitive values are `None` if the tool prints none: all is then sensitive.
#[derive(Deserialize, Default)]
struct Values {
    #[serde(default)]
    actions: Vec<String>,
    #[serde(default)]
    before: Limited,
    #[serde(default)]
    after: Limited,
    #[serde(default)]
    after_unknown: Limited,
    #[serde(default)]
    before_sensitive: Option<Limited>,
    #[serde(default)]
    after_sensitive: Option<Limited>,
    #[serde(default)]
    replace_paths: Limited,
    #[serde(default)]
    importing: Option<Importing>,
}

#[derive(Deserialize, Default)]
struct Importing {
    #[serde(default)]
    id: Option<String>,
}

/// Writes the changes of a plan as JSON lines.
///
/// # Errors
/// The JSON cannot be read, or the lines cannot be written.
pub(super) fn write(
    from: impl Read,
    counts: Changes,
    redactor: &Redactor,
    to: &mut impl Write,
) -> io::Result<()> {
    let mut out = Out { to, redactor };
    out.line(&Head { version: 1, counts })?;
    let mut deserializer =
        serde_json::Deserializer::from_reader(io::BufReader::new(Cut::new(from)));
    Top(&mut out).deserialize(&mut deserializer)?;
    Ok(deserializer.end()?)
}

struct Out<'a, W> {
    to: &'a mut W,
    redactor: &'a Redactor,
}

impl<W: Write> Out<'_, W> {
    fn line(&mut self, line: &impl serde::Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut *self.to, line)?;
        self.to.write_all(b"\n")
    }

    fn take(&mut self, of: ChangeOf, resource: Resource) -> io::Result<()> {
        let values = &resource.change;
        let is_idle = values.actions == ["no-op"]
            && values.importing.is_none()
            && resource.previous_address.is_empty();
        if is_idle {
            return Ok(());
        }
        let clean = |text: &str| self.redactor.redact(text).into_owned();
        let attributes = mask::attributes(values, self.redactor);
        let importing = values.importing.as_ref();
        let change = Change {
            of,
            address: clean(&resource.address),
            module: clean(&resource.module_address),
            kind: resource.kind,
            name: resource.name,
            deposed: resource.deposed,
            reason: resource.action_reason,
            replace_paths: match mask::cleaned(&values.replace_paths.value, self.redactor) {
                Value::Array(paths) => paths,
                _ => Vec::new(),
            },
            importing: importing.map(|it| clean(it.id.as_deref().unwrap_or_default())),
            previous_address: clean(&resource.previous_address),
            trigger: clean(
                resource
                    .lifecycle_action_trigger
                    .as_ref()
                    .map_or("", |by| &by.triggering_resource_address),
            ),
            cut: attributes.is_none(),
            attributes: attributes.unwrap_or_default(),
            actions: resource.change.actions,
        };
        self.line(&change)
    }
}

struct Top<'a, 'b, W>(&'a mut Out<'b, W>);
struct List<'a, 'b, W>(&'a mut Out<'b, W>, ChangeOf);
struct Outputs<'a, 'b, W>(&'a mut Out<'b, W>);

impl<'de, W: Write> DeserializeSeed<'de> for Top<'_, '_, W> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, W: Write> Visitor<'de> for Top<'_, '_, W> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a plan")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "resource_changes" => map.next_value_seed(List(self.0, ChangeOf::Resource))?,
                "resource_drift" => map.next_value_seed(List(self.0, ChangeOf::Drift))?,
                "action_invocations" => map.next_value_seed(List(self.0, ChangeOf::Action))?,
                "output_changes" => map.next_value_seed(Outputs(self.0))?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

impl<'de, W: Write> DeserializeSeed<'de> for List<'_, '_, W> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, W: Write> Visitor<'de> for List<'_, '_, W> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("changes of resources")
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(resource) = list.next_element()? {
            self.0.take(self.1, resource).map_err(A::Error::custom)?;
        }
        Ok(())
    }
}

impl<'de, W: Write> DeserializeSeed<'de> for Outputs<'_, '_, W> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, W: Write> Visitor<'de> for Outputs<'_, '_, W> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("changes of outputs")
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some((name, change)) = map.next_entry::<String, Values>()? {
            let resource = Resource {
                address: format!("output.{name}"),
                name,
                change,
                module_address: String::new(),
                kind: String::new(),
                deposed: String::new(),
                previous_address: String::new(),
                action_reason: String::new(),
                lifecycle_action_trigger: None,
            };
            self.0
                .take(ChangeOf::Output, resource)
                .map_err(A::Error::custom)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
