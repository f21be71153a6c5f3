//! The summary of a plan beyond `+0 ~0 -0`: outputs, moves, and changes outside of the code.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use crds::{Changed, RunResult};
use harness::cluster::gobuild::Toolset;

use crate::place::{Lab, NEWER, Place, Test, holds};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("reviewed::only_outputs_change", outputs),
        Test::new("reviewed::only_an_address_changes", moved),
        Test::new("reviewed::drift_is_summarised", drifted),
        Test::new(
            "reviewed::destroy_that_keeps_objects_is_destroyed",
            forgotten,
        ),
        Test::new(
            "reviewed::silent_changes_of_a_failed_apply_are_told",
            silent,
        ),
    ]
}

const BEFORE: &str = r#"
resource "terraform_data" "a" {
  input = "same"
}

output "said" {
  value = "before"
}

output "secret" {
  value     = "never-to-be-shown"
  sensitive = true
}
"#;

/// An applied stack.
fn applied(lab: &Lab, tool: &str, main: &str) -> Result<Place> {
    let place = lab.place(tool, &[("main.tf", main)])?;
    place.ends(0, &["--auto-approve"])?;
    Ok(place)
}

/// Plans other code, checks summary and changes, and applies it.
fn waits(place: &Place, main: &str, summary: &str, changes: &[&str]) -> Result<()> {
    fs::write(place.stack().join("main.tf"), main)?;
    let text = place.ends(2, &["apply"])?;
    holds(&text, summary)?;
    let record = place.record()?;
    ensure!(
        !serde_json::to_string(&record)?.contains("-shown"),
        "the value of a sensitive output: {record:?}"
    );
    let plan = record.plan.context("no plan")?;
    ensure!(
        plan.summary == summary && plan.changes == changes,
        "{plan:?}"
    );
    place.approve(&text)?;
    place.comes_to(RunResult::NoChanges, &["apply"]).map(drop)
}

fn outputs(lab: &Lab) -> Result<()> {
    for tool in lab.tools() {
        let place = applied(lab, tool, BEFORE)?;
        let after = BEFORE
            .replace("before", "after")
            .replace("never-to-be-shown", "nor-is-this-shown");
        let after = format!("{after}\noutput \"fresh\" {{\n  value = 1\n}}\n");
        waits(
            &place,
            &after,
            "+0 ~0 -0, 3 outputs",
            &["+ output.fresh", "~ output.said", "~ output.secret"],
        )?;
    }
    Ok(())
}

fn moved(lab: &Lab) -> Result<()> {
    for tool in lab.tools() {
        let place = applied(lab, tool, BEFORE)?;
        let moved = "\nmoved {\n  from = terraform_data.a\n  to   = terraform_data.b\n}\n";
        let after = format!("{}{moved}", BEFORE.replace("\"a\"", "\"b\""));
        waits(
            &place,
            &after,
            "+0 ~0 -0, 1 moved",
            &["> terraform_data.b (moved from terraform_data.a)"],
        )?;
    }
    Ok(())
}

fn drifted(lab: &Lab) -> Result<()> {
    let main = "terraform {\n  required_providers {\n    time = {\n      source = \"hashicorp/time\"\n    }\n  }\n}\n\
                resource \"time_rotating\" \"key\" {\n  rotation_years = 100\n}\n";
    for tool in lab.tools() {
        let place = applied(lab, tool, main)?;
        // The provider treats an expired rotation as deleted.
        let file = place.stack().join("terraform.tfstate");
        let sound = fs::read(&file)?;
        let mut state: serde_json::Value = serde_json::from_slice(&sound)?;
        state["resources"][0]["instances"][0]["attributes"]["rotation_rfc3339"] =
            "2021-01-01T00:00:00Z".into();
        fs::write(&file, state.to_string())?;
        let before = fs::read(&file)?;
        let text = place.ends(2, &["plan", "-refresh-only"])?;
        ensure!(fs::read(&file)? == before, "{text}");
        holds(
            &text,
            "Objects differ from the state: +0 ~0 -0, 1 drifted; neither they nor the state were changed.",
        )?;
        // An output of the code is no drift.
        fs::write(&file, &sound)?;
        let output = format!("{main}output \"o\" {{ value = 1 }}\n");
        fs::write(place.stack().join("main.tf"), output)?;
        let text = place.ends(0, &["plan", "-refresh-only"])?;
        holds(&text, "1 output")?;
        fs::write(place.stack().join("main.tf"), main)?;
        fs::write(&file, &before)?;
        let (code, text) = place.run(&["apply", "-refresh-only"])?;
        ensure!(code == 64 || code == 1, "{code}: {text}");
        holds(&text, "--refresh-only goes with plan")?;
        let changes = [
            "+ time_rotating.key",
            "! time_rotating.key (deleted outside of the code)",
        ];
        waits(&place, main, "+1 ~0 -0, 1 drifted", &changes)?;
    }
    Ok(())
}

/// The tools report no forget. A precondition that fails at apply keeps the only reported operation from its start.
fn silent(lab: &Lab) -> Result<()> {
    const FAILS: &str = "locals {\n  now = timestamp()\n}\nresource \"terraform_data\" \"b\" {\n  lifecycle {\n    precondition {\n      condition = local.now == \"never\"\n      \
                         error_message = \"not now\"\n    }\n  }\n}\n";
    let kept = "resource \"terraform_data\" \"a\" {}\n";
    let forgets =
        "removed {\n  from = terraform_data.a\n  lifecycle {\n    destroy = false\n  }\n}\n";
    for (main, changed) in [(forgets, Changed::Some), (kept, Changed::None)] {
        let place = applied(lab, "tofu", kept)?;
        fs::write(place.stack().join("main.tf"), format!("{main}{FAILS}"))?;
        place.comes_to(RunResult::Failed, &["apply", "--auto-approve"])?;
        let failure = place.failure()?;
        ensure!(failure.changes == changed, "{failure:?}");
        // Alone it is applied, and all operations that the tool reports are done.
        fs::write(place.stack().join("main.tf"), main)?;
        place.run(&["apply", "--auto-approve"])?;
        let progress = place.record()?.progress;
        ensure!(
            progress.as_ref().is_none_or(|p| p.done == p.total),
            "{progress:?}"
        );
    }
    Ok(())
}

/// OpenTofu since 1.12 ends such a destroy with an error.
fn forgotten(lab: &Lab) -> Result<()> {
    let Ok(Some(newer)) = Toolset::cached(&[NEWER]) else {
        println!("left out: {NEWER}, which is not built yet");
        return Ok(());
    };
    let kept = "resource \"terraform_data\" \"a\" {\n  lifecycle {\n    destroy = false\n  }\n}\n\
                resource \"terraform_data\" \"b\" {}\n";
    let place = lab.place("tofu", &[("main.tf", kept)])?;
    place.replace("tofu", newer.path(NEWER)?)?;
    place.comes_to(RunResult::Applied, &["apply", "--auto-approve"])?;
    let text = place.comes_to(RunResult::Destroyed, &["destroy", "--auto-approve"])?;
    holds(&text, "1 forgotten")
}
