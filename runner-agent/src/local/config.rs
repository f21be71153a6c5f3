//! Reads `pawl.yaml` beside the code: a TerraformRun without its source, which is the folder.

use std::{fs, io::ErrorKind, path::Path};

use anyhow::{Context as _, Result, bail};
use crds::TerraformRunSpec;
use serde_json::{Map, Value, json};

use crate::report::suggestion;

/// Its file name.
pub const FILE: &str = "pawl.yaml";

/// Maximum size in bytes: 1 MiB, more than an API server accepts.
const LARGEST: u64 = 1 << 20;

/// Fields that the file may set. The others apply to a cluster only, or the command line sets them.
const HERE: &str = "arguments, env, envFrom, files, hooks, parallelism, refresh, replace, targets, timeouts, tool, \
    variableFiles, variables, workspace";

/// The fields of the spec in the folder's file; empty without a file.
///
/// # Errors
/// The file is invalid; the error suggests a similar name if there is one. Nothing was started.
pub fn read(folder: &Path) -> Result<Map<String, Value>> {
    let path = folder.join(FILE);
    let text = match fs::metadata(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Map::new()),
        Ok(meta) if meta.len() > LARGEST => bail!(
            "{} is larger than {} MiB; nothing was changed",
            path.display(),
            LARGEST >> 20
        ),
        _ => fs::read_to_string(&path)
            .with_context(|| format!("{} cannot be read; nothing was changed", path.display()))?,
    };
    of(&text).with_context(|| format!("{}; nothing was changed", path.display()))
}

fn of(text: &str) -> Result<Map<String, Value>> {
    let run: Value = serde_saphyr::from_str(text).context("it is no YAML")?;
    if let Some(number) = leading_zero(text, &run) {
        bail!("{number} is a number, and loses its leading zero: write '{number}'");
    }
    let Value::Object(run) = run else {
        bail!("it is no TerraformRun")
    };
    let known = ["apiVersion", "kind", "metadata", "spec"];
    if let Some(name) = run.keys().find(|name| !known.contains(&name.as_str())) {
        bail!("{}", unknown(name, "", known));
    }
    for (field, wanted) in [
        ("apiVersion", "pawl.run/v1alpha1"),
        ("kind", "TerraformRun"),
    ] {
        if run.get(field).and_then(Value::as_str) != Some(wanted) {
            bail!("{field} is not {wanted}");
        }
    }
    let spec = match run.get("spec") {
        None | Some(Value::Null) => return Ok(Map::new()),
        Some(Value::Object(spec)) => spec.clone(),
        Some(_) => bail!("spec has no fields"),
    };
    let crd = crds::crd::terraform_run();
    check(
        "spec",
        &Value::Object(spec.clone()),
        &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"],
    )?;
    if let Some(name) = spec
        .keys()
        .find(|name| !HERE.split(", ").any(|here| here == *name))
    {
        let why = match name.as_str() {
            "source" => "the source is the folder that the file is in".to_owned(),
            "operation" => {
                "the command line selects it: runner-agent local plan, apply or destroy".to_owned()
            }
            "backend" => super::tool_options::BACKEND.to_owned(),
            _ => format!("it is of runs in a cluster; here are {HERE}"),
        };
        bail!("spec.{name} is not taken from this file: {why}");
    }
    for (name, value) in &spec {
        let alone = json!({"source": {}, name: value});
        if let Err(error) = serde_json::from_value::<TerraformRunSpec>(alone) {
            bail!("spec.{name}: {error}");
        }
    }
    Ok(spec)
}

/// A number that was written with leading zeros, such as the ID of an account. kubectl takes some of them for octal numbers.
fn leading_zero<'a>(text: &'a str, read: &Value) -> Option<&'a str> {
    let is_end = |c: char| c.is_whitespace() || ",]}:[{".contains(c);
    let mut words = text.split(is_end).filter(|word| {
        word.len() > 1 && word.starts_with('0') && word.bytes().all(|byte| byte.is_ascii_digit())
    });
    words.find(|word| {
        let at = word.as_ptr() as usize - text.as_ptr() as usize;
        let (before, after) = (&text[..at], &text[at + word.len()..]);
        // As text it is another value, unless it is part of one.
        let quoted = format!("{before}'{word}'{after}");
        let quoted = serde_saphyr::from_str(&quoted);
        quoted.is_ok_and(|quoted| holds_text(&quoted, word) && !holds_text(read, word))
    })
}

fn holds_text(value: &Value, text: &str) -> bool {
    match value {
        Value::String(value) => value == text,
        Value::Array(all) => all.iter().any(|value| holds_text(value, text)),
        Value::Object(all) => all.values().any(|value| holds_text(value, text)),
        _ => false,
    }
}

