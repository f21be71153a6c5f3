//! Settings of a folder in `pawl.yaml`, and options that override them.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use crds::{RunResult, reason};
use harness::guide;

use crate::place::{End as _, HEAD, Lab, Test, approval, ended, holds};

pub(crate) fn tests(lab: &Lab) -> Vec<Test> {
    let mut tests = vec![
        Test::new("given::wrong_settings_are_named", wrong),
        Test::new("given::null_is_a_value", null),
        Test::new("given::sensitive_variables_are_masked", sensitive),
        Test::new("given::targets_limit_the_plan", part),
        Test::new("given::variables_reach_each_command", early),
        Test::new("given::unreadable_code_is_not_passed_over", unread),
        Test::new("given::example_of_the_guide_applies", documented),
        Test::new("given::waiting_plan_retains_its_options", waits),
        Test::new("given::waiting_plan_retains_its_hooks", hooks),
    ];
    for tool in lab.tools() {
        tests.push(Test::new(
            format!("given::last_value_counts_with_{tool}"),
            move |lab| order(lab, tool),
        ));
    }
    tests
}

/// Code prints the values of variables that are declared sensitive.
fn sensitive(lab: &Lab) -> Result<()> {
    let names = ["typed", "environment", "file", "settings", "listed"];
    let declared = names.map(|name| {
        let of = if name == "listed" {
            "list(string)"
        } else {
            "string"
        };
        format!("variable \"{name}\" {{\n  type = {of}\n  sensitive = true\n}}\n")
    });
    let prints = names.map(|name| format!("${{nonsensitive(jsonencode(var.{name}))}}"));
    let code = format!(
        "{}variable \"open\" {{}}\nresource \"terraform_data\" \"a\" {{\n  provisioner \"local-exec\" {{\n    command = <<-EOT\n      \
         echo \"${{var.open}} $TF_VAR_environment\"\n      echo '{}'\n    EOT\n  }}\n}}\n",
        declared.concat(),
        prints.join(" ")
    );
    let place = lab.place("tofu", &[("main.tf", &code)])?;
    place.write("a.auto.tfvars", "file = \"hunter-of-file\"\n")?;
    place.write(
        "pawl.yaml",
        &format!("{HEAD}  variables: [{{name: settings, value: hunter-of-settings}}]\n"),
    )?;
    let mut command = place.agent(&[
        "apply",
        "--var=typed=hunter-of-line",
        "--var=listed=[\"hunter-of-list\"]",
        "--var=open=to-be-shown",
        "--auto-approve",
    ]);
    let text = ended(command.env("TF_VAR_environment", "hunter-of-environment"))?.with(0)?;
    for said in [text, place.log()?] {
        holds(&said, "to-be-shown (sensitive value)")?;
        ensure!(!said.contains("hunter"), "{said}");
    }
    Ok(())
}

/// A null arrives as one, and a number as written or not at all.
fn null(lab: &Lab) -> Result<()> {
    let code = "variable \"x\" {\n  default = \"default\"\n}\noutput \"x\" {\n  value = jsonencode(var.x)\n}\n";
    let place = lab.place("tofu", &[("main.tf", code)])?;
    let with = |value: &str| {
        let text = format!("{HEAD}  variables: [{{name: x, value: {value}}}]\n");
        place.write("pawl.yaml", &text)?;
        place.run(&["plan"])
    };
    holds(&with("null")?.with(0)?, "\"null\"")?;
    holds(&with("9007199254740993")?.with(0)?, "\"9007199254740993\"")?;
    for value in ["18446744073709551617", "{a: [-18446744073709551617]}"] {
        let text = with(value)?.with(1)?;
        holds(&text, "has a number of more digits than a run")?;
    }
    holds(&with("1.5")?.with(0)?, "\"1.5\"")
}

