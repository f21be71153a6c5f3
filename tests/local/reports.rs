//! Inputs made after public reports of other tools' users (`design/public-reports.md` has source and verdict of each).

use std::path::Path;

use anyhow::Result;
use crds::RunResult::{self, Applied, Destroyed, Failed, Planned};

use crate::place::{Lab, Test, holds};

type Files = &'static [(&'static str, &'static str)];

/// A report, and what its input has to come to.
struct Report {
    name: &'static str,
    files: Files,
    /// Steps in directories: arguments, result, a part of the output.
    steps: &'static [(
        &'static str,
        &'static [&'static str],
        RunResult,
        &'static str,
    )],
}

impl Report {
    fn is_of_terragrunt(&self) -> bool {
        let mut names = self.files.iter().map(|(name, _)| Path::new(name));
        names.any(|name| name.extension().is_some_and(|end| end == "hcl"))
    }

    fn needs_terraform(&self) -> bool {
        let mut texts = self.files.iter().map(|(_, text)| text);
        texts.any(|text| text.contains("~> 1.5.0") || text.contains("terraform_binary"))
    }
}

const UNITS: Files = &[
    (
        "net/main.tf",
        "output \"range\" { value = \"10.0.0.0/16\" }\n",
    ),
    ("net/common.hcl", "locals { a = 1 }\n"),
    (
        "net/unit/terragrunt.hcl",
        "include \"common\" {\n  path = find_in_parent_folders(\"common.hcl\")\n}\nterraform {\n  source = \"../\"\n}\nremote_state {\n  backend = \"local\"\n  config = { path = \"${get_terragrunt_dir()}/net.tfstate\" }\n  generate = {\n    path = \"backend.tf\"\n    if_exists = \"overwrite\"\n  }\n}\n",
    ),
    (
        "app/terragrunt.hcl",
        "dependency \"net\" {\n  config_path = \"../net/unit\"\n  mock_outputs = { range = \"mock\" }\n  mock_outputs_merge_strategy_with_state = \"shallow\"\n  mock_outputs_allowed_terraform_commands = [\"init\", \"plan\", \"validate\", \"destroy\"]\n}\ninputs = { range = dependency.net.outputs.range }\n",
    ),
    (
        "app/main.tf",
        "variable \"range\" {}\nresource \"terraform_data\" \"a\" { input = var.range }\n",
    ),
];

const DATA: &str = "resource \"terraform_data\" \"a\" {}\n";

const NUMBER: &str = "variable \"a\" { type = number }\noutput \"o\" { value = var.a }\n";

/// The beginning of a folder's settings, up to the value of a variable.
macro_rules! run {
    () => {
        "apiVersion: pawl.run/v1alpha1\nkind: TerraformRun\nspec:\n  variables: [{name: a, "
    };
}

