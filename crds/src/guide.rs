//! Generates pages of the guide from the types: every field, and every reason with its next step.

use std::fmt::Write as _;

use serde_json::Value;

use crate::{
    crd,
    reason::{
        Reason,
        next_step::{self, Facts, Place},
    },
};

const HEAD: &str = "<!-- Generated from crds/src by `cargo run --release --bin crdgen`; `cargo ci` holds it equal. -->\n";

/// Kubernetes' own types. The guide does not expand them.
pub(crate) const FOREIGN: [&str; 5] = [
    "affinity",
    "tolerations",
    "topologySpreadConstraints",
    "resources",
    "conditions",
];

/// The page of all fields: `design/guide/fields.md`.
pub fn fields() -> String {
    let run = tables(
        "TerraformRun",
        "They never change once the run is created.",
        &crd::terraform_run(),
    );
    let repository = tables("TerraformRepository", "", &crd::terraform_repository());
    let layer = tables("TerraformLayer", "", &crd::terraform_layer());
    format!(
        "{HEAD}# Every field\n\n`kubectl explain terraformrun.spec` says the same in a terminal. `…[]` is one item of a list.\n\n\
         {run}\n{repository}\n{layer}"
    )
}

/// The tables of one kind. A template has the fields of a run, which are listed there.
fn tables(kind: &str, more: &str, crd: &Value) -> String {
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    let table = |name: &str| {
        let mut rows = "| field | type | meaning |\n|---|---|---|\n".to_owned();
        walk("", &schema[name], &mut rows);
        rows
    };
    let words = format!("You write these. {more}");
    format!(
        "## {kind}: spec\n\n{}\n\n{}\n## {kind}: status\n\nPawl writes these.\n\n{}",
        words.trim_end(),
        table("spec"),
        table("status"),
    )
}

/// Rows for the fields of an object, each followed by its nested fields.
fn walk(path: &str, object: &Value, rows: &mut String) {
    let required = object["required"].as_array().cloned().unwrap_or_default();
    for (name, field) in object["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        let mut kind = kind(field);
        if required.contains(&Value::from(name.as_str())) {
            kind += ", required";
        }
        let foreign = FOREIGN.contains(&name.as_str());
        let more = if foreign && name != "conditions" {
            " The same as in a Pod."
        } else {
            ""
        };
        let text = cell(field["description"].as_str().unwrap_or_default());
        // Writing to a String cannot fail.
        let _ = writeln!(rows, "| `{path}` | {kind} | {text}{more} |");
        let template = matches!(path.as_str(), "template" | "defaults");
        if !foreign && !template {
            walk(&path, field, rows);
            walk(&format!("{path}[]"), &field["items"], rows);
        }
    }
}

/// The type of a field as shown to readers.
fn kind(field: &Value) -> String {
    if let Some(words) = field["enum"].as_array() {
        let words: Vec<_> = words
            .iter()
            .filter_map(Value::as_str)
            .map(|word| format!("`{word}`"))
            .collect();
        return words.join(", ");
    }
    match field["type"].as_str() {
        Some("array") => format!("list of {}", kind(&field["items"])),
        Some("object") if field.get("additionalProperties").is_some() => "map".to_owned(),
        Some(kind) => kind.to_owned(),
        None => "any".to_owned(),
    }
}

/// Escapes a text for a table cell.
fn cell(text: &str) -> String {
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace('|', "\\|")
}

/// The page of all reasons: `design/guide/reasons.md`.
pub fn reasons() -> String {
    let facts = Facts {
        again: "run again".into(),
        logs: "read the log".into(),
        ..Facts::default()
    };
    let step = |reason: Reason, place| {
        if next_step::is_of(reason.as_str(), place) {
            cell(&next_step::next_step(reason.as_str(), place, &facts))
        } else {
            "–".to_owned()
        }
    };
    let mut failures = "| reason | meaning | next step in a cluster | next step on a laptop |\n|---|---|---|---|\n".to_owned();
    let mut others = "| reason | meaning |\n|---|---|\n".to_owned();
    for reason in Reason::ALL {
        let (reason, word, text) = (*reason, reason.as_str(), cell(reason.text()));
        // Writing to a String cannot fail.
        let _ = if next_step::is_of(reason.as_str(), Place::Cluster) {
            writeln!(
                failures,
                "| `{word}` | {text} | {} | {} |",
                step(reason, Place::Cluster),
                step(reason, Place::Laptop)
            )
        } else {
            writeln!(others, "| `{word}` | {text} |")
        };
    }
    format!(
        "{HEAD}# Every reason and its next step\n\nA run shows one of these words in `status.failure.reason`, in the column `REASON` of `kubectl get tfrun`, \
         in its conditions and in its Events.\n`status.nextStep` holds the one command to paste, with the names of your run, and `status.advice` what to do before it, or in its place: for a run that a layer made, a push or a field of `spec.template`. \
         Here `run again` stands for the line that asks for a fresh run of the same spec, and `read the log` for the line that shows the log.\n\n\
         ## Reasons why a run fails or is held up\n\n{failures}\n\
         ## Reasons of conditions\n\nNo run fails for one of these. The condition's message names the cause of the delay.\n\n{others}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn committed(name: &str) -> String {
        let path = format!("{}/../design/guide/{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).unwrap_or_default()
    }

    #[test]
    fn committed_pages_equal_the_generated_ones() {
        for (name, text) in [("fields.md", fields()), ("reasons.md", reasons())] {
            assert!(
                committed(name) == text,
                "run `cargo run --release --bin crdgen` and commit {name}"
            );
        }
    }

    #[test]
    fn every_reason_and_every_field_has_its_row() {
        let reasons = reasons();
        for word in Reason::ALL.iter().map(|reason| reason.as_str()) {
            assert_eq!(
                reasons.matches(&format!("| `{word}` | ")).count(),
                1,
                "{word}"
            );
        }
        let fields = fields();
        for field in [
            "source.git.url` | string, required",
            "operation` | `Plan`, `Apply`, `Destroy`, `RefreshOnly` ",
            "steps[].name",
            "approval.holdFor",
        ] {
            assert!(fields.contains(&format!("| `{field}")), "{field}");
        }
        for line in reasons
            .lines()
            .chain(fields.lines())
            .filter(|line| line.starts_with("| `"))
        {
            assert!(!line.contains("|  |"), "an empty cell: {line}");
        }
    }
}
