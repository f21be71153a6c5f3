//! Inputs made after public reports of other tools' users (`design/public-reports.md`).

use super::{Repo, at};

type Files = &'static [(&'static str, &'static str)];

/// A report, the files of its repository, and which of their changes set off a plan of `live/app`.
struct Report {
    name: &'static str,
    files: Files,
    relevant: &'static [&'static str],
    others: &'static [&'static str],
}

const REPORTS: [Report; 9] = [
    Report {
        name: "serverless-ca/terraform-aws-ca #40",
        files: &[
            (
                "live/app/main.tf",
                "data \"archive_file\" \"l\" {\n  type = \"zip\"\n  source_dir = \"${path.module}/../../lambda/src\"\n  output_path = \"l.zip\"\n}\n",
            ),
            ("lambda/src/main.py", "a"),
            ("lambda/tests/main.py", "t"),
        ],
        relevant: &["lambda/src/main.py", "lambda/src/utils/new.py"],
        others: &["lambda/tests/main.py", "live/other/main.tf"],
    },
    Report {
        name: "transcend-io/terragrunt-atlantis-config #126",
        files: &[
            (
                "live/app/terragrunt.hcl",
                "terraform {\n  before_hook \"image\" {\n    commands = [\"plan\"]\n    execute = [\"${get_repo_root()}/bin/build.sh\", \"../../ami/main.pkr.hcl\"]\n  }\n  extra_arguments \"b\" {\n    commands = [\"init\"]\n    arguments = [\"-backend-config=../../backends/prod.hcl\"]\n  }\n}\ndependency \"net\" {\n  config_path = \"../net\"\n}\n",
            ),
            ("bin/build.sh", "a"),
            ("ami/main.pkr.hcl", "a"),
            ("backends/prod.hcl", "a = 1"),
            ("live/net/terragrunt.hcl", ""),
        ],
        relevant: &["bin/build.sh", "ami/main.pkr.hcl", "backends/prod.hcl"],
        others: &["live/net/terragrunt.hcl", "bin/other.sh"],
    },
    Report {
        name: "terraform-linters/tflint #2279",
        files: &[
            (
                "live/app/main.tf.json",
                "[{\"module\": {\"a\": {\"source\": \"../../modules/a\"}}}, {\"module\": [[{\"b\": {\"source\": \"../../modules/b\"}}]]}]",
            ),
            ("modules/a/main.tf", ""),
            ("modules/b/main.tf", "module \"c\" { source = \"../c\" }"),
            ("modules/c/main.tf", ""),
        ],
        relevant: &[
            "modules/a/main.tf",
            "modules/b/main.tf",
            "modules/c/main.tf",
        ],
        others: &["modules/d/main.tf"],
    },
    Report {
        name: "hashicorp/terraform #13037",
        files: &[
            (
                "live/app/main.tf.json",
                "{\"module\": {\"a\": {\"source\": \"../../modules/a\"}}, \"module\": {\"b\": {\"source\": \"../../modules/b\"}}}",
            ),
            ("modules/a/main.tf", "module \"c\" { source = \"../c\" }"),
            ("modules/b/main.tf", ""),
            ("modules/c/main.tf", ""),
        ],
        relevant: &["modules/b/main.tf", "modules/c/main.tf"],
        others: &["modules/d/main.tf"],
    },
    Report {
        name: "terrateamio/action #637",
        files: &[
            (
                "live/app/terragrunt.hcl",
                "include \"root\" {\n  path = find_in_parent_folders(\"root.hcl\")\n}\ndependency \"net\" {\n  config_path = find_in_parent_folders(\"net\")\n}\n",
            ),
            (
                "root.hcl",
                "terraform {\n  source = \"${find_in_parent_folders(\"modules\")}//app\"\n}\n",
            ),
            ("modules/app/main.tf", "module \"b\" { source = \"../b\" }"),
            ("modules/b/main.tf", ""),
            ("net/terragrunt.hcl", ""),
        ],
        relevant: &["root.hcl", "modules/app/main.tf", "modules/b/main.tf"],
        others: &["net/terragrunt.hcl", "README.md"],
    },
    Report {
        name: "gruntwork-io/terragrunt #6348",
        files: &[
            (
                "live/app/terragrunt.hcl",
                "locals {\n  all = sort(try(mark_glob_as_read(\"${get_terragrunt_dir()}/../../config/demo/{*.yaml,*.json}\"), []))\n  maps = [for name in local.all : yamldecode(file(name))]\n}\n",
            ),
            ("config/demo/a.yaml", "a: 1"),
        ],
        relevant: &["config/demo/a.yaml", "config/demo/new.yaml"],
        others: &["config/other.yaml", "README.md"],
    },
    Report {
        name: "gruntwork-io/terragrunt #3982",
        files: &[
            (
                "live/app/terragrunt.hcl",
                "locals {\n  rules = jsondecode(file(mark_as_read(abspath(\"${get_terragrunt_dir()}/../../rules.json\"))))\n}\n",
            ),
            ("rules.json", "{}"),
        ],
        relevant: &["rules.json"],
        others: &["README.md"],
    },
    Report {
        name: "runatlantis/atlantis #158",
        files: &[
            (
                "live/app/main.tf",
                "locals { jobs = [for name in var.names : file(\"${path.root}/../../jobs/${name}.nomad\")] }\n",
            ),
            ("jobs/a.nomad", "a"),
        ],
        relevant: &["jobs/a.nomad", "jobs/b.nomad"],
        others: &["README.md"],
    },
    Report {
        name: "runatlantis/atlantis #1275",
        files: &[
            (
                "live/app/terragrunt.hcl",
                "->../../modules/cluster/terragrunt.hcl",
            ),
            (
                "modules/cluster/terragrunt.hcl",
                "locals { all = yamldecode(file(find_in_parent_folders(\"common.yaml\"))) }\nterraform {\n  source = \"${get_terragrunt_dir()}/../../modules/cluster/code\"\n}\n",
            ),
            ("modules/cluster/code/main.tf", ""),
            ("common.yaml", "a: 1"),
        ],
        relevant: &[
            "modules/cluster/terragrunt.hcl",
            "modules/cluster/code/main.tf",
            "common.yaml",
        ],
        others: &["modules/other/terragrunt.hcl"],
    },
];

#[test]
fn changes_in_public_reports_set_off_plans() {
    let app = at("live/app");
    for report in &REPORTS {
        let repo = Repo::of(report.files);
        let digest = repo.digest(&app);
        let changed = |path: &str| {
            let text = repo.0.get(path).map_or("", |text| text);
            repo.with(path, &format!("{text}\n")).digest(&app) != digest
        };
        for path in report.relevant {
            assert!(changed(path), "{}: {path} is not relevant", report.name);
        }
        for path in report.others {
            assert!(!changed(path), "{}: {path} is relevant", report.name);
        }
    }
}
