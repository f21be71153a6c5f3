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
];

pub(crate) fn tests(lab: &Lab) -> Vec<Test> {
    let can = |report: &&Report| lab.has_terragrunt() || !report.is_of_terragrunt();
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
    for (dir, arguments, result, part) in report.steps {
        let text = place.unit(dir).comes_to(*result, arguments)?;
        holds(&text, part)?;
    }
    Ok(())
}
