//! The decision: tool, version and reason.

use tool_versions::{Decision, Defaults, Requested, Result, Tool, Version, decide};

use super::{
    By::{self, OpenTofu, Ours, Tenv},
    tree::Tree,
};
use crate::table;

/// Files of the source (the stack is `a/b`), the request of the run, and the result: tool, request, reason; or a part of an error.
struct Row {
    by: By,
    files: &'static [(&'static str, &'static str)],
    requested: (Option<Tool>, Option<&'static str>),
    then: Result<(Tool, &'static str, &'static str), &'static str>,
}

const TOFU: Option<Tool> = Some(Tool::OpenTofu);
const TERRAFORM: Option<Tool> = Some(Tool::Terraform);
const TERRAGRUNT: Option<Tool> = Some(Tool::Terragrunt);

#[rustfmt::skip]
fn rows() -> Vec<Row> {
    let row = |by, files, requested, then| Row { by, files, requested, then };
    vec![
        // The tool without a request.
        row(Ours, &[], (None, None), Ok((Tool::OpenTofu, "latest", "the newest release"))),
        row(Tenv, &[("a/b/main.tf", "")], (None, None), Ok((Tool::OpenTofu, "latest", "the newest release"))),
        row(OpenTofu, &[("a/b/main.tofu", "")], (None, None), Ok((Tool::OpenTofu, "latest", "the newest release"))),
        row(OpenTofu, &[("a/b/x.tofu.json", "{}"), ("a/b/.terraform-version", "1.5.7")], (None, None), Ok((Tool::OpenTofu, "latest", "the newest release"))),
        row(Tenv, &[(".terraform-version", "1.5.7")], (None, None), Ok((Tool::Terraform, "1.5.7", "from .terraform-version:1"))),
        row(Tenv, &[(".opentofu-version", "1.9.0")], (None, None), Ok((Tool::OpenTofu, "1.9.0", "from .opentofu-version:1"))),
        row(Tenv, &[("a/b/.opentofu-version", "1.9.0"), ("a/b/.terraform-version", "1.5.7")], (None, None), Ok((Tool::OpenTofu, "1.9.0", "from a/b/.opentofu-version:1"))),
        row(Tenv, &[("a/b/.opentofu-version", "1.9.0"), (".terraform-version", "1.5.7")], (None, None), Ok((Tool::OpenTofu, "1.9.0", "from a/b/.opentofu-version:1"))),
        row(Ours, &[(".opentofu-version", "1.9.0"), ("a/.terraform-version", "1.5.7")], (None, None), Ok((Tool::Terraform, "1.5.7", "from a/.terraform-version:1"))),
        row(Tenv, &[("a/.tool-versions", "terraform 1.5.7\n")], (None, None), Ok((Tool::Terraform, "1.5.7", "from a/.tool-versions:1"))),
        row(Tenv, &[("a/.tool-versions", "terraform 1.5.7\nopentofu 1.9.1\n")], (None, None), Ok((Tool::OpenTofu, "1.9.1", "from a/.tool-versions:2"))),
        row(Tenv, &[("a/.tfswitchrc", "1.4.6")], (None, None), Ok((Tool::Terraform, "1.4.6", "from a/.tfswitchrc:1"))),
        row(Ours, &[("root.hcl", "terraform_version_constraint = \"~> 1.8\"")], (None, None), Ok((Tool::OpenTofu, "~> 1.8", "from root.hcl:1"))),
        row(Tenv, &[("a/b/terragrunt.hcl", "")], (None, None), Ok((Tool::Terragrunt, "latest", "the newest release"))),
        row(Ours, &[("a/b/terragrunt.stack.hcl", "")], (None, None), Ok((Tool::Terragrunt, "latest", "the newest release"))),
        row(Ours, &[("terragrunt.hcl", "")], (None, None), Ok((Tool::OpenTofu, "latest", "the newest release"))),
        row(Ours, &[("a/b/.terragrunt-version", "0.99.1")], (None, None), Ok((Tool::OpenTofu, "latest", "the newest release"))),
        row(Ours, &[("a/.tfswitch.toml", "bin = \"/x\"\nversion = \"1.5.7\"\n")], (None, None), Ok((Tool::Terraform, "1.5.7", "from a/.tfswitch.toml:2"))),
        row(Ours, &[("a/.tfswitch.toml", "product = \"opentofu\"\nversion = \"1.9.0\"\n")], (None, None), Ok((Tool::OpenTofu, "1.9.0", "from a/.tfswitch.toml:2"))),
        row(Ours, &[("a/.tfswitch.toml", "bin = \"/x\"\n")], (None, None), Ok((Tool::OpenTofu, "latest", "the newest release"))),
        row(Ours, &[("a/b/.terraform.lock.hcl", "# x\n\nprovider \"registry.terraform.io/hashicorp/aws\" {\n}\n")], (None, None), Ok((Tool::Terraform, "latest", "the newest release"))),
        row(Ours, &[("a/b/.terraform.lock.hcl", "provider \"registry.terraform.io/a/b\" {\n}\nprovider \"registry.opentofu.org/a/b\" {\n}\n")], (None, None), Ok((Tool::OpenTofu, "latest", "the newest release"))),
        row(Ours, &[("a/b/.terraform.lock.hcl", "provider \"registry.terraform.io/a/b\" {\n}\n"), (".opentofu-version", "1.9.0")], (None, None), Ok((Tool::OpenTofu, "1.9.0", "from .opentofu-version:1"))),
        row(Ours, &[("a/.terraform.lock.hcl", "provider \"registry.terraform.io/a/b\" {\n}\n")], (None, None), Ok((Tool::OpenTofu, "latest", "the newest release"))),
        row(Ours, &[("a/b/main.tf", "terraform {\n  required_version = \"~> 1.5.0\"\n}")], (None, None), Ok((Tool::Terraform, "latest-allowed", "the newest that a/b/main.tf:2 allows"))),
        row(Ours, &[("a/b/a.tf", "terraform { required_version = \">= 1.3\" }"), ("a/b/b.tf", "terraform { required_version = \"< 1.6\" }")], (None, None), Ok((Tool::Terraform, "latest-allowed", "the newest that a/b/a.tf:1 allows"))),
        row(Ours, &[("a/b/main.tf", "terraform { required_version = \"~> 1.5.0\" }"), ("a/b/.terraform.lock.hcl", "provider \"registry.opentofu.org/a/b\" {\n}\n")], (None, None), Ok((Tool::OpenTofu, "latest-allowed", "the newest that a/b/main.tf:1 allows"))),
        row(Ours, &[("a/b/main.tf", "terraform { required_version = \"~> 1.5.0\" }"), ("a/b/x.tf", "language {\n  compatible_with {\n    opentofu = \">= 1.12\"\n  }\n}\n")], (None, None), Ok((Tool::OpenTofu, "latest-allowed", "the newest that a/b/main.tf:1 allows"))),
        // OpenTofu reads required_version in .tofu files only since 1.12.
        row(OpenTofu, &[("a/b/main.tf", "terraform { required_version = \"~> 1.5.0\" }")], (TOFU, Some("1.12.6")), Ok((Tool::OpenTofu, "1.12.6", "from spec.tool"))),
        row(OpenTofu, &[("a/b/main.tf", "terraform { required_version = \"~> 1.5.0\" }")], (TOFU, Some("1.12.0-beta1")), Ok((Tool::OpenTofu, "1.12.0-beta1", "from spec.tool"))),
        row(OpenTofu, &[("a/b/main.tf", "terraform { required_version = \"~> 1.5.0\" }")], (TOFU, Some("1.11.6")), Err("OpenTofu 1.11.6 (from spec.tool) is not what the code requires: `~> 1.5.0` (a/b/main.tf:1)")),
        row(OpenTofu, &[("a/b/main.tofu", "terraform { required_version = \"~> 1.10.0\" }")], (TOFU, Some("1.12.6")), Err("is not what the code requires: `~> 1.10.0` (a/b/main.tofu:1)")),
        row(OpenTofu, &[("a/b/main.tofu", "terraform { required_version = \"~> 1.10.0\" }"), ("a/b/override.tf", "terraform { required_version = \">= 1.5\" }")], (TOFU, Some("1.12.6")), Err("is not what the code requires: `~> 1.10.0` (a/b/main.tofu:1)")),
        row(OpenTofu, &[("a/b/main.tofu", "terraform { required_version = \"~> 1.10.0\" }"), ("a/b/override.tf", "terraform { required_version = \">= 1.5\" }")], (TOFU, Some("1.9.4")), Ok((Tool::OpenTofu, "1.9.4", "from spec.tool"))),
        row(OpenTofu, &[("a/b/x.tf", "language {\n  compatible_with {\n    opentofu = \">= 1.9\"\n  }\n}\n")], (TOFU, Some("1.11.6")), Err("OpenTofu 1.11.6 (from spec.tool) is not what the code requires: `>= 1.9` (a/b/x.tf:3)")),
        // The run comes first.
        row(Ours, &[("a/b/.opentofu-version", "1.9.0")], (None, Some("1.10.6")), Ok((Tool::OpenTofu, "1.10.6", "from spec.tool"))),
        row(Ours, &[("a/b/.opentofu-version", "1.9.0")], (TERRAFORM, None), Ok((Tool::Terraform, "latest", "the newest release"))),
        row(Ours, &[("a/b/.terraform-version", "1.5.7")], (TERRAFORM, Some("~> 1.8")), Ok((Tool::Terraform, "~> 1.8", "from spec.tool"))),
        row(Ours, &[("a/b/terragrunt.hcl", "")], (TOFU, None), Ok((Tool::OpenTofu, "latest", "the newest release"))),
        row(Ours, &[], (TERRAGRUNT, Some("0.99.1")), Ok((Tool::Terragrunt, "0.99.1", "from spec.tool"))),
        // Files by directory, then by kind.
        row(Tenv, &[("a/.terraform-version", "1.1.0"), ("a/b/.tfswitchrc", "1.2.0")], (TERRAFORM, None), Ok((Tool::Terraform, "1.2.0", "from a/b/.tfswitchrc:1"))),
        row(Tenv, &[("a/.terraform-version", "1.1.0"), (".terraform-version", "1.2.0")], (TERRAFORM, None), Ok((Tool::Terraform, "1.1.0", "from a/.terraform-version:1"))),
        row(Tenv, &[("a/b/.terraform-version", "1.1.0"), ("a/b/.tfswitchrc", "1.2.0"), ("a/b/.tool-versions", "terraform 1.3.0")], (TERRAFORM, None), Ok((Tool::Terraform, "1.1.0", "from a/b/.terraform-version:1"))),
        row(Tenv, &[("a/b/.tfswitchrc", "1.2.0"), ("a/b/.tool-versions", "terraform 1.3.0")], (TERRAFORM, None), Ok((Tool::Terraform, "1.2.0", "from a/b/.tfswitchrc:1"))),
        row(Tenv, &[("a/b/.tool-versions", "terraform 1.3.0"), ("a/b/terragrunt.hcl", "terraform_version_constraint = \"1.4.0\"")], (TERRAFORM, None), Ok((Tool::Terraform, "1.3.0", "from a/b/.tool-versions:1"))),
        row(Tenv, &[("a/b/terragrunt.hcl", "terraform_version_constraint = \"1.4.0\""), ("a/b/terragrunt.hcl.json", "{\"terraform_version_constraint\": \"1.5.0\"}")], (TERRAFORM, None), Ok((Tool::Terraform, "1.4.0", "from a/b/terragrunt.hcl:1"))),
        row(Tenv, &[("a/b/terragrunt.hcl.json", "{\n \"terraform_version_constraint\": \"1.5.0\"}"), ("a/b/root.hcl", "terraform_version_constraint = \"1.6.0\"")], (TERRAFORM, None), Ok((Tool::Terraform, "1.5.0", "from a/b/terragrunt.hcl.json:2"))),
        row(Tenv, &[("a/b/root.hcl", "\n\nterraform_version_constraint = \"1.6.0\""), ("a/b/root.hcl.json", "{\"terraform_version_constraint\": \"1.7.0\"}")], (TERRAFORM, None), Ok((Tool::Terraform, "1.6.0", "from a/b/root.hcl:3"))),
        row(Tenv, &[("root.hcl.json", "{\"terraform_version_constraint\": \"1.7.0\"}")], (TERRAFORM, None), Ok((Tool::Terraform, "1.7.0", "from root.hcl.json:1"))),
        row(Tenv, &[("a/b/.opentofu-version", "1.9.0"), ("a/b/.tool-versions", "opentofu 1.8.0")], (TOFU, None), Ok((Tool::OpenTofu, "1.9.0", "from a/b/.opentofu-version:1"))),
        row(Tenv, &[("a/b/.tool-versions", "opentofu 1.8.0"), ("a/b/terragrunt.hcl", "terraform_version_constraint = \"1.7.0\"")], (TOFU, None), Ok((Tool::OpenTofu, "1.8.0", "from a/b/.tool-versions:1"))),
        row(Tenv, &[("a/b/terragrunt.hcl", "terraform_version_constraint = \">= 1.7\"")], (TOFU, None), Ok((Tool::OpenTofu, ">= 1.7", "from a/b/terragrunt.hcl:1"))),
        row(Tenv, &[("a/b/.tool-versions", "tofu 1.8.0")], (TOFU, None), Ok((Tool::OpenTofu, "latest", "the newest release"))),
        row(Tenv, &[("a/b/.terraform-version", "1.5.7")], (TOFU, None), Ok((Tool::OpenTofu, "latest", "the newest release"))),
        row(Tenv, &[("a/b/.terragrunt-version", "0.99.1"), ("a/b/.tgswitchrc", "0.98.0")], (TERRAGRUNT, None), Ok((Tool::Terragrunt, "0.99.1", "from a/b/.terragrunt-version:1"))),
        row(Tenv, &[("a/b/.tgswitchrc", "0.98.0"), ("a/b/.tgswitch.toml", "version = \"0.97.0\"")], (TERRAGRUNT, None), Ok((Tool::Terragrunt, "0.98.0", "from a/b/.tgswitchrc:1"))),
        row(Tenv, &[("a/b/.tgswitch.toml", "bin = \"/x\"\nversion = \"0.97.0\" # new\n"), ("a/b/.tool-versions", "terragrunt 0.96.0")], (TERRAGRUNT, None), Ok((Tool::Terragrunt, "0.97.0", "from a/b/.tgswitch.toml:2"))),
        row(Tenv, &[("a/b/.tool-versions", "terragrunt 0.96.0"), ("a/b/terragrunt.hcl", "terragrunt_version_constraint = \"~> 0.95\"")], (TERRAGRUNT, None), Ok((Tool::Terragrunt, "0.96.0", "from a/b/.tool-versions:1"))),
        row(Tenv, &[("a/b/terragrunt.hcl", ""), ("root.hcl", "terragrunt_version_constraint = \"~> 0.95\"\nterraform_version_constraint = \"1.5.0\"")], (None, None), Ok((Tool::Terragrunt, "~> 0.95", "from root.hcl:1"))),
        row(Ours, &[("a/b/.tgswitch.toml", "[x]\nversion = \"0.97.0\"\n")], (TERRAGRUNT, None), Ok((Tool::Terragrunt, "latest", "the newest release"))),
        // The content of files.
        row(Tenv, &[("a/b/.terraform-version", "  1.5.7  \n\n")], (None, None), Ok((Tool::Terraform, "1.5.7", "from a/b/.terraform-version:1"))),
        row(Ours, &[("a/b/.terraform-version", "# why\n\n 1.5.7 # until June\n1.6.0\n")], (None, None), Ok((Tool::Terraform, "1.5.7", "from a/b/.terraform-version:3"))),
        row(Ours, &[("a/b/.terraform-version", "\u{feff}1.5.7\r\n")], (None, None), Ok((Tool::Terraform, "1.5.7", "from a/b/.terraform-version:1"))),
        row(Tenv, &[("a/b/.terraform-version", "\n"), ("a/.terraform-version", "1.5.7")], (None, None), Ok((Tool::Terraform, "1.5.7", "from a/.terraform-version:1"))),
        row(Tenv, &[("a/b/.tool-versions", "# terraform 1.1.0\nterraform 1.2.0 1.3.0\n")], (None, None), Ok((Tool::Terraform, "1.2.0", "from a/b/.tool-versions:2"))),
        row(Tenv, &[("a/b/.tool-versions", "terraform 1.2.0\nterraform 1.3.0\n")], (None, None), Ok((Tool::Terraform, "1.3.0", "from a/b/.tool-versions:2"))),
        row(Tenv, &[("a/b/.tool-versions", "terraform 1.5.7#c\n")], (None, None), Ok((Tool::Terraform, "1.5.7", "from a/b/.tool-versions:1"))),
        row(Ours, &[("a/b/.tool-versions", "terraform system\n"), (".terraform-version", "1.1.0")], (None, None), Ok((Tool::Terraform, "1.1.0", "from .terraform-version:1"))),
        row(Tenv, &[("a/b/terragrunt.hcl", "terraform_version_constraint = local.v\nlocals { v = \"1.5.0\" }"), ("a/root.hcl", "terraform_version_constraint = \"1.6.0\"")], (TERRAFORM, None), Ok((Tool::Terraform, "1.6.0", "from a/root.hcl:1"))),
        row(Ours, &[("a/b/terragrunt.hcl", "this is { no HCL"), ("a/b/root.hcl", "terraform_version_constraint = \"1.6.0\"")], (TERRAFORM, None), Ok((Tool::Terraform, "1.6.0", "from a/b/root.hcl:1"))),
        row(Tenv, &[("a/b/.terraform-version", "latest")], (None, None), Ok((Tool::Terraform, "latest", "from a/b/.terraform-version:1"))),
        row(Tenv, &[("a/b/.terraform-version", "latest:^1\\.5")], (None, None), Ok((Tool::Terraform, "latest:^1\\.5", "from a/b/.terraform-version:1"))),
        row(Ours, &[("../.terraform-version", "1.0.0")], (None, None), Ok((Tool::OpenTofu, "latest", "the newest release"))),
        row(Ours, &[("a/b/.terraform-version/x", "")], (None, None), Ok((Tool::OpenTofu, "latest", "the newest release"))),
        // required_version comes after files, and always holds.
        row(Ours, &[("a/b/main.tf", "terraform {\n  required_version = \">= 1.5\"\n}")], (None, None), Ok((Tool::OpenTofu, "latest-allowed", "the newest that a/b/main.tf:2 allows"))),
        row(Tenv, &[("a/b/main.tf", "terraform {\n  required_version = \">= 1.5\"\n}"), (".terraform-version", "1.5.7")], (None, None), Ok((Tool::Terraform, "1.5.7", "from .terraform-version:1"))),
        row(Ours, &[("a/main.tf", "terraform {\n  required_version = \">= 1.5\"\n}")], (None, None), Ok((Tool::OpenTofu, "latest", "the newest release"))),
        row(Ours, &[("a/b/main.tf", "terraform {\n  required_version = \">= 1.6\"\n}"), (".terraform-version", "\n1.5.7")], (None, None), Err("Terraform 1.5.7 (from .terraform-version:2) is not what the code requires: `>= 1.6` (a/b/main.tf:2)")),
        row(Ours, &[("a/b/main.tf", "terraform {\n  required_version = \">= 1.6\"\n}")], (TOFU, Some("1.5.7")), Err("OpenTofu 1.5.7 (from spec.tool) is not what the code requires: `>= 1.6` (a/b/main.tf:2)")),
        row(Ours, &[("a/b/.terraform-version", "1.5.x")], (None, None), Err("Terraform, from a/b/.terraform-version:1: `1.5.x` is not a version constraint")),
        row(Ours, &[], (TOFU, Some("newest")), Err("OpenTofu, from spec.tool: `newest` is no version")),
    ]
}

/// Decides for files of the source, with the stack `a/b`.
fn decided(
    files: &[(&str, &str)],
    tool: Option<Tool>,
    version: Option<&str>,
    defaults: &Defaults,
) -> Result<Decision> {
    let tree = Tree::of("a/b", files);
    let requested = Requested {
        tool,
        version: version.map(str::to_owned),
        origin: "spec.tool".into(),
    };
    decide(&requested, &tree.stack, &tree.root, defaults)
}

fn plainly(files: &[(&str, &str)], tool: Option<Tool>) -> Decision {
    decided(files, tool, None, &Defaults::default()).unwrap()
}

#[test]
fn each_row() {
    for Row {
        by,
        files,
        requested,
        then,
    } in rows()
    {
        let what = format!("{files:?} {requested:?}, by {by:?}");
        match (
            decided(files, requested.0, requested.1, &Defaults::default()),
            then,
        ) {
            (Ok(found), Ok(then)) => assert_eq!(
                (
                    found.tool,
                    found.asked.as_str(),
                    found.why.exactly().as_str()
                ),
                then,
                "{what}"
            ),
            (Err(error), Err(part)) => assert!(error.text.contains(part), "{what}: {error}"),
            (found, _) => panic!("{what}: {found:?}"),
        }
    }
}

#[test]
fn default_comes_before_the_newest() {
    let defaults = Defaults {
        tool: Tool::Terraform,
        versions: vec![(Tool::Terraform, "~> 1.9".into(), "the chart".into())],
    };
    let main = "terraform {\nrequired_version = \"< 1.8\"\n}";
    for (files, tool, asked, why) in [
        (
            vec![],
            Tool::Terraform,
            "~> 1.9",
            "the default of the chart",
        ),
        (
            vec![("a/b/x.tofu", "")],
            Tool::OpenTofu,
            "latest",
            "the newest release",
        ),
        (
            vec![("a/b/main.tf", main)],
            Tool::Terraform,
            "latest-allowed",
            "the newest that a/b/main.tf allows",
        ),
    ] {
        let found = decided(&files, None, None, &defaults).unwrap();
        assert_eq!(
            (
                found.tool,
                found.asked.as_str(),
                found.why.to_string().as_str()
            ),
            (tool, asked, why)
        );
    }
}

#[test]
fn tool_beneath_terragrunt_is_decided_too() {
    let found = plainly(
        &[
            (
                "a/b/terragrunt.hcl",
                "include \"root\" {\n  path = find_in_parent_folders(\"root.hcl\")\n}\n",
            ),
            (
                "root.hcl",
                "terragrunt_version_constraint = \"~> 0.99\"\nterraform_version_constraint = \">= 1.8\"\n",
            ),
            (".terraform-version", "1.8.5"),
        ],
        None,
    );
    assert_eq!(
        (found.tool, found.asked.as_str()),
        (Tool::Terragrunt, "~> 0.99")
    );
    let beneath = found.beneath.unwrap();
    let why = beneath.why.to_string();
    assert_eq!(
        (beneath.tool, beneath.asked.as_str(), why.as_str()),
        (Tool::Terraform, "1.8.5", "from .terraform-version")
    );
}

#[test]
fn unreadable_files_are_noted() {
    let files = [
        (
            "a/b/terragrunt.hcl",
            "x = 1\nterraform_version_constraint = local.v\n",
        ),
        ("a/b/main.tf", "resource \"a\" { # required_version\n"),
    ];
    let notes = plainly(&files, TOFU).notes.join("\n");
    assert!(
        notes.contains("a/b/terragrunt.hcl: line 2: terraform_version_constraint is no plain text"),
        "{notes}"
    );
    assert!(
        notes.contains("a/b/main.tf is not read for required_version: line "),
        "{notes}"
    );
}

#[test]
fn unmet_error_lists_all_requirements() {
    let main = "terraform {\n  required_version = \"< 1.10\"\n}";
    let found = plainly(
        &[("a/b/main.tf", main), (".opentofu-version", "~> 1.10")],
        None,
    );
    let versions: Vec<Version> = ["1.9.4", "1.10.6"].map(|text| text.parse().unwrap()).into();
    assert!(found.choose(&versions).is_none());
    assert_eq!(
        found.unmet(&versions, "versions at hand").text,
        "no OpenTofu `~> 1.10` (from .opentofu-version:1) with `< 1.10` (a/b/main.tf:2); versions at hand: 1.10.6, 1.9.4"
    );
}

/// `required_version` in a `.tf` and in a `.tofu` file, the tool of the request, and the chosen version.
const PREFERRED: &str = "
    >= 1.6 | | | 1.12.6
    ~> 1.10.0 | | | 1.10.6
    >= 1.9, < 1.11 | | tofu | 1.10.6
    # No OpenTofu of the list satisfies this constraint. Only an explicit request for OpenTofu selects a version that does not read it.
    ~> 1.5.0 | | tofu | 1.12.6
    >= 1.13 | | tofu | 1.12.6
    >= 1.13 | | |
    ~> 1.5.0 | >= 1.8 | | 1.12.6
    ~> 1.5.0 | ~> 1.10.0 | |
";

#[test]
fn version_that_satisfies_tf_files_is_preferred() {
    let versions =
        ["1.9.4", "1.10.6", "1.11.6", "1.12.6"].map(|text| text.parse::<Version>().unwrap());
    let main = |text: &str| format!("terraform {{\n  required_version = \"{text}\"\n}}\n");
    for row @ [required, own, tool, wanted] in table(PREFERRED) {
        let texts = [("a/b/main.tf", required), ("a/b/versions.tofu", own)]
            .map(|(name, text)| (name, main(text)));
        let files: Vec<_> = texts
            .iter()
            .map(|(name, text)| (*name, text.as_str()))
            .collect();
        let found = plainly(
            &files[..if own.is_empty() { 1 } else { 2 }],
            tool.parse().ok(),
        );
        let chosen = found.choose(&versions).map(ToString::to_string);
        assert_eq!(
            (found.tool, chosen.unwrap_or_default().as_str()),
            (Tool::OpenTofu, wanted),
            "{row:?}"
        );
    }
    let told = "`~> 1.5.0` (a/b/main.tf:2) is for Terraform: since 1.12 OpenTofu reads required_version in .tofu files only";
    for (version, why) in [(None, "the newest"), (Some("1.12.6"), "from spec.tool")] {
        let found = decided(
            &[("a/b/main.tf", &main("~> 1.5.0"))],
            TOFU,
            version,
            &Defaults::default(),
        )
        .unwrap();
        assert_eq!(found.why_of(&versions[3]), format!("{why}; {told}"));
    }
}

#[test]
fn tool_reasons_are_reported() {
    let lock = "provider \"registry.terraform.io/a/b\" {\n}\n";
    let main = "terraform {\n  required_version = \"< 1.6\"\n}\n";
    for (files, says) in [
        (vec![], "OpenTofu by default"),
        (
            vec![("a/b/.terraform.lock.hcl", lock)],
            "Terraform since a/b/.terraform.lock.hcl:1 has providers of its registry",
        ),
        (
            vec![("a/b/main.tf", main)],
            "Terraform since `< 1.6` (a/b/main.tf:2) allows no OpenTofu",
        ),
        (
            vec![("a/b/main.tf", main), ("a/b/x.tofu", "")],
            "OpenTofu by a/b/x.tofu",
        ),
        (
            vec![("a/b/terragrunt.hcl", "")],
            "Terragrunt by a/b/terragrunt.hcl",
        ),
    ] {
        let found = plainly(&files, None);
        assert_eq!(format!("{} {}", found.tool, found.tool_why), says);
    }
}

#[test]
fn large_files_are_noted_only_if_they_name_the_attribute() {
    let asks = "terraform {\n  required_version = \"9.9.9\"\n}\n";
    for (size, text, noted) in [
        (300 << 10, "", ""),
        (
            300 << 10,
            asks,
            "a/b/main.tf is not read for required_version: it is larger than 256 KiB",
        ),
        (2 << 20, "", "main.tf is larger than 1 MiB"),
    ] {
        let found = plainly(
            &[("a/b/main.tf", &format!("{text}#{}\n", "x".repeat(size)))],
            TOFU,
        );
        assert!(found.required.is_empty());
        assert_eq!(
            found.notes.len(),
            usize::from(!noted.is_empty()),
            "{:?}",
            found.notes
        );
        assert!(found.notes.concat().contains(noted), "{:?}", found.notes);
    }
}
