use super::*;
use std::collections::BTreeSet;

use crate::{crd, status_limit::fit};
use serde_json::json;

fn schema() -> Value {
    crd::terraform_run()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
        .clone()
}

/// A status with all fields, all too long; without those of other owners, whose lengths are bounded.
fn of_the_agent() -> TerraformRunStatus {
    let mut status: TerraformRunStatus = serde_json::from_value(too_long(&schema())).unwrap();
    clear(&mut status, |field| {
        matches!(
            field.owner,
            Owner::Controller | Owner::Adoption | Owner::Claim
        )
    });
    status
}

/// A value for a schema whose texts and lists exceed the bounds.
fn too_long(schema: &Value) -> Value {
    if let Some(word) = schema["enum"].get(0) {
        return word.clone();
    }
    match schema["type"].as_str() {
        Some("string") if schema["format"] == "date-time" => json!("2026-01-01T00:00:00Z"),
        Some("string") => json!("x".repeat(2_000)),
        Some("array") => vec![too_long(&schema["items"]); 100].into(),
        Some("object") => {
            let fields = schema["properties"].as_object().into_iter().flatten();
            fields
                .map(|(name, inner)| (name.clone(), too_long(inner)))
                .collect::<serde_json::Map<_, _>>()
                .into()
        }
        Some("boolean") => json!(true),
        _ => json!(1),
    }
}

/// Passes a value on with its path and schema, and each part of it. Items of a list have its path.
fn visit(path: &str, schema: &Value, value: &Value, to: &mut impl FnMut(&str, &Value, &Value)) {
    to(path, schema, value);
    match value {
        Value::Array(items) => items
            .iter()
            .for_each(|item| visit(path, &schema["items"], item, to)),
        Value::Object(fields) => {
            for (name, inner) in fields {
                visit(
                    format!("{path}.{name}").trim_start_matches('.'),
                    &schema["properties"][name],
                    inner,
                    to,
                );
            }
        }
        _ => {}
    }
}

#[test]
fn field_table_has_every_field_once() {
    let schema = schema();
    let mut of_type: Vec<_> = schema["properties"]
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    let mut listed: Vec<_> = FIELDS.iter().map(|field| field.name).collect();
    of_type.sort_unstable();
    listed.sort_unstable();
    assert_eq!(listed, of_type);
    // Each row copies the field that it names.
    let full: TerraformRunStatus = serde_json::from_value(too_long(&schema)).unwrap();
    for field in FIELDS {
        let mut one = TerraformRunStatus::default();
        copy(&full, &mut one, |other| other.name == field.name);
        let written = serde_json::to_value(&one).unwrap();
        assert_eq!(
            written.as_object().unwrap().keys().collect::<Vec<_>>(),
            [field.name]
        );
        assert_eq!(
            changes(&TerraformRunStatus::default(), &one),
            [(field.name, Some(written[field.name].clone()))]
        );
        assert_eq!(
            changes(&one, &TerraformRunStatus::default()),
            [(field.name, None)]
        );
        clear(&mut one, |other| other.name == field.name);
        assert_eq!(one, TerraformRunStatus::default());
    }
}

#[test]
fn policy_and_design_match_the_fields() {
    let read = |path: &str| {
        std::fs::read_to_string(format!("{}/../{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
    };
    for (path, text) in [(POLICY_PATH, policy()), (DESIGN_PATH, table())] {
        assert!(
            read(path).contains(&text),
            "{path}: run `cargo run --release --bin crdgen` and commit the result"
        );
    }
}

#[test]
fn texts_of_the_agent_are_clipped_to_the_schema() {
    let mut status = of_the_agent();
    fit(&mut status);
    // Digests, and words that the agent chooses.
    let chosen = "failure.reason plan.bundle plan.changesDigest plan.checksum plan.platform plan.revision plan.stateKey plan.summary steps.name";
    let mut found = BTreeSet::new();
    visit(
        "",
        &schema(),
        &serde_json::to_value(&status).unwrap(),
        &mut |path, schema, value| {
            let exceeds = |bound: &str, length: usize| {
                schema[bound]
                    .as_u64()
                    .is_some_and(|most| length as u64 > most)
            };
            let is_long = value
                .as_str()
                .is_some_and(|text| exceeds("maxLength", text.chars().count()))
                || value
                    .as_array()
                    .is_some_and(|items| exceeds("maxItems", items.len()));
            if is_long && !chosen.split(' ').any(|known| known == path) {
                found.insert(path.to_owned());
            }
        },
    );
    assert!(
        found.is_empty(),
        "{found:#?} are longer than the schema permits: their row in FIELDS has to name their texts"
    );
}

#[test]
fn unredacted_texts_are_listed() {
    let mut status = of_the_agent();
    texts(&mut status, |text, _, origin| {
        if origin == Printed {
            text.clear();
        }
    });
    let mut left = BTreeSet::new();
    visit(
        "",
        &Value::Null,
        &serde_json::to_value(&status).unwrap(),
        &mut |path, _, value| {
            if value.as_str().is_some_and(|text| text.starts_with('x')) {
                left.insert(path.to_owned());
            }
        },
    );
    let known = "advice failedHook.name failure.diagnostics.severity failure.reason nextStep outputs.reason plan.bundle plan.changesDigest plan.checksum plan.platform plan.revision \
                     plan.stateKey plan.summary plan.tool stateLock.created stateLock.id stateLock.operation stateLock.who steps.name";
    assert_eq!(left.into_iter().collect::<Vec<_>>().join(" "), known);
}