/// OpenTofu evaluates the source of a module, and the backend, in each command.
fn early(lab: &Lab) -> Result<()> {
    let code = "variable \"place\" {}\nterraform {\n  backend \"local\" {\n    path = \"${var.place}.tfstate\"\n  }\n}\n\
        module \"a\" {\n  source = \"./${var.place}\"\n}\n";
    let files = [
        ("main.tf", code),
        ("here/main.tf", "resource \"terraform_data\" \"a\" {}\n"),
    ];
    let place = lab.place("tofu", &files)?;
    place.write("zzz.auto.tfvars", "place = \"there\"\n")?;
    place.comes_to(
        RunResult::Applied,
        &["apply", "--auto-approve", "--var", "place=here"],
    )?;
    ensure!(
        place.stack().join("here.tfstate").is_file(),
        "the state is elsewhere"
    );
    place.write(
        "pawl.yaml",
        &format!("{HEAD}  variables: [{{name: place, value: here}}]\n"),
    )?;
    place.comes_to(RunResult::NoChanges, &["plan"])?;
    // A text of a Secret is an expression, as in the environment.
    place.write(
        "zones.tf",
        "variable \"zones\" {\n  type = list(string)\n}\noutput \"zones\" {\n  value = join(\"+\", var.zones)\n}\n",
    )?;
    place.write(".pawl/secrets/s/zones", "[\"north\", \"south\"]\n")?;
    let zones = "{name: zones, valueFrom: {secretKeyRef: {name: s, key: zones}}}";
    let both = format!("{HEAD}  variables: [{{name: place, value: here}}, {zones}]\n");
    place.write("pawl.yaml", &both)?;
    place.comes_to(RunResult::Applied, &["apply", "--auto-approve"])?;
    let state = fs::read_to_string(place.stack().join("here.tfstate"))?;
    holds(&state, "north+south")?;
    ensure!(
        !place.stack().join("zz_pawl-values.auto.tfvars").exists(),
        "a file was written"
    );
    Ok(())
}

/// A key that is doubled is no error of the tools.
fn unread(lab: &Lab) -> Result<()> {
    let doubled = "variable \"zone\" {\n  default = \"d\"\n}\nlocals { t = { N = 1, N = 2 } }\n";
    let place = lab.place("tofu", &[("main.tf", doubled)])?;
    place.write(
        "pawl.yaml",
        &format!("{HEAD}  variables: [{{name: zonne, value: north}}]\n"),
    )?;
    place.comes_to(RunResult::Failed, &["plan"])?;
    let failure = place.failure()?;
    ensure!(failure.reason == reason::INVALID_SPEC, "{failure:?}");
    holds(
        &failure.message,
        "does not declare variable zonne (did you mean zone?)",
    )?;
    // The block with the constraint is the one that is not read.
    let unread = "terraform {\n  required_version = \"~> 1.5.0\"\n  x = { N = 1, N = 2 }\n}\n";
    let place = lab.place("tofu", &[("main.tf", unread)])?;
    place.comes_to(RunResult::Failed, &["plan"])?;
    let message = place.failure()?.message;
    holds(&message, "main.tf is not read for required_version: line 3")?;
    holds(&message, "name the tool")?;
    place.write(".opentofu-version", "latest-allowed\n")?;
    let text = place.run(&["plan"])?.1;
    ensure!(!text.contains("name the tool"), "{text}");
    Ok(())
}

const NAMES: [&str; 7] = ["env", "auto", "file", "again", "given", "typed", "secret"];

