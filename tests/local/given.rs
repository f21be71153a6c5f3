//! Settings of a folder in `pawl.yaml`, and options that override them.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use crds::{RunResult, reason};
use harness::guide;

use crate::place::{Lab, Place, Test, approval, ended, holds};

pub(crate) fn tests(lab: &Lab) -> Vec<Test> {
    let mut tests = vec![
        Test::new("given::a_folder_says_what_is_wrong", wrong),
        Test::new("given::a_part_is_planned", part),
        Test::new("given::what_the_guide_says_of_it", documented),
        Test::new("given::a_plan_that_waits_has_what_it_was_made_with", waits),
        Test::new("given::hooks_of_a_folder_are_those_of_the_plan_that_waits", hooks),
    ];
    for tool in lab.tools() {
        tests.push(Test::new(format!("given::the_last_value_counts_with_{tool}"), move |lab| order(lab, tool)));
    }
    tests
}

const HEAD: &str = "apiVersion: pawl.run/v1alpha1\nkind: TerraformRun\nspec:\n";

/// Writes a file in the stack's folder.
fn write(place: &Place, name: &str, text: &str) -> Result<()> {
    let path = place.stack().join(name);
    fs::create_dir_all(path.parent().context("no directory")?)?;
    Ok(fs::write(path, text)?)
}

const NAMES: [&str; 7] = ["env", "auto", "file", "again", "given", "typed", "secret"];