const REPORTS: &[Report] = &[
    Report {
        name: "adf_660_auto_files_in_their_order",
        files: &[
            (
                "main.tf",
                "variable \"name\" {}\nvariable \"stage\" {}\noutput \"o\" { value = \"${var.name} ${var.stage}\" }\nresource \"terraform_data\" \"x\" {}\n",
            ),
            (
                "global.auto.tfvars",
                "name = \"default\"\nstage = \"test\"\n",
            ),
            ("environment.auto.tfvars", "stage = \"prod\"\n"),
            ("project.auto.tfvars", "name = \"mybrand\"\n"),
        ],
        steps: &[
            (".", &["plan"], Planned, "o = \"mybrand test\""),
            (
                ".",
                &["plan", "-var-file", "environment.auto.tfvars"],
                Planned,
                "o = \"mybrand prod\"",
            ),
        ],
    },
    Report {
        name: "terraform_34845_default_file_counts_beside_another",
        files: &[
            (
                "main.tf",
                "variable \"region\" { default = \"west-1\" }\noutput \"o\" { value = var.region }\nresource \"terraform_data\" \"x\" {}\n",
            ),
            ("terraform.tfvars", "region = \"west-2\"\n"),
            ("local.tfvars", "\n"),
        ],
        steps: &[(
            ".",
            &["plan", "-var-file", "local.tfvars"],
            Planned,
            "o = \"west-2\"",
        )],
    },
    Report {
        name: "tfswitch_430_constraint_in_unreadable_code_is_not_passed_over",
        files: &[(
            "main.tf",
            "terraform { required_version = \"~> 1.8\" }\nlocals { a = { }\n",
        )],
        steps: &[(
            ".",
            &["plan"],
            Failed,
            "main.tf is not read for required_version: line 2",
        )],
    },
    Report {
        name: "terraform_28148_prerelease_in_required_version_is_refused",
        files: &[(
            "main.tf",
            "terraform { required_version = \"0.15.0-beta2\" }\n",
        )],
        steps: &[(".", &["plan"], Failed, "`0.15.0-beta2` names a prerelease")],
    },
    Report {
        name: "terragrunt_2941_include_is_found_from_the_dependency",
        files: UNITS,
        steps: &[
            (
                "net/unit",
                &["apply", "--auto-approve"],
                Applied,
                "10.0.0.0/16",
            ),
            ("app", &["plan"], Planned, "input  = \"10.0.0.0/16\""),
        ],
    },
    Report {
        name: "terragrunt_2971_destroy_takes_outputs_in_place_of_mocks",
        files: UNITS,
        steps: &[
            (
                "net/unit",
                &["apply", "--auto-approve"],
                Applied,
                "10.0.0.0/16",
            ),
            (
                "app",
                &["apply", "--auto-approve"],
                Applied,
                "input  = \"10.0.0.0/16\"",
            ),
            (
                "app",
                &["destroy", "--auto-approve"],
                Destroyed,
                "\"10.0.0.0/16\" -> null",
            ),
        ],
    },
    Report {
        name: "terragrunt_2865_include_below_a_folder_above",
        files: &[
            (
                "_providers/common.hcl",
                "generate \"p\" {\n  path = \"p.tf\"\n  if_exists = \"overwrite\"\n  contents = \"output \\\"p\\\" { value = 1 }\"\n}\n",
            ),
            (
                "unit/terragrunt.hcl",
                "include \"common\" {\n  path = find_in_parent_folders(\"_providers/common.hcl\")\n}\n",
            ),
            ("unit/main.tf", "resource \"terraform_data\" \"x\" {}\n"),
        ],
        steps: &[("unit", &["plan"], Planned, "+ p = 1")],
    },
    Report {
        name: "digger_2617_source_below_the_folder_of_the_root",
        files: &[
            ("root.hcl", "locals { a = 1 }\n"),
            (
                "live/net/terragrunt.hcl",
                "include \"root\" {\n  path = find_in_parent_folders(\"root.hcl\")\n}\nterraform {\n  source = \"${dirname(find_in_parent_folders(\"root.hcl\"))}//modules/net\"\n}\ninputs = {\n  cidr = \"10.10.0.0/16\"\n}\n",
            ),
            (
                "modules/net/main.tf",
                "variable \"cidr\" {}\nresource \"terraform_data\" \"v\" { input = var.cidr }\n",
            ),
        ],
        steps: &[("live/net", &["plan"], Planned, "input  = \"10.10.0.0/16\"")],
    },
    Report {
        name: "terragrunt_6147_binary_of_the_configuration_is_run",
        files: &[
            ("unit/terragrunt.hcl", "terraform_binary = \"terraform\"\n"),
            ("unit/main.tf", DATA),
        ],
        steps: &[(
            "unit",
            &["plan"],
            Planned,
            "Terragrunt 1.1.3 with Terraform ",
        )],
    },
    Report {
        name: "terragrunt_568_source_requires_another_tool",
        files: &[
            (
                "unit/terragrunt.hcl",
                "terraform {\n  source = \"../modules//old\"\n}\n",
            ),
            (
                "modules/old/main.tf",
                "terraform { required_version = \"~> 1.5.0\" }\nresource \"terraform_data\" \"a\" {}\n",
            ),
            (".git/HEAD", "ref: refs/heads/main\n"),
            (".git/objects/.keep", ""),
            (".git/refs/.keep", ""),
        ],
        steps: &[("unit", &["plan"], Planned, "main.tf:1) allows no OpenTofu")],
    },
    Report {
        name: "terragrunt_5497_apply_that_is_excluded_is_no_success",
        files: &[
            (
                "terragrunt.hcl",
                "exclude {\n  if      = true\n  actions = [\"apply\"]\n  no_run  = true\n}\n",
            ),
            ("main.tf", DATA),
        ],
        steps: &[
            (".", &["plan"], Planned, "1 to add"),
            (
                ".",
                &["apply", "--auto-approve"],
                Failed,
                "Terragrunt did not run the apply in this unit",
            ),
        ],
    },
    Report {
        name: "terragrunt_6767_destroy_that_is_excluded_destroys_nothing",
        files: &[
            (
                "root.hcl",
                "exclude {\n  if      = true\n  actions = [\"destroy\"]\n  no_run  = true\n}\n",
            ),
            (
                "unit/terragrunt.hcl",
                "include \"root\" {\n  path = find_in_parent_folders(\"root.hcl\")\n}\n",
            ),
            ("unit/main.tf", DATA),
        ],
        steps: &[
            ("unit", &["apply", "--auto-approve"], Applied, "1 added"),
            (
                "unit",
                &["destroy", "--auto-approve"],
                Failed,
                "keeps this unit from a destroy",
            ),
        ],
    },
    Report {
        name: "terragrunt_1989_hook_reads_the_plan_at_its_own_path",
        files: &[
            (
                "terragrunt.hcl",
                "terraform {\n  extra_arguments \"file\" {\n    commands  = [\"plan\"]\n    arguments = [\"-out=${get_terragrunt_dir()}/tfplan.binary\"]\n  }\n  after_hook \"check\" {\n    commands = [\"plan\"]\n    execute  = [\"sh\", \"-c\", \"tofu show -no-color ${get_terragrunt_dir()}/tfplan.binary | sed s/^Plan:/Checked:/\"]\n  }\n}\n",
            ),
            ("main.tf", DATA),
        ],
        steps: &[(
            ".",
            &["apply", "--auto-approve"],
            Applied,
            "Checked: 1 to add",
        )],
    },
    Report {
        name: "terragrunt_1050_file_that_was_generated_before_is_no_error",
        files: &[
            (
                "terragrunt.hcl",
                "generate \"p\" {\n  path = \"p.tf\"\n  if_exists = \"error\"\n  contents = \"output \\\"p\\\" { value = 1 }\"\n}\n",
            ),
            ("main.tf", DATA),
        ],
        steps: &[(".", &["apply", "--auto-approve"], Applied, "p = 1")],
    },
    Report {
        name: "terragrunt_3096_file_that_is_no_more_generated_is_gone",
        files: &[
            (
                "terragrunt.hcl",
                "generate \"p\" {\n  path = \"p.tf\"\n  disable = fileexists(\"${get_terragrunt_dir()}/off\")\n  if_exists = \"overwrite\"\n  contents = \"output \\\"p\\\" { value = 1 }\"\n}\nterraform {\n  after_hook \"off\" {\n    commands = [\"apply\"]\n    execute  = [\"touch\", \"${get_terragrunt_dir()}/off\"]\n  }\n}\n",
            ),
            ("main.tf", DATA),
        ],
        steps: &[
            (".", &["apply", "--auto-approve"], Applied, "p = 1"),
            (".", &["plan"], Planned, "- p = 1 -> null"),
        ],
    },
    Report {
        name: "terragrunt_1779_unit_without_code_of_its_own",
        files: &[(
            "terragrunt.hcl",
            "generate \"main\" {\n  path = \"main.tf\"\n  if_exists = \"overwrite\"\n  contents = \"resource \\\"terraform_data\\\" \\\"a\\\" {}\"\n}\n",
        )],
        steps: &[(".", &["apply", "--auto-approve"], Applied, "1 added")],
    },
    Report {
        name: "terragrunt_3910_disabled_dependency_needs_no_unit",
        files: &[
            (
                "terragrunt.hcl",
                "dependency \"cluster\" {\n  config_path = \"../none\"\n  enabled     = false\n}\n",
            ),
            ("main.tf", DATA),
        ],
        steps: &[(".", &["plan"], Planned, "1 to add")],
    },
    Report {
        name: "tflint_2279_list_at_the_root_of_json",
        files: &[(
            "main.tf.json",
            "[{\"variable\": {\"zone\": {}}}, {\"output\": {\"o\": {\"value\": \"${var.zone}\"}}}]",
        )],
        steps: &[(
            ".",
            &["plan", "--var", "zone=north"],
            Planned,
            "o = \"north\"",
        )],
    },
    Report {
        name: "terraform_13037_key_that_occurs_twice_in_json",
        files: &[(
            "main.tf.json",
            "{\"variable\": {\"zone\": {}}, \"variable\": {\"size\": {\"default\": 1}}, \"output\": {\"o\": {\"value\": \"${var.zone}\"}}}",
        )],
        steps: &[(
            ".",
            &["plan", "--var", "zone=north"],
            Planned,
            "o = \"north\"",
        )],
    },
    Report {
        name: "terragrunt_3514_large_number_is_kept_or_refused",
        files: &[
            (
                "number/pawl.yaml",
                concat!(run!(), "value: 12345678901234567890123}]\n"),
            ),
            (
                "text/pawl.yaml",
                concat!(run!(), "value: '12345678901234567890123'}]\n"),
            ),
            ("number/main.tf", NUMBER),
            ("text/main.tf", NUMBER),
        ],
        steps: &[
            ("number", &["plan"], Failed, "write it as text, in quotes"),
            ("text", &["plan"], Planned, "o = 12345678901234567890123"),
        ],
    },
    Report {
        name: "terraform_22639_text_that_looks_like_a_number",
        files: &[(
            "main.tf",
            "variable \"commit\" { type = string }\noutput \"o\" { value = var.commit }\n",
        )],
        steps: &[(
            ".",
            &["plan", "--var", "commit=08e30503"],
            Planned,
            "o = \"08e30503\"",
        )],
    },
    Report {
        name: "tfswitch_571_constraint_of_an_override_file_replaces",
        files: &[
            (
                "versions.tf",
                "terraform { required_version = \"~> 1.10.0\" }\n",
            ),
            (
                "versions_override.tf",
                "terraform { required_version = \"~> 1.5.0\" }\n",
            ),
            ("main.tf", DATA),
        ],
        steps: &[(
            ".",
            &["plan"],
            Planned,
            "the newest that versions_override.tf allows",
        )],
    },
    Report {
        name: "tfenv_243_version_file_of_windows",
        files: &[
            (".opentofu-version", "\u{feff}\r\n1.10.6\r\n\r\n"),
            ("main.tf", DATA),
        ],
        steps: &[(
            ".",
            &["plan"],
            Planned,
            "OpenTofu 1.10.6, from .opentofu-version",
        )],
    },
];

pub(crate) fn tests(lab: &Lab) -> Vec<Test> {
    let can = |report: &&Report| {
        (lab.has_terragrunt() || !report.is_of_terragrunt())
            && (lab.tools().contains(&"terraform") || !report.needs_terraform())
    };
    let tests = REPORTS.iter().filter(can).map(|report| {
        Test::new(format!("reports::{}", report.name), |lab| {
            tried(lab, report)
        })
    });
    tests.collect()
}

fn tried(lab: &Lab, report: &Report) -> Result<()> {
    let place = if report.is_of_terragrunt() {
        lab.with_terragrunt(report.files)?
    } else {
        lab.place("tofu", report.files)?
    };
    if report.needs_terraform() {
        lab.put_on_path(&place, "terraform")?;
    }
    for (dir, arguments, result, part) in report.steps {
        let text = place.unit(dir).comes_to(*result, arguments)?;
        holds(&text, part)?;
    }
    Ok(())
}