/// Each variable is set in one place more than the previous one.
fn order(lab: &Lab, tool: &str) -> Result<()> {
    let declared = NAMES
        .map(|name| format!("variable \"{name}\" {{}}\n"))
        .concat();
    let said: Vec<_> = NAMES
        .iter()
        .map(|name| format!("${{var.{name}}}"))
        .collect();
    let place = lab.place(
        tool,
        &[(
            "main.tf",
            &format!(
                "{declared}output \"said\" {{\n  value = \"{}\"\n}}\n",
                said.join(" ")
            ),
        )],
    )?;
    let all = |from: usize, word: &str| -> String {
        NAMES[from..6]
            .iter()
            .map(|name| format!("{name} = \"{word}\"\n"))
            .collect::<Vec<_>>()
            .concat()
    };
    place.write("terraform.tfvars", &all(1, "auto"))?;
    place.write("env/first.tfvars", &all(2, "file"))?;
    place.write(
        ".pawl/configmaps/vars/again.tfvars.json",
        r#"{"again": "again", "given": "again", "typed": "again"}"#,
    )?;
    place.write(".pawl/secrets/all/secret", "t0k3n-of-all")?;
    place.write(
        "pawl.yaml",
        &format!(
            "{HEAD}  variableFiles:\n    - path: env/first.tfvars\n    - configMapKeyRef: {{name: vars, key: again.tfvars.json}}\n  \
             variables:\n    - {{name: given, value: given}}\n    - {{name: typed, value: given}}\n  \
             envFrom:\n    - {{prefix: TF_VAR_, secretRef: {{name: all}}}}\n  env:\n    - {{name: TF_VAR_auto, value: env}}\n"
        ),
    )?;
    let mut command = place.agent(&[
        "apply",
        "-auto-approve",
        "-no-color",
        "-var",
        "typed=first",
        "-var=typed=typed",
    ]);
    let text = place.came_to(RunResult::Applied, ended(command.env("TF_VAR_env", "env"))?)?;
    holds(
        &text,
        "said = \"env auto file again given typed (sensitive value)\"",
    )
}

fn wrong(lab: &Lab) -> Result<()> {
    let place = lab.place(
        "tofu",
        &[("main.tf", "variable \"a\" {}\nvariable \"b\" {}\n")],
    )?;
    place.write("pawl.yaml", &format!("{HEAD}  variablefiles: []\n"))?;
    let text = place.ends(1, &["plan"])?;
    ensure!(place.records()?.is_empty(), "a run was begun: {text}");
    holds(
        &text,
        "there is no field spec.variablefiles (did you mean variableFiles?)",
    )?;
    place.write(
        "pawl.yaml",
        &format!(
            "{HEAD}  env: [{{name: A, valueFrom: {{secretKeyRef: {{name: db, key: word}}}}}}]\n"
        ),
    )?;
    let text = place.ends(1, &["plan"])?;
    ensure!(
        place.failure()?.reason == reason::SECRET_NOT_FOUND,
        "{text}"
    );
    holds(&text, "stack/.pawl/secrets/db/word")?;
    fs::remove_file(place.stack().join("pawl.yaml"))?;
    let text = place.ends(1, &["plan"])?;
    holds(
        &text,
        "2 variables have no value: a (main.tf:1), b (main.tf:2)",
    )?;
    holds(&text, "--var a=… --var b=…")
}

/// The guide's example, with the files that it references.
fn documented(lab: &Lab) -> Result<()> {
    let code = "variable \"zone\" {}\nvariable \"word\" {}\nvariable \"size\" {}\noutput \"said\" {\n  value = \"${var.zone} ${var.size}\"\n}\n";
    let place = lab.place(
        "tofu",
        &[
            ("main.tf", code),
            ("prod.tfvars", "zone = \"north\"\nsize = 1\n"),
        ],
    )?;
    place.write(".pawl/secrets/db/secret.tfvars", "word = \"t0k3n\"\n")?;
    place.write("pawl.yaml", &guide::block("pawl.yaml")?)?;
    let text = place.ends(0, &["apply", "-auto-approve"])?;
    holds(&text, "said = \"north 3\"")
}