/// Each variable is set in one place more than the previous one.
fn order(lab: &Lab, tool: &str) -> Result<()> {
    let declared = NAMES.map(|name| format!("variable \"{name}\" {{}}\n")).concat();
    let said: Vec<_> = NAMES.iter().map(|name| format!("${{var.{name}}}")).collect();
    let place =
        lab.place(tool, &[("main.tf", &format!("{declared}output \"said\" {{\n  value = \"{}\"\n}}\n", said.join(" ")))])?;
    let all = |from: usize, word: &str| -> String {
        NAMES[from..6].iter().map(|name| format!("{name} = \"{word}\"\n")).collect::<Vec<_>>().concat()
    };
    write(&place, "terraform.tfvars", &all(1, "auto"))?;
    write(&place, "env/first.tfvars", &all(2, "file"))?;
    write(&place, ".pawl/configmaps/vars/again.tfvars.json", r#"{"again": "again", "given": "again", "typed": "again"}"#)?;
    write(&place, ".pawl/secrets/all/secret", "t0k3n-of-all")?;
    write(
        &place,
        "pawl.yaml",
        &format!(
            "{HEAD}  variableFiles:\n    - path: env/first.tfvars\n    - configMapKeyRef: {{name: vars, key: again.tfvars.json}}\n  \
             variables:\n    - {{name: given, value: given}}\n    - {{name: typed, value: given}}\n  \
             envFrom:\n    - {{prefix: TF_VAR_, secretRef: {{name: all}}}}\n  env:\n    - {{name: TF_VAR_auto, value: env}}\n"
        ),
    )?;
    let mut command = place.agent(&["apply", "-auto-approve", "-no-color", "-var", "typed=first", "-var=typed=typed"]);
    let text = place.came_to(RunResult::Applied, ended(command.env("TF_VAR_env", "env"))?)?;
    holds(&text, "said = \"env auto file again given typed (sensitive value)\"")
}

fn wrong(lab: &Lab) -> Result<()> {
    let place = lab.place("tofu", &[("main.tf", "variable \"a\" {}\nvariable \"b\" {}\n")])?;
    for (spec, said) in [
        ("  variablefiles: []\n", "there is no field spec.variablefiles (did you mean variableFiles?)"),
        ("  operation: Destroy\n", "the command line selects it"),
    ] {
        write(&place, "pawl.yaml", &format!("{HEAD}{spec}"))?;
        let (code, text) = place.run(&["plan"])?;
        ensure!(code == 1 && place.records()?.is_empty(), "{code}: {text}");
        holds(&text, said)?;
    }
    write(&place, "pawl.yaml", &format!("{HEAD}  arguments: {{plan: [-destroy]}}\n"))?;
    let text = place.ends(1, &["plan"])?;
    holds(&text, "it is spec.operation; allowed are")?;
    write(&place, "pawl.yaml", &format!("{HEAD}  env: [{{name: A, valueFrom: {{secretKeyRef: {{name: db, key: word}}}}}}]\n"))?;
    let text = place.ends(1, &["plan"])?;
    let record = place.record()?;
    ensure!(record.failure.context("no failure")?.reason == reason::SECRET_NOT_FOUND, "{text}");
    holds(&text, "stack/.pawl/secrets/db/word")?;
    fs::remove_file(place.stack().join("pawl.yaml"))?;
    let text = place.ends(1, &["plan"])?;
    holds(&text, "2 variables have no value: a (main.tf:1), b (main.tf:2)")?;
    holds(&text, "--var a=… --var b=…")
}

/// The guide's example, with the files that it references.
fn documented(lab: &Lab) -> Result<()> {
    let code = "variable \"zone\" {}\nvariable \"word\" {}\nvariable \"size\" {}\noutput \"said\" {\n  value = \"${var.zone} ${var.size}\"\n}\n";
    let place = lab.place("tofu", &[("main.tf", code), ("prod.tfvars", "zone = \"north\"\nsize = 1\n")])?;
    write(&place, ".pawl/secrets/db/secret.tfvars", "word = \"t0k3n\"\n")?;
    write(&place, "pawl.yaml", &guide::block("pawl.yaml")?)?;
    let text = place.ends(0, &["apply", "-auto-approve"])?;
    holds(&text, "said = \"north 3\"")
}

/// The guide's hooks around a plan that a later process applies, after the folder's own script changed.
fn hooks(lab: &Lab) -> Result<()> {
    let code = "variable \"zone\" {}\nresource \"terraform_data\" \"a\" {\n  input = length(var.zone)\n}\n";
    let check =
        "#!/bin/bash\ntofu show -no-color \"$PAWL_PLAN_FILE\" | grep -c terraform_data.a\necho checked of $PAWL_HOOK_RESTORES\n";
    let place = lab.place("tofu", &[("main.tf", code), ("zone", "north-west\n"), ("check.sh", check)])?;
    write(&place, "pawl.yaml", &guide::block("pawl.yaml with hooks")?)?;
    let text = place.ends(2, &["apply"])?;
    for (part, is_there) in [("checked of false", true), ("north-west", false), ("Applied by", false)] {
        ensure!(text.contains(part) == is_there, "{part}: {text}");
    }
    // A folder with a changed script has another plan.
    let line = approval(&text)?;
    write(&place, "check.sh", &check.replace("checked", "changed"))?;
    let (code, text) = place.paste(&line)?;
    ensure!(code == 1 && place.resources()?.is_none(), "{code}: {text}");
    write(&place, "check.sh", check)?;
    let text = place.ends(2, &["apply"])?;
    let (code, text) = place.paste(&approval(&text)?)?;
    ensure!(code == 0 && place.resources()? == Some(1), "{code}: {text}");
    holds(&text, "Applied by tell")?;
    ensure!(!text.contains("checked of") && !text.contains("north-west"), "the plan's are of the plan: {text}");

    // A failed hook before the apply prevents it, and one at the end reverts nothing.
    let late = "  hooks:\n    - {name: never, when: BeforeApply, inline: 'exit 3'}\n    - {name: end, when: Always, inline: 'echo over; exit 4'}\n";
    write(&place, "pawl.yaml", &format!("{HEAD}{late}"))?;
    let (code, text) = place.run(&["apply", "-auto-approve", "-var", "zone=a"])?;
    let record = place.record()?;
    ensure!(code == 1 && record.failure.context("no failure")?.reason == reason::HOOK_FAILED, "{text}");
    ensure!(record.failed_hook.context("none failed")?.name == "end" && text.contains("over"), "{text}");
    Ok(())
}

const PARTS: &str =
    "resource \"terraform_data\" \"a\" {}\nresource \"terraform_data\" \"b\" {}\nresource \"terraform_data\" \"c\" {}\n";

fn part(lab: &Lab) -> Result<()> {
    let place = lab.place("tofu", &[("main.tf", PARTS)])?;
    let counts = |place: &Place| -> Result<(u32, u32)> {
        let counts = place.record()?.plan.context("no plan")?.counts;
        Ok((counts.add, counts.destroy))
    };
    write(&place, "pawl.yaml", &format!("{HEAD}  targets: [terraform_data.a, terraform_data.b]\n  parallelism: 1\n"))?;
    let (code, text) = place.run(&["plan"])?;
    ensure!(code == 0 && counts(&place)? == (2, 0), "{code}: {text}");
    // The command line wins.
    let (code, text) = place.run(&["apply", "-target", "terraform_data.a", "-auto-approve"])?;
    ensure!(code == 0 && place.resources()? == Some(1), "{code}: {text}");
    fs::remove_file(place.stack().join("pawl.yaml"))?;
    let (code, text) = place.run(&["plan", "-exclude=terraform_data.b", "-compact-warnings"])?;
    ensure!(code == 0 && counts(&place)? == (1, 0), "{code}: {text}");
    let (code, text) =
        place.run(&["plan", "-replace=terraform_data.a", "-target=terraform_data.a", "-refresh=false", "-upgrade"])?;
    ensure!(code == 0 && counts(&place)? == (1, 1), "{code}: {text}");
    Ok(())
}

fn waits(lab: &Lab) -> Result<()> {
    let place = lab
        .place("tofu", &[("main.tf", &format!("variable \"word\" {{}}\noutput \"word\" {{\n  value = var.word\n}}\n{PARTS}"))])?;
    write(&place, "pawl.yaml", &format!("{HEAD}  variables: [{{name: word, value: here}}]\n"))?;
    let text = place.ends(2, &["apply", "-target=terraform_data.a"])?;
    let line = approval(&text)?;
    holds(&line, "--target terraform_data.a")?;
    let (code, text) = place.paste(&line)?;
    ensure!(code == 0 && place.resources()? == Some(1), "{code}: {text}");
    Ok(())
}
