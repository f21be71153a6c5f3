//! The requirements of the code.

use tool_versions::{Defaults, Requested, Tool, decide, request::required::required};

use super::{
    By::{self, OpenTofu, Ours, Tenv, Terraform},
    tree::Tree,
};

/// Files of the stack, the tool, and its requirements; or a part of an error.
struct Row {
    by: By,
    tool: Tool,
    files: &'static [(&'static str, &'static str)],
    then: Result<&'static [&'static str], &'static str>,
}

const NONE: &[&str] = &[];
const V: &str = "terraform {\n  required_version = \">= 1.5\"\n}\n";

#[rustfmt::skip]
fn rows() -> Vec<Row> {
    let row = |by, tool, files, then| Row { by, tool, files, then };
    let (tofu, terraform) = (Tool::OpenTofu, Tool::Terraform);
    vec![
        row(Terraform, terraform, &[("main.tf", V)], Ok(&[">= 1.5 main.tf:2"])),
        row(OpenTofu, tofu, &[("main.tf", V)], Ok(&[">= 1.5 main.tf:2"])),
        row(Tenv, terraform, &[("a.tf", V), ("b.tf", "terraform { required_version = \"< 2\" }")], Ok(&[">= 1.5 a.tf:2", "< 2 b.tf:1"])),
        row(Terraform, terraform, &[("a.tf", "terraform { required_version = \">= 1\" }\nterraform {\n required_version = \"< 2\"\n}")], Ok(&[">= 1 a.tf:1", "< 2 a.tf:3"])),
        row(Terraform, terraform, &[("a.tf", "terraform {}\nvariable \"required_version\" {}\n# required_version = \"9\"\n")], Ok(NONE)),
        row(Terraform, terraform, &[("a.tf", "terraform {\n  backend \"local\" {}\n  required_providers {\n    a = { version = \"1\" }\n  }\n}")], Ok(NONE)),
        row(Terraform, terraform, &[("a.tf", "locals {\n  x = <<-EOT\n    terraform { required_version = \"9\" }\n  EOT\n}\n")], Ok(NONE)),
        row(Terraform, terraform, &[("a.tf.json", "{\"terraform\": {\"required_version\": \">= 1.5\"}}")], Ok(&[">= 1.5 a.tf.json:1"])),
        row(Terraform, terraform, &[("a.tf.json", "{\"terraform\": [\n{\"required_version\": \">= 1.5\"}, {}]}")], Ok(&[">= 1.5 a.tf.json:2"])),
        row(Terraform, terraform, &[("main.tofu", V)], Ok(NONE)),
        row(Terraform, terraform, &[("main.tofu.json", "{\"terraform\": {\"required_version\": \">= 1.5\"}}")], Ok(NONE)),
        row(OpenTofu, tofu, &[("main.tofu", V)], Ok(&[">= 1.5 main.tofu:2"])),
        row(OpenTofu, tofu, &[("main.tofu.json", "{\"terraform\": {\"required_version\": \">= 1.5\"}}")], Ok(&[">= 1.5 main.tofu.json:1"])),
        row(OpenTofu, tofu, &[("main.tofu", V), ("main.tf", "terraform { required_version = \"< 1\" }")], Ok(&[">= 1.5 main.tofu:2"])),
        row(OpenTofu, tofu, &[("main.tofu", V), ("other.tf", "terraform { required_version = \"< 2\" }")], Ok(&[">= 1.5 main.tofu:2", "< 2 other.tf:1"])),
        row(OpenTofu, tofu, &[("main.tofu.json", "{}"), ("main.tf.json", "{\"terraform\": {\"required_version\": \"< 1\"}}")], Ok(NONE)),
        row(Ours, tofu, &[("main.tofu.json", "{}"), ("main.tf", V)], Ok(&[">= 1.5 main.tf:2"])),
        row(Terraform, terraform, &[("a.tf", V), ("override.tf", "terraform { required_version = \"< 1\" }")], Ok(&["< 1 override.tf:1"])),
        row(Terraform, terraform, &[("a.tf", V), ("x_override.tf", "terraform { required_version = \"< 1\" }"), ("y_override.tf", "terraform { required_version = \"< 2\" }")], Ok(&["< 2 y_override.tf:1"])),
        row(Terraform, terraform, &[("a.tf", V), ("a.b_override.tf", "terraform { required_version = \"< 1\" }")], Ok(&["< 1 a.b_override.tf:1"])),
        row(Terraform, terraform, &[("a.tf", V), ("override.x.tf", "terraform { required_version = \"< 1\" }")], Ok(&[">= 1.5 a.tf:2", "< 1 override.x.tf:1"])),
        row(Terraform, terraform, &[("a.tf", "\u{feff}terraform {\n  required_version = \">= 1.5\"\n}\n")], Ok(&[">= 1.5 a.tf:2"])),
        row(OpenTofu, tofu, &[("a.tf", "terraform {\n  required_version = \">= 1.5.0-beta1\"\n}")], Ok(&[">= 1.5.0-beta1 a.tf:2"])),
        row(OpenTofu, tofu, &[("a.tofu", "terraform {\n  required_version = \">= 1.5.0-beta1\"\n}")], Err("a.tofu:2: `>= 1.5.0-beta1` names a prerelease")),
        row(Terraform, terraform, &[("a.tf", V), ("x_override.tf", "terraform {}")], Ok(&[">= 1.5 a.tf:2"])),
        row(Terraform, terraform, &[("a.tf", V), ("x_override.tf.json", "{\"terraform\": {\"required_version\": \"< 1\"}}")], Ok(&["< 1 x_override.tf.json:1"])),
        row(OpenTofu, tofu, &[("a.tf", V), ("b.tofu", "terraform { required_version = \"< 2\" }"), ("override.tf", "terraform { required_version = \"< 1\" }")], Ok(&["< 2 b.tofu:1", "< 1 override.tf:1"])),
        row(Terraform, terraform, &[(".a.tf", V), ("b.tf~", V), ("#c.tf#", V), ("d.txt", V), ("tf", V)], Ok(NONE)),
        row(Tenv, terraform, &[("modules/x/main.tf", V)], Ok(NONE)),
        row(Terraform, terraform, &[("a.tf/x", "")], Ok(NONE)),
        row(OpenTofu, tofu, &[("a.tofu", "language {\n  compatible_with {\n    opentofu = \">= 1.12\"\n  }\n}")], Ok(&[">= 1.12 a.tofu:3"])),
        row(OpenTofu, tofu, &[("a.tofu", "language {\n  compatible_with = {\n    opentofu = \">= 1.12\"\n  }\n}")], Ok(&[">= 1.12 a.tofu:2"])),
        row(OpenTofu, terraform, &[("a.tf", "language {\n  compatible_with {\n    opentofu = \">= 1.12\"\n  }\n}")], Ok(NONE)),
        row(OpenTofu, tofu, &[("a.tf", "language {\n  compatible_with {\n    terraform = \">= 1.5\"\n  }\n}")], Ok(NONE)),
        row(Ours, terraform, &[("a.tf", "terraform {\n  required_version = var.x\n}"), ("b.tf", V)], Ok(&[">= 1.5 b.tf:2"])),
        row(Ours, terraform, &[("a.tf", "resource \"x\" {\n"), ("b.tf", V)], Ok(&[">= 1.5 b.tf:2"])),
        row(Ours, terraform, &[("a.tf.json", "{"), ("b.tf", V)], Ok(&[">= 1.5 b.tf:2"])),
        row(Ours, Tool::Terragrunt, &[("a.tf", V)], Ok(NONE)),
        row(Terraform, terraform, &[("a.tf", "terraform {\n  required_version = \">= 1.5.0-beta1\"\n}")], Err("a.tf:2: `>= 1.5.0-beta1` names a prerelease")),
        row(Terraform, terraform, &[("a.tf", "terraform {\n  required_version = \"1.5.x\"\n}")], Err("a.tf:2: `1.5.x` is not a version constraint")),
    ]
}

