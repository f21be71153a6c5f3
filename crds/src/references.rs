//! The objects that a repository's defaults name in a layer's namespace. Each field of the API that names an object has a row in
//! `design/0004-approval-and-admission.md`, and a test compares the two.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::RunTemplate;

/// Fields of a run's spec by which a repository's defaults would name something in the namespace of a layer: its Secrets, ConfigMaps,
/// outputs and states (`stack`, `workspace`), and tokens of its account. Labels and annotations of a pod make an injector give it Secrets. The policy `pawl-repository` asks their writer for the right to them.
pub const IN_DEFAULTS: [&str; 10] = [
    "credentials",
    "files",
    "runner.annotations",
    "runner.imagePullSecrets",
    "runner.labels",
    "stack",
    "variableFiles[].configMapKeyRef",
    "variableFiles[].secretKeyRef",
    "variables[].valueFrom",
    "workspace",
];

/// Those of [`IN_DEFAULTS`] that `defaults` sets and `template` does not override.
pub fn named(defaults: &RunTemplate, template: &RunTemplate) -> BTreeSet<&'static str> {
    let mut found = BTreeSet::new();
    for (field, value) in &defaults.0 {
        walk(field, value, template.0.get(field), &mut found);
    }
    found
}

/// Merges as [`RunTemplate::over`] does, and looks at each value that is left of the defaults.
fn walk(path: &str, value: &Value, over: Option<&Value>, found: &mut BTreeSet<&'static str>) {
    match (value, over) {
        (Value::Object(parts), None | Some(Value::Object(_))) => {
            for (field, part) in parts {
                let over = over.and_then(|over| over.get(field));
                walk(&format!("{path}.{field}"), part, over, found);
            }
        }
        (_, Some(_)) => {}
        (Value::Array(items), None) => {
            for item in items {
                walk(&format!("{path}[]"), item, None, found);
            }
        }
        (_, None) => found.extend(field_of(path)),
    }
}