/// Validates a value against the schema of a run: field names, enum values, and bounds of numbers.
fn check(path: &str, value: &Value, schema: &Value) -> Result<()> {
    if let Some(wanted) = other_kind(value, schema) {
        bail!("{path} is {}; it is {wanted}", kind(value));
    }
    match value {
        _ if schema["x-kubernetes-preserve-unknown-fields"] == true => {}
        Value::Object(fields) => {
            let ways = schema["oneOf"].as_array();
            let ways: Vec<_> = ways
                .into_iter()
                .flatten()
                .filter_map(|way| way["required"][0].as_str())
                .collect();
            if !ways.is_empty() && ways.iter().filter(|way| fields.contains_key(**way)).count() != 1
            {
                bail!("{path} needs exactly one of {}", ways.join(" and "));
            }
            let known = schema["properties"].as_object();
            for (name, value) in fields {
                match known.and_then(|known| known.get(name)) {
                    Some(schema) => check(&format!("{path}.{name}"), value, schema)?,
                    None if schema["additionalProperties"].is_object() => {}
                    None => bail!(
                        "{}",
                        unknown(
                            name,
                            path,
                            known.into_iter().flatten().map(|(name, _)| name.as_str())
                        )
                    ),
                }
            }
        }
        Value::Array(items) => {
            // An API server refuses the second of two entries with the same keys.
            if let Some(keys) = schema["x-kubernetes-list-map-keys"].as_array() {
                let of = |item: &Value| -> Vec<Value> {
                    let keys = keys.iter().filter_map(Value::as_str);
                    keys.map(|key| item[key].clone()).collect()
                };
                let twice = items
                    .iter()
                    .enumerate()
                    .find(|(at, item)| items[..*at].iter().any(|before| of(before) == of(item)));
                if let Some((at, item)) = twice {
                    let name: Vec<_> = of(item).iter().map(Value::to_string).collect();
                    bail!("{path}[{at}] is a second entry for {}", name.join(", "));
                }
            }
            for (at, item) in items.iter().enumerate() {
                check(&format!("{path}[{at}]"), item, &schema["items"])?;
            }
        }
        Value::String(word) => {
            if let Some(words) = schema["enum"].as_array()
                && !words.iter().any(|known| known == word)
            {
                let all: Vec<_> = words.iter().filter_map(Value::as_str).collect();
                bail!("{path} is {word:?}; it is one of {}", all.join(", "));
            }
        }
        Value::Number(number) => {
            let number = number.as_f64().unwrap_or_default();
            let (least, most) = (schema["minimum"].as_f64(), schema["maximum"].as_f64());
            let most = most.filter(|most| number > *most);
            if let Some(bound) = least.filter(|least| number < *least) {
                bail!("{path} is {number}; it is at least {bound}");
            }
            if let Some(bound) = most {
                bail!("{path} is {number}; it is at most {bound}");
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
    Ok(())
}

/// A value's kind, in words.
const fn kind(value: &Value) -> &'static str {
    match value {
        Value::Object(_) => "a map",
        Value::Array(_) => "a list",
        Value::String(_) => "a text",
        Value::Number(_) => "a number",
        Value::Bool(_) => "true or false",
        Value::Null => "null",
    }
}

/// The kind that a schema wants, in words, if the value is of another.
fn other_kind(value: &Value, schema: &Value) -> Option<String> {
    let is = |wanted: &str| match value {
        Value::Object(_) => wanted == "object",
        Value::Array(_) => wanted == "array",
        Value::String(_) => wanted == "string",
        Value::Number(number) => wanted == "number" || wanted == "integer" && !number.is_f64(),
        Value::Bool(_) => wanted == "boolean",
        Value::Null => true,
    };
    let wanted = schema["type"].as_str().filter(|wanted| !is(wanted))?;
    let names = |schema: &Value| {
        let fields = schema["properties"].as_object();
        let names: Vec<_> = fields
            .into_iter()
            .flatten()
            .map(|(name, _)| name.as_str())
            .collect();
        names.join(", ")
    };
    Some(match wanted {
        "object" if schema["properties"].is_object() => {
            format!("a map with some of {}", names(schema))
        }
        "object" => "a map".to_owned(),
        "array" if schema["items"]["properties"].is_object() => {
            format!("a list of maps with some of {}", names(&schema["items"]))
        }
        "array" => "a list".to_owned(),
        "string" => "a text".to_owned(),
        "integer" => "a whole number".to_owned(),
        "boolean" => "true or false".to_owned(),
        _ => "a number".to_owned(),
    })
}

fn unknown<'a>(name: &str, path: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let at = if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    };
    format!("there is no field {at}{}", suggestion(name, known))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_of(spec: &str) -> Result<Map<String, Value>, String> {
        let text = format!("apiVersion: pawl.run/v1alpha1\nkind: TerraformRun\nspec:\n{spec}");
        of(&text).map_err(|error| format!("{error:#}"))
    }

    /// cloudposse/atmos #410.
    #[test]
    fn number_with_a_leading_zero_is_refused() {
        let value = |value: &str| {
            read_of(&format!(
                "  variables:\n    - {{name: a, value: {value}}}\n"
            ))
        };
        for number in ["08989", "0123", "[1, 012345678901]", "{zip: 08989}"] {
            let error = value(number).unwrap_err();
            assert!(
                error.contains("loses its leading zero: write '0"),
                "{number}: {error}"
            );
        }
        for text in [
            "'0123'",
            "0",
            "0.5",
            "0x1f",
            "10",
            "\"a 0123 b\"",
            "a0123",
            "2024-01-02",
        ] {
            assert!(value(text).is_ok(), "{text}: {:?}", value(text));
        }
        assert!(read_of("  variables:\n    - name: a\n      value: |\n        0123 b\n").is_ok());
    }

    #[test]
    fn folders_file_is_read_in_the_form_of_a_run() {
        let spec = read_of(
            "  variables:\n    - {name: zone, value: [1, {any: thing}]}\n  variableFiles:\n    - path: prod.tfvars\n  \
             env: [{name: A, value: b}]\n  targets: [a.b]\n  parallelism: 3\n  arguments: {plan: [-compact-warnings]}\n",
        );
        assert_eq!(spec.unwrap().len(), 6);
        assert!(
            of("apiVersion: pawl.run/v1alpha1\nkind: TerraformRun\n")
                .unwrap()
                .is_empty()
        );
        let dir = tempfile::tempdir().unwrap();
        assert!(read(dir.path()).unwrap().is_empty());
        fs::write(dir.path().join(FILE), "a: [").unwrap();
        let error = format!("{:#}", read(dir.path()).unwrap_err());
        assert!(
            error.contains("pawl.yaml; nothing was changed: it is no YAML"),
            "{error}"
        );
    }

    #[test]
    fn accepted_fields_are_fields_of_a_run() {
        let crd = crds::crd::terraform_run();
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
            ["properties"];
        assert!(HERE.split(", ").all(|name| schema.get(name).is_some()));
    }

    #[test]
    fn unknown_field_is_named_with_a_suggestion() {
        let rows = [
            (
                "  variablefiles: []\n",
                "there is no field spec.variableFiles (did you mean variableFiles?)",
            ),
            (
                "  target: []\n",
                "there is no field spec.target (did you mean targets?)",
            ),
            (
                "  files: [{path: a, inn: Home}]\n",
                "there is no field spec.files[0].inn (did you mean in?)",
            ),
            (
                "  files: [{path: a, in: Elsewhere}]\n",
                "spec.files[0].in is \"Elsewhere\"; it is one of Home, Source",
            ),
            (
                "  parallelism: 0\n",
                "spec.parallelism is 0; it is at least 1",
            ),
            (
                "  parallelism: many\n",
                "spec.parallelism is a text; it is a whole number",
            ),
            (
                "  tool: terraform\n",
                "spec.tool is a text; it is a map with some of name, version",
            ),
            (
                "  variables: {x: 1}\n",
                "spec.variables is a map; it is a list of maps with some of name, value, valueFrom",
            ),
            (
                "  variables: [{name: x}]\n",
                "spec.variables[0] needs exactly one of value and valueFrom",
            ),
            (
                "  env: [{name: A, value: b}, {name: B, value: b}, {name: A, value: c}]\n",
                "spec.env[2] is a second entry for \"A\"",
            ),
            (
                "  source: {inline: {files: {}}}\n",
                "spec.source is not taken from this file: the source is the folder",
            ),
            ("  operation: Destroy\n", "the command line selects it"),
            ("  backend: {type: s3}\n", "the backend is the code's"),
            (
                "  retry: {limit: 1}\n",
                "it is of runs in a cluster; here are arguments, env",
            ),
            ("  zzz: 1\n", "there is no field spec.zzz"),
        ];
        for (spec, said) in rows {
            let error = read_of(spec).unwrap_err();
            assert!(
                error.to_lowercase().starts_with(&said.to_lowercase()) || error.contains(said),
                "{spec}: {error}"
            );
        }
        for (text, said) in [
            (
                "kind: TerraformRun\nspec: {}\n",
                "apiVersion is not pawl.run/v1alpha1",
            ),
            (
                "apiVersion: pawl.run/v1alpha1\nkind: TerraformRunn\n",
                "kind is not TerraformRun",
            ),
            (
                "apiVersion: pawl.run/v1alpha1\nkind: TerraformRun\nspecs: {}\n",
                "there is no field specs (did you mean spec?)",
            ),
            ("[]", "it is no TerraformRun"),
        ] {
            assert!(
                format!("{:#}", of(text).unwrap_err()).contains(said),
                "{text}"
            );
        }
    }
}
