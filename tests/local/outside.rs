//! Code outside of the folder that the code of the folder names: a change of it after the plan makes the plan stale.

use std::{fs, os::unix::fs::symlink};

use anyhow::{Result, ensure};
use crds::{RunResult, reason};

use crate::place::{Lab, Place, Test, approval, ended, holds};

pub(crate) fn tests(lab: &Lab) -> Vec<Test> {
    let mut tests = vec![
        Test::new("outside::changed_file_makes_the_plan_stale", changed),
        Test::new("outside::unrelated_file_does_not", unrelated),
    ];
    if lab.has_terragrunt() {
        tests.push(Test::new("outside::files_of_terragrunt_count", terragrunt));
    }
    tests
}

/// Code of `app`, and the file outside of it that the code reads or runs.
const NAMED: [(&str, &str, &str); 6] = [
    (
        "script",
        "provisioner \"local-exec\" { command = \"sh ${path.module}/../scripts/run.sh\" }",
        "scripts/run.sh",
    ),
    (
        "script of a script",
        "provisioner \"local-exec\" { command = \"sh ./own.sh\" }",
        "scripts/lib.sh",
    ),
    (
        "directory of work",
        "provisioner \"local-exec\" {\n    working_dir = \"${path.module}/..\"\n    command = \"sh scripts/run.sh\"\n  }",
        "scripts/run.sh",
    ),
    (
        "function",
        "provisioner \"local-exec\" { command = \"echo ${filemd5(\"../scripts/run.sh\")}\" }",
        "scripts/run.sh",
    ),
    (
        "template",
        "input = templatefile(\"${path.module}/../scripts/run.sh\", {})",
        "scripts/run.sh",
    ),
    (
        "link",
        "provisioner \"local-exec\" { command = \"sh ${path.module}/linked.sh\" }",
        "scripts/run.sh",
    ),
];

fn place(lab: &Lab, code: &str) -> Result<Place> {
    let main = format!("resource \"terraform_data\" \"a\" {{\n  {code}\n}}\n");
    let files = [
        ("app/main.tf", main.as_str()),
        ("app/own.sh", ". ../scripts/lib.sh\n"),
        ("scripts/run.sh", "echo first\n"),
        ("scripts/lib.sh", "echo first\n"),
        ("scripts/other/unrelated.txt", "first\n"),
        (".git/HEAD", "ref: refs/heads/main\n"),
    ];
    let place = lab.place("tofu", &files)?;
    symlink("../scripts/run.sh", place.stack().join("app/linked.sh"))?;
    Ok(place)
}

fn changed(lab: &Lab) -> Result<()> {
    for (what, code, file) in NAMED {
        let top = place(lab, code)?;
        let app = top.unit("app");
        let line = approval(&app.waits(app.run(&["apply"])?)?)?;
        fs::write(top.stack().join(file), "echo second\n")?;
        let text = app.came_to(RunResult::Failed, app.paste(&line)?)?;
        ensure!(
            app.failure()?.reason == reason::CHECKSUM_MISMATCH && !text.contains("second\n"),
            "{what}: {text}"
        );
        holds(&text, &format!("../{file} changed after the plan was made"))?;
    }
    Ok(())
}

fn unrelated(lab: &Lab) -> Result<()> {
    let top = place(lab, NAMED[0].1)?;
    let app = top.unit("app");
    let text = app.waits(app.run(&["apply"])?)?;
    fs::write(top.stack().join("scripts/other/unrelated.txt"), "second\n")?;
    fs::write(top.stack().join("scripts/new.sh"), "echo new\n")?;
    app.approve(&text).map(drop)
}

fn terragrunt(lab: &Lab) -> Result<()> {
    let files = [
        (
            "live/app/terragrunt.hcl",
            "include \"root\" {\n  path = find_in_parent_folders(\"root.hcl\")\n}\n\
             terraform {\n  source = \"${get_repo_root()}/modules//app\"\n}\n",
        ),
        ("live/root.hcl", "# the root\n"),
        (
            "modules/app/main.tf",
            "resource \"terraform_data\" \"a\" {\n  provisioner \"local-exec\" {\n    command = \"sh ${path.module}/run.sh\"\n  }\n}\n",
        ),
        ("modules/app/run.sh", "echo first\n"),
        ("modules/other/main.tf", ""),
    ];
    let hook = "terraform {\n  after_hook \"x\" {\n    commands = [\"apply\"]\n    execute  = [\"echo\", \"second\"]\n  }\n}\n";
    for (file, text) in [
        ("../../modules/app/run.sh", "echo second\n"),
        ("../root.hcl", hook),
    ] {
        let top = lab.with_terragrunt(&files)?;
        ended(&mut top.program("git", &["init", "-q"]))?;
        let unit = top.unit("live/app");
        let line = approval(&unit.waits(unit.run(&["apply"])?)?)?;
        fs::write(unit.stack().join(file), text)?;
        let said = unit.came_to(RunResult::Failed, unit.paste(&line)?)?;
        ensure!(
            unit.failure()?.reason == reason::CHECKSUM_MISMATCH,
            "{file}: {said}"
        );
        holds(&said, &format!("Failed: {file}"))?;
    }
    Ok(())
}