#[test]
fn each_row() {
    for row in rows() {
        let tree = Tree::of("", row.files);
        let found = required(row.tool, &tree.stack, &tree.root, &mut Vec::new());
        let what = format!("{:?} for {}, by {:?}", row.files, row.tool, row.by);
        match (found, row.then) {
            (Ok(found), Ok(then)) => {
                let found: Vec<_> = found
                    .iter()
                    .map(|required| format!("{} {}", required.text, required.place))
                    .collect();
                assert_eq!(found, then, "{what}");
            }
            (Err(error), Err(part)) => assert!(error.text.contains(part), "{what}: {error}"),
            (found, _) => panic!("{what}: {found:?}"),
        }
    }
}

#[test]
fn unread_constraint_fails_no_version() {
    for text in [">= 1.5.0-beta1", "1.5.x"] {
        let code = format!("terraform {{\n  required_version = \"{text}\"\n}}\n");
        let tree = Tree::of("", &[("a.tf", &code)]);
        let of = |version: &str| {
            let requested = Requested {
                tool: Some(Tool::OpenTofu),
                version: Some(version.to_owned()),
                origin: "the test".to_owned(),
            };
            decide(&requested, &tree.stack, &tree.root, &Defaults::default())
        };
        assert!(of("1.12.6").is_ok(), "{text}");
        let error = of("1.10.6").unwrap_err();
        assert!(
            error.text.contains(&format!("a.tf:2): `{text}`")),
            "{error}"
        );
    }
}