/// The guide's hooks around a plan that a later process applies, after the folder's own script changed.
fn hooks(lab: &Lab) -> Result<()> {
    let code = "variable \"zone\" {}\nresource \"terraform_data\" \"a\" {\n  input = length(var.zone)\n}\n";
    let check = "#!/bin/bash\ntofu show -no-color \"$PAWL_PLAN_FILE\" | grep -c terraform_data.a\necho checked of $PAWL_HOOK_RESTORES\n";
    let place = lab.place(
        "tofu",
        &[
            ("main.tf", code),
            ("zone", "north-west\n"),
            ("check.sh", check),
        ],
    )?;
    place.write("pawl.yaml", &guide::block("pawl.yaml with hooks")?)?;
    let text = place.ends(2, &["apply"])?;
    for (part, is_there) in [
        ("checked of false", true),
        ("north-west", false),
        ("Applied by", false),
    ] {
        ensure!(text.contains(part) == is_there, "{part}: {text}");
    }
    // A folder with a changed script has another plan.
    let line = approval(&text)?;
    place.write("check.sh", &check.replace("checked", "changed"))?;
    let text = place.paste(&line)?.with(1)?;
    ensure!(place.resources()?.is_none(), "{text}");
    place.write("check.sh", check)?;
    let text = place.approve(&place.ends(2, &["apply"])?)?;
    ensure!(place.resources()? == Some(1), "{text}");
    holds(&text, "Applied by tell")?;
    ensure!(
        !text.contains("checked of") && !text.contains("north-west"),
        "the plan's are of the plan: {text}"
    );

    // A failed hook before the apply prevents it, and one at the end reverts nothing.
    let late = "  hooks:\n    - {name: never, when: BeforeApply, inline: 'exit 3'}\n    - {name: end, when: Always, inline: 'echo over; exit 4'}\n";
    place.write("pawl.yaml", &format!("{HEAD}{late}"))?;
    let text = place.ends(1, &["apply", "-auto-approve", "-var", "zone=a"])?;
    ensure!(place.failure()?.reason == reason::HOOK_FAILED, "{text}");
    ensure!(
        place.record()?.failed_hook.context("none failed")?.name == "end" && text.contains("over"),
        "{text}"
    );
    Ok(())
}

const PARTS: &str = "resource \"terraform_data\" \"a\" {}\nresource \"terraform_data\" \"b\" {}\nresource \"terraform_data\" \"c\" {}\n";

fn part(lab: &Lab) -> Result<()> {
    let place = lab.place("tofu", &[("main.tf", PARTS)])?;
    let adds = |arguments: &[&str], counts: (u32, u32)| -> Result<()> {
        let text = place.ends(0, arguments)?;
        let plan = place.record()?.plan.context("no plan")?.counts;
        ensure!((plan.add, plan.destroy) == counts, "{plan:?}: {text}");
        Ok(())
    };
    place.write(
        "pawl.yaml",
        &format!("{HEAD}  targets: [terraform_data.a, terraform_data.b]\n  parallelism: 1\n"),
    )?;
    adds(&["plan"], (2, 0))?;
    // The command line wins.
    adds(
        &["apply", "-target", "terraform_data.a", "-auto-approve"],
        (1, 0),
    )?;
    ensure!(place.resources()? == Some(1));
    fs::remove_file(place.stack().join("pawl.yaml"))?;
    adds(
        &["plan", "-exclude=terraform_data.b", "-compact-warnings"],
        (1, 0),
    )?;
    adds(
        &[
            "plan",
            "-replace=terraform_data.a",
            "-target=terraform_data.a",
            "-refresh=false",
            "-upgrade",
        ],
        (1, 1),
    )
}

fn waits(lab: &Lab) -> Result<()> {
    let place = lab.place(
        "tofu",
        &[(
            "main.tf",
            &format!("variable \"word\" {{}}\noutput \"word\" {{\n  value = var.word\n}}\n{PARTS}"),
        )],
    )?;
    place.write(
        "pawl.yaml",
        &format!("{HEAD}  variables: [{{name: word, value: here}}]\n"),
    )?;
    let text = place.ends(2, &["apply", "-target=terraform_data.a"])?;
    holds(&approval(&text)?, "--target terraform_data.a")?;
    let text = place.approve(&text)?;
    ensure!(place.resources()? == Some(1), "{text}");
    Ok(())
}