/// The field of [`IN_DEFAULTS`] that contains a path.
fn field_of(path: &str) -> Option<&'static str> {
    IN_DEFAULTS.into_iter().find(|field| {
        let rest = path.strip_prefix(field);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crd;

    #[test]
    fn defaults_name_what_the_template_leaves_to_them() {
        let of = |text: &str| serde_json::from_str::<RunTemplate>(text).unwrap();
        let key = r#"{"name": "db", "key": "k"}"#;
        let rows = [
            (r#"{"parallelism": 3, "tool": {"name": "OpenTofu"}, "runner": {"nodeSelector": {"stack": "x"}}}"#.to_owned(), "{}", ""),
            (r#"{"workspace": "w"}"#.into(), "{}", "workspace"),
            (r#"{"workspace": "w"}"#.into(), r#"{"workspace": "v"}"#, ""),
            // A value is not read, whatever it looks like.
            (format!(r#"{{"variables": [{{"name": "a", "value": {{"valueFrom": {key}}}}}]}}"#), "{}", ""),
            (r#"{"backend": {"type": "s3", "config": {"credentials": "x"}}, "variableFiles": [{"path": "a.tfvars"}]}"#.into(), "{}", ""),
            (format!(r#"{{"variables": [{{"name": "b", "value": 1}}, {{"name": "a", "valueFrom": {{"secretKeyRef": {key}}}}}]}}"#), "{}",
                "variables[].valueFrom"),
            (r#"{"variables": [{"name": "a", "valueFrom": {"outputOf": {"stack": "s", "name": "n"}}}]}"#.into(), "{}",
                "variables[].valueFrom"),
            (r#"{"variables": [{"name": "a", "valueFrom": {"outputOf": {"stack": "s", "name": "n"}}}]}"#.into(),
                r#"{"variables": []}"#, ""),
            (format!(r#"{{"variableFiles": [{{"configMapKeyRef": {key}}}]}}"#), r#"{"runner": {}}"#, "variableFiles[].configMapKeyRef"),
            (format!(r#"{{"files": [{{"path": "a", "secretKeyRef": {key}}}], "stack": "s"}}"#), "{}", "files stack"),
            (format!(r#"{{"files": [{{"path": "a", "secretKeyRef": {key}}}], "stack": "s"}}"#), r#"{"stack": "t"}"#, "files"),
            (r#"{"runner": {"imagePullSecrets": [{"name": "x"}]}}"#.into(), r#"{"runner": {"labels": {}}}"#, "runner.imagePullSecrets"),
            (r#"{"runner": {"labels": {"a": "b"}, "annotations": {"a": "b"}}}"#.into(), r#"{"runner": {"labels": {"a": "c"}}}"#, "runner.annotations"),
            (format!(r#"{{"credentials": {{"cliConfig": {{"secretKeyRef": {key}}}}}}}"#),
                r#"{"credentials": {"cliConfig": {"secretKeyRef": {"name": "own"}}}}"#, "credentials"),
            (format!(r#"{{"credentials": {{"cliConfig": {{"secretKeyRef": {key}}}}}}}"#),
                r#"{"credentials": {"cliConfig": {"secretKeyRef": {"name": "own", "key": "own"}}}}"#, ""),
            (r#"{"credentials": {"vault": {"address": "https://v"}}}"#.into(), r#"{"credentials": {"git": []}}"#, "credentials"),
        ];
        for (defaults, template, fields) in rows {
            let found: Vec<_> = named(&of(&defaults), &of(template)).into_iter().collect();
            assert_eq!(found.join(" "), fields, "{defaults} {template}");
        }
    }

    /// Whether a field names an object, by its name.
    fn looks(path: &str, field: &Value) -> bool {
        let name = path.rsplit('.').next().unwrap();
        ["Ref", "Secret", "Secrets", "Name"]
            .iter()
            .any(|end| name.ends_with(end))
            || ["outputOf", "repository", "fromRun", "stack", "workspace"].contains(&name)
            || path.starts_with("outputs.") && field["properties"]["name"].is_object()
    }

    /// Passes on every field below a schema with its path, but none below one that names an object.
    fn visit(path: &str, schema: &Value, to: &mut impl FnMut(&str, &Value)) {
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let path = if path.is_empty() {
                name.clone()
            } else {
                format!("{path}.{name}")
            };
            to(&path, field);
            if !looks(&path, field) && !crate::guide::FOREIGN.contains(&name.as_str()) {
                visit(&path, field, to);
                visit(&format!("{path}[]"), &field["items"], to);
            }
        }
    }

    /// Fields of runs, layers and repositories: those that name an object, and all.
    fn fields() -> (BTreeSet<String>, BTreeSet<String>) {
        let (mut naming, mut all) = (BTreeSet::new(), BTreeSet::new());
        for (kind, of) in [
            ("", crd::terraform_run()),
            ("layer: ", crd::terraform_layer()),
            ("repository: ", crd::terraform_repository()),
        ] {
            let spec =
                &of["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
            visit("", spec, &mut |path, field| {
                // Templates and defaults have the fields of a run.
                let of_run = ["template.", "defaults."]
                    .iter()
                    .find_map(|prefix| path.strip_prefix(prefix));
                let row = of_run.map_or_else(|| format!("{kind}{path}"), str::to_owned);
                if looks(path, field) {
                    naming.insert(row.clone());
                }
                all.insert(row);
            });
        }
        (naming, all)
    }

    /// A new field that names an object gets a row, which says who reads the object, where it goes, and who is asked.
    #[test]
    fn every_field_that_names_an_object_has_a_row() {
        let page = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../design/0004-approval-and-admission.md"
        );
        let page = std::fs::read_to_string(page).unwrap();
        let (_, table) = page.split_once("**Fields that name an object.**").unwrap();
        let cells = (table.lines().skip_while(|line| !line.starts_with("| `")))
            .take_while(|line| line.starts_with("| `"))
            .map(|line| line.split('|').nth(1).unwrap());
        let rows: BTreeSet<String> = cells
            .flat_map(|cell| {
                cell.split('`')
                    .skip(1)
                    .step_by(2)
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            })
            .collect();
        let (naming, all) = fields();
        let lacks: Vec<_> = naming.difference(&rows).collect();
        assert!(lacks.is_empty(), "no row in design/0004: {lacks:?}");
        let gone: Vec<_> = rows.difference(&all).collect();
        assert!(
            gone.is_empty(),
            "rows of design/0004 without a field: {gone:?}"
        );
    }

    #[test]
    fn every_naming_field_of_defaults_is_held_back() {
        let of = crd::terraform_repository();
        let spec = &of["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        let mut free = Vec::new();
        visit("", &spec["properties"]["defaults"], &mut |path, field| {
            let of_cluster = path.ends_with("ClassName");
            if looks(path, field) && !of_cluster && field_of(path).is_none() {
                free.push(path.to_owned());
            }
        });
        assert!(free.is_empty(), "{free:?}");
    }
}
